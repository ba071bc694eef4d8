"""Distributions over matrices: Wishart, inverse Wishart, generalized singular Wishart, matrix normal.

They follow `torch.distributions`, work inside `torch.func.vmap`, and take prepared noise.
"""

import vibayes.distributions.divergences  # noqa: F401  (registers them with torch)
from vibayes.distributions.bartlett import FactorSample
from vibayes.distributions.generalized_wishart import GeneralizedSingularWishart
from vibayes.distributions.inverse_wishart import InverseWishart
from vibayes.distributions.lower_upper import LowerUpper
from vibayes.distributions.matrix_normal import MatrixNormal
from vibayes.distributions.wishart import Wishart

__all__ = [
    "FactorSample",
    "GeneralizedSingularWishart",
    "InverseWishart",
    "LowerUpper",
    "MatrixNormal",
    "Wishart",
]
