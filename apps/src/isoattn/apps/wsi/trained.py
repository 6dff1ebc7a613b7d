"""The trained model of a checkpoint and the bags it is asked about, without a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from isoattn.apps.base.checkpoints import read_run_checkpoint
from isoattn.apps.base.errors import UserError
from isoattn.apps.base.parser import ParseError, ShortErrorParser, shorten
from isoattn.apps.base.study import resolve
from isoattn.apps.wsi.app import WsiCLI
from isoattn.core.training.checkpoint import CheckpointError
from isoattn.wsi.bags import BagData
from isoattn.wsi.classifier import BagClassifier


def trained(checkpoint: Path, argv: Sequence[str]) -> tuple[BagClassifier, BagData]:
    """The model, in evaluation mode, and the data, with the model's classes.

    Args:
        checkpoint: of a run of ``isoattn wsi fit``.
        argv: further options of the app, as ``predict`` takes them: of the data, ``--import``.

    Raises:
        UserError: a checkpoint that cannot be used, or data that do not fit the model.
    """
    config = resolve(WsiCLI, ["predict", f"--ckpt_path={checkpoint}", *argv])
    parser = ShortErrorParser(prog="isoattn wsi")
    parser.add_subclass_arguments(BagData, "data")
    try:
        data: BagData = parser.instantiate(parser.parse_object({"data": config["data"]})).data
        data.data_seed = config.get("seed_everything", 0)
        content = read_run_checkpoint(checkpoint)
        model = _built(content)
        if data.predict_source is None:
            data.check_classes(model.class_names)
        data.check_features(model.in_dim)
        return model.eval(), data
    except ParseError as error:
        raise UserError(shorten(str(error), error.options, argv)) from error
    except (CheckpointError, ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error


def _built(content: dict[str, Any]) -> BagClassifier:
    with torch.random.fork_rng(devices=[]):
        model = BagClassifier(**content["hyper_parameters"])
    model.load_state_dict(content["state_dict"])
    return model
