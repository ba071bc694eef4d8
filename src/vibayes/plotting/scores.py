"""Figures of training, calibration and comparisons."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
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
    style,
    unit_square,
)
from vibayes.data import as_tensor
from vibayes.errors import DataError, ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["calibration_curve", "coverage", "learning_curve", "ranking"]


class _History(Protocol):
    step: list[int]
    elbo: list[float]


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

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(-3, 3, 20)[:, None]
    >>> data, histories = (x, torch.sin(x[:, 0])), {}
    >>> for lr in (0.01, 0.03):
    ...     layer = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5))
    ...     model = vb.Model(layer, vb.Gaussian(0.1))
    ...     histories[f"lr {lr}"] = vb.fit(model, data, steps=30, lr=lr, log_every=10, progress=False)
    >>> ax = learning_curve(histories, per_datapoint=True)
    >>> len(ax.lines), ax.get_ylabel()
    (2, 'ELBO (nats per data point)')
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

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    >>> ax = calibration_curve(probs, torch.tensor([0, 0, 1, 1]), bins=10)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('confidence', 'accuracy')
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
        ax.text(0.96, 0.04, f"ECE {error:.3f}", transform=ax.transAxes, ha="right", fontsize=9)
        unit_square(ax)
        label_axes(ax, title, "confidence", "accuracy")
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

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(-3, 3, 40)[:, None]
    >>> y = torch.sin(x[:, 0]) + 0.1 * torch.cos(31 * x[:, 0])
    >>> model = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.01))
    >>> model.condition(x[::2], y[::2])
    >>> ax = coverage(model.predict(x[1::2]), y[1::2], label="GP")
    >>> ax.get_ylabel()
    'share of targets inside'
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
    """A dot per model with its error bar, the best on top; models without a finite value are at the bottom.

    Args:
        names: of the models.
        values: one number per model.
        errors: half widths of the bars, such as standard errors.
        higher_is_better: the direction of the ranking.
        xlabel: what the values are, with their unit.
        title: of the axes.
        ax: where to draw; a new figure when None.

    >>> ax = ranking(["linear", "GP", "deep GP"], [-1.11, -1.09, -1.14], [0.0, 0.0, 0.002], xlabel="nats per row")
    >>> [label.get_text() for label in ax.get_yticklabels()]  # from the bottom up
    ['deep GP', 'linear', 'GP']
    """
    centre = as_column(values, "values")
    bars = None if errors is None else as_column(errors, "errors")
    if len(names) != len(centre) or (bars is not None and len(bars) != len(centre)):
        sizes = f"{len(names)} names, {len(centre)} values" + ("" if bars is None else f", {len(bars)} errors")
        raise ShapeError(f"ranking needs one value (and error) per name, got {sizes}.")
    merit = centre if higher_is_better else -centre
    order = np.argsort(np.where(np.isfinite(merit), merit, -np.inf), kind="stable")  # best last, which is on top
    place = np.arange(len(centre))
    with style():
        width = PANEL[0] + 0.06 * max(len(name) for name in names)  # long names leave the dots their room
        ax = axes_or_new(ax, size=(width, 0.85 + 0.26 * len(centre)))
        colours = [COLOURS["blue"]] * (len(centre) - 1) + [COLOURS["vermilion"]]
        if bars is not None:
            ax.hlines(place, (centre - bars)[order], (centre + bars)[order], color=colours, linewidth=1.2)
        ax.scatter(centre[order], place, color=colours, s=22, linewidths=0, zorder=3)
        ax.set_yticks(place, [names[i] for i in order])
        ax.set_ylim(-0.6, len(centre) - 0.4)
        ax.tick_params(axis="y", length=0)
        better = "higher is better" if higher_is_better else "lower is better"
        ax.locator_params(axis="x", nbins=6)  # more numbers run into one another
        label_axes(ax, title, f"{xlabel}\n({better})" if xlabel else better, "")
    return ax
