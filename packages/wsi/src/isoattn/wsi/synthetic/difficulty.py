"""How hard a cohort is, before any attention is trained on it.

Three classifiers that need no attention, on features of a cohort's tiles:

* the **oracle**: a probe on single tiles, trained with the ground truth of the training slides,
  scores a slide by its most suspicious tile. Near 1: the encoder sees the difference, and the
  labels are right.
* **mean pooling**: logistic regression on the mean of a slide's tiles.
* **max pooling**: the same on the maximum of each feature.

A comparison of attentions on a cohort means something where the oracle is near 1 and mean pooling
clearly below it.

Measured with the example of :func:`measure_difficulty` on 48 slides, 36 to train and 12 to test,
one seed:

============================  ==============  ======  =========  ========  =====
encoder                       tumour          oracle  mean pool  max pool  tiles
============================  ==============  ======  =========  ========  =====
hed_statistics                0.005 to 0.02   0.89    0.61       0.97      0.998
random_mobilenetv3_small_050  0.005 to 0.02   0.50    0.44       0.53      0.983
random_mobilenetv3_small_050  0.015 to 0.04   0.67    0.39       0.58      0.971
============================  ==============  ======  =========  ========  =====

So the random network does not yet see the difference well enough across the two halves of the
source picture: take ``hed_statistics`` where arms are compared. With 12 test slides an AUC has a
standard error of about 0.15.

Shape suffixes: N tiles, D features, S slides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoattn.wsi.features.extract import features_path
from isoattn.wsi.features.formats import read_features
from isoattn.wsi.slides import area_share
from isoattn.wsi.synthetic.layout import CELL, TUMOUR
from isoattn.wsi.synthetic.records import SlideRecord, read_mask

Floats = NDArray[np.float32]

PENALTIES = tuple(10.0**power for power in range(-4, 3))
"""Inverse strengths of the penalty, chosen by cross-validation over the training slides."""


@dataclass(frozen=True)
class Difficulty:
    """AUC over test slides.

    Args:
        oracle, mean_pool, max_pool: see the module.
        tile: AUC of the oracle's probe over single tiles of test slides.
        train, test: numbers of slides.
    """

    oracle: float
    mean_pool: float
    max_pool: float
    tile: float
    train: int
    test: int


def measure_difficulty(folder: Path, features: Path, records: Sequence[SlideRecord]) -> Difficulty:
    """Train on the slides of train and val, score those of test.

    Args:
        folder: of the cohort.
        features: of :func:`isoattn.wsi.features.extract_slides`.
        records: of the cohort.

    Example:
        >>> records = make_cohort("cohort", CohortOptions(), jobs=2)
        >>> options = ExtractOptions(
        ...     tiling=TilingOptions(size=64), encoder=EncoderOptions("hed_statistics")
        ... )
        >>> extract_slides("cohort/slides", "features", options, jobs=2)
        >>> measure_difficulty(Path("cohort"), Path("features"), records)
    """
    from sklearn.metrics import roc_auc_score

    bags, truth = zip(*(_read(folder, features, r) for r in records), strict=True)
    label = np.array([r.label == "positive" for r in records])
    test = np.array([r.split == "test" for r in records])
    fit = [i for i, held_out in enumerate(test) if not held_out]
    probe = _regression([0.01])
    tiles = np.concatenate([truth[i] for i in fit])
    # Tiles at a border of the tumour belong to neither side.
    sure = (tiles == 0) | (tiles >= 0.5)
    probe.fit(np.concatenate([bags[i] for i in fit])[sure], tiles[sure] >= 0.5)
    scores = [probe.decision_function(bag) for bag in bags]
    held = np.flatnonzero(test)
    suspicion, share = (np.concatenate([of[i] for i in held]) for of in (scores, truth))
    auc = {
        "oracle": roc_auc_score(label[test], [scores[i].max() for i in held]),
        "tile": roc_auc_score(share >= 0.5, suspicion),
    }
    for name, pool in (("mean_pool", np.mean), ("max_pool", np.max)):
        pooled = np.stack([pool(bag, axis=0) for bag in bags])
        model = _regression().fit(pooled[~test], label[~test])
        auc[name] = roc_auc_score(label[test], model.decision_function(pooled[test]))
    return Difficulty(**{k: float(v) for k, v in auc.items()}, train=len(fit), test=len(held))


def _regression(penalties: Sequence[float] = PENALTIES) -> Any:
    """Standardised features, then a penalised regression; one penalty needs no choice."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(penalties) == 1:
        return make_pipeline(StandardScaler(), LogisticRegression(C=penalties[0], max_iter=300))
    model = LogisticRegressionCV(
        Cs=penalties,
        cv=5,
        l1_ratios=(0.0,),
        max_iter=2000,
        scoring="roc_auc",
        use_legacy_attributes=False,
    )
    return make_pipeline(StandardScaler(), model)


def _read(folder: Path, features: Path, record: SlideRecord) -> tuple[Floats, Floats]:
    """Features (N, D) and share of tumour (N,) of a slide's tiles."""
    found = read_features(features_path(features, record.slide_id))
    mask = read_mask(folder, record) == TUMOUR
    assert found.coords_N2 is not None and found.side is not None
    return found.features_ND.numpy(), area_share(mask, CELL, found.coords_N2, found.side)
