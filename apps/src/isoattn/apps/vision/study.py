"""The vision app in a study: how images are scored, stepped and counted."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from isoattn.apps.base.cli import AppCLI
from isoattn.apps.base.study import AppStudy, ItemScores, build
from isoattn.apps.vision.app import VisionCLI
from isoattn.core import Attention, Shape
from isoattn.vision import attention_calls, count_flops
from isoattn.vision.baselines import nearest_neighbour


class VisionStudy(AppStudy):
    """Image classifiers; a sample is an image."""

    cli: ClassVar[type[AppCLI]] = VisionCLI
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    @torch.no_grad()
    def evaluate(self, model: Any, data: Any, part: str) -> ItemScores:
        """Accuracy over the images of a split."""
        batches = [
            (batch["index"], batch["label"], model(batch["image"]).argmax(1))
            for batch in data.plain_dataloader(part)
        ]
        return ItemScores.of_classes(*(torch.cat(parts) for parts in zip(*batches, strict=True)))

    def step_loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        """Cross entropy."""
        return torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])

    def forward(self, model: Any, batch: dict[str, Tensor]) -> None:
        """The images of a batch."""
        model(batch["image"])

    def attention_calls(self, built: Any) -> list[tuple[Attention, Shape]]:
        """Of one image."""
        calls = attention_calls(built.model.network, built.datamodule.image_size)
        return [(core, shape) for _, core, shape in calls]

    def flops(self, built: Any) -> tuple[int, int]:
        """Of one image."""
        flops = count_flops(built.model.network, built.datamodule.image_size)
        return flops.total, flops.attention

    def batch_size(self, built: Any) -> int:
        """Images a step."""
        size: int = built.datamodule.batch_size
        return size

    def baselines(self, config: dict[str, Any]) -> dict[str, float]:
        """1-NN on pixels: a demonstration convinces only above it."""
        return {"1-NN on pixels": nearest_neighbour(build(self.cli, config).datamodule)}
