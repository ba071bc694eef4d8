"""Estimates of the marginal likelihood: annealed importance sampling, and importance-weighted bounds."""

from vibayes.evidence.ais import Annealing, ais, anneal, reverse_ais
from vibayes.evidence.estimate import Evidence, importance_weighted

__all__ = ["Annealing", "Evidence", "ais", "anneal", "importance_weighted", "reverse_ais"]
