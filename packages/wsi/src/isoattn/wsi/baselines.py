"""What a bag task gives without a network: logistic regression on pooled features.

Shape suffixes: S bags, I features.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isoattn.wsi.bags import BagTask
from isoattn.wsi.metrics import macro_auc

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Inverse strengths of the penalty; the one with the best validation AUC is taken."""


def pooled_regression(task: BagTask) -> dict[str, float]:
    """Test AUC of logistic regression on the mean over tiles, and on the maximum of each feature.

    An attention is worth having where it is above both. The penalty is chosen on the validation
    part; features are standardised.

    Args:
        task: with labels in all three parts.
    """
    pools: dict[str, Callable[[Tensor], Tensor]] = {
        "mean of the tiles, logistic regression": lambda x: x.mean(0),
        "maximum of each feature, logistic regression": lambda x: x.amax(0),
    }
    bags = range(len(task.ids))
    pooled: dict[str, list[Tensor]] = {name: [] for name in pools}
    for index in bags:  # each bag is read once
        features = task.reader.read(index).features.double()
        for name, pool in pools.items():
            pooled[name].append(pool(features))
    return {name: _best(torch.stack(rows), task) for name, rows in pooled.items()}


def _best(x_SI: Tensor, task: BagTask) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    label = task.labels
    train, val, test = (members for _, members in task.split.items())
    scores = []
    for penalty in PENALTIES:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=1000))
        model.fit(x_SI[train].numpy(), label[train].numpy())
        found = [
            macro_auc(torch.from_numpy(model.predict_proba(x_SI[part].numpy())), label[part])
            for part in (val, test)
        ]
        scores.append(tuple(found))
    return max(scores, key=lambda pair: pair[0])[1]
