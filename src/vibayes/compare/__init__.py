"""From a table to a ranking of models: train the families that suit it, compare their evidence, write a report."""

from vibayes.compare.comparison import DEFAULT_BUDGET, Comparison, Validation, compare
from vibayes.compare.data import Data, prepare
from vibayes.compare.display import Display
from vibayes.compare.families import FAMILIES, Family, Problem, choose
from vibayes.compare.output import write
from vibayes.compare.ranking import Difference, Result, paired, rank
from vibayes.compare.table_model import TableModel, prediction_csv, prediction_frame

__all__ = [
    "DEFAULT_BUDGET",
    "FAMILIES",
    "Comparison",
    "Data",
    "Difference",
    "Display",
    "Family",
    "Problem",
    "Result",
    "TableModel",
    "Validation",
    "choose",
    "compare",
    "paired",
    "prediction_csv",
    "prediction_frame",
    "prepare",
    "rank",
    "write",
]
