"""What a network does around its Bayesian layers and in their kernels, found by a pass with placeholders for values."""

import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer

from vibayes.draw import Draw
from vibayes.errors import ConfigurationError
from vibayes.layers.base import Layer, rows_given
from vibayes.modes import evaluating, training

__all__ = ["Survey", "ends", "guess", "likely_rows", "survey", "surveying"]

# Pixels down and across of the images that are tried, those of the usual data sets among them.
_SIZES = (8, 28, 32, 64, 224)

surveying = threading.RLock()  # a survey puts hooks on modules that threads share, and changes their modes


@dataclass(frozen=True)
class Survey:
    """What a network does around its layers.

    Attributes:
        output: the name of the layer whose rows are the network's output, with nothing done to them.
        averaged: names of modules with running averages, or statistics of the batch, of rows that differ between draws.
        in_place: whether the network changes the rows that it is given.
        seen: whether data or inducing rows went through, or this is a guess.
        noisy: the modes, `training` or not, in which it draws random numbers of its own, as Dropout does.
        tied: those of these modes in which rows must be of a draw from the start, as for noise that is put in place.
        noisy_averages: whether running averages may be taken of rows with such numbers in them.
        apart: those of these modes in which draws must come one after another: `vmap` cannot batch what is done to rows
            that differ between them, such as an LSTM, a mask of booleans, or a branch on values.
    """

    output: str | None = None
    averaged: tuple[str, ...] = ()
    in_place: bool = False
    seen: bool = False
    noisy: tuple[bool, ...] = ()
    tied: tuple[bool, ...] = ()
    noisy_averages: bool = False
    apart: tuple[bool, ...] = ()

    def check_modes(self, network: nn.Module) -> None:
        """Refuse statistics of rows that differ between draws."""
        for name in self.averaged:
            module = network.get_submodule(name)
            kept = getattr(module, "running_mean", None) is not None
            if module.training or not kept:
                raise ConfigurationError(
                    f"{type(module).__name__} {name!r} stands behind a Bayesian layer; its statistics would depend on "
                    "the draw and on the other rows of the batch. Use vibayes.BatchNorm, which takes them from the "
                    f"inducing rows{', or call eval() on it to keep the averages it has' if kept else ''}."
                )


def ends(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The first and last module of a network, looking into `nn.Sequential`."""
    first, last = network, network
    while type(first) is nn.Sequential and len(first) > 0:  # a subclass may do more, such as a skip connection
        first = first[0]
    while type(last) is nn.Sequential and len(last) > 0:
        last = last[-1]
    return first, last


def likely_rows(network: nn.Module) -> list[Tensor]:
    """Single rows as the first module that says what it takes takes them: most likely such are the network's.

    >>> [list(rows.shape) for rows in likely_rows(nn.Linear(3, 1))]
    [[1, 3]]
    """
    for module in network.modules():
        channels, width = getattr(module, "in_channels", None), getattr(module, "in_features", None)
        if isinstance(channels, int) and channels > 0:  # of any size that networks are made for
            return [torch.zeros(1, channels, size, size) for size in _SIZES]
        if isinstance(width, int) and width > 0:
            return [torch.zeros(1, width)]
    return []


def guess(network: nn.Module, layers: Mapping[str, Layer]) -> Survey | None:
    """What a network does with the first of likely rows that it can be run with, which need not be what it gets."""
    if _waits_for_sizes(network):
        # on a copy, as its sizes are those of the first rows that it sees; torch cannot copy buffers without a size
        fresh: Any = UninitializedBuffer
        waiting = (b for b in network.buffers() if isinstance(b, UninitializedBuffer))
        network = copy.deepcopy(network, {id(b): fresh(device=b.device, dtype=b.dtype) for b in waiting})
        layers = {name: cast(Layer, network.get_submodule(name)) for name in layers}
    found = next((s for rows in likely_rows(network) if (s := survey(network, layers, rows)) is not None), None)
    return None if found is None else replace(found, seen=False)


def survey(network: nn.Module, layers: Mapping[str, Layer], rows: Tensor) -> Survey | None:
    """Send two rows through a network whose layers return NaN where draws differ, and see what becomes of it.

    That is done in evaluation mode and in the one it trains in, whichever it is in, as it may do more in one of them.

    Args:
        network: the network. Its averages stay as they are, and so do random generators.
        layers: its Bayesian layers by name. They need no parameters yet.
        rows: `[N, ...]`, at least one.

    Returns:
        None where the network could not be run: what is wrong shows in a pass with real values.
    """
    like = next((t for group in (network.parameters(), network.buffers()) for t in group), rows)
    rows = rows.detach()[[0, -1]].to(like.device, like.dtype if like.is_floating_point() else rows.dtype, copy=True)
    with surveying, torch.random.fork_rng(devices=[rows.device] if rows.is_cuda else []):
        with evaluating(network):
            if _waits_for_sizes(network):  # lazy modules draw their weights in their first pass, and never again
                _one_pass(network, layers, rows)
            calm = _one_pass(network, layers, rows)
        if calm is None:
            return None
        kept = [(buffer, buffer.clone()) for buffer in network.buffers()]  # those of lazy modules exist by now
        with training(network):
            now = _one_pass(network, layers, rows)
        with torch.no_grad():
            for buffer, before in kept:  # averages, and what spectral normalisation keeps
                buffer.copy_(before)
    if now is None:  # a batch may be too small for statistics
        return calm
    output = calm.output if calm.output == now.output else None
    averaged = tuple(dict.fromkeys((*calm.averaged, *now.averaged)))
    return Survey(
        output,
        averaged,
        calm.in_place or now.in_place,
        seen=True,
        noisy=(*calm.noisy, *now.noisy),
        tied=(*calm.tied, *now.tied),
        noisy_averages=now.noisy_averages,
        apart=(*calm.apart, *now.apart),
    )


def _waits_for_sizes(network: nn.Module) -> bool:
    """Whether it has lazy modules that have not seen rows."""
    return any(isinstance(m, LazyModuleMixin) and m.has_uninitialized_params() for m in network.modules())


@torch.no_grad()
def _one_pass(network: nn.Module, layers: Mapping[str, Layer], rows: Tensor) -> Survey | None:
    names = {id(layer): name for name, layer in layers.items()}
    values: dict[str, Tensor] = {}
    averaged: list[str] = []
    averages: list[bool] = []

    def placeholder(layer: Layer, rows: Tensor) -> Tensor:
        layer.send_through_own_modules(rows)
        # the same in every draw; of a prior that is drawn, such values see nothing
        known = layer.posterior.deterministic and not bool(rows.isnan().any())
        shape = (len(rows), *layer.value_shape(rows))
        made = torch.full(shape, 0.0 if known else math.nan, dtype=rows.dtype, device=rows.device)
        values[names[id(layer)]] = made
        return made

    with torch.inference_mode(False):  # where tensors do not count their changes
        rows = rows.clone()
        before = rows._version
        draw = Draw(n_inducing=1, dry=True, placeholder=placeholder)
        draw.n_rows = len(rows)
        state = _generator_state(rows)

        def drawn() -> bool:
            return not torch.equal(state, _generator_state(rows))

        try:
            with _noting(network, averaged, averages, drawn), draw:
                out = network(rows)
        except Exception:
            return None
        noisy = drawn()
        together = _go_together(network, rows)
        tied = noisy and not together
        together = together or (tied and _go_together(network, rows, tied=True))
        whole = (n for n, made in values.items() if made is out and made._version == 0 and not layers[n]._forward_hooks)
        return Survey(
            next(whole, None),
            tuple(averaged),
            rows._version != before,
            seen=True,
            noisy=(network.training,) if noisy else (),
            tied=(network.training,) if tied else (),
            noisy_averages=any(averages) or (tied and bool(averages)),
            apart=() if together else (network.training,),
        )


def _go_together(network: nn.Module, rows: Tensor, *, tied: bool = False) -> bool:
    """Whether `vmap` can send draws through together, each with random numbers of its own.

    That all have the same rows saves much work; where they are tied, every draw has rows of its own.
    """

    def one(zero: Tensor) -> Tensor:
        def placeholder(layer: Layer, rows: Tensor) -> Tensor:
            layer.send_through_own_modules(rows)
            like = 0.0 * rows.sum() if layer.posterior.deterministic else zero
            return rows.new_zeros(len(rows), *layer.value_shape(rows)) + like

        draw = Draw(n_inducing=1, dry=True, placeholder=placeholder)
        draw.n_rows = len(rows)
        with draw:
            out: Tensor = network(rows + zero if tied else rows.clone())
        return out

    try:
        torch.func.vmap(one, randomness="different")(rows.new_zeros(2))
    except Exception:
        return False
    return True


def _generator_state(rows: Tensor) -> Tensor:
    """The state of the generator from which modules draw for these rows."""
    return torch.cuda.get_rng_state(rows.device) if rows.is_cuda else torch.get_rng_state()


@contextmanager
def _noting(
    network: nn.Module,
    averaged: list[str],
    averages: list[bool],
    drawn: Callable[[], bool],
) -> Iterator[None]:
    """Note the modules with statistics that NaN reaches, and what comes to averages.

    Args:
        network: the network.
        averaged: gets the names of the former.
        averages: gets, whenever running averages are taken, whether random numbers were drawn before.
        drawn: whether they were.
    """

    def note(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def look(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if bool(rows_given(arguments, keywords).isnan().any()):
                averaged.append(name)
            if module.training and module.running_mean is not None:
                averages.append(drawn())

        return module.register_forward_pre_hook(look, with_kwargs=True)

    handles = [
        note(name, module)
        for name, module in network.named_modules()
        if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.running_mean is not None)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
