"""Likelihoods: how probable the targets are, given the function."""

from vibayes.likelihoods.base import Likelihood
from vibayes.likelihoods.discrete import Bernoulli, Categorical, Poisson
from vibayes.likelihoods.discrete_mixtures import BernoulliMixture, CategoricalMixture, PoissonMixture
from vibayes.likelihoods.mixtures import Mixture
from vibayes.likelihoods.regression import Gaussian, HeteroscedasticGaussian, StudentT
from vibayes.likelihoods.regression_mixtures import (
    ContinuousMixture,
    GaussianMixture,
    HeteroscedasticMixture,
    StudentTMixture,
)

__all__ = [
    "Bernoulli",
    "BernoulliMixture",
    "Categorical",
    "CategoricalMixture",
    "ContinuousMixture",
    "Gaussian",
    "GaussianMixture",
    "HeteroscedasticGaussian",
    "HeteroscedasticMixture",
    "Likelihood",
    "Mixture",
    "Poisson",
    "PoissonMixture",
    "StudentT",
    "StudentTMixture",
]
