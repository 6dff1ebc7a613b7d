"""The matcher as Lightning trains it: network, attentions, losses, optimiser, scores.

Everything needed to rebuild it is plain data in its hyper-parameters, so a checkpoint loads with
``weights_only=True`` and brings its attentions back, however the module was made.

Shape suffixes: B pairs, K matches; a last 3 is (x, y, std).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import lightning.pytorch as L
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from isoattn.core import Attention, Linear, attention_factory, attention_spec, seed_attentions
from isoattn.core.factories import build_factory, describe_factory
from isoattn.core.training import derive_seed, warmup_cosine, weight_decay_groups
from isoattn.matching.data.batch import PairBatch
from isoattn.matching.losses import CoarseLossOptions, Pooling, coarse_loss, fine_loss
from isoattn.matching.matches import Matches
from isoattn.matching.metrics import HOMOGRAPHY_RANSAC, POSE_RANSAC, MatchScore
from isoattn.matching.models import ImageFeatures, Matcher
from isoattn.matching.models.network import MatchNetwork
from isoattn.matching.models.samples import training_cells
from isoattn.matching.supervision import Supervision, supervise

AttentionArg = Callable[[int, int], Attention]


def _within(name: str, value: Any, right: bool, wording: str) -> None:
    if not right:
        raise ValueError(f"{name} must be {wording}, got {value}")


@dataclass
class OptimOptions:
    """AdamW with warm-up, then a cosine or steps; all counted in optimiser steps.

    Args:
        lr: peak learning rate. The released runs take 8e-3 (outdoor) or 6e-3 (indoor) times batch
            size / 64.
        weight_decay: of weights; biases and norms have none.
        warmup: steps of linear warm-up; a number below 1 is a fraction of all steps.
        warmup_start: the fraction of ``lr`` that the warm-up starts from; 0.1 in the outdoor runs.
        schedule: ``cosine`` down to ``min_lr``, or ``steps``.
        min_lr: last value of the cosine, as a fraction of ``lr``.
        milestones: steps after which the rate is multiplied by ``gamma``.
        gamma: factor at each milestone.
    """

    lr: float = 2e-3
    weight_decay: float = 0.1
    warmup: float = 50
    warmup_start: float = 0.0
    schedule: Literal["cosine", "steps"] = "cosine"
    min_lr: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.5

    def __post_init__(self) -> None:
        _within("lr", self.lr, self.lr > 0, "above 0")
        _within("weight_decay", self.weight_decay, self.weight_decay >= 0, "0 or more")
        _within("warmup", self.warmup, self.warmup >= 0, "0 or more")
        _within("warmup_start", self.warmup_start, 0 <= self.warmup_start < 1, "in [0, 1)")
        _within("min_lr", self.min_lr, 0 <= self.min_lr <= 1, "a fraction of lr in [0, 1]")
        _within("gamma", self.gamma, 0 < self.gamma <= 1, "in (0, 1]")
        _within("schedule", self.schedule, self.schedule in ("cosine", "steps"), "cosine or steps")
        rising = list(self.milestones) == sorted({m for m in self.milestones if m > 0})
        _within("milestones", self.milestones, rising, "rising steps above 0")
        fits = self.schedule == "steps" or not self.milestones
        _within("milestones", self.milestones, fits, "empty unless schedule is steps")

    def factor(self, step: int, total: int) -> float:
        """The rate of a step of ``total``, as a fraction of ``lr``."""
        rise = int(self.warmup * total) if self.warmup < 1 else int(self.warmup)
        rise = min(rise, total)
        if step < rise:
            return self.warmup_start + (1 - self.warmup_start) * (step + 1) / rise
        if self.schedule == "steps":
            return self.gamma ** bisect_right(self.milestones, step)
        return warmup_cosine(step, warmup_steps=rise, total_steps=total, floor=self.min_lr)


@dataclass
class FineOptions:
    """How the fine part is trained; without effect for a matcher that has none.

    Args:
        weight: of its loss; the coarse one has 1.
        pooling: of its loss, see :func:`isoattn.matching.losses.fine_loss`.
        fraction: matches refined in a step, as a fraction of the cells of the larger images.
        least_truth: of these, places for true matches.
        seed: of the choice among them.
    """

    weight: float = 1.0
    pooling: Pooling = "pair"
    fraction: float = 0.2
    least_truth: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        _within("weight", self.weight, self.weight >= 0, "0 or more")
        _within("pooling", self.pooling, self.pooling in ("pair", "batch"), "pair or batch")
        _within("fraction", self.fraction, 0 < self.fraction <= 1, "in (0, 1]")
        _within("least_truth", self.least_truth, self.least_truth >= 0, "0 or more")


class Losses(NamedTuple):
    """What a batch of training costs; scalars.

    Args:
        total: what is minimised.
        coarse: of the confidences.
        fine: of the refined places; ``None`` where they are not trained.
        log_confidence: mean at the true matches, which rises long before any of them passes a
            threshold; ``None`` without one.
    """

    total: Tensor
    coarse: Tensor
    fine: Tensor | None
    log_confidence: Tensor | None


class MatcherModule(L.LightningModule):
    """Trains a matcher whose self, cross and fine attention are chosen separately.

    Scores of validation are those of :class:`~isoattn.matching.metrics.MatchScore`;
    ``average_precision`` among them needs no threshold, so that attentions are not compared by how
    well 0.2 happens to suit them. Tests also estimate homographies and poses.

    Args:
        network: called as ``network(attention, attention_self, attention_cross, attention_fine)``.
        attention: called as ``attention(heads, head_dim)`` once per layer.
        attention_self: of the coarse self layers; ``None``: ``attention``.
        attention_cross: of the coarse cross layers, likewise.
        attention_fine: of the fine layers, likewise.
        optim: optimiser and schedule.
        loss: of the coarse confidences.
        fine: training of the fine part.
        test_matches: most matches of a pair that tests score, the most confident ones; ``None``:
            all above the threshold. HPatches is usually scored with 1000.
    """

    def __init__(
        self,
        network: Callable[
            [AttentionArg, AttentionArg | None, AttentionArg | None, AttentionArg | None], Matcher
        ] = Matcher,
        attention: Callable[[int, int], Attention] = Linear,
        attention_self: Callable[[int, int], Attention] | None = None,
        attention_cross: Callable[[int, int], Attention] | None = None,
        attention_fine: Callable[[int, int], Attention] | None = None,
        optim: OptimOptions = OptimOptions(),  # noqa: B008 - never changed, jsonargparse reads it
        loss: CoarseLossOptions = CoarseLossOptions(),  # noqa: B008
        fine: FineOptions = FineOptions(),  # noqa: B008
        test_matches: int | None = None,
    ) -> None:
        super().__init__()
        network = build_factory(network, MatchNetwork, "network", positional=4)
        chosen = {
            "attention": attention_factory(attention),
            "attention_self": _optional(attention_self),
            "attention_cross": _optional(attention_cross),
            "attention_fine": _optional(attention_fine),
        }
        self.optim = _options(OptimOptions, optim)
        self.loss = _options(CoarseLossOptions, loss)
        self.fine = _options(FineOptions, fine)
        self.save_hyperparameters(
            {
                "network": describe_factory(network, MatchNetwork, "network"),
                **{name: None if f is None else attention_spec(f) for name, f in chosen.items()},
                "optim": asdict(self.optim),
                "loss": asdict(self.loss),
                "fine": asdict(self.fine),
                "test_matches": test_matches,
            },
            logger=False,
        )
        self.test_matches = test_matches
        self.network: Matcher = network(*chosen.values())
        # What an attention draws for itself follows the run's seed, each layer its own.
        seed_attentions(self.network, torch.initial_seed())
        self.scores = {
            "val": MatchScore(),
            "test": MatchScore(homography=HOMOGRAPHY_RANSAC, pose=POSE_RANSAC),
        }
        self.loss_sums = {"val": 0.0, "test": 0.0}
        self.loss_items = {"val": 0, "test": 0}
        self.train_sums = torch.zeros(2, dtype=torch.float64)  # loss times pairs, pairs
        self._data_position: list[dict[str, Any]] = []  # of the training loaders, from a checkpoint

    def forward(self, batch: PairBatch, *, threshold: float | None = None) -> Matches:
        """Match the pairs of a batch."""
        x0, x1 = self._attended(batch)
        cells = self.network.coarse_matches(x0, x1, threshold=threshold)
        return self.network.matches(x0, x1, cells)

    def on_train_start(self) -> None:
        """Take the training data up where the checkpoint stood, if Lightning has not."""
        position, self._data_position = self._data_position, []
        loader: Any = self.trainer.train_dataloader
        if position and self.trainer.ckpt_path and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(position[0])

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        """One step; losses are logged per step, the mean loss over pairs at the epoch's end."""
        losses = self.batch_losses(batch)
        pairs = len(batch["index"])
        self._log_step("coarse_loss", losses.coarse, pairs)
        if losses.log_confidence is not None:
            self._log_step("log_confidence", losses.log_confidence, pairs)
        if losses.fine is not None:
            self._log_step("fine_loss", losses.fine, pairs)
        self._log_step("loss_step", losses.total, pairs)
        total = float(losses.total.detach()) * pairs
        self.train_sums += torch.tensor([total, pairs], dtype=torch.float64)
        return losses.total

    def batch_losses(self, batch: PairBatch, step: int | None = None) -> Losses:
        """The losses of a batch; needs no trainer.

        Args:
            batch: the pairs.
            step: which windows are drawn for the fine loss; ``None``: that of the trainer.
        """
        truth = supervise(batch)
        x0, x1 = self._attended(batch)
        scores, coarse = self._coarse(x0, x1, truth)
        found = scores[truth.b, truth.i, truth.j].mean() if len(truth.b) else None
        if not (self.network.has_fine and self.fine.weight > 0):
            return Losses(coarse, coarse, None, found)
        drawn = self.global_step if step is None else step
        fine = self._fine_loss(x0, x1, scores, truth, drawn)
        return Losses(coarse + self.fine.weight * fine, coarse, fine, found)

    def on_train_epoch_end(self) -> None:
        """Log the epoch's mean and start counting anew."""
        total, pairs = self.train_sums.tolist()
        self.log("train/loss", total / max(pairs, 1), batch_size=1)
        self.train_sums.zero_()

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        """Score the pairs of a batch."""
        self._score(batch, "val")

    def on_validation_epoch_end(self) -> None:
        """Log the scores over all validation pairs."""
        self._report("val")

    def on_test_epoch_start(self) -> None:
        """Forget the pairs of an earlier test."""
        self.scores["test"].reset()

    def test_step(self, batch: PairBatch, batch_idx: int) -> None:
        """Score the pairs of a batch, homographies and poses too."""
        self._score(batch, "test")

    def on_test_epoch_end(self) -> None:
        """Log the scores over all test pairs; the pairs stay in ``scores["test"].rows``."""
        self._report("test")

    def predict_step(self, batch: PairBatch, batch_idx: int) -> dict[str, Any]:
        """Matches in pixels of the original images, with the names and numbers of the pairs."""
        matches = self(batch)
        names: dict[str, Any] = {k: batch[k] for k in ("index", "name0", "name1") if k in batch}
        if "scale0" in batch:
            matches = matches.scaled(batch["scale0"], batch["scale1"], half_pixel=True)
        return {"matches": matches, **names}

    def configure_optimizers(self) -> Any:
        """AdamW over decay groups; the rate changes with every step."""
        groups = weight_decay_groups(self, self.optim.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=self.optim.lr)
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = LambdaLR(optimizer, lambda step: self.optim.factor(step, total))
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

    def _attended(self, batch: PairBatch) -> tuple[ImageFeatures, ImageFeatures]:
        x0, x1 = self.network.features_of_pair(
            batch["image0"], batch["image1"], batch.get("mask0"), batch.get("mask1")
        )
        return self.network.attend(x0, x1)

    def _coarse(
        self, x0: ImageFeatures, x1: ImageFeatures, truth: Supervision
    ) -> tuple[Tensor, Tensor]:
        """Log confidences (B, L, S) and the coarse loss, which no prefilter has passed."""
        matching = self.network.coarse_matching
        if matching.kind == "sinkhorn":
            assignment = matching.log_assignment(x0, x1)
            confidence = matching.without_bins(assignment)
            bins = self.loss.entries == "sparse"
            entries = assignment if bins else assignment[:, :-1, :-1]
        else:
            confidence = entries = matching.log_confidence(x0, x1)
        loss = coarse_loss(entries, truth, self.loss, keep0_BL=x0.mask, keep1_BS=x1.mask)
        return confidence, loss

    def _fine_loss(
        self, x0: ImageFeatures, x1: ImageFeatures, scores: Tensor, truth: Supervision, step: int
    ) -> Tensor:
        found = self.network.coarse_matches(x0, x1, log_confidence=scores.detach())
        pairs, cells0, cells1 = truth.shape
        count = max(1, int(self.fine.fraction * pairs * max(cells0, cells1)))
        seed = derive_seed(self.fine.seed, "fine", step)
        cells = training_cells(
            found,
            (truth.b, truth.i, truth.j),
            count,
            least_truth=min(self.fine.least_truth, count),
            generator=torch.Generator().manual_seed(seed),
        )
        refined = self.network.refine(x0, x1, cells)
        expectation_K3 = torch.cat([refined.expectation, refined.std[:, None]], 1)
        target_K2 = truth.fine_targets(cells.batch, cells.cell0, cells.cell1)
        return fine_loss(expectation_K3, target_K2, cells.batch, pairs, pooling=self.fine.pooling)

    def score_batch(
        self, batch: PairBatch, score: MatchScore, *, most: int | None = None
    ) -> tuple[Matches, Tensor]:
        """Match the pairs of a batch and add them to a score.

        Args:
            batch: the pairs.
            score: what they are added to.
            most: matches of a pair that count, the most confident ones; ``None``: all above the
                threshold.

        Returns:
            The matches that were scored, in pixels of the images of the batch, and the coarse loss.
        """
        truth = supervise(batch)
        x0, x1 = self._attended(batch)
        log_confidence, loss = self._coarse(x0, x1, truth)
        network = self.network
        cells = network.coarse_matches(x0, x1, log_confidence=log_confidence)
        matches = network.matches(x0, x1, cells)
        if most is not None:
            matches = matches.topk(most)
        everything = network.coarse_matches(
            x0, x1, threshold=0.0, border=0, log_confidence=log_confidence
        )
        candidates = network.matches(replace(x0, fine=None), replace(x1, fine=None), everything)
        score.update(batch, truth, matches, candidates)
        return matches, loss

    def _score(self, batch: PairBatch, split: Literal["val", "test"]) -> None:
        most = self.test_matches if split == "test" else None
        _, loss = self.score_batch(batch, self.scores[split], most=most)
        pairs = len(batch["index"])
        self.loss_sums[split] += float(loss.detach()) * pairs
        self.loss_items[split] += pairs

    def _report(self, split: Literal["val", "test"]) -> None:
        if self.loss_items[split] and not self.scores[split].rows:
            raise ValueError(
                f"None of the {self.loss_items[split]} {split} pairs has ground truth, so there is "
                "nothing to score: give homographies, cameras and poses, depth or matches; or "
                "predict them"
            )
        mean = self.loss_sums[split] / max(self.loss_items[split], 1)
        self.loss_sums[split], self.loss_items[split] = 0.0, 0
        self.log(f"{split}/loss", mean, batch_size=1)
        for name, value in self.scores[split].compute().items():
            shown = split == "val" and name in ("recall_1cell", "average_precision")
            self.log(f"{split}/{name}", value, prog_bar=shown, batch_size=1)
        if split == "val":
            self.scores[split].reset()

    def _log_step(self, name: str, value: Tensor, pairs: int) -> None:
        self.log(f"train/{name}", value.detach(), on_step=True, on_epoch=False, batch_size=pairs)


def _optional(attention: Any) -> Any:
    return None if attention is None else attention_factory(attention)


def _options(cls: Any, value: Any) -> Any:
    """A new dataclass from one, a mapping (a checkpoint) or a jsonargparse namespace."""
    if isinstance(value, cls):
        return replace(value)
    data = value if isinstance(value, dict) else vars(value)
    known = {f.name for f in fields(cls)}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known})
