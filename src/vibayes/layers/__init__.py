"""Layers: priors over functions."""

from vibayes.layers.base import Layer
from vibayes.layers.batch_norm import BatchNorm
from vibayes.layers.conv2d import Conv2d
from vibayes.layers.gp import GP
from vibayes.layers.inverse_wishart import InverseWishartProcess
from vibayes.layers.linear import Linear

__all__ = ["GP", "BatchNorm", "Conv2d", "InverseWishartProcess", "Layer", "Linear"]
