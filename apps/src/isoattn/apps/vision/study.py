"""The vision app as the study engine sees it: resolve, train, score, baselines, costs."""

from __future__ import annotations

import hashlib
import importlib
import io
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from isoattn.ablate.domain import Scores, Weights
from isoattn.ablate.records import ArmCost
from isoattn.ablate.worker import end_with_parent
from isoattn.apps.base.arguments import Arguments, prepare
from isoattn.apps.base.files import write_atomic
from isoattn.apps.base.reproducible import parameter_counts
from isoattn.apps.base.run import run_prepared
from isoattn.apps.vision.app import VisionCLI
from isoattn.core import Attention, AttentionFactory, Identity, Mean, attention_spec, find_attention
from isoattn.core.training.checkpoint import read_checkpoint
from isoattn.vision import attention_calls, count_flops, replaced_attention
from isoattn.vision.baselines import nearest_neighbour

T = TypeVar("T")


class VisionStudy:
    """Implements :class:`isoattn.ablate.domain.StudyApp`."""

    name = "vision"
    metrics = ("accuracy",)

    def resolve(self, argv: list[str]) -> dict[str, Any]:
        """The complete config of a command line, nothing built."""
        return _Resolver(
            prepare("vision", argv, default_config=VisionCLI.default_config)
        ).full_config

    def weights(self, config: dict[str, Any]) -> Weights:
        """Build the model at the config's seed and hash its weights outside the attention."""
        built = _Builder(config)
        inside = {
            id(p)
            for core in built.model.modules()
            if isinstance(core, Attention)
            for p in core.parameters()
        }
        outside = {
            name: hashlib.sha256(p.detach().numpy().tobytes()).hexdigest()
            for name, p in built.model.named_parameters()
            if id(p) not in inside
        }
        return Weights(parameter_counts(built.model)[0], outside)

    def attention_shape(self, config: dict[str, Any]) -> tuple[int, int, int]:
        """(heads, head_dim, tokens) of the first swappable layer."""
        built = _Builder(config)
        _, core, shape = attention_calls(built.model.network, built.datamodule.image_size)[0]
        return core.heads, core.head_dim, shape.keys

    def train(self, argv: list[str]) -> tuple[int, Any]:
        """Run ``fit``; the exit status and the app object."""
        arguments = prepare("vision", argv, default_config=VisionCLI.default_config)
        return run_prepared(_Quiet, arguments), arguments.app

    def score(self, app: Any, folder: Path, *, test: bool, control: bool) -> Scores:
        """Score ``best.ckpt`` on validation and, for confirmation runs, once on test.

        The same weights are scored again with the attention replaced by Mean, or by Identity where
        it mixes channels (P7).
        """
        best = folder / "checkpoints" / "best.ckpt"
        app.model.load_state_dict(read_checkpoint(best)["state_dict"])
        network = app.model.network.eval()
        data = app.datamodule
        metrics = {f"val/{k}": v for k, v in accuracy(network, data, "val").metrics().items()}
        if not test:
            return Scores(metrics, None, None)
        plain = accuracy(network, data, "test")
        metrics |= {f"test/{k}": v for k, v in plain.metrics().items()}
        predictions = folder / "predictions.npz"
        plain.save(predictions)
        replacement = replacement_of(app.model.hparams["attention"])
        if control or replacement is None:
            return Scores(metrics, None, predictions)
        with replaced_attention(app.model.network, replacement):
            replaced = accuracy(network, data, "test")
        metrics |= {f"test/{k}_replaced": v for k, v in replaced.metrics().items()}
        return Scores(
            metrics, attention_spec(replacement)["class_path"].rsplit(".", 1)[-1], predictions
        )

    def baselines(self, config: dict[str, Any]) -> dict[str, float]:
        """1-NN on pixels: a demonstration convinces only above it."""
        return {"1-NN on pixels": nearest_neighbour(_Builder(config).datamodule)}

    def costs(self, cases: list[tuple[str, dict[str, str], dict[str, Any]]]) -> list[ArmCost]:
        """Step time interleaved in one child process, peak memory in one child an arm."""
        configs = [config for _, _, config in cases]
        times = _in_child(_step_times, configs, arms=configs)
        costs = []
        for (arm, levels, config), (step, spread, forward) in zip(cases, times, strict=True):
            peak = _in_child(_peak_memory, config, arms=[config])
            built = _Builder(config)
            flops = count_flops(built.model.network, built.datamodule.image_size)
            costs.append(
                ArmCost(
                    arm=arm,
                    levels=levels,
                    forward_flops=flops.total,
                    attention_flops=flops.attention,
                    step_ms=step,
                    step_ms_iqr=spread,
                    forward_ms=forward,
                    peak_mib=peak,
                    batch=built.datamodule.batch_size,
                    note=str(config["model"]["attention"]["init_args"].get("path", "")),
                )
            )
        return costs

    def estimate(self, configs: list[dict[str, Any]]) -> list[float]:
        """Steps and validation passes of a run, times what a few of them took."""
        times = _in_child(_step_times, configs, 1, 3, arms=configs)
        seconds = []
        for config, (step, _, forward) in zip(configs, times, strict=True):
            steps, passes = _batches(_Builder(config).datamodule, config["trainer"])
            seconds.append((steps * step + passes * forward) / 1e3)
        return seconds


class ItemScores:
    """Labels and predictions of a split, item by item."""

    def __init__(self, index: Tensor, label: Tensor, predicted: Tensor) -> None:
        self.index, self.label, self.predicted = index, label, predicted

    def metrics(self) -> dict[str, float]:
        """Accuracy over all items."""
        return {"accuracy": float((self.label == self.predicted).double().mean())}

    def save(self, file: Path) -> None:
        """Write ``index``, ``label``, ``predicted`` as npz, atomically."""
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            index=self.index.numpy(),
            label=self.label.numpy(),
            predicted=self.predicted.numpy(),
        )
        write_atomic(file, buffer.getvalue())


@torch.no_grad()
def accuracy(network: torch.nn.Module, data: Any, split: str) -> ItemScores:
    """Predict a split with a network in evaluation mode."""
    batches = [
        (batch["index"], batch["label"], network(batch["image"]).argmax(1))
        for batch in data.plain_dataloader(split)
    ]
    index, label, predicted = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return ItemScores(index, label, predicted)


def replacement_of(spec: dict[str, Any]) -> AttentionFactory | None:
    """What a trained attention is replaced by to see whether it is used (P7).

    A token mixer becomes a plain average, a channel mixer the identity; an attention that mixes
    nothing has nothing to be replaced.
    """
    mixes = find_attention(spec["class_path"]).capability.mixes
    return {"tokens": Mean, "channels": Identity, "nothing": None}[mixes]


class _Quiet(VisionCLI):
    """Trains without a report: the study has its own."""

    def report(self) -> None:
        pass


class _Resolver(VisionCLI):
    """Parses only."""

    def before_instantiate_classes(self) -> None:
        self.full_config = self.plain_config()

    def instantiate_classes(self) -> None:
        pass

    def _run_subcommand(self, subcommand: str) -> None:
        pass


class _Builder(VisionCLI):
    """Builds data and model of a resolved config, runs nothing, leaves no folder."""

    def __init__(self, config: dict[str, Any]) -> None:
        import yaml

        super().__init__(Arguments("fit", ["fit", "--config", yaml.safe_dump(config)]))

    def before_instantiate_classes(self) -> None:
        self.full_config = self.plain_config()

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        return None

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def _in_child(
    function: Callable[..., T], *arguments: Any, arms: Sequence[dict[str, Any]] = ()
) -> T:
    """Call a function in a fresh process, forked from the warm one.

    Args:
        function: what to call.
        arguments: its arguments.
        arms: configs whose attentions the process has to know.

    Raises:
        RuntimeError: the call failed, or the process was lost (out of memory, killed).
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["isoattn.apps.warm"])
    # Classes are found by name among those imported: a user's module has to be there as well.
    paths = {config["model"]["attention"]["class_path"] for config in arms}
    modules = {find_attention(path).__module__ for path in paths}
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=_start_child, initargs=(modules,)
    ) as child:
        try:
            return child.submit(function, *arguments).result()
        except Exception as error:  # of an arm that cannot take a step, whatever it raises
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _start_child(modules: set[str]) -> None:
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
    return train * epochs, val * epochs


def _steppers(configs: list[dict[str, Any]]) -> list[tuple[Any, Any, dict[str, Tensor]]]:
    torch.set_num_threads(1)
    cases = []
    for config in configs:
        built = _Builder(config)
        built.datamodule.setup("fit")
        batch = next(iter(built.datamodule.train_dataloader()))
        network = built.model.network.train()
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
        cases.append((network, optimizer, batch))
    return cases


def _step(case: tuple[Any, Any, dict[str, Tensor]]) -> None:
    network, optimizer, batch = case
    loss = torch.nn.functional.cross_entropy(network(batch["image"]), batch["label"])
    torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _step_times(
    configs: list[dict[str, Any]], warmup: int = 10, repeats: int = 15
) -> list[tuple[float, float, float]]:
    """Per config: median and IQR of a training step and median of a forward pass, in ms."""
    cases = _steppers(configs)
    steps: list[list[float]] = [[] for _ in cases]
    forwards: list[list[float]] = [[] for _ in cases]
    for round_ in range(warmup + repeats):
        for number, case in enumerate(cases):  # A B C A B C: what disturbs, disturbs all alike
            start = time.perf_counter()
            _step(case)
            middle = time.perf_counter()
            with torch.no_grad():
                case[0](case[2]["image"])
            if round_ >= warmup:
                steps[number].append(1e3 * (middle - start))
                forwards[number].append(1e3 * (time.perf_counter() - middle))
    return [
        (statistics.median(s), _iqr(s), statistics.median(f))
        for s, f in zip(steps, forwards, strict=True)
    ]


def _iqr(values: list[float]) -> float:
    low, _, high = statistics.quantiles(values, n=4)
    return high - low


def _peak_memory(config: dict[str, Any]) -> float:
    """MiB that three training steps add to the peak of a fresh process."""
    (case,) = _steppers([config])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        _step(case)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / unit
