"""Settings and starts that are chosen by the bound they reach."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from vibayes.errors import ConfigurationError
from vibayes.experiments import choosing, runner
from vibayes.experiments.catalogue import get
from vibayes.experiments.choosing import train_best
from vibayes.experiments.experiment import Experiment, Unit, merge
from vibayes.experiments.models import build
from vibayes.experiments.results import finished
from vibayes.experiments.runner import Settings, run_sweep
from vibayes.experiments.sweep import Selection, expand, plan
from vibayes.experiments.training import load_split
from vibayes.training.history import History


def small() -> Experiment:
    """Deep kernel learning, whose bound has no noise, on few rows of a data set that needs no file."""
    pytest.importorskip("sklearn")
    experiment = get("dkl-uci")
    changes = {
        "data": {"n_train": 30, "n_test": 10},
        "model": {"n_inducing": 6, "widths": [5, 3]},
        "training": {"batch_size": 30},
    }
    options = merge(experiment.options, changes)
    return dataclasses.replace(experiment, datasets=("diabetes",), splits={"diabetes": (0, 1)}, options=options)


def units_of(**changes: Any) -> list[Unit]:
    return expand(small(), Selection(models=["SVDKL"], steps=20, changes=changes))


def bounds(choices: dict[str, list[Any]], where: Path) -> list[list[float]]:
    units = units_of()
    splits = [load_split(unit) for unit in units]
    options = build(units[0].builder, splits[0], units[0].options, seed=0)[1]

    def make(start: int) -> list[Any]:
        return [build(u.builder, s, u.options, seed=start)[0] for u, s in zip(units, splits, strict=True)]

    how = {**options, "log_every": 5, "checkpoint": where, "seed": [0, 1], "chunk": None, "progress": False}
    models, histories = train_best(make, splits, choices, **how)
    assert len(models) == len(histories) == 2
    assert all(history.events[-1].startswith("chosen by its bound: lr") for history in histories)
    return [history.per_datapoint for history in histories]


def test_the_end_of_training_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of the last ten entries: neither how it began nor a single lucky one."""
    courses = {0.3: [5.0] * 10 + [1.0] * 10, 0.2: [0.0] * 10 + [1.5] * 10, 0.1: [0.0] * 19 + [9.0]}

    def trained(models: list[Any], data: Any, *, lr: list[float], **options: Any) -> list[History]:
        return [History(n_data=1, step=list(range(20)), elbo=courses[rate]) for rate in lr]

    monkeypatch.setattr(choosing, "fit_many", trained)
    assert bounds({"lr": list(courses)}, tmp_path / "state") == [courses[0.2]] * 2


@pytest.mark.parametrize(("name", "values"), [("lr", [0.02, 1e-4]), ("start", [0, 1000]), ("batch_size", [30, 10])])
def test_the_best_bound_is_kept_split_by_split(name: str, values: list[Any], tmp_path: Path) -> None:
    alone = [bounds({name: [value]}, tmp_path / str(value)) for value in values]
    both = bounds({name: values}, tmp_path / "both")
    assert alone[0] != alone[1]
    for split in range(2):
        best = max((tried[split] for tried in alone), key=lambda found: sum(found) / len(found))
        assert both[split] == pytest.approx(best, rel=1e-9)


def test_a_sweep_tries_starts(settings: Settings) -> None:
    units = units_of(starts=2)
    assert run_sweep(units, settings).ok
    for unit in units:
        result = finished(settings.out, unit)
        assert result is not None
        assert any(", start " in event for event in result["events"])
        assert result["options"]["training"]["starts"] == 2


@pytest.mark.parametrize("starts", [0, -1, 1.5, True])
def test_numbers_of_starts_that_are_none_are_refused(starts: Any) -> None:
    (unit, _) = units_of(starts=starts)
    with pytest.raises(ConfigurationError, match="starts is how many"):
        build(unit.builder, load_split(unit), unit.options, 0)


def test_how_many_trained_at_once_is_noted_with_batch_sizes_to_choose_from(settings: Settings) -> None:
    """Every batch size has a checkpoint of its own, and a note beside it."""
    experiment = small()
    choices = {"training": {"batch_choices": [30, 10], "lr_choices": [0.02, 1e-4]}}
    experiment = dataclasses.replace(experiment, options=merge(experiment.options, choices))
    units = expand(experiment, Selection(models=["SVDKL"], steps=20))
    assert run_sweep(units, settings).ok
    results = [finished(settings.out, unit) for unit in units]
    assert [result and result["group"]["chunk"] for result in results] == [2, 2]


def test_a_resumed_group_leaves_it_to_the_trainer_how_many_train_at_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU they are as many as fit; its trainer noted them beside each checkpoint."""
    given = []

    def stopped(units: list[Unit], splits: Any, *, checkpoint: Path, chunk: int | None, **options: Any) -> Any:
        given.append(chunk)
        Path(f"{checkpoint}.chunk").write_text("3")  # of the two splits at two rates
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "train_group", stopped)
    units = units_of()
    how = {"chunk": None, "code": runner.code_digest()}
    (group,) = plan(settings.out, units, size=None, how=how)
    task = {"group": group.to_dict(), "out": str(settings.out), "device": "cpu", "checkpoint_seconds": 15.0}
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            runner.work(task)
    assert given == [None, None]
