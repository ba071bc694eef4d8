"""Scores of class probabilities: whether the likely classes come, and as often as the probabilities say."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vibayes.data import check_count
from vibayes.errors import DataError, ShapeError
from vibayes.metrics.inputs import (
    Predictive,
    as_floating,
    finite,
    has_probs,
    log_mass,
    pointwise_log_likelihood,
    probabilities,
    probabilities_and_labels,
)

__all__ = [
    "CalibrationCurve",
    "accuracy",
    "brier",
    "calibration_curve",
    "ece",
    "entropy_ratio",
    "mean_entropy",
    "misclassified_log_likelihood",
    "ood_auroc",
]


@dataclass(frozen=True)
class CalibrationCurve:
    """Confidence against accuracy, in bins of equal width; empty bins have count 0 and NaN elsewhere."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


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
    entropy is a natural score: `ood_auroc(inside.entropy, outside.entropy)`. Scores may be any finite numbers.

    >>> ood_auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    0.875
    """
    given = (("in_scores", in_scores), ("out_scores", out_scores))
    for name, scores in given:
        if has_probs(scores):
            raise DataError(f"{name} must be numbers, got a {type(scores).__name__}; give a score of it: its .entropy.")
    inner, outer = (finite(as_floating(scores), name).double() for name, scores in given)
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
