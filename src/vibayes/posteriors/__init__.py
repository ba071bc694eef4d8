"""Posteriors: the approximating families a layer can be given."""

from vibayes.posteriors.base import Posterior
from vibayes.posteriors.local_inducing import LocalInducing

__all__ = ["LocalInducing", "Posterior"]
