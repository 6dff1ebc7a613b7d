"""A trained matcher from a file: a checkpoint of ours, or published weights of LoFTR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError
from isoattn.core import AttentionFactory, Linear, swap_attention
from isoattn.core.training.checkpoint import CheckpointError, read_checkpoint
from isoattn.matching.matcher_module import MatcherModule
from isoattn.matching.models import Matcher, make_matcher
from isoattn.matching.models.positions import PositionEncoding
from isoattn.matching.weights import WeightsError, load_weights

_BIN = "coarse_matching.bin_score"


def trained_matcher(
    path: Path, *, pe: PositionEncoding | None = None, attention: AttentionFactory | None = None
) -> Matcher:
    """The matcher of a file, in evaluation mode.

    Args:
        path: a checkpoint of ``isoattn matching fit``, which says all; or published weights
            (zju3dv's or kornia's names), of the published size.
        pe: position encoding of published weights, which do not say it.
        attention: put into every layer instead of the one of the file.

    Raises:
        UserError: unreadable, of another app, of another size, or an unknown position encoding.
    """
    try:
        content = (
            {} if path.suffix == ".safetensors" else read_checkpoint(path, require_checksum=False)
        )
        if "hyper_parameters" in content:
            matcher = _ours(content, path, pe)
        else:
            matcher = _published(content, path, pe)
    except CheckpointError as error:
        raise UserError(f"--ckpt_path: {error}") from error
    except WeightsError as error:
        raise UserError(_explained(str(error))) from error
    if attention is not None:
        swap_attention(matcher, attention)
    return matcher.eval()


def _ours(content: dict[str, Any], path: Path, pe: PositionEncoding | None) -> Matcher:
    app = content.get("isoattn", {}).get("app", "matching")
    if app != "matching" or "network" not in content["hyper_parameters"]:
        raise UserError(f"{path} belongs to isoattn {app}, not to isoattn matching.")
    module = MatcherModule(**content["hyper_parameters"])
    if pe is not None and pe != module.network.pe:
        raise UserError(
            f"--pe {pe}: {path} was trained with pe={module.network.pe}. Leave --pe out; it is for "
            "published weights."
        )
    module.load_state_dict(content["state_dict"])
    return module.network


def _published(content: dict[str, Any], path: Path, pe: PositionEncoding | None) -> Matcher:
    names = content.get("state_dict", content)
    sinkhorn = any(str(name).endswith(_BIN) for name in names)
    match = "sinkhorn" if sinkhorn else "dual_softmax"
    matcher = make_matcher("loftr", Linear, pe=pe or "fixed", match=match)  # type: ignore[arg-type]
    load_weights(matcher, path, pe=pe)
    return matcher


def _explained(text: str) -> str:
    """The remedies of the loader in words of the command line."""
    if "does not say which position encoding" in text:
        return text.partition(" Give pe=")[0] + (
            " Give --pe fixed (indoor_ds_new) or --pe released (outdoor_ds, indoor_ds, outdoor_ot, "
            "indoor_ot)."
        )
    if "options of the weights" in text:
        return (
            f"{text.partition(' Build the matcher')[0]} It holds weights of another size than the "
            "published one; of ours give the checkpoint of the run."
        )
    return text
