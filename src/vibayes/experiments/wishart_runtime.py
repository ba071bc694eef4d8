"""How long training takes: deep GPs and deep Wishart processes (thesis, chapter 5, runtime)."""

import math
import statistics
import time
from typing import Any

import torch

from vibayes import datasets, plotting
from vibayes._figures import label_axes, new_figure
from vibayes.datasets import Split
from vibayes.errors import DataError
from vibayes.experiments import catalogue
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.models import build
from vibayes.experiments.record import Number, Result, Statement
from vibayes.model import Model
from vibayes.training import History, fit, schedules

__all__ = ["FIGURES", "run", "runtime"]

MODELS = ("DGP", "DWP", "DWP-A", "DWP-AB")
DEPTHS = (2, 5)
# Steps whose times are taken after three that are not, and steps of the training curves (thesis: 20,000).
TIMED_STEPS = 12
CURVE_STEPS = 600
CURVES = ("DGP", "DWP")


def _built(name: str, split: Split, depth: int) -> tuple[Model, dict[str, Any]]:
    """A model of the experiment `dwp-uci` as it is trained there."""
    experiment = catalogue.get("dwp-uci")
    options = experiment.options_of(name, split.name)
    options["model"]["depth"] = depth
    model, how = build(experiment.models[name].builder, split, options, seed=0)
    assert isinstance(model, Model)
    return model, how


def seconds_per_epoch(model: Model, split: Split, how: dict[str, Any], device: str = "cpu") -> float:
    """The median time of a training step, times the steps of an epoch."""
    model.to(device)
    times: list[float] = []
    begin = time.perf_counter()

    def rate(step: int) -> float:
        nonlocal begin
        if device != "cpu":
            torch.cuda.synchronize()
        now = time.perf_counter()
        times.append(now - begin)
        begin = now
        return 1.0

    batch = min(how["batch_size"] or len(split.x_train), len(split.x_train))
    fit(
        model,
        (split.x_train, split.y_train),
        steps=TIMED_STEPS + 4,
        batch_size=batch,
        lr_schedule=rate,
        n_samples=how["n_samples"],
        log_every=TIMED_STEPS + 4,
        progress=False,
        device=device,
    )
    return statistics.median(times[4:]) * math.ceil(len(split.x_train) / batch)


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
    )


def runtime(seed: int = 0) -> Result:
    """Seconds per epoch on boston (CPU) and, where there is a GPU, protein; training curves of depth 5 on boston."""
    numbers: list[Number] = []
    times: dict[tuple[str, int], float] = {}
    places = [("boston", "cpu")] + ([("protein", "cuda")] if torch.cuda.is_available() else [])
    for dataset, device in places:
        try:
            split = datasets.load(dataset, 0, standardize="both", dtype=torch.float64)
        except DataError:
            if dataset == "boston":
                raise
            continue
        for depth in DEPTHS:
            for name in MODELS:
                model, how = _built(name, split, depth)
                seconds = seconds_per_epoch(model, split, how, device)
                row = {"dataset": dataset, "model": name, "depth": str(depth), "metric": "seconds_per_epoch"}
                numbers.append(Number(f"{dataset}, {name}, depth {depth}: seconds per epoch", seconds, row=row))
                if device == "cpu":
                    times[name, depth] = seconds
    boston = datasets.load("boston", 0, standardize="both", dtype=torch.float64)
    curves = {name: _curve(name, boston) for name in CURVES}
    deepest = max(DEPTHS)
    statements = [
        Statement("a DWP's epoch takes no longer than a DGP's", times["DWP", deepest] <= times["DGP", deepest]),
        Statement("A and AB cost little more than the DWP", times["DWP-AB", deepest] <= 1.25 * times["DWP", deepest]),
    ]
    setup = {"steps_of_curves": CURVE_STEPS, "timed_steps": TIMED_STEPS, "threads": torch.get_num_threads()}
    return Result(_draw(curves), numbers, statements, setup)


def _draw(curves: dict[str, History]) -> Any:
    with plotting.style():
        figure = new_figure(6.8, 2.9)
        axes = figure.subplots(1, 2, sharey=True)
        for (name, history), colour in zip(curves.items(), ("vermilion", "blue"), strict=True):
            for ax, at in zip(axes, (history.seconds, history.step), strict=True):
                ax.plot(at, history.per_datapoint, color=plotting.COLOURS[colour], label=name)
        label_axes(axes[0], "boston, depth 5", "seconds", "ELBO per data point", True)
        label_axes(axes[1], "", "epoch", "", False)
        best = max(value for history in curves.values() for value in history.per_datapoint)
        axes[0].set_ylim(best - 4.0, best + 0.2)
    return figure


FIGURES = {"runtime": runtime}

run = Drawing("dwp-runtime", FIGURES, {"runtime": "fig:dwp:runtime"}, {"runtime": "boston"}).run
