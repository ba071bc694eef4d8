"""Figures of predictions, training and calibration, in one style.

Every function draws on the axes it is given, or on a figure of its own, and returns the axes (`ax.figure` is
the figure; `compare_1d` returns the figure). Nothing is shown, and pyplot's state and backend stay as they
are: figures are made without it and rendered to files with `save`. Colours are those of Okabe and Ito, which
colour-blind readers can tell apart. Needs matplotlib: `pip install "vibayes[plots]"`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vibayes import metrics
from vibayes._figures import (
    COLOURS,
    GREY,
    PANEL,
    as_array,
    as_column,
    axes_or_new,
    diagonal,
    label_axes,
    new_figure,
    save,
    style,
    unit_square,
)
from vibayes.data import as_tensor
from vibayes.errors import ConfigurationError, DataError, ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "calibration_curve",
    "compare_1d",
    "coverage",
    "learning_curve",
    "posterior_1d",
    "ranking",
    "save",
    "style",
]


class _History(Protocol):
    step: list[int]
    elbo: list[float]


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
            places = as_column(inducing, "inducing")
            ax.plot(
                places,
                np.full_like(places, 0.02),
                transform=ax.get_xaxis_transform(),  # x in data units, y as a share of the height
                marker="^",
                linestyle="none",
                markersize=4,
                color=COLOURS["vermilion"],
                label="inducing inputs",
            )
        ax.margins(x=0)
        label_axes(ax, title, xlabel, ylabel, False)
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


def learning_curve(
    history: _History | Mapping[str, _History], ax: "Axes | None" = None, *, per_datapoint: bool = False
) -> "Axes":
    """The bound against the training step.

    The axis leaves out the first steep climb, which would flatten all the rest: it starts at the lowest value
    of the last nine tenths of the steps. Gaps are steps without a finite bound.

    Args:
        history: what `fit` returned (lists `.step` and `.elbo`), or several of them by name.
        ax: where to draw; a new figure when None.
        per_datapoint: divide by `history.n_data`.
    """
    curves = dict(history) if isinstance(history, Mapping) else {"": history}
    if not curves or any(len(h.step) == 0 for h in curves.values()):
        raise DataError("The history is empty: nothing was logged during training.")
    floor, ceiling = math.inf, -math.inf
    with style():
        ax = axes_or_new(ax)
        for name, h in curves.items():
            step, elbo = np.asarray(h.step, dtype=float), np.asarray(h.elbo, dtype=float)
            if len(step) != len(elbo):
                raise ShapeError(f"The history has {len(step)} steps and {len(elbo)} values of the bound.")
            if per_datapoint:
                n_data = getattr(h, "n_data", 0)
                if not n_data:
                    raise DataError("per_datapoint needs a history that knows n_data, the number of data rows.")
                elbo = elbo / n_data
            elbo = np.where(np.isfinite(elbo), elbo, np.nan)
            ax.plot(step, elbo, label=name or None, marker="o" if len(step) == 1 else None)
            late = elbo[len(elbo) // 10 :]
            if np.isfinite(late).any():
                floor = min(floor, float(np.nanmin(late)))
                ceiling = max(ceiling, float(np.nanmax(elbo)))
        if math.isfinite(floor) and ceiling > floor:
            pad = 0.05 * (ceiling - floor)
            ax.set_ylim(floor - pad, ceiling + pad)
        label_axes(ax, "", "step", "ELBO (nats per data point)" if per_datapoint else "ELBO (nats)", len(curves) > 1)
    return ax


def calibration_curve(
    prediction: Any, y: Tensor | None = None, bins: int = 20, ax: "Axes | None" = None, *, title: str = ""
) -> "Axes":
    """Accuracy against confidence of a classifier; the size of a dot is its bin's share of the points.

    Args:
        prediction: class probabilities, a prediction, or what `metrics.calibration_curve` returned.
        y: class labels `[N]` (not needed with a `CalibrationCurve`).
        bins: how many bins of confidence.
        ax: where to draw; a new figure when None.
        title: of the axes.
    """
    curve = prediction
    if not isinstance(curve, metrics.CalibrationCurve):
        if y is None:
            raise DataError("calibration_curve needs the class labels y beside the predictions.")
        curve = metrics.calibration_curve(prediction, y, bins)
    filled = as_array(curve.count, "count") > 0
    confidence, accuracy = (
        as_array(curve.confidence, "confidence")[filled],
        as_array(curve.accuracy, "accuracy")[filled],
    )
    share = as_array(curve.count, "count")[filled] / float(curve.count.sum())
    error = float((share * np.abs(accuracy - confidence)).sum())
    with style():
        ax = axes_or_new(ax, size=(3.2, 3.2))
        diagonal(ax)
        ax.vlines(confidence, confidence, accuracy, color=COLOURS["vermilion"], linewidth=1, alpha=0.7)
        ax.plot(confidence, accuracy, color=COLOURS["blue"], linewidth=1)
        ax.scatter(confidence, accuracy, s=8 + 120 * share, color=COLOURS["blue"], linewidths=0, zorder=3)
        ax.text(0.04, 0.96, f"ECE {error:.3f}", transform=ax.transAxes, va="top", fontsize=9)
        unit_square(ax)
        label_axes(ax, title, "confidence", "accuracy", False)
    return ax


def coverage(
    prediction: Any,
    y: Tensor,
    levels: Sequence[float] | None = None,
    ax: "Axes | None" = None,
    *,
    title: str = "",
    label: str = "",
) -> "Axes":
    """Share of targets inside central predictive intervals, against the intervals' nominal level.

    The grey band holds 95% of the values at each level if the prediction is calibrated and the targets are
    independent.

    Args:
        prediction: a prediction.
        y: targets.
        levels: nominal levels; 0.05, ..., 0.95 when None.
        ax: where to draw; a new figure when None. Curves of several models go on the same axes.
        title: of the axes.
        label: name of the curve.
    """
    nominal, covered = (as_array(v, "coverage") for v in metrics.coverage_curve(prediction, y, levels))
    ideal = np.linspace(0, 1, 101)
    spread = 1.96 * np.sqrt(ideal * (1 - ideal) / as_tensor(y, "y").numel())
    with style():
        fresh = ax is None or not ax.has_data()
        ax = axes_or_new(ax, size=(3.2, 3.2))
        if fresh:
            band = (np.clip(ideal - spread, 0, 1), np.clip(ideal + spread, 0, 1))
            ax.fill_between(ideal, *band, color=GREY, alpha=0.2, linewidth=0)
            diagonal(ax)
        ax.plot(nominal, covered, marker="o", markersize=3, label=label or None)
        unit_square(ax)
        label_axes(ax, title, "nominal level", "share of targets inside", bool(label))
    return ax


def ranking(
    names: Sequence[str],
    values: Sequence[float] | Tensor,
    errors: Sequence[float] | Tensor | None = None,
    *,
    higher_is_better: bool = True,
    xlabel: str = "",
    title: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """A dot per model with its error bar, the best on top.

    Args:
        names: of the models.
        values: one number per model.
        errors: half widths of the bars, such as standard errors.
        higher_is_better: the direction of the ranking.
        xlabel: what the values are, with their unit.
        title: of the axes.
        ax: where to draw; a new figure when None.
    """
    centre = as_column(values, "values")
    bars = None if errors is None else as_column(errors, "errors")
    if len(names) != len(centre) or (bars is not None and len(bars) != len(centre)):
        sizes = f"{len(names)} names, {len(centre)} values" + ("" if bars is None else f", {len(bars)} errors")
        raise ShapeError(f"ranking needs one value (and error) per name, got {sizes}.")
    order = np.argsort(centre if higher_is_better else -centre, kind="stable")  # best last, which is on top
    place = np.arange(len(centre))
    with style():
        ax = axes_or_new(ax, size=(PANEL[0], 0.7 + 0.26 * len(centre)))
        colours = [COLOURS["blue"]] * (len(centre) - 1) + [COLOURS["vermilion"]]
        if bars is not None:
            ax.hlines(place, (centre - bars)[order], (centre + bars)[order], color=colours, linewidth=1.2)
        ax.scatter(centre[order], place, color=colours, s=22, linewidths=0, zorder=3)
        ax.set_yticks(place, [names[i] for i in order])
        ax.set_ylim(-0.6, len(centre) - 0.4)
        ax.tick_params(axis="y", length=0)
        better = "higher is better" if higher_is_better else "lower is better"
        label_axes(ax, title, f"{xlabel} ({better})" if xlabel else better, "", False)
    return ax


def _bands(prediction: Any, n: int, level: float | None) -> tuple[Any, list[tuple[Any, Any, str]]]:
    """The mean, and the lower and upper ends and the name of each band, outer first."""
    pair = isinstance(prediction, tuple | list)
    if pair and len(prediction) != 2:
        raise ShapeError(f"Expected a prediction or a pair (mean, std), got {len(prediction)} things.")
    mean, std = (as_column(v, "the prediction") for v in (prediction if pair else (prediction.mean, prediction.std)))
    if len(mean) != n or len(std) != n:
        raise ShapeError(f"The prediction has {len(mean)} rows, but x_grid has {n}.")
    if level is None:
        return mean, [(mean - k * std, mean + k * std, f"mean ± {k} sd") for k in (2, 1)]
    if not 0.0 < level < 1.0:
        raise ConfigurationError(f"level must lie strictly between 0 and 1, got {level!r}.")
    if pair:
        reach = float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64))) * std
        lower, upper = mean - reach, mean + reach
    else:
        lower, upper = (as_column(end, "the interval") for end in prediction.interval(level))
    return mean, [(lower, upper, f"{100 * level:g}% interval")]
