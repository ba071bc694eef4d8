"""Looking inside a model: the functions of its layers."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.data import as_rows, check_count
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.layers.base import Layer, rows_given
from vibayes.passes import joint_draws

if TYPE_CHECKING:
    from vibayes.model import Model

__all__ = ["LayerFunction", "layer_functions"]


@dataclass(frozen=True)
class LayerFunction:
    """Posterior draws of one layer's values.

    Attributes:
        inputs: `[n, N, D]`, the rows that came in: in every draw others, but for a grid and the first layer. Those of
            a convolution are images `[n, N, C, H, W]`.
        draws: `[n, N, P]`, the values there; `[n, N, P, H', W']` of a convolution.
    """

    inputs: Tensor
    draws: Tensor

    @property
    def mean(self) -> Float[Tensor, "m ..."]:
        """Mean over draws."""
        return self.draws.mean(0)

    @property
    def variance(self) -> Float[Tensor, "m ..."]:
        """Variance over draws, row by row."""
        return self.draws.var(0)


@torch.no_grad()
def layer_functions(
    model: "Model", x: Any, n: int = 100, grids: Mapping[str, Any] | None = None
) -> dict[str, LayerFunction]:
    """What `Model.layer_functions` returns; see there."""
    check_count(n, "n")
    rows = model.prepare_inputs(x)
    layers = model.layers
    given = {} if grids is None else grids
    for name in given:
        if name not in layers:
            raise ConfigurationError(f"There is no layer {name!r}; the layers are {', '.join(map(repr, layers))}.")
    prepared = {name: _grid(name, layers[name], grid, model) for name, grid in given.items()}

    def one(draw: Draw) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        with ExitStack() as hooks:
            for name, layer in layers.items():
                hooks.enter_context(_watching(name, layer, draw, seen, prepared.get(name)))
            model._pass(rows, draw)
        return seen, draw.failures

    at_once = joint_draws(rows, model.n_inducing, layers.values())
    seen, failures = model._draws(one, n, joint=True, marginal=False, at_once=at_once)
    model._check_factorizations(failures)
    return {name: LayerFunction(*seen[name]) for name in layers if name in seen}


def _grid(name: str, layer: Layer, grid: Any, model: "Model") -> Tensor:
    rows = as_rows(grid, f"grids[{name!r}]").to(dtype=model.dtype, device=model.device)
    if layer.row_shape is not None:  # the size of images is known only when they come in
        _check_shape(name, rows, layer.row_shape)
    return rows


def _check_shape(name: str, grid: Tensor, row_shape: tuple[int, ...]) -> None:
    if grid.shape[1:] != row_shape:
        raise ShapeError(
            f"The grid of layer {name!r} must hold rows as they come in, [G, {', '.join(map(str, row_shape))}]; "
            f"got {list(grid.shape)}. Give grids[{name!r}] that shape."
        )


@contextmanager
def _watching(
    name: str, layer: Layer, draw: Draw, seen: dict[str, tuple[Tensor, Tensor]], grid: Tensor | None
) -> Iterator[None]:
    """Note the data rows that a layer takes and returns, or those of a grid that goes with them.

    Grid rows are drawn jointly with the data rows, so both are values of one function, and go no further.
    """
    taken: list[tuple[Tensor, int | None]] = []

    def before(
        module: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]
    ) -> tuple[tuple[Tensor], dict[str, Tensor]]:
        rows = rows_given(arguments, keywords)
        n_rows = draw.n_rows
        if draw.n_inducing and len(rows) != n_rows:
            raise ShapeError(
                f"Layer {name!r} got {len(rows)} rows where the pass has {n_rows}, so it is unknown which of them "
                "are inducing rows, and which data. Its function can be looked at where the first axis stays as it is."
            )
        if grid is not None:
            if any(rows is features for features in draw.rotated):
                raise ConfigurationError(
                    f"Layer {name!r} takes imagined features, {list(rows.shape[1:])} of them, of which only inner "
                    "products have a meaning: no grid can be laid through them."
                )
            _check_shape(name, grid, rows.shape[1:])
            rows = torch.cat([rows, grid])
            draw.n_rows = len(rows)  # layers know by it that the first rows are still the inducing ones
        taken.append((rows, n_rows))
        return (rows,), {}

    def after(module: nn.Module, arguments: tuple[Tensor, ...], out: Tensor) -> Tensor:
        start = draw.n_inducing if grid is None else len(out) - len(grid)
        rows, draw.n_rows = taken.pop()
        # tied to the draw, so that vmap gives every draw its own even where they are all the same
        seen[name] = (rows[start:] + draw.zero, out[start:] + draw.zero)
        if grid is None:
            return out
        rest = out[:start]
        if any(out is features for features in draw.rotated):
            draw.rotated.append(rest)
        return rest

    handles = [layer.register_forward_pre_hook(before, with_kwargs=True), layer.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
