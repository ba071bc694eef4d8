"""What fits every task: the log likelihood, and all metrics of a prediction by name."""

import math

import torch
from torch import Tensor

from vibayes.metrics.classification import accuracy, brier, ece, mean_entropy, misclassified_log_likelihood
from vibayes.metrics.inputs import Predictive, has_probs, pointwise_log_likelihood
from vibayes.metrics.ranked_score import crps
from vibayes.metrics.regression import coverage, interval_width, rmse

__all__ = ["evaluate", "log_likelihood"]


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
