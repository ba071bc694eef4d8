"""Estimators that are Gaussian and deep Gaussian processes.

The arguments are fields of dataclasses, as scikit-learn wants constructors that only store; `fit` checks them.
"""

from dataclasses import dataclass

from vibayes import families
from vibayes.families import Plan, Task
from vibayes.kernels import Kernel
from vibayes.sklearn.base import Estimator
from vibayes.sklearn.tasks import Classifier, Regressor

__all__ = [
    "DeepGPClassifier",
    "DeepGPRegressor",
    "DeepWishartClassifier",
    "DeepWishartRegressor",
    "GPClassifier",
    "GPRegressor",
]


@dataclass(kw_only=True, eq=False, repr=False)
class _GP(Estimator):
    """The arguments of the family, and its model."""

    kernel: str | Kernel = "squared_exponential"
    method: str = "auto"
    n_inducing: int = 200
    restarts: int = 3

    def _plan(self, task: Task) -> Plan:
        return families.gp(
            task, kernel=self.kernel, method=self.method, n_inducing=self.n_inducing, restarts=self.restarts
        )


class GPRegressor(Regressor, _GP):
    """Gaussian process regression.

    Up to 2,000 rows it is exact (closed-form evidence, L-BFGS from several starts); up to 10,000 the sparse `SGPR` with
    its collapsed bound; beyond, a stochastic variational GP on minibatches.

    Args:
        kernel: `"squared_exponential"`, `"matern12"`, `"matern32"`, `"matern52"` or `"rational_quadratic"`, each with
            one lengthscale per column (one for all with fewer than ten training rows per column); or a vibayes kernel.
        method: `"exact"`, `"sgpr"`, `"svgp"`, or `"auto"`.
        n_inducing: inducing points of the sparse methods.
        restarts: starts of the exact GP, of which the one with the best evidence is kept.

    The others (`steps`, `lr`, `batch_size`, `n_samples`, `n_draws`, `standardize`, `seed`, `device`, `dtype`,
    `progress`, `callback`) are those of every estimator; see `vibayes.sklearn.Estimator`.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> gp = GPRegressor(restarts=1).fit(X, np.sin(X[:, 0]))
    >>> mean, std = gp.predict([[0.0], [10.0]], return_std=True)
    >>> bool(abs(mean[0]) < 0.01 and std[1] > 10 * std[0])
    True
    """


class GPClassifier(Classifier, _GP):
    """Gaussian process classification: a sparse variational GP, one function per class (one in all for two classes).

    Args:
        kernel: `"squared_exponential"`, `"matern12"`, `"matern32"`, `"matern52"` or `"rational_quadratic"`, each with
            one lengthscale per column (one for all with fewer than ten training rows per column); or a vibayes kernel.
        method: `"exact"`, `"sgpr"`, `"svgp"`, or `"auto"`.
        n_inducing: inducing points of the sparse methods.
        restarts: starts of the exact GP, of which the one with the best evidence is kept.

    The others (`steps`, `lr`, `batch_size`, `n_samples`, `n_draws`, `standardize`, `seed`, `device`, `dtype`,
    `progress`, `callback`) are those of every estimator; see `vibayes.sklearn.Estimator`.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = GPClassifier(steps=10).fit(X, np.where(X[:, 0] > 0, "up", "down"))
    >>> model.classes_.tolist(), model.predict_proba(X).shape
    (['down', 'up'], (40, 2))
    """


@dataclass(kw_only=True, eq=False, repr=False)
class _DeepGP(Estimator):
    """The arguments of the family, and its model."""

    kernel: str = "squared_exponential"
    depth: int = 2
    width: int | None = None
    n_inducing: int = 100

    def _plan(self, task: Task) -> Plan:
        return families.deep_gp(
            task, kernel=self.kernel, depth=self.depth, width=self.width, n_inducing=self.n_inducing
        )


class DeepGPRegressor(Regressor, _DeepGP):
    """Regression by a deep Gaussian process with global inducing points.

    Args:
        kernel: as for `GPRegressor`, by name.
        depth: number of GP layers.
        width: outputs of the hidden layers; as many as there are columns, at most 30, when None.
        n_inducing: inducing points, which travel through all layers.

    The others (`steps`, `lr`, `batch_size`, `n_samples`, `n_draws`, `standardize`, `seed`, `device`, `dtype`,
    `progress`, `callback`) are those of every estimator; see `vibayes.sklearn.Estimator`.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = DeepGPRegressor(steps=10).fit(X, np.sin(X[:, 0]))
    >>> lower, upper = model.predict_interval(X, 0.9)
    >>> bool((lower < upper).all())
    True
    """


class DeepGPClassifier(Classifier, _DeepGP):
    """Classification by a deep Gaussian process with global inducing points.

    Args:
        kernel: as for `GPRegressor`, by name.
        depth: number of GP layers.
        width: outputs of the hidden layers; as many as there are columns, at most 30, when None.
        n_inducing: inducing points, which travel through all layers.

    The others (`steps`, `lr`, `batch_size`, `n_samples`, `n_draws`, `standardize`, `seed`, `device`, `dtype`,
    `progress`, `callback`) are those of every estimator; see `vibayes.sklearn.Estimator`.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = DeepGPClassifier(steps=10).fit(X, np.where(X[:, 0] > 0, "up", "down"))
    >>> model.classes_.tolist(), model.predict_proba(X).shape
    (['down', 'up'], (40, 2))
    """


@dataclass(kw_only=True, eq=False, repr=False)
class _DeepWishart(Estimator):
    """The arguments of the family, and its model."""

    kernel: str = "squared_exponential"
    depth: int = 2
    width: int | None = None
    n_inducing: int = 100
    mixing: str = "AB"

    def _plan(self, task: Task) -> Plan:
        return families.deep_wishart(
            task, kernel=self.kernel, depth=self.depth, width=self.width, n_inducing=self.n_inducing, mixing=self.mixing
        )


class DeepWishartRegressor(Regressor, _DeepWishart):
    """Regression by a deep Wishart process.

    Args:
        kernel: as for `GPRegressor`, by name.
        depth: number of layers; Gram matrices are drawn in all but the last.
        width: of the hidden layers, their degrees of freedom; as many as there are columns, at most 30, when None.
        n_inducing: inducing points, which travel through all layers.
        mixing: form of the Wishart posterior: `"plain"`, `"A"` or `"AB"`.

    The others (`steps`, `lr`, `batch_size`, `n_samples`, `n_draws`, `standardize`, `seed`, `device`, `dtype`,
    `progress`, `callback`) are those of every estimator; see `vibayes.sklearn.Estimator`.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = DeepWishartRegressor(steps=10).fit(X, np.sin(X[:, 0]))
    >>> lower, upper = model.predict_interval(X, 0.9)
    >>> bool((lower < upper).all())
    True
    """


class DeepWishartClassifier(Classifier, _DeepWishart):
    """Classification by a deep Wishart process.

    Args:
        kernel: as for `GPRegressor`, by name.
        depth: number of layers; Gram matrices are drawn in all but the last.
        width: of the hidden layers, their degrees of freedom; as many as there are columns, at most 30, when None.
        n_inducing: inducing points, which travel through all layers.
        mixing: form of the Wishart posterior: `"plain"`, `"A"` or `"AB"`.

    The others (`steps`, `lr`, `batch_size`, `n_samples`, `n_draws`, `standardize`, `seed`, `device`, `dtype`,
    `progress`, `callback`) are those of every estimator; see `vibayes.sklearn.Estimator`.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = DeepWishartClassifier(steps=10).fit(X, np.where(X[:, 0] > 0, "up", "down"))
    >>> model.classes_.tolist(), model.predict_proba(X).shape
    (['down', 'up'], (40, 2))
    """
