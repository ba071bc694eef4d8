"""Variational Bayesian models on PyTorch: build, train and compare them as easily as with `torch.nn`."""

from vibayes import datasets, metrics
from vibayes.bound import Elbo
from vibayes.conjugate import SGPR, ExactGP, LinearRegression
from vibayes.errors import (
    ConfigurationError,
    DataError,
    NotFittedError,
    NotPositiveDefiniteError,
    ShapeError,
    TrainingError,
    VibayesError,
)
from vibayes.inducing import choose_inducing
from vibayes.kernels import (
    ActiveDimensions,
    ArcCosine,
    Constant,
    Kernel,
    LinearKernel,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
    White,
)
from vibayes.layers import GP
from vibayes.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)
from vibayes.means import ConstantMean, IdentityMean, LinearMean, ZeroMean
from vibayes.model import Model
from vibayes.parameters import Positive, Real
from vibayes.posteriors import FromPrior, GeneralizedWishart, GlobalInducing, LocalInducing
from vibayes.prediction import Prediction
from vibayes.training import History, fit, fit_many, schedules

__version__ = "0.1.0"

__all__ = [
    "GP",
    "SGPR",
    "ActiveDimensions",
    "ArcCosine",
    "Bernoulli",
    "Categorical",
    "ConfigurationError",
    "Constant",
    "ConstantMean",
    "DataError",
    "Elbo",
    "ExactGP",
    "FromPrior",
    "Gaussian",
    "GeneralizedWishart",
    "GlobalInducing",
    "HeteroscedasticGaussian",
    "History",
    "IdentityMean",
    "Kernel",
    "Likelihood",
    "LinearKernel",
    "LinearMean",
    "LinearRegression",
    "LocalInducing",
    "Matern12",
    "Matern32",
    "Matern52",
    "Model",
    "NotFittedError",
    "NotPositiveDefiniteError",
    "Periodic",
    "Poisson",
    "Polynomial",
    "Positive",
    "Prediction",
    "Product",
    "RationalQuadratic",
    "Real",
    "Scaled",
    "ShapeError",
    "SquaredExponential",
    "StudentT",
    "Sum",
    "TrainingError",
    "VibayesError",
    "White",
    "ZeroMean",
    "choose_inducing",
    "datasets",
    "fit",
    "fit_many",
    "metrics",
    "schedules",
]
