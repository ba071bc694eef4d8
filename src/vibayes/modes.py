"""Modes of torch modules: running a network as `eval()` has it, and without a change of its averages."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

__all__ = ["averages", "evaluating", "keeping_averages"]


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
    training = [module for network in networks for module in network.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
@contextmanager
def keeping_averages(*networks: nn.Module) -> Iterator[None]:
    """Run networks in the mode they are in, and put the averages that batch normalisation kept back as they were."""
    kept = [(buffer, buffer.clone()) for network in networks for buffer in averages(network).values()]
    try:
        yield
    finally:
        for buffer, before in kept:
            buffer.copy_(before)


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
