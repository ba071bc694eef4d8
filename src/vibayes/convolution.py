"""Convolutions as linear regression: the normal equations of image patches, with and without extracting them.

A convolution is `Y = D w`: the rows of the design `D` are image patches, one for every image and output location, and
a constant feature where there is a bias. A posterior that regresses pseudo-outputs `Y` on the images needs `D^T Lambda
D` and `D^T Lambda Y` only, with one precision per image (thesis, Sec. "Efficient convolutional Bayesian linear
regression"; a precision per location would break the autocorrelation identity).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vibayes.errors import ConfigurationError, ShapeError
from vibayes.operators.correlations import correlations
from vibayes.operators.patch_products import cut, patch_products

__all__ = ["Geometry", "autocorrelation_equations", "normal_equations", "patch_equations", "patches"]


@dataclass(frozen=True)
class Geometry:
    """Where a convolution looks.

    Attributes:
        kernel: height and width of the kernel.
        stride: steps between output locations.
        padding: zeros put on each side.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    @property
    def taps(self) -> int:
        """How many locations a kernel has."""
        return self.kernel[0] * self.kernel[1]

    @property
    def circular(self) -> bool:
        """Whether the image keeps its size, so that circular boundaries make sense: odd kernels of stride 1."""
        same = all(2 * p == k - 1 for k, p in zip(self.kernel, self.padding, strict=True))
        return same and self.stride == (1, 1)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output.

        >>> Geometry((3, 3), (2, 2), (1, 1)).output_size(32, 32)
        (16, 16)
        """
        sides = zip((height, width), self.kernel, self.stride, self.padding, strict=True)
        found = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in sides)
        if min(found) < 1:
            raise ShapeError(
                f"A kernel of {self.kernel[0]} x {self.kernel[1]} with padding {self.padding} does not fit into images "
                f"of {height} x {width} pixels. Use a smaller kernel or more padding."
            )
        return found[0], found[1]


def patches(
    x: Float[Tensor, "n c h w"], geometry: Geometry, *, circular: bool = False
) -> Float[Tensor, "n locations features"]:
    """All patches of each image, flattened in the order of `torch`'s weights: channel, row, column.

    Args:
        x: images.
        geometry: which patches.
        circular: continue images periodically instead of with zeros.

    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> patches(x, Geometry((1, 2))).tolist()
    [[[0.0, 1.0], [2.0, 3.0]]]
    """
    return cut(x, geometry.kernel, geometry.stride, geometry.padding, circular)


def normal_equations(
    x: Float[Tensor, "m c h w"],
    y: Float[Tensor, "m p h2 w2"],
    precision: Float[Tensor, " m"],
    geometry: Geometry,
    *,
    bias: bool = False,
) -> tuple[Float[Tensor, "k k"], Float[Tensor, "k p"]]:
    """`D^T Lambda D` and `D^T Lambda Y` for the patches `D` of images, by whichever way is faster.

    Where the convolution keeps the size of images, boundaries are circular here (not in the network, which has zeros
    there), and the equations come from autocorrelations unless the kernel is a single pixel. Otherwise patches are
    extracted, with zeros at the boundaries as in the network.

    Args:
        x: images that come in.
        y: values at the output locations.
        precision: one per image.
        geometry: of the convolution.
        bias: whether a constant feature comes last.

    >>> G, h = normal_equations(torch.ones(2, 1, 3, 3), torch.ones(2, 1, 3, 3), torch.ones(2), Geometry((1, 1)))
    >>> G.tolist(), h.tolist()
    ([[18.0]], [[18.0]])
    """
    if geometry.circular and geometry.taps > 1:
        return autocorrelation_equations(x, y, precision, geometry, bias=bias)
    return patch_equations(x, y, precision, geometry, bias=bias)


# -- without patches --------------------------------------------------------------------------------------------


def autocorrelation_equations(
    x: Float[Tensor, "m c h w"],
    y: Float[Tensor, "m p h w"],
    precision: Float[Tensor, " m"],
    geometry: Geometry,
    *,
    bias: bool = False,
) -> tuple[Float[Tensor, "k k"], Float[Tensor, "k p"]]:
    r"""The normal equations of circular patches from correlations of images at small shifts.

    With `d = delta' - delta`, `(D^T Lambda D)_{c delta, c' delta'} = \sum_{i u} Lambda_i X_{i c u} X_{i c' (u + d)}`
    and `(D^T Lambda Y)_{c delta, c'} = \sum_{i u} Lambda_i X_{i c (u + delta)} Y_{i c' u}` (thesis, Sec. "Efficient
    convolutional Bayesian linear regression"). By the correlation theorem both are made of the cross-spectrum of
    `[X, Y]`, one small matrix product over images per frequency, of which the few shifts that are needed are
    transformed back.
    """
    if not geometry.circular:
        raise ConfigurationError(f"Autocorrelations need stride 1 and padding that keeps the size; got {geometry}.")
    (C, H, W), P = x.shape[1:], y.shape[1]
    kh, kw = geometry.kernel
    shifts = (2 * kh - 1, 2 * kw - 1)
    found = correlations(torch.cat([x, y], 1), precision, C, shifts)
    auto, cross = found[..., :C], found[..., C:].reshape(*shifts, C, P)
    G = auto.index_select(0, _differences(kh, kw, x.device))  # [taps * taps, C, C]
    G = G.reshape(kh * kw, kh * kw, C, C).permute(2, 0, 3, 1).reshape(C * kh * kw, C * kh * kw)
    # X moved forward by delta against Y is Y moved back by delta against X: the middle shifts, in reverse
    rows, columns = kh // 2, kw // 2
    middle = cross[rows : rows + kh, columns : columns + kw].flip(0, 1)  # [kh, kw, C, P]
    h = middle.permute(2, 0, 1, 3).reshape(C * kh * kw, P)
    if not bias:
        return G, h
    ones = (precision @ x.sum((-2, -1))).repeat_interleave(kh * kw)  # every tap sees every pixel once
    return _bordered(G, h, ones, precision.sum() * (H * W), precision @ y.sum((-2, -1)))


def _differences(kh: int, kw: int, device: torch.device) -> Int[Tensor, " pairs"]:
    """For every pair of taps, the number of the shift between them."""
    down, across = torch.arange(kh, device=device), torch.arange(kw, device=device)
    d = (down[None, :] - down[:, None] + kh - 1)[:, None, :, None] * (2 * kw - 1)
    return (d + (across[None, :] - across[:, None] + kw - 1)[None, :, None, :]).flatten()


def _bordered(
    G: Tensor, h: Tensor, ones: Tensor, count: Tensor, sums: Tensor
) -> tuple[Float[Tensor, "k k"], Float[Tensor, "k p"]]:
    """The equations with a constant feature added."""
    wide = torch.cat([G, ones[:, None]], 1)
    last = torch.cat([ones, count[None]])
    return torch.cat([wide, last[None]]), torch.cat([h, sums[None]])


# -- with patches -----------------------------------------------------------------------------------------------


def patch_equations(
    x: Float[Tensor, "m c h w"],
    y: Float[Tensor, "m p h2 w2"],
    precision: Float[Tensor, " m"],
    geometry: Geometry,
    *,
    bias: bool = False,
) -> tuple[Float[Tensor, "k k"], Float[Tensor, "k p"]]:
    """The normal equations from patches, for any kernel, stride and padding.

    The boundary is circular if the convolution keeps the size of images.

    Args:
        x: images that come in.
        y: values at the output locations.
        precision: one per image.
        geometry: of the convolution.
        bias: whether a constant feature comes last.
    """
    expected = geometry.output_size(*x.shape[-2:])
    if tuple(y.shape[-2:]) != expected:
        raise ShapeError(f"Images give outputs of {expected} locations, but y has {tuple(y.shape[-2:])}.")
    found = patch_products(
        x, y.flatten(2), precision, geometry.kernel, geometry.stride, geometry.padding, circular=geometry.circular
    )
    K = found.shape[0]
    G, ones, h = found[:, :K], found[:, K], found[:, K + 1 :]
    if not bias:
        return G, h
    return _bordered(G, h, ones, precision.sum() * math.prod(expected), precision @ y.sum((-2, -1)))
