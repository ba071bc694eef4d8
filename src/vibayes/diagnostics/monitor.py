"""Watching a model while it trains: the split of the evidence, fit and generalisation, entry by entry."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vibayes import metrics
from vibayes.conjugate.exact_gp import ExactGP
from vibayes.diagnostics.prior import seen_by_kernel
from vibayes.errors import ConfigurationError
from vibayes.prediction import Prediction
from vibayes.trainable import TrainableModel
from vibayes.training.history import Logged

__all__ = ["Monitor", "error_of", "mean_correlation", "split_of_evidence"]

# Rows that correlations and training fit are measured on, at most: the first ones.
_ROWS = 1000


@dataclass
class Monitor:
    """A callback for `fit` that keeps what `vibayes.diagnose` draws: give it as `fit(..., callback=monitor)`.

    Args:
        model: the model that is trained.
        data: `(x, y)`, the training data.
        test: `(x, y)`, held-out data, or None.
        every: measure at every so many entries of the history.
        n_samples: draws for predictions, where draws differ.

    Attributes:
        step: the steps at which it measured.
        bound: evidence or bound per row, on the scale the model trains on.
        data_fit: `-1/2 y^T (K + noise I)^-1 y` of an `ExactGP`, else the expected log likelihood; total nats.
        complexity: `-1/2 log |K + noise I|` of an `ExactGP`, else `-KL`; total nats.
        correlation: mean prior correlation of pairs of training rows; NaN where there is no kernel.
        train_ll: log likelihood per training row, in user units.
        test_ll: the same of held-out rows.
        train_error: RMSE, or the share of wrong classes.
        test_error: the same of held-out rows.

    >>> import vibayes as vb
    >>> x = torch.linspace(-2, 2, 30)[:, None]
    >>> gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    >>> monitor = Monitor(gp, (x, torch.sin(x[:, 0])))
    >>> _ = vb.fit(gp, (x, torch.sin(x[:, 0])), optimizer="adam", steps=100, callback=monitor, progress=False)
    >>> monitor.step
    [50, 100]
    """

    model: TrainableModel
    data: tuple[Any, Any]
    test: tuple[Any, Any] | None = None
    every: int = 1
    n_samples: int = 20
    step: list[int] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    data_fit: list[float] = field(default_factory=list)
    complexity: list[float] = field(default_factory=list)
    correlation: list[float] = field(default_factory=list)
    train_ll: list[float] = field(default_factory=list)
    test_ll: list[float] = field(default_factory=list)
    train_error: list[float] = field(default_factory=list)
    test_error: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigurationError(f"every must be at least 1, got {self.every}.")
        self._heard = 0

    @torch.no_grad()
    def __call__(self, logged: Logged) -> None:
        """Measure, at the entries asked for; what is drawn does not disturb the training."""
        if logged.replica != 0:
            raise ConfigurationError("A Monitor watches one model; use it with fit, not with fit_many.")
        self._heard += 1
        if (self._heard - 1) % self.every:
            return
        model, (x, y) = self.model, self.data
        with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
            torch.manual_seed(0)
            fit, complexity = split_of_evidence(model, x, y) or (logged.log_likelihood, -logged.kl)
            self.step.append(logged.step)
            self.bound.append(logged.per_datapoint)
            self.data_fit.append(fit)
            self.complexity.append(complexity)
            self.correlation.append(mean_correlation(model, x))
            for part, data in (("train", (x[:_ROWS], y[:_ROWS])), ("test", self.test)):
                ll, error = (math.nan, math.nan)
                if data is not None:
                    prediction = model.predict(data[0], n_samples=self.n_samples)
                    ll, error = metrics.log_likelihood(prediction, data[1]), error_of(prediction, data[1])
                getattr(self, f"{part}_ll").append(ll)
                getattr(self, f"{part}_error").append(error)

    def __len__(self) -> int:
        return len(self.step)


@torch.no_grad()
def split_of_evidence(model: TrainableModel, x: Any, y: Any) -> tuple[float, float] | None:
    """Data fit and complexity of an `ExactGP`'s evidence, in nats; None for other models."""
    if not isinstance(model, ExactGP):
        return None
    terms = model.lml_terms(x, y)
    return float(terms.data_fit), float(terms.complexity)


@torch.no_grad()
def correlation_matrix(model: TrainableModel, x: Any) -> Tensor | None:
    """Prior correlations of the first rows with one another; None where there is no kernel."""
    seen, kernel = seen_by_kernel(model, model.prepare_inputs(x[:_ROWS]))
    if kernel is None:
        return None
    scale = kernel.diag(seen).sqrt()
    K: Tensor = kernel(seen)
    return K / (scale[:, None] * scale)


def mean_correlation(model: TrainableModel, x: Any) -> float:
    """The mean prior correlation of pairs of different rows; NaN without a kernel or with a single row."""
    rho = correlation_matrix(model, x)
    if rho is None or len(rho) < 2:
        return math.nan
    n = len(rho)
    return float((rho.sum() - rho.diagonal().sum()) / (n * (n - 1)))


def error_of(prediction: Prediction, y: Any) -> float:
    """RMSE, or the share of wrong classes; NaN where there is no predictive mean (Student's t with df <= 1)."""
    if prediction.kind in ("classes", "binary"):
        return 1.0 - metrics.accuracy(prediction, y)
    return metrics.rmse(prediction, y) if bool(prediction.mean.isfinite().all()) else math.nan
