"""The names of the data sets, and the description of each."""

import difflib

from vibayes.datasets.entries import ENTRIES, Info, Kind, Task
from vibayes.errors import ConfigurationError

__all__ = ["info", "names"]

_BY_NAME = {entry.name: entry for entry in ENTRIES}


def names(*, kind: Kind | None = None, task: Task | None = None) -> list[str]:
    """The names that `load` takes.

    Args:
        kind: only "table", "image", "toy", "bundled" or "generated" sets.
        task: only "regression", "classification" or "unlabelled" sets.

    Example:
        >>> names(kind="generated")
        ['cubic', 'deep_linear', 'deep_gp', 'gaussian_bumps']
    """
    return [e.name for e in ENTRIES if kind in (None, e.kind) and task in (None, e.task)]


def info(name: str) -> Info:
    """The description of a data set.

    Example:
        >>> info("boston").input_shape, info("boston").n_splits
        ((13,), 20)
        >>> info("bostn")
        Traceback (most recent call last):
        ...
        vibayes.errors.ConfigurationError: There is no data set 'bostn'. Did you mean 'boston'? Known: ...
    """
    key = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    if key in _BY_NAME:
        return _BY_NAME[key]
    close = difflib.get_close_matches(key, _BY_NAME, n=1, cutoff=0.5)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    raise ConfigurationError(f"There is no data set {name!r}.{guess} Known: {', '.join(_BY_NAME)}.")
