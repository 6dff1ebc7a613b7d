"""Texture, stain and paint."""

import numpy as np
import pytest

from isoattn.wsi.synthetic import texture as module
from isoattn.wsi.synthetic.layout import CELL, MIMIC, NORMAL, TUMOUR
from isoattn.wsi.synthetic.picture import paint
from isoattn.wsi.synthetic.stain import draw_stain
from isoattn.wsi.synthetic.texture import load_swatches, weave


def test_train_and_test_share_no_pixel_of_the_source() -> None:
    stains, _, _ = module._recoloured()
    left, right = load_swatches("left"), load_swatches("right")
    for tissue in ("normal", "tumour"):
        a, b = (half[tissue].stains_KSS2 for half in (left, right))
        assert a.shape == (8 * module.SWATCHES, module.SIDE, module.SIDE, 2)
        places = {square.tobytes() for square in a}
        assert not any(square.tobytes() in places for square in b)
        middle = stains.shape[1] // 2
        windows = np.lib.stride_tricks.sliding_window_view(stains[:, :middle], a.shape[1:3], (0, 1))
        assert (windows[:, :, :, 0, 0] == a[0, 0, 0]).all(-1).any()


@pytest.mark.parametrize("half", ["left", "right"])
def test_a_mimic_has_the_mean_stains_of_tumour(half: str) -> None:
    swatches = load_swatches(half)  # type: ignore[arg-type]
    tumour, mimic, normal = (swatches[k].mean_2 for k in ("tumour", "mimic", "normal"))
    np.testing.assert_allclose(mimic, tumour, rtol=0.01)
    assert (tumour > 1.3 * normal).all()
    spread = [swatches[k].stains_KSS2.std((0, 1, 2)) for k in ("tumour", "mimic")]
    assert (np.abs(spread[0] / spread[1] - 1) > 0.2).all()  # so texture tells them apart


def test_weaving_keeps_mean_and_contrast() -> None:
    swatches = load_swatches("left")["tumour"]
    woven = weave(swatches, 300, 410, np.random.default_rng(0))
    assert woven.shape == (300, 410, 2) and woven.min() >= 0
    source = swatches.stains_KSS2
    np.testing.assert_allclose(woven.mean((0, 1)), source.mean((0, 1, 2)), rtol=0.1)
    np.testing.assert_allclose(woven.std((0, 1)), source.std((0, 1, 2)), rtol=0.15)
    again = weave(swatches, 300, 410, np.random.default_rng(0))
    assert np.array_equal(woven, again)


def test_weights_of_overlapping_squares_keep_the_power() -> None:
    weight, step = module._weight(), module.STEP
    parts = [weight[r : r + step, c : c + step] for r in (0, step) for c in (0, step)]
    np.testing.assert_allclose(sum(part**2 for part in parts), 1.0, rtol=1e-5)


def test_stains_of_a_site_are_alike() -> None:
    def gain(site: int, patient: int, slide: int) -> np.ndarray:
        return np.log(draw_stain(0, site, patient, slide, 0.2).gain_2)

    def spread(gains: list[np.ndarray]) -> float:
        return float(np.stack(gains).std(0).mean())

    sites = spread([gain(i, i, i) for i in range(200)])
    patients = spread([gain(0, i, i) for i in range(200)])
    slides = spread([gain(0, 0, i) for i in range(200)])
    assert sites > 1.5 * patients > 2 * slides > 0
    none = draw_stain(0, 1, 2, 3, 0.0)
    assert none.gain_2.tolist() == [1, 1] and none.glass_3.tolist() == [244] * 3
    np.testing.assert_allclose(np.linalg.norm(none.vectors_23, axis=1), 1, rtol=1e-6)


def test_paint(cells: np.ndarray, pixels: np.ndarray) -> None:
    assert pixels.shape == (cells.shape[0] * CELL, cells.shape[1] * CELL, 3)
    kinds = cells.repeat(CELL, 0).repeat(CELL, 1)
    mean = {kind: pixels[kinds == kind].mean(0) for kind in range(4)}
    assert (mean[0] > 240).all()
    assert np.abs(mean[TUMOUR] - mean[MIMIC]).max() < 15 < np.abs(mean[TUMOUR] - mean[NORMAL]).min()


def test_without_contrast_tumour_is_its_mimic(cells: np.ndarray) -> None:
    small = np.full((24, 48), NORMAL, dtype=np.uint8)
    small[4:20, 4:20], small[4:20, 28:44] = TUMOUR, MIMIC
    stain = draw_stain(0, 0, 0, 0, 0.0)

    def gap(contrast: float) -> float:
        made = paint(small, "left", stain, contrast, np.random.default_rng(0)).astype(float)
        tumour, mimic = made[40:152, 40:152], made[40:152, 232:344]
        return float(np.abs(tumour.std((0, 1)) - mimic.std((0, 1))).mean())

    assert gap(0.0) < 4 < gap(1.0)
