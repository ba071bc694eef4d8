"""Correlations of images at small shifts, as one operator: what regressions onto convolutions are made of.

By the correlation theorem they come from cross-spectra, one small matrix product over images per frequency. A library
operator keeps its own backward pass under `torch.compile`, which would differentiate the forward pass otherwise.
"""

import functools
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators.base import batch_first, register

__all__ = ["correlations"]


def correlations(
    z: Float[Tensor, "*batch m q h w"], precision: Float[Tensor, "*batch m"], first: int, shifts: tuple[int, int]
) -> Float[Tensor, "*batch shifts first q"]:
    r"""`R[d, a, b] = \sum_iu Lambda_i z_{i a u} z_{i b (u + d)}` with circular boundaries.

    Args:
        z: images.
        precision: one for each image.
        first: `a` is one of so many first channels.
        shifts: how many shifts `d` down and across, odd numbers, the middle one being 0.

    >>> correlations(torch.tensor([[[[1.0, 2.0, 3.0]]]]), torch.ones(1), 1, (1, 3)).flatten().round(decimals=4)
    tensor([11., 14., 11.])
    """
    found: Tensor = torch.ops.vibayes.correlations(z, precision, first, *shifts)[0]
    return found


def _waves(height: int, width: int, shifts: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines and sines `[shifts, F]` of the frequencies of `rfft2` at small shifts, and how often each counts."""
    if like.is_cuda and torch.cuda.is_current_stream_capturing():  # what is made now belongs to the graph
        return _make_waves(height, width, shifts, like.dtype, like.device)
    return _kept_waves(height, width, shifts, like.dtype, like.device)


@torch.inference_mode(False)  # they are kept, and may meet gradients later
def _make_waves(
    height: int, width: int, shifts: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    def numbers(first: int, last: int) -> Tensor:
        return torch.arange(first, last + 1, dtype=dtype, device=device)

    down, across = (numbers(-(n // 2), n // 2) for n in shifts)
    rows, columns = numbers(0, height - 1) * (2 * math.pi / height), numbers(0, width // 2)
    angle = (down[:, None] * rows)[:, None, :, None] + (across[:, None] * columns * (2 * math.pi / width))[:, None]
    # frequencies that rfft2 leaves out are conjugates of those that are there, which count twice
    twice = 2.0 - ((columns == 0) | (2 * columns == width)).to(dtype)
    angle = angle.flatten(2).flatten(0, 1)
    return angle.cos(), angle.sin(), twice.repeat(height) / (height * width)


_kept_waves = functools.cache(_make_waves)


def _spectrum(z: Tensor) -> Tensor:
    """`rfft2` with frequencies first, `[*batch, F, M, Q]`, laid out for matrix products over images."""
    Z: Tensor = torch.fft.rfft2(z)
    return Z.flatten(-2).movedim(-1, -3).contiguous()


def _correlations(z: Tensor, precision: Tensor, first: int, down: int, across: int) -> tuple[Tensor, Tensor]:
    """Forward: the cross-spectrum, transformed back at the shifts that are needed; and the spectrum, to be kept."""
    Z = _spectrum(z)
    S = ((precision[..., None, :, None] * Z[..., :first]).mH @ Z).flatten(-2)  # [F, C Q]
    cosine, sine, count = _waves(z.shape[-2], z.shape[-1], (down, across), z)
    R = (cosine * count) @ S.real - (sine * count) @ S.imag
    return R.view(*R.shape[:-1], first, -1), Z


def _gradients(
    z: Tensor, precision: Tensor, Z: Tensor, g: Tensor, first: int, down: int, across: int
) -> tuple[Tensor, Tensor]:
    """Backward: the gradient of each image is its correlation with a small kernel, one more product per frequency."""
    H, W = z.shape[-2:]
    cosine, sine, _ = _waves(H, W, (down, across), z)
    flat = g.flatten(-2)  # [shifts, C Q]
    K = torch.complex(cosine.mT @ flat, sine.mT @ flat)
    K = K.view(*K.shape[:-1], first, -1)  # [F, C, Q]
    # channel a hears b through K_ab, and b hears a through its conjugate
    heard = Z[..., :first] @ K.conj()  # [F, M, Q]
    heard[..., :first] += Z @ K.mT
    del K  # what is large here goes as soon as it can
    heard = heard.movedim(-3, -1).reshape(*z.shape[:-1], W // 2 + 1)
    # for one image and precision 1; a quadratic form is half the product of its argument and its gradient
    each = torch.fft.irfft2(heard, s=(H, W))
    del heard
    return precision[..., None, None, None] * each, 0.5 * (z * each).sum((-3, -2, -1))


def _shapes(z: Tensor, precision: Tensor, first: int, down: int, across: int) -> tuple[Tensor, Tensor]:
    *batch, M, Q, H, W = z.shape
    Z = z.new_empty(*batch, H * (W // 2 + 1), M, Q, dtype=z.dtype.to_complex())
    return z.new_empty(*batch, down * across, first, Q), Z


def _gradients_shapes(z: Tensor, precision: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape), precision.new_empty(precision.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    z, precision, *ctx.sizes = inputs
    ctx.save_for_backward(z, precision, output[1])


def _backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    z, precision, Z = ctx.saved_tensors
    if torch.is_grad_enabled():  # differentiated again: what was saved must depend on the inputs
        return *_gradients(z, precision, _spectrum(z), g, *ctx.sizes), None, None, None
    return *torch.ops.vibayes.correlations_backward(z, precision, Z, g, *ctx.sizes), None, None, None


def _vmap(
    info: Any, in_dims: tuple[int | None, ...], z: Tensor, precision: Tensor, *sizes: int
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    return torch.ops.vibayes.correlations(*batch_first(info, in_dims[:2], z, precision), *sizes), (0, 0)


_SIZES = "int first, int down, int across"
register(
    f"correlations(Tensor z, Tensor precision, {_SIZES}) -> (Tensor, Tensor)",
    _correlations,
    _shapes,
    save=_save,
    backward=_backward,
    vmap=_vmap,
)
register(
    f"correlations_backward(Tensor z, Tensor precision, Tensor Z, Tensor g, {_SIZES}) -> (Tensor, Tensor)",
    _gradients,
    _gradients_shapes,
)
