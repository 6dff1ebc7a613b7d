"""isoattn matching: fit, resume, swap, test, predict, and what it refuses."""

import csv
import json
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from isoattn.apps.base.shipped import shipped
from isoattn.apps.base.study import build, resolve
from isoattn.apps.matching.app import MatchingCLI
from isoattn.core import swappable_layers
from isoattn.core.training.checkpoint import read_checkpoint
from isoattn.matching.data.photos import TRAIN_PHOTOS, package_file
from isoattn.matching.files import read_matches, stored_pairs
from isoattn.matching.matcher_module import MatcherModule

from .conftest import SMALL


def weights(run):
    return read_checkpoint(Path(run) / "checkpoints" / "last.ckpt")["state_dict"]


def result(run):
    return json.loads((Path(run) / "result.json").read_text())


def table(file):
    with Path(file).open(newline="") as stream:
        return list(csv.DictReader(stream))


def photo(folder, name, shift=0):
    """Two overlapping parts of a packaged photo."""
    folder.mkdir(parents=True, exist_ok=True)
    with Image.open(package_file(*TRAIN_PHOTOS["astronaut"])) as image:
        image.crop((100 + shift, 50, 228 + shift, 146)).save(folder / name)
    return folder / name


@pytest.mark.parametrize("name", shipped("matching", "configs"))
def test_shipped_configs_are_whole(name):
    """Each begins with its command and what to expect, and every option exists."""
    first, second, *_ = shipped("matching", "configs")[name].read_text().splitlines()
    assert first.startswith("# isoattn matching")
    assert name == "tiny" or f"--config {name}" in first
    assert second.startswith("# Expect: ") and "MEASURE" not in second
    config = resolve(MatchingCLI, ["fit", "--config", name])
    assert config["data"]["class_path"].endswith(".PairData")
    assert build(MatchingCLI, config).datamodule.batch_size >= 1  # sources are made, not read


@pytest.mark.parametrize("name", shipped("matching", "configs/attention"))
def test_presets_of_the_attention(name):
    config = resolve(MatchingCLI, ["fit", f"--model.attention={name}"])
    assert config["model"]["attention"]["class_path"].startswith("isoattn.core.")


def test_data_configs_go_on_top_of_a_model():
    config = resolve(MatchingCLI, ["fit", "--config=loftr_outdoor", "--config=megadepth"])
    assert config["model"]["network"]["init_args"]["pe"] == "released"
    assert config["data"]["init_args"]["batch_size"] == 64
    config = resolve(MatchingCLI, ["fit", "--config=loftr_indoor", "--config=hpatches"])
    assert config["model"]["network"]["init_args"]["layers"] == 8
    assert config["model"]["network"]["init_args"]["threshold"] == 0.1


def test_self_cross_and_fine_are_chosen_apart():
    """The defaults of one place never reach another."""
    argv = ["fit", "--config=small", "--model.attention_cross=softmax"]
    argv += ["--model.attention_fine=Linear", "--model.attention_fine.feature_map=relu"]
    model = build(MatchingCLI, resolve(MatchingCLI, argv)).model
    cores = [site.core for site in swappable_layers(model.network).values()]
    kinds = [type(core).__name__ for core in cores]
    assert kinds == ["Linear", "Softmax"] * 2 + ["Linear", "Linear"]
    assert cores[0].eps == 1e-6 and cores[-1].feature_map == "relu" and cores[-1].eps == 0


RANDOM = (
    *SMALL,
    "--model.attention=Favor",
    "--model.attention.features=8",
    "--model.attention_cross=Softmax",
    "--model.network.backbone=resnet_fpn",
    "--model.network.fine=true",
    "--trainer.max_epochs=3",
)


def test_a_run_resumes_to_the_straight_run(isoattn, monkeypatch):
    """Pairs drawn anew each epoch, fine windows drawn each step, random features: all at once."""
    assert isoattn("fit", *RANDOM, "--run.name=a").code == 0

    class Stop(Exception):
        pass

    for name, hook, when in (
        ("b", "on_train_batch_start", lambda t: t.global_step == 4),
        ("c", "on_train_epoch_start", lambda t: t.current_epoch == 2),
    ):

        def die(self, *args, when=when):
            if when(self.trainer):
                raise Stop

        with monkeypatch.context() as patch:
            patch.setattr(MatcherModule, hook, die)
            with pytest.raises(Stop):
                isoattn("fit", *RANDOM, f"--run.name={name}", "--checkpoint.every_n_steps=1")
        done = isoattn("fit", f"--ckpt_path=runs/matching/{name}/checkpoints/last.ckpt")
        assert done.code == 0, done.err
        first, second = weights("runs/matching/a"), weights(f"runs/matching/{name}")
        assert first.keys() == second.keys()
        assert all(torch.equal(first[k], second[k]) for k in first)
        first, second = result("runs/matching/a"), result(f"runs/matching/{name}")
        assert first["batch_hashes"] == second["batch_hashes"]
        assert len(set(first["batch_hashes"])) == 3
        assert first["metrics"] == second["metrics"]


def test_what_a_run_says_and_records(small_run):
    kept = result(small_run)
    assert 0 < kept["attention_flops"] < kept["forward_flops"]
    assert "val/average_precision_1cell" in kept["metrics"]
    assert yaml.safe_load((small_run / "config.yaml").read_text())["model"]["network"]


def test_a_test_leaves_tables_and_pictures(isoattn, best):
    done = isoattn("test", f"--ckpt_path={best}", "--output=out", "--pictures=2")
    assert done.code == 0, done.err
    rows = table("out/pairs.csv")
    assert len(rows) == 6 and "test/precision_1cell" in done.out
    assert {"matches", "truth", "corner_error", "rotation", "texture"} <= rows[0].keys()
    groups = {(r["stratum"], r["group"]) for r in table("out/strata.csv")}
    assert {stratum for stratum, _ in groups} == {"rotation", "scale", "overlap", "texture"}
    kept = json.loads(Path("out/result.json").read_text())
    assert "test/homography_auc_3" in kept["metrics"]
    pictures = sorted(Path("out/matches").glob("*.png"))
    assert len(pictures) == 2
    with Image.open(pictures[0]) as image:
        assert image.width > 96


def test_other_data_are_scored_with_a_checkpoint(isoattn, best, tmp_path):
    """The experiment is the same; what it was trained on may not differ."""
    photo(tmp_path / "views", "a.png")
    photo(tmp_path / "views", "b.png", shift=16)
    lines = "a.png b.png 1 0 -16 0 1 0 0 0 1\nb.png a.png\n"
    (tmp_path / "views" / "pairs.txt").write_text(lines)
    done = isoattn("test", "views/pairs.txt", f"--ckpt_path={best}", "--output=out")
    assert done.code == 0, done.err
    (row,) = table("out/pairs.csv")  # of the other pair nothing is known
    assert row["name0"] == "a.png" and int(row["truth"]) > 100
    real = isoattn("test", "--config=motorcycle", f"--ckpt_path={best}", "--output=real")
    assert real.code == 0, real.err
    assert "test/pose_auc_5" in real.out and "test/epipolar_precision" in real.out
    (tmp_path / "views" / "bare.txt").write_text("b.png a.png\n")
    bare = isoattn("test", "views/bare.txt", f"--ckpt_path={best}")
    assert bare.code == 2 and bare.short and "None of the 1 test pairs has ground truth" in bare.err
    refused = isoattn("test", f"--ckpt_path={best}", "--data.source.train_pairs=8")
    assert refused.code == 2 and refused.short


def test_listed_pairs_are_predicted(isoattn, best, tmp_path):
    photo(tmp_path / "views/deep", "a.png")
    photo(tmp_path / "views", "b.png", shift=16)
    (tmp_path / "pairs.txt").write_text("deep/a.png b.png\nb.png deep/a.png\n")
    done = isoattn(
        "predict",
        "pairs.txt",
        "views",
        f"--ckpt_path={best}",
        "--output=m.h5",
        "--pictures=1",
    )
    assert done.code == 0, done.err
    assert stored_pairs("m.h5") == [("b.png", "deep-a.png"), ("deep-a.png", "b.png")]
    rows = table("m.csv")
    assert [(r["name0"], r["name1"]) for r in rows] == [
        ("deep/a.png", "b.png"),
        ("b.png", "deep/a.png"),
    ]
    stored = read_matches("m.h5", "deep/a.png", "b.png")
    assert len(stored.scores) == int(rows[0]["matches"])
    assert len(list(Path("m").glob("*.png"))) == 1


def test_own_photographs_are_trained_on(isoattn, tmp_path):
    for number in range(4):
        photo(tmp_path / "photos", f"{number}.png", shift=20 * number)
    done = isoattn("fit", "photos", *SMALL, "--run.name=a")
    assert done.code == 0, done.err
    assert "FolderPairs" in done.err and "isoattn matching test --ckpt_path" in done.out


def test_the_attention_is_swapped_with_its_weights_kept(isoattn, best):
    done = isoattn("test", f"--init_from={best}", "--model.attention=softmax")
    assert done.code == 0, done.err
    assert "loaded" in done.err and "fresh" not in done.err
    refused = isoattn("fit", f"--ckpt_path={best}", "--model.attention_self=Mean")
    assert refused.code == 2 and refused.short
    assert "model.attention_self: nothing in the checkpoint, Mean" in refused.err


def test_published_weights_need_their_position_encoding(isoattn, published):
    own = ("--config=motorcycle", "--data.test_source.resize.longer=64", "--output=out")
    done = isoattn("test", "--config=loftr_outdoor", *own, f"--init_from={published}")
    assert done.code == 0, done.err
    assert "sha256" in done.err
    plain = ("--config=loftr_outdoor", "--weights_pe=null", *own, f"--init_from={published}")
    refused = isoattn("test", *plain)
    assert refused.code == 2 and refused.short
    assert "does not say which position encoding" in refused.err
    assert "--weights_pe released" in refused.err
    other = isoattn("test", *plain, "--weights_pe=fixed")
    assert other.code == 2 and other.short and "--model.network.pe" in other.err
    small = isoattn("test", "--config=tiny", "--weights_pe=fixed", f"--init_from={published}")
    assert small.code == 2 and small.short and "--config loftr_outdoor" in small.err


@pytest.mark.parametrize(
    "argv, text",
    [
        (("--config=megadepth", "--config=tiny", "--data.source.root=nowhere"), "root"),
        (("--config=scannet",), "scannet"),
        (("nowhere",), "There is no nowhere. Give a list of pairs"),
        (("--data.source.rotation=3",), "rotation"),
        (("--model.network.width=3",), "widths"),
        (("--model.network.heads=5",), "heads"),
        (("--model.attention_cross=Softmaxx",), "Softmax"),
        (("--model.network.backbone=patches",), "patch"),
        (("--model.network.fine=true",), "fine"),
    ],
)
def test_what_cannot_be_is_said_shortly(isoattn, argv, text):
    refused = isoattn("fit", *argv, "--trainer.max_epochs=1", "--tracker=none")
    assert refused.code == 2, refused.err
    assert refused.short and text in refused.err


def test_the_help_is_short_and_names_what_ships(isoattn):
    for argv in ((), ("--help",)):
        done = isoattn(*argv)
        assert done.code == 0 and "loftr_outdoor" in done.out
        assert max(map(len, done.out.splitlines())) <= 125
