"""A checkpoint file is whole or absent, knows when it was damaged, and never runs what it holds."""

import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from isoattn.core.training.checkpoint import (
    CheckpointError,
    is_valid,
    read_checkpoint,
    remove_partial_files,
    write_checkpoint,
)

CONTENT = {
    "state_dict": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])},
    "global_step": 7,
    "isoattn": {"format": 1, "config": {"x": [1, 2.5, None, "y"]}},
}


def _equal(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right) and left.dtype == right.dtype
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_equal(left[k], right[k]) for k in left)
    return left == right


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "last.ckpt"
    write_checkpoint(CONTENT, path)
    return path


def test_round_trip(file):
    assert is_valid(file)
    assert _equal(read_checkpoint(file), CONTENT)


def test_digest_is_of_the_archive(file, tmp_path):
    digest = write_checkpoint(CONTENT, tmp_path / "again.ckpt")
    assert len(digest) == 64 and digest.encode() in file.read_bytes()[-80:]


def test_other_programs_read_it(file):
    assert _equal(torch.load(file, weights_only=True), CONTENT)
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"isoattn-sha256:")


def test_no_flipped_bit_loads(file):
    """Also in the parts that zip and torch themselves do not check."""
    data = file.read_bytes()
    rng = random.Random(0)
    positions = [rng.randrange(8 * len(data)) for _ in range(400)]
    positions += range(8 * (len(data) - 100), 8 * len(data))  # every bit of the checksum's end
    for position in positions:
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        file.write_bytes(damaged)
        for strict in (True, False):
            if not strict and position // 8 >= len(data) - 100:
                continue  # a damaged mark makes it another program's file; the archive is whole
            with pytest.raises(CheckpointError) as caught:
                read_checkpoint(file, require_checksum=strict)
            assert str(file) in str(caught.value) and caught.value.reason
        assert not is_valid(file)


def test_no_truncation_loads(file):
    data = file.read_bytes()
    rng = random.Random(1)
    for length in [0, 1, 2, len(data) - 1, *(rng.randrange(len(data)) for _ in range(100))]:
        file.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="last.ckpt"):
            read_checkpoint(file)
        assert not is_valid(file)


def test_appended_bytes_do_not_load(file):
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(CheckpointError):
        read_checkpoint(file)


@pytest.mark.parametrize("data", [b"", b"PK", b"hello", bytes(5000), b"PK\x03\x04" + bytes(5000)])
def test_what_is_no_checkpoint(tmp_path, data):
    path = tmp_path / "x.ckpt"
    path.write_bytes(data)
    for strict in (True, False):
        with pytest.raises(CheckpointError, match=r"x\.ckpt"):
            read_checkpoint(path, require_checksum=strict)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        read_checkpoint(tmp_path / "gone.ckpt")
    with pytest.raises(CheckpointError, match="directory"):
        read_checkpoint(tmp_path)
    assert not is_valid(tmp_path / "gone.ckpt")


def test_foreign_file_only_where_allowed(tmp_path):
    path = tmp_path / "timm.pth"
    torch.save(CONTENT, path)
    with pytest.raises(CheckpointError, match="no checksum"):
        read_checkpoint(path)
    assert _equal(read_checkpoint(path, require_checksum=False), CONTENT)


def test_a_list_is_no_checkpoint(tmp_path):
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(CheckpointError, match="holds a list"):
        read_checkpoint(tmp_path / "list.pth", require_checksum=False)


class Payload:
    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return Path.write_text, (Path(self.flag), "ran")


@pytest.mark.parametrize("ours", [True, False])
def test_payload_is_refused_and_not_run(tmp_path, ours):
    flag, path = tmp_path / "flag", tmp_path / "p.ckpt"
    content = {"state_dict": {}, "extra": Payload(str(flag))}
    if ours:
        write_checkpoint(content, path)
    else:
        torch.save(content, path)
    with pytest.raises(CheckpointError, match="not plain data; refused"):
        read_checkpoint(path, require_checksum=ours)
    assert not flag.exists()
    torch.load(path, weights_only=False)  # what a careless reader would have done
    assert flag.exists()


def test_legacy_pickle_payload_is_refused(tmp_path):
    import pickle

    flag, path = tmp_path / "flag", tmp_path / "p.ckpt"
    path.write_bytes(pickle.dumps({"x": Payload(str(flag))}))
    for strict in (True, False):
        with pytest.raises(CheckpointError):
            read_checkpoint(path, require_checksum=strict)
    assert not flag.exists()


def test_previous_is_kept(file, tmp_path):
    previous = tmp_path / "last.previous.ckpt"
    for step in (8, 9):
        write_checkpoint({**CONTENT, "global_step": step}, file, previous=previous)
    assert read_checkpoint(file)["global_step"] == 9
    assert read_checkpoint(previous)["global_step"] == 8
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.ckpt", "last.previous.ckpt"]


def test_failed_save_leaves_the_old_file_and_nothing_else(file, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint({**CONTENT, "global_step": 8}, file)
    monkeypatch.undo()
    assert read_checkpoint(file)["global_step"] == 7
    assert list(tmp_path.iterdir()) == [file]


def test_unpicklable_content_leaves_the_old_file(file, tmp_path):
    with pytest.raises(Exception, match="pickle|local"):
        write_checkpoint({"f": lambda: None}, file)
    assert read_checkpoint(file)["global_step"] == 7
    assert list(tmp_path.iterdir()) == [file]


def test_leftovers_of_dead_writers_only(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    stale = tmp_path / f".last.ckpt.{dead.pid}.partial"
    alive = tmp_path / f".last.ckpt.{os.getppid()}.partial"
    other = tmp_path / "last.partial"
    for path in (stale, alive, other):
        path.touch()
    assert remove_partial_files(tmp_path) == [stale]
    assert alive.exists() and other.exists()
    assert remove_partial_files(tmp_path / "gone") == []


WRITER = """
import sys, torch
from pathlib import Path
from isoattn.core.training.checkpoint import write_checkpoint
path = Path(sys.argv[1])
step = 0
while True:
    step += 1
    content = {"w": torch.full((int(sys.argv[2]),), float(step)), "step": step}
    write_checkpoint(content, path, previous=path.with_name("last.previous.ckpt"))
    print(step, flush=True)
"""


@pytest.mark.parametrize(
    "kills, size", [(4, 400_000), pytest.param(20, 3_000_000, marks=pytest.mark.slow)]
)
def test_killed_while_saving(tmp_path, kills, size):
    """kill -9 at random moments, temporary files elsewhere: the file is the old or the new one."""
    path = tmp_path / "last.ckpt"
    elsewhere = Path("/dev/shm")
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    if elsewhere.is_dir():
        variables["TMPDIR"] = str(elsewhere)
    rng = random.Random(kills)
    strays = 0
    for _ in range(kills):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(size)],
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        first = writer.stdout.readline()  # it is saving from now on
        assert first.strip() == "1"
        time.sleep(rng.uniform(0, 0.3))
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait()
        writer.stdout.close()
        content = read_checkpoint(path)
        done = int(rest[-1]) if rest else 1
        assert content["step"] in (done, done + 1)
        assert torch.equal(content["w"], torch.full((size,), float(content["step"])))
        strays += len(remove_partial_files(tmp_path))
        previous = tmp_path / "last.previous.ckpt"
        assert is_valid(previous) or done == 1
        assert {p.name for p in tmp_path.iterdir()} <= {"last.ckpt", "last.previous.ckpt"}
    assert kills < 15 or strays  # some were caught in the act
