"""The slide app in a study: how bags are scored, stepped and counted."""

from __future__ import annotations

import statistics
from typing import Any, ClassVar

import torch
from torch import Tensor

from isoattn.apps.base.cli import AppCLI
from isoattn.apps.base.study import AppStudy, ItemScores, build
from isoattn.apps.wsi.app import WsiCLI
from isoattn.core import Attention, Shape
from isoattn.wsi.bags.bag import BagBatch
from isoattn.wsi.baselines import pooled_regression
from isoattn.wsi.metrics import BagScore
from isoattn.wsi.models import attention_calls, count_flops


class WsiStudy(AppStudy):
    """Bag classifiers; a sample is a bag of the median size of the training bags."""

    cli: ClassVar[type[AppCLI]] = WsiCLI
    metrics: ClassVar[tuple[str, ...]] = ("auc", "accuracy", "kappa", "f1")

    @torch.no_grad()
    def evaluate(self, model: Any, data: Any, part: str) -> ItemScores:
        """The scores over the bags of a part."""
        score = BagScore(model.num_classes)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for batch in data.plain_dataloader(part):
            logits = model(batch)
            score.update(logits, batch["label"])
            found.append((batch["index"], batch["label"], logits.argmax(1)))
        index, label, predicted = (torch.cat(parts) for parts in zip(*found, strict=True))
        return ItemScores(score.compute(), index, label, predicted)

    def step_loss(self, model: Any, batch: BagBatch) -> Tensor:
        """Cross entropy."""
        loss: Tensor = model.bag_loss(model(batch), batch["label"])
        return loss

    def forward(self, model: Any, batch: BagBatch) -> None:
        """The bags of a batch."""
        model(batch)

    def attention_calls(self, built: Any) -> list[tuple[Attention, Shape]]:
        """Of a bag of the median size."""
        return attention_calls(built.model.network, median_tiles(built.datamodule))

    def flops(self, built: Any) -> tuple[int, int]:
        """Of a bag of the median size."""
        flops = count_flops(built.model.network, median_tiles(built.datamodule))
        return flops.total, flops.attention

    def batch_size(self, built: Any) -> int:
        """Bags a step."""
        size: int = built.datamodule.batch_size
        return size

    def baselines(self, config: dict[str, Any]) -> dict[str, float]:
        """What needs no network: logistic regression on the mean or maximum over the tiles."""
        return pooled_regression(build(self.cli, config).datamodule.task)


def median_tiles(data: Any) -> int:
    """Tiles of the median training bag, as training sees it."""
    task, most = data.task, data.max_tokens
    sizes = [task.reader.shape(i)[0] for i in task.split.train.tolist()]
    tiles = int(statistics.median_low(sizes))
    return tiles if most is None else min(tiles, most)
