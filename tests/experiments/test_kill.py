"""Killed at any moment, a sweep resumes to the same files; two processes share one without double work."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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


def workers_of(pid: int) -> set[int]:
    """The worker processes of a process that runs."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except OSError:  # ended meanwhile
            continue
    return found


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(happened: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path), "2", "0.0", "processes"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TINY_STEPS": "1000000"},
        start_new_session=True,  # a signal of its own, not the workers' too, as from a terminal
    )
    workers: set[int] = set()
    try:
        wait_for(lambda: list(tmp_path.glob(".work/*/group-*/checkpoint")), 60)
        workers = workers_of(process.pid)
        assert workers
        process.send_signal(number)
        process.wait(timeout=60)
        wait_for(lambda: not any(map(runs, workers)), 10)
        assert not set(filter(runs, workers))
    finally:
        process.kill()
        process.communicate()
        for pid in filter(runs, workers):
            os.kill(pid, signal.SIGKILL)
