"""Estimators with networks in them: Bayesian neural networks and deep kernels.

As scikit-learn wants it, constructors only store their arguments; these are checked in `fit`.
"""

from vibayes import families
from vibayes.families import Plan, Task
from vibayes.sklearn.base import Estimator
from vibayes.sklearn.tasks import Classifier, Regressor
from vibayes.training.history import Callback

__all__ = ["BNNClassifier", "BNNRegressor", "DKLClassifier", "DKLRegressor"]


class _BNN(Estimator):
    """The arguments of the family, and its model."""

    def __init__(
        self,
        *,
        depth: int = 2,
        width: int = 50,
        n_inducing: int = 100,
        posterior: str = "global_inducing",
        prior: str = "neal",
        steps: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        n_samples: int | None = None,
        n_draws: int = 100,
        standardize: bool = True,
        seed: int = 0,
        device: str | None = None,
        dtype: str = "float64",
        progress: bool = False,
        callback: Callback | None = None,
    ) -> None:
        self.depth = depth
        self.width = width
        self.n_inducing = n_inducing
        self.posterior = posterior
        self.prior = prior
        self.steps = steps
        self.lr = lr
        self.batch_size = batch_size
        self.n_samples = n_samples
        self.n_draws = n_draws
        self.standardize = standardize
        self.seed = seed
        self.device = device
        self.dtype = dtype
        self.progress = progress
        self.callback = callback

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


class _DKL(Estimator):
    """The arguments of the family, and its model."""

    def __init__(
        self,
        *,
        kernel: str = "squared_exponential",
        depth: int = 2,
        width: int = 50,
        n_features: int = 5,
        n_inducing: int = 100,
        steps: int | None = None,
        lr: float = 1e-3,
        batch_size: int | None = None,
        n_samples: int | None = None,
        n_draws: int = 100,
        standardize: bool = True,
        seed: int = 0,
        device: str | None = None,
        dtype: str = "float64",
        progress: bool = False,
        callback: Callback | None = None,
    ) -> None:
        self.kernel = kernel
        self.depth = depth
        self.width = width
        self.n_features = n_features
        self.n_inducing = n_inducing
        self.steps = steps
        self.lr = lr
        self.batch_size = batch_size
        self.n_samples = n_samples
        self.n_draws = n_draws
        self.standardize = standardize
        self.seed = seed
        self.device = device
        self.dtype = dtype
        self.progress = progress
        self.callback = callback

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
