"""Figures of predictions, training and calibration, in one style.

Every function draws on the axes it is given, or on a figure of its own, and returns the axes (`ax.figure` is
the figure; those with several panels return the figure). Nothing is shown, and pyplot's state and backend stay as they
are: figures are made without it and rendered to files with `save`. Colours are those of Okabe and Ito, which
colour-blind readers can tell apart. Needs matplotlib: `pip install "vibayes[plots]"`.
"""

from vibayes._figures import COLOURS, save, style
from vibayes.plotting.functions import compare_1d, posterior_1d, posterior_2d
from vibayes.plotting.inside import correlation_functions, layer_features
from vibayes.plotting.scores import calibration_curve, coverage, learning_curve, ranking

__all__ = [
    "COLOURS",
    "calibration_curve",
    "compare_1d",
    "correlation_functions",
    "coverage",
    "layer_features",
    "learning_curve",
    "posterior_1d",
    "posterior_2d",
    "ranking",
    "save",
    "style",
]
