"""Functions that torch lacks, or lacks under `vmap`."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["lgamma_half_step", "log_ndtr", "ndtr", "student_t_cdf"]

_MOST_DF = 1e5  # of the continued fraction for Student's t


def ndtr(z: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Standard normal distribution function, accurate in the lower tail."""
    tail: Tensor = torch.special.erfc(-z / math.sqrt(2.0))
    return 0.5 * tail


def log_ndtr(z: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Log of the standard normal distribution function (torch's own falls back to a loop under vmap).

    >>> round(log_ndtr(torch.tensor(-40.0, dtype=torch.float64)).item(), 8)
    -804.60844201
    """
    # each branch sees only arguments where it is finite, so that the unused one cannot spoil the gradient
    below, above = torch.where(z < 0, z, -1.0), torch.where(z < 0, 1.0, z)
    lower = (0.5 * torch.special.erfcx(-below / math.sqrt(2.0))).log() - 0.5 * below.square()
    upper = torch.log1p(-0.5 * torch.special.erfc(above / math.sqrt(2.0)))
    return torch.where(z < 0, lower, upper)


def lgamma_half_step(a: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`log Gamma(a + 1/2) - log Gamma(a)`, without the cancellation of two large logarithms.

    >>> value = lgamma_half_step(torch.tensor(1e12, dtype=torch.float64))  # 0.5 log(a) to first order
    >>> round(value.item(), 9)
    13.815510558
    """
    small, large = torch.where(a > 20, 1.0, a), torch.where(a > 20, a, 20.0)
    direct = torch.lgamma(small + 0.5) - torch.lgamma(small)
    u = 1.0 / large
    series = 0.5 * large.log() - u / 8 + u**3 / 192 - u**5 / 640 + 17 * u**7 / 14336
    return torch.where(a > 20, series, direct)


def student_t_cdf(t: Float[Tensor, "*shape"], df: Float[Tensor, "..."]) -> Float[Tensor, "*shape"]:
    r"""Distribution function of Student's t, accurate in relative terms in the lower tail; `df` broadcasts.

    With `x = df / (df + t^2)` the lower tail is `I_x(df / 2, 1 / 2) / 2`; the regularised incomplete beta
    function is its continued fraction (Lentz's evaluation), on whichever side of the symmetry
    `I_x(a, b) = 1 - I_{1-x}(b, a)` converges fast. Beyond `df` of 10^5, where it would need ever more terms, it is
    the normal distribution function at Hill's transform of `t` (Hill 1970, Algorithm 395), two terms of which are
    exact to rounding there. Computed in float64, returned in the dtype of `t`. Not for training: it stops when it has
    converged.

    >>> t, df = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    >>> [round(p, 12) for p in student_t_cdf(t, df).tolist()]
    [0.5, 0.75]
    """
    dtype, t, df = t.dtype, t.double(), df.double()
    a = df - 0.5
    u = t.sign() * (a * torch.log1p(t.square() / df)).sqrt()
    normal = ndtr(u + (u**3 + 3 * u) / (48 * a.square()))
    return torch.where(df > _MOST_DF, normal, _student_t_fraction(t, df.clamp(max=_MOST_DF))).to(dtype)


def _student_t_fraction(t: Tensor, df: Tensor) -> Tensor:
    """The distribution function of Student's t by the incomplete beta function."""
    ratio = t.square() / df
    a, b = 0.5 * df, torch.full_like(df, 0.5)
    log_x, log_y = -torch.log1p(ratio), -torch.log1p(1.0 / ratio)
    log_beta = 0.5 * math.log(math.pi) - lgamma_half_step(a)
    front = (a * log_x + b * log_y - log_beta).exp()

    swap = log_x.exp() > (a + 1) / (a + b + 2)
    p, q = torch.where(swap, b, a), torch.where(swap, a, b)
    x = torch.where(swap, log_y, log_x).exp()
    fraction = front / p * _beta_fraction(p, q, x)
    tail = 0.5 * torch.where(swap, 1.0 - fraction, fraction)
    return torch.where(t > 0, 1.0 - tail, tail)


def _beta_fraction(a: Tensor, b: Tensor, x: Tensor, most_terms: int = 2000) -> Tensor:
    """The fraction in `I_x(a, b) = x^a (1 - x)^b / (a B(a, b)) * fraction`."""
    tiny = torch.finfo(x.dtype).tiny ** 0.5
    tolerance = 2 * torch.finfo(x.dtype).eps

    def away_from_zero(v: Tensor) -> Tensor:
        return torch.where(v.abs() < tiny, tiny, v)

    c = torch.ones_like(x)
    d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, most_terms):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / away_from_zero(1.0 + even * d)
        c = away_from_zero(1.0 + even / c)
        value = value * d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / away_from_zero(1.0 + odd * d)
        c = away_from_zero(1.0 + odd / c)
        change = d * c
        value = value * change
        if m % 4 == 0 and bool(((change - 1.0).abs() <= tolerance).all()):
            break
    return value
