"""Estimators with networks in them: Bayesian neural networks and deep kernels.

The arguments are fields of dataclasses, as scikit-learn wants constructors that only store; `fit` checks them.
"""

from dataclasses import dataclass

from vibayes import families
from vibayes.families import Plan, Task
from vibayes.sklearn.base import Estimator
from vibayes.sklearn.tasks import Classifier, Regressor

__all__ = ["BNNClassifier", "BNNRegressor", "DKLClassifier", "DKLRegressor"]


@dataclass(kw_only=True, eq=False, repr=False)
class _BNN(Estimator):
    """The arguments of the family, and its model."""

    depth: int = 2
    width: int = 50
    n_inducing: int = 100
    posterior: str = "global_inducing"
    prior: str = "neal"

    def _plan(self, task: Task) -> Plan:
        return families.bnn(
            task,
            depth=self.depth,
            width=self.width,
            n_inducing=self.n_inducing,
            posterior=self.posterior,
            prior=self.prior,
        )


class BNNRegressor(Regressor, _BNN):
    """Regression by a Bayesian neural network.

    Args:
        depth: number of hidden layers, with ReLU behind each.
        width: units of a hidden layer.
        n_inducing: inducing points of the global inducing posterior.
        posterior: `"global_inducing"` (correlated over layers) or `"mean_field"`.
        prior: of the weights: `"neal"`, `"standard"` or `"scale"`.

    The others (`steps`, `lr`, `batch_size`, `n_samples`, `n_draws`, `standardize`, `seed`, `device`, `dtype`,
    `progress`, `callback`) are those of every estimator; see `vibayes.sklearn.Estimator`.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = BNNRegressor(steps=10).fit(X, np.sin(X[:, 0]))
    >>> lower, upper = model.predict_interval(X, 0.9)
    >>> bool((lower < upper).all())
    True
    """


class BNNClassifier(Classifier, _BNN):
    """Classification by a Bayesian neural network.

    Args:
        depth: number of hidden layers, with ReLU behind each.
        width: units of a hidden layer.
        n_inducing: inducing points of the global inducing posterior.
        posterior: `"global_inducing"` (correlated over layers) or `"mean_field"`.
        prior: of the weights: `"neal"`, `"standard"` or `"scale"`.

    The others (`steps`, `lr`, `batch_size`, `n_samples`, `n_draws`, `standardize`, `seed`, `device`, `dtype`,
    `progress`, `callback`) are those of every estimator; see `vibayes.sklearn.Estimator`.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = BNNClassifier(steps=10).fit(X, np.where(X[:, 0] > 0, "up", "down"))
    >>> model.classes_.tolist(), model.predict_proba(X).shape
    (['down', 'up'], (40, 2))
    """


@dataclass(kw_only=True, eq=False, repr=False)
class _DKL(Estimator):
    """The arguments of the family, and its model."""

    kernel: str = "squared_exponential"
    depth: int = 2
    width: int = 50
    n_features: int = 5
    n_inducing: int = 100
    lr: float | None = 1e-3

    def _plan(self, task: Task) -> Plan:
        return families.deep_kernel(
            task,
            kernel=self.kernel,
            depth=self.depth,
            width=self.width,
            n_features=self.n_features,
            n_inducing=self.n_inducing,
        )


class DKLRegressor(Regressor, _DKL):
    """Regression by deep kernel learning: a network's features, and a sparse Gaussian process on them.

    The network's weights are hyperparameters, of which there are many: `elbo_` rewards overfitting (thesis, chapter
    "Deep kernel learning"). Choose between models by held-out `log_prob` instead. Small minibatches (by default
    50 rows) and small steps hold the overfitting back.

    Args:
        kernel: of the features; as for `GPRegressor`, by name.
        depth: number of hidden layers of the network, with ReLU behind each.
        width: units of a hidden layer.
        n_features: features that the network gives to the GP.
        n_inducing: inducing points, in the space of the features.

    The others (`steps`, `lr`, `batch_size`, `n_samples`, `n_draws`, `standardize`, `seed`, `device`, `dtype`,
    `progress`, `callback`) are those of every estimator; see `vibayes.sklearn.Estimator`.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = DKLRegressor(steps=10).fit(X, np.sin(X[:, 0]))
    >>> lower, upper = model.predict_interval(X, 0.9)
    >>> bool((lower < upper).all())
    True
    """


class DKLClassifier(Classifier, _DKL):
    """Classification by deep kernel learning: a network's features, and sparse Gaussian processes on them.

    The network's weights are hyperparameters, of which there are many: `elbo_` rewards overfitting (thesis, chapter
    "Deep kernel learning"). Choose between models by held-out `log_prob` instead. Small minibatches (by default
    50 rows) and small steps hold the overfitting back.

    Args:
        kernel: of the features; as for `GPRegressor`, by name.
        depth: number of hidden layers of the network, with ReLU behind each.
        width: units of a hidden layer.
        n_features: features that the network gives to the GP.
        n_inducing: inducing points, in the space of the features.

    The others (`steps`, `lr`, `batch_size`, `n_samples`, `n_draws`, `standardize`, `seed`, `device`, `dtype`,
    `progress`, `callback`) are those of every estimator; see `vibayes.sklearn.Estimator`.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = DKLClassifier(steps=10).fit(X, np.where(X[:, 0] > 0, "up", "down"))
    >>> model.classes_.tolist(), model.predict_proba(X).shape
    (['down', 'up'], (40, 2))
    """
