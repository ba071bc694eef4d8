"""How good predictions are: plain functions that turn predictions and targets into numbers.

Regression metrics take a `Prediction` (anything with the few methods they use, see `Predictive`); `rmse` and
`crps` also take plain tensors. Classification metrics take class probabilities `[N, C]` (or `[N]`, the
probability of class 1), or a `Prediction` that has them in `.probs`; each of several yes-or-no targets counts
as a point. Scalars come back as Python floats, computed in float64. `docs/decisions/metrics.md` says why none
of this is delegated to another library.
"""

from vibayes.metrics.classification import (
    CalibrationCurve,
    accuracy,
    brier,
    calibration_curve,
    ece,
    entropy_ratio,
    mean_entropy,
    misclassified_log_likelihood,
    ood_auroc,
)
from vibayes.metrics.evaluation import evaluate, log_likelihood
from vibayes.metrics.inputs import Predictive
from vibayes.metrics.ranked_score import crps
from vibayes.metrics.regression import coverage, coverage_curve, interval_width, rmse

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
