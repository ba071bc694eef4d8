"""Deep kernel learning on 5,000 MNIST images (thesis, Fig. "mnist"): loss and test accuracy along training."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from vibayes import datasets, plotting
from vibayes._figures import label_axes, new_figure
from vibayes.datasets import Split
from vibayes.diagnostics import Monitor
from vibayes.experiments.dkl_models import feature_network
from vibayes.experiments.dkl_pipeline import Pipeline, Stage, measure
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.record import Number, Result, Statement
from vibayes.model import Model
from vibayes.modes import default_dtype

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DRAWING", "FIGURES", "mnist", "run"]

WIDTHS = (1000, 500, 500, 100, 100, 50, 50, 10)
# The thesis's: 5,000 inducing points and 96,000 steps three times over.
FULL = {"n_inducing": 5000, "pretrain": 96_000, "frozen": 9_600, "joint": 86_400}
REDUCED = {"n_inducing": 1000, "pretrain": 19_200, "frozen": 2_400, "joint": 9_600}


def _load(n: int) -> Split:
    split = datasets.load("mnist", dtype=torch.float32).subset(n)
    return replace(split, x_train=split.x_train.flatten(1), x_test=split.x_test.flatten(1))


def mnist(
    seed: int = 0,
    *,
    plan: dict[str, int] | None = None,
    split: Split | None = None,
    widths: tuple[int, ...] = WIDTHS,
    measurements: int = 40,
) -> Result:
    """A pretrained network, then the network again (NN), a GP on its frozen features (fDKL), and both jointly (DKL).

    fDKL is measured where the joint training of DKL begins. The thesis's own is trained on, as long and by the same
    schedule as NN.

    Args:
        seed: of the starts.
        plan: inducing points and steps; `REDUCED` when None, `FULL` for the thesis's.
        split: data in place of the first 5,000 images.
        widths: of the network.
        measurements: how often test accuracy is measured in each stage.
    """
    plan = REDUCED if plan is None else plan
    with default_dtype(torch.float32):
        data = _load(5000) if split is None else split
        monitors: dict[str, list[Monitor]] = {}

        def watch(method: str, model: Model) -> Callable[[Any], object] | None:
            if method == "fSVDKL":  # trains on features, and is measured at its end
                return None
            every = max(1, 200 // measurements)
            monitor = Monitor(model, (data.x_train, data.y_train), (data.x_test, data.y_test), every, n_samples=1)
            monitors.setdefault(method, []).append(monitor)
            return monitor

        pipeline = Pipeline(
            data,
            partial(feature_network, data.x_train.shape[1], widths),
            widths[-1],
            min(plan["n_inducing"], len(data.x_train)),
            {
                "network": Stage(plan["pretrain"]),
                "again": Stage(plan["frozen"] + plan["joint"]),
                "frozen": Stage(plan["frozen"], drops=()),
                "joint": Stage(plan["joint"]),
            },
            start="greedy",
            device="cuda" if torch.cuda.is_available() else "cpu",
            seed=seed,
            watch=watch,
        )
        trained = pipeline.plain(None)
        found = {"pretrained": measure(trained, data), "NN": measure(pipeline.again(trained, None), data)}
        model = pipeline.frozen(trained, None)
        found["fDKL"] = measure(model, data)
        found["DKL"] = measure(pipeline.joint(model, None), data)
    note = "" if plan is FULL else "reduced: fewer inducing points and steps than the thesis's"
    numbers = [Number(f"{k}, {method}", v, note=note) for method, values in found.items() for k, v in values.items()]
    statements = [
        Statement("the network's accuracy does not fall when it trains on",
                  found["NN"]["accuracy"] > found["pretrained"]["accuracy"] - 0.003),
        Statement("DKL loses accuracy against its frozen features",
                  found["DKL"]["accuracy"] < found["fDKL"]["accuracy"]),
        Statement("DKL has a better bound than with frozen features",
                  found["DKL"]["elbo_per_datapoint"] > found["fDKL"]["elbo_per_datapoint"]),
    ]  # fmt: skip
    return Result(_figure(monitors, found), numbers, statements, {"plan": dict(plan), "widths": list(widths)})


def _figure(monitors: Mapping[str, list[Monitor]], found: Mapping[str, Mapping[str, float]]) -> "Figure":
    """Loss and test accuracy along the stages."""
    with plotting.style():
        figure = new_figure(8.0, 2.9)
        loss, accuracy = figure.subplots(1, 2)
        for method, name, colour in (
            ("NN", "pretraining", "black"),
            ("pNN", "NN", "blue"),
            ("pSVDKL", "DKL", "vermilion"),
        ):
            for monitor in monitors.get(method, ()):
                loss.plot(monitor.step, [-b for b in monitor.bound], color=plotting.COLOURS[colour], label=name)
                accuracy.plot(
                    monitor.step, [1 - e for e in monitor.test_error], color=plotting.COLOURS[colour], label=name
                )
        accuracy.axhline(found["fDKL"]["accuracy"], color=plotting.COLOURS["green"], linestyle="--", label="fDKL, end")
        accuracy.set_ylim(min(v["accuracy"] for v in found.values()) - 0.02, 1.0)
        loss.set_yscale("symlog", linthresh=1e-3)
        for ax, title in ((loss, "Loss per row"), (accuracy, "Test accuracy")):
            label_axes(ax, title, "step of the stage", "")
            ax.legend(loc="best", fontsize=7)
    return figure


# The thesis's size, which takes many hours: mnist(plan=FULL).
FIGURES: dict[str, Callable[[int], Result]] = {"mnist": mnist}
DRAWING = Drawing(
    "dkl-mnist", FIGURES, {name: "fig:dkl:mnist" for name in FIGURES}, {name: "mnist" for name in FIGURES}
)
run = DRAWING.run
