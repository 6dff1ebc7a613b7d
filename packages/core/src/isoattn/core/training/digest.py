"""A hash over the batches of an epoch: two runs saw the same data exactly if theirs agree."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class BatchDigest:
    """Running SHA-256 over batches: ids, inputs, dtypes and shapes, in order.

    Example:
        >>> digest = BatchDigest()
        >>> digest.update({"image": torch.zeros(1, 2), "index": torch.tensor([3])})
        >>> len(digest.hexdigest())
        64
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, batch: Any) -> None:
        """Add a batch: a tensor, or mappings, sequences and dataclasses of tensors and values."""
        if isinstance(batch, Tensor):
            data = batch.detach().cpu().contiguous()
            self._hash.update(f"{data.dtype}{tuple(data.shape)}".encode())
            # As bytes, so that bfloat16, which numpy lacks, hashes too.
            self._hash.update(data.flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(batch, Mapping):
            for key in sorted(batch):
                self._hash.update(str(key).encode())
                self.update(batch[key])
        elif dataclasses.is_dataclass(batch):
            self.update({f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)})
        elif isinstance(batch, (list, tuple)):
            self._hash.update(f"[{len(batch)}]".encode())
            for item in batch:
                self.update(item)
        else:
            self._hash.update(repr(batch).encode())

    def hexdigest(self) -> str:
        """The hash of everything so far."""
        return self._hash.hexdigest()
