"""How long an epoch of MNIST takes with the image networks of chapter 4 (the last column of its CIFAR-10 table)."""

import torch

from vibayes import datasets
from vibayes.experiments import catalogue, timing
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.images import POSTERIORS
from vibayes.experiments.models import build
from vibayes.experiments.record import Number, Result, Statement
from vibayes.model import Model

__all__ = ["DRAWING", "FIGURES", "epoch", "run"]

PRIOR = "ScalePrior"
DEVICE = "cuda"


def epoch(seed: int = 0) -> Result:
    """Seconds per epoch, by posterior, of the networks of the experiment `gi-cifar10`."""
    split = datasets.load("mnist", standardize="inputs", dtype=torch.float32)
    experiment = catalogue.get("gi-cifar10")
    seconds: dict[str, float] = {}
    for posterior in POSTERIORS:
        options = experiment.options_of(posterior, "cifar10")
        options["model"]["prior"] = PRIOR
        model, how = build(experiment.models[posterior].builder, split, options, seed)
        assert isinstance(model, Model)
        seconds[posterior] = timing.seconds_per_epoch(model, split, how, DEVICE)
    numbers = [
        Number(
            f"{posterior}: seconds per epoch of MNIST",
            value,
            row={"dataset": "mnist", "model": posterior, "prior": PRIOR, "metric": "seconds_per_epoch"},
        )
        for posterior, value in seconds.items()
    ]
    slowest = max(seconds, key=lambda posterior: seconds[posterior])
    statements = [
        Statement("global inducing points take longest", slowest == "global inducing"),
        Statement(
            "they take less than four times as long as factorised posteriors",
            seconds["global inducing"] < 4 * seconds["factorised"],
        ),
    ]
    setup = {
        "timed_steps": timing.TIMED_STEPS,
        "batch_size": experiment.options["training"]["batch_size"],
        "n_inducing": experiment.options["model"]["n_inducing"],
        "rows": len(split.x_train),
        "device": DEVICE,
    }
    return Result(None, numbers, statements, setup, {name: torch.tensor(value) for name, value in seconds.items()})


FIGURES = {"epoch": epoch}

DRAWING = Drawing(
    "gi-runtime",
    FIGURES,
    {"epoch": "tab:gi:cifar10"},
    {"epoch": "mnist"},
    paint={"epoch": timing.paint_seconds},
    on_gpu=("epoch",),
)
run = DRAWING.run
