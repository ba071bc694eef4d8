"""A prior of convolutional weights whose covariance over the places of a kernel is inferred."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.distributions import InverseWishart
from vibayes.distributions.bartlett import bartlett_factor, log_multigamma, multidigamma, standard_shapes
from vibayes.draw import Draw
from vibayes.operators.gamma import NOISE_PER_GAMMA
from vibayes.parameters import Positive
from vibayes.priors import Prior, Root

if TYPE_CHECKING:
    from vibayes.layers.weights import WeightLayer

__all__ = ["Spatial", "SpatialIWPrior"]

# Degrees of freedom that the posterior starts with beyond the prior's: L near the identity within ten percent, as it is
# a statistic of all kernels of the layer.
_START = 100.0


class Spatial(Root):
    """`R = std (I (x) F^-T)`, so that `R R^T = std^2 I (x) (F F^T)^-1`: alike for every channel, free over places.

    Args:
        inverse: `F^-1`, lower triangular, one row per place.
        std: the scale of the whole.
        size: K.
        channels: how many there are; features beyond the last one (a convolution's bias) have variance `std^2`.

    >>> root = Spatial(0.5 * torch.eye(2), 1.0, 5, 2)
    >>> root.apply(torch.ones(5, 1)).flatten().tolist()
    [0.5, 0.5, 0.5, 0.5, 1.0]
    """

    def __init__(self, inverse: Float[Tensor, "places places"], std: float, size: int, channels: int) -> None:
        self.inverse, self.std, self.size, self.channels = inverse, std, size, channels
        self._F: Tensor | None = None

    @property
    def F(self) -> Float[Tensor, "places places"]:
        """The Cholesky factor of `L`, which posteriors in whitened values need not know."""
        if self._F is None:  # no cached_property: its lock on Python 3.11 is what torch.compile breaks off at
            self._F = linalg.solve_lower(self.inverse, _identity(self.inverse))
        return self._F

    def _blocks(self, A: Tensor, x: Tensor) -> Tensor:
        """`(I (x) A) x`, with features beyond the last block as they are."""
        inside = self.channels * A.shape[-1]
        mixed = (A @ x[:inside].reshape(self.channels, -1, x.shape[-1])).reshape(inside, x.shape[-1])
        return mixed if inside == self.size else torch.cat([mixed, x[inside:]])

    def apply(self, v: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
        """`std (I (x) F^-T) v`."""
        return self.std * self._blocks(self.inverse.mT, v)

    def transposed(self, x: Float[Tensor, "k n"]) -> Float[Tensor, "k n"]:
        """`std (I (x) F^-1) x`."""
        return self.std * self._blocks(self.inverse, x)

    def solve(self, w: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
        """`(I (x) F^T) w / std`."""
        return self._blocks(self.F.mT, w) / self.std

    def expected_square(self, variance: Float[Tensor, "k p"]) -> Float[Tensor, ""]:
        """`sum_k variance_k (I (x) F F^T)_kk / std^2`."""
        diagonal = self.F.square().sum(-1).repeat(self.channels)  # of F F^T
        diagonal = torch.cat([diagonal, diagonal.new_ones(self.size - len(diagonal))])
        return (diagonal @ variance).sum() / self.std**2

    def log_det(self) -> Tensor:
        """`K log std - channels log |F|`."""
        return self.size * math.log(self.std) + 0.5 * self.channels * linalg.logdet_factor(self.inverse)


class SpatialIWPrior(Prior):
    r"""Convolutional weights that may be correlated within a kernel, alike for every channel, by an inferred `L`.

    For kernels of `p` places (`p = k^2`; 1 for `Linear`) the weights of one output have covariance `(1 / fan-in)
    I_channels (x) L^-1`, with

    `p(L) = IW((p + 1) I, p + 1)`, `q(L) = IW((p + 1) I + Psi, p + 1 + delta)`,

    and `Psi`, positive semi-definite, and `delta > 0` learned (thesis, Eq. `eq:gi:IWPrior`, where `nu_{l-1}` must be
    read as `p`: else the prior would be improper for few channels). `E_p[L^-1] = I`. The bias of a convolution has no
    place in the kernel, and variance `1 / fan-in`; that of `Linear` is one more channel. `KL(q(L) || p(L))` is part of
    the bound.

    >>> import vibayes as vb
    >>> layer = vb.Conv2d(3, 8, 3, prior=SpatialIWPrior(), posterior=vb.MeanField())
    >>> model = vb.Model(torch.nn.Sequential(layer, torch.nn.Flatten(), vb.Linear(8, 1, posterior=vb.MeanField())),
    ...                  vb.Gaussian(0.1))
    >>> layer.prior.raw_factor.shape
    torch.Size([9, 9])
    """

    random = True
    delta: Positive
    raw_factor: nn.Parameter

    def finish(self, layer: "WeightLayer") -> None:
        """Start with `E_q[L^-1] = I`."""
        places = getattr(layer, "places", 1)
        self.delta = Positive(_START)
        self.raw_factor = nn.Parameter(math.sqrt(_START) * torch.eye(places))

    def posterior(self, draw: Draw, site: str) -> tuple[linalg.Factor, Tensor]:
        """The factor of the scale matrix of `q(L)`, and its degrees of freedom."""
        A, p = self.raw_factor, self.raw_factor.shape[-1]
        scale = (p + 1.0) * _identity(A) + A @ A.mT
        return draw.factor(site, scale, jitter=False), p + 1.0 + self.delta.value

    def root(self, layer: "WeightLayer", draw: Draw, *, learned: bool = True) -> Spatial:
        """The root of `I (x) L^-1 / fan-in` for a draw of `L`.

        As `InverseWishart` draws it: with the scale matrix `C C^T` and the Bartlett factor `T` of a standard Wishart
        matrix, rows and columns reversed, `F = C T^-T`. Here its inverse is needed, which takes no triangular solve.
        """
        site, like = f"{layer.name}.prior", self.raw_factor
        p = like.shape[-1]
        noise = draw.randn(site, p + NOISE_PER_GAMMA, p, like=like)
        if not learned:
            T = bartlett_factor(standard_shapes(p + 1.0, p, like), noise).flip(-2, -1)
            return self._spatial(layer, T.mT / math.sqrt(p + 1.0))
        C, nu = self.posterior(draw, site)
        T = bartlett_factor(standard_shapes(nu, p, like), noise).flip(-2, -1)
        root = self._spatial(layer, C.solve_transposed(T).mT)
        draw.add(site, -_kl(C, nu) if draw.marginal else _log_ratio(root.F, C, nu))
        return root

    def _spatial(self, layer: "WeightLayer", inverse: Tensor) -> Spatial:
        channels = getattr(layer, "in_channels", layer.fan_in)  # each weight of `Linear` is one, its bias among them
        return Spatial(inverse, 1.0 / math.sqrt(layer.fan_in), layer.fan_in, channels)


def _identity(like: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _log_ratio(F: Tensor, C: linalg.Factor, nu: Tensor) -> Float[Tensor, ""]:
    """`log p(L) - log q(L)` of `L = F F^T`."""
    n = F.shape[-1]
    p = InverseWishart(None, n + 1.0, scale_tril=math.sqrt(n + 1.0) * _identity(F), validate_args=False)
    q = InverseWishart(None, nu, scale_tril=C.lower, validate_args=False)
    return p.log_prob_factor(F) - q.log_prob_factor(F)


def _kl(C: linalg.Factor, nu: Tensor) -> Float[Tensor, ""]:
    """`KL(q || p)` of inverse Wishart distributions, which is that of the Wishart distributions of the inverses."""
    n = C.lower.shape[-1]
    nu0 = n + 1.0
    log_ratio = C.log_det - n * math.log(n + 1.0)  # log |S| - log |S0|
    trace = (n + 1.0) * C.solve(_identity(C.lower)).square().sum((-2, -1))  # tr(S0 S^-1)
    digammas = multidigamma(nu, n, C.lower)
    found: Tensor = (
        0.5 * nu0 * log_ratio
        + 0.5 * nu * (trace - n)
        + log_multigamma(nu0, n)
        - log_multigamma(nu, n)
        + 0.5 * (nu - nu0) * digammas
    )
    return found
