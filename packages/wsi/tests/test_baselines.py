"""References without a network."""

import pytest

from isoattn.wsi.bags import Difficulty, NeedleBags
from isoattn.wsi.baselines import pooled_regression


def test_a_mean_knows_what_moves_the_mean_and_no_needle():
    plain = NeedleBags(Difficulty(bags=80, tiles=(20, 30), features=8, marked=0.2, offset=0.0))
    hidden = NeedleBags(Difficulty(bags=80, tiles=(60, 90), features=8, marked=0.02, offset=1.0))
    mean = "mean of the tiles, logistic regression"
    easy, hard = pooled_regression(plain.load()), pooled_regression(hidden.load())
    assert easy[mean] > 0.95
    assert hard[mean] < 0.85
    assert easy.keys() == hard.keys() and pooled_regression(plain.load()) == easy


def test_the_scores_are_of_the_test_part():
    """With labels of train and val turned around in all of them, the score turns around."""
    import dataclasses

    task = NeedleBags(Difficulty(bags=80, tiles=20, features=8, marked=0.2, offset=0.0)).load()
    labels = task.labels.clone()
    labels[task.split.test] = 1 - labels[task.split.test]
    turned = dataclasses.replace(task, labels=labels)
    for name, value in pooled_regression(task).items():
        assert pooled_regression(turned)[name] == pytest.approx(1 - value)
