"""Trackers read the run; the run never needs one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from isoattn.apps.base.errors import UserError
from isoattn.apps.base.run_folder import RunFolder
from isoattn.apps.base.trackers import WandbOptions, build_trackers, has_wandb_key


def _inspect(run, *options):
    """What W&B's own reader finds in the one offline run below a folder."""
    (folder,) = sorted((run / "wandb").glob("offline-run-*"))
    (file,) = folder.glob("run-*.wandb")
    done = subprocess.run(
        [Path(sys.executable).parent / "wandb", "leet", "inspect", *options, "--json", str(file)],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "WANDB_MODE"},
    )
    assert done.returncode == 0, done.stderr
    if "--summary" in options:
        return [json.loads(done.stdout)]
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def _find(value, key):
    """Every value under a key, at any depth."""
    if isinstance(value, dict):
        for name, child in value.items():
            if name == key:
                yield child
            yield from _find(child, key)
    elif isinstance(value, list):
        for child in value:
            yield from _find(child, key)


@pytest.fixture
def silent(monkeypatch):
    """No server is ever asked."""

    def refuse(*args, **kwargs):
        raise AssertionError("asked a server")

    monkeypatch.setattr("socket.socket.connect", refuse)


def test_offline_run_is_readable(fit, tmp_path):
    result = fit(
        "--tracker=wandb-offline",
        "--run.name=a",
        "--wandb.group=study-1",
        "--wandb.tags=[mine]",
        "--wandb.id=cell1",
        "--model.optim.lr=0.007",
        "--trainer.log_every_n_steps=1",
    )
    assert result.code == 0, result.err
    assert "wandb sync" in result.out
    run = Path("runs/vision/a")
    records = _inspect(run)
    text = json.dumps(records)
    history = [r for r in records if r.get("type") == "history"]
    assert any("val/accuracy" in json.dumps(r) for r in history)
    assert any("train/loss_step" in json.dumps(r) for r in history)
    (summary,) = _inspect(run, "--summary")
    assert "study-1" in text and "cell1" in text
    for tag in ("mine", "vision", "CrossCovariance", "DigitsData"):
        assert tag in text, tag
    assert "train" in list(_find(records, "job_type")) + list(_find(records, "jobType"))
    assert 0.007 in list(_find(summary, "lr")) or "0.007" in json.dumps(summary)
    assert "val/accuracy" in json.dumps(summary)
    saved = yaml.safe_load((run / "config.yaml").read_text())
    config = summary.get("config", summary)
    assert saved["model"]["optim"]["lr"] == 0.007
    assert "feature_map" not in json.dumps(config) and "temperature_init" in json.dumps(config)


def test_two_runs_in_one_process_are_two(fit):
    """Case 6 of the public ones: the second took the first one's id and config."""
    for name, rate in (("a", 0.001), ("b", 0.002)):
        argv = ("--tracker=wandb-offline", f"--run.name={name}", f"--model.optim.lr={rate}")
        assert fit(*argv).code == 0
    files = [next((Path("runs/vision") / n).rglob("run-*.wandb")) for n in "ab"]
    assert files[0].name != files[1].name
    rates = [json.dumps(_inspect(Path("runs/vision") / n, "--summary")) for n in "ab"]
    assert "0.001" in rates[0] and "0.002" not in rates[0]
    assert "0.002" in rates[1] and "0.001" not in rates[1]
    assert "WANDB_MODE" not in os.environ


def test_auto_without_a_key_keeps_files_and_says_how(fit, silent):
    result = fit("--run.name=a")
    assert result.code == 0
    assert "no W&B key" in result.out and "wandb-offline" in result.out
    assert not Path("runs/vision/a/wandb").exists()


def test_auto_never_raises(fit, monkeypatch, silent):
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    import wandb

    def fail(**kwargs):
        raise wandb.errors.CommError("no route\nto the server")

    monkeypatch.setattr(wandb, "init", fail)
    result = fit("--run.name=a")
    assert result.code == 0, result.err
    assert "W&B did not start: no route" in result.out
    result = fit("--run.name=b", "--tracker=wandb")
    assert result.code == 1 and result.short and "no route" in result.err


def test_wandb_without_a_key_is_a_clear_error(fit, silent):
    result = fit("--tracker=wandb", "--run.name=a")
    assert result.code == 2 and result.short
    for words in ("wandb login", "WANDB_API_KEY", "wandb-offline"):
        assert words in result.err


@pytest.mark.parametrize("where", ["nowhere", "environment", "netrc", "other host", "broken"])
def test_key_is_looked_for_where_wandb_does(no_key, monkeypatch, tmp_path, silent, where):
    home = tmp_path / "home"
    home.mkdir()
    machine = {"other host": "example.org"}.get(where, "api.wandb.ai")
    if where == "environment":
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    elif where == "broken":
        (home / ".netrc").write_text("machine\n")
    elif where != "nowhere":
        (home / ".netrc").write_text(f"machine {machine}\n  login user\n  password {'k' * 40}\n")
        (home / ".netrc").chmod(0o600)
    assert has_wandb_key() is (where in ("environment", "netrc"))


def test_key_of_an_own_server(no_key, monkeypatch, tmp_path):
    file = tmp_path / "netrc"
    file.write_text("machine wandb.example.org login user password abc\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))
    assert not has_wandb_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080")
    assert has_wandb_key()


def test_tensorboard(fit):
    result = fit("--tracker=tensorboard", "--run.name=a")
    assert result.code == 0, result.err
    assert "tensorboard --logdir" in result.out
    assert list(Path("runs/vision/a/tensorboard").glob("events.out.tfevents.*"))


def test_csv_and_none_leave_the_run_folder_alone(fit):
    for name in ("csv", "none"):
        assert fit(f"--tracker={name}", f"--run.name={name}").code == 0
        names = sorted(p.name for p in Path("runs/vision", name).iterdir())
        assert names == ["checkpoints", "config.yaml", "metrics.csv", "result.json"]


def test_a_logger_of_the_users_own_is_kept(fit):
    result = fit("--run.name=a", "--trainer.logger=CSVLogger", "--trainer.logger.save_dir=mine")
    assert result.code == 0, result.err
    assert list(Path("mine").rglob("metrics.csv")) and Path("runs/vision/a/metrics.csv").is_file()


def test_offline_environment_allows_wandb_without_a_key(no_key, monkeypatch, tmp_path):
    run = RunFolder(tmp_path, "x")
    with pytest.raises(UserError, match="needs an account"):
        build_trackers("wandb", WandbOptions(), run, {}, [])
