"""How long training takes: deep GPs and deep Wishart processes (thesis, chapter 5, runtime)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vibayes import datasets, plotting
from vibayes._figures import label_axes, new_figure
from vibayes.datasets import Split
from vibayes.experiments import catalogue, timing
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.models import build
from vibayes.experiments.record import Number, Result, Statement
from vibayes.model import Model
from vibayes.training import History, fit, schedules

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DRAWING", "FIGURES", "run", "runtime", "runtime_protein"]

MODELS = ("DGP", "DWP", "DWP-A", "DWP-AB")
DEPTHS = (2, 5)
# Steps of the training curves (thesis: 20,000).
CURVE_STEPS = 600
CURVES = {"DGP": "vermilion", "DWP": "blue"}


def _built(name: str, split: Split, depth: int) -> tuple[Model, dict[str, Any]]:
    """A model of the experiment `dwp-uci` as it is trained there."""
    experiment = catalogue.get("dwp-uci")
    options = experiment.options_of(name, split.name)
    options["model"]["depth"] = depth
    model, how = build(experiment.models[name].builder, split, options, seed=0)
    assert isinstance(model, Model)
    return model, how


def _load(name: str) -> Split:
    return datasets.load(name, 0, standardize="both", dtype=torch.float64)


def _times(dataset: str, split: Split, device: str) -> tuple[dict[tuple[str, int], float], list[Number]]:
    """Seconds per epoch by model and depth, and as numbers of the thesis's table."""
    times: dict[tuple[str, int], float] = {}
    numbers: list[Number] = []
    for depth in DEPTHS:
        for name in MODELS:
            model, how = _built(name, split, depth)
            times[name, depth] = timing.seconds_per_epoch(model, split, how, device)
            row = {"dataset": dataset, "model": name, "depth": str(depth), "metric": "seconds_per_epoch"}
            title = f"{dataset}, {name}, depth {depth}: seconds per epoch"
            numbers.append(Number(title, times[name, depth], row=row))
    return times, numbers


def _statements(times: Mapping[tuple[str, int], float]) -> list[Statement]:
    deepest = max(DEPTHS)
    return [
        Statement("a DWP's epoch takes no longer than a DGP's", times["DWP", deepest] <= times["DGP", deepest]),
        Statement("A and AB cost little more than the DWP", times["DWP-AB", deepest] <= 1.25 * times["DWP", deepest]),
    ]


def _curve(name: str, split: Split) -> History:
    model, how = _built(name, split, max(DEPTHS))
    return fit(
        model,
        (split.x_train, split.y_train),
        steps=CURVE_STEPS,
        lr=how["lr"],
        lr_schedule=schedules.piecewise([CURVE_STEPS // 2], [1.0, 0.1]),
        kl_weight=schedules.linear(0.0, 1.0, max(1, CURVE_STEPS // 20)),
        n_samples=how["n_samples"],
        log_every=max(1, CURVE_STEPS // 40),
        progress=False,
        device="cpu",
    )


def runtime(seed: int = 0) -> Result:
    """Seconds per epoch on boston, on a CPU, and training curves of depth 5."""
    boston = _load("boston")
    times, numbers = _times("boston", boston, "cpu")
    arrays: dict[str, Tensor] = {}
    for name in CURVES:
        history = _curve(name, boston)
        arrays[f"{name} seconds"] = torch.tensor(history.seconds)
        arrays[f"{name} step"] = torch.tensor(history.step)
        arrays[f"{name} bound"] = torch.tensor(history.per_datapoint)
    setup = {
        "steps_of_curves": CURVE_STEPS,
        "timed_steps": timing.TIMED_STEPS,
        "threads": torch.get_num_threads(),
        "device": "cpu",
    }
    return Result(None, numbers, _statements(times), setup, arrays)


def runtime_protein(seed: int = 0) -> Result:
    """Seconds per epoch on protein, on a GPU."""
    times, numbers = _times("protein", _load("protein"), "cuda")
    arrays = {f"{name}, depth {depth}": torch.tensor(value) for (name, depth), value in times.items()}
    setup = {"timed_steps": timing.TIMED_STEPS, "device": "cuda"}
    return Result(None, numbers, _statements(times), setup, arrays)


def _paint(arrays: Mapping[str, Tensor]) -> "Figure":
    with plotting.style():
        figure = new_figure(6.8, 2.9)
        axes = figure.subplots(1, 2, sharey=True)
        for name, colour in CURVES.items():
            for ax, along in zip(axes, ("seconds", "step"), strict=True):
                values = arrays[f"{name} {along}"], arrays[f"{name} bound"]
                ax.plot(*values, color=plotting.COLOURS[colour], label=name)
        label_axes(axes[0], "boston, depth 5", "seconds", "ELBO per data point", True)
        label_axes(axes[1], "", "epoch", "")
        best = max(float(arrays[f"{name} bound"].max()) for name in CURVES)
        axes[0].set_ylim(best - 4.0, best + 0.2)
    return figure


FIGURES = {"runtime": runtime, "runtime_protein": runtime_protein}

DRAWING = Drawing(
    "dwp-runtime",
    FIGURES,
    {"runtime": "fig:dwp:runtime", "runtime_protein": "tab:dwp:runtime"},
    {"runtime": "boston", "runtime_protein": "protein"},
    paint={"runtime": _paint, "runtime_protein": timing.paint_seconds},
    on_gpu=("runtime_protein",),
)
run = DRAWING.run
