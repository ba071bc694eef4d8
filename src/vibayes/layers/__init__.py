"""Layers: priors over functions."""

from vibayes.layers.base import Layer
from vibayes.layers.gp import GP

__all__ = ["GP", "Layer"]
