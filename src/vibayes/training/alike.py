"""Which models can be trained together, as one computation."""

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vibayes.errors import ConfigurationError, ShapeError
from vibayes.trainable import TrainableModel
from vibayes.training.batches import InMemory
from vibayes.training.structure import structure

__all__ = ["check_alike", "check_sizes", "chunk_of_recurrent"]


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
            mine, theirs = found.get(name), expected.get(name)
            if mine != theirs:
                raise ConfigurationError(f"Model {r} differs from model 0 in {name!r}: {mine} instead of {theirs}.")


def chunk_of_recurrent(model: TrainableModel, chunk: int | None) -> int | None:
    """One model at a time where `vmap` cannot stack them, which is torch's word on its recurrent modules."""
    found = next((m for m in model.modules() if isinstance(m, nn.RNNBase | nn.RNNCellBase)), None)
    if found is None:
        return chunk
    if chunk not in (None, 1):
        raise ConfigurationError(
            f"Models with recurrent modules (here {type(found).__name__}) cannot train together, as torch cannot stack "
            "these. Leave out chunk=, and they train one after another."
        )
    return 1


def check_sizes(model: TrainableModel, sources: Sequence[InMemory], chunk: int | None) -> None:
    """Refuse data sets that cannot be filled up to one size, or are of other widths."""
    sizes = {s.batch_size for s in sources}
    full = all(s.batch_size == s.n_data for s in sources)
    if not full and len(sizes) > 1:
        raise ConfigurationError(
            f"With minibatches every data set must have at least batch_size rows; they have "
            f"{sorted(s.n_data for s in sources)} rows. Choose a smaller batch_size, or leave it out."
        )
    if (
        full
        and len(sizes) > 1
        and chunk != 1
        and any(isinstance(m, _BatchNorm) and m.training for m in model.modules())
    ):
        raise ConfigurationError(
            f"Data sets of different sizes ({sorted(sizes)} rows) are filled up to train together, and batch "
            "normalisation would count the rows that fill them. Pass chunk=1, a batch_size, or put it in eval mode."
        )
    shapes = {(tuple(s.data.x.shape[1:]), tuple(s.data.y.shape[1:])) for s in sources}
    if len(shapes) > 1:
        raise ShapeError(f"All data sets must have the same input and target widths; got {sorted(map(str, shapes))}.")
