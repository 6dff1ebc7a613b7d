"""Random streams with one purpose each, and the hashes that prove two runs saw the same batches."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from isoattn.core import Attention
from isoattn.core.training import derive_seed
from isoattn.core.training.digest import BatchDigest


class RandomStreams(Callback):
    """Gives each purpose its own seeded stream, and takes the streams up again on a resume.

    * initial values: torch's global generator at construction, seeded with the run's seed;
    * data order and augmentation: ``datamodule.data_seed``, per epoch and item;
    * dropout and drop-path: the global generator, seeded anew for every epoch, so that an epoch
      does not depend on what was drawn before it;
    * the attention's own noise: generators owned by the attention modules, in their state_dict.

    Inside an epoch the state of the global generators is part of the checkpoint.

    Args:
        seed: the run's seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._restore: dict[str, Any] | None = None

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Seed the streams of this epoch; a state from a checkpoint is then out of date."""
        self._restore = None
        seed_global(derive_seed(self.seed, trainer.current_epoch, "dropout"))
        generator = getattr(pl_module, "mix_generator", None)
        if generator is not None:
            generator.manual_seed(derive_seed(self.seed, trainer.current_epoch, "mix"))

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Go on inside an epoch exactly where the checkpoint was taken."""
        if self._restore is not None:
            set_random_state(self._restore)
            self._restore = None

    def state_dict(self) -> dict[str, Any]:
        """The state of the global generators."""
        return {"random": random_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember a state until the first batch."""
        self._restore = state_dict["random"]


class BatchHashes(Callback):
    """Per epoch, one hash over the ids and tensors of all training batches, in order.

    Within a pair of runs the hashes must agree, or the pair is void (P3 of the protocol). The hash
    is a chain, so a resumed epoch ends with the hash of the straight one.
    """

    def __init__(self) -> None:
        self.epochs: list[str] = []
        self.init_hash = ""
        self._chain = ""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hash the initial weights outside the attentions (a resume brings the hash back later)."""
        if not self.init_hash:
            self.init_hash = weights_hash(pl_module)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a chain."""
        self._chain = ""

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Add a batch."""
        digest = BatchDigest()
        digest.update([self._chain, batch])
        self._chain = digest.hexdigest()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the chain."""
        self.epochs.append(self._chain[:16])

    def state_dict(self) -> dict[str, Any]:
        """Hashes so far."""
        return {"epochs": list(self.epochs), "chain": self._chain, "init": self.init_hash}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them up again."""
        self.epochs = list(state_dict["epochs"])
        self._chain = state_dict["chain"]
        self.init_hash = state_dict["init"]


def weights_hash(module: nn.Module) -> str:
    """Hash of all parameters that are not inside an attention core, by name."""
    inside = {
        id(p) for core in module.modules() if isinstance(core, Attention) for p in core.parameters()
    }
    digest = BatchDigest()
    for name, parameter in sorted(module.named_parameters()):
        if id(parameter) not in inside:
            digest.update(name)
            digest.update(parameter.detach())
    return digest.hexdigest()[:16]


def parameter_counts(module: nn.Module) -> tuple[int, int]:
    """Trainable parameters: all, and those inside attention cores."""
    cores = [core for core in module.modules() if isinstance(core, Attention)]
    return _count(module.parameters()), _count(p for core in cores for p in core.parameters())


def random_state() -> dict[str, Any]:
    """The state of torch's, Python's and NumPy's global generators, as plain data."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(internal), gauss],
        "numpy": [str(name), [int(k) for k in keys], int(position), int(has_gauss), float(cached)],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Set what :func:`random_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


def seed_global(seed: int) -> None:
    """Seed torch's, Python's and NumPy's global generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters if p.requires_grad)
