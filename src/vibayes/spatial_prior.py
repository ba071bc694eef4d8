"""A prior of convolutional weights whose covariance over the places of a kernel is inferred."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.distributions import InverseWishart
from vibayes.distributions.bartlett import log_multigamma, standard_shapes
from vibayes.draw import Draw
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
        F: lower triangular, one row per place.
        std: the scale of the whole.
        size: K; features beyond the last whole channel (the bias) have variance `std^2`.

    >>> root = Spatial(2.0 * torch.eye(2), 1.0, 5)
    >>> root.apply(torch.ones(5, 1)).flatten().tolist()
    [0.5, 0.5, 0.5, 0.5, 1.0]
    """

    def __init__(self, F: Float[Tensor, "places places"], std: float, size: int) -> None:
        self.F, self.std, self.size = F, std, size
        self.inverse = linalg.solve_lower(F, torch.eye(F.shape[-1], dtype=F.dtype, device=F.device))

    def _blocks(self, A: Tensor, x: Tensor) -> Tensor:
        """`(I (x) A) x`, with features beyond the last block as they are."""
        places = A.shape[-1]
        inside = self.size - self.size % places
        mixed = (A @ x[:inside].reshape(-1, places, x.shape[-1])).reshape(inside, x.shape[-1])
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
        places = self.F.shape[-1]
        channels, rest = divmod(self.size, places)
        diagonal = self.F.square().sum(-1).repeat(channels)  # of F F^T
        diagonal = torch.cat([diagonal, torch.ones_like(diagonal[:rest])]) if rest else diagonal
        return (diagonal @ variance).sum() / self.std**2

    def log_det(self) -> Tensor:
        """`K log std - channels log |F|`."""
        channels = self.size // self.F.shape[-1]
        return self.size * math.log(self.std) - channels * self.F.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class SpatialIWPrior(Prior):
    r"""Convolutional weights that may be correlated within a kernel, alike for every channel, by an inferred `L`.

    For kernels of `p` places (`p = k^2`; 1 for `Linear`) the weights of one output have covariance `(1 / fan-in)
    I_channels (x) L^-1`, with

    `p(L) = IW((p + 1) I, p + 1)`, `q(L) = IW((p + 1) I + Psi, p + 1 + delta)`,

    and `Psi`, positive semi-definite, and `delta > 0` learned (thesis, Eq. `gi:IWPrior`, where `nu_{l-1}` must be read
    as `p`: else the prior would be improper for few channels). `E_p[L^-1] = I`. The bias of a convolution has no place
    in the kernel, and variance `1 / fan-in`. `KL(q(L) || p(L))` is part of the bound.

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

    def prior(self) -> InverseWishart:
        """`p(L)`."""
        p = self.raw_factor.shape[-1]
        identity = torch.eye(p, dtype=self.raw_factor.dtype, device=self.raw_factor.device)
        return InverseWishart(None, p + 1.0, scale_tril=math.sqrt(p + 1.0) * identity, validate_args=False)

    def posterior(self, draw: Draw, site: str) -> InverseWishart:
        """`q(L)`."""
        A, p = self.raw_factor, self.raw_factor.shape[-1]
        identity = torch.eye(p, dtype=A.dtype, device=A.device)
        scale = draw.cholesky(site, (p + 1.0) * identity + A @ A.mT, jitter=False)
        return InverseWishart(None, p + 1.0 + self.delta.value, scale_tril=scale, validate_args=False)

    def root(self, layer: "WeightLayer", draw: Draw, *, learned: bool = True) -> Spatial:
        """The root of `I (x) L^-1 / fan-in` for a draw of `L`."""
        site = f"{layer.name}.prior"
        p = self.prior()
        q = self.posterior(draw, site) if learned else p
        noise = draw.randn(site, *q.noise_shape, like=self.raw_factor)
        F = q.rsample_factor(noise=noise).factor  # L = F F^T
        if learned:
            draw.add(site, -_kl(q, p) if draw.marginal else p.log_prob_factor(F) - q.log_prob_factor(F))
        return Spatial(F, 1.0 / math.sqrt(layer.fan_in), layer.fan_in)


def _kl(q: InverseWishart, p: InverseWishart) -> Float[Tensor, ""]:
    """`KL(q || p)` of inverse Wishart distributions, which is that of the Wishart distributions of the inverses."""
    n, (nu, nu0) = q.event_shape[0], (q.nu, p.nu)
    assert isinstance(nu, Tensor)
    log_ratio = linalg.logdet_factor(q.scale_tril) - linalg.logdet_factor(p.scale_tril)  # log |S| - log |S0|
    trace = linalg.solve_lower(q.scale_tril, p.scale_tril).square().sum((-2, -1))  # tr(S0 S^-1)
    digammas = torch.digamma(standard_shapes(nu, n, q.scale_tril)).sum(-1)
    found: Tensor = (
        0.5 * nu0 * log_ratio
        + 0.5 * nu * (trace - n)
        + log_multigamma(nu0, n)
        - log_multigamma(nu, n)
        + 0.5 * (nu - nu0) * digammas
    )
    return found
