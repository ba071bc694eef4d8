"""Which models can be trained together, as one computation."""

from collections.abc import Sequence
from typing import Any

from vibayes.errors import ConfigurationError, ShapeError
from vibayes.trainable import TrainableModel
from vibayes.training.batches import InMemory
from vibayes.training.structure import structure

__all__ = ["check_alike", "check_sizes"]


def check_alike(models: Sequence[TrainableModel]) -> None:
    """Refuse models that one computation cannot serve: the stacked step runs the first one's Python code."""
    expected = structure(models[0])
    for r, model in enumerate(models):
        if not isinstance(model, TrainableModel):
            raise ConfigurationError(f"Model {r} is a {type(model).__name__}; fit_many trains vibayes models.")
        if any(model is other for other in models[:r]):
            raise ConfigurationError(f"Model {r} is the same object as an earlier one; build one per data set.")
        found = structure(model)
        for name in expected | found:
            if found.get(name) != expected.get(name):
                what = _difference(found.get(name), expected.get(name))
                raise ConfigurationError(f"Model {r} differs from model 0 in {name!r}: {what}.")


def _difference(mine: tuple[Any, ...] | None, theirs: tuple[Any, ...] | None) -> str:
    """What of one entry of two structures is not the same, in words."""
    if mine is None or theirs is None:
        return "one of them has none"
    if mine[0] != theirs[0]:  # classes of modules, shapes of parameters
        return f"{mine[0]} instead of {theirs[0]}"
    if not isinstance(mine[1], dict):
        return f"{mine[1:]} instead of {theirs[1:]}"
    values = {key: (mine[1].get(key), theirs[1].get(key)) for key in mine[1] | theirs[1]}
    return ", ".join(
        f"{key} is {new!r} instead of {old!r}" if isinstance(new, bool | int | float | str) else f"another {key}"
        for key, (new, old) in values.items()
        if new != old
    )


def check_sizes(sources: Sequence[InMemory]) -> None:
    """Refuse data sets that cannot be filled up to one size, or are of other widths."""
    sizes = {s.batch_size for s in sources}
    full = all(s.batch_size == s.n_data for s in sources)
    if not full and len(sizes) > 1:
        raise ConfigurationError(
            f"With minibatches every data set must have at least batch_size rows; they have "
            f"{sorted(s.n_data for s in sources)} rows. Choose a smaller batch_size, or leave it out."
        )
    shapes = {(tuple(s.data.x.shape[1:]), tuple(s.data.y.shape[1:])) for s in sources}
    if len(shapes) > 1:
        raise ShapeError(f"All data sets must have the same input and target widths; got {sorted(map(str, shapes))}.")
