"""The LightningCLI that every app builds on: one run, one folder, nothing overruled in silence."""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as L
import yaml
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from isoattn.apps.base.arguments import Arguments, contradictions, prepare
from isoattn.apps.base.checkpoints import (
    CheckpointOptions,
    EndWhereItCanBeSaved,
    RunCheckpoints,
    VerifiedCheckpointIO,
    select_again,
)
from isoattn.apps.base.class_paths import KINDS
from isoattn.apps.base.errors import UserError
from isoattn.apps.base.files import write_atomic, write_json
from isoattn.apps.base.guard import NonFiniteGuard
from isoattn.apps.base.metrics_log import MetricsLog
from isoattn.apps.base.parser import ParseError, ShortErrorParser, known_options, shorten
from isoattn.apps.base.progress import progress_callback
from isoattn.apps.base.reproducible import BatchHashes, RandomStreams, parameter_counts
from isoattn.apps.base.run_folder import (
    RunFolder,
    RunOptions,
    environment,
    new_run,
    run_of_checkpoint,
)
from isoattn.apps.base.shipped import shipped
from isoattn.apps.base.trackers import (
    TrackerName,
    WandbOptions,
    build_trackers,
    finish_trackers,
)
from isoattn.core import attention_spec
from isoattn.core.training.checkpoint import read_checkpoint, remove_partial_files

_QUIET = (
    r".*does not have many workers.*",
    r".*The number of training batches .* is smaller than the logging interval.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*callbacks used to create the checkpoint need to be provided.*",
    r".*isinstance\(treespec, LeafSpec\).*",
    r"\s*By default only one JsonargparseDeprecationWarning",  # its note on those of Lightning
    r"\s*``instantiate_classes`` was deprecated",
)

# One batch is 1, all of them 1.0. typing keeps one Optional[Union[int, float]] for both orders, of
# whoever was imported first, and a parser that tries float first makes 1.0 of 1.
for _name in (
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "val_check_interval",
    "gradient_clip_val",
):
    L.Trainer.__init__.__annotations__[_name] = int | float | None


class AppCLI(LightningCLI):
    """fit, validate, test and predict of one app.

    Args:
        arguments: the prepared command line.
    """

    app: ClassVar[str]
    default_config: ClassVar[str]
    model_type: ClassVar[type[L.LightningModule]]
    data_type: ClassVar[type[L.LightningDataModule]]
    user_errors: ClassVar[tuple[type[Exception], ...]] = ()
    kinds: ClassVar[Mapping[str, type]] = {}
    """Options of the app whose value is a class, with its base."""

    @classmethod
    def prepared(cls, argv: list[str]) -> Arguments:
        """The command line as the parser takes it, see :func:`prepare`."""
        KINDS.update(cls.kinds)  # of the app that runs: another may have gone before
        return prepare(cls.app, argv, default_config=cls.default_config)

    def __init__(self, arguments: Arguments) -> None:
        KINDS.update(self.kinds)
        self.arguments = arguments
        arguments.app = self
        self.run: RunFolder
        self.loggers: list[Any] = []
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
        for pattern in _QUIET:
            warnings.filterwarnings("ignore", pattern)
        super().__init__(
            self.model_type,
            self.data_type,
            subclass_mode_data=True,
            save_config_callback=None,
            seed_everything_default=0,
            parser_class=ShortErrorParser,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            trainer_defaults={
                "max_epochs": 10,
                "devices": 1,
                "deterministic": True,
                "num_sanity_val_steps": 0,
                "use_distributed_sampler": False,  # the data modules divide the order themselves
                "log_every_n_steps": 10,
                "enable_model_summary": False,
            },
            parser_kwargs={"prog": f"isoattn {self.app}", "allow_abbrev": False},
            args=arguments.argv,
        )

    # --- what can be said -------------------------------------------------------------------

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's four, without arguments that we decide."""
        return {
            name: {*skipped, "weights_only", "return_predictions", "verbose"}
            for name, skipped in LightningCLI.subcommands().items()
        }

    @staticmethod
    def rewrite(argv: list[str]) -> list[str]:
        """An app's own shorthands, such as ``predict DIR``."""
        return argv

    @staticmethod
    def explain(error: Exception) -> str:
        """The message of an error that the user can mend, with the way out where one is known."""
        return str(error)

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The seed: an int, always recorded."""
        parser.add_argument(
            "--seed_everything", type=int, default=0, help="Seed of the run; always recorded."
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Run folder, tracker, checkpoints; what the data tell the model."""
        parser.add_argument(
            "--tracker",
            type=TrackerName,
            default="auto",
            help="auto: W&B where a key is found, else the run folder alone.",
        )
        parser.add_argument(
            "--init_from",
            type=str | None,
            default=None,
            help="Start from the weights of this file; another attention is allowed.",
        )
        parser.add_argument(
            "--output",
            type=str | None,
            default=None,
            help="predict: the CSV to write; test: the folder. Default: in the run folder.",
        )
        parser.add_class_arguments(RunOptions, "run")
        parser.add_class_arguments(WandbOptions, "wandb")
        parser.add_class_arguments(CheckpointOptions, "checkpoint")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, then hold the outcome against the checkpoint."""
        try:
            self.config = parser.parse_args(args)
        except ParseError as error:
            raise self._readable(error, error.options) from error

    def _readable(self, error: Exception, options: Sequence[str] = ()) -> UserError:
        given = self.arguments
        options = [*options, *known_options(self._parser(given.subcommand))]
        presets = shipped(self.app, "configs/attention")
        return UserError(shorten(str(error), options, given.argv, given.attention, presets))

    def _parse_ckpt_path(self) -> None:
        """A checkpoint never overrules the command line: a contradiction stops."""
        stored = self.arguments.stored_config
        if self.arguments.checkpoint is None:
            if self.config.subcommand != "fit" and not self._option("init_from"):
                raise UserError(
                    f"isoattn {self.app} {self.config.subcommand} needs a trained model: "
                    "--ckpt_path RUN/checkpoints/best.ckpt"
                )
            return
        found = contradictions(stored, self.plain_config(), self.config.subcommand)
        if found:
            lines = [
                f"  {key.removesuffix('.class_path')}: {_short(old)} in the checkpoint, "
                f"{_short(new)} on the command line"
                for key, old, new in found[:5]
            ]
            more = [f"  and {len(found) - 5} more"] if len(found) > 5 else []
            raise UserError(
                "\n".join(
                    [
                        f"{self.arguments.checkpoint} is of another experiment:",
                        *lines,
                        *more,
                        "Leave the option out to go on with the checkpoint's. To start from its "
                        "weights with other options: --init_from instead of --ckpt_path.",
                    ]
                )
            )

    def _option(self, name: str) -> Any:
        return self.config[self.config.subcommand].get(name)

    def plain_config(self) -> dict[str, Any]:
        """The resolved config of this subcommand as plain data, without linked values."""
        text = self.parser.dump(
            self.config,
            skip_link_targets=True,
            skip_unset=False,
            skip_validation=True,
            format="json",
        )
        config: dict[str, Any] = yaml.safe_load(text)[self.config.subcommand]
        config.pop("config", None)
        return config

    # --- what is built ----------------------------------------------------------------------

    def before_instantiate_classes(self) -> None:
        """Fix the run folder and write the config before anything is built."""
        subcommand = self.config.subcommand
        config = self.plain_config()
        _one_device(config.get("trainer", {}))
        options = RunOptions(**config.get("run", {}))
        checkpoint = self.arguments.checkpoint
        existing = run_of_checkpoint(checkpoint) if checkpoint is not None else None
        if existing is not None and options.dir is None:
            self.run = existing
        else:
            self.run = new_run(options, self.app, self._default_name(config))
        remove_partial_files(self.run.path)
        remove_partial_files(self.run.checkpoints)
        if subcommand == "fit":
            # What makes the run again: not where this one lies, nor where it was taken up.
            experiment = {k: v for k, v in config.items() if k not in ("run", "ckpt_path")}
            header = f"# isoattn {self.app} fit --config {self.run.config_file}\n"
            write_atomic(self.run.config_file, header + yaml.safe_dump(experiment, sort_keys=False))
        self.full_config = config

    def instantiate_classes(self) -> None:
        """Build data, model and trainer; what they refuse is the user's to mend."""
        try:
            super().instantiate_classes()
        except (ValueError, FileNotFoundError, NotADirectoryError) as error:
            if "Does not validate against" in str(error):  # an error of ours, wrapped by the parser
                raise self._readable(error) from error
            text = re.sub(r"\ACall to compute_fn of link .*? failed: ", "", str(error), flags=re.S)
            raise UserError(text) from error
        self.datamodule.data_seed = self.full_config.get("seed_everything", 0)

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """A trainer with our folder, loggers, callbacks and checkpoint files."""
        config = self.full_config
        subcommand = self.config.subcommand
        self.metrics_log = MetricsLog(self.run.path)
        wandb = WandbOptions(**config.get("wandb", {}))
        if subcommand != "fit" and wandb.job_type == "train":
            wandb.job_type = subcommand
        tracker: TrackerName = config.get("tracker", "auto") if subcommand == "fit" else "none"
        self.loggers, self.tracked = build_trackers(
            tracker, wandb, self.run, self.tracked_config(), self.tags()
        )
        own = self._get(self.config_init, "trainer").get("logger")
        loggers = [*self.loggers, *([own] if own not in (None, True, False) else [])]
        if subcommand == "fit":
            loggers.insert(0, self.metrics_log)
        return super().instantiate_trainer(
            logger=loggers or False,
            default_root_dir=str(self.run.path),
            enable_checkpointing=subcommand == "fit",
            callbacks=self._callbacks(),
            plugins=[VerifiedCheckpointIO()],
            enable_progress_bar=self._bar_wanted() and sys.stderr.isatty(),
            **kwargs,
        )

    def _bar_wanted(self) -> bool:
        return self._get(self.config_init, "trainer").get("enable_progress_bar") is not False

    def _callbacks(self) -> list[Callback]:
        given = self._get(self.config_init, "trainer").get("callbacks") or []
        callbacks: list[Callback] = list(given) if isinstance(given, list) else [given]
        if self._bar_wanted():
            callbacks.append(progress_callback())
        if self.config.subcommand != "fit":
            return callbacks
        options = CheckpointOptions(**self.full_config.get("checkpoint", {}))
        self.hashes = BatchHashes()
        self.checkpoints = RunCheckpoints(
            self.run.checkpoints,
            options,
            self.monitored(),
            {"app": self.app, "config": self.full_config, **self.kept()},
        )
        seed = self.full_config.get("seed_everything", 0)
        callbacks += [RandomStreams(seed), self.hashes, NonFiniteGuard(), EndWhereItCanBeSaved()]
        if self.loggers:
            callbacks.append(LearningRateMonitor("step"))
        return [*callbacks, self.checkpoints]

    # --- what is recorded -------------------------------------------------------------------

    def _default_name(self, config: dict[str, Any]) -> str:
        model = config.get("model", {})
        parts = [
            self.config.subcommand if self.config.subcommand != "fit" else "",
            _class_name(model.get("network")).lower(),
            _class_name(config.get("data")).removesuffix("Data").lower(),
            _class_name(model.get("attention")),
            f"s{config.get('seed_everything', 0)}",
        ]
        return "-".join(p for p in parts if p)

    def tags(self) -> list[str]:
        """Domain, attention and data."""
        config = self.full_config
        names = [_class_name(config.get("model", {}).get("attention")), _class_name(config["data"])]
        return [self.app, *(n for n in names if n)]

    def tracked_config(self) -> dict[str, Any]:
        """The resolved config, nested, with the numbers panels are grouped by."""
        attention = attention_spec(self.model.hparams["attention"])
        parameters, inside = parameter_counts(self.model)
        return {
            **self.full_config,
            "cell": {
                "attention": attention["class_path"].rsplit(".", 1)[-1],
                "seed": self.full_config.get("seed_everything", 0),
                "parameters": parameters,
                "attention_parameters": inside,
            },
        }

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        checkpoint = self.arguments.checkpoint
        if subcommand in ("validate", "test"):
            kwargs["verbose"] = False
        kwargs["ckpt_path"] = str(checkpoint) if checkpoint is not None else None
        return kwargs

    def before_fit(self) -> None:
        """Load initial weights, or make room in the metrics for what a resume makes again."""
        self.initialise()
        self._started = time.perf_counter()
        self._step_before: int | None = None
        if self.arguments.checkpoint is not None:
            if self.arguments.checkpoint.parent.resolve() == self.run.checkpoints.resolve():
                select_again(self.arguments.checkpoint)
            self._step_before = int(read_checkpoint(self.arguments.checkpoint)["global_step"])
            self.metrics_log.keep_before(self._step_before)

    def kept(self) -> dict[str, Any]:
        """Plain data that an app keeps in its checkpoints beside the config."""
        return {}

    def monitored(self) -> str:
        """The validation metric that selects the best checkpoint."""
        return "val/accuracy"

    def initialise(self) -> None:
        """Take ``--init_from`` weights; an app says how."""

    def after_fit(self) -> None:
        """Record the outcome."""
        parameters, inside = parameter_counts(self.model)
        best = self.checkpoints
        self.run.write_result(
            status="done",
            error="",
            app=self.app,
            metrics=best.best_metrics,
            best_epoch=best.best_epoch,
            epochs=self.trainer.current_epoch,
            steps=self.trainer.global_step,
            seconds=round(time.perf_counter() - self._started, 3),
            seed=self.full_config.get("seed_everything", 0),
            attention=attention_spec(self.model.hparams["attention"]),
            parameters=parameters,
            attention_parameters=inside,
            batch_hashes=self.hashes.epochs,
            init_hash=self.hashes.init_hash,
            data_fingerprint=self.datamodule.fingerprint(),
            skipped=self.datamodule.skipped(),
            environment=environment(),
            **self.facts(),
        )
        finish_trackers(self.loggers, {"best_epoch": best.best_epoch, "parameters": parameters})
        self.report()

    def report(self) -> None:
        """Say what the run came to and what to do next."""
        kept = self.checkpoints
        if self.trainer.global_step == self._step_before:
            say(
                f"nothing left to train: the run has had its {self.trainer.current_epoch} epochs. "
                f"On from its weights: isoattn {self.app} fit --init_from "
                f"{self.arguments.checkpoint}"
            )
        if kept.best_epoch is None:
            every = self.full_config.get("trainer", {}).get("check_val_every_n_epoch") or 1
            say(
                "nothing was validated, so no checkpoint is the best: validation is every "
                f"{every} epochs (--trainer.check_val_every_n_epoch)"
            )
        else:
            say_metrics({**kept.best_metrics, "best epoch": float(kept.best_epoch + 1)})
        say(f"run     {self.run.path}")
        say(f"tracked {self.tracked}")
        newest = kept.last if kept.best_epoch is None else kept.best
        if newest.exists():
            say(f"next    isoattn {self.app} test --ckpt_path {newest}")

    def before_validate(self) -> None:
        """Weights of ``--init_from``."""
        self.initialise()

    before_test = before_validate
    before_predict = before_validate

    def after_validate(self) -> None:
        """Write and print the validation metrics."""
        metrics = self.final_metrics()
        write_json(self.run.path / "validate" / "result.json", {"metrics": metrics})
        say_metrics(metrics)
        say(f"written {self.run.path / 'validate'}")

    def final_metrics(self) -> dict[str, float]:
        """What validate or test came to."""
        return {k: float(v) for k, v in self.trainer.callback_metrics.items()}

    def test_folder(self) -> Path:
        """Where the outputs of a test go."""
        return Path(self._option("output") or self.run.path / "test")

    def test_facts(self) -> dict[str, Any]:
        """What stands beside the outputs of a test: figures, and what was tested on what."""
        return {
            "metrics": self.final_metrics(),
            "checkpoint": str(self.arguments.checkpoint or self._option("init_from")),
            "attention": self.model.hparams["attention"],
            "skipped": self.datamodule.skipped(),
            "data_fingerprint": self.datamodule.fingerprint(),
        }

    def facts(self) -> dict[str, Any]:
        """What an app adds to ``result.json``."""
        return {}

    def fail(self, status: str, error: BaseException) -> None:
        """Record that the run ended without an outcome; of one that never began nothing is kept."""
        if not hasattr(self, "run"):
            return
        finish_trackers(self.loggers, {"status": status})
        refused = status == "failed" and isinstance(error, (UserError, *self.user_errors))
        if not hasattr(self, "_started") or (refused and not self.trainer.global_step):
            self.run.discard()
        if self.config.subcommand == "fit" and self.run.path.exists():
            self.run.write_result(
                status=status,
                error=str(error) or type(error).__name__,
                app=self.app,
                environment=environment(),
            )


def say(text: str) -> None:
    """A line on standard output."""
    sys.stdout.write(text + "\n")


def say_metrics(metrics: dict[str, float]) -> None:
    """Metrics as a column on standard output."""
    width = max([24, *(len(name) + 2 for name in metrics)])
    for name, value in sorted(metrics.items()):
        say(f"{name:{width}s}{value:.4f}" if value % 1 else f"{name:{width}s}{value:.0f}")


def _one_device(trainer: dict[str, Any]) -> None:
    """Refuse what would start this command again in other processes."""
    devices, nodes = trainer.get("devices", 1), trainer.get("num_nodes", 1)
    if devices not in (1, "1") and not (isinstance(devices, list) and len(devices) == 1):
        raise UserError(
            f"--trainer.devices={devices}: a run trains on one device (1, or a list of one index). "
            "For more devices start more runs, or isoattn ablate run with --jobs."
        )
    if nodes != 1:
        raise UserError(f"--trainer.num_nodes={nodes}: a run trains on one node.")


def _class_name(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("class_path", "")
    return str(value or "").rsplit(".", 1)[-1]


def _short(value: Any) -> str:
    if isinstance(value, str) and value.startswith("isoattn."):
        return value.rsplit(".", 1)[-1]
    return "nothing" if value is None else str(value)
