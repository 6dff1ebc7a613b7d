"""The matching app in a study: how pairs are scored, stepped and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from isoattn.ablate.cells import resolved_arm
from isoattn.apps.base.cli import AppCLI
from isoattn.apps.base.study import AppStudy, ItemScores
from isoattn.apps.matching.app import MatchingCLI
from isoattn.apps.matching.outputs import strata
from isoattn.core import Attention, Shape
from isoattn.matching import layers_at
from isoattn.matching.data.batch import PairBatch
from isoattn.matching.metrics import MatchScore
from isoattn.matching.models import attention_calls, count_flops
from isoattn.matching.models.swap import PLACES


class MatchingStudy(AppStudy):
    """Matchers of image pairs; a sample is a pair.

    An arm sets ``model.attention``. Where a factor names another one for the self, cross or fine
    layers, those are no part of the arm: the costs and swaps are of the other layers alone.
    """

    cli: ClassVar[type[AppCLI]] = MatchingCLI
    metrics: ClassVar[tuple[str, ...]] = (
        "average_precision_1cell",
        "average_precision",
        "recall_1cell",
        "precision_1cell",
        "recall",
        "precision",
        "mma_10",
    )

    @torch.no_grad()
    def evaluate(self, model: Any, data: Any, part: str) -> ItemScores:
        """Scores over the pairs of a split."""
        score = MatchScore()
        for batch in data.plain_dataloader(part):
            model.score_batch(batch, score)
        found = score.compute()
        kept = {name: found[name] for name in ("matches", *self.metrics) if name in found}
        return ItemScores(kept, strata=strata(score))

    def training(self, config: dict[str, Any]) -> dict[str, Any]:
        """With the attention of each place written out, whatever named it."""
        model = dict(config["model"])
        own = model.pop("attention")
        for place in PLACES:
            model[f"attention_{place}"] = resolved_arm(model.get(f"attention_{place}") or own)
        return {**config, "model": model}

    def swapped_layers(self, model: Any) -> Sequence[int] | None:
        """Of the places that take the arm's attention; None: all."""
        own = [place for place in PLACES if model.hparams[f"attention_{place}"] is not None]
        if not own:
            return None
        fine = ("fine",) if model.network.has_fine else ()
        return layers_at(
            model.network, [place for place in ("self", "cross", *fine) if place not in own]
        )

    def step_loss(self, model: Any, batch: PairBatch) -> Tensor:
        """Coarse and fine."""
        loss: Tensor = model.batch_losses(batch, step=0).total
        return loss

    def forward(self, model: Any, batch: PairBatch) -> None:
        """The pairs of a batch, matched."""
        model(batch)

    def attention_calls(self, built: Any) -> list[tuple[Attention, Shape]]:
        """Of the coarse layers that are the arm's, for one pair."""
        layers = self.swapped_layers(built.model)
        calls = attention_calls(built.model.network, *_sizes(built))
        names = list(dict.fromkeys(name for name, _, _ in calls))
        kept = names if layers is None else [n for i, n in enumerate(names) if i in layers]
        return [(core, shape) for name, core, shape in calls if name in kept]

    def flops(self, built: Any) -> tuple[int, int]:
        """Of one pair, without refinement."""
        flops = count_flops(built.model.network, *_sizes(built))
        return flops.total, flops.attention

    def batch_size(self, built: Any) -> int:
        """Pairs a step."""
        size: int = built.datamodule.batch_size
        return size

    def baselines(self, config: dict[str, Any]) -> dict[str, float]:
        """None: a matcher without attention is an arm (``Zero``)."""
        return {}


def _sizes(built: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the first validation pair."""
    pair = built.datamodule.dataset("val")[0]
    first, second = (tuple(image.shape) for image in (pair.image0, pair.image1))
    return first, second
