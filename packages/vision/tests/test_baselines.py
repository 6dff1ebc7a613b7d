"""One nearest neighbour scores what the data are known to score."""

import pytest

from isoattn.vision import DigitsData, MnistData
from isoattn.vision.baselines import nearest_neighbour


def test_mnist() -> None:
    # Published for a stratified split into 4,000 and 1,000: 93.4 %, one split; here another one.
    score = nearest_neighbour(MnistData(), references=("train", "val"))
    assert score == pytest.approx(0.934, abs=0.016)  # two standard errors of 1,000 items
    assert nearest_neighbour(MnistData()) == pytest.approx(score, abs=0.01)


def test_digits_of_other_writers_and_of_the_same() -> None:
    writers = nearest_neighbour(DigitsData(), references=("train", "val"))
    assert writers == pytest.approx(0.956, abs=0.003)
    mixed = nearest_neighbour(DigitsData(split="random"), references=("train", "val"))
    assert mixed == pytest.approx(0.98, abs=0.016)
