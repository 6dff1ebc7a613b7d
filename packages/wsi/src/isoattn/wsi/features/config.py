"""What is extracted, as plain data, and the hash by which a finished file is known to be right."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from isoattn.wsi.features.build import EncoderOptions
from isoattn.wsi.slides import Slide, TilingOptions, TissueOptions
from isoattn.wsi.slides.reader import FILTER

FORMAT = 1
"""Raised when the same configuration gives other files than before."""


@dataclass(frozen=True)
class ExtractOptions:
    """From slide to features.

    Args:
        tiling: which tiles.
        tissue: what counts as tissue.
        encoder: what turns a tile into numbers.
        mpp_override: micrometres per pixel of level 0, for every slide; recorded.
        batch_size: tiles in a forward pass; has no influence on the features beyond rounding.
        max_damaged: largest share of tiles that may be unreadable; beyond it a slide fails.
        readers: processes that read tiles for each encoding process; 0: it reads by itself.
        device: such as ``cpu`` or ``cuda:1``; ``cuda``: jobs take turns over all devices.
        overlay: write a picture of tissue and tiles of each slide.
    """

    tiling: TilingOptions = TilingOptions()  # noqa: RUF009 - frozen
    tissue: TissueOptions = TissueOptions()  # noqa: RUF009 - frozen
    encoder: EncoderOptions = EncoderOptions()  # noqa: RUF009 - frozen
    mpp_override: float | None = None
    batch_size: int = 64
    max_damaged: float = 0.05
    readers: int = 0
    device: str = "cpu"
    overlay: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.readers < 0 or not 0 <= self.max_damaged <= 1:
            raise ValueError(
                "batch_size is 1 or more, readers 0 or more, max_damaged in 0..1; got "
                f"batch_size={self.batch_size}, readers={self.readers}, "
                f"max_damaged={self.max_damaged}"
            )


def configuration(slide: Slide, options: ExtractOptions, encoder: dict[str, Any]) -> dict[str, Any]:
    """Everything that decides a slide's features; not how fast they are made.

    Args:
        slide: identified by its size in bytes and OpenSlide's quick hash, not by its path, so that
            a moved slide is not done again.
        options: of the extraction.
        encoder: of :meth:`isoattn.wsi.features.encoder.Encoder.facts`.
    """
    return {
        "format": FORMAT,
        "slide": {
            "bytes": slide.path.stat().st_size,
            "quickhash": slide.facts.properties.get("openslide.quickhash-1", ""),
            "dimensions": list(slide.dimensions),
        },
        "mpp": slide.mpp,
        "mpp_source": slide.resolution.source,
        "filter": FILTER.name,
        "tiling": dataclasses.asdict(options.tiling) | {"stride": options.tiling.step},
        "tissue": dataclasses.asdict(options.tissue),
        "encoder": encoder,
        "max_damaged": options.max_damaged,
    }


def configuration_hash(configuration: dict[str, Any]) -> str:
    """SHA-256 of a configuration, independent of the order of its keys."""
    text = json.dumps(configuration, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
