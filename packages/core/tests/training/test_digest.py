"""The digest tells batches apart by value, order, shape and type."""

from typing import Any

import torch

from isoattn.core.training import BatchDigest


def digest(*batches: Any) -> str:
    running = BatchDigest()
    for batch in batches:
        running.update(batch)
    return running.hexdigest()


def test_equal_batches_agree_whatever_the_memory_layout() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    assert digest({"a": x, "b": ["p", 1]}) == digest({"b": ["p", 1], "a": x.T.contiguous().T})


def test_any_difference_shows() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    seen = [
        digest(x),
        digest(x, x),
        digest(x + 1e-6),
        digest(x.reshape(4, 3)),
        digest(x.double()),
        digest(x.bfloat16()),
        digest(x.flip(0)),
        digest({"a": x}),
        digest({"b": x}),
        digest([x]),
        digest(x[:0]),
        digest(torch.tensor(True)),
        digest(None),
    ]
    assert len(set(seen)) == len(seen)
