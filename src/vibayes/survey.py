"""What a network does around its Bayesian layers, found by a pass with placeholders for their values."""

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from vibayes.draw import Draw
from vibayes.errors import ConfigurationError
from vibayes.layers.base import Layer
from vibayes.modes import evaluating

__all__ = ["Survey", "ends", "survey"]


@dataclass(frozen=True)
class Survey:
    """What a network does around its layers.

    Attributes:
        output: the name of the layer whose rows are the network's output, with nothing done to them.
        averaged: names of modules with running averages of rows that differ between draws.
        in_place: whether the network changes the rows that it is given.
        seen: whether rows went through, or `output` is a guess.
    """

    output: str | None = None
    averaged: tuple[str, ...] = ()
    in_place: bool = False
    seen: bool = False

    def check_modes(self, network: nn.Module) -> None:
        """Refuse running averages of rows that differ between draws."""
        for name in self.averaged:
            module = network.get_submodule(name)
            if module.training:
                raise ConfigurationError(
                    f"{type(module).__name__} {name!r} stands behind a Bayesian layer; its statistics would depend on "
                    "the draw and on the other rows of the batch. Use vibayes.BatchNorm, which takes them from the "
                    "inducing rows, or call eval() on it to keep the averages it has."
                )


def ends(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The first and last module of a network, looking into `nn.Sequential`."""
    first, last = network, network
    while type(first) is nn.Sequential and len(first) > 0:  # a subclass may do more, such as a skip connection
        first = first[0]
    while type(last) is nn.Sequential and len(last) > 0:
        last = last[-1]
    return first, last


@torch.no_grad()
def survey(network: nn.Module, layers: Mapping[str, Layer], rows: Tensor) -> Survey | None:
    """Send two rows through a network whose layers return NaN where draws differ, and see what becomes of it.

    Args:
        network: the network; it is run in evaluation mode.
        layers: its Bayesian layers by name. They need no parameters yet.
        rows: `[N, ...]`, at least one.

    Returns:
        None where the network could not be run: what is wrong shows in a pass with real values.
    """
    values: dict[str, Tensor] = {}
    averaged: list[str] = []
    with torch.inference_mode(False):  # where tensors do not count their changes
        like = next(itertools.chain(network.parameters(), network.buffers()), rows)
        rows = rows.detach()[[0, -1]].to(like.device, like.dtype if like.is_floating_point() else rows.dtype, copy=True)
        before = rows._version
        draw = Draw(n_inducing=1, dry=True)
        draw.n_rows = len(rows)
        try:
            with evaluating(network), _placeholders(layers, values), _noting(network, averaged), draw:
                out = network(rows)
        except Exception:
            return None
        output = next((name for name, value in values.items() if value is out and value._version == 0), None)
        return Survey(output, tuple(averaged), rows._version != before, seen=True)


@contextmanager
def _placeholders(layers: Mapping[str, Layer], values: dict[str, Tensor]) -> Iterator[None]:
    """Let layers return values of the right shape: NaN unless they and the rows are the same in all draws."""

    def stand_in(name: str, layer: Layer) -> None:
        def forward(rows: Tensor) -> Tensor:
            start = 0.0 if layer.deterministic else math.nan
            shape = (len(rows), *layer.value_shape(rows))
            values[name] = torch.full(
                shape, start + 0.0 * float(rows.detach().sum()), dtype=rows.dtype, device=rows.device
            )
            return values[name]

        layer.forward = forward

    for name, layer in layers.items():
        stand_in(name, layer)
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.forward


@contextmanager
def _noting(network: nn.Module, averaged: list[str]) -> Iterator[None]:
    """Note the modules with running averages that NaN reaches."""

    def note(name: str) -> torch.utils.hooks.RemovableHandle:
        def look(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            if bool(arguments[0].isnan().any()):
                averaged.append(name)

        return network.get_submodule(name).register_forward_pre_hook(look)

    handles = [
        note(name)
        for name, module in network.named_modules()
        if isinstance(module, _NormBase) and module.running_mean is not None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
