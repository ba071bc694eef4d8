"""Adam as a fixed sequence of tensor operations, with learning rates that are tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Adam"]


class Adam:
    """Adam (Kingma & Ba 2015) on a list of tensors.

    It differs from `torch.optim.Adam` in that each parameter's learning rate is a tensor that broadcasts to it, so
    that every replica of a stacked parameter can have its own, and in that a step reads nothing from the device, so
    that it can be part of a CUDA graph.

    Args:
        parameters: the tensors to change, in place.
        betas: decay rates of the two moments.
        eps: added to the root of the second moment.

    >>> weight = torch.tensor([1.0, 1.0])
    >>> optimizer = Adam([weight])
    >>> optimizer.step([torch.tensor([3.0, -2.0])], [torch.tensor([0.1, 0.2])])
    >>> weight
    tensor([0.9000, 1.2000])
    """

    def __init__(
        self, parameters: Sequence[Tensor], betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.parameters = list(parameters)
        self.betas, self.eps = betas, eps
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.count = torch.zeros((), dtype=torch.float64, device=self.parameters[0].device)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rates: Sequence[Tensor]) -> None:
        """Move the parameters down the gradients."""
        beta1, beta2 = self.betas
        self.count += 1.0
        correction1, correction2 = 1.0 - beta1**self.count, 1.0 - beta2**self.count
        torch._foreach_lerp_(self.first, list(gradients), 1.0 - beta1)
        torch._foreach_mul_(self.second, beta2)
        torch._foreach_addcmul_(self.second, list(gradients), list(gradients), 1.0 - beta2)
        scale = torch._foreach_sqrt(self.second)
        torch._foreach_div_(scale, correction2.sqrt().to(scale[0].dtype))
        torch._foreach_add_(scale, self.eps)
        moves = torch._foreach_div(self.first, scale)
        torch._foreach_div_(moves, correction1.to(scale[0].dtype))
        for parameter, move, rate in zip(self.parameters, moves, rates, strict=True):
            parameter.addcmul_(move, rate.expand_as(move), value=-1.0)

    def state(self) -> dict[str, Any]:
        """Copies of the moments."""
        return {
            "first": [t.clone() for t in self.first],
            "second": [t.clone() for t in self.second],
            "count": self.count.clone(),
        }

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Put moments back, in place."""
        for mine, kept in zip(self.first + self.second, state["first"] + state["second"], strict=True):
            mine.copy_(kept)
        self.count.copy_(state["count"])
