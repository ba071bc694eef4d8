"""Generalized Bartlett factors drawn together with their densities: what a Wishart posterior does in every layer.

Made one by one these are some eighty operations on small arrays, forwards and backwards, and on a GPU each of them is a
kernel. Here they are one operator each way (`bartlett.cu`). Why they are library operators: `base.register`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators import cuda_kernels
from vibayes.operators.base import batch_first, flat, register

__all__ = ["bartlett_and_density"]


def bartlett_and_density(
    squares: Float[Tensor, "*batch nt"],
    alpha: Float[Tensor, "*batch nt"],
    beta: Float[Tensor, "*batch nt"],
    mu: Float[Tensor, "*batch n nt"],
    sigma: Float[Tensor, "*batch n nt"],
    noise: Float[Tensor, "*batch n nt"],
) -> tuple[Float[Tensor, "*batch n nt"], Float[Tensor, "*batch"]]:
    """`T`, lower triangular, and what its density has to do with its entries, "sticking the landing".

    `T_jj^2 = squares_j / beta_j`, and below the diagonal `T_ij = mu_ij + sigma_ij noise_ij`. The other result is

    `sum_j (2 alpha_j - nt + j - 1) log T_jj - beta_j T_jj^2 + alpha_j log beta_j - log Gamma(alpha_j)
    - sum_{i > j} (noise_ij^2 / 2 + log sigma_ij)`, `j = 1 .. nt`,

    the log density of `T T^T` up to constants and its power of `|(T T^T)_{:nt, :nt}|`. Its gradients come through `T`
    alone, as if the parameters of the density were others (Roeder et al. 2017). Second derivatives are the slopes of
    these gradients, parameters of the density included, and so have the right mean.

    Args:
        squares: draws of `Gamma(alpha, 1)`.
        alpha: their shapes, which get no gradients here but through `squares`.
        beta: rates.
        mu: means; entries on and above the diagonal are not used, here and below.
        sigma: standard deviations.
        noise: standard normals.

    >>> one = torch.ones(1)
    >>> T, density = bartlett_and_density(4 * one, one, one, one[None], one[None], one[None])
    >>> T.tolist(), round(density.item(), 4)
    ([[2.0]], -3.3069)
    """
    found: tuple[Tensor, Tensor] = torch.ops.vibayes.bartlett(squares, alpha, beta, mu, sigma, noise)
    return found


def _on_gpu(noise: Tensor) -> bool:
    return noise.is_cuda and cuda_kernels.available()


def _run(
    squares: Tensor, alpha: Tensor, beta: Tensor, mu: Tensor, sigma: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    if _on_gpu(noise):
        T, density = cuda_kernels.bartlett(*_flat(squares, alpha, beta, mu, sigma, noise))
        return T.view(noise.shape), density.view(noise.shape[:-2])
    diagonal = (squares / beta).sqrt()
    below = torch.ones_like(noise, dtype=torch.bool).tril(-1)
    T = torch.where(below, mu + sigma * noise, 0.0)
    T.diagonal(dim1=-2, dim2=-1).copy_(diagonal)
    gammas = _powers(alpha) * diagonal.log() - squares + alpha * beta.log() - alpha.lgamma()
    normals = torch.where(below, 0.5 * noise.square() + sigma.log(), 0.0)
    return T, gammas.sum(-1) - normals.sum((-2, -1))


def _flat(*given: Tensor) -> list[Tensor]:
    """Vectors and matrices with one axis in front."""
    return [*flat(*given[:3], axes=1), *flat(*given[3:])]


def _powers(alpha: Tensor) -> Tensor:
    """Those of `T_jj` in the density."""
    nt = alpha.shape[-1]
    return 2.0 * alpha - torch.arange(nt, 0, -1, dtype=alpha.dtype, device=alpha.device)


def _shapes(
    squares: Tensor, alpha: Tensor, beta: Tensor, mu: Tensor, sigma: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    return noise.new_empty(noise.shape), noise.new_empty(noise.shape[:-2])


def _gradients(
    squares: Tensor, alpha: Tensor, beta: Tensor, mu: Tensor, sigma: Tensor, noise: Tensor, g_T: Tensor, g: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Those of `squares`, `beta`, `mu` and `sigma`."""
    diagonal = (squares / beta).sqrt()
    below = torch.ones_like(noise, dtype=torch.bool).tril(-1)
    d_T = torch.where(below, g_T - g[..., None, None] * noise / sigma, 0.0)
    d_diagonal = g_T.diagonal(dim1=-2, dim2=-1) + g[..., None] * (_powers(alpha) / diagonal - 2.0 * beta * diagonal)
    half = 0.5 * d_diagonal * diagonal
    return half / squares, -half / beta, d_T, d_T * noise


def _run_gradients(
    squares: Tensor, alpha: Tensor, beta: Tensor, mu: Tensor, sigma: Tensor, noise: Tensor, g_T: Tensor, g: Tensor
) -> tuple[Tensor, ...]:
    if not _on_gpu(noise):
        return tuple(t.contiguous() for t in _gradients(squares, alpha, beta, mu, sigma, noise, g_T, g))
    given = [*_flat(squares, alpha, beta, sigma, noise, g_T), g.flatten()]
    found = cuda_kernels.bartlett_backward(*given)
    return tuple(t.view(like.shape) for t, like in zip(found, (squares, beta, mu, sigma), strict=True))


def _gradient_shapes(
    squares: Tensor, alpha: Tensor, beta: Tensor, mu: Tensor, sigma: Tensor, noise: Tensor, g_T: Tensor, g: Tensor
) -> tuple[Tensor, ...]:
    return tuple(noise.new_empty(t.shape) for t in (squares, beta, mu, sigma))


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, g_T: Tensor, g: Tensor) -> tuple[Tensor | None, ...]:
    given = [*ctx.saved_tensors, g_T, g]
    # what is differentiated again is made by plain algebra, which knows its gradients
    found = _gradients(*given) if torch.is_grad_enabled() else torch.ops.vibayes.bartlett_backward(*given)
    d_squares, d_beta, d_mu, d_sigma = found
    return d_squares, None, d_beta, d_mu, d_sigma, None


def _vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    return torch.ops.vibayes.bartlett(*batch_first(info, in_dims, *given)), (0, 0)


register(
    "bartlett(Tensor squares, Tensor alpha, Tensor beta, Tensor mu, Tensor sigma, Tensor noise) -> (Tensor, Tensor)",
    _run,
    _shapes,
    save=_save,
    backward=_backward,
    vmap=_vmap,
)
register(
    "bartlett_backward(Tensor squares, Tensor alpha, Tensor beta, Tensor mu, Tensor sigma, Tensor noise, Tensor g_T, "
    "Tensor g) -> (Tensor, Tensor, Tensor, Tensor)",
    _run_gradients,
    _gradient_shapes,
)
