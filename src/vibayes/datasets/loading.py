"""`load`: a data set by name, with a published or a random split, in the units asked for."""

import operator
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from vibayes.datasets import toys
from vibayes.datasets._random import random_state
from vibayes.datasets._readers import bundled_table, image_split, snelson_split, uci_table
from vibayes.datasets.catalogue import info
from vibayes.datasets.entries import Info
from vibayes.datasets.files import Store
from vibayes.datasets.split import Split, Standardize
from vibayes.errors import ConfigurationError

__all__ = ["load", "random_indices"]

_GENERATED: dict[str, Callable[..., Split]] = {
    "cubic": toys.cubic,
    "deep_linear": toys.deep_linear,
    "deep_gp": toys.deep_gp,
    "gaussian_bumps": toys.gaussian_bumps,
}


def random_indices(n: int, seed: int, test_fraction: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Training and test row numbers of a random split.

    `numpy.random.RandomState(seed).permutation(n)`, of which the first `round((1 - test_fraction) n)` rows
    train and the others test. That stream is frozen by numpy, so a seed names the same split everywhere.

    Example:
        >>> train, test = random_indices(10, seed=0)
        >>> train.tolist(), test.tolist()
        ([2, 8, 4, 9, 1, 6, 7, 3, 0], [5])
    """
    n_train = round((1 - test_fraction) * n)
    if not 0 < n_train < n:
        raise ConfigurationError(
            f"test_fraction={test_fraction} of {n} rows leaves {n_train} for training and {n - n_train} for "
            "testing; both need at least one."
        )
    order = random_state(seed).permutation(n)
    return order[:n_train], order[n_train:]


def load(
    name: str,
    split: int | Literal["random"] | None = None,
    *,
    seed: int | None = None,
    test_fraction: float | None = None,
    standardize: Standardize | None = None,
    ddof: int = 0,
    n_train: int | None = None,
    n_test: int | None = None,
    every: int = 1,
    full_statistics: bool = False,
    dtype: torch.dtype | None = None,
    root: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    mirror: str | None = None,
    verify: bool = True,
) -> Split:
    """Load a data set.

    Args:
        name: one of `names()`.
        split: the number of a published split, or "random". If not given: published split 0, or a random
            split where none is published (sets bundled with scikit-learn) or where a seed is given.
        seed: of a random split or a generated set; 0 if not given. See `random_indices`.
        test_fraction: part of the rows that a random split keeps for testing; 0.1 if not given.
        standardize: "inputs", "targets" or "both" by statistics of the training rows (see
            `Split.standardized`); None leaves the original units.
        ddof: 0 for the denominator n in those variances, 1 for n - 1.
        n_train: keep the first rows of the training part only.
        n_test: keep the first rows of the test part only.
        every: keep every k-th training row, k = `every`, before `n_train` counts.
        full_statistics: with `n_train` or `every`, take the statistics from all training rows and not only
            from those kept.
        dtype: of inputs and real targets. If not given: float64, for images float32.
        root: folder with `uci/`, `toy/`, `images/`; default `$VIBAYES_DATA`.
        cache: folder for downloads and decoded images; default `$VIBAYES_CACHE` or the platform's.
        mirror: address of a mirror for missing files; default `$VIBAYES_DATA_URL`, else nothing is
            downloaded.
        verify: whether files must have their known SHA-256.

    Returns:
        A `Split`; images are [N, C, H, W] in [0, 1], class labels are long.

    Raises:
        ConfigurationError: an unknown name (with the nearest one), split or option.
        DataError: a missing or damaged file.

    Example:
        >>> load("diabetes", seed=3, standardize="both")
        Split('diabetes', seed=3, train=398, test=44, inputs=(10,), standardize='both')
    """
    entry = info(name)
    store = Store(root, cache, mirror, verify)
    number, seed = _choose(entry, split, seed, test_fraction)
    dtype = dtype or (torch.float32 if entry.kind == "image" else torch.float64)
    if not dtype.is_floating_point:
        raise ConfigurationError(f"dtype must be a floating-point type; got {dtype}.")
    if entry.kind == "image":
        whole = full_statistics or every != 1
        data = image_split(entry, store, dtype, None if whole else n_train, n_test)
    elif entry.kind == "toy":
        data = snelson_split(entry, store, dtype)
    elif entry.kind == "generated":
        data = _GENERATED[entry.name](seed=seed, dtype=dtype)
    else:
        data = _table_split(entry, store, number, seed, 0.1 if test_fraction is None else test_fraction, dtype)

    fewer = (n_train, n_test, every) != (None, None, 1)
    if standardize is not None and full_statistics:
        data = data.standardized(standardize, ddof=ddof)
    if fewer:
        data = data.subset(n_train, n_test, every)
    if standardize is not None and not full_statistics:
        data = data.standardized(standardize, ddof=ddof)
    return data


def _choose(
    entry: Info, split: int | str | None, seed: int | None, test_fraction: float | None
) -> tuple[int | None, int | None]:
    """The number of the published split or the seed: exactly one of the two is not None."""
    if entry.kind == "generated":
        if split is not None or test_fraction is not None:
            raise ConfigurationError(f"{entry.name} is generated by its seed; it takes no split or test_fraction.")
        return None, 0 if seed is None else seed
    if split is None:
        # A seed alone asks for a random split, of those sets that allow one.
        split = "random" if seed is not None or entry.kind == "bundled" else 0
    if split == "random":
        if entry.kind not in ("table", "bundled"):
            raise ConfigurationError(f"{entry.name} has one fixed split; leave out split and seed.")
        return None, 0 if seed is None else seed
    if isinstance(split, str):
        raise ConfigurationError(f'split must be the number of a published split or "random"; got {split!r}.')
    if entry.n_splits == 0:
        raise ConfigurationError(
            f'{entry.name} has no published splits; in place of split={split} use split="random" with a seed.'
        )
    try:
        number = operator.index(split)
    except TypeError as error:
        raise ConfigurationError(
            f'split must be the number of a published split or "random"; got {split!r}.'
        ) from error
    if not 0 <= number < entry.n_splits:
        count = "one split, 0" if entry.n_splits == 1 else f"{entry.n_splits} splits, 0 to {entry.n_splits - 1}"
        raise ConfigurationError(f"{entry.name} has {count}; got split={split}.")
    if seed is not None or test_fraction is not None:
        raise ConfigurationError(
            f'seed and test_fraction belong to split="random"; {entry.name} split={split} is a published one.'
        )
    return number, None


def _table_split(
    entry: Info, store: Store, number: int | None, seed: int | None, test_fraction: float, dtype: torch.dtype
) -> Split:
    if entry.kind == "bundled":
        X, y = bundled_table(entry)
        train, test = None, None
    else:
        X, y, train, test = uci_table(entry, store, number)
    if train is None or test is None:
        train, test = random_indices(len(X), 0 if seed is None else seed, test_fraction)
    y_dtype = torch.long if entry.task == "classification" else dtype
    inputs, targets = torch.as_tensor(X, dtype=dtype), torch.as_tensor(y, dtype=y_dtype)
    rows: dict[str, Any] = {
        "train_index": torch.as_tensor(train, dtype=torch.long),
        "test_index": torch.as_tensor(test, dtype=torch.long),
    }
    parts = Split(
        x_train=inputs[rows["train_index"]],
        y_train=targets[rows["train_index"]],
        x_test=inputs[rows["test_index"]],
        y_test=targets[rows["test_index"]],
        name=entry.name,
    )
    return replace(parts, split=number, seed=seed, metadata=rows)
