"""An app as the study engine sees it: what all domains share. A domain adds how it scores."""

from __future__ import annotations

import hashlib
import importlib
import io
import multiprocessing
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from isoattn.ablate.domain import Scores, Weights
from isoattn.ablate.records import ArmCost, Strata
from isoattn.ablate.worker import end_with_parent
from isoattn.apps.base.arguments import Arguments
from isoattn.apps.base.class_paths import own_modules
from isoattn.apps.base.cli import AppCLI
from isoattn.apps.base.files import write_atomic
from isoattn.apps.base.peak import forget_peak, resident_peak
from isoattn.apps.base.reproducible import parameter_counts
from isoattn.apps.base.run import run_prepared
from isoattn.core import (
    Attention,
    AttentionFactory,
    Identity,
    Mean,
    Shape,
    attention_factory,
    attention_spec,
    find_attention,
    replaced_attention,
)
from isoattn.core.training.checkpoint import read_checkpoint

T = TypeVar("T")


@dataclass(frozen=True)
class ItemScores:
    """A split, scored.

    Args:
        metrics: name -> value.
        index, label, predicted: int64 (items,), for comparisons item by item; None where an item
            is not right or wrong as a whole.
        strata: stratum -> group -> scores of the items in it, ``items`` among them: how many.
    """

    metrics: dict[str, float]
    index: Tensor | None = None
    label: Tensor | None = None
    predicted: Tensor | None = None
    strata: Strata = field(default_factory=dict)

    @classmethod
    def of_classes(cls, index: Tensor, label: Tensor, predicted: Tensor) -> ItemScores:
        """With the accuracy over all items."""
        accuracy = float((label == predicted).double().mean())
        return cls({"accuracy": accuracy}, index, label, predicted)

    def save(self, file: Path) -> Path | None:
        """Write ``index``, ``label``, ``predicted`` as npz, atomically, where they are known."""
        if self.index is None or self.label is None or self.predicted is None:
            return None
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            index=self.index.numpy(),
            label=self.label.numpy(),
            predicted=self.predicted.numpy(),
        )
        write_atomic(file, buffer.getvalue())
        return file


class AppStudy(ABC):
    """Implements :class:`isoattn.ablate.domain.StudyApp` for an app on the shared command line."""

    cli: ClassVar[type[AppCLI]]
    metrics: ClassVar[tuple[str, ...]]

    @property
    def name(self) -> str:
        """Of the app."""
        return self.cli.app

    # --- what a domain says -----------------------------------------------------------------

    @abstractmethod
    def evaluate(self, model: Any, data: Any, part: str) -> ItemScores:
        """Score a model in evaluation mode on ``val`` or ``test``."""

    @abstractmethod
    def step_loss(self, model: Any, batch: Any) -> Tensor:
        """The loss of a training step, for timing; needs no trainer."""

    @abstractmethod
    def forward(self, model: Any, batch: Any) -> None:
        """The forward pass of a batch, for timing."""

    @abstractmethod
    def attention_calls(self, built: Any) -> list[tuple[Attention, Shape]]:
        """The calls of the swappable attention in one forward pass of a sample."""

    @abstractmethod
    def flops(self, built: Any) -> tuple[int, int]:
        """FLOPs of the forward pass of a sample, and the part of the attention cores."""

    @abstractmethod
    def batch_size(self, built: Any) -> int:
        """Samples of a training step."""

    @abstractmethod
    def baselines(self, config: dict[str, Any]) -> dict[str, float]:
        """Simple references of the domain on the test split: name -> score."""

    def swapped_layers(self, model: Any) -> Sequence[int] | None:
        """Indices of the swappable layers that are the arm's; None: all."""
        return None

    # --- the same in all --------------------------------------------------------------------

    def resolve(self, argv: list[str]) -> dict[str, Any]:
        """The complete config of a command line, nothing built."""
        return resolve(self.cli, argv)

    def weights(self, config: dict[str, Any]) -> Weights:
        """Build the model at the config's seed and hash its weights outside the attention."""
        model = build(self.cli, config).model
        cores = (core for core in model.modules() if isinstance(core, Attention))
        inside = {id(p) for core in cores for p in core.parameters()}
        outside = {
            name: hashlib.sha256(p.detach().numpy().tobytes()).hexdigest()
            for name, p in model.named_parameters()
            if id(p) not in inside
        }
        return Weights(parameter_counts(model)[0], outside)

    def attention_shape(self, config: dict[str, Any]) -> tuple[int, int, int]:
        """(heads, head_dim, tokens) of the first swappable layer."""
        core, shape = self.attention_calls(build(self.cli, config))[0]
        return core.heads, core.head_dim, shape.keys

    def train(self, argv: list[str]) -> tuple[int, Any]:
        """Run ``fit``; the exit status and the app object."""
        arguments = self.cli.prepared(argv)
        return run_prepared(_with(_NoReport, self.cli), arguments), arguments.app

    def training(self, config: dict[str, Any]) -> dict[str, Any]:
        """What of a config decides the training: all of it, unless the domain knows better."""
        return config

    def built(self, config: dict[str, Any]) -> Any:
        """Model and data of a config, nothing trained."""
        built = build(self.cli, config)
        built.datamodule.setup("fit")
        return built

    def score(
        self,
        app: Any,
        folder: Path,
        *,
        test: bool,
        control: bool,
        swaps: Mapping[str, dict[str, Any]],
    ) -> Scores:
        """Score ``best.ckpt`` on validation and, for confirmation runs, once on test.

        The same weights are scored again with the attention replaced by Mean, or by Identity where
        it mixes channels (P7), and by each of ``swaps`` (P10).
        """
        app.model.load_state_dict(
            read_checkpoint(folder / "checkpoints" / "best.ckpt")["state_dict"]
        )
        model, data = app.model.eval(), app.datamodule
        metrics = _named("val", self.evaluate(model, data, "val").metrics)
        if not test:
            return Scores(metrics, None, None)
        plain = self.evaluate(model, data, "test")
        metrics |= _named("test", plain.metrics)
        predictions = plain.save(folder / "predictions.npz")
        metrics |= self._swapped(app, swaps)
        replacement = None if control else replacement_of(model.hparams["attention"])
        if replacement is None:
            return Scores(metrics, None, predictions, plain.strata)
        with replaced_attention(model, replacement, self.swapped_layers(model)):
            metrics |= _named("test", self.evaluate(model, data, "test").metrics, "_replaced")
        return Scores(metrics, _leaf(attention_spec(replacement)), predictions, plain.strata)

    def swapped_scores(
        self, config: dict[str, Any], folder: Path, swaps: Mapping[str, dict[str, Any]]
    ) -> dict[str, float]:
        """Score ``best.ckpt`` of a run that has ended on test, as trained and with swaps."""
        built = self.built(config)
        kept = read_checkpoint(folder / "checkpoints" / "best.ckpt")["state_dict"]
        built.model.load_state_dict(kept)
        model, data = built.model.eval(), built.datamodule
        metrics = _named("test", self.evaluate(model, data, "test").metrics)
        return metrics | self._swapped(built, swaps)

    def _swapped(self, app: Any, swaps: Mapping[str, dict[str, Any]]) -> dict[str, float]:
        """What an attention draws when it is put in follows the run's seed, whenever that is."""
        metrics: dict[str, float] = {}
        for arm, spec in swaps.items():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(app.full_config.get("seed_everything", 0))
                layers = self.swapped_layers(app.model)
                with replaced_attention(app.model, attention_factory(spec), layers):
                    found = self.evaluate(app.model, app.datamodule, "test").metrics
            metrics |= _named("test", found, f"@{arm}")
        return metrics

    def costs(
        self,
        cases: list[tuple[str, dict[str, str], dict[str, Any]]],
        *,
        warmup: int = 10,
        repeats: int = 15,
    ) -> list[ArmCost]:
        """Step time interleaved in one child process, peak memory in one child an arm."""
        configs = [config for _, _, config in cases]
        times = _in_child(self._step_times, configs, warmup, repeats, arms=configs)
        costs = []
        for (arm, levels, config), (step, spread, forward) in zip(cases, times, strict=True):
            peak = _in_child(self._peak_memory, config, arms=[config])
            built = build(self.cli, config)
            total, attention = self.flops(built)
            costs.append(
                ArmCost(
                    arm=arm,
                    levels=levels,
                    forward_flops=total,
                    attention_flops=attention,
                    step_ms=step,
                    step_ms_iqr=spread,
                    forward_ms=forward,
                    peak_mib=peak,
                    batch=self.batch_size(built),
                    note=str(config["model"]["attention"]["init_args"].get("path", "")),
                )
            )
        return costs

    def estimate(self, configs: list[dict[str, Any]]) -> list[float]:
        """Steps and validation passes of a run, times what a few of them took."""
        times = _in_child(self._step_times, configs, 1, 3, arms=configs)
        seconds = []
        for config, (step, _, forward) in zip(configs, times, strict=True):
            steps, passes = _batches(build(self.cli, config).datamodule, config["trainer"])
            seconds.append((steps * step + passes * forward) / 1e3)
        return seconds

    def _step_times(
        self, configs: list[dict[str, Any]], warmup: int, repeats: int
    ) -> list[tuple[float, float, float]]:
        """Per config: median and IQR of a training step and median of a forward pass, in ms.

        Of processor time: there is one thread, and another process does not count as a slow arm.
        """
        cases = [_Stepper(self, config) for config in configs]
        steps: list[list[float]] = [[] for _ in cases]
        forwards: list[list[float]] = [[] for _ in cases]
        for round_ in range(warmup + repeats):
            for number, case in enumerate(cases):  # A B C A B C: what disturbs, disturbs all alike
                start = time.process_time()
                case.step()
                middle = time.process_time()
                case.forward()
                if round_ >= warmup:
                    steps[number].append(1e3 * (middle - start))
                    forwards[number].append(1e3 * (time.process_time() - middle))
        return [
            (statistics.median(s), _iqr(s), statistics.median(f))
            for s, f in zip(steps, forwards, strict=True)
        ]

    def _peak_memory(self, config: dict[str, Any]) -> float:
        """MiB that three training steps add to what is resident in a fresh process."""
        case = _Stepper(self, config)
        forget_peak()  # building may take more than a step
        before = resident_peak()
        for _ in range(3):
            case.step()
        return (resident_peak() - before) / 2**20


class _Stepper:
    """Training steps and forward passes of a config on its first batch, on one thread."""

    def __init__(self, study: AppStudy, config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        built = build(study.cli, config)
        built.datamodule.setup("fit")
        self._batch = next(iter(built.datamodule.train_dataloader()))
        self._model: nn.Module = built.model
        self._study = study
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)

    def step(self) -> None:
        """Forward, backward, optimiser step."""
        self._model.train()
        torch.autograd.backward(self._study.step_loss(self._model, self._batch))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def forward(self) -> None:
        """Forward in evaluation mode."""
        self._study.forward(self._model.eval(), self._batch)


def replacement_of(spec: dict[str, Any]) -> AttentionFactory | None:
    """What a trained attention is replaced by to see whether it is used (P7).

    A token mixer becomes a plain average, a channel mixer the identity; an attention that mixes
    nothing has nothing to be replaced.
    """
    mixes = find_attention(spec["class_path"]).capability.mixes
    return {"tokens": Mean, "channels": Identity, "nothing": None}[mixes]


def resolve(cli: type[AppCLI], argv: list[str]) -> dict[str, Any]:
    """The complete config of a command line, nothing built.

    Args:
        cli: of the app.
        argv: subcommand first.
    """
    arguments = cli.prepared(argv)
    config: dict[str, Any] = _with(_ParsesOnly, cli)(arguments).full_config
    return config


def build(cli: type[AppCLI], config: dict[str, Any]) -> Any:
    """Data and model of a resolved config; nothing is run, no folder is made.

    Returns:
        An app object with ``model`` and ``datamodule``.
    """
    return _with(_BuildsOnly, cli)(Arguments("fit", ["fit", "--config", yaml.safe_dump(config)]))


class _NoReport:
    """Trains without a report: a study has its own."""

    def report(self) -> None:
        pass


class _BuildsOnly:
    plain_config: Callable[[], dict[str, Any]]

    def before_instantiate_classes(self) -> None:
        self.full_config = self.plain_config()

    def instantiate_trainer(self, **_: Any) -> Any:
        return None

    def _run_subcommand(self, subcommand: str) -> None:
        pass


class _ParsesOnly(_BuildsOnly):
    def instantiate_classes(self) -> None:
        pass


def _with(change: type, cli: type[AppCLI]) -> Any:
    return type(f"{change.__name__.strip('_')}{cli.__name__}", (change, cli), {})


def _named(part: str, metrics: Mapping[str, float], suffix: str = "") -> dict[str, float]:
    return {f"{part}/{name}{suffix}": value for name, value in metrics.items()}


def _leaf(spec: dict[str, Any]) -> str:
    return str(spec["class_path"]).rsplit(".", 1)[-1]


def _in_child(
    function: Callable[..., T], *arguments: Any, arms: Sequence[dict[str, Any]] = ()
) -> T:
    """Call a function in a fresh process, forked from the warm one.

    Args:
        function: what to call.
        arguments: its arguments.
        arms: configs whose classes the process has to know.

    Raises:
        RuntimeError: the call failed, or the process was lost (out of memory, killed).
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["isoattn.apps.warm"])
    # Classes are found by name among those imported: a user's module has to be there as well.
    modules = own_modules(arms)
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=_start_child, initargs=(modules,)
    ) as child:
        try:
            return child.submit(function, *arguments).result()
        except Exception as error:  # of an arm that cannot take a step, whatever it raises
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _start_child(modules: list[str]) -> None:
    end_with_parent()
    for module in modules:
        importlib.import_module(module)


def _batches(data: Any, trainer: dict[str, Any]) -> tuple[int, int]:
    """Training steps and validation batches of a whole run."""
    data.setup("fit")
    train, val = len(data.train_dataloader()), len(data.plain_dataloader("val"))
    limit = trainer.get("limit_train_batches")
    if isinstance(limit, int):
        train = min(train, limit)
    elif isinstance(limit, float):
        train = int(train * limit)
    epochs = trainer.get("max_epochs") or 1
    return train * epochs, val * (epochs // (trainer.get("check_val_every_n_epoch") or 1))


def _iqr(values: list[float]) -> float:
    low, _, high = statistics.quantiles(values, n=4)
    return high - low
