"""How a run begins and how it is broken off: names, devices, Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isoattn.apps.main import main

FIT = ["vision", "fit", "--config", "xcit_digits", "--trainer.max_epochs=1"]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_run_that_never_began_leaves_its_name_free(capsys):
    assert main([*FIT, "--run.name=a", "--model.network.heads=5"]) == 2
    assert not Path("runs/vision/a").exists()
    assert main([*FIT, "--run.name=a", "--trainer.limit_train_batches=1"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("devices", ["2", "[0,1]", "auto"])
def test_more_than_one_device_is_refused_before_anything_is_made(devices, capsys):
    assert main([*FIT, f"--trainer.devices={devices}"]) == 2
    assert "a run trains on one device" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_resuming_and_starting_from_weights_exclude_each_other(capsys):
    assert main([*FIT, "--ckpt_path=a.ckpt", "--init_from=b.ckpt"]) == 2
    assert "give one" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on():
    command = [sys.executable, "-m", "isoattn.apps.main", *FIT, "--trainer.max_epochs=500"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--run.name=c"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # Started in the background it would be deaf to it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    last = Path("runs/vision/c/checkpoints/last.ckpt")
    deadline = time.monotonic() + 120
    while not last.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"Go on with: isoattn vision fit --ckpt_path {last}" in err
    assert "Traceback" not in err


def test_an_attention_whose_module_is_not_imported_says_how():
    from isoattn.core import find_attention

    with pytest.raises(ValueError, match="--import my_module"):
        find_attention("my_module.MyAttention")


def test_a_damaged_image_names_the_way_out():
    from isoattn.apps.vision.app import VisionCLI
    from isoattn.vision.data.decode import DecodeError

    assert "--data.on_bad_image skip" in VisionCLI.explain(DecodeError("a.jpg", "is damaged"))
