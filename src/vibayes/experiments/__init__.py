"""Experiments: the figures and tables of the thesis, with their numbers beside the published ones.

`vibayes bench run NAME`, or without the command line's extras `python -m vibayes.experiments run NAME`.
"""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from vibayes.errors import ConfigurationError
from vibayes.experiments.catalogue import EXPERIMENTS, get, register
from vibayes.experiments.experiment import Experiment, ModelSpec
from vibayes.experiments.starting import start

__all__ = ["EXPERIMENTS", "Event", "Experiment", "ModelSpec", "get", "register", "run", "start"]

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
    """Run an experiment that draws figures and write them and one result file into a folder.

    Args:
        name: an experiment with a script, such as `"intro"`; `vibayes.experiments.runner` runs sweeps.
        out: the folder; made if it does not exist.
        figures: which figures, by name or label; all when None.
        seed: of what is drawn at random.
        report: called after every figure.

    Returns:
        What the result file says.
    """
    experiment = get(name)
    if not experiment.script:
        raise ConfigurationError(f"{experiment.name} draws no figures of its own; use `vibayes bench run`.")
    found: dict[str, Any] = import_module(experiment.script).run(out, figures=figures, seed=seed, report=report)
    return found
