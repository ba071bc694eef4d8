"""Seeing when the evidence overfits: correlations, features, the split of the evidence, gaps, and a report."""

from vibayes.diagnostics.monitor import Monitor
from vibayes.diagnostics.prior import correlation, effective_rank, features
from vibayes.diagnostics.report import Diagnosis, diagnose

__all__ = ["Diagnosis", "Monitor", "correlation", "diagnose", "effective_rank", "features"]
