"""The graph app in a study: how nodes are scored, stepped and counted."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from isoattn.apps.base.cli import AppCLI
from isoattn.apps.base.study import AppStudy, ItemScores, build
from isoattn.apps.graph.app import GraphCLI
from isoattn.core import Attention, Shape
from isoattn.graph.baselines import label_shares
from isoattn.graph.metrics import NodeScore
from isoattn.graph.models import attention_calls, count_flops
from isoattn.graph.task import NodeBatch


class GraphStudy(AppStudy):
    """Node classifiers; a sample is a whole graph."""

    cli: ClassVar[type[AppCLI]] = GraphCLI
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "balanced_accuracy", "roc_auc")

    @torch.no_grad()
    def evaluate(self, model: Any, data: Any, part: str) -> ItemScores:
        """The scores of the task over the nodes of a part."""
        (batch,) = data.plain_dataloader(part)
        logits = model(batch.graph).logits[batch.target]
        y = batch.y[batch.target]
        score = NodeScore(model.kind, model.num_classes, model.metric)
        score.update(logits, y)
        if model.kind != "multiclass":
            return ItemScores(score.compute())
        node = batch.target.nonzero()[:, 0]
        return ItemScores(score.compute(), node, y, logits.argmax(1))

    def step_loss(self, model: Any, batch: NodeBatch) -> Tensor:
        """Labels and edges."""
        loss: Tensor = model.batch_loss(batch).total
        return loss

    def forward(self, model: Any, batch: NodeBatch) -> None:
        """All nodes of the batch."""
        model(batch.graph)

    def attention_calls(self, built: Any) -> list[tuple[Attention, Shape]]:
        """Of the whole graph."""
        return attention_calls(built.model.network, built.datamodule.task.graph)

    def flops(self, built: Any) -> tuple[int, int]:
        """Of the whole graph."""
        flops = count_flops(built.model.network, built.datamodule.task.graph)
        return flops.total, flops.attention

    def batch_size(self, built: Any) -> int:
        """A graph, or a part of one."""
        return 1

    def baselines(self, config: dict[str, Any]) -> dict[str, float]:
        """What needs no training: the commonest class, and the labels of the neighbours."""
        return label_shares(build(self.cli, config).datamodule.task)
