"""Posteriors: the approximating families a layer can be given."""

from vibayes.posteriors.base import Posterior
from vibayes.posteriors.from_prior import FromPrior
from vibayes.posteriors.global_inducing import GlobalInducing
from vibayes.posteriors.local_inducing import LocalInducing
from vibayes.posteriors.mean_field import MeanField
from vibayes.posteriors.natural import NaturalSites
from vibayes.posteriors.point import Point
from vibayes.posteriors.wishart import GeneralizedWishart

__all__ = [
    "FromPrior",
    "GeneralizedWishart",
    "GlobalInducing",
    "LocalInducing",
    "MeanField",
    "NaturalSites",
    "Point",
    "Posterior",
]
