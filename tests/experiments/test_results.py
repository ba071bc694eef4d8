"""Result files: whole, small, and never mistaken for another run's."""

import json
import logging
import math
import subprocess
from pathlib import Path

import pytest

from vibayes.errors import ConfigurationError, DataError
from vibayes.experiments.experiment import Experiment
from vibayes.experiments.record import provenance
from vibayes.experiments.results import (
    MAX_BYTES,
    finished,
    read_result,
    thin,
    writable_folder,
    write_file,
    write_result,
)
from vibayes.experiments.sweep import expand


def result(unit: object) -> dict[str, object]:
    keys = ("experiment", "dataset", "model", "builder", "split", "options")
    return {key: getattr(unit, key) for key in keys} | {"metrics": {"loss": 1.0}, "seconds": 1.0}


def test_round_trip_and_nan(tiny: Experiment, tmp_path: Path) -> None:
    unit = expand(tiny)[0]
    path = tmp_path / unit.path
    write_result(path, result(unit) | {"metrics": {"loss": 0.1 + 0.2, "noise": math.nan}})
    found = read_result(path, unit)
    assert found["metrics"] == {"loss": 0.1 + 0.2, "noise": None}  # bit for bit
    assert "NaN" not in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": "vibayes-result-0"}',
        '{"schema": "vibayes-result-1", "metrics": {}}',
        "\udcff",
    ],
)
def test_damaged_files_are_named_once_and_count_as_missing(
    tiny: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    unit = expand(tiny)[0]
    path = tmp_path / unit.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with caplog.at_level(logging.WARNING):
        assert finished(tmp_path, unit) is None
        assert finished(tmp_path, unit) is None
    assert caplog.text.count(str(path)) == 1


@pytest.mark.parametrize(
    "edited",
    [
        {"metrics": {"loss": "1.0"}},
        {"metrics": {"loss": [1.0]}},
        {"metrics": 3},
        {"seconds": None},
        {"steps": "10"},
        {"curve": []},
        {"curve": {"step": [1, 2], "elbo_per_datapoint": [0.5]}},
        {"curve": {"step": [1], "elbo_per_datapoint": ["0.5"]}},
        {"calibration": [0.5]},
        {"calibration": {"confidence": [0.5], "accuracy": [0.5], "count": []}},
    ],
)
def test_values_that_nothing_can_be_computed_from_are_named(
    tiny: Experiment, tmp_path: Path, edited: dict[str, object]
) -> None:
    unit = expand(tiny)[0]
    write_result(tmp_path / unit.path, result(unit) | edited)
    with pytest.raises(DataError, match=f"is damaged: {next(iter(edited))} cannot be read"):
        read_result(tmp_path / unit.path, unit)
    assert finished(tmp_path, unit) is None


def test_another_runs_file_is_refused(tiny: Experiment, tmp_path: Path) -> None:
    unit, other = expand(tiny)[:2]
    write_result(tmp_path / unit.path, result(other))
    with pytest.raises(DataError, match="another run: it differs in split"):
        read_result(tmp_path / unit.path, unit)


def test_a_truncated_file_at_every_length(tiny: Experiment, tmp_path: Path) -> None:
    unit = expand(tiny)[0]
    path = tmp_path / unit.path
    write_result(path, result(unit))
    whole = path.read_bytes()
    for length in range(0, len(whole.rstrip()), 7):
        path.write_bytes(whole[:length])
        assert finished(tmp_path, unit) is None


def test_files_stay_small(tiny: Experiment, tmp_path: Path) -> None:
    unit = expand(tiny)[0]
    curve = {key: [0.123456] * 40 for key in ("step", "elbo_per_datapoint", "noise", "seconds")}
    write_result(tmp_path / "r.json", result(unit) | {"events": ["something went wrong " * 5] * 200, "curve": curve})
    assert (tmp_path / "r.json").stat().st_size <= MAX_BYTES
    found = json.loads((tmp_path / "r.json").read_text())
    assert len(found["curve"]["step"]) == 40
    assert found["events"][-1] == "..."


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "f", "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vibayes.experiments.results.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_thin() -> None:
    values = list(range(1001))
    kept = thin(values, 40)
    assert (len(kept), kept[0], kept[-1]) == (40, 0, 1000)
    assert thin([1, 2], 40) == [1, 2]


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot be written .* --out"):
        writable_folder(tmp_path / "file" / "results")


def test_the_commit_is_the_one_that_stood_there_when_the_process_began(monkeypatch: pytest.MonkeyPatch) -> None:
    first = provenance()["commit"]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "another\n", ""))
    assert provenance()["commit"] == first
