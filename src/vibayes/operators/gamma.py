"""Standard gamma draws from standard normal noise, differentiable, under `vmap`, in CUDA graphs and compiled."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators import cuda_kernels
from vibayes.operators.base import batch_first, register

__all__ = ["NOISE_PER_GAMMA", "gamma_from_normals"]

# Each proposal of Marsaglia & Tsang (2000) is accepted with probability above 0.95, so that all of them fail once in
# 10^10 draws; then the first one is taken.
_PROPOSALS = 8
# Normals for the proposals, for their acceptance, and one for shapes below one.
NOISE_PER_GAMMA = 2 * _PROPOSALS + 1


def gamma_from_normals(alpha: Float[Tensor, "..."], normals: Float[Tensor, "k ..."]) -> Float[Tensor, "..."]:
    """Draws of `Gamma(alpha, 1)` made from `NOISE_PER_GAMMA` standard normals each.

    The gradient with respect to `alpha` is the implicit one, `-(dF / dalpha) / p(x)` (Figurnov et al. 2018), as in
    `torch.distributions.Gamma`. As there, second derivatives are refused. There is no loop until acceptance, so a draw
    is a fixed sequence of operations.

    >>> alpha = torch.tensor([0.5, 3.0])
    >>> draws = gamma_from_normals(alpha.expand(10_000, 2), torch.randn(NOISE_PER_GAMMA, 10_000, 2))
    >>> bool(((draws.mean(0) - alpha).abs() < 0.1).all())
    True
    """
    fixed, normals = alpha.detach(), normals.detach()
    # on a CPU the compiler makes one loop of it, which an operator would keep it from
    on_gpu = normals.is_cuda and cuda_kernels.available()
    draws: Tensor = torch.ops.vibayes.gamma_draws(fixed, normals) if on_gpu else _marsaglia_tsang(fixed, normals)
    found: Tensor = torch.ops.vibayes.gamma_of_shape(alpha, draws)
    return found


def _marsaglia_tsang(alpha: Tensor, normals: Tensor) -> Tensor:
    z, u = normals[:_PROPOSALS], torch.special.ndtr(normals[_PROPOSALS:-1]).log()  # u: logs of uniforms
    small = alpha < 1.0
    shape = torch.where(small, alpha + 1.0, alpha)  # Gamma(a) = Gamma(a + 1) U^(1/a)
    d = shape - 1.0 / 3.0
    v = 1.0 + z / (9.0 * d).sqrt()
    positive = v > 0.0
    log_v = 3.0 * torch.where(positive, v, 1.0).log()
    accepted = positive & (u < 0.5 * z.square() + d - d * log_v.exp() + d * log_v)
    first = accepted.to(torch.uint8).argmax(0, keepdim=True)
    log_drawn = d.log() + log_v.gather(0, first)[0]
    boost = torch.special.ndtr(normals[-1]).log() / torch.where(small, alpha, 1.0)
    return (log_drawn + torch.where(small, boost, 0.0)).exp()


def _draws(alpha: Tensor, normals: Tensor) -> Tensor:
    fits = alpha.is_cuda and cuda_kernels.available()
    return cuda_kernels.gamma_draws(alpha, normals) if fits else _marsaglia_tsang(alpha, normals).contiguous()


def _draws_vmap(
    info: Any, in_dims: tuple[int | None, int | None], alpha: Tensor, normals: Tensor
) -> tuple[Tensor, int]:
    alpha, normals = batch_first(info, in_dims, alpha, normals)
    return torch.ops.vibayes.gamma_draws(alpha, normals.movedim(0, 1)), 0


def _of_shape(alpha: Tensor, draws: Tensor) -> Tensor:
    """Draws that did not underflow, as functions of `alpha`."""
    return draws.clamp_min(torch.finfo(draws.dtype).tiny).contiguous()


def _of_shape_vmap(
    info: Any, in_dims: tuple[int | None, int | None], alpha: Tensor, draws: Tensor
) -> tuple[Tensor, int]:
    return torch.ops.vibayes.gamma_of_shape(*batch_first(info, in_dims, alpha, draws)), 0


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
    return g * torch.ops.vibayes.gamma_slope(*ctx.saved_tensors), None


def _slope(alpha: Tensor, drawn: Tensor) -> Tensor:
    """`dx / dalpha`."""
    return torch._standard_gamma_grad(alpha, drawn).contiguous()


def _refuse(ctx: Any, g: Tensor) -> tuple[None, None]:
    raise NotImplementedError(
        "Gamma draws (Wishart layers, ScalePrior, SpatialIWPrior) are differentiated once, and second derivatives by "
        "the parameters of their shapes (alpha, nu, dof, delta) were asked for. Leave these parameters out with "
        "requires_grad_(False) or fix(), or take differences of gradients."
    )


def _slope_vmap(info: Any, in_dims: tuple[int | None, int | None], alpha: Tensor, drawn: Tensor) -> tuple[Tensor, int]:
    return torch.ops.vibayes.gamma_slope(*batch_first(info, in_dims, alpha, drawn)), 0


register(
    "gamma_draws(Tensor alpha, Tensor normals) -> Tensor",
    _draws,
    lambda alpha, normals: alpha.new_empty(alpha.shape),
    vmap=_draws_vmap,
)
register(
    "gamma_of_shape(Tensor alpha, Tensor draws) -> Tensor",
    _of_shape,
    lambda alpha, draws: draws.new_empty(draws.shape),
    save=_save,
    backward=_backward,
    vmap=_of_shape_vmap,
)
# torch's own function has no rule for vmap and would run in a loop.
register(
    "gamma_slope(Tensor alpha, Tensor drawn) -> Tensor",
    _slope,
    lambda alpha, drawn: alpha.new_empty(alpha.shape),
    save=lambda ctx, inputs, output: None,
    backward=_refuse,
    vmap=_slope_vmap,
)
