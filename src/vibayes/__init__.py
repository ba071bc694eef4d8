"""Variational Bayesian models on PyTorch: build, train and compare them as easily as with `torch.nn`."""

from vibayes import augment, datasets, evidence, mcmc, metrics, stages
from vibayes.bound import Elbo
from vibayes.conjugate import SGPR, ExactGP, LinearRegression
from vibayes.convert import bayesianize
from vibayes.diagnostics import diagnose
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
    DeepKernel,
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
from vibayes.layers import GP, BatchNorm, Conv2d, InverseWishartProcess, Linear
from vibayes.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)
from vibayes.mcmc import Chains, sample_posterior
from vibayes.means import ConstantMean, IdentityMean, LinearMean, ZeroMean
from vibayes.model import Model
from vibayes.parameters import Positive, Real
from vibayes.posteriors import FromPrior, GeneralizedWishart, GlobalInducing, LocalInducing, MeanField, Point
from vibayes.prediction import Prediction
from vibayes.pretraining import pretrain
from vibayes.priors import NealPrior, ScalePrior, StandardPrior
from vibayes.saving import load
from vibayes.spatial_prior import SpatialIWPrior
from vibayes.training import History, fit, fit_many, schedules

__version__ = "0.1.0"

__all__ = [
    "GP",
    "SGPR",
    "ActiveDimensions",
    "ArcCosine",
    "BatchNorm",
    "Bernoulli",
    "Categorical",
    "Chains",
    "ConfigurationError",
    "Constant",
    "ConstantMean",
    "Conv2d",
    "DataError",
    "DeepKernel",
    "Elbo",
    "ExactGP",
    "FromPrior",
    "Gaussian",
    "GeneralizedWishart",
    "GlobalInducing",
    "HeteroscedasticGaussian",
    "History",
    "IdentityMean",
    "InverseWishartProcess",
    "Kernel",
    "Likelihood",
    "Linear",
    "LinearKernel",
    "LinearMean",
    "LinearRegression",
    "LocalInducing",
    "Matern12",
    "Matern32",
    "Matern52",
    "MeanField",
    "Model",
    "NealPrior",
    "NotFittedError",
    "NotPositiveDefiniteError",
    "Periodic",
    "Point",
    "Poisson",
    "Polynomial",
    "Positive",
    "Prediction",
    "Product",
    "RationalQuadratic",
    "Real",
    "ScalePrior",
    "Scaled",
    "ShapeError",
    "SpatialIWPrior",
    "SquaredExponential",
    "StandardPrior",
    "StudentT",
    "Sum",
    "TrainingError",
    "VibayesError",
    "White",
    "ZeroMean",
    "augment",
    "bayesianize",
    "choose_inducing",
    "datasets",
    "diagnose",
    "evidence",
    "fit",
    "fit_many",
    "load",
    "mcmc",
    "metrics",
    "pretrain",
    "sample_posterior",
    "schedules",
    "stages",
]
