"""The image classifier as Lightning trains it: a network, its attention, loss, optimiser, metrics.

Everything needed to rebuild it is plain data in its hyper-parameters, so a checkpoint loads with
``weights_only=True`` and brings its attention back, however the classifier was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import lightning.pytorch as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from isoattn.core import (
    Attention,
    CrossCovariance,
    attention_factory,
    attention_spec,
    seed_attentions,
)
from isoattn.core.factories import build_factory, describe_factory
from isoattn.core.training.decay_groups import weight_decay_groups
from isoattn.core.training.schedule import warmup_cosine
from isoattn.vision.metrics import Confusion
from isoattn.vision.mix import mix_batch
from isoattn.vision.models import ImageNetwork, XCiT


def _within(name: str, value: Any, right: bool, wording: str) -> None:
    if not right:
        raise ValueError(f"{name} must be {wording}, got {value}")


@dataclass
class OptimOptions:
    """AdamW with warm-up and a cosine, both per step.

    Args:
        lr: peak learning rate.
        weight_decay: of weights; biases, norms, temperatures, positions and class tokens have none.
        warmup: steps of linear warm-up; a number below 1 is a fraction of all steps.
        min_lr: the rate at the last step, as a fraction of ``lr``.
        betas: of AdamW.
    """

    lr: float = 2e-3
    weight_decay: float = 0.05
    warmup: float = 0.1
    min_lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        _within("lr", self.lr, self.lr > 0, "above 0")
        _within("weight_decay", self.weight_decay, self.weight_decay >= 0, "0 or more")
        _within("warmup", self.warmup, self.warmup >= 0, "0 or more")
        _within("min_lr", self.min_lr, 0 <= self.min_lr <= 1, "a fraction of lr in [0, 1]")
        _within("betas", self.betas, all(0 <= b < 1 for b in self.betas), "in [0, 1)")


@dataclass
class LossOptions:
    """Cross entropy, or a sigmoid per class, on smoothed and mixed labels.

    Args:
        name: ``ce`` or ``bce``.
        smoothing: label smoothing in [0, 1).
        mixup: alpha of mixup, 0 = off.
        cutmix: alpha of cutmix, 0 = off.
    """

    name: Literal["ce", "bce"] = "ce"
    smoothing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        _within("smoothing", self.smoothing, 0 <= self.smoothing < 1, "in [0, 1)")
        _within("mixup", self.mixup, self.mixup >= 0, "0 or more")
        _within("cutmix", self.cutmix, self.cutmix >= 0, "0 or more")


class ImageClassifier(L.LightningModule):
    """Trains an image network with a swappable attention.

    Args:
        num_classes: number of classes C (set from the data).
        in_chans: image channels (set from the data).
        image_size: (height, width) in pixels (set from the data).
        class_names: the classes in the order of the outputs (set from the data); they travel with
            the checkpoint, and data in another order is refused.
        network: called as ``network(attention, in_chans, num_classes)``.
        attention: called as ``attention(heads, head_dim)`` once per layer.
        optim: optimiser and schedule.
        loss: loss and label mixing.
    """

    def __init__(
        self,
        num_classes: int,
        in_chans: int = 1,
        image_size: tuple[int, int] | None = None,
        class_names: Sequence[str] | None = None,
        network: Callable[[Callable[[int, int], Attention], int, int], ImageNetwork] = XCiT,
        attention: Callable[[int, int], Attention] = CrossCovariance,
        optim: OptimOptions = OptimOptions(),  # noqa: B008 - never changed, jsonargparse reads it
        loss: LossOptions = LossOptions(),  # noqa: B008
    ) -> None:
        super().__init__()
        network = build_factory(network, ImageNetwork, "network", positional=3)
        attention = attention_factory(attention)
        self.optim = _options(OptimOptions, optim)
        self.loss = _options(LossOptions, loss)
        self.class_names = list(class_names or [str(c) for c in range(num_classes)])
        if len(self.class_names) != num_classes:
            raise ValueError(f"{num_classes} classes but {len(self.class_names)} class names")
        self.save_hyperparameters(
            {
                "num_classes": num_classes,
                "in_chans": in_chans,
                "image_size": list(image_size) if image_size else None,
                "class_names": self.class_names,
                "network": describe_factory(network, ImageNetwork, "network"),
                "attention": attention_spec(attention),
                "optim": asdict(self.optim),
                "loss": asdict(self.loss),
            },
            logger=False,
        )
        self.num_classes = num_classes
        self.network: nn.Module = network(attention, in_chans, num_classes)
        # What an attention draws for itself follows the run's seed, each layer its own.
        seed_attentions(self.network, torch.initial_seed())
        self.confusion = {split: Confusion(num_classes) for split in ("val", "test")}
        self.loss_sums = {"val": 0.0, "test": 0.0}
        self.loss_items = {"val": 0, "test": 0}
        self.test_outputs: list[dict[str, Tensor]] = []
        self.train_sums = torch.zeros(3, dtype=torch.float64)  # loss, correct, items of the epoch
        self.mix_generator = torch.Generator()
        self._data_position: list[dict[str, Any]] = []  # of the training loaders, from a checkpoint

    def forward(self, image: Tensor) -> Tensor:
        """Image (B, C, H, W) -> logits (B, classes)."""
        logits: Tensor = self.network(image)
        return logits

    def on_train_start(self) -> None:
        """Take the training data up where the checkpoint stood.

        Lightning would; but ``configure_optimizers`` asks for the number of steps, for which the
        loader is made before the checkpoint's position in it is read.
        """
        position, self._data_position = self._data_position, []
        loader: Any = self.trainer.train_dataloader
        if position and self.trainer.ckpt_path and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(position[0])

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """One step; the loss is logged per step, its mean over the epoch at the epoch's end."""
        image, label = batch["image"], batch["label"]
        image, target = mix_batch(
            image,
            label,
            self.num_classes,
            generator=self.mix_generator,
            mixup=self.loss.mixup,
            cutmix=self.loss.cutmix,
            smoothing=self.loss.smoothing,
        )
        logits = self(image)
        loss = self._loss(logits, target)
        correct = (logits.detach().argmax(1) == label).sum()
        step = torch.stack([loss.detach() * len(label), correct, correct.new_tensor(len(label))])
        self.train_sums += step.to("cpu", torch.float64)
        self.log("train/loss_step", loss.detach(), on_step=True, on_epoch=False)
        return loss

    def on_train_epoch_end(self) -> None:
        """Log the epoch's means and start counting anew."""
        loss, correct, items = self.train_sums.tolist()
        self.log("train/loss", loss / max(items, 1))
        self.log("train/accuracy", correct / max(items, 1))
        self.train_sums.zero_()

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Count one validation batch."""
        self._count(batch, "val")

    def on_validation_epoch_end(self) -> None:
        """Log accuracy over all validation items."""
        self._report("val", prog_bar=True)

    def on_test_epoch_start(self) -> None:
        """Forget the outputs of an earlier test."""
        self.test_outputs = []

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Count one test batch."""
        self._count(batch, "test")

    def on_test_epoch_end(self) -> None:
        """Log accuracy over all test items."""
        self._report("test")

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        """Probabilities (B, classes) of one batch, with the batch's paths or indices."""
        probability = self(batch["image"]).float().softmax(1)
        return {
            "probability": probability,
            **{k: batch[k] for k in ("path", "index") if k in batch},
        }

    def configure_optimizers(self) -> Any:
        """AdamW over decay groups, warm-up and cosine per step."""
        exempt = {f"network.{name}" for name in self.network.no_weight_decay()}  # type: ignore[operator]
        groups = weight_decay_groups(self, self.optim.weight_decay, exempt=exempt)
        optimizer = torch.optim.AdamW(groups, lr=self.optim.lr, betas=tuple(self.optim.betas))
        total = int(self.trainer.estimated_stepping_batches)
        warmup = self.optim.warmup
        warmup_steps = int(warmup * total) if warmup < 1 else int(warmup)

        def multiplier(step: int) -> float:
            return warmup_cosine(
                step, warmup_steps=warmup_steps, total_steps=total, floor=self.optim.min_lr
            )

        scheduler = LambdaLR(optimizer, multiplier)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the running sums of an unfinished epoch, so that resuming equals going on."""
        checkpoint["train_sums"] = self.train_sums.clone()
        checkpoint["mix_generator"] = self.mix_generator.get_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the running sums up again, and note how far the training data had been read."""
        loop = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        self._data_position = list(loop.get("combined_loader", []))
        if "train_sums" in checkpoint:
            self.train_sums = checkpoint["train_sums"].clone()
        if "mix_generator" in checkpoint:
            self.mix_generator.set_state(checkpoint["mix_generator"])

    def _loss(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.loss.name == "bce":
            return F.binary_cross_entropy_with_logits(logits, target)
        return F.cross_entropy(logits, target)

    def _count(self, batch: dict[str, Tensor], split: str) -> None:
        logits = self(batch["image"]).float()
        self.confusion[split].update(logits.argmax(1), batch["label"])
        self.loss_sums[split] += float(F.cross_entropy(logits, batch["label"], reduction="sum"))
        self.loss_items[split] += len(batch["label"])
        if split == "test":
            self.test_outputs.append(
                {
                    "index": batch["index"].cpu(),
                    "label": batch["label"].cpu(),
                    "probability": logits.softmax(1).cpu(),
                }
            )

    def _report(self, split: str, *, prog_bar: bool = False) -> None:
        confusion = self.confusion[split]
        self.log(f"{split}/loss", self.loss_sums[split] / max(self.loss_items[split], 1))
        self.loss_sums[split], self.loss_items[split] = 0.0, 0
        self.log(f"{split}/accuracy", confusion.accuracy(), prog_bar=prog_bar)
        self.log(f"{split}/balanced_accuracy", confusion.balanced_accuracy())
        confusion.reset()


def _options(cls: Any, value: Any) -> Any:
    """A new dataclass from one, a mapping (a checkpoint) or a jsonargparse namespace."""
    if isinstance(value, cls):
        return replace(value)
    data = value if isinstance(value, dict) else vars(value)
    known = {f.name for f in fields(cls)}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known})
