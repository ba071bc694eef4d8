"""Correlations of images at small shifts, as one operator: what regressions onto convolutions are made of.

By the correlation theorem they come from cross-spectra, one small matrix product over images per frequency. Complex
numbers are pairs of real columns throughout, since products of real matrices are what libraries do best. A library
operator keeps its own backward pass under `torch.compile`.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators import batch_first, register

__all__ = ["correlations"]


def correlations(
    z: Float[Tensor, "*batch m q h w"], first: int, shifts: tuple[int, int]
) -> Float[Tensor, "*batch shifts first q"]:
    r"""`R[d, a, b] = \sum_iu z_{i a u} z_{i b (u + d)}` with circular boundaries.

    Args:
        z: images.
        first: `a` is one of so many first channels.
        shifts: how many shifts `d` down and across, odd numbers, the middle one being 0.

    >>> correlations(torch.tensor([[[[1.0, 2.0, 3.0]]]]), 1, (1, 3)).flatten().round(decimals=4)
    tensor([11., 14., 11.])
    """
    found: Tensor = torch.ops.vibayes.correlations(z, first, *shifts)[0]
    return found


class _Waves(NamedTuple):
    """What takes cross-spectra to correlations at small shifts, and their gradients back.

    Attributes:
        there: cosines and sines, `[2 shifts, F]`, with how often each frequency of `rfft2` counts.
        back: the same without counts, `[F, 2 shifts]`.
        pairs: what a cosine and a sine make of pairs of real and imaginary parts, `[2, 1, 1, 2, 1, 2]`.
    """

    there: Tensor
    back: Tensor
    pairs: Tensor


def _waves(height: int, width: int, shifts: tuple[int, int], like: Tensor) -> _Waves:
    if like.is_cuda and torch.cuda.is_current_stream_capturing():  # what is made now belongs to the graph
        return _make_waves(height, width, shifts, like.dtype, like.device)
    return _kept_waves(height, width, shifts, like.dtype, like.device)


@torch.inference_mode(False)  # they are kept, and may meet gradients later
def _make_waves(height: int, width: int, shifts: tuple[int, int], dtype: torch.dtype, device: torch.device) -> _Waves:
    def numbers(first: int, last: int) -> Tensor:
        return torch.arange(first, last + 1, dtype=dtype, device=device)

    down, across = (numbers(-(n // 2), n // 2) for n in shifts)
    rows, columns = numbers(0, height - 1) * (2 * math.pi / height), numbers(0, width // 2)
    angle = (down[:, None] * rows)[:, None, :, None] + (across[:, None] * columns * (2 * math.pi / width))[:, None]
    angle = angle.flatten(2).flatten(0, 1)  # [shifts, F]
    waves = torch.cat([angle.cos(), angle.sin()])
    # frequencies that rfft2 leaves out are conjugates of those that are there, which count twice
    twice = 2.0 - ((columns == 0) | (2 * columns == width)).to(dtype)
    one = torch.eye(2, dtype=dtype, device=device)
    i = torch.stack([-one[1], one[0]])
    return _Waves(
        waves * (twice.repeat(height) / (height * width)),
        waves.mT.contiguous(),
        torch.stack([one, i])[:, None, None, :, None, :],
    )


_kept_waves = functools.cache(_make_waves)


def _spectrum(z: Tensor) -> Float[Tensor, "*batch f m q2"]:
    """`rfft2` with frequencies in front of images, and two columns for a channel, its real and its imaginary part."""
    pairs: Tensor = torch.view_as_real(torch.fft.rfft2(z)).flatten(-3, -2)  # [M, Q, F, 2]
    return pairs.movedim(-2, -4).flatten(-2)


def _correlations(z: Tensor, first: int, down: int, across: int) -> tuple[Tensor, Tensor]:
    """Forward: the cross-spectrum, transformed back at the shifts that are needed; and the spectrum, to be kept."""
    waves = _waves(z.shape[-2], z.shape[-1], (down, across), z)
    Z = _spectrum(z)  # [F, M, 2 Q]
    products = waves.there @ (Z[..., : 2 * first].mT @ Z).flatten(-2)  # of all four pairs of parts
    products = products.view(*z.shape[:-4], 2, down * across, first, 2, -1, 2)
    return (waves.pairs * products).sum((-6, -3, -1)), Z


def _gradient(z: Tensor, Z: Tensor, g: Tensor, first: int, down: int, across: int) -> Tensor:
    """Backward: the gradient of each image is its correlation with a small kernel, one more product per frequency."""
    H, W = z.shape[-2:]
    waves = _waves(H, W, (down, across), z)
    pairs = waves.pairs * g[..., None, :, :, None, :, None]  # [2, shifts, C, 2, Q, 2]
    kernel = (waves.back @ pairs.flatten(-6, -5).flatten(-4)).view(*Z.shape[:-2], 2 * first, -1)
    # channel a hears b through the kernel, and b hears a through its transpose
    heard = Z[..., : 2 * first] @ kernel  # [F, M, 2 Q]
    heard[..., : 2 * first] += Z @ kernel.mT
    spectrum = heard.view(*heard.shape[:-1], -1, 2).movedim(-4, -2).contiguous()  # [M, Q, F, 2]
    found: Tensor = torch.fft.irfft2(torch.view_as_complex(spectrum).view(*z.shape[:-1], W // 2 + 1), s=(H, W))
    return found


def _shapes(z: Tensor, first: int, down: int, across: int) -> tuple[Tensor, Tensor]:
    *batch, M, Q, H, W = z.shape
    return z.new_empty(*batch, down * across, first, Q), z.new_empty(*batch, H * (W // 2 + 1), M, 2 * Q)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    z, *ctx.sizes = inputs
    ctx.save_for_backward(z, output[1])


def _backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    z, Z = ctx.saved_tensors
    if torch.is_grad_enabled():  # differentiated again: what was saved must depend on the inputs
        return _gradient(z, _spectrum(z), g, *ctx.sizes), None, None, None
    return torch.ops.vibayes.correlations_backward(z, Z, g, *ctx.sizes), None, None, None


def _vmap(
    info: Any, in_dims: tuple[int | None, ...], z: Tensor, *sizes: int
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    return torch.ops.vibayes.correlations(*batch_first(info, in_dims[:1], z), *sizes), (0, 0)


_SIZES = "int first, int down, int across"
register(
    f"correlations(Tensor z, {_SIZES}) -> (Tensor, Tensor)",
    _correlations,
    _shapes,
    save=_save,
    backward=_backward,
    vmap=_vmap,
)
register(
    f"correlations_backward(Tensor z, Tensor Z, Tensor g, {_SIZES}) -> Tensor",
    _gradient,
    lambda z, *_: z.new_empty(z.shape),
)
