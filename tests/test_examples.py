"""The examples run, at reduced size, and show what they say."""

import csv
import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def _load(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_plain_torch_loop_trains(capsys: pytest.CaptureFixture[str]) -> None:
    example = _load("plain_torch_loop")
    short, long = (example.main(["--steps", steps]) for steps in ("1", "60"))
    assert long > short + 0.1
    assert "nats per row" in capsys.readouterr().out


def test_training_is_logged_and_stopped(tmp_path: Path) -> None:
    example = _load("log_training")
    path = example.main(["--file", str(tmp_path / "log.csv"), "--steps", "200", "--seconds", "1000"])
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == [50, 100, 150, 200]
    assert float(rows[-1]["elbo"]) > float(rows[0]["elbo"])
    path = example.main(["--file", str(tmp_path / "log.csv"), "--steps", "200", "--seconds", "0"])
    assert len(path.read_text().splitlines()) == 2  # the header and one entry


def test_bayesian_optimisation_improves() -> None:
    pytest.importorskip("botorch")
    example = _load("bayesian_optimization")
    small = ["--start", "5", "--evaluations", "2", "--steps", "10", "--draws", "8", "--seeds", "1"]
    found = example.main(small)
    assert set(found) == {"GP", "DWP"}
    for runs in found.values():
        assert len(runs[0]) == 3
        assert all(math.isfinite(value) for value in runs[0])
        assert runs[0] == sorted(runs[0])
    assert found["GP"][0][0] == found["DWP"][0][0]  # the same start
    assert found["GP"][0][-1] > found["GP"][0][0]
