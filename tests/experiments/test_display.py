"""What a sweep tells of its progress."""

import json
import os
from pathlib import Path

import pytest

from vibayes.experiments import display
from vibayes.experiments.catalogue import get
from vibayes.experiments.display import Display, ProgressFile, cost
from vibayes.experiments.experiment import Unit
from vibayes.experiments.sweep import Group, Selection, expand


def network(**changes: object) -> Unit:
    selection = Selection(datasets=["yacht"], models=["factorised"], priors=["NealPrior"], splits="0", changes=changes)
    (unit,) = expand(get("gi-uci"), selection)
    return unit


def test_progress_counts_every_batch_size_that_is_tried(tmp_path: Path) -> None:
    """One after the other, so that each is a round of all steps; rates are tried side by side."""
    folder = tmp_path / "group-0"
    progress = ProgressFile(Group((network(steps=100),), folder, {"chunk": 1}))
    fractions = []
    for _ in range(3):  # batches of 32, 100 and 500
        for step in (0, 50, 99):
            progress(step, 100)
            fractions.append(json.loads((tmp_path / "group-0.progress").read_text())["fraction"])
    expected = [(100 * done + step) / 300 for done in range(3) for step in (0, 50, 99)]
    assert fractions == pytest.approx(expected)


def test_a_run_that_chooses_is_as_much_work_as_all_that_it_tries() -> None:
    chosen = network()
    alone = network(lr_choices=None, batch_choices=None)
    assert cost(chosen) == pytest.approx(4 * 3 * cost(alone))


def test_the_time_left_of_a_group_counts_the_rounds_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(display.time, "time", lambda: now)
    group = Group((network(steps=100),), tmp_path / "group-0", {"chunk": 1})
    progress = ProgressFile(group)
    progress(0, 100)
    now += 50.0
    progress(50, 100)  # of the first of three batch sizes: 250 steps are to come, one a second
    os.utime(progress.path, (now, now))
    lines = Display(tmp_path, [group], show=False).lines()
    assert "step 50/100" in lines[1]
    assert lines[1].endswith("1 steps/s  4:10 left")
