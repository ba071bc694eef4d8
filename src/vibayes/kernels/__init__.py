"""Kernels: covariance functions of rows, and how to combine them."""

from vibayes.kernels.base import Kernel
from vibayes.kernels.combinations import ActiveDimensions, Product, Scaled, Sum
from vibayes.kernels.deep import DeepKernel, lipschitz_bound, spectral_normalize
from vibayes.kernels.dot_product import ArcCosine, LinearKernel, Polynomial
from vibayes.kernels.stationary import (
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    SquaredExponential,
)
from vibayes.kernels.white import Constant, White

__all__ = [
    "ActiveDimensions",
    "ArcCosine",
    "Constant",
    "DeepKernel",
    "Kernel",
    "LinearKernel",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "SquaredExponential",
    "Sum",
    "White",
    "lipschitz_bound",
    "spectral_normalize",
]
