"""Pictures of matches: a file of the right size, colours, refusals; no display, nothing global."""

import pytest
import torch
from PIL import Image

from isoattn.matching.drawing import draw_matches, save_matches
from isoattn.matching.matches import Matches


def make(count=5, batch_size=1):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(2, count, 2, generator=generator) * 30
    index = torch.zeros(count, dtype=torch.int64)
    return Matches(points[0], points[1], torch.linspace(0.1, 0.9, count), index, batch_size)


@pytest.mark.parametrize("count", [0, 5])
def test_a_file_with_both_images(tmp_path, count):
    path = save_matches(
        tmp_path / "new" / "matches.png", torch.rand(40, 60), torch.rand(3, 50, 70), make(count)
    )
    with Image.open(path) as picture:
        assert picture.size == (7 * (60 + 8 + 70), 7 * 50)  # enlarged to about 1000 pixels


def test_a_long_title_is_broken_and_none_of_it_is_cut():
    title = " ".join(f"word{n}" for n in range(60))
    figure = draw_matches(torch.zeros(200, 300), torch.zeros(200, 300), make(), title=title)
    shown = figure.axes[0].get_title()
    assert shown.split() == title.split() and len(shown.splitlines()) > 2
    figure.canvas.draw()
    box = figure.axes[0].title.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


def test_lines_run_from_image_to_image():
    matches = make()
    figure = draw_matches(torch.zeros(1, 40, 60), torch.zeros(50, 70), matches, title="a pair")
    axes = figure.axes[0]
    segments = axes.collections[0].get_segments()
    order = matches.confidence.argsort()
    for segment, index in zip(segments, order, strict=True):
        end = matches.keypoints1[index] + torch.tensor([68.0, 0.0])
        want = torch.stack([matches.keypoints0[index], end]).double()
        torch.testing.assert_close(torch.as_tensor(segment), want)
    assert axes.get_title() == "a pair"


def test_colours_say_what_is_right_and_the_surest_are_drawn():
    correct = torch.tensor([False, True, False, True, True])
    figure = draw_matches(torch.zeros(9, 9), torch.zeros(9, 9), make(), correct=correct, most=3)
    colours = figure.axes[0].collections[0].get_colors()
    assert len(colours) == 3
    reds = [red > green for red, green, *_ in colours]
    assert reds == [True, False, False]


def test_refusals():
    with pytest.raises(ValueError, match=r"these are matches of 2: draw each of matches.split"):
        draw_matches(torch.zeros(9, 9), torch.zeros(9, 9), make(batch_size=2))
    with pytest.raises(ValueError, match=r"image1 must be \(H, W\), .* got \(2, 9, 9\)"):
        draw_matches(torch.zeros(9, 9), torch.zeros(2, 9, 9), make())
