"""Trackers: readers of the run. The run folder never needs one."""

from __future__ import annotations

import netrc
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from isoattn.apps.base.errors import UserError
from isoattn.apps.base.run_folder import RunFolder

TrackerName = Literal["auto", "wandb", "wandb-offline", "csv", "tensorboard", "none"]


@dataclass
class WandbOptions:
    """How the run appears in Weights & Biases.

    Args:
        project: the project.
        entity: user or team; the account's default if not given.
        group: the study a run belongs to.
        job_type: ``train``, ``test``, ``report``.
        tags: added to domain, attention and data.
        id: stable id; a run with the same id is taken up again.
        notes: free text.
    """

    project: str = "isoattn"
    entity: str | None = None
    group: str | None = None
    job_type: str = "train"
    tags: list[str] = field(default_factory=list)
    id: str | None = None
    notes: str | None = None


def has_wandb_key() -> bool:
    """Whether a W&B key is found in the environment or the netrc file; asks no server."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    file = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(str(file)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def build_trackers(
    tracker: TrackerName,
    options: WandbOptions,
    run: RunFolder,
    config: dict[str, Any],
    tags: list[str],
) -> tuple[list[Logger], str]:
    """The loggers besides ``metrics.csv``, and a line that says where the run is tracked.

    Args:
        tracker: which one; ``auto`` is W&B where a key is found and local files otherwise.
        options: for W&B.
        run: its folder; tracker files live in it.
        config: the resolved config, nested.
        tags: domain, attention, data.

    Raises:
        UserError: ``wandb`` without a key.
    """
    local = f"metrics in {run.path / 'metrics.csv'}"
    if tracker in ("csv", "none"):
        return [], local
    if tracker == "tensorboard":
        board = TensorBoardLogger(str(run.path), name="", version="tensorboard")
        return [board], f"TensorBoard: tensorboard --logdir {run.path}"
    online = tracker == "wandb" or (tracker == "auto" and has_wandb_key())
    if tracker == "auto" and not online:
        return [], f"{local} (no W&B key found; --tracker wandb-offline keeps a run to sync later)"
    if tracker == "wandb" and not has_wandb_key() and os.environ.get("WANDB_MODE") != "offline":
        raise UserError(
            "--tracker wandb needs an account: run `wandb login`, or set WANDB_API_KEY, or use "
            "--tracker wandb-offline and `wandb sync` later."
        )
    try:
        logger, where = _wandb_logger(online, options, run, config, tags)
    except Exception as error:
        if tracker != "auto":
            raise UserError(f"W&B did not start: {error}", code=1) from error
        return [], f"{local} (W&B did not start: {str(error).splitlines()[0]})"
    return [logger], where


def _wandb_logger(
    online: bool, options: WandbOptions, run: RunFolder, config: dict[str, Any], tags: list[str]
) -> tuple[WandbLogger, str]:
    import wandb

    # The run is made here and handed over: WandbLogger would take over a run of the same process,
    # and its offline switch sets an environment variable for the whole process.
    experiment = wandb.init(
        project=options.project,
        entity=options.entity,
        group=options.group,
        job_type=options.job_type,
        tags=[*tags, *options.tags],
        notes=options.notes,
        id=options.id,
        name=run.name,
        dir=str(run.path.resolve()),  # its service has a working directory of its own
        config=config,
        mode="online" if online else "offline",
        resume="allow" if options.id else None,
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off", disable_git=True),
    )
    experiment.define_metric("trainer/global_step")
    experiment.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    experiment.define_metric("val/accuracy", summary="max", step_metric="trainer/global_step")
    logger = WandbLogger(experiment=experiment, save_dir=str(run.path), project=options.project)
    if online:
        return logger, f"W&B: {experiment.url}"
    return (
        logger,
        f"W&B offline; upload it with: wandb sync {run.path / 'wandb'}/offline-run-*",
    )


def finish_trackers(loggers: list[Logger], summary: dict[str, Any]) -> None:
    """Write the summary and end tracker runs, so that the next run of this process is its own."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            experiment = logger.experiment
            for key, value in summary.items():
                experiment.summary[key] = value
            experiment.finish()
