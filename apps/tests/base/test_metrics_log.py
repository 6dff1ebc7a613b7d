"""``metrics.csv``: no row lost, no step twice, new columns at any time."""

import csv
import os
import signal
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from isoattn.apps.base.metrics_log import MetricsLog, read_metrics


def _log(folder, rows):
    log = MetricsLog(folder)
    for step, row in enumerate(rows):
        log.log_metrics(row, step)
    log.finalize("success")
    return log.file


def test_new_columns_appear(tmp_path):
    file = _log(tmp_path, [{"epoch": 0, "a": 1.0}, {"epoch": 0, "b": 2.0}, {"epoch": 1, "a": 3.0}])
    with file.open() as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["epoch", "step", "a", "b"]
    assert rows[1:] == [["0", "0", "1.0", ""], ["0", "1", "", "2.0"], ["1", "2", "3.0", ""]]


ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["epoch", "a", "b,c", 'q"', "val/x"]), st.floats(allow_nan=False)
    ),
    max_size=8,
)


@given(ROWS)
def test_every_number_is_read_back(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("m")
    if not rows:
        assert not _log(folder, rows).exists()
        return
    read = read_metrics(_log(folder, rows))
    assert [{k: float(v) for k, v in r.items()} for r in read] == [
        {"step": step, **row} for step, row in enumerate(rows)
    ]


@given(ROWS, st.integers(0, 9))
def test_keep_before_drops_what_is_made_again(tmp_path_factory, rows, step):
    folder = tmp_path_factory.mktemp("m")
    _log(folder, rows)
    log = MetricsLog(folder)
    log.keep_before(step)
    again = MetricsLog(folder)
    for s in range(step, len(rows)):
        again.log_metrics(rows[s], s)
    again.finalize("success")
    steps = [int(r["step"]) for r in read_metrics(log.file)] if rows else []
    assert steps == list(range(len(rows)))


def test_torn_last_line_is_ignored_and_cut(tmp_path):
    file = _log(tmp_path, [{"a": 1.0}, {"a": 2.0}])
    file.write_text(file.read_text() + "0,2,3.")
    assert [r["a"] for r in read_metrics(file)] == ["1.0", "2.0"]
    log = MetricsLog(tmp_path)
    log.keep_before(2)
    log.log_metrics({"a": 3.0}, 2)
    log.finalize("success")
    assert [r["a"] for r in read_metrics(file)] == ["1.0", "2.0", "3.0"]


def test_torn_last_line_without_a_resume(tmp_path):
    """A row must not be glued to what a killed writer left."""
    file = _log(tmp_path, [{"a": 1.0}])
    file.write_text(file.read_text() + "0,2,3.")
    log = MetricsLog(tmp_path)
    log.log_metrics({"a": 4.0}, 1)
    log.finalize("success")
    assert [r["a"] for r in read_metrics(file)] == ["1.0", "4.0"]


def test_empty_and_header_only_files(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("")
    assert read_metrics(file) == []
    log = MetricsLog(tmp_path)
    log.log_metrics({"a": 1.0}, 0)
    log.finalize("success")
    assert read_metrics(file) == [{"step": "0", "a": "1.0"}]


WRITER = """
import os, signal, sys
from pathlib import Path
from isoattn.apps.base.metrics_log import MetricsLog
log = MetricsLog(Path(sys.argv[1]))
for step in range(500):
    log.log_metrics({"a": float(step), **({"b": 1.0} if step > 250 else {})}, step)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_row_is_lost_by_a_kill(tmp_path):
    done = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path)], env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL
    rows = read_metrics(tmp_path / "metrics.csv")
    assert [float(r["a"]) for r in rows] == [float(s) for s in range(500)]
    assert [s for s, r in enumerate(rows) if "b" in r] == list(range(251, 500))
