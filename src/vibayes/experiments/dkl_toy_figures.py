"""Drawing what `dkl_toy` found: fits, correlations and the course of training, from arrays alone."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from vibayes import plotting
from vibayes._figures import label_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["REFERENCES", "app_toy", "toy_problem", "toy_problem_corr"]

# Where correlations are drawn from, in raw units; the thesis does not say.
REFERENCES = (1.0, 4.5)

Arrays = Mapping[str, Tensor]


def toy_problem(arrays: Arrays) -> "Figure":
    """Three fits above the evidence and its parts."""
    with plotting.style():
        figure = new_figure(9.6, 5.2)
        grid = figure.subplots(2, 3)
        for ax, name in zip(grid[0], ("SE", "DKL", "NN"), strict=True):
            _fit(ax, arrays, name)
        for row, (ax, title) in enumerate(zip(grid[1], ("LML", "data fit", "complexity"), strict=True), start=1):
            _curves(ax, arrays["curves"], row, f"DKL, {len(arrays['curves'])} seeds:  {title}")
        grid[1][1].axhline(float(arrays["half"]), color="black", linewidth=0.8, linestyle="--")
    return figure


def toy_problem_corr(arrays: Arrays) -> "Figure":
    """Correlations of both kernels."""
    with plotting.style():
        figure = new_figure(7.0, 2.6)
        for ax, name in zip(figure.subplots(1, 2, sharey=True), ("SE", "DKL"), strict=True):
            _correlations(ax, arrays, name, f"{name}:  mean {float(arrays[f'{name}: mean rho']):.2f}")
    return figure


def app_toy(arrays: Arrays) -> "Figure":
    """Fits, their correlations, slow training and 20 points."""
    with plotting.style():
        figure = new_figure(9.6, 7.4)
        grid = figure.subplots(3, 3)
        for k, name in enumerate(("SE", "DKL, run 1", "DKL, run 2")):
            _fit(grid[0][k], arrays, name)
            _correlations(grid[1][k], arrays, name, f"mean correlation {float(arrays[f'{name}: mean rho']):.2f}")
        _curves(grid[2][0], arrays["curves"], 1, f"DKL, rate 1e-4, {len(arrays['curves'])} seeds:  LML")
        for ax, name in zip(grid[2][1:], ("SE, 20 points", "DKL, 20 points"), strict=True):
            _fit(ax, arrays, name, "few ")
    return figure


def _fit(ax: "Axes", arrays: Arrays, name: str, points: str = "") -> None:
    lml = float(arrays[f"{name}: lml"])
    band, data = (arrays[f"{name}: mean"], arrays[f"{name}: std"]), (arrays[f"{points}x"], arrays[f"{points}y"])
    title = name if math.isnan(lml) else f"{name}:  LML {lml:.1f}"
    plotting.posterior_1d(band, arrays["grid"], data=data, ax=ax, title=title, legend=False)
    ax.set_ylim(-4.0, 4.0)


def _correlations(ax: "Axes", arrays: Arrays, name: str, title: str) -> None:
    for x, curve, colour in zip(REFERENCES, arrays[f"{name}: rho"], ("blue", "vermilion"), strict=True):
        ax.plot(arrays["grid"][:, 0], curve, color=plotting.COLOURS[colour], label=f"x' = {x:g}")
        ax.axvline(x, color=plotting.COLOURS[colour], linewidth=0.6, linestyle="--")
    ax.set_ylim(-0.05, 1.05)
    if name == "SE":
        ax.legend(loc="upper right", fontsize=7)  # where the SE kernel's curves leave room; the colours are the same
    label_axes(ax, title, "x", "correlation")


def _curves(ax: "Axes", runs: Tensor, row: int, title: str) -> None:
    """One line per run of `[R, 4, T]`; the range is that of all but the first fifth of training."""
    for curves in runs:
        ax.plot(curves[0], curves[row], linewidth=0.8)
    late = runs[:, row, runs.shape[2] // 5 :]
    low, high = float(late.min()), float(late.max())
    pad = 0.1 * (high - low) + 1e-9
    ax.set_ylim(low - pad, high + pad)
    label_axes(ax, title, "step", "nats")
