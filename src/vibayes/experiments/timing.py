"""How long an epoch of training takes: what the tables of seconds are made of."""

import math
import statistics
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vibayes import plotting
from vibayes._figures import new_figure
from vibayes.datasets import Split
from vibayes.model import Model
from vibayes.training import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["paint_seconds", "seconds_per_epoch"]

# Steps whose times are taken, after some that are not: they fill caches, and a GPU records its graph in them.
TIMED_STEPS = 12
_UNTIMED = 4


def seconds_per_epoch(model: Model, split: Split, how: Mapping[str, Any], device: str = "cpu") -> float:
    """The median time of a training step, times the steps of an epoch.

    Args:
        model: what is trained, for a few steps.
        split: on its training rows.
        how: with the options `batch_size` and `n_samples` of these training options.
        device: where.
    """
    model.to(device)
    times: list[float] = []
    begin = time.perf_counter()

    def rate(step: int) -> float:  # called before every step
        nonlocal begin
        if device != "cpu":
            torch.cuda.synchronize()
        now = time.perf_counter()
        times.append(now - begin)
        begin = now
        return 1.0

    batch = min(how["batch_size"] or len(split.x_train), len(split.x_train))
    steps = TIMED_STEPS + _UNTIMED
    fit(
        model,
        (split.x_train, split.y_train),
        steps=steps,
        batch_size=batch,
        lr_schedule=rate,
        n_samples=how["n_samples"],
        log_every=steps,
        progress=False,
        device=device,
    )
    return statistics.median(times[_UNTIMED:]) * math.ceil(len(split.x_train) / batch)


def paint_seconds(arrays: Mapping[str, Tensor]) -> "Figure":
    """A bar for every entry, named by its key, in the order of the keys."""
    names, seconds = list(arrays), [float(value) for value in arrays.values()]
    with plotting.style():
        figure = new_figure(5.2, 0.6 + 0.26 * len(names))
        ax = figure.subplots()
        ax.barh(range(len(names)), seconds, color=plotting.COLOURS["blue"])
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set_xlabel("seconds per epoch")
    return figure
