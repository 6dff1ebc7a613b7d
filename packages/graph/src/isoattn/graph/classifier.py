"""The node classifier as Lightning trains it: network, attention, loss, optimiser, metrics.

Everything needed to rebuild it is plain data in its hyper-parameters, so a checkpoint loads with
``weights_only=True`` and brings its attention back, however the classifier was made.

Shape suffixes: N nodes of a batch, M of them that count, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import lightning.pytorch as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR

from isoattn.core import Attention, GumbelFavor, attention_factory, attention_spec, seed_attentions
from isoattn.core.factories import build_factory, describe_factory
from isoattn.core.training.decay_groups import weight_decay_groups
from isoattn.graph.graph import Graph
from isoattn.graph.metrics import NodeScore
from isoattn.graph.models import NodeFormer, NodeNetwork, Output
from isoattn.graph.task import Kind, Metric, NodeBatch


def _within(name: str, value: Any, right: bool, wording: str) -> None:
    if not right:
        raise ValueError(f"{name} must be {wording}, got {value}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


@dataclass
class OptimOptions:
    """Adam or AdamW at a rate that may fall in steps.

    Args:
        name: ``adam`` (decay is added to the gradient, as the released runs do) or ``adamw``.
        lr: learning rate.
        weight_decay: how strong.
        decay: ``all`` parameters, as released, or ``weights`` (not biases, norms and gates).
        milestones: optimiser steps after which the rate is multiplied by ``gamma``.
        gamma: factor at each milestone.
    """

    name: Literal["adam", "adamw"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 5e-3
    decay: Literal["all", "weights"] = "all"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.5

    def __post_init__(self) -> None:
        _one_of("name", self.name, ("adam", "adamw"))
        _one_of("decay", self.decay, ("all", "weights"))
        _within("lr", self.lr, self.lr > 0, "above 0")
        _within("weight_decay", self.weight_decay, self.weight_decay >= 0, "0 or more")
        _within("gamma", self.gamma, 0 < self.gamma <= 1, "in (0, 1]")
        rising = list(self.milestones) == sorted({m for m in self.milestones if m > 0})
        _within("milestones", self.milestones, rising, "rising steps above 0")


@dataclass
class LossOptions:
    """Cross entropy of classes or a sigmoid per label, by the kind of task, and the edge loss.

    Args:
        edge_reg: lambda, weight of the edge regularisation; 0 leaves its work out.
        class_weight: weight of each class in the loss of multiclass tasks; ``balanced``: the
            inverse of how often it occurs among the train nodes; ``None``: all 1.
    """

    edge_reg: float = 0.0
    class_weight: tuple[float, ...] | Literal["balanced"] | None = None

    def __post_init__(self) -> None:
        _within("edge_reg", self.edge_reg, self.edge_reg >= 0, "0 or more")
        if isinstance(self.class_weight, str):
            _one_of("class_weight", self.class_weight, ("balanced",))
        elif self.class_weight is not None:
            good = all(weight >= 0 for weight in self.class_weight)
            _within("class_weight", self.class_weight, good, "numbers of 0 or more")


@dataclass(frozen=True)
class BatchLoss:
    """The loss of a batch.

    Args:
        total: what is made small.
        fit: of it the part of the labels.
        edge_loss: what the edge regularisation multiplies, or ``None``.
        logits: (M, C) of the nodes that count.
        y: their labels.
    """

    total: Tensor
    fit: Tensor
    edge_loss: Tensor | None
    logits: Tensor
    y: Tensor


class NodeClassifier(L.LightningModule):
    """Trains a node network with a swappable attention.

    Best-validation selection is the caller's: monitor ``val/<metric>``. Evaluation sees the whole
    graph at once; no attention here holds N x N numbers, so no further cutting is needed. Another
    temperature in evaluation is ``tau_eval`` of the attention.

    Args:
        num_classes: number of classes or labels C (set from the data).
        in_dim: number of features (set from the data).
        class_names: the outputs in their order (set from the data); they travel with the
            checkpoint.
        kind: of the task (set from the data): ``multiclass`` or ``multilabel``.
        metric: the score that chooses the best epoch (set from the data).
        class_counts: labelled train nodes of each class, for balanced weights (set from the data).
        network: called as ``network(attention, in_dim, num_classes)``.
        attention: called as ``attention(heads, head_dim)`` once per layer.
        optim: optimiser and schedule.
        loss: edge regularisation and class weights.

    Raises:
        ValueError: options that do not fit each other; says which.
    """

    def __init__(
        self,
        num_classes: int,
        in_dim: int,
        class_names: Sequence[str] | None = None,
        kind: Kind = "multiclass",
        metric: Metric = "accuracy",
        class_counts: Sequence[int] | None = None,
        network: Callable[[Callable[[int, int], Attention], int, int], NodeNetwork] = NodeFormer,
        attention: Callable[[int, int], Attention] = GumbelFavor,
        optim: OptimOptions = OptimOptions(),  # noqa: B008 - never changed, jsonargparse reads it
        loss: LossOptions = LossOptions(),  # noqa: B008
    ) -> None:
        super().__init__()
        network = build_factory(network, NodeNetwork, "network", positional=3)
        attention = attention_factory(attention)
        self.optim = _options(OptimOptions, optim)
        self.loss = _options(LossOptions, loss)
        self.class_names = list(class_names or [str(c) for c in range(num_classes)])
        if len(self.class_names) != num_classes:
            raise ValueError(f"{num_classes} classes but {len(self.class_names)} class names")
        _one_of("kind", kind, ("multiclass", "multilabel"))
        self.class_weight = _class_weight(self.loss, kind, num_classes, class_counts)
        self.save_hyperparameters(
            {
                "num_classes": num_classes,
                "in_dim": in_dim,
                "class_names": self.class_names,
                "kind": kind,
                "metric": metric,
                "class_counts": None if class_counts is None else list(class_counts),
                "network": describe_factory(network, NodeNetwork, "network"),
                "attention": attention_spec(attention),
                "optim": asdict(self.optim),
                "loss": asdict(self.loss),
            },
            logger=False,
        )
        self.num_classes = num_classes
        self.in_dim = in_dim
        self.kind: Kind = kind
        self.metric: Metric = metric
        self.network: nn.Module = network(attention, in_dim, num_classes)
        # What an attention draws for itself follows the run's seed, each layer its own.
        seed_attentions(self.network, torch.initial_seed())
        self.scores = {p: NodeScore(kind, num_classes, metric) for p in ("val", "test")}
        self.loss_sums = {"val": 0.0, "test": 0.0}
        self.loss_items = {"val": 0, "test": 0}
        self.test_outputs: list[dict[str, Tensor]] = []
        self.train_sums = torch.zeros(3, dtype=torch.float64)  # loss, right answers, nodes
        self._data_position: list[dict[str, Any]] = []  # of the training loaders, from a checkpoint

    def forward(self, graph: Graph, *, return_extras: bool = False) -> Output:
        """What the network says of all nodes."""
        output: Output = self.network(graph, return_extras=return_extras)
        return output

    def on_train_start(self) -> None:
        """Take the training data up where the checkpoint stood, if Lightning has not."""
        position, self._data_position = self._data_position, []
        loader: Any = self.trainer.train_dataloader
        if position and self.trainer.ckpt_path and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(position[0])

    def training_step(self, batch: NodeBatch, batch_idx: int) -> Tensor:
        """One step; the loss is logged per step, its mean over nodes at the epoch's end."""
        parts = self.batch_loss(batch)
        self._add_train(parts.fit.detach(), parts.logits.detach(), parts.y)
        loss = parts.total
        if parts.edge_loss is not None:
            self.log("train/edge_loss", parts.edge_loss.detach(), batch_size=1)
        self.log("train/loss_step", loss.detach(), on_step=True, on_epoch=False, batch_size=1)
        return loss

    def batch_loss(self, batch: NodeBatch) -> BatchLoss:
        """The loss of a training batch, in parts."""
        output = self(batch.graph, return_extras=self.loss.edge_reg > 0)
        logits, y = _counted(output.logits, batch, self.kind)
        fit = self.node_loss(logits, y)
        edges = output.edge_loss
        total = fit if edges is None else fit - self.loss.edge_reg * edges
        return BatchLoss(total, fit, edges, logits, y)

    def on_train_epoch_end(self) -> None:
        """Log the epoch's means and start counting anew."""
        loss, right, nodes = self.train_sums.tolist()
        self.log("train/loss", loss / max(nodes, 1), batch_size=1)
        if self.kind == "multiclass":
            self.log("train/accuracy", right / max(nodes, 1), batch_size=1)
        self.train_sums.zero_()

    def validation_step(self, batch: NodeBatch, batch_idx: int) -> None:
        """Count the validation nodes of a batch."""
        self._count(batch, "val")

    def on_validation_epoch_end(self) -> None:
        """Log the scores over all validation nodes."""
        self._report("val", prog_bar=True)

    def on_test_epoch_start(self) -> None:
        """Forget the outputs of an earlier test."""
        self.test_outputs = []

    def test_step(self, batch: NodeBatch, batch_idx: int) -> None:
        """Count the test nodes of a batch."""
        self._count(batch, "test")

    def on_test_epoch_end(self) -> None:
        """Log the scores over all test nodes."""
        self._report("test")

    def predict_step(self, batch: NodeBatch, batch_idx: int) -> dict[str, Tensor]:
        """Node numbers (M,), probabilities (M, C) and embeddings (M, d) of the nodes that count."""
        output = self(batch.graph)
        target = batch.target
        return {
            "node": _numbers(batch)[target],
            "probability": self.probability(output.logits[target]),
            "embedding": output.embeddings[target],
        }

    def probability(self, logits: Tensor) -> Tensor:
        """Softmax over classes, or a sigmoid per label, in float32 at least."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return logits.softmax(1) if self.kind == "multiclass" else logits.sigmoid()

    def node_loss(self, logits_MC: Tensor, y_M: Tensor) -> Tensor:
        """Mean loss of labelled nodes; 0 where there is none. Unknown labels (NaN) do not count."""
        if not len(logits_MC):
            return logits_MC.sum()
        if self.kind == "multilabel":
            known = ~y_M.isnan()
            return F.binary_cross_entropy_with_logits(logits_MC[known], y_M[known])
        weight = self.class_weight
        table = None if weight is None else logits_MC.new_tensor(weight)
        return F.cross_entropy(logits_MC, y_M, weight=table)

    def configure_optimizers(self) -> Any:
        """Adam or AdamW; the rate falls at the milestones."""
        options = self.optim
        if options.decay == "weights":
            groups: Any = weight_decay_groups(self, options.weight_decay)
        else:
            groups = [p for p in self.parameters() if p.requires_grad]
        cls = torch.optim.Adam if options.name == "adam" else torch.optim.AdamW
        optimizer = cls(groups, lr=options.lr, weight_decay=options.weight_decay)
        if not options.milestones:
            return optimizer
        scheduler = MultiStepLR(optimizer, list(options.milestones), options.gamma)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the running sums of an unfinished epoch, so that resuming equals going on."""
        checkpoint["train_sums"] = self.train_sums.clone()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the running sums up again, and note how far the training data had been read."""
        loop = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        self._data_position = list(loop.get("combined_loader", []))
        if "train_sums" in checkpoint:
            self.train_sums = checkpoint["train_sums"].clone()

    def _add_train(self, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        nodes = len(y)
        right = (logits.argmax(1) == y).sum() if self.kind == "multiclass" else loss.new_zeros(())
        step = torch.stack([loss * nodes, right.to(loss.dtype), loss.new_tensor(nodes)])
        self.train_sums += step.to("cpu", torch.float64)

    def _count(self, batch: NodeBatch, part: str) -> None:
        output = self(batch.graph).logits
        logits, y = _counted(output, batch, self.kind)
        logits = logits.float()
        self.scores[part].update(logits, y)
        self.loss_sums[part] += float(self.node_loss(logits, y)) * len(y)
        self.loss_items[part] += len(y)
        if part == "test":
            counted = batch.target & _labelled(batch, self.kind)
            self.test_outputs.append(
                {
                    "index": _numbers(batch)[counted].cpu(),
                    "label": y.cpu(),
                    "probability": self.probability(logits).cpu(),
                }
            )

    def _report(self, part: str, *, prog_bar: bool = False) -> None:
        loss = self.loss_sums[part] / max(self.loss_items[part], 1)
        self.loss_sums[part], self.loss_items[part] = 0.0, 0
        self.log(f"{part}/loss", loss, batch_size=1)
        for name, value in self.scores[part].compute().items():
            self.log(f"{part}/{name}", value, prog_bar=prog_bar, batch_size=1)
        self.scores[part].reset()


def _class_weight(
    loss: LossOptions, kind: Kind, num_classes: int, counts: Sequence[int] | None
) -> tuple[float, ...] | None:
    """A weight for each class, or None for all alike.

    Balanced is all / (classes * nodes of the class), 0 for a class without any.

    Raises:
        ValueError: a multilabel task, or weights or counts of another number of classes.
    """
    weight = loss.class_weight
    if weight is None:
        return None
    if weight == "balanced":
        if kind == "multilabel" or counts is None or len(counts) != num_classes:
            raise ValueError(
                f"class_weight balanced needs class_counts of the {num_classes} classes of a "
                f"multiclass task, got {counts} for a {kind} one"
            )
        return tuple(sum(counts) / (num_classes * n) if n else 0.0 for n in counts)
    if kind == "multilabel" or len(weight) != num_classes:
        raise ValueError(
            f"class_weight has one number for each of the {num_classes} classes of a "
            f"multiclass task, got {len(weight)} for a {kind} one"
        )
    return tuple(float(number) for number in weight)


def _labelled(batch: NodeBatch, kind: Kind) -> Tensor:
    return batch.y >= 0 if kind == "multiclass" else ~batch.y.isnan().all(1)


def _counted(logits: Tensor, batch: NodeBatch, kind: Kind) -> tuple[Tensor, Tensor]:
    """Logits (M, C) and labels of the target nodes that have a label."""
    chosen = batch.target & _labelled(batch, kind)
    return logits[chosen], batch.y[chosen]


def _numbers(batch: NodeBatch) -> Tensor:
    node = batch.graph.node
    return torch.arange(len(batch.y), device=batch.y.device) if node is None else node


def _options(cls: Any, value: Any) -> Any:
    """A new dataclass from one, a mapping (a checkpoint) or a jsonargparse namespace."""
    if isinstance(value, cls):
        return replace(value)
    data = value if isinstance(value, dict) else vars(value)
    known = {f.name for f in fields(cls)}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known})
