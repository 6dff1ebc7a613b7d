"""An encoder from its name."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass

from isoattn.wsi.features.encoder import Encoder, EncoderError
from isoattn.wsi.features.offline import HedStatistics, RandomMobileNet
from isoattn.wsi.features.presets import PRESETS, Preset
from isoattn.wsi.features.timm_encoder import Precision, TimmEncoder

OFFLINE = ("hed_statistics", "random_mobilenetv3_small_050")


@dataclass(frozen=True)
class EncoderOptions:
    """Which encoder, as plain data that worker processes can be sent.

    Args:
        name: ``hed_statistics`` or ``random_mobilenetv3_small_050`` (no weights needed); a preset
            of :data:`isoattn.wsi.features.presets.PRESETS`, such as ``resnet50_layer3`` or ``uni``;
            any name of timm; or ``hf-hub:OWNER/REPOSITORY``.
        checkpoint: a local file of weights for a preset or a name of timm.
        out_index: take this feature map of ``features_only`` instead of the network's output.
        input_size: side in pixels to which tiles are resized; ``None``: what preset or network
            says. Networks of fixed size refuse others.
        precision: of the forward pass.
        seed: of random weights.
    """

    name: str = "random_mobilenetv3_small_050"
    checkpoint: str | None = None
    out_index: int | None = None
    input_size: int | None = None
    precision: Precision = "float32"
    seed: int = 0


def build_encoder(options: EncoderOptions) -> Encoder:
    """The encoder that the options name.

    Raises:
        EncoderError: an unknown name (with near ones), an option that the encoder does not have, or
            weights that cannot be had.
    """
    if options.name in OFFLINE:
        _refuse_unused(options)
        if options.name == "hed_statistics":
            return HedStatistics()
        return RandomMobileNet(options.seed, options.input_size)
    preset = PRESETS[options.name] if options.name in PRESETS else _preset_of(options.name)
    if options.out_index is not None and options.out_index != preset.out_index:
        preset = dataclasses.replace(preset, out_index=options.out_index, dim=None, pool="model")
    return TimmEncoder(
        options.name,
        preset,
        checkpoint=options.checkpoint,
        input_size=options.input_size,
        precision=options.precision,
    )


def _refuse_unused(options: EncoderOptions) -> None:
    """Options that an encoder without weights does not have."""
    unused = {"checkpoint": options.checkpoint, "out_index": options.out_index}
    if options.name == "hed_statistics":
        unused["input_size"] = options.input_size
    given = [key for key, value in unused.items() if value is not None]
    if options.precision != "float32":
        given.append("precision")
    if given:
        raise EncoderError(f"{options.name} has no option {', '.join(given)}: leave it out")


def _preset_of(name: str) -> Preset:
    """What timm itself says of a network."""
    import timm  # takes seconds

    if not name.startswith(("hf-hub:", "hf_hub:")) and not timm.is_model(name.split(".")[0]):
        known = [*OFFLINE, *PRESETS, *timm.list_models()]
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"Presets: {', '.join(PRESETS)}."
        raise EncoderError(
            f"There is no encoder {name!r}. {hint} Any name of timm will do, and "
            "hf-hub:OWNER/REPOSITORY."
        )
    return Preset(
        hub=name,
        architecture=name,
        licence="see its model card",
        input_size="network",
        mean=None,
        std=None,
    )
