"""scikit-learn estimators: Gaussian and deep Gaussian processes, Bayesian networks and deep kernels.

Needs scikit-learn: `pip install "vibayes[sklearn]"`.
"""

from vibayes.errors import ConfigurationError

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ConfigurationError('vibayes.sklearn needs scikit-learn: pip install "vibayes[sklearn]".') from error

from vibayes.sklearn.base import Estimator
from vibayes.sklearn.networks import BNNClassifier, BNNRegressor, DKLClassifier, DKLRegressor
from vibayes.sklearn.processes import (
    DeepGPClassifier,
    DeepGPRegressor,
    DeepWishartClassifier,
    DeepWishartRegressor,
    GPClassifier,
    GPRegressor,
)

__all__ = [
    "BNNClassifier",
    "BNNRegressor",
    "DKLClassifier",
    "DKLRegressor",
    "DeepGPClassifier",
    "DeepGPRegressor",
    "DeepWishartClassifier",
    "DeepWishartRegressor",
    "Estimator",
    "GPClassifier",
    "GPRegressor",
]
