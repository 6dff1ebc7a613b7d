"""Every stage against numbers made with the authors' code, float64 and float32."""

import json
from functools import partial

import pytest
import torch

from isoattn.core import Linear, Softmax
from isoattn.matching.models import ImageFeatures, Matcher, PairTransformer, ResNetFPN, make_matcher
from isoattn.matching.models.cells import cell_points, inner_cells
from isoattn.matching.models.coarse import CoarseMatching
from isoattn.matching.models.fine import FinePreprocess, expectation, gather_windows
from isoattn.matching.models.nearest import CellMatches, nearest, select
from isoattn.matching.models.positions import sinusoid
from isoattn.matching.weights import load_weights

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
RELEASED = partial(Linear, eps=1e-6)


@DTYPES
@pytest.mark.parametrize("kind", ["fixed", "released"])
def test_positions(golden, kind, dtype):
    case = golden("loftr_posenc")
    o = case.options
    table = sinusoid((o["H"], o["W"]), o["d_model"], kind, dtype=dtype)
    got = table.view(o["H"], o["W"], -1).permute(2, 0, 1)
    name = {"fixed": "pe_fixed", "released": "pe_bug"}[kind]
    case.check(got, f"out.{name}")
    torch.testing.assert_close(got.float(), case.tensors[f"out.{name}_official_f32"])


@DTYPES
@pytest.mark.parametrize("name", ["full", "linear", "linear_masks"])
def test_transformer_and_its_gradients(golden, name, dtype):
    case = golden(f"loftr_transformer_{name}")
    o = case.options
    attention = Softmax if o["attention"] == "full" else RELEASED
    kinds = o["layer_names"]
    model = PairTransformer([attention] * len(kinds), o["d_model"], o["nhead"], kinds).to(dtype)
    model.load_state_dict(case.role("w", dtype))
    inputs = case.role("in", dtype)
    x0, x1 = (inputs[f"feat{i}"].requires_grad_() for i in (0, 1))
    out0, out1 = model(x0, x1, inputs.get("mask0"), inputs.get("mask1"))
    case.check(out0, "out.feat0")
    case.check(out1, "out.feat1")
    ((out0 * inputs["grad_out0"]).sum() + (out1 * inputs["grad_out1"]).sum()).backward()
    case.check(x0.grad, "grad.feat0")
    case.check(x1.grad, "grad.feat1")


def features(case, dtype):
    inputs = case.role("in", dtype)
    found = []
    for number in (0, 1):
        mask = inputs.get(f"mask{number}")
        grid = tuple(case.options[f"hw{number}_c"])
        flat = None if mask is None else mask.flatten(1)
        found.append(ImageFeatures(inputs[f"feat{number}"], grid, flat, None))
    return found


def coarse_matching(case):
    o = case.options
    return CoarseMatching(
        o["match_type"],
        temperature=o["temperature"],
        iterations=o["skh_iters"],
        prefilter=o["skh_prefilter"],
    ).eval()


@DTYPES
@pytest.mark.parametrize("name", ["dualsoftmax", "dualsoftmax_masks", "sinkhorn"])
@pytest.mark.parametrize("form", ["dense", "as used"])
def test_coarse_matching(golden, name, form, dtype):
    case = golden(f"loftr_coarse_{name}")
    o = case.options
    x0, x1 = features(case, dtype)
    matching = coarse_matching(case).to(dtype)
    if form == "dense":
        found = nearest(matching.log_confidence(x0, x1))
    else:
        found = matching.nearest(x0, x1)
    batch = o["B"]
    inner = (inner_cells(x.mask, batch, x.grid, o["border_rm"]) for x in (x0, x1))
    cells = select(found, o["thr"], *inner)
    case.check(cells.batch, "out.b_ids")
    case.check(cells.cell0, "out.i_ids")
    case.check(cells.cell1, "out.j_ids")
    case.check(cells.confidence, "out.mconf")
    inputs = case.role("in", dtype)
    for number, cell, x in ((0, cells.cell0, x0), (1, cells.cell1, x1)):
        points = cell_points(cell, x.grid, dtype)
        if o["scales"]:
            points = points * inputs[f"scale{number}"][cells.batch]
        case.check(points, f"out.mkpts{number}_c")


@DTYPES
@pytest.mark.parametrize("name", ["dualsoftmax", "dualsoftmax_masks", "sinkhorn"])
def test_confidence_matrix(golden, name, dtype):
    """The released code leaves up to 0.001 on padded pairs; here they have exactly 0."""
    case = golden(f"loftr_coarse_{name}")
    x0, x1 = features(case, dtype)
    confidence = coarse_matching(case).to(dtype).log_confidence(x0, x1).exp()
    if x0.mask is None:
        case.check(confidence, "out.conf_matrix")
        return
    pair = x0.mask[:, :, None] & x1.mask[:, None, :]
    case.check(confidence, "out.conf_matrix", pair)
    assert (confidence[~pair] == 0).all()


@DTYPES
def test_assignment_with_dustbins(golden, dtype):
    """The stored matrix is the released one after its prefilter, which writes into it."""
    case = golden("loftr_coarse_sinkhorn")
    matching, (x0, x1) = coarse_matching(case).to(dtype), features(case, dtype)
    assignment = matching.log_assignment(x0, x1).exp()
    assignment[:, :-1, :-1] = matching.log_confidence(x0, x1).exp()
    case.check(assignment, "out.assignment_with_bins")


@DTYPES
def test_fine(golden, dtype):
    case = golden("loftr_fine")
    o, w, inputs = case.options, case.role("w", dtype), case.role("in", dtype)
    preprocess = FinePreprocess(o["d_coarse"], o["d_fine"]).to(dtype)
    fine = {k.removeprefix("fine_preprocess."): v for k, v in w.items() if "fine_preprocess" in k}
    preprocess.load_state_dict(fine)
    layers = {k.removeprefix("loftr_fine."): v for k, v in w.items() if "loftr_fine" in k}
    heads = o.get("nhead", 2)
    transformer = PairTransformer([RELEASED] * 2, o["d_fine"], heads, ["self", "cross"]).to(dtype)
    transformer.load_state_dict(layers)
    grid, batch = tuple(o["hw_c"]), inputs["b_ids"]
    windows = []
    for number, cell in ((0, inputs["i_ids"]), (1, inputs["j_ids"])):
        fine_map, coarse = inputs[f"feat_f{number}"], inputs[f"feat_c{number}"]
        windows.append(preprocess(fine_map, coarse, batch, cell, grid))
        case.check(windows[-1], f"mid.window{number}")
    found = expectation(*transformer(*windows))
    case.check(torch.cat([found.expectation, found.std[:, None]], 1), "out.expec_f")
    case.check(inputs["mkpts1_c"] + found.offset(), "out.mkpts1_f")


def released_matcher(case, dtype):
    o = case.options
    widths = tuple(o["resnetfpn"]["block_dims"])
    model = Matcher(
        RELEASED,
        widths=widths,
        heads=o["coarse"]["nhead"],
        layers=len(o["coarse"]["layer_names"]),
        pe="fixed" if o["coarse"]["temp_bug_fix"] else "released",
        threshold=o["match_coarse"]["thr"],
        border=o["match_coarse"]["border_rm"],
    )
    load_weights(model, case.role("w", dtype), pe="released")
    return model.to(dtype).eval()


@DTYPES
def test_whole_matcher(golden, dtype):
    case = golden("loftr_full_bugpos")
    model = released_matcher(case, dtype)
    image0, image1 = (case.role("in", dtype)[f"image{i}"] for i in (0, 1))
    with torch.no_grad():
        maps = model.backbone(image0)
        case.check(maps.coarse, "mid.coarse_backbone")
        x0, x1 = model.attend(*model.features_of_pair(image0, image1))
        case.check(x0.tokens, "mid.coarse_feat0")
        case.check(model.log_confidence(x0, x1).exp(), "out.conf_matrix")
        matches = model(image0, image1)
        cells = CellMatches(matches.batch_index, matches.cell0, matches.cell1, matches.confidence)
        refined = model.refine(x0, x1, cells)
    case.check(cells.batch, "out.b_ids")
    case.check(cells.cell0, "out.i_ids")
    case.check(cells.cell1, "out.j_ids")
    case.check(matches.confidence, "out.mconf")
    case.check(matches.keypoints0, "out.mkpts0_f")
    case.check(matches.keypoints1, "out.mkpts1_f")
    case.check(torch.cat([refined.expectation, refined.std[:, None]], 1), "out.expec_f")
    torch.testing.assert_close(matches.std, refined.std)


def test_published_names_and_size(golden_folder):
    keys = json.loads((golden_folder / "keys_loftr.json").read_text())["keys"]
    model = make_matcher("loftr", Linear)
    assert {n: list(x.shape) for n, x in model.state_dict().items()} == keys
    assert len(keys) == 211
    assert sum(p.numel() for p in model.parameters()) == 11_561_456
    parts = {n: sum(p.numel() for p in m.parameters()) for n, m in model.named_children()}
    rounded = {n: round(count / 1e6, 3) for n, count in parts.items() if count}
    assert rounded == {
        "backbone": 5.916,
        "loftr_coarse": 5.251,
        "fine_preprocess": 0.066,
        "loftr_fine": 0.329,
    }


def test_windows_of_golden_are_those_of_an_unfolded_map():
    generator = torch.Generator().manual_seed(0)
    fine = torch.randn(2, 3, 13, 10, generator=generator)
    grid = (4, 3)
    unfolded = torch.nn.functional.unfold(fine, 5, stride=4, padding=2)
    want = unfolded.view(2, 3, 25, 12).permute(0, 3, 2, 1)
    batch, cell = torch.arange(2).repeat_interleave(12), torch.arange(12).repeat(2)
    assert torch.equal(gather_windows(fine, batch, cell, grid), want.reshape(24, 25, 3))


def test_fine_map_rests_on_every_second_pixel():
    assert ResNetFPN((4, 8, 12)).eval()(torch.zeros(1, 1, 41, 50), fine=True).fine.shape == (
        1,
        4,
        21,
        25,
    )
