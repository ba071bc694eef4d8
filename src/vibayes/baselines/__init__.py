"""Approximate Bayes that users compare with: deep ensembles, MC dropout, last-layer Laplace, and IVON."""

from vibayes.baselines.dropout import Dropout
from vibayes.baselines.ensemble import Ensemble, deep_ensemble
from vibayes.baselines.ivon import IvonPosterior, fit_ivon
from vibayes.baselines.laplace import LastLayerLaplace

__all__ = ["Dropout", "Ensemble", "IvonPosterior", "LastLayerLaplace", "deep_ensemble", "fit_ivon"]
