"""Priors of weights: what is known of a layer's weights before it has seen data.

A prior gives, in every draw, a square root `R` of the weights' covariance: `w = R v` with `v ~ N(0, I)`, alike for
every output. Posteriors work with `v` or with `w`, as suits them, and need to know no more than the root.
"""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.draw import Draw
from vibayes.errors import ConfigurationError
from vibayes.parameters import Positive

if TYPE_CHECKING:
    from vibayes.layers.weights import WeightLayer

__all__ = ["Isotropic", "NealPrior", "Prior", "Root", "ScalePrior", "StandardPrior"]


class Root(ABC):
    """A square root `R` of the prior covariance of one output's weights: `w = R v`, `v ~ N(0, I)`.

    Weights are `[K, P]`: K per output (the fan-in, the bias last), P outputs.

    Attributes:
        size: K.
    """

    size: int

    @abstractmethod
    def apply(self, v: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
        """`R v`: weights from whitened values."""

    @abstractmethod
    def transposed(self, x: Float[Tensor, "k n"]) -> Float[Tensor, "k n"]:
        """`R^T x`: the transposed design from transposed features."""

    @abstractmethod
    def solve(self, w: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
        """`R^-1 w`: whitened values from weights."""

    @abstractmethod
    def expected_square(self, variance: Float[Tensor, "k p"]) -> Float[Tensor, ""]:
        """`E |R^-1 e|^2` of independent errors `e` with these variances, summed over outputs."""

    @abstractmethod
    def log_det(self) -> float | Tensor:
        """`log |det R|`, of one output."""

    def log_prob(self, w: Float[Tensor, "k p"]) -> Float[Tensor, ""]:
        """`log N(w; 0, R R^T)`, summed over outputs."""
        constant = 0.5 * self.size * math.log(2 * math.pi) + self.log_det()
        return -0.5 * self.solve(w).square().sum() - w.shape[-1] * constant

    def kl(self, mean: Float[Tensor, "k p"], std: Float[Tensor, "k p"]) -> Float[Tensor, ""]:
        """`KL(N(mean, std^2) || N(0, R R^T))`, summed over outputs."""
        square = self.solve(mean).square().sum() + self.expected_square(std.square())
        return 0.5 * (square - mean.numel()) - std.log().sum() + mean.shape[-1] * self.log_det()


class Isotropic(Root):
    """`R = std I`.

    >>> Isotropic(0.5, 3).apply(torch.ones(3, 1)).flatten().tolist()
    [0.5, 0.5, 0.5]
    """

    def __init__(self, std: float | Float[Tensor, ""], size: int) -> None:
        self.std = std
        self.size = size

    def apply(self, v: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
        """`std v`."""
        return self.std * v

    def transposed(self, x: Float[Tensor, "k n"]) -> Float[Tensor, "k n"]:
        """`std x`."""
        return self.std * x

    def solve(self, w: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
        """`w / std`."""
        return w / self.std

    def expected_square(self, variance: Float[Tensor, "k p"]) -> Float[Tensor, ""]:
        """`sum variance / std^2`."""
        return variance.sum() / self.std**2

    def log_det(self) -> float | Tensor:
        """`K log std`."""
        return self.size * (self.std.log() if isinstance(self.std, Tensor) else math.log(self.std))


class Prior(nn.Module, ABC):
    """The prior of a layer's weights, and a specification that many layers may be given.

    Attributes:
        random: whether it has hyperparameters that are drawn anew in every draw.
    """

    random: bool = False

    def finish(self, layer: "WeightLayer") -> None:
        """Create hyperparameters, once, when the layer joins a model."""
        return

    @abstractmethod
    def root(self, layer: "WeightLayer", draw: Draw, *, learned: bool = True) -> Root:
        """The root of the covariance in this draw. Hyperparameters report their log ratio as `"<layer>.prior"`.

        Args:
            layer: whose weights; `layer.fan_in` is K.
            draw: the draw in progress.
            learned: draw hyperparameters from their posterior; False: from their prior, with log ratio zero.
        """


class NealPrior(Prior):
    """Weights of variance `1 / fan-in`, so that activations keep their size (thesis, Sec. "Priors"; Neal 1996).

    >>> import vibayes as vb
    >>> layer = vb.Linear(100, 1, bias=False, prior=NealPrior(), posterior=vb.FromPrior())
    >>> draws = vb.Model(layer, vb.Gaussian()).sample_functions(torch.ones(1, 100), 2000)  # the sum of 100 weights
    >>> bool(0.8 < draws.var() < 1.2)
    True
    """

    def root(self, layer: "WeightLayer", draw: Draw, *, learned: bool = True) -> Isotropic:
        """`I / sqrt(fan-in)`."""
        return Isotropic(1.0 / math.sqrt(layer.fan_in), layer.fan_in)


class StandardPrior(Prior):
    """Weights of variance 1, whatever the fan-in (thesis, Sec. "Priors").

    >>> import vibayes as vb
    >>> layer = vb.Linear(100, 1, bias=False, prior=StandardPrior(), posterior=vb.FromPrior())
    >>> draws = vb.Model(layer, vb.Gaussian()).sample_functions(torch.ones(1, 100), 2000)  # the sum of 100 weights
    >>> bool(80 < draws.var() < 120)
    True
    """

    def root(self, layer: "WeightLayer", draw: Draw, *, learned: bool = True) -> Isotropic:
        """The identity."""
        return Isotropic(1.0, layer.fan_in)


class ScalePrior(Prior):
    r"""Weights whose scale is inferred, one `s` for each layer (thesis, Sec. "Priors").

    `p(s) = Gamma(2, 2)` and `q(s) = Gamma(2 + alpha, 2 + beta)`, in shape and rate, with `alpha` and `beta` learned.
    `KL(q(s) || p(s))` is part of the bound, so that bounds of different priors compare.

    Args:
        covariance: `"1/s"`, the thesis's text: weights have variance `1 / (s fan-in)`. Or `"sqrt(s)"`, what the
            published code does: `sqrt(s) / fan-in`. Each is a prior of its own with a proper bound.

    >>> import vibayes as vb
    >>> layer = vb.Linear(2, 1, prior=ScalePrior(), posterior=vb.MeanField())
    >>> model = vb.Model(layer, vb.Gaussian(0.1))
    >>> layer.prior.alpha
    Positive(100)
    """

    random = True
    alpha: Positive
    beta: Positive

    def __init__(self, covariance: str = "1/s") -> None:
        super().__init__()
        if covariance not in ("1/s", "sqrt(s)"):
            raise ConfigurationError(f'covariance must be "1/s" or "sqrt(s)", got {covariance!r}.')
        self.covariance = covariance

    def finish(self, layer: "WeightLayer") -> None:
        """Start at `s = 1` within ten percent: s is a statistic of all the layer's weights, and so well known."""
        self.alpha, self.beta = Positive(100.0), Positive(100.0)

    def root(self, layer: "WeightLayer", draw: Draw, *, learned: bool = True) -> Isotropic:
        """`I / sqrt(s fan-in)`, or `I s^(1/4) / sqrt(fan-in)`."""
        site = f"{layer.name}.prior"
        raw = self.alpha.raw
        if learned:
            shape, rate = 2.0 + self.alpha.value, 2.0 + self.beta.value
            s = draw.gamma(site, shape) / rate
            ratio = -_gamma_kl(shape, rate) if draw.marginal else _log_gamma(s, 2.0, 2.0) - _log_gamma(s, shape, rate)
            draw.add(site, ratio)
        else:
            s = draw.gamma(site, torch.full_like(raw, 2.0)) / 2.0
        scale = s ** (-0.5 if self.covariance == "1/s" else 0.25)
        return Isotropic(scale / math.sqrt(layer.fan_in), layer.fan_in)

    def extra_repr(self) -> str:
        """The reading, for `print(model)`."""
        return f"covariance={self.covariance!r}"


def _log_gamma(s: Tensor, shape: float | Tensor, rate: float | Tensor) -> Tensor:
    """Log density of `Gamma(shape, rate)`."""
    shape, rate = torch.as_tensor(shape, dtype=s.dtype), torch.as_tensor(rate, dtype=s.dtype)
    return shape * rate.log() - torch.lgamma(shape) + (shape - 1.0) * s.log() - rate * s


def _gamma_kl(shape: Tensor, rate: Tensor) -> Tensor:
    """`KL(Gamma(shape, rate) || Gamma(2, 2))`."""
    return (
        (shape - 2.0) * torch.digamma(shape)
        - torch.lgamma(shape)
        + 2.0 * (rate.log() - math.log(2.0))
        + shape * (2.0 - rate) / rate
    )
