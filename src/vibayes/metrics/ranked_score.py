"""The continuous ranked probability score."""

import math
from typing import Any

import torch
from torch import Tensor

from vibayes.errors import ShapeError
from vibayes.metrics.inputs import Predictive, as_floating, finite, targets_like, tensor_or_prediction

__all__ = ["crps"]

# First ends of pieces of the CRPS integral; beyond the outer ones F^2 or (1 - F)^2 is below 1e-12.
_CRPS_LEVELS = (1e-6, 1e-4, 2e-3, 0.02, 0.5, 0.98, 1 - 2e-3, 1 - 1e-4, 1 - 1e-6)  # many in tails, which may be long
_CRPS_ROUNDS = 12
_CRPS_MOST_COUNTS = 4096
_CRPS_FIRST_COUNTS = 256  # of a target with more than that
_CRPS_ROWS = 10_000  # whose pieces are held at once


def crps(prediction: Predictive | Tensor, y: Tensor) -> float:
    r"""Continuous ranked probability score, averaged over points and outputs; lower is better.

    `CRPS(F, y) = \int (F(t) - 1[t >= y])^2 dt` (Gneiting and Raftery 2007, eq. 20), in the targets' units.
    For predictions with Gaussian noise it has a closed form (`Prediction.crps`). For others the integral is computed
    from the predictive distribution function, by adaptive quadrature between extreme quantiles (relative error about
    1e-6 or less; for Student's t 1e-5 at `df` of 1, and at `df` of 1/2 or less the score is infinite, and the value
    says no more than that); for counts it is a sum (of the first 256 terms only where a target has more than
    4096; steps of one are small enough behind them to integrate over, to about 1e-5). For draws `x_1 .. x_S` it is
    the unbiased ("fair") estimate `mean |x_s - y| - sum_{s<t} |x_s - x_t| / (S (S - 1))`.

    Args:
        prediction: a prediction of real numbers or counts, or draws of shape `[S, N]` or `[S, N, P]`, S >= 2.
        y: targets, `[N]` or `[N, P]`.

    >>> round(crps(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0])), 6)   # 1 - |0 - 2| / 2
    0.0
    """
    given = tensor_or_prediction(prediction)
    if isinstance(given, Tensor):
        return _crps_of_draws(given, y)
    closed_form = getattr(given, "crps", None)  # not part of the protocol
    y = targets_like(y, given.quantile(0.5) if closed_form is None else given.mean)
    scores = None if closed_form is None else closed_form(y)
    if scores is None:
        scores = _integrated(given, y)
    return float(finite(scores, "The score of each target").mean())


def _integrated(prediction: Any, y: Tensor) -> Tensor:
    """The integral for each target, few rows at a time where a prediction can be asked for some."""
    if not hasattr(prediction, "__getitem__") or len(y) <= _CRPS_ROWS:
        return _integral(prediction, y)
    slices = [slice(start, start + _CRPS_ROWS) for start in range(0, len(y), _CRPS_ROWS)]
    return torch.cat([_integral(prediction[rows], y[rows]) for rows in slices])


def _integral(prediction: Predictive, y: Tensor) -> Tensor:
    def quantiles(levels: tuple[float, ...]) -> list[Tensor]:
        return [prediction.quantile(probability).detach().double() for probability in levels]

    lowest, highest = quantiles((_CRPS_LEVELS[0], _CRPS_LEVELS[-1]))
    finite(lowest, "A predictive quantile")
    total, start = torch.zeros_like(y), torch.full_like(y, -math.inf)
    if getattr(prediction, "kind", "") == "counts":
        first, last = torch.minimum(lowest, y).floor(), torch.maximum(highest, y)
        terms = last - first + 1
        summed = torch.where(terms <= _CRPS_MOST_COUNTS, terms, _CRPS_FIRST_COUNTS)  # of each target
        for number in range(int(summed.max())):
            count = first + number
            square = (prediction.cdf(count).detach().double() - (count >= y).double()).square()
            total = total + torch.where(number < summed, square, 0.0)
        if bool((summed == terms).all()):
            return total
        start = first + summed
    ends = [lowest, *quantiles(_CRPS_LEVELS[1:-1]), highest]
    return total + _integral_of_square(prediction, ends, y, start)


def _integral_of_square(prediction: Predictive, ends: list[Tensor], y: Tensor, start: Tensor) -> Tensor:
    """The CRPS integral of each point from `start` on: Simpson's rule on pieces, halved where most could be wrong.

    The distribution function rises by `dF` over a piece of width `h`, so the integral over it is known to
    `2 h dF` without looking inside. Halving the pieces with the largest bounds finds narrow components of a
    mixture wherever they are; `y` is an end of pieces, so that the step function is constant on each.
    """

    def cdf(places: Tensor) -> Tensor:
        return torch.stack([prediction.cdf(place).detach().double() for place in places])

    breaks = torch.stack([*ends, y]).clamp_min(start).sort(dim=0).values  # [pieces + 1, ...]
    F = cdf(breaks)
    for _ in range(_CRPS_ROUNDS):
        bound = breaks.diff(dim=0) * F.diff(dim=0)
        worst = bound.topk(min(16, len(bound)), dim=0).indices
        middle = 0.5 * (breaks.gather(0, worst) + breaks.gather(0, worst + 1))
        # both rise together, so that they stay paired when each is sorted
        breaks, F = (torch.cat(pair).sort(dim=0).values for pair in ((breaks, middle), (F, cdf(middle))))
    step = (breaks[:-1] >= y).double()
    halves = cdf(0.5 * (breaks[:-1] + breaks[1:]))
    left, centre, right = ((values - step).square() for values in (F[:-1], halves, F[1:]))
    return (breaks.diff(dim=0) * (left + 4 * centre + right) / 6).sum(0)


def _crps_of_draws(draws: Tensor, y: Tensor) -> float:
    draws = finite(as_floating(draws), "draws").double()
    if draws.ndim < 2 or draws.shape[0] < 2:
        raise ShapeError(f"Draws must be [S, N] or [S, N, P] with S >= 2, got shape {list(draws.shape)}.")
    S = draws.shape[0]
    distance = (draws - targets_like(y, draws[0])).abs().mean(0)
    # sum_{s<t} |x_s - x_t| of sorted draws: the i-th smallest is added i times and taken away S - 1 - i times
    rank_weights = 2.0 * torch.arange(S, dtype=draws.dtype, device=draws.device) - (S - 1)
    spread = torch.tensordot(rank_weights, draws.sort(dim=0).values, dims=1) / (S * (S - 1))
    return float((distance - spread).mean())
