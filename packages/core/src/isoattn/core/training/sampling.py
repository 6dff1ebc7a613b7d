"""Batches in an order that (seed, epoch) alone decide, and a loader that resumes mid-epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from isoattn.core.training.randomness import derive_seed

T = TypeVar("T")


class EpochOrder(Sampler[int]):
    """The order of one epoch, from its own generator.

    Args:
        size: number of items.
        seed: seed of the order.
        shuffle: a permutation for each epoch; otherwise 0, 1, 2, ... always.
    """

    def __init__(self, size: int, *, seed: int, shuffle: bool = True) -> None:
        if size < 1:
            raise ValueError(f"An order needs at least one item, got size={size}")
        self.size = size
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = epoch

    def order(self) -> list[int]:
        """All items in this epoch's order."""
        if not self.shuffle:
            return list(range(self.size))
        generator = torch.Generator().manual_seed(derive_seed(self.seed, self.epoch, "order"))
        order: list[int] = torch.randperm(self.size, generator=generator).tolist()
        return order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order())

    def __len__(self) -> int:
        return self.size


class EpochBatchSampler(Sampler[list[int]]):
    """Batches of item numbers; epoch e of seed s is always the same list.

    Lightning calls ``set_epoch`` on ``loader.batch_sampler.sampler``, never on the batch sampler
    itself; hence the order is an object of its own under that name. With several devices Lightning
    needs ``Trainer(use_distributed_sampler=False)``, for the ranks are shared out here; it says so
    where that is missing.

    Args:
        size: number of items.
        batch_size: items in a batch; the last batch holds the rest.
        seed: seed of the order.
        shuffle: see :class:`EpochOrder`.
        drop_last: leave out a last batch that is not full.
        rank: this process's number among ``world_size`` data-parallel ones.
        world_size: number of data-parallel processes. Each gets every ``world_size``-th item; the
            order is filled up from its start, so that all take the same number of steps.

    Raises:
        ValueError: sizes below 1, a rank outside the world, or no batch at all.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in 0..{world_size - 1}, got {rank}")
        self.sampler = EpochOrder(size, seed=seed, shuffle=shuffle)
        # Private, because Lightning takes whatever has the public names for torch's own class.
        self._batch_size = batch_size
        self._drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self._start = 0
        if len(self) == 0:
            raise ValueError(
                f"{size} items over {world_size} process(es) give no full batch of {batch_size}: "
                "lower batch_size or set drop_last=False"
            )

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return self.sampler.seed

    @property
    def epoch(self) -> int:
        """Epoch of the next iteration."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.sampler.set_epoch(epoch)

    def start_at(self, batch: int) -> None:
        """Let iterations begin at this batch until told otherwise; ``len`` stays the epoch's."""
        self._start = batch

    def batches(self) -> list[list[int]]:
        """All batches of this epoch for this rank."""
        order = self.sampler.order()
        share = -(-len(order) // self.world_size)
        order = (
            (order * self.world_size)[: share * self.world_size] if self.world_size > 1 else order
        )
        mine = order[self.rank :: self.world_size]
        end = len(self) * self._batch_size
        return [mine[i : i + self._batch_size] for i in range(0, min(end, share), self._batch_size)]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches()[self._start :])

    def __len__(self) -> int:
        share = -(-len(self.sampler) // self.world_size)
        return share // self._batch_size if self._drop_last else -(-share // self._batch_size)


class ResumableLoader(DataLoader[T]):
    """A DataLoader that knows how many batches it has handed out and can go on from there.

    ``state_dict()`` is ``{"epoch", "batches"}``. Batches are counted when the main process hands
    them out, so what workers have prefetched does not count. Lightning finds ``state_dict`` and
    ``load_state_dict`` by name and stores the state under its fit loop.

    Iteration is lazy: nothing is drawn before the first ``next``. Lightning calls ``iter`` *before*
    ``set_epoch`` and, after a resume, not again at the first epoch; only at the first ``next`` is
    the epoch certain. If it is not the epoch of the loaded state (which then was taken at the end
    of an epoch), the epoch begins at its first batch.

    A dataset with ``set_epoch(epoch)`` is told the epoch before each iteration.

    Args:
        dataset: map-style dataset; one with ``__getitems__`` gets the whole list of item numbers.
        batch_sampler: the order.
        collate_fn: as in ``DataLoader``.
        num_workers: as in ``DataLoader``. Workers are started anew for each epoch, because a
            persistent worker would keep the dataset's first epoch.
        pin_memory: as in ``DataLoader``.
        prefetch_factor: as in ``DataLoader``.

    Raises:
        ValueError: :meth:`load_state_dict` got a state that does not fit.
    """

    batch_sampler: EpochBatchSampler

    def __init__(
        self,
        dataset: Dataset[T],
        batch_sampler: EpochBatchSampler,
        *,
        collate_fn: Callable[[Any], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
    ) -> None:
        super().__init__(
            dataset,
            batch_sampler=batch_sampler,
            collate_fn=collate_fn,
            num_workers=num_workers,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
            # Without one, each iteration draws the workers' base seed from the global generator.
            generator=torch.Generator(),
        )
        self._given = {"epoch": 0, "batches": 0}
        self._resume: dict[str, int] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.batch_sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """``{"epoch", "batches"}``: the current epoch and the batches handed out in it."""
        if self._resume is not None:
            return dict(self._resume)
        epoch = self.batch_sampler.epoch
        return {
            "epoch": epoch,
            "batches": self._given["batches"] if self._given["epoch"] == epoch else 0,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the given state at the next iteration; resets the epoch to the state's."""
        if set(state_dict) != {"epoch", "batches"}:
            raise ValueError(
                f"A loader state has the keys epoch and batches, got {sorted(state_dict)}. "
                "It was written by another kind of loader."
            )
        state = {key: int(state_dict[key]) for key in ("epoch", "batches")}
        if state["epoch"] < 0 or not 0 <= state["batches"] <= len(self.batch_sampler):
            raise ValueError(
                f"Cannot continue at batch {state['batches']} of epoch {state['epoch']}: an epoch "
                f"has {len(self.batch_sampler)} batches. Data or batch size are not those of the "
                "checkpoint."
            )
        self._resume = state
        self.set_epoch(state["epoch"])

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        epoch = self.batch_sampler.epoch
        resume, self._resume = self._resume, None
        done = resume["batches"] if resume is not None and resume["epoch"] == epoch else 0
        self._given = {"epoch": epoch, "batches": done}
        self._tell_workers(epoch)
        # An iterator with workers asks the sampler twice, so the start is set around its creation.
        self.batch_sampler.start_at(done)
        batches = super().__iter__()
        self.batch_sampler.start_at(0)
        for batch in batches:
            self._given["batches"] += 1
            yield batch

    def _tell_workers(self, epoch: int) -> None:
        """What workers copy when they start."""
        if self.generator is not None:
            self.generator.manual_seed(derive_seed(self.batch_sampler.seed, epoch, "workers"))
        tell = getattr(self.dataset, "set_epoch", None)
        if callable(tell):
            tell(epoch)
