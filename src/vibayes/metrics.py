"""How good predictions are: plain functions that turn predictions and targets into numbers.

Regression metrics take a `Prediction` (anything with the few methods they use, see `Predictive`); `rmse` and
`crps` also take plain tensors. Classification metrics take class probabilities `[N, C]` (or `[N]`, the
probability of class 1), or a `Prediction` that has them in `.probs`; each of several yes-or-no targets counts
as a point. Scalars come back as Python floats, computed in float64. `docs/decisions/metrics.md` says why none
of this is delegated to another library.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vibayes._metrics import (
    Predictive,
    as_floating,
    finite,
    has_probs,
    interval_of,
    log_mass,
    mean_of,
    pointwise_log_likelihood,
    probabilities,
    probabilities_and_labels,
    targets_like,
    tensor_or_prediction,
)
from vibayes.data import check_count
from vibayes.errors import DataError, ShapeError

__all__ = [
    "CalibrationCurve",
    "Predictive",
    "accuracy",
    "brier",
    "calibration_curve",
    "coverage",
    "coverage_curve",
    "crps",
    "ece",
    "entropy_ratio",
    "evaluate",
    "interval_width",
    "log_likelihood",
    "mean_entropy",
    "misclassified_log_likelihood",
    "ood_auroc",
    "rmse",
]

# First ends of pieces of the CRPS integral; beyond the outer ones F^2 or (1 - F)^2 is below 1e-12.
_CRPS_LEVELS = (1e-6, 1e-4, 2e-3, 0.02, 0.5, 0.98, 1 - 2e-3, 1 - 1e-4, 1 - 1e-6)  # many in tails, which may be long
_CRPS_ROUNDS = 12
_CRPS_MOST_COUNTS = 4096


@dataclass(frozen=True)
class CalibrationCurve:
    """Confidence against accuracy, in bins of equal width; empty bins have count 0 and NaN elsewhere."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


# ---------------------------------------------------------------------------------------------- regression


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


def log_likelihood(prediction: Predictive | Tensor, y: Tensor) -> float:
    """Mean log predictive density (regression) or mass (classification) per data point, in nats.

    A target that the prediction calls impossible makes it `-inf`.

    Args:
        prediction: a prediction, or class probabilities.
        y: targets.

    >>> probs = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    >>> round(log_likelihood(probs, torch.tensor([0, 1])), 4)  # log(0.25 * 0.5) / 2
    -1.0397
    """
    return float(pointwise_log_likelihood(prediction, y).mean())


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


def crps(prediction: Predictive | Tensor, y: Tensor) -> float:
    r"""Continuous ranked probability score, averaged over points and outputs; lower is better.

    `CRPS(F, y) = \int (F(t) - 1[t >= y])^2 dt` (Gneiting and Raftery 2007, eq. 20), in the targets' units.
    For a prediction the integral is computed from the predictive distribution function, by adaptive
    quadrature between extreme quantiles (relative error about 1e-6 or less; for Student's t 1e-5 at `df` of 1, and at
    `df` of 1/2 or less the score is infinite, and the value says no more than that); for counts it is a sum (up to
    4096 terms, beyond which steps of one are small enough to integrate over). For draws `x_1 .. x_S` it is
    the unbiased ("fair") estimate `mean |x_s - y| - sum_{s<t} |x_s - x_t| / (S (S - 1))`.

    Args:
        prediction: a prediction of real numbers or counts, or draws of shape `[S, N]` or `[S, N, P]`, S >= 2.
        y: targets, `[N]` or `[N, P]`.

    >>> round(crps(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0])), 6)   # 1 - |0 - 2| / 2
    0.0
    """
    prediction = tensor_or_prediction(prediction)
    if isinstance(prediction, Tensor):
        return _crps_of_draws(prediction, y)
    ends = [prediction.quantile(probability).detach().double() for probability in _CRPS_LEVELS]
    y = targets_like(y, finite(ends[0], "A predictive quantile"))
    total = torch.zeros_like(y)
    first, last = torch.minimum(ends[0], y).min(), torch.maximum(ends[-1], y).max()
    if getattr(prediction, "kind", "") == "counts" and bool(last - first <= _CRPS_MOST_COUNTS):
        for k in range(int(first), int(last) + 1):
            count = torch.full_like(y, k)
            total = total + (prediction.cdf(count).detach().double() - (count >= y).double()).square()
        return float(finite(total, "The predictive distribution function").mean())
    return float(finite(_integral_of_square(prediction, ends, y), "The predictive distribution function").mean())


def _integral_of_square(prediction: Predictive, ends: list[Tensor], y: Tensor) -> Tensor:
    """The CRPS integral of each point: Simpson's rule on pieces that are halved where most could be wrong.

    The distribution function rises by `dF` over a piece of width `h`, so the integral over it is known to
    `2 h dF` without looking inside. Halving the pieces with the largest bounds finds narrow components of a
    mixture wherever they are; `y` is an end of pieces, so that the step function is constant on each.
    """

    def cdf(places: Tensor) -> Tensor:
        return torch.stack([prediction.cdf(place).detach().double() for place in places])

    breaks = torch.stack([*ends, y]).sort(dim=0).values  # [pieces + 1, ...]
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


# ------------------------------------------------------------------------------------------ classification


def accuracy(prediction: Predictive | Tensor, y: Tensor) -> float:
    """Fraction of points whose most probable class (the first of equals) is the target.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    probs, labels = probabilities_and_labels(prediction, y)
    return float((probs.argmax(-1) == labels).double().mean())


def brier(prediction: Predictive | Tensor, y: Tensor) -> float:
    """Brier score: squared distance of the probabilities from the one-hot target, summed over classes.

    Between 0 and 2, averaged over points (Brier 1950); for two classes it is twice `(p_1 - y)^2`.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    probs, labels = probabilities_and_labels(prediction, y)
    one_hot = torch.nn.functional.one_hot(labels, probs.shape[1])
    return float((probs.double() - one_hot).square().sum(-1).mean())


def calibration_curve(prediction: Predictive | Tensor, y: Tensor, bins: int = 20) -> CalibrationCurve:
    """Mean confidence, accuracy and number of points in `bins` equal bins of confidence.

    The confidence of a point is its largest class probability. Bin m holds confidences in
    `((m-1)/bins, m/bins]`, so that a confidence of exactly 1 shares the last bin (Guo et al. 2017, sec. 2).

    >>> curve = calibration_curve(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([0, 1]), bins=2)
    >>> curve.confidence[1].item(), curve.accuracy[1].item(), curve.count.tolist()
    (0.875, 0.5, [0, 2])
    """
    bins = check_count(bins, "bins")
    given, labels = probabilities_and_labels(prediction, y)
    probs = given.double()
    confidence, predicted = probs.max(-1)
    inner_edges = torch.arange(1, bins, dtype=given.dtype, device=given.device) / bins
    index = torch.bucketize(given.max(-1).values, inner_edges)  # edges and confidences rounded alike
    members = torch.nn.functional.one_hot(index, bins).double()  # [N, bins]
    count = members.sum(0)
    correct = (predicted == labels).double()
    # 0 / 0 marks an empty bin as NaN
    return CalibrationCurve(confidence @ members / count, correct @ members / count, count.long())


def ece(prediction: Predictive | Tensor, y: Tensor, bins: int = 20) -> float:
    """Expected calibration error, `sum_m n_m / N |accuracy_m - confidence_m|` (Guo et al. 2017, eq. 3).

    >>> round(ece(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([0, 1]), bins=2), 6)
    0.375
    """
    curve = calibration_curve(prediction, y, bins)
    gap = (curve.accuracy - curve.confidence).abs()
    return float((torch.where(curve.count > 0, gap, 0.0) * curve.count).sum() / curve.count.sum())


def mean_entropy(prediction: Predictive | Tensor) -> float:
    """Mean entropy of the class probabilities, `mean_n -sum_c p_nc log p_nc`, in nats.

    >>> round(mean_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])) / math.log(2.0), 6)
    0.5
    """
    return float(torch.special.entr(probabilities(prediction).double()).sum(-1).mean())


def entropy_ratio(inside: Predictive | Tensor, outside: Predictive | Tensor) -> float:
    """Mean predictive entropy on the training distribution's data over that on foreign data.

    Lower is better: the model tells the two apart (thesis, table "Predictive entropy ratios").

    >>> round(entropy_ratio(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])), 3)
    0.469
    """
    denominator = mean_entropy(outside)
    if denominator == 0.0:
        raise DataError(
            "The predictions on foreign data have zero entropy, so the ratio of entropies is not defined; "
            "compare the two mean_entropy values instead."
        )
    return mean_entropy(inside) / denominator


def ood_auroc(in_scores: Tensor, out_scores: Tensor) -> float:
    """Area under the ROC curve for telling foreign data by a score that is higher on it.

    `P(out > in) + P(out = in) / 2` over all pairs, which is the area exactly; 0.5 is chance. The predictive
    entropy is a natural score; scores may be any finite numbers.

    >>> ood_auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    0.875
    """
    inner, outer = (
        finite(as_floating(s), name).double() for s, name in ((in_scores, "in_scores"), (out_scores, "out_scores"))
    )
    if inner.ndim != 1 or outer.ndim != 1:
        raise ShapeError(f"Scores must be [N], got {list(inner.shape)} and {list(outer.shape)}.")
    ordered = inner.sort().values
    below = torch.searchsorted(ordered, outer)
    up_to = torch.searchsorted(ordered, outer, right=True)
    return float((below + up_to).double().mean() / (2 * len(inner)))


def misclassified_log_likelihood(prediction: Predictive | Tensor, y: Tensor) -> float:
    """Mean log predictive mass of the true class over the misclassified points only.

    How badly a model is wrong where it is wrong ("Inc. Test LL" in the thesis). NaN means that no point was
    misclassified, so there is nothing to average.

    Args:
        prediction: a prediction or class probabilities.
        y: targets, `[N]` integers.

    >>> probs = torch.tensor([[0.9, 0.1], [0.75, 0.25]])
    >>> round(misclassified_log_likelihood(probs, torch.tensor([0, 1])), 3)  # log 0.25
    -1.386
    """
    probs, labels = probabilities_and_labels(prediction, y)
    wrong = probs.argmax(-1) != labels
    if not bool(wrong.any()):
        return math.nan
    values = pointwise_log_likelihood(prediction, y)  # more precise than logs of probabilities ...
    if len(values) != len(labels):  # ... but joint over the targets of a row, where each counts on its own here
        values = log_mass(probs, labels)
    return float(values[wrong].mean())


def evaluate(prediction: Predictive, y: Tensor) -> dict[str, float]:
    """The metrics that fit the task, by name.

    Predictions with `.probs`: accuracy, log likelihood, Brier score, calibration error, entropy and log
    likelihood on misclassified points. Others: RMSE (NaN where the predictive mean does not exist), log
    likelihood, coverage and mean width of 95% intervals, CRPS.

    >>> import vibayes as vb
    >>> standard_normal = vb.Prediction(vb.Gaussian(1.0).predictive(torch.zeros(1, 4, 1)), squeeze=True)
    >>> scores = evaluate(standard_normal, torch.tensor([-1.0, 1.0, -1.0, 1.0]))
    >>> {name: round(value, 2) for name, value in scores.items()}
    {'rmse': 1.0, 'log_likelihood': -1.42, 'coverage_95': 1.0, 'interval_width_95': 3.92, 'crps': 0.6}
    """
    if has_probs(prediction):
        return {
            "accuracy": accuracy(prediction, y),
            "log_likelihood": log_likelihood(prediction, y),
            "brier": brier(prediction, y),
            "ece": ece(prediction, y),
            "entropy": mean_entropy(prediction),
            "misclassified_log_likelihood": misclassified_log_likelihood(prediction, y),
        }
    mean = getattr(prediction, "mean", None)
    has_mean = isinstance(mean, Tensor) and bool(torch.isfinite(mean).all())  # Student's t may have none
    return {
        "rmse": rmse(prediction, y) if has_mean else math.nan,
        "log_likelihood": log_likelihood(prediction, y),
        "coverage_95": coverage(prediction, y, 0.95),
        "interval_width_95": interval_width(prediction, 0.95),
        "crps": crps(prediction, y),
    }
