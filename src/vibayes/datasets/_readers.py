"""Tables and images as they come from files or from scikit-learn, in original units."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vibayes.datasets.entries import Info
from vibayes.datasets.files import Store
from vibayes.datasets.split import Split
from vibayes.errors import ConfigurationError, DataError

__all__ = ["bundled_table", "image_split", "snelson_split", "uci_table"]

Array = NDArray[Any]


def uci_table(entry: Info, store: Store, split: int | None) -> tuple[Array, Array, Array | None, Array | None]:
    """X, y and the two index arrays of a published split (None if no split is asked for)."""
    keys = ("X", "y") + (() if split is None else (f"train_{split}", f"test_{split}"))
    arrays = store.arrays(entry.files[0], keys, entry.citation)
    X, y = arrays["X"], arrays["y"]
    if X.shape != (entry.n_rows, *entry.input_shape) or y.shape != X.shape[:1]:
        raise DataError(
            f"{entry.files[0]} should hold X {(entry.n_rows, *entry.input_shape)} and y ({entry.n_rows},); "
            f"it holds {X.shape} and {y.shape}."
        )
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise DataError(f"{entry.files[0]} holds values that are NaN or infinite.")
    return X, y, arrays.get(f"train_{split}"), arrays.get(f"test_{split}")


def bundled_table(entry: Info) -> tuple[Array, Array]:
    """X and y of a set that comes with scikit-learn."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ConfigurationError(
            f'{entry.name} comes with scikit-learn, which is not installed: pip install "vibayes[data]".'
        ) from error
    loaders: dict[str, Callable[[], Any]] = {
        "diabetes": lambda: datasets.load_diabetes(scaled=False),
        "linnerud": datasets.load_linnerud,
        "digits": datasets.load_digits,
        "iris": datasets.load_iris,
        "wine_recognition": datasets.load_wine,
        "breast_cancer": datasets.load_breast_cancer,
    }
    bunch = loaders[entry.name]()
    return np.asarray(bunch.data), np.asarray(bunch.target)


def snelson_split(entry: Info, store: Store, dtype: torch.dtype) -> Split:
    """All 200 points as training rows, and the test grid without targets."""
    arrays = store.arrays(entry.files[0], ("x", "y", "x_test"), entry.citation)
    return Split(
        x_train=torch.as_tensor(arrays["x"], dtype=dtype)[:, None],
        y_train=torch.as_tensor(arrays["y"], dtype=dtype),
        x_test=torch.as_tensor(arrays["x_test"], dtype=dtype)[:, None],
        y_test=torch.empty(0, dtype=dtype),
        name=entry.name,
        split=0,
    )


def image_split(
    entry: Info, store: Store, dtype: torch.dtype, n_train: int | None = None, n_test: int | None = None
) -> Split:
    """Images [N, C, H, W] in [0, 1] with labels; only as many as are asked for are decoded and converted."""
    wanted = [size if n is None else min(n, size) for n, size in ((n_train, entry.n_train), (n_test, entry.n_test))]
    parts = _coded(entry, store, wanted) if entry.name in ("cifar10", "utkface") else _plain(entry, store)
    tensors = []
    for (images, labels), n in zip(parts, wanted, strict=True):
        if labels is None:
            y = torch.empty(0, dtype=torch.long)
        else:
            y = torch.as_tensor(labels[:n], dtype=torch.long if entry.task == "classification" else dtype)
        tensors.append((_unit_interval(images[:n], dtype), y))
    (x_train, y_train), (x_test, y_test) = tensors
    return Split(x_train, y_train, x_test, y_test, name=entry.name, split=0)


def _plain(entry: Info, store: Store) -> list[tuple[Array, Array | None]]:
    arrays = store.arrays(entry.files[0], source=entry.citation)
    empty: tuple[Array, Array] = np.empty((0, 28, 28), np.uint8), np.empty(0, np.uint8)
    try:
        if entry.name == "fashion_mnist":
            return [empty, (arrays["x_test"], arrays["y_test"])]
        # SVHN has no labels, and `get` says so with None.
        return [(arrays[f"x_{part}"], arrays.get(f"y_{part}")) for part in ("train", "test")]
    except KeyError as error:
        raise DataError(f"{entry.files[0]} lacks the array {error.args[0]!r}.") from error


def _coded(entry: Info, store: Store, wanted: Sequence[int]) -> list[tuple[Array, Array | None]]:
    if entry.name == "utkface":
        levels, age = store.pixels(entry.files[0], entry.citation)
        images = 4 * levels + 2  # 6 bits to the middle of their cell of 4 grey values
        cut = entry.n_train
        return [(images[:cut], age[:cut]), (images[cut:], age[cut:])]
    batch = entry.n_train // 5
    used = entry.files[: -(-wanted[0] // batch)]
    parts: list[tuple[Array, Array | None]] = []
    for files in (used, entry.files[5:] if wanted[1] else ()):
        pieces = [store.pixels(file, entry.citation) for file in files]
        empty: tuple[Array, Array] = np.empty((0, 32, 32, 3), np.uint8), np.empty(0, np.uint8)
        pieces = pieces or [empty]
        parts.append((np.concatenate([p[0] for p in pieces]), np.concatenate([p[1] for p in pieces])))
    return parts


def _unit_interval(images: Array, dtype: torch.dtype) -> Tensor:
    """Bytes [N, H, W] or [N, H, W, C] to floats [N, C, H, W] in [0, 1]."""
    tensor = torch.from_numpy(np.ascontiguousarray(images))
    tensor = tensor[:, None] if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
    # Made contiguous while still bytes, so that the large array is written once.
    return tensor.contiguous().to(dtype).div_(255)
