"""Modes of torch and its modules: a network as `eval()` has it, or with its averages kept, and a default dtype."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

__all__ = [
    "averages",
    "default_dtype",
    "evaluating",
    "keeping_averages",
    "training",
    "uses_batch_statistics",
]

# How many are at it, in threads side by side, for every module that goes back to training mode after the last of them.
_evaluating: "WeakKeyDictionary[nn.Module, int]" = WeakKeyDictionary()
_lock = threading.RLock()


@contextmanager
def evaluating(*networks: nn.Module) -> Iterator[None]:
    """Run networks in evaluation mode, and leave every module in the mode it was in.

    >>> network = nn.Sequential(nn.Dropout(0.5))
    >>> with evaluating(network):
    ...     network[0].training
    False
    >>> network[0].training
    True
    """
    with _lock:
        entered = [m for network in networks for m in network.modules() if m.training or m in _evaluating]
        for module in entered:
            _evaluating[module] = _evaluating.get(module, 0) + 1
            module.training = False
    try:
        yield
    finally:
        with _lock:
            for module in entered:
                _evaluating[module] -= 1
                if _evaluating[module] == 0:
                    module.training = True
                    del _evaluating[module]


@contextmanager
def training(network: nn.Module) -> Iterator[None]:
    """Run a network in the mode it trains in, and leave every module in the mode it was in.

    That is the mode it is in, or would be in were it not run in evaluation mode just now; of a network that is in
    evaluation mode by itself, that of `train()`.

    >>> network = nn.Sequential(nn.Dropout(0.5)).eval()
    >>> with training(network):
    ...     network[0].training
    True
    >>> network[0].training
    False
    """
    with _lock:
        in_training = {m for m in network.modules() if m.training or m in _evaluating}
        changed = [m for m in network.modules() if not m.training and (network not in in_training or m in in_training)]
        for module in changed:
            module.training = True
    try:
        yield
    finally:
        for module in changed:
            module.training = False


@contextmanager
def keeping_averages(*networks: nn.Module) -> Iterator[None]:
    """Run networks in the mode they are in, and put the averages that batch normalisation kept back as they were."""
    kept = [(buffer, buffer.clone()) for network in networks for buffer in averages(network).values()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new modules and tensors of a dtype, in all threads.

    >>> with default_dtype(torch.float64):
    ...     torch.zeros(()).dtype
    torch.float64
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def averages(network: nn.Module) -> dict[str, Tensor]:
    """The buffers that batch normalisation changes in training mode, by name.

    >>> list(averages(nn.Sequential(nn.BatchNorm1d(3))))
    ['0.running_mean', '0.running_var', '0.num_batches_tracked']
    """
    return {
        f"{path}.{name}".lstrip("."): buffer
        for path, module in network.named_modules()
        if isinstance(module, _NormBase)
        for name, buffer in module.named_buffers(recurse=False)
    }


def uses_batch_statistics(network: nn.Module) -> bool:
    """Whether what a network makes of a row depends on the rows beside it, by torch's batch normalisation.

    >>> network = nn.Sequential(nn.BatchNorm1d(2))
    >>> uses_batch_statistics(network), uses_batch_statistics(network.eval())
    (True, False)
    """
    norms = (module for module in network.modules() if isinstance(module, _BatchNorm))
    return any(norm.training or norm.running_mean is None for norm in norms)
