"""The figures of deep GPs and deep Wishart processes, with few steps: drawn, with finite numbers, in their place."""

import math
from pathlib import Path
from typing import Any

import pytest

from vibayes import datasets
from vibayes.experiments import compositional, timing, wishart_features, wishart_runtime
from vibayes.experiments.catalogue import get
from vibayes.experiments.figures import compare_figures, read_figures, run_figures

SCRIPTS = {
    "dgp-compositional": (compositional, {"STEPS": 3, "N_DRAWS": 12, "N_INDUCING": 6}),
    "dwp-toy": (wishart_features, {"STEPS": 3, "N_DRAWS": 12, "N_INDUCING": 6}),
    "dwp-runtime": (
        wishart_runtime,
        {"CURVE_STEPS": 3, "DEPTHS": (2,), "MODELS": ("DGP", "DWP", "DWP-AB")},
    ),
}


@pytest.fixture(autouse=True)
def small_boston(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that needs no file stands in for boston."""
    pytest.importorskip("sklearn")
    load = datasets.load

    def replacement(name: str, *arguments: Any, **options: Any) -> datasets.Split:
        if name != "boston":
            return load(name, *arguments, **options)
        return load("diabetes", "random", seed=0, standardize="both", n_train=40, n_test=10, dtype=options.get("dtype"))

    monkeypatch.setattr(datasets, "load", replacement)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_figures_are_drawn_with_their_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    module, sizes = SCRIPTS[name]
    for constant, value in sizes.items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(timing, "TIMED_STEPS", 1)
    if name == "dwp-runtime":  # the options are those of boston's experiment
        monkeypatch.setattr(datasets.Split, "name", "boston", raising=False)
    experiment = get(name)
    assert not experiment.needs
    found = run_figures(experiment, tmp_path)
    assert {entry["label"] for entry in found["figures"].values()} <= set(experiment.labels)
    figures = read_figures(experiment, tmp_path)
    assert figures is not None
    for figure in figures.figures:
        if found["figures"][figure.name]["skipped"]:
            assert figure.name == "runtime_protein"
            continue
        assert figure.image is not None
        assert figure.image.stat().st_size > 10_000
        assert figure.numbers
        assert all(math.isfinite(number["ours"]) for number in figure.numbers)
    tables = compare_figures(experiment, tmp_path)
    if name == "dwp-runtime":
        rows = tables["tab:dwp:runtime"]
        filled = [row for row in rows if row.ours is not None]
        assert len(rows) == 16
        assert {(row.printed["dataset"], row.printed["depth"]) for row in filled} == {("boston", "2")}
        assert {row.printed["model"] for row in filled} == {"DGP", "DWP", "DWP-AB"}
        assert all(row.ours > 0 for row in filled)
