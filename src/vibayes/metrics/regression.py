"""Errors of the mean, and how often targets lie in intervals."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vibayes.errors import ShapeError
from vibayes.metrics.inputs import Predictive, interval_of, mean_of, targets_like

__all__ = ["coverage", "coverage_curve", "interval_width", "rmse"]


def rmse(prediction: Predictive | Tensor, y: Tensor) -> float:
    """Root mean squared error of the predictive mean, over all points and outputs.

    Args:
        prediction: a prediction, or its mean, `[N]` or `[N, P]`.
        y: targets of the same shape (`[N]` and `[N, 1]` are the same).

    >>> round(rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])), 4)
    1.4142
    """
    mean = mean_of(prediction)
    return float((mean - targets_like(y, mean)).square().mean().sqrt())


def coverage(prediction: Predictive, y: Tensor, level: float = 0.95) -> float:
    """Fraction of targets inside the central predictive interval; `level` if it is calibrated.

    An interval of counts holds all of its ends' probability, and so more than `level` in all; see `coverage_curve`.

    Args:
        prediction: a prediction.
        y: targets, `[N]` or `[N, P]`.
        level: nominal probability of the interval, strictly between 0 and 1.

    >>> import vibayes as vb
    >>> standard_normal = vb.Prediction(vb.Gaussian(1.0).predictive(torch.zeros(1, 4, 1)), squeeze=True)
    >>> coverage(standard_normal, torch.tensor([-3.0, -1.0, 0.5, 1.9]))  # 95% lie within 1.96
    0.75
    """
    lower, upper = interval_of(prediction, level)
    y = targets_like(y, lower)
    return float(((lower <= y) & (y <= upper)).double().mean())


def coverage_curve(
    prediction: Predictive, y: Tensor, levels: Sequence[float] | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Nominal levels of central intervals and the fraction of targets inside each.

    Of counts, the probability that `cdf` jumps by at a target lies inside to a part where a level ends within it, and
    this part is what counts (Czado et al. 2009): no set of whole numbers has just the nominal probability.

    Args:
        prediction: a prediction.
        y: targets, `[N]` or `[N, P]`.
        levels: nominal levels; 0.05, 0.1, ..., 0.95 when None.

    Returns:
        The levels and the coverages. A calibrated prediction lies on the diagonal.

    >>> import vibayes as vb
    >>> standard_normal = vb.Prediction(vb.Gaussian(1.0).predictive(torch.zeros(1, 4, 1)), squeeze=True)
    >>> coverage_curve(standard_normal, torch.tensor([-3.0, -1.0, 0.5, 1.9]), [0.5, 0.95])[1].tolist()
    [0.25, 0.75]
    """
    chosen = torch.arange(1, 20) / 20.0 if levels is None else torch.as_tensor(levels).detach()
    if chosen.ndim != 1 or len(chosen) == 0:
        raise ShapeError(f"levels must be a list of one or more numbers, got shape {list(chosen.shape)}.")
    nominal = [float(level) for level in chosen.double()]
    if getattr(prediction, "kind", "") == "counts" and all(0.0 < level < 1.0 for level in nominal):
        covered = _shares(prediction, y, nominal)
    else:
        covered = [coverage(prediction, y, level) for level in nominal]
    return torch.tensor(nominal, dtype=torch.float64), torch.tensor(covered, dtype=torch.float64)


def _shares(prediction: Predictive, y: Tensor, levels: Sequence[float]) -> list[float]:
    """The mean part of the jump of `cdf` at a count that lies inside each central interval."""
    y = targets_like(y, interval_of(prediction, levels[0])[0])
    low, high = (prediction.cdf(at).detach().double() for at in (y - 1, y))

    def share(level: float) -> float:
        first, last = 0.5 - 0.5 * level, 0.5 + 0.5 * level
        part = (high.clamp(max=last) - low.clamp(min=first)).clamp_min(0.0) / (high - low)
        return float(torch.where(high > low, part, ((first < low) & (low < last)).double()).mean())  # no jump: a place

    return [share(level) for level in levels]


def interval_width(prediction: Predictive, level: float = 0.95) -> float:
    """Mean width of the central predictive interval, in the units of the targets.

    >>> import vibayes as vb
    >>> standard_normal = vb.Prediction(vb.Gaussian(1.0).predictive(torch.zeros(1, 4, 1)), squeeze=True)
    >>> round(interval_width(standard_normal), 2)
    3.92
    """
    lower, upper = interval_of(prediction, level)
    return float((upper - lower).mean())
