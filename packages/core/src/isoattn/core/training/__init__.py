"""Seeded sampling, resumable loading, schedules and weight-decay groups, shared by all domains."""

from isoattn.core.training.decay_groups import weight_decay_groups
from isoattn.core.training.digest import BatchDigest
from isoattn.core.training.randomness import derive_seed, item_generator, item_uniform
from isoattn.core.training.sampling import EpochBatchSampler, EpochOrder, ResumableLoader
from isoattn.core.training.schedule import warmup_cosine

__all__ = [
    "BatchDigest",
    "EpochBatchSampler",
    "EpochOrder",
    "ResumableLoader",
    "derive_seed",
    "item_generator",
    "item_uniform",
    "warmup_cosine",
    "weight_decay_groups",
]
