"""Figures of functions of one or two inputs."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vibayes._figures import (
    COLOURS,
    GREY,
    PANEL,
    as_array,
    as_column,
    axes_or_new,
    label_axes,
    mark_inputs,
    new_figure,
    style,
)
from vibayes.errors import ConfigurationError, DataError, ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["compare_1d", "posterior_1d", "posterior_2d"]

# Between which values targets lie: bands of standard deviations end there.
_SUPPORT = {"binary": (0.0, 1.0), "counts": (0.0, math.inf)}


def posterior_1d(
    prediction: Any,
    x_grid: Tensor,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    samples: Tensor | None = None,
    inducing: Tensor | None = None,
    truth: Tensor | None = None,
    level: float | None = None,
    ax: "Axes | None" = None,
    colour: str = COLOURS["blue"],
    title: str = "",
    xlabel: str = "x",
    ylabel: str = "y",
    legend: bool = True,
) -> "Axes":
    """A function of one input: mean, bands of one and two standard deviations, data and function draws.

    Args:
        prediction: a prediction at `x_grid` with one output, or a pair `(mean, std)` of tensors `[G]`.
        x_grid: inputs `[G]` or `[G, 1]`, in any order.
        data: training inputs and targets, drawn as points.
        samples: function draws `[S, G]`, drawn as thin grey lines.
        inducing: inducing inputs `[M]` or `[M, 1]`, marked along the bottom.
        truth: values `[G]` of the function behind the data, drawn dashed.
        level: shade the central interval of this probability in place of the standard deviations; of a
            prediction it is `prediction.interval(level)`, of `(mean, std)` that of a Gaussian.
        ax: where to draw; a new figure when None.
        colour: of the mean and the bands.
        title: of the axes.
        xlabel: name and unit of the input.
        ylabel: name and unit of the output.
        legend: whether to explain the marks.

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(-3, 3, 20)[:, None]
    >>> model = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.01))
    >>> model.condition(x, torch.sin(x[:, 0]))
    >>> grid = torch.linspace(-5, 5, 50)[:, None]
    >>> draws = model.sample_functions(grid, 5)
    >>> ax = posterior_1d(model.predict(grid), grid, data=(x, torch.sin(x[:, 0])), samples=draws)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['function draws', 'mean ± 2 sd', 'mean ± 1 sd', 'mean', 'data']
    """
    x = as_column(x_grid, "x_grid")
    order = np.argsort(x, kind="stable")
    mean, bands = _bands(prediction, len(x), level)
    with style():
        ax = axes_or_new(ax, size=(PANEL[0] + 1.3 * legend, PANEL[1]))
        if samples is not None:
            lines = as_array(samples, "samples")
            if lines.ndim != 2 or lines.shape[1] != len(x):
                raise ShapeError(f"samples must be [S, {len(x)}], got shape {list(lines.shape)}.")
            for i, line in enumerate(lines):
                label = "function draws" if i == 0 else None
                ax.plot(x[order], line[order], color=GREY, alpha=0.45, linewidth=0.6, label=label, zorder=1.8)
        for (lower, upper, name), alpha in zip(bands, (0.16, 0.28), strict=False):
            ax.fill_between(x[order], lower[order], upper[order], color=colour, alpha=alpha, linewidth=0, label=name)
        ax.plot(x[order], mean[order], color=colour, label="mean")
        if truth is not None:
            true = as_column(truth, "truth")
            if len(true) != len(x):
                raise ShapeError(f"truth has {len(true)} values, but x_grid has {len(x)}.")
            ax.plot(x[order], true[order], color=COLOURS["black"], linewidth=1, linestyle="--", label="truth")
        if data is not None:
            data_x, data_y = as_column(data[0], "data x"), as_column(data[1], "data y")
            if len(data_x) != len(data_y):
                raise ShapeError(f"data has {len(data_x)} inputs and {len(data_y)} targets.")
            size = 14.0 if len(data_x) <= 100 else 5.0
            ax.scatter(data_x, data_y, s=size, color=COLOURS["black"], linewidths=0, label="data", zorder=3)
        if inducing is not None:
            mark_inputs(ax, inducing, "inducing", "inducing inputs", marker="^", size=4, colour=COLOURS["vermilion"])
        ax.margins(x=0)
        label_axes(ax, title, xlabel, ylabel)
        if legend:  # beside the axes: inside there is no corner that data and bands are sure to leave free
            ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def compare_1d(
    panels: Sequence[tuple[str, Any]],
    x_grid: Tensor,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    samples: Sequence[Tensor | None] | None = None,
    inducing: Sequence[Tensor | None] | None = None,
    truth: Tensor | None = None,
    level: float | None = None,
    columns: int = 3,
    xlabel: str = "x",
    ylabel: str = "y",
) -> "Figure":
    """One `posterior_1d` panel per model, on shared axes.

    Args:
        panels: `(title, prediction)` of each model, with predictions as in `posterior_1d`.
        x_grid: inputs `[G]` or `[G, 1]` of all predictions.
        data: training inputs and targets, the same in every panel.
        samples: function draws of each model, `[S, G]` or None.
        inducing: inducing inputs of each model, `[M]` or `[M, 1]`, or None.
        truth: values `[G]` of the function behind the data, the same in every panel.
        level: as in `posterior_1d`.
        columns: the most panels side by side.
        xlabel: name and unit of the input.
        ylabel: name and unit of the output.

    >>> import torch
    >>> grid = torch.linspace(-3, 3, 50)
    >>> narrow, wide = ((torch.sin(grid), sd * torch.ones(50)) for sd in (0.1, 0.5))
    >>> figure = compare_1d([("narrow", narrow), ("wide", wide)], grid, truth=torch.sin(grid))
    >>> [ax.get_title() for ax in figure.axes]
    ['narrow', 'wide']
    """
    if not panels:
        raise DataError("compare_1d needs at least one (title, prediction), got none.")
    if columns < 1:
        raise ConfigurationError(f"columns must be at least 1, got {columns}.")
    draws, places = ([None] * len(panels) if each is None else list(each) for each in (samples, inducing))
    for name, each in (("samples", draws), ("inducing", places)):
        if len(each) != len(panels):
            raise ShapeError(f"{name} has {len(each)} entries for {len(panels)} panels.")
    rows = math.ceil(len(panels) / columns)
    columns = math.ceil(len(panels) / rows)  # four panels are two by two, not three and one
    with style():
        figure = new_figure(3.0 * columns + 0.4, 2.4 * rows + 0.5)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for i, ((title, prediction), ax) in enumerate(zip(panels, grid, strict=False)):
            posterior_1d(
                prediction,
                x_grid,
                data=data,
                samples=draws[i],
                inducing=places[i],
                truth=truth,
                level=level,
                ax=ax,
                title=title,
                xlabel=xlabel if i + columns >= len(panels) else "",
                ylabel=ylabel if i % columns == 0 else "",
                legend=False,
            )
            ax.xaxis.set_tick_params(labelbottom=i + columns >= len(panels))
            ax.locator_params(axis="x", nbins=5)  # more numbers run into one another in a small panel
        for ax in grid[len(panels) :]:
            ax.remove()
        marks: dict[str, Any] = {}
        for ax in grid[: len(panels)]:
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                marks.setdefault(label, handle)
        # in one line where it fits: a mark with its name takes 1.2 inches or so
        lines = math.ceil(1.2 * len(marks) / figure.get_figwidth())
        figure.legend(marks.values(), marks.keys(), loc="outside lower center", ncols=math.ceil(len(marks) / lines))
    return figure


def posterior_2d(
    prediction: Any,
    x_grid: Tensor,
    *,
    data: Tensor | tuple[Tensor, Tensor] | None = None,
    inducing: Tensor | None = None,
    xlabel: str = "x1",
    ylabel: str = "x2",
    zlabel: str = "y",
    title: str = "",
) -> "Figure":
    """A function of two inputs: its mean in one panel, its standard deviation in the other.

    The mean's colours run over its own values; the standard deviation's begin at zero. Without targets the data
    are drawn as points; with them, points in the mean panel have the colour of their target, so that a point that
    stands out is one that the mean misses.

    Args:
        prediction: a prediction at `x_grid` with one output, or a pair `(mean, std)` of tensors `[G]`.
        x_grid: inputs `[G, 2]` on a full rectangular grid, in any order, e.g. `torch.cartesian_prod(a, b)`.
        data: training inputs `[N, 2]`, or inputs and targets.
        inducing: inducing inputs `[M, 2]`.
        xlabel: name and unit of the first input.
        ylabel: name and unit of the second input.
        zlabel: name and unit of the output.
        title: of the figure.

    >>> import torch
    >>> line = torch.linspace(-1.0, 1.0, 5)
    >>> grid = torch.cartesian_prod(line, line)
    >>> figure = posterior_2d((grid.prod(1), torch.ones(25)), grid)
    >>> [ax.get_title() for ax in figure.axes][:2]
    ['mean', 'standard deviation']
    """
    first, second, cell = _cells(x_grid)
    mean, std = _moments(prediction, len(cell))
    _check_spread(std, "Give a pair such as (median, half an interval's width) in place of the prediction.")
    inputs, targets = data if isinstance(data, tuple | list) else (data, None)
    seen = None if inputs is None else _pairs(inputs, "data x")
    colours = None if targets is None else as_column(targets, "data y")
    if seen is not None and colours is not None and len(seen) != len(colours):
        raise ShapeError(f"data has {len(seen)} inputs and {len(colours)} targets.")
    low, high = float(mean.min()), float(mean.max())
    with style():
        figure = new_figure(7.4, 3.1)
        panels = (("mean", mean, "viridis", low, high), ("standard deviation", std, "cividis", 0.0, float(std.max())))
        for ax, (name, values, colour_map, least, most) in zip(figure.subplots(1, 2), panels, strict=True):
            square = np.empty((len(second), len(first)))
            square.flat[cell] = values
            image = ax.pcolormesh(first, second, square, cmap=colour_map, vmin=least, vmax=most, shading="nearest")
            image.set_rasterized(True)  # in SVG and PDF files, one picture in place of a polygon per cell
            ax.grid(visible=False)
            figure.colorbar(image, ax=ax, label=zlabel)
            if seen is not None:
                looks: dict[str, Any] = {"s": 6, "c": "white", "edgecolors": COLOURS["black"]}
                if name == "mean" and colours is not None:
                    looks = {"s": 16, "c": colours, "edgecolors": "white"}
                    looks |= {"cmap": colour_map, "vmin": least, "vmax": most}
                ax.scatter(seen[:, 0], seen[:, 1], linewidths=0.5, label="data", **looks)
            if inducing is not None:
                z = _pairs(inducing, "inducing")
                ax.scatter(
                    z[:, 0],
                    z[:, 1],
                    s=18,
                    marker="^",
                    color=COLOURS["vermilion"],
                    edgecolors="white",
                    linewidths=0.4,
                    label="inducing inputs",
                )
            ax.set(xlim=(first[0], first[-1]), ylim=(second[0], second[-1]))
            label_axes(ax, name, xlabel, ylabel)
        handles, names = figure.axes[1].get_legend_handles_labels()
        if handles:
            figure.legend(handles, names, loc="outside lower center", ncols=2)
        if title:
            figure.suptitle(title, fontsize=10)
    return figure


def _cells(x_grid: Tensor) -> tuple[Any, Any, Any]:
    """The two axes of a rectangular grid, and the cell of each of its rows, counted along the first axis first."""
    points = _pairs(x_grid, "x_grid")
    first, place_1 = np.unique(points[:, 0], return_inverse=True)
    second, place_2 = np.unique(points[:, 1], return_inverse=True)
    cell = place_2 * len(first) + place_1
    full = len(points) == len(first) * len(second) and len(np.unique(cell)) == len(points)
    if not full or min(len(first), len(second)) < 2:
        raise ShapeError(
            f"x_grid must be a full rectangular grid; {len(points)} rows with {len(first)} and {len(second)} different "
            "values are not. Make it with torch.cartesian_prod(a, b)."
        )
    return first, second, cell


def _bands(prediction: Any, n: int, level: float | None) -> tuple[Any, list[tuple[Any, Any, str]]]:
    """The mean, and the lower and upper ends and the name of each band, outer first."""
    mean, std = _moments(prediction, n)
    if level is None:
        _check_spread(std, "Give level=0.95 for an interval, which is always there.")
        least, most = _SUPPORT.get(getattr(prediction, "kind", ""), (-math.inf, math.inf))
        ends = [((mean - k * std).clip(least, most), (mean + k * std).clip(least, most), k) for k in (2, 1)]
        return mean, [(lower, upper, f"mean ± {k} sd") for lower, upper, k in ends]
    if not 0.0 < level < 1.0:
        raise ConfigurationError(f"level must lie strictly between 0 and 1, got {level!r}.")
    if isinstance(prediction, tuple | list):
        reach = float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64))) * std
        lower, upper = mean - reach, mean + reach
    else:
        lower, upper = (as_column(end, "the interval") for end in prediction.interval(level))
    return mean, [(lower, upper, f"{100 * level:g}% interval")]


def _moments(prediction: Any, n: int) -> tuple[Any, Any]:
    """Mean and standard deviation `[n]` of a prediction, or of a pair of them."""
    pair = isinstance(prediction, tuple | list)
    if pair and len(prediction) != 2:
        raise ShapeError(f"Expected a prediction or a pair (mean, std), got {len(prediction)} things.")
    mean, std = (as_column(v, "the prediction") for v in (prediction if pair else (prediction.mean, prediction.std)))
    if len(mean) != n or len(std) != n:
        raise ShapeError(f"The prediction has {len(mean)} rows, but x_grid has {n}.")
    return mean, std


def _check_spread(std: Any, remedy: str) -> None:
    if bad := int((~np.isfinite(std)).sum()):
        raise DataError(
            f"The standard deviation is infinite or NaN in {bad} of {len(std)} rows, as it is under Student's t noise "
            f"with df <= 2, and cannot be drawn. {remedy}"
        )


def _pairs(values: Any, what: str) -> Any:
    array = as_array(values, what)
    if array.ndim != 2 or array.shape[1] != 2 or len(array) == 0:
        raise ShapeError(f"{what} must be [N, 2] with at least one row, got shape {list(array.shape)}.")
    return array
