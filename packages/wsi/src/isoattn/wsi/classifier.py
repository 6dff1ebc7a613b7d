"""The bag classifier as Lightning trains it: network, attention, loss, optimiser, metrics.

Everything needed to rebuild it is plain data in its hyper-parameters, so a checkpoint loads with
``weights_only=True`` and brings its attention back, however the classifier was made.

Shape suffixes: B bags of a batch, n tiles, I features, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import lightning.pytorch as L
import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core import Attention, Nystrom, attention_factory, attention_spec, seed_attentions
from isoattn.core.factories import build_factory, describe_factory
from isoattn.wsi.bags.bag import BagBatch
from isoattn.wsi.metrics import BagScore
from isoattn.wsi.models import BagNetwork, TransMIL
from isoattn.wsi.optim import OptimOptions, make_optimizer, make_schedule, within


@dataclass
class LossOptions:
    """Cross entropy.

    Args:
        class_weight: weight of each class; ``None``: all 1, as released.
        balance: take the weights that balance the classes of the training bags.
        smoothing: label smoothing in [0, 1).
    """

    class_weight: tuple[float, ...] | None = None
    balance: bool = False
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        within("smoothing", self.smoothing, 0 <= self.smoothing < 1, "in [0, 1)")
        if self.class_weight is not None:
            within("class_weight", self.class_weight, not self.balance, "None beside balance=True")
            good = all(weight >= 0 for weight in self.class_weight) and any(self.class_weight)
            within("class_weight", self.class_weight, good, "numbers of 0 or more, not all 0")


class BagClassifier(L.LightningModule):
    """Trains a bag network with a swappable attention.

    Bags of a batch are run one by one, so they may differ in size and need no padding. The loss of
    a batch is the mean over its bags. Best-validation selection is the caller's: monitor
    ``val/auc``; so is accumulation over batches (``accumulate_grad_batches=2`` as released).

    Set ``keep_attention`` to have ``predict_step`` return the weights of the tiles too.

    Args:
        num_classes: C (set from the data).
        in_dim: I (set from the data).
        class_names: the outputs in their order (set from the data); they travel with the
            checkpoint.
        network: called as ``network(attention, in_dim, num_classes)``.
        attention: called as ``attention(heads, head_dim)`` once per layer. That of the released
            model is ``RELEASED``; in a config, Nystrom with landmarks 256 and compat
            nystrom-attention.
        optim: optimiser and schedule; as released by default.
        loss: class weights and smoothing.

    Raises:
        ValueError: options that do not fit each other; says which.
    """

    def __init__(
        self,
        num_classes: int,
        in_dim: int,
        class_names: Sequence[str] | None = None,
        network: Callable[[Callable[[int, int], Attention], int, int], BagNetwork] = TransMIL,
        attention: Callable[[int, int], Attention] = Nystrom,
        optim: OptimOptions = OptimOptions(),  # noqa: B008 - never changed, jsonargparse reads it
        loss: LossOptions = LossOptions(),  # noqa: B008
    ) -> None:
        super().__init__()
        network = build_factory(network, BagNetwork, "network", positional=3)
        attention = attention_factory(attention)
        self.optim = _options(OptimOptions, optim)
        self.loss = _options(LossOptions, loss)
        self.class_names = list(class_names or [str(c) for c in range(num_classes)])
        if len(self.class_names) != num_classes:
            raise ValueError(f"{num_classes} classes but {len(self.class_names)} class names")
        weight = self.loss.class_weight
        if weight is not None and len(weight) != num_classes:
            raise ValueError(
                f"class_weight has one number for each of the {num_classes} classes, got "
                f"{len(weight)}"
            )
        self.save_hyperparameters(
            {
                "num_classes": num_classes,
                "in_dim": in_dim,
                "class_names": self.class_names,
                "network": describe_factory(network, BagNetwork, "network"),
                "attention": attention_spec(attention),
                "optim": asdict(self.optim),
                "loss": asdict(self.loss),
            },
            logger=False,
        )
        self.num_classes = num_classes
        self.in_dim = in_dim
        self.network: BagNetwork = network(attention, in_dim, num_classes)
        # What an attention draws for itself follows the run's seed, each layer its own.
        seed_attentions(self.network, torch.initial_seed())
        self.class_weight = None if weight is None else torch.tensor(weight)
        self.keep_attention = False
        self.scores = {part: BagScore(num_classes) for part in ("val", "test")}
        self.loss_sums = {"val": 0.0, "test": 0.0}
        self.test_outputs: list[dict[str, Any]] = []
        self.train_sums = torch.zeros(3, dtype=torch.float64)  # loss, right answers, bags
        self._data_position: list[dict[str, Any]] = []  # of the training loaders, from a checkpoint

    def forward(self, batch: BagBatch) -> Tensor:
        """Logits (B, C) of the bags of a batch."""
        return torch.cat([self.network(x, cells) for x, cells in _single(batch)])

    def on_fit_start(self) -> None:
        """Take from the training bags what the options ask for: moments, weights of classes."""
        if not self.network.needs_moments and not self.loss.balance:
            return
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise ValueError(
                "norm='standard' and balance=True look at the training bags: fit with BagData, or "
                "call set_moments() and give class_weight"
            )
        if self.network.needs_moments:
            self.network.set_moments(*(x.to(self.device) for x in data.moments()))
        if self.loss.balance:
            self.class_weight = data.class_weights()

    def on_train_start(self) -> None:
        """Take the training data up where the checkpoint stood, if Lightning has not."""
        position, self._data_position = self._data_position, []
        loader: Any = self.trainer.train_dataloader
        if position and self.trainer.ckpt_path and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(position[0])

    def training_step(self, batch: BagBatch, batch_idx: int) -> Tensor:
        """One step; the loss is logged per step, its mean over bags at the epoch's end."""
        logits, label = self(batch), batch["label"]
        loss = self.bag_loss(logits, label)
        right = (logits.detach().argmax(1) == label).sum()
        step = torch.stack([loss.detach() * len(label), right, right.new_tensor(len(label))])
        self.train_sums += step.to("cpu", torch.float64)
        self.log("train/loss_step", loss.detach(), on_step=True, on_epoch=False, batch_size=1)
        return loss

    def on_train_epoch_end(self) -> None:
        """Log the epoch's means and start counting anew."""
        loss, right, bags = self.train_sums.tolist()
        self.log("train/loss", loss / max(bags, 1), batch_size=1)
        self.log("train/accuracy", right / max(bags, 1), batch_size=1)
        self.train_sums.zero_()

    def validation_step(self, batch: BagBatch, batch_idx: int) -> None:
        """Count the validation bags of a batch."""
        self._count(batch, "val")

    def on_validation_epoch_end(self) -> None:
        """Log the scores over all validation bags."""
        self._report("val", prog_bar=True)

    def on_test_epoch_start(self) -> None:
        """Forget the outputs of an earlier test."""
        self.test_outputs = []

    def test_step(self, batch: BagBatch, batch_idx: int) -> None:
        """Count the test bags of a batch."""
        self._count(batch, "test")

    def on_test_epoch_end(self) -> None:
        """Log the scores over all test bags."""
        self._report("test")

    def predict_step(self, batch: BagBatch, batch_idx: int) -> dict[str, Any]:
        """Names, numbers and probabilities (B, C) of the bags.

        With ``keep_attention`` also ``weights``, (n,) of each bag in the order of its tiles (see
        ``tile_weights`` of the network), ``coords``, (n, 2) of each or ``None``, and ``side``.
        """
        found = {
            "id": batch["id"],
            "index": batch["index"],
            "probability": _probability(self(batch)),
        }
        if self.keep_attention:
            found["weights"] = [
                self.network.tile_weights(x[0], None if cells is None else cells[0])
                for x, cells in _single(batch)
            ]
            found |= {"coords": batch["coords"], "side": batch["side"]}
        return found

    def bag_loss(self, logits_BC: Tensor, label_B: Tensor) -> Tensor:
        """Mean loss over the bags.

        Each bag is divided by B, not by the sum of the weights, so that weights count in batches
        of one bag too, where torch's mean would divide them out.
        """
        weight = self.class_weight
        total = F.cross_entropy(
            logits_BC,
            label_B,
            weight=None if weight is None else weight.to(logits_BC),
            label_smoothing=self.loss.smoothing,
            reduction="sum",
        )
        return total / len(label_B)

    def configure_optimizers(self) -> Any:
        """As the options say."""
        optimizer = make_optimizer(self, self.optim)
        if self.optim.schedule == "constant":
            return optimizer
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = make_schedule(optimizer, self.optim, total)
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

    def _count(self, batch: BagBatch, part: str) -> None:
        logits, label = self(batch).float(), batch["label"]
        self.scores[part].update(logits, label)
        self.loss_sums[part] += float(F.cross_entropy(logits, label, reduction="sum"))
        if part == "test":
            self.test_outputs.append(
                {
                    "id": batch["id"],
                    "index": batch["index"].cpu(),
                    "label": label.cpu(),
                    "probability": _probability(logits).cpu(),
                }
            )

    def _report(self, part: str, *, prog_bar: bool = False) -> None:
        score = self.scores[part]
        self.log(f"{part}/loss", self.loss_sums[part] / max(score.items, 1), batch_size=1)
        self.loss_sums[part] = 0.0
        for name, value in score.compute().items():
            self.log(f"{part}/{name}", value, prog_bar=prog_bar and name == "auc", batch_size=1)
        score.reset()


def _single(batch: BagBatch) -> list[tuple[Tensor, Tensor | None]]:
    """Features (1, n, I) and cells (1, n, 2) of each bag."""
    return [
        (x[None], None if cells is None else cells[None])
        for x, cells in zip(batch["features"], batch["cells"], strict=True)
    ]


def _probability(logits_BC: Tensor) -> Tensor:
    """In float32 at least."""
    wide = logits_BC if logits_BC.dtype == torch.float64 else logits_BC.float()
    return wide.softmax(1)


def _options(cls: Any, value: Any) -> Any:
    """A new dataclass from one, a mapping (a checkpoint) or a jsonargparse namespace."""
    if isinstance(value, cls):
        return replace(value)
    data = value if isinstance(value, dict) else vars(value)
    known = {f.name for f in fields(cls)}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known})
