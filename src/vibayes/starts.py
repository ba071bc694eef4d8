"""Starting values from data: which rows they look at, what they refuse, and function values that fit targets."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.data import as_rows
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.kernels.deep import check_features
from vibayes.layers.base import Layer, rows_given
from vibayes.layers.batch_norm import BatchNorm
from vibayes.likelihoods import Likelihood
from vibayes.modes import keeping_averages
from vibayes.survey import ends

if TYPE_CHECKING:
    from vibayes.model import Model
    from vibayes.trainable import Batch

__all__ = [
    "catching_rows",
    "check_outputs",
    "checking_features",
    "inducing_rows",
    "latent_targets",
    "nearest_rows",
    "some_rows",
    "start",
]

# How many training rows data-dependent starts look at, and how many numbers of images that only show their shapes.
_START_ROWS = 20_000
_START_NUMBERS = 1_000_000


def start(model: "Model", batch: "Batch") -> None:
    """Set all starting values of a model that look at data: those of inducing inputs, layers and last targets."""
    first, _ = ends(model.network)
    if model.inducing is not None:
        model.inducing.copy_(model.units.inputs(model._given_inducing.to(model.inducing.device)))
    if isinstance(first, Layer):
        first.posterior.to_units(model.units, first)
    x = some_rows(batch.x, model.layers.values())
    draw = Draw(n_inducing=model.n_inducing, jitter=model.jitter, zero=model.jitter.new_zeros(()), initializing=True)
    entry, last = next(iter(model.layers.values())), model.output_layer
    with keeping_averages(model.network), checking_features(entry, first, x), catching_rows(last) as caught:
        mean, _, _ = model._pass(x, draw)
    model._width = mean.shape[1]
    check_outputs(model._width, batch.y, model.likelihood)
    if model.inducing is not None and last is not None:
        nearest = nearest_rows(model.inducing, batch.x)
        offset = last.offset(caught[0][: len(nearest)]).expand(len(nearest), model._width)
        last.posterior.initialize_targets(latent_targets(batch.y[nearest], model.likelihood.kind, offset))


def some_rows(x: Tensor, layers: Iterable[Layer]) -> Tensor:
    """As many rows as these layers need for their starts, chosen at random, since rows may be sorted."""
    most = _START_ROWS
    if x.ndim > 2 and not any(layer.posterior.starts_at_rows(layer) for layer in layers):
        most = max(1, min(most, _START_NUMBERS // x[0].numel()))
    if len(x) <= most:
        return x
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:most].to(x.device)]


def nearest_rows(z: Tensor, x: Tensor) -> Tensor:
    """For each of some rows which of others is the nearest one."""
    least = torch.full((len(z),), math.inf, dtype=z.dtype, device=z.device)
    found = torch.zeros(len(z), dtype=torch.long, device=z.device)
    for start in range(0, len(x), _START_ROWS):
        distance, which = torch.cdist(z.flatten(1), x[start : start + _START_ROWS].flatten(1)).min(1)
        found = torch.where(distance < least, which + start, found)
        least = torch.minimum(distance, least)
    return found


def inducing_rows(inducing: Any, network: nn.Module, first: nn.Module) -> Tensor:
    """Global inducing inputs as rows, where a network that begins with this module has a use for them."""
    users = [m for m in network.modules() if isinstance(m, BatchNorm) or _takes_inducing(m)]
    if not users:
        raise ConfigurationError(
            "inducing= gives inputs that all layers share, but no layer of this network uses them: posteriors such as "
            "MeanField need none, and LocalInducing has inducing inputs of its own. Leave it out, or give them to the "
            "layer: LocalInducing(len(z), inputs=z)."
        )
    rows = as_rows(inducing, "inducing", all_digits=True).clone()
    if isinstance(first, Layer) and first.row_shape is not None and tuple(rows.shape[1:]) != first.row_shape:
        raise ShapeError(
            f"inducing must have rows of width {first.in_features}, as the network's first layer takes them; got rows "
            f"of shape {list(rows.shape[1:])}."
        )
    return rows


def _takes_inducing(module: nn.Module) -> bool:
    return isinstance(module, Layer) and module.posterior.takes_inducing


@contextmanager
def checking_features(entry: Layer, first: nn.Module, x: Tensor) -> Iterator[None]:
    """Refuse what a plain network in front of the first Bayesian layer makes of the rows, where it is of no use."""

    def check(layer: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> None:
        check_features(rows_given(arguments, keywords), f"the network in front of layer {entry.name!r}", x)

    hook = None if entry is first else entry.register_forward_pre_hook(check, with_kwargs=True)
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


@contextmanager
def catching_rows(layer: Layer | None) -> Iterator[list[Tensor]]:
    """The rows that come into a layer, once a pass has been made."""
    caught: list[Tensor] = []

    def catch(layer: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> None:
        caught.append(rows_given(arguments, keywords))

    hook = None if layer is None else layer.register_forward_pre_hook(catch, with_kwargs=True)
    try:
        yield caught
    finally:
        if hook is not None:
            hook.remove()


def check_outputs(width: int, y: Tensor, likelihood: Likelihood) -> None:
    """Refuse a network whose outputs are not as many as the likelihood needs for these targets."""
    needed = likelihood.latent_features(y.shape[1] if y.ndim == 2 else int(y.max()) + 1)
    if width < needed or (y.ndim == 2 and width != needed):
        raise ShapeError(
            f"The network has {width} outputs, but {type(likelihood).__name__} with these targets needs {needed}. "
            "Change out_features of the last layer."
        )


def latent_targets(y: Tensor, kind: str, offset: Float[Tensor, "m f"]) -> Float[Tensor, "m f"]:
    """Function values that fit targets of this kind, less what a mean function has of them.

    Those of log variances, which come after the means (`HeteroscedasticGaussian`), are zero: there the prior is.
    """
    width = offset.shape[1]
    if kind == "classes":
        values = nn.functional.one_hot(y, width).to(offset.dtype)
    elif kind == "binary":
        values = 2.0 * y - 1.0
    else:
        values = (y + 0.5).log() if kind == "counts" else y
    known = values.shape[1]
    return nn.functional.pad(values - offset[:, :known], (0, width - known))
