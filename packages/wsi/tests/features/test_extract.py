"""From slides to files: what is written, what is skipped, what fails and why."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from isoattn.wsi.features import (
    EncoderOptions,
    ExtractOptions,
    SlideOutcome,
    build_encoder,
    extract_slide,
    extract_slides,
    read_features,
    read_mpp_table,
)
from isoattn.wsi.features.config import configuration, configuration_hash
from isoattn.wsi.features.extract import pick_device
from isoattn.wsi.slides import Slide, TilingOptions, find_tissue, tile_slide

OPTIONS = ExtractOptions(
    tiling=TilingOptions(size=128), encoder=EncoderOptions("hed_statistics"), overlay=False
)


def with_(**changes: object) -> ExtractOptions:
    from dataclasses import replace

    return replace(OPTIONS, **changes)  # type: ignore[arg-type]


def test_the_file(made: Path, tmp_path: Path) -> None:
    report = extract_slides(made / "good.tif", tmp_path, with_(overlay=True, batch_size=7))
    assert len(report.of("done")) == 1 and report.tiles > 20 and report.tiles_per_second > 0
    found = read_features(tmp_path / "features" / "good.h5")
    slide = Slide(made / "good.tif")
    grid = tile_slide(slide, find_tissue(slide), OPTIONS.tiling)
    assert np.array_equal(found.coords_N2, grid.coords_N2)
    assert (found.layout, found.side, found.mpp, found.name) == ("isoattn", 128, 0.5, "good")
    tiles = np.stack([slide.read(x, y, 128, 0.5).pixels_HW3 for x, y in grid.coords_N2.tolist()])
    expected = build_encoder(OPTIONS.encoder)(torch.from_numpy(tiles))
    torch.testing.assert_close(found.features_ND, expected)
    facts = found.attributes
    assert facts["patch_size_level0"] == 128 and facts["overlap"] == 0
    assert facts["encoder"] == "hed_statistics" and facts["mpp_source"] == "metadata"
    assert (facts["level0_magnification"], facts["target_magnification"]) == (20, 20)
    assert json.loads(facts["config"])["tiling"]["stride"] == 128
    with h5py.File(tmp_path / "features" / "good.h5") as file:
        assert set(file["tiles"]) == {"coords", "status", "coverage", "tissue"}
        assert not file["tiles/status"][:].any() and (file["tiles/coverage"][:] == 1).all()
    with h5py.File(tmp_path / "patches" / "good_patches.h5") as file:
        assert np.array_equal(file["coords"][:], grid.coords_N2)
    assert (tmp_path / "overlays" / "good.png").stat().st_size > 1000
    assert not list(tmp_path.rglob("*.partial"))


def test_done_slides_are_skipped_and_changed_ones_done_again(made: Path, tmp_path: Path) -> None:
    slide = tmp_path / "slides" / "good.tif"
    slide.parent.mkdir()
    shutil.copy(made / "good.tif", slide)
    out = tmp_path / "out"

    def status(options: ExtractOptions = OPTIONS) -> str:
        return extract_slides(slide, out, options).outcomes[0].status

    assert [status(), status()] == ["done", "skipped"]
    assert status(with_(batch_size=3, max_damaged=0.05)) == "skipped"  # speed does not matter
    assert status(with_(tiling=TilingOptions(size=64))) == "done"
    assert status() == "done"
    shutil.copy(made / "steps.tif", slide)  # another picture under the same name
    assert status() == "done"
    (out / "features" / "good.h5").write_bytes(b"damaged")
    assert status() == "done"


def test_the_hash_covers_what_decides_the_features(made: Path) -> None:
    facts = {"encoder": "a"}
    slide = Slide(made / "good.tif")
    base = configuration_hash(configuration(slide, OPTIONS, facts))
    others = [
        configuration(slide, OPTIONS, {"encoder": "b"}),
        configuration(slide, with_(tiling=TilingOptions(size=128, stride=64)), facts),
        configuration(Slide(made / "good.tif", mpp_override=0.25), OPTIONS, facts),
        configuration(Slide(made / "nompp.tif", mpp_override=0.5), OPTIONS, facts),
    ]
    assert len({base, *map(configuration_hash, others)}) == 5
    explicit = configuration(slide, with_(tiling=TilingOptions(size=128, stride=128)), facts)
    assert configuration_hash(explicit) == base


def test_a_damaged_tile_is_counted(made: Path, tmp_path: Path) -> None:
    outcome = extract_slides(made / "corrupt.tif", tmp_path, with_(max_damaged=0.2)).outcomes[0]
    whole = extract_slides(made / "good.tif", tmp_path, OPTIONS).outcomes[0]
    assert (outcome.status, outcome.damaged, outcome.tiles) == ("done", 4, whole.tiles - 4)
    found, good = (read_features(tmp_path / "features" / f"{n}.h5") for n in ("corrupt", "good"))
    assert found.coords_N2 is not None and good.coords_N2 is not None
    lost = {(256, 256), (384, 256), (256, 384), (384, 384)}
    kept = [tuple(c) not in lost for c in good.coords_N2.tolist()]
    assert np.array_equal(found.coords_N2, good.coords_N2[kept])
    torch.testing.assert_close(found.features_ND, good.features_ND[kept])
    with h5py.File(tmp_path / "features" / "corrupt.h5") as file:
        bad = file["tiles/status"][:] == 1
        assert {tuple(c) for c in file["tiles/coords"][:][bad].tolist()} == lost
        assert (file["tiles/coverage"][:][bad] == 0).all()


def test_too_much_damage_fails_the_slide(made: Path, tmp_path: Path) -> None:
    outcome = extract_slides(made / "corrupt.tif", tmp_path, with_(overlay=True)).outcomes[0]
    assert outcome.status == "failed" and outcome.error is not None
    assert "DamagedSlide: At least " in outcome.error and "(256, 256)" in outcome.error
    assert "max_damaged allows 5.0%" in outcome.error
    assert not list((tmp_path / "features").iterdir())
    assert (tmp_path / "overlays" / "corrupt.png").is_file()


def test_a_slide_without_tiles_leaves_the_picture_that_its_error_points_at(
    made: Path, tmp_path: Path
) -> None:
    tiling = TilingOptions(size=1024, min_tissue=1.0)
    options = with_(tiling=tiling, overlay=True)
    outcome = extract_slides(made / "good.tif", tmp_path, options).outcomes[0]
    assert outcome.error is not None and "Look at the overlay" in outcome.error
    assert (tmp_path / "overlays" / "good.png").is_file()


def test_one_bad_slide_does_not_stop_the_others(made: Path, tmp_path: Path) -> None:
    slides = tmp_path / "slides"
    slides.mkdir()
    for name in ("good.svs", "nompp.tif", "trunc.svs"):
        shutil.copy(made / name, slides)
    (slides / "zero.tif").touch()
    seen: list[tuple[str, int, int]] = []

    def progress(outcome: SlideOutcome, done: int, total: int) -> None:
        seen.append((outcome.slide, done, total))

    report = extract_slides(slides, tmp_path / "out", OPTIONS, progress=progress)
    assert {o.slide: o.status for o in report.outcomes} == {
        "good": "done",
        "nompp": "failed",
        "trunc": "failed",
        "zero": "failed",
    }
    reasons = {o.slide: o.error or "" for o in report.outcomes}
    assert reasons["nompp"].startswith("MissingMpp") and "mpp_override" in reasons["nompp"]
    assert "cut short" in reasons["trunc"] and "0 bytes" in reasons["zero"]
    assert seen == [("good", 1, 4), ("nompp", 2, 4), ("trunc", 3, 4), ("zero", 4, 4)]
    assert "1 slides done, 0 skipped, 3 failed" in str(report) and "tiles/s" in str(report)
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\nnompp.tif,0.5\n")
    again = extract_slides(slides, tmp_path / "out", OPTIONS, mpp_overrides=read_mpp_table(table))
    assert [o.status for o in again.outcomes] == ["skipped", "done", "failed", "failed"]
    facts = read_features(tmp_path / "out" / "features" / "nompp.h5").attributes
    assert facts["mpp_source"] == "override" and facts["level0_mpp"] == 0.5


def test_an_interrupted_slide_leaves_nothing(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = build_encoder(OPTIONS.encoder)
    calls = iter(range(3))

    def encode(tiles: torch.Tensor) -> torch.Tensor:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return torch.zeros(len(tiles), 12)

    monkeypatch.setattr(encoder, "encode", encode)
    with pytest.raises(KeyboardInterrupt):
        extract_slide(Slide(made / "good.tif"), tmp_path, encoder, with_(batch_size=4))
    assert not list((tmp_path / "features").iterdir())


def test_workers_give_the_same_files(made: Path, tmp_path: Path) -> None:
    paths = [made / "good.tif", made / "steps.tif", made / "trunc.svs"]
    alone = extract_slides(paths, tmp_path / "a", OPTIONS)
    shared = extract_slides(paths, tmp_path / "b", OPTIONS, jobs=2)
    assert [o.status for o in shared.outcomes] == ["done", "done", "failed"]
    assert shared.outcomes[2].error == alone.outcomes[2].error
    for name in ("good", "steps"):
        a, b = (read_features(tmp_path / run / "features" / f"{name}.h5") for run in "ab")
        torch.testing.assert_close(a.features_ND, b.features_ND)
        assert a.attributes["config_hash"] == b.attributes["config_hash"]


def test_mpp_tables(tmp_path: Path, made: Path) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text("slide,value\na,0.5\n")
    with pytest.raises(ValueError, match=r"needs the columns slide and mpp, got \['slide', 'value"):
        read_mpp_table(table)
    table.write_text("slide,mpp\na,half\n")
    with pytest.raises(ValueError, match="line 2: mpp is a number such as 0.5, got 'half'"):
        read_mpp_table(table)
    with pytest.raises(ValueError, match="names 1 slide.s. that are not there, such as 'b'"):
        extract_slides(made / "good.tif", tmp_path, OPTIONS, mpp_overrides={"b": 0.5})


def test_options_are_checked(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_damaged in 0..1; got .* max_damaged=2"):
        ExtractOptions(max_damaged=2)
    with pytest.raises(ValueError, match="jobs is 1 or more, got 0"):
        extract_slides(made / "good.tif", tmp_path, OPTIONS, jobs=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there() -> None:
    assert pick_device("cpu", 3) == torch.device("cpu")
    with pytest.raises(ValueError, match="The device cuda is not there: 0 CUDA devices"):
        pick_device("cuda", 0)
