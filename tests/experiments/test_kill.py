"""Killed at any moment, a sweep resumes to the same files; two processes share one without double work."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "tiny.py"
pytest.importorskip("sklearn")


def start(out: Path, group: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(out), str(group), "0.0"], stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=120)
    assert process.returncode == 0


def metrics_in(out: Path) -> dict[str, str]:
    paths = sorted(out.glob("*/*/*/split-*.json"))
    return {p.name: json.dumps(json.loads(p.read_text())["metrics"]) for p in paths}


@pytest.mark.parametrize("group", [1, 4])
def test_killed_and_resumed_equals_undisturbed(tmp_path: Path, group: int) -> None:
    begin = time.monotonic()
    finish(start(tmp_path / "whole", group))
    whole_seconds = time.monotonic() - begin
    chance = random.Random(group)
    out = tmp_path / "killed"
    for _ in range(3):
        process = start(out, group)
        # imports take the first part of the time: kill during training, or as results are written
        time.sleep(whole_seconds * chance.uniform(0.6, 0.98))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for path in out.glob("*/*/*/split-*.json"):
            json.loads(path.read_text())  # whatever is there is whole
    finish(start(out, group))
    assert metrics_in(out) == metrics_in(tmp_path / "whole")
    assert len(metrics_in(out)) == 4
    assert not list(out.glob(".work/tiny*"))


def test_two_processes_share_a_sweep(tmp_path: Path) -> None:
    out = tmp_path / "shared"
    both = [start(out, 1), start(out, 1)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    trained = [int(text.split("trained=")[1].split()[0]) for text in said]
    assert sum(trained) == 4, said
    assert all("left=0" in text for text in said)  # either waits until all is done
    finish(start(tmp_path / "alone", 1))
    assert metrics_in(out) == metrics_in(tmp_path / "alone")
