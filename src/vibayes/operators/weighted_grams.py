"""`D^T diag(w_p) D` for many weights `w_p`, as one operator: what regressions with a precision for each output need.

On a GPU one kernel makes it, and another the gradients, neither of which writes down anything of size M x P x K
(`grams.cu`). Why they are library operators: `base.register`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators import cuda_kernels
from vibayes.operators.base import batch_first, flat, register

__all__ = ["weighted_grams"]


def weighted_grams(
    D: Float[Tensor, "*batch m k"], weights: Float[Tensor, "*batch p m"]
) -> Float[Tensor, "*batch p k k"]:
    """`D^T diag(w_p) D` for every row `w_p` of `weights`.

    >>> D = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> weighted_grams(D, torch.tensor([[1.0, 2.0]]))
    tensor([[[3., 2.],
             [2., 2.]]])
    """
    found: Tensor = torch.ops.vibayes.weighted_grams(D, weights)
    return found


def _grams(D: Tensor, weights: Tensor) -> Tensor:
    P, K = weights.shape[-2], D.shape[-1]
    if cuda_kernels.grams_available(D):
        return cuda_kernels.grams(*flat(D, weights)).view(*D.shape[:-2], P, K, K)
    if K <= 2 * P:
        pairs = (D[..., None] * D[..., None, :]).flatten(-2)  # [M, K K]
        return (weights @ pairs).view(*D.shape[:-2], P, K, K)
    weighted = (weights.mT[..., None] * D[..., None, :]).flatten(-2)  # [M, P K]: one product for all outputs
    return (weighted.mT @ D).view(*D.shape[:-2], P, K, K)


def _grams_shape(D: Tensor, weights: Tensor) -> Tensor:
    return D.new_empty(*D.shape[:-2], weights.shape[-2], D.shape[-1], D.shape[-1])


def _gradients(D: Tensor, weights: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Those of `D` and the weights."""
    if cuda_kernels.grams_available(D):
        d_D, d_weights = cuda_kernels.grams_backward(*flat(D, weights), *flat(g, axes=3))
        return d_D.view(D.shape), d_weights.view(weights.shape)
    both = (g + g.mT).flatten(-3, -2)  # [P K, K]
    H = (D @ both.mT).view(*D.shape[:-1], -1, D.shape[-1])  # [M, P, K]
    d_weights = 0.5 * (H @ D[..., None])[..., 0].mT
    return (weights.mT[..., None, :] @ H)[..., 0, :], d_weights.contiguous()


def _gradients_shapes(D: Tensor, weights: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return D.new_empty(D.shape), weights.new_empty(weights.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
    D, weights = ctx.saved_tensors
    if torch.is_grad_enabled():  # differentiated again: by plain algebra, which knows its gradients
        H = D[..., None, :, :] @ (g + g.mT)  # [P, M, K]
        return (weights[..., None] * H).sum(-3), 0.5 * (H * D[..., None, :, :]).sum(-1)
    found: tuple[Tensor, Tensor] = torch.ops.vibayes.weighted_grams_backward(D, weights, g)
    return found


def _vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor) -> tuple[Tensor, int]:
    return torch.ops.vibayes.weighted_grams(*batch_first(info, in_dims, *given)), 0


register(
    "weighted_grams(Tensor D, Tensor weights) -> Tensor",
    _grams,
    _grams_shape,
    save=_save,
    backward=_backward,
    vmap=_vmap,
)
register(
    "weighted_grams_backward(Tensor D, Tensor weights, Tensor g) -> (Tensor, Tensor)", _gradients, _gradients_shapes
)
