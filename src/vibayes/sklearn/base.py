"""What all estimators share: checked data, training, the bound, and saving."""

import copy
import os
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from vibayes.data import as_tensor
from vibayes.errors import ConfigurationError, DataError
from vibayes.families import Plan, Task
from vibayes.likelihoods import Likelihood
from vibayes.modes import default_dtype
from vibayes.prediction import Prediction
from vibayes.saving import save
from vibayes.trainable import TrainableModel
from vibayes.training import fit, schedules
from vibayes.training.history import Callback
from vibayes.training.run import find_device

__all__ = ["Estimator"]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
# How many draws the bound is estimated from, and how many rows go through a network at once for it.
_BOUND_DRAWS = 100
_BOUND_ROWS = 2_000
# The share of the steps after which the learning rate falls to a tenth.
_LAST_PART = 0.75

# torch's default dtype is one for all threads; models are built under it, one at a time.
_building = threading.Lock()


@dataclass(kw_only=True, eq=False, repr=False)
class Estimator(BaseEstimator):  # type: ignore[misc]
    """What every estimator takes and has, whatever its task and family.

    Args:
        steps: training steps; chosen by the model and the data when None.
        lr: learning rate of Adam, by the family when None; it falls to a tenth for the last quarter of the steps.
        batch_size: rows per training step; None: all of up to 1,000 rows, 500 of more (deep kernels: 50).
        n_samples: draws of the function per training step; when None 5, or 1 where nothing is sampled.
        n_draws: draws of the function in predictions.
        standardize: standardise inputs (and real targets) inside the model; results stay in their own units.
        seed: of starting values, minibatches and draws; the same seed gives the same results.
        device: `"cpu"` or `"cuda"`; a GPU where there is one when None.
        dtype: `"float64"` or `"float32"`.
        progress: show the progress of training.
        callback: called with every entry of the training log; see `vibayes.fit`.

    Attributes:
        model_: the trained model.
        history_: the course of training.
        elbo_: the evidence lower bound in nats, for the targets in their own units; for an exact GP the evidence.
        elbo_stderr_: its Monte Carlo standard error.
        elbo_per_datapoint_: the bound per row (per unit of weight).
        n_iter_: how many training steps were made.
        n_features_in_: how many input columns there are.
        feature_names_in_: their names, where they had any.
    """

    steps: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    n_samples: int | None = None
    n_draws: int = 100
    standardize: bool = True
    seed: int = 0
    device: str | None = None
    dtype: str = "float64"
    progress: bool = False
    callback: Callback | None = None

    @abstractmethod
    def _plan(self, task: Task) -> Plan:
        """The family's model for a task, and how to train it."""

    @abstractmethod
    def _targets(self, y: Any) -> NDArray[Any]:
        """Targets as the model takes them; remembers classes."""

    @abstractmethod
    def _likelihood(self, y: NDArray[Any]) -> tuple[Likelihood, int]:
        """The likelihood of these targets and the width of the network's output."""

    # -- training -----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on rows `X` `[N, D]` and targets `y`.

        Args:
            X: an array or data frame of numbers, without missing values.
            y: targets `[N]`; for regression also `[N, P]`.
            sample_weight: one number per row; a row of weight 2 counts as two observations, one of weight 0 as none.
        """
        X, y = self._validate(X, y)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
            if len(X) == 0:
                raise DataError("Every sample_weight is zero; at least one row must count.")
        targets = self._targets(y)
        model, options = self._build(X, targets)
        data = (X, targets) if weights is None else (X, targets, weights)
        device = self._device()
        self.history_ = fit(
            model, data, seed=self.seed, device=device, progress=self.progress, callback=self.callback, **options
        )
        self.model_ = model
        self.n_iter_ = self.history_.step[-1]
        self._measure(X, targets, weights)
        return self

    def _validate(self, X: Any, y: Any) -> tuple[NDArray[np.float64], NDArray[Any]]:
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, ensure_min_samples=2)
        return X, y

    def _device(self) -> torch.device:
        if self.device is not None:
            return find_device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def _build(self, X: NDArray[np.float64], targets: NDArray[Any]) -> tuple[TrainableModel, dict[str, Any]]:
        if self.dtype not in _DTYPES:
            raise ConfigurationError(f"dtype must be 'float64' or 'float32', got {self.dtype!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer):
            raise ConfigurationError(f"seed must be a whole number, got {self.seed!r}.")
        with _building, default_dtype(_DTYPES[self.dtype]), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            likelihood, outputs = self._likelihood(targets)
            task = Task(as_tensor(X, "X"), outputs, likelihood, self._scaling(likelihood))
            plan = self._plan(task)
        return plan.model, self._options(plan, len(X))

    def _scaling(self, likelihood: Likelihood) -> str | None:
        if not self.standardize:
            return None
        return "both" if likelihood.scalable else "inputs"

    def _options(self, plan: Plan, n: int) -> dict[str, Any]:
        """Keyword arguments of `fit`: what was asked for, else what the family and the size of the data suggest."""
        if plan.optimizer == "lbfgs":
            return {"steps": _whole(self.steps), "restarts": plan.restarts, "optimizer": "lbfgs"}
        steps = plan.steps if self.steps is None else _whole(self.steps)
        batch = plan.batch_size if self.batch_size is None else _whole(self.batch_size)
        drop = max(1, round(_LAST_PART * steps)) if isinstance(steps, int) else 1
        return {
            "steps": steps,
            "lr": plan.lr if self.lr is None else self.lr,
            "lr_schedule": schedules.piecewise([drop], [1.0, 0.1]),
            "batch_size": None if batch is None else min(batch, n),
            "n_samples": plan.n_samples if self.n_samples is None else _whole(self.n_samples),
            "log_every": max(1, min(50, steps // 4)) if isinstance(steps, int) else 50,
        }

    @torch.no_grad()
    def _measure(self, X: NDArray[Any], targets: NDArray[Any], weights: NDArray[Any] | None) -> None:
        """The bound at the end of training, in user units."""
        model = self.model_
        with self._seeded():
            batch = model.prepare(X, targets, weights)
            size = len(batch.x) if not model.draws_differ else _BOUND_ROWS
            draws = _BOUND_DRAWS if model.draws_differ else 1
            log_likelihood, log_ratio, variance = [], [], []
            for rows in torch.split(torch.arange(len(batch.x), device=batch.x.device), size):
                part = None if batch.weights is None else batch.weights[rows]
                bound = model(batch.x[rows], batch.y[rows], part, n_samples=draws)
                log_likelihood.append(bound.log_likelihood.mean())
                log_ratio.append(bound.log_ratio.mean())
                # the log ratio of a draw is counted once, over all parts
                share = bound.log_likelihood + bound.log_ratio * (len(rows) / len(batch.x))
                variance.append(share.var(correction=1) / draws if draws > 1 else share.new_zeros(()))
            count = float(len(batch.x)) if batch.weights is None else float(batch.weights.sum())
            value = torch.stack(log_likelihood).sum() + torch.stack(log_ratio).mean()
            self.elbo_ = float(value - count * model.units.log_jacobian())
            self.elbo_stderr_ = float(torch.stack(variance).sum().sqrt())
            self.elbo_per_datapoint_ = self.elbo_ / count

    # -- predictions --------------------------------------------------------------------------------------------

    @contextmanager
    def _seeded(self, seed: int | None = None) -> Iterator[None]:
        """Draws from the estimator's seed; the caller's generators are left as they were."""
        device = self.model_.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed if seed is None else seed)
            yield

    def _rows(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        rows: NDArray[np.float64] = validate_data(self, X, dtype=np.float64, reset=False)
        return rows

    def predict_distribution(self, X: Any) -> Prediction:
        """The whole predictive distribution: `.mean`, `.interval(0.9)`, `.epistemic`, `.sample(10)`, ..."""
        rows = self._rows(X)
        with self._seeded():
            return self.model_.predict(rows, n_samples=_whole(self.n_draws))

    def log_prob(self, X: Any, y: Any) -> NDArray[np.float64]:
        """Log predictive density (probability, for classes) of each row's target, in nats: `[N]`."""
        prediction = self.predict_distribution(X)
        targets = as_tensor(self._known(y), "y", device=self.model_.device)
        found: NDArray[np.float64] = _numpy(prediction.log_prob(targets))
        return found

    @abstractmethod
    def _known(self, y: Any) -> NDArray[Any]:
        """Targets of new rows as the model takes them."""

    def _function_draws(
        self, X: Any, n: int, random_state: int | np.random.RandomState | None
    ) -> tuple[Tensor, Tensor]:
        """Targets `[n, N, P]` or classes `[n, N]` of joint function draws, and the functions."""
        seed = random_state.randint(2**31) if isinstance(random_state, np.random.RandomState) else random_state
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ConfigurationError(f"n_samples must be a positive whole number, got {n!r}.")
        rows = self._rows(X)
        model = self.model_
        with self._seeded(seed):
            functions: Tensor = model.sample_functions(rows, int(n))  # type: ignore[operator]
            columns = functions[..., None] if functions.ndim == 2 else functions
            latent = model.units.targets(columns) if model.likelihood.scalable else columns
            mixture = model.likelihood.predictive(latent)
            drawn = mixture.sample(torch.arange(int(n), device=model.device), None)
            return (model.units.outputs(drawn) if model.likelihood.scalable else drawn), functions

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted estimator into a folder, from which `vibayes.load` reads it; see `vibayes.saving.save`.

        A `callback` is not kept.
        """
        kept = copy.copy(self)
        kept.callback = None
        save(kept, folder)


def _whole(value: Any) -> Any:
    """Numpy's whole numbers, as searches over grids give them, as Python's."""
    return int(value) if isinstance(value, np.integer) else value


def _numpy(tensor: Tensor) -> NDArray[Any]:
    """An array on the CPU."""
    found: NDArray[Any] = tensor.detach().cpu().numpy()
    return found
