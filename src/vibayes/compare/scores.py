"""What is measured of a trained model: the bound on all training rows, and scores on rows it has not seen."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vibayes import metrics
from vibayes.conjugate.base import ConjugateModel
from vibayes.metrics.inputs import pointwise_log_likelihood
from vibayes.prediction import Prediction
from vibayes.trainable import TrainableModel

__all__ = ["Bounds", "Predicted", "bound", "log_likelihoods", "nats", "predict_all", "scores"]

# Rows that go through a model at once, and how many such parts stand for a table that is too large to go through.
ROWS = 4_096
MAX_PARTS = 25
DRAWS = 100
LEVEL = 0.95


def nats(value: float) -> str:
    """Nats per row for people: three decimals, but for numbers so large that nobody wants them.

    >>> nats(-1.23456), nats(-2783926602977.1)
    ('-1.235', '-2.78e+12')
    """
    return f"{value:.3f}" if abs(value) < 1e4 else f"{value:.3g}"


@dataclass(frozen=True)
class Bounds:
    """The evidence bound in nats per training row, with targets in units of their standard deviation.

    Attributes:
        value: the bound.
        stderr: its Monte Carlo standard error; zero where the evidence is closed-form.
    """

    value: float
    stderr: float


@torch.no_grad()
def bound(model: TrainableModel, x: Tensor, y: Tensor, draws: int | None = None) -> Bounds:
    """The bound on all rows, or for large tables on a random part of them, scaled up; by 100 draws, or fewer there."""
    n = len(x)
    draws = draws or max(10, min(DRAWS, 2_000_000 // min(n, ROWS * MAX_PARTS)))
    if isinstance(model, ConjugateModel) or (not model.draws_differ and n <= 2 * ROWS):
        found = model.elbo(x, y, n_samples=draws)
        return Bounds(float(found.per_datapoint), 0.0)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    parts = list(torch.split(order, ROWS))[:MAX_PARTS]
    values, errors, sizes = [], [], []
    for part in parts:
        found = model.elbo(x[part], y[part], n_samples=draws, n_data=n)
        values.append(float(found.per_datapoint))
        errors.append(float(found.stderr) / n)
        sizes.append(len(part))
    weights = np.array(sizes) / sum(sizes)
    variance = float((weights**2 * np.square(errors)).sum())
    if sum(sizes) < n:  # a sample of rows: its own error comes on top
        variance += float(np.var(values, ddof=1)) / len(parts)
    return Bounds(float(weights @ np.array(values)), math.sqrt(variance))


def _draws(n: int) -> int:
    """Draws for predictions of n rows: a hundred, fewer for very many rows."""
    return max(10, min(DRAWS, 20_000_000 // max(n, 1)))


def predict(model: Any, x: Tensor, draws: int | None = None) -> Prediction:
    """The prediction with always the same noise, so that a model's predictions are the same whenever asked for."""
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(0)
        prediction: Prediction = model.predict(x, n_samples=draws or _draws(len(x)))
    return prediction


def log_likelihoods(model: TrainableModel, x: Tensor, y: Tensor) -> NDArray[np.float64]:
    """Log predictive density of every row, targets in units of their standard deviation."""
    prediction = predict(model, x)
    values = pointwise_log_likelihood(prediction, y.to(model.device)).double().cpu().numpy()
    return np.asarray(values) + float(model.units.log_jacobian())


def scores(model: TrainableModel, x: Tensor, y: Tensor) -> dict[str, float]:
    """Scores on held-out rows.

    For numbers: log likelihood in the table's units and (`_standardized`) in units of the targets' standard deviation,
    with standard errors over rows, RMSE, the share of variance explained, coverage and mean width of 95% intervals,
    and the mean distance of coverage from its nominal level. For classes: log likelihood, accuracy, calibration error
    and Brier score.
    """
    prediction = predict(model, x)
    y = y.to(model.device)
    each = pointwise_log_likelihood(prediction, y).double()
    shift = float(model.units.log_jacobian())
    found = {
        "log_likelihood": float(each.mean()),
        "log_likelihood_stderr": float(each.std() / math.sqrt(len(each))) if len(each) > 1 else math.nan,
        "log_likelihood_standardized": float(each.mean()) + shift,
    }
    if prediction.kind in ("binary", "classes"):
        return found | {
            "accuracy": metrics.accuracy(prediction, y),
            "ece": metrics.ece(prediction, y, bins=10),
            "brier": metrics.brier(prediction, y),
        }
    levels, covered = metrics.coverage_curve(prediction, y, [0.1, 0.3, 0.5, 0.7, 0.9])
    mean = prediction.mean
    residual = (y.double() - mean.double()).square().mean(0)
    total = (y.double() - y.double().mean(0)).square().mean(0)
    return found | {
        "rmse": metrics.rmse(prediction, y),
        "r2": float((1.0 - residual / total).mean()) if bool((total > 0).all()) else math.nan,
        "coverage_95": metrics.coverage(prediction, y, LEVEL),
        "interval_width_95": metrics.interval_width(prediction, LEVEL),
        "calibration_error": float((covered - levels).abs().mean()),
    }


@dataclass(frozen=True)
class Predicted:
    """Summaries of the predictions of many rows; arrays have one entry per row.

    For numbers `mean`, `std`, `lower`, `upper`, `epistemic` and `aleatoric` (variances), `[N, P]`. For classes
    `probs` `[N, C]`, `entropy` and `mutual_information` `[N]` (what more data would tell, in nats).
    """

    kind: str
    values: dict[str, NDArray[np.float64]]

    def __getattr__(self, name: str) -> NDArray[np.float64]:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def uncertainty(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What more data would reduce, and what it would not: variances (of the first target), or nats."""
        if self.kind == "regression":
            return self.epistemic[:, 0], self.aleatoric[:, 0]
        return self.mutual_information, self.entropy - self.mutual_information


def predict_all(model: TrainableModel, x: Tensor) -> Predicted:
    """Predict many rows, a part at a time."""
    parts = [_summaries(predict(model, rows, _draws(len(x)))) for rows in torch.split(x, 20_000)]
    names = parts[0][1].keys()
    return Predicted(parts[0][0], {name: np.concatenate([part[1][name] for part in parts]) for name in names})


def _summaries(prediction: Prediction) -> tuple[str, dict[str, NDArray[np.float64]]]:
    def array(values: Tensor) -> NDArray[np.float64]:
        made: NDArray[np.float64] = values.double().cpu().numpy()
        return made if made.ndim == 2 else made[:, None]

    if prediction.kind == "regression":
        lower, upper = prediction.interval(LEVEL)
        found = {
            "mean": prediction.mean, "std": prediction.std, "lower": lower, "upper": upper,
            "epistemic": prediction.epistemic, "aleatoric": prediction.aleatoric,
        }  # fmt: skip
        return "regression", {name: array(value) for name, value in found.items()}
    probs = array(prediction.probs)
    if prediction.kind == "binary":
        probs = np.concatenate([1.0 - probs, probs], 1)
    return "classes", {
        "probs": probs,
        "entropy": array(prediction.entropy)[:, 0],
        "mutual_information": array(prediction.mutual_information)[:, 0],
    }
