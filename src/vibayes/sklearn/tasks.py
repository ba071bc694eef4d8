"""Regression and classification: what targets are, and what is predicted of them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d

from vibayes import families
from vibayes.errors import DataError
from vibayes.likelihoods import Likelihood
from vibayes.sklearn.base import Estimator, _numpy

__all__ = ["Classifier", "Regressor"]


class Regressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """An estimator of real targets with Gaussian noise."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags

    def _targets(self, y: Any) -> NDArray[np.float64]:
        return self._known(y)

    def _known(self, y: Any) -> NDArray[np.float64]:
        checked: NDArray[np.float64] = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        return checked

    def _likelihood(self, y: NDArray[Any]) -> tuple[Likelihood, int]:
        outputs = 1 if y.ndim == 1 else y.shape[1]
        scale = 1.0 if self.standardize else max(float(np.var(y)), 1e-12)
        return families.noise(outputs, variance=scale), outputs

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean of each row, and with `return_std` the standard deviation of its target."""
        prediction = self.predict_distribution(X)
        mean = _numpy(prediction.mean)
        return (mean, _numpy(prediction.std)) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[NDArray[Any], NDArray[Any]]:
        """Lower and upper end of the interval in which a row's target lies with probability `level`."""
        lower, upper = self.predict_distribution(X).interval(level)
        return _numpy(lower), _numpy(upper)

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> NDArray[Any]:
        """Quantiles of each row's target: `[len(quantiles), N]`, or `[len(quantiles), N, P]`; of one level `[N]`."""
        return _numpy(self.predict_distribution(X).quantile(torch.as_tensor(quantiles, dtype=torch.float64)))

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = None, noise: bool = True
    ) -> Any:
        """Draw targets of all rows together: `[N, n_samples]`, or `[N, P, n_samples]` for several targets.

        Args:
            X: rows.
            n_samples: how many sets of targets.
            random_state: a seed, or a generator that gives one; the estimator's own seed when None.
            noise: False for the functions themselves, without observation noise.
        """
        drawn, functions = self._function_draws(X, n_samples, random_state)
        chosen = (drawn[..., 0] if functions.ndim == 2 else drawn) if noise else functions
        return np.moveaxis(_numpy(chosen), 0, -1)


class Classifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """An estimator of classes: `Bernoulli` for two of them, `Categorical` for more.

    Attributes:
        classes_: the classes, sorted.
    """

    classes_: NDArray[Any]

    def _validate(self, X: Any, y: Any) -> tuple[NDArray[np.float64], NDArray[Any]]:
        X, y = super()._validate(X, y)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        return X, y

    def _targets(self, y: Any) -> NDArray[Any]:
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                f"{type(self).__name__} needs at least 2 classes; y has only one class, {self.classes_.tolist()[0]!r}."
            )
        found: NDArray[Any] = codes.astype(np.int64)
        return found

    def _known(self, y: Any) -> NDArray[Any]:
        y = column_or_1d(np.asarray(y))
        codes = np.searchsorted(self.classes_, y).clip(0, len(self.classes_) - 1)
        unknown = self.classes_[codes] != y
        if unknown.any():
            raise DataError(
                f"y has classes that were not in training: {sorted(set(y[unknown].tolist()))!r}. Known are "
                f"{self.classes_.tolist()!r}."
            )
        found: NDArray[Any] = codes.astype(np.int64)
        return found

    def _likelihood(self, y: NDArray[Any]) -> tuple[Likelihood, int]:
        return families.classes(len(self.classes_))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the classes, in the order of `classes_`: `[N, C]`."""
        prediction = self.predict_distribution(X)
        probs = _numpy(prediction.probs)
        both: NDArray[np.float64] = np.stack([1.0 - probs, probs], 1) if prediction.kind == "binary" else probs
        both /= both.sum(1, keepdims=True)
        return both

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            logarithms: NDArray[np.float64] = np.log(self.predict_proba(X))
        return logarithms

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        probs = self.predict_proba(X)
        chosen: NDArray[Any] = self.classes_[probs.argmax(1)]
        return chosen

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> NDArray[Any]:
        """Draw classes of all rows together, each set from one draw of the function: `[N, n_samples]`."""
        drawn, _ = self._function_draws(X, n_samples, random_state)
        codes = drawn[..., 0] if drawn.ndim == 3 else drawn
        sampled: NDArray[Any] = self.classes_[_numpy(codes).astype(np.int64).T]
        return sampled
