"""Closed-form models: their evidence, or the best bound on it, without sampling."""

from vibayes.conjugate.exact_gp import ExactGP, LogMarginalLikelihood
from vibayes.conjugate.features import GaussianBumps, PolynomialFeatures
from vibayes.conjugate.linear_regression import LinearRegression, WeightPosterior
from vibayes.conjugate.sgpr import SGPR

__all__ = [
    "SGPR",
    "ExactGP",
    "GaussianBumps",
    "LinearRegression",
    "LogMarginalLikelihood",
    "PolynomialFeatures",
    "WeightPosterior",
]
