"""Experiments: the figures and tables of the thesis, with their numbers beside the published ones.

`vibayes bench run NAME`, or without the command line's extras `python -m vibayes.experiments run NAME`.
"""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from vibayes.experiments.names import check_name

__all__ = ["EXPERIMENTS", "Event", "run"]

# Each name is a module here with a function `run(out, figures, seed, report)`, imported when it is wanted.
EXPERIMENTS = {
    "intro": "figures of chapters 1 and 2: linear regression, Gaussian processes, sparse GPs, a symmetric posterior",
}

# Called after every figure with its short name and its entry of the result file.
Event = Callable[[str, dict[str, Any]], None]


def run(
    name: str,
    out: str | os.PathLike[str],
    *,
    figures: Sequence[str] | None = None,
    seed: int = 0,
    report: Event | None = None,
) -> dict[str, Any]:
    """Run an experiment and write its figures and one result file into a folder.

    Args:
        name: one of `EXPERIMENTS`.
        out: the folder; made if it does not exist.
        figures: which figures, by name or label; all when None.
        seed: of what is drawn at random.
        report: called after every figure.

    Returns:
        What the result file says.
    """
    module = import_module(f"vibayes.experiments.{check_name(name, EXPERIMENTS, 'experiment')}")
    found: dict[str, Any] = module.run(out, figures=figures, seed=seed, report=report)
    return found
