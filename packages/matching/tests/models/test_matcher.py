"""The whole matcher: sizes, masks, batches, cached features, arms, refusals."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.core import (
    CosineSoftmax,
    Linear,
    Mean,
    Softmax,
    Zero,
    replaced_attention,
    swap_attention,
    swappable_layers,
)
from isoattn.matching.models import VARIANTS, Matcher, layers_at, make_matcher

ARMS = [Linear, Softmax, Mean, Zero]
EACH = pytest.mark.parametrize("attention", ARMS, ids=lambda a: a.__name__)


def equal(one, other):
    for name in ("keypoints0", "keypoints1", "confidence", "cell0", "cell1"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))


@EACH
def test_an_image_matches_itself(build, images, attention):
    with torch.no_grad():
        matches = build(attention, layers=0)(*images(), threshold=0.0)
    assert len(matches) > 20
    assert torch.equal(matches.cell0, matches.cell1)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_any_two_sizes(h0, w0, h1, w1):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Matcher(Linear, widths=(8, 12, 16), heads=2, layers=2, border=0).eval()
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(1, 1, *size, generator=generator) for size in ((h0, w0), (h1, w1))]
    with torch.no_grad():
        matches = model(*images, threshold=0.0)
    assert len(matches) >= 1
    cells = -(-h0 // 8) * -(-w0 // 8), -(-h1 // 8) * -(-w1 // 8)
    assert len(matches) <= min(cells)
    limit = torch.tensor([[w0 - 1, h0 - 1], [w1 - 1, h1 - 1]])
    assert (matches.keypoints0 >= 0).all() and (matches.keypoints0 <= limit[0]).all()
    assert (matches.keypoints1 >= -4).all() and (matches.keypoints1 <= limit[1] + 4).all()


def test_positions_beyond_2048_pixels(build, images):
    """kornia/kornia#1746, zju3dv/LoFTR#54: a table ended there."""
    model = build(backbone="patch", fine=False, layers=0)
    image0, image1 = images(1, (8, 2064))
    with torch.no_grad():
        matches = model(image0, image1, threshold=0.0)
    assert matches.keypoints0[:, 0].max() > 2048


def test_pixel_masks_and_cell_masks_give_the_same(build, images):
    """kornia/kornia#1578."""
    image0, image1 = images(2, (40, 48))
    pixels = torch.ones(2, 40, 48, dtype=torch.bool)
    pixels[0, 24:] = False
    pixels[1, :, 40:] = False
    with torch.no_grad():
        one = build()(image0, image1, pixels, pixels, threshold=0.0)
        two = build()(image0, image1, pixels[:, ::8, ::8], pixels[:, ::8, ::8], threshold=0.0)
    equal(one, two)


@EACH
@pytest.mark.parametrize("fine", [False, True])
def test_no_point_in_the_masked_part(build, images, attention, fine):
    """kornia/kornia#2688: masks were ignored; and softmax gave NaN everywhere with them."""
    image0, image1 = images(1, (40, 80))
    mask = torch.zeros(1, 40, 80, dtype=torch.bool)
    mask[:, :, 64:] = True
    with torch.no_grad():
        matches = build(attention)(image0, image1, mask, None, threshold=0.0, fine=fine)
    assert len(matches) and (matches.keypoints0[:, 0] >= 64).all()
    assert matches.confidence.isfinite().all() and matches.keypoints1.isfinite().all()


@EACH
def test_padded_rows_are_harmless(build, images, attention):
    """A 96x96 pair whose last 24 rows are masked; every token of kornia's softmax is NaN here."""
    image0, image1 = images(1, (96, 96))
    mask = torch.ones(1, 96, 96, dtype=torch.bool)
    mask[:, 72:] = False
    model = build(attention, fine=False)
    with torch.no_grad():
        x0, x1 = model.attend(*model.features_of_pair(image0, image1, mask, mask))
        matches = model.match(*model.features_of_pair(image0, image1, mask, mask), threshold=0)
    assert x0.tokens.isfinite().all() and x1.tokens.isfinite().all()
    assert len(matches) and (matches.keypoints0[:, 1] < 72).all()
    assert (matches.keypoints1[:, 1] < 72).all()


@pytest.mark.parametrize("match", ["dual_softmax", "sinkhorn"])
def test_a_batch_equals_pair_by_pair(build, images, match):
    """One of three pairs has no match at all.

    In float64: how a convolution rounds depends on the number of images, by the processor.
    """
    model = build(match=match, layers=2).double()
    model.coarse_matching.prefilter = False  # untrained, all cells would go to the dustbin
    image0, image1 = (image.double() for image in images(3, (40, 48)))
    masks = torch.ones(3, 40, 48, dtype=torch.bool)
    masks[1] = False
    with torch.no_grad():
        pieces = model(image0, image1, masks, masks, threshold=0.0).split()
        alone = [
            model(
                image0[i : i + 1],
                image1[i : i + 1],
                masks[i : i + 1],
                masks[i : i + 1],
                threshold=0.0,
            )
            for i in range(3)
        ]
    assert len(pieces) == 3 and len(pieces[1]) == 0 and len(pieces[0]) and len(pieces[2])
    for one, other in zip(pieces, alone, strict=True):
        equal(one, other)


@pytest.mark.parametrize("fine", [False, True])
def test_no_match_at_all(build, images, fine):
    """zju3dv/LoFTR#6: random weights find nothing above 0.2."""
    image0, _ = images(2, (40, 48))
    _, image1 = images(2, (40, 48), (48, 40), seed=1)
    with torch.no_grad():
        matches = build()(image0, image1, threshold=1.0, fine=fine)
    assert len(matches) == 0 and [len(p) for p in matches.split()] == [0, 0]
    assert (matches.std is not None) == fine


def test_features_are_kept_for_many_pairs(build, images):
    model = build()
    image0, image1 = images(1, (40, 48), (33, 57))
    with torch.no_grad():
        want = model(image0, image1, threshold=0.0)
        x0, x1 = model.features(image0), model.features(image1)
        equal(model.match(x0, x1, threshold=0.0), want)
        equal(model.match(x0, x1, threshold=0.0), want)


@pytest.mark.parametrize("size1", [None, (48, 40)])
def test_images_of_one_size_share_their_batch_statistics_in_training(build, images, size1):
    model = build().train()
    image0, image1 = images(2, (40, 48), size1)
    pair = image0, 0.5 * image1
    together = torch.cat([x.tokens for x in model.features_of_pair(*pair)], 1)
    alone = [build().train().features(image).tokens for image in pair]
    same = torch.allclose(together, torch.cat(alone, 1), atol=1e-4)
    assert same == (size1 is not None)
    counted = model.backbone.bn1.num_batches_tracked
    assert counted == (1 if size1 is None else 2)


def test_colour_is_made_grey(build, images):
    image0, image1 = images()
    model = build(layers=2)
    colour = torch.rand(1, 3, 40, 48, generator=torch.Generator().manual_seed(0))
    grey = 0.299 * colour[:, :1] + 0.587 * colour[:, 1:2] + 0.114 * colour[:, 2:]
    with torch.no_grad():
        equal(model(colour, image1, threshold=0.0), model(grey, image1, threshold=0.0))


def test_dense_and_streamed_matching_agree(build, images):
    model = build(fine=False)
    with torch.no_grad():
        x0, x1 = model.attend(*model.features_of_pair(*images()))
        streamed = model.coarse_matches(x0, x1, threshold=0.0)
        dense = model.coarse_matches(
            x0, x1, threshold=0.0, log_confidence=model.log_confidence(x0, x1)
        )
    assert torch.equal(streamed.cell0, dense.cell0) and torch.equal(streamed.cell1, dense.cell1)
    torch.testing.assert_close(streamed.confidence, dense.confidence)


def test_border_is_a_choice(build, images):
    image0, image1 = images(1, (64, 64))
    with torch.no_grad():
        matches = build(border=2, layers=0)(image0, image1, threshold=0.0, fine=False)
        whole = build(border=0, layers=0)(image0, image1, threshold=0.0, fine=False)
    for points in (matches.keypoints0, matches.keypoints1):
        assert points.min() >= 16 and points.max() <= 40
    assert len(whole) > len(matches) > 0


def test_arms_have_equal_parameters_and_values(build):
    first = dict(build(Linear).named_parameters())
    for attention in ARMS[1:]:
        named = dict(build(attention).named_parameters())
        assert named.keys() == first.keys()
        assert all(torch.equal(named[n], first[n]) for n in first)
    extra = dict(build(CosineSoftmax).named_parameters())
    assert all(torch.equal(extra[n], first[n]) for n in first)


def test_self_cross_and_fine_are_chosen_separately(build):
    model = build(Linear, attention_self=Softmax, attention_cross="Mean", attention_fine=Zero)
    kinds = {name: type(site.core) for name, site in swappable_layers(model).items()}
    assert kinds == {
        "loftr_coarse.layers.0": Softmax,
        "loftr_coarse.layers.1": Mean,
        "loftr_coarse.layers.2": Softmax,
        "loftr_coarse.layers.3": Mean,
        "loftr_fine.layers.0": Zero,
        "loftr_fine.layers.1": Zero,
    }


def test_attention_of_one_place_is_replaced_and_nothing_else(build, images):
    model = build(Linear)
    before = {n: x.clone() for n, x in model.state_dict().items()}
    image0, image1 = images()
    with torch.no_grad():
        want = model(image0, image1, threshold=0.0)
        layers = layers_at(model, ["cross", "fine"])
        with replaced_attention(model, Mean, layers) as report:
            assert report.layers == [
                "loftr_coarse.layers.1",
                "loftr_coarse.layers.3",
                "loftr_fine.layers.0",
                "loftr_fine.layers.1",
            ]
            changed = model(image0, image1, threshold=0.0)
        equal(model(image0, image1, threshold=0.0), want)
    assert not torch.equal(changed.keypoints1, want.keypoints1)
    swap_attention(model, partial(Softmax, path="math"), layers_at(model, ["self"]))
    assert all(torch.equal(x, before[n]) for n, x in model.state_dict().items())
    kinds = [type(site.core) for site in swappable_layers(model).values()]
    assert kinds == [Softmax, Linear, Softmax, Linear, Linear, Linear]
    with pytest.raises(ValueError, match="places are self, cross, fine; got coarse"):
        layers_at(model, ["coarse"])
    with pytest.raises(ValueError, match="This matcher has no fine layer"):
        layers_at(build(fine=False), ["fine"])


@EACH
def test_training_through_all_parts_has_finite_gradients(build, images, attention):
    model = build(attention).train()
    image0, image1 = images(2, (48, 40))
    masks = torch.ones(2, 48, 40, dtype=torch.bool)
    masks[0, 32:] = False
    x0, x1 = model.attend(*model.features_of_pair(image0, image1, masks, masks))
    log_confidence = model.log_confidence(x0, x1)
    cells = model.coarse_matches(x0, x1, threshold=0.0, log_confidence=log_confidence)
    refined = model.refine(x0, x1, cells)
    picked = log_confidence[cells.batch, cells.cell0, cells.cell1]
    (refined.expectation.square().sum() + refined.std.sum() - picked.sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_half_precision_is_near_single(build, images, dtype):
    """zju3dv/LoFTR#285: a mask in half precision gave an error, then NaN."""
    model = build(Linear)
    image0, image1 = images(1, (48, 48))
    mask = torch.ones(1, 48, 48, dtype=torch.bool)
    mask[:, 40:] = False

    def confidence(m, one, other):
        x0, x1 = m.attend(*m.features_of_pair(one, other, mask, mask))
        return m.log_confidence(x0, x1).exp()

    with torch.no_grad():
        want = confidence(model, image0, image1)
        with torch.autocast("cpu", dtype=dtype):
            mixed = confidence(model, image0, image1)
        half = model.to(dtype)
        got = confidence(half, image0.to(dtype), image1.to(dtype))
        matches = half(image0.to(dtype), image1.to(dtype), mask, mask, threshold=0.0)
    bound = 0.02 if dtype == torch.float16 else 0.15
    assert (got - want).abs().max() < bound and (mixed - want).abs().max() < bound
    assert (got[:, 30:] == 0).all() and (got[..., 30:] == 0).all()
    assert len(matches) and matches.keypoints1.isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name):
    model = make_matcher(name, Linear, fine=False).eval()
    with torch.no_grad():
        matches = model(torch.rand(1, 1, 64, 64), torch.rand(1, 1, 64, 72), threshold=0.0)
    assert matches.std is None
    if name.startswith("tiny"):
        count = sum(p.numel() for p in model.parameters())
        assert count == {"tiny": 339_824, "tiny-context": 192_368}[name]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pe": "legacy"}, "pe must be 'fixed' or 'released', got 'legacy'"),
        ({"border": -1}, "border and layers must be 0 or more, got -1 and 4"),
        ({"match": "ot"}, "match must be 'dual_softmax' or 'sinkhorn', got 'ot'"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"backbone": "patch"}, "This PatchStem has no fine map at 1/2"),
        ({"widths": (8, 12, 18)}, "channels in fours .sine and cosine of x and y., got 18"),
    ],
)
def test_messages_of_options(build, options, words):
    with pytest.raises(ValueError, match=words):
        build(**options)


def test_messages_of_inputs(build, images):
    model = build(fine=False)
    image0, image1 = images()
    with pytest.raises(ValueError, match=r"image0 must be floating .* got torch.uint8 \(1, 1, 40"):
        model(image0.to(torch.uint8), image1)
    with pytest.raises(ValueError, match=r"image1 must be .* got torch.float32 \(1, 2, 40, 48\)"):
        model(image0, image1.expand(-1, 2, -1, -1))
    with pytest.raises(ValueError, match="as many images 0 as images 1, got 1 and 2"):
        model(image0, torch.cat([image1, image1]))
    with pytest.raises(ValueError, match="mask1 must be bool, True = keep"):
        model(image0, image1, None, torch.ones(1, 3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="Refinement needs fine maps"):
        x0, x1 = model.attend(*model.features_of_pair(image0, image1))
        model.refine(x0, x1, model.coarse_matches(x0, x1))
    with pytest.raises(ValueError, match="variant must be one of loftr, small, tiny, tiny-context"):
        make_matcher("big", Linear)
