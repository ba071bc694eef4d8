"""Fixtures of the benchmark system's tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vibayes.experiments import results
from vibayes.experiments.catalogue import EXPERIMENTS
from vibayes.experiments.experiment import Experiment
from vibayes.experiments.runner import Settings

sys.path.insert(0, str(Path(__file__).parent))

from tiny import TINY


@pytest.fixture
def tiny() -> Iterator[Experiment]:
    pytest.importorskip("sklearn")
    EXPERIMENTS["tiny"] = TINY
    EXPERIMENTS["later"] = Experiment("later", "An experiment to come", needs="patience")
    results._told.clear()
    yield TINY
    del EXPERIMENTS["tiny"], EXPERIMENTS["later"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "out", device="cpu", show=False)
