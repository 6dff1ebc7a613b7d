"""isoattn wsi: synthesize, tile, encode, heatmap and the whole chain, on real files."""

import csv
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from isoattn.apps.main import main
from isoattn.wsi.features import read_features
from isoattn.wsi.slides import Slide

from .conftest import COHORT


def table(file):
    with Path(file).open(newline="") as stream:
        return list(csv.DictReader(stream))


def width(file):
    with Image.open(file) as image:
        return image.size[0]


def test_a_cohort_is_left_as_it_is_and_others_are_refused(isoattn, cohort):
    again = isoattn("synthesize", cohort / "cohort", *COHORT)
    assert again.code == 0 and "12 slides of 12 patients" in again.out
    refused = isoattn("synthesize", cohort / "cohort", *COHORT, "--seed=1")
    assert refused.code == 2 and refused.short
    assert "holds a cohort of other options (seed)" in refused.err


@pytest.mark.parametrize("container, name", [("svs", "S000.svs"), ("dicom", "S000/0.dcm")])
def test_other_containers_and_the_relational_variant(isoattn, container, name):
    done = isoattn(
        "synthesize", "c", "--patients=2", "--slides_per_patient=1", "--sites=1", "--size=512",
        f"--container={container}", "--variant=relational", "--tumour=0.02", "--tile=32",
    )  # fmt: skip
    assert done.code == 0, done.err
    with Slide(Path("c/slides") / name) as slide:
        assert slide.dimensions == (512, 512) and slide.mpp == pytest.approx(0.5)
    done = isoattn(
        "encode", "c/slides", "--out=f", "--encoder=hed_statistics", "--tile=64", "--no_overlay"
    )
    assert done.code == 0 and "2 slides done" in done.out


def test_tile_lists_and_draws(isoattn, cohort):
    done = isoattn("tile", cohort / "cohort" / "slides", "--out=tiles", "--tile=64", "--mpp=1")
    assert done.code == 0, done.err
    assert "12 slides tiled, 0 failed" in done.out and "and 4 more" in done.out
    with h5py.File("tiles/patches/S000_patches.h5") as file:
        assert file["coords"].attrs["patch_size_level0"] == 128
        assert len(file["coords"]) > 3
    assert width("tiles/overlays/S000.png") > 50


def test_tile_leaves_a_picture_of_a_slide_without_tiles(isoattn, cohort):
    slide = cohort / "cohort" / "slides" / "S000.tif"
    none = isoattn("tile", slide, "--out=none", "--tile=500", "--min_tissue=1")
    assert none.code == 1 and "No tile of" in none.err
    assert width("none/overlays/S000.png") > 50


def test_encode_goes_on_where_it_stopped(isoattn, cohort):
    slides = cohort / "cohort" / "slides"
    argv = ("encode", slides, "--out=f", "--encoder=hed_statistics", "--tile=64", "--no_overlay")
    assert isoattn(*argv, "--clam").code == 0
    Path("f/features/S002.h5").unlink()
    again = isoattn(*argv)
    assert again.code == 0 and "1 slides done, 11 skipped, 0 failed" in again.out
    changed = isoattn(*argv[:-2], "--tile=128", "--no_overlay")
    assert "12 slides done" in changed.out
    assert read_features("f/pt_files/S000.pt").layout == "clam"


@pytest.mark.parametrize(
    "argv, text",
    [
        (("nowhere", "--encoder=hed_statistics"), "There is no slide or folder nowhere"),
        (("SLIDES", "--encoder=hed_statistic"), "Did you mean hed_statistics"),
        (("SLIDES", "--encoder=hed_statistics", "--checkpoint=x"), "no option checkpoint"),
        (("SLIDES", "--encoder=hed_statistics", "--device=cuda:7"), "use cpu"),
        (("SLIDES", "--encoder=hed_statistics", "--min_tissue=3"), "lie in 0..1"),
        (("SLIDES", "--encoder=hed_statistics", "--mpp_table=x.csv"), "--mpp_table"),
        (("SLIDES", "--encodr=uni"), "--encoder"),
    ],
)
def test_what_cannot_be_encoded_is_one_short_line(isoattn, cohort, argv, text):
    slides = cohort / "cohort" / "slides"
    given = [slides if token == "SLIDES" else token for token in argv]
    refused = isoattn("encode", *given, "--out=f")
    assert refused.code == 2 and refused.short, refused.err
    assert text in refused.err


def test_a_slide_without_mpp_fails_with_the_remedy(isoattn, real):
    argv = ("--out=f", "--encoder=hed_statistics", "--tile=128", "--no_overlay")
    failed = isoattn("encode", real / "f_nompp.tif", *argv)
    assert failed.code == 1
    assert "MissingMpp" in failed.out and "--mpp_override" in failed.out
    done = isoattn("encode", real / "f_nompp.tif", *argv, "--mpp_override=0.5")
    assert done.code == 0, done.err
    kept = read_features("f/features/f_nompp.h5")
    assert kept.attributes["mpp_source"] == "override" and kept.attributes["level0_mpp"] == 0.5
    Path("mpp.csv").write_text("slide,mpp\nf_nompp.tif,0.25\n")
    again = isoattn("encode", real / "f_nompp.tif", *argv, "--mpp_table=mpp.csv")
    assert "1 slides done" in again.out
    assert read_features("f/features/f_nompp.h5").attributes["level0_mpp"] == 0.25


def test_a_corrupt_tile_is_counted_and_a_limit_stops(isoattn, real):
    argv = ("encode", real / "f_corrupt.tif", "--out=f", "--encoder=hed_statistics")
    done = isoattn(*argv, "--no_overlay")
    assert done.code == 0 and "; 1 damaged tiles" in done.out, done.out + done.err
    with h5py.File("f/features/f_corrupt.h5") as file:
        assert int((file["tiles/status"][:] == 1).sum()) == 1
    failed = isoattn(*argv, "--no_overlay", "--max_damaged=0.001")
    assert failed.code == 1 and "DamagedSlide" in failed.out


def test_a_truncated_slide_does_not_stop_the_others(isoattn, real):
    done = isoattn("tile", real / "f_trunc.svs", real / "t2048.tif", "--out=tiles")
    assert done.code == 1
    assert "1 slides tiled, 1 failed" in done.out and "cut short" in done.err


def test_heat_maps_are_drawn_and_scored(isoattn, cohort, slide_run):
    best = slide_run / "checkpoints" / "best.ckpt"
    done = isoattn("heatmap", f"--ckpt_path={best}", "--out=maps", "--part=all")
    assert done.code == 0, done.err
    rows = {row["slide"]: row for row in table("maps/heatmaps.csv")}
    labels = {row["slide_id"]: row["label"] for row in table(cohort / "cohort" / "labels.csv")}
    assert {name: row["label"] for name, row in rows.items()} == labels
    for name, label in labels.items():
        row, tiles = rows[name], table(f"maps/{name}.csv")
        features = read_features(cohort / "features" / "features" / f"{name}.h5")
        # n values, value i for the tile of coordinate i
        assert [(int(t["x"]), int(t["y"])) for t in tiles] == list(
            map(tuple, features.coords_N2.tolist())
        )
        assert (row["best_iou"] != "") == (label == "positive")
        objects = json.loads(Path(f"maps/{name}.geojson").read_text())["features"]
        assert len(objects) == int(row["tiles"]) == len(tiles)
        assert width(f"maps/{name}.png") > 600
    kept = json.loads(Path("maps/result.json").read_text())
    positive = [row for row in rows.values() if row["best_iou"]]
    assert kept["slides_with_truth"] == len(positive)
    assert kept["mean"]["best_iou"] == pytest.approx(
        np.mean([float(row["best_iou"]) for row in positive]), rel=1e-4
    )
    assert all(float(row["iou"]) <= float(row["best_iou"]) + 1e-9 for row in positive)
    assert "validation slides" in kept["threshold_from"]


def test_the_gradient_and_masks_of_the_users_own(isoattn, cohort, slide_run):
    best = slide_run / "checkpoints" / "best.ckpt"
    done = isoattn(
        "heatmap", f"--ckpt_path={best}", "--out=maps", "--score=gradient", "--threshold=2",
        "--slides", cohort / "cohort" / "slides", "--masks", cohort / "cohort" / "masks",
        "--mask_values", "2", "3", "--part=all", "--most=3",
    )  # fmt: skip
    assert done.code == 0, done.err
    rows = table("maps/heatmaps.csv")
    assert len(rows) == 3 and all(row["best_iou"] for row in rows)  # mimics count too
    kept = json.loads(Path("maps/result.json").read_text())
    assert (kept["threshold"], kept["threshold_from"]) == (2.0, "given")
    assert kept["target"] == "positive"


def test_heat_maps_of_made_bags_need_no_slide(isoattn, bag_run):
    best = bag_run / "checkpoints" / "best.ckpt"
    done = isoattn("heatmap", f"--ckpt_path={best}", "--out=maps", "--most=2")
    assert done.code == 0, done.err
    assert "slides with something to find: tile AUC" in done.out
    assert len(list(Path("maps").glob("*.png"))) == 2


@pytest.mark.parametrize(
    "argv, text",
    [
        (("--only=S999",), "there is no bag 'S999'"),
        (("--slides=nowhere",), "--slides: There is no slide or folder nowhere"),
        (("--masks=nowhere",), "--masks: there is no folder nowhere"),
        (("--score=gradient", "--target=odd"), "the model knows negative, positive"),
        (("--model.attention=Softmax",), "Nystrom in the checkpoint, Softmax"),
    ],
)
def test_what_cannot_be_drawn_is_one_short_line(isoattn, slide_run, argv, text):
    best = slide_run / "checkpoints" / "best.ckpt"
    refused = isoattn("heatmap", f"--ckpt_path={best}", "--out=maps", *argv)
    assert refused.code == 2 and refused.short, refused.err
    assert text in refused.err


@pytest.mark.parametrize(("sites", "least"), [(1, 6), (2, 10), (3, 14)])
def test_the_demo_refuses_too_few_patients_before_it_makes_any(isoattn, sites, least):
    refused = isoattn("demo", "out", f"--patients={least - 1}", f"--sites={sites}")
    assert refused.code != 0 and f"--patients {least} or more" in refused.err
    assert not Path("out").exists()


@pytest.mark.parametrize("verb", ["synthesize", "tile", "encode", "heatmap", "demo"])
def test_every_verb_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as end:
        main(["wsi", verb, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert f"isoattn wsi {verb}" in shown and max(map(len, shown.splitlines())) < 120


def test_the_whole_chain_by_one_command(isoattn):
    argv = (
        "demo", "out", "--patients=12", "--slides_per_patient=1", "--sites=1", "--size=512",
        "--tumour", "0.08", "0.12", "--epochs=1", "--jobs=1",
    )  # fmt: skip
    done = isoattn(*argv)
    assert done.code == 0, done.err
    for step in ("synthesize", "encode", "fit", "test", "heatmap"):
        assert f"$ isoattn wsi {step}" in done.out
    *_, bags, tiles, look = done.out.strip().splitlines()
    assert "test AUC" in bags and "slides with tumour" in tiles
    assert Path(look.split()[-1]).is_file()
    again = isoattn(*argv)
    assert again.code == 0 and "is trained already" in again.out
    assert again.out.strip().splitlines()[-3:] == [bags, tiles, look]


def test_progress_without_a_terminal_is_lines(monkeypatch, capsys):
    from isoattn.apps.wsi import encode

    lines = encode.Lines()
    lines(100, 1, 4)
    assert capsys.readouterr().err == ""  # too early
    monkeypatch.setattr(encode, "EVERY", 0.0)
    lines(50, 2, 4)
    said = capsys.readouterr().err
    assert said.startswith("2/4 slides, 150 tiles, ") and said.endswith(" tiles/s\n")
