"""The trained model of a checkpoint and the graph it is asked about, without a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from isoattn.apps.base.checkpoints import read_run_checkpoint
from isoattn.apps.base.errors import UserError
from isoattn.apps.graph.inspect import data_of
from isoattn.core.training.checkpoint import CheckpointError
from isoattn.graph.classifier import NodeClassifier
from isoattn.graph.task import NodeTask


def trained(checkpoint: Path, argv: Sequence[str]) -> tuple[NodeClassifier, NodeTask]:
    """The model, in evaluation mode, and the task of its data with the model's classes.

    Args:
        checkpoint: of a run of ``isoattn graph fit``.
        argv: further options of the app, as ``predict`` takes them: of the data, ``--import``.

    Returns:
        The task is that of ``predict_source`` where there is one.

    Raises:
        UserError: a checkpoint that cannot be used, or data that do not fit the model.
    """
    data = data_of("predict", [f"--ckpt_path={checkpoint}", *argv])
    try:
        content = read_run_checkpoint(checkpoint)
        model = _built(content)
        if data.predict_source is None:
            data.check_classes(model.class_names)
        data.check_features(model.in_dim)
        return model.eval(), data.predict_task
    except (CheckpointError, ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error


def _built(content: dict[str, Any]) -> NodeClassifier:
    with torch.random.fork_rng(devices=[]):
        model = NodeClassifier(**content["hyper_parameters"])
    model.load_state_dict(content["state_dict"])
    return model
