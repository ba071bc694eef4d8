"""Predictive mixtures of counts, of yes and no, and of classes."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.likelihoods.mixtures import ClassSummary, Mixture, Moments, standard_normal
from vibayes.likelihoods.special import ndtr
from vibayes.likelihoods.targets import binary_targets, class_targets, count_targets
from vibayes.quadrature import normal_grid, standard_deviation, stretched_grid

__all__ = ["BernoulliMixture", "CategoricalMixture", "PoissonMixture", "binary_entropy"]


# Rates beyond which counts are drawn as normal to rounding; torch's own overflow at 2^63, to negative ones.
_NORMAL_RATE = 1e15


@dataclass(frozen=True, eq=False)
class PoissonMixture(Mixture):
    """`y | f ~ Poisson(exp(f))` with a Gaussian of `f` given each draw.

    Attributes:
        mean: mean of the log rate given each draw, `[S, N, P]`.
        variance: its variance, `[S, N, P]`.
    """

    mean: Float[Tensor, "s n p"]
    variance: Float[Tensor, "s n p"]

    kind: ClassVar[str] = "counts"
    ROWS: ClassVar[tuple[str, ...]] = ("mean", "variance")

    check_targets = staticmethod(count_targets)

    @property
    def n_nodes(self) -> int:
        """Q, the number of nodes of an integral."""
        return len(stretched_grid(self.dtype)[0])

    def draw_log_prob(self, y: Float[Tensor, "n p"]) -> Float[Tensor, "s n"]:
        """`log p(y | draw)`, summed over targets.

        The integrand over `f` is log-concave; the nodes are placed around its peak `f*`, where
        `y - exp(f*) = (f* - mean) / variance`, so that large counts are as accurate as small ones.
        """
        mean, v = self.mean, self.variance
        # v exp(f*) = exp(L) with exp(L) + L = c
        c = v.log() + mean + v * y
        L = torch.where(c > 1, c.clamp(min=1).log(), c)
        for _ in range(8):
            L = L - (L.exp() + L - c) / (L.exp() + 1)
        L = torch.where(v > 0, L, -math.inf)
        rate = torch.where(v > 0, L.exp() / v, mean.exp())  # exp(f*)
        # z = (f - mean) / sqrt(v) at the peak, in whichever form does not cancel
        peak = torch.where(L > 0, (L - v.log() - mean) / v.sqrt(), v.sqrt() * (y - rate))
        nodes, log_nodes = stretched_grid(self.dtype, self.device)
        width = L.exp().add(1).rsqrt()
        z = peak[:, None] + width[:, None] * nodes[:, None, None]  # [S, Q, N, P]
        f = mean[:, None] + v.sqrt()[:, None] * z
        log_mass = y * f - f.exp() - torch.lgamma(y + 1) - 0.5 * z.square()
        log_prob = torch.logsumexp(log_mass + log_nodes[:, None, None], 1) - 0.5 * torch.log1p(L.exp())
        return log_prob.sum(-1)

    def cdf(self, y: Float[Tensor, "n p"]) -> Float[Tensor, "n p"]:
        """`P(count <= y)` of each target, `E[Q(a, exp(f))]` with `a = y + 1`, Q the upper incomplete gamma function.

        Given `f` it is the probability that `u > f`, `u` the logarithm of a Gamma(a) variable. The narrower of `f` and
        `u` is integrated on nodes, where the other one's distribution function is smooth; few nodes do for any count.
        """
        whole = y.floor()
        a = whole.clamp(min=0) + 1
        if not bool(self.variance.any()):  # nothing to integrate
            share = self.over_draws(torch.special.gammaincc(a, self.mean.exp()))
            return torch.where(whole < 0, 0.0, share)
        wide = self.variance * a > 1  # than u
        z, log_z = normal_grid(math.inf, self.dtype, self.device)
        f = self.mean[:, None] + standard_deviation(self.variance)[:, None] * z[:, None, None]
        rate = torch.where(wide[:, None], 0.0, f.exp())  # at zero the function below takes no time
        over_f = (log_z.exp()[:, None, None] * torch.special.gammaincc(a, rate)).sum(1)  # [S, N, P]
        nodes, log_nodes = stretched_grid(self.dtype, self.device)
        t = nodes[:, None, None] * a.rsqrt()  # u - log a  [Q, N, P]
        mass = torch.softmax(log_nodes[:, None, None] + a * (t - t.expm1()), 0)
        deviation = torch.where(wide, self.variance, 1.0).sqrt()
        over_u = (mass * ndtr((a.log() + t - self.mean[:, None]) / deviation[:, None])).sum(1)
        return torch.where(whole < 0, 0.0, self.over_draws(torch.where(wide, over_u, over_f)))

    def quantile(self, q: float) -> Float[Tensor, "n p"]:
        """The smallest count whose distribution function reaches `q`, by doubling and bisection."""
        lower = torch.full_like(self.mean[0], -1.0)  # always below the quantile
        upper = torch.ones_like(lower)
        while bool((short := self.cdf(upper) < q).any()):
            lower, upper = torch.where(short, upper, lower), torch.where(short, 2 * upper, upper)
            if bool(torch.isinf(upper).any()):
                break
        while True:
            middle = ((lower + upper) / 2).floor()
            # large counts may have no number between them in this dtype, and the middle be rounded to either end
            inside = (lower < middle) & (middle < upper)
            if not bool(inside.any()):
                return upper
            reached = self.cdf(middle) >= q
            lower, upper = torch.where(inside & ~reached, middle, lower), torch.where(inside & reached, middle, upper)

    def moments(self) -> Moments:
        """First two moments given each draw; the rate is log-normal."""
        rate = (self.mean + 0.5 * self.variance).exp()
        return Moments(rate, rate.square() * self.variance.expm1(), rate)

    def sample(self, draws: Tensor, generator: torch.Generator | None) -> Tensor:
        """Counts of all rows, one set from each of the named draws."""
        mean = self.mean[draws]
        f = mean + standard_deviation(self.variance[draws]) * standard_normal(mean, generator)
        rate = f.exp()
        counts = torch.poisson(rate.clamp(max=_NORMAL_RATE), generator=generator)
        beyond = rate > _NORMAL_RATE
        if bool(beyond.any()):
            normal = rate * (1 + standard_normal(rate, generator) / rate.sqrt())
            counts = torch.where(beyond, normal.round(), counts)
        return counts


@dataclass(frozen=True, eq=False)
class BernoulliMixture(Mixture):
    """Probabilities of one given each draw, with what its Gaussian leaves open already integrated.

    Attributes:
        log_one: `log E_f[p]`, `[S, N, P]`, with `p = P(y = 1 | f)`.
        log_zero: `log E_f[1 - p]`, `[S, N, P]`.
        latent_variance: `Var_f(p)`, `[S, N, P]`.
        entropy: `E_f[H(p)]`, `[S, N, P]`.
    """

    log_one: Float[Tensor, "s n p"]
    log_zero: Float[Tensor, "s n p"]
    latent_variance: Float[Tensor, "s n p"]
    entropy: Float[Tensor, "s n p"]

    kind: ClassVar[str] = "binary"
    ROWS: ClassVar[tuple[str, ...]] = ("log_one", "log_zero", "latent_variance", "entropy")

    check_targets = staticmethod(binary_targets)

    def draw_log_prob(self, y: Float[Tensor, "n p"]) -> Float[Tensor, "s n"]:
        """`log p(y | draw)`, summed over targets."""
        return torch.where(y == 1, self.log_one, self.log_zero).sum(-1)

    def class_summary(self) -> ClassSummary:
        """Of ones: probabilities and entropies over draws."""
        log_weights = self.log_weights[:, None, None]
        one, zero = (torch.logsumexp(log_weights + p, 0) for p in (self.log_one, self.log_zero))
        return ClassSummary(one.exp(), binary_entropy(one, zero), self.over_draws(self.entropy))

    def moments(self) -> Moments:
        """First two moments given each draw."""
        one = self.log_one.exp()
        return Moments(one, self.latent_variance, one * self.log_zero.exp() - self.latent_variance)

    def sample(self, draws: Tensor, generator: torch.Generator | None) -> Tensor:
        """Zeros and ones of all rows, one set from each of the named draws."""
        return torch.bernoulli(self.log_one[draws].exp(), generator=generator)


@dataclass(frozen=True, eq=False)
class CategoricalMixture(Mixture):
    """Class probabilities given each draw, with what its Gaussian leaves open already averaged.

    Attributes:
        log_probs: `log E_f[softmax(f)]`, `[S, N, C]`.
        entropy: `E_f[H(softmax(f))]`, `[S, N]`.
    """

    log_probs: Float[Tensor, "s n c"]
    entropy: Float[Tensor, "s n"]

    kind: ClassVar[str] = "classes"
    ROWS: ClassVar[tuple[str, ...]] = ("log_probs", "entropy")

    check_targets = staticmethod(class_targets)

    def draw_log_prob(self, y: Tensor) -> Float[Tensor, "s n"]:
        """`log p(y | draw)`."""
        index = y[None, :, None].expand(self.n_draws, -1, 1)
        return self.log_probs.gather(2, index)[..., 0]

    def class_summary(self) -> ClassSummary:
        """Probabilities and entropies over draws."""
        probs = torch.logsumexp(self.log_weights[:, None, None] + self.log_probs, 0).exp()
        return ClassSummary(probs, torch.special.entr(probs).sum(-1), self.over_draws(self.entropy))

    def moments(self) -> Moments:
        """First two moments of the one-hot coding, given each draw (the split inside a draw is not kept)."""
        probs = self.log_probs.exp()
        return Moments(probs, torch.full_like(probs, math.nan), torch.full_like(probs, math.nan))

    def sample(self, draws: Tensor, generator: torch.Generator | None) -> Tensor:
        """Classes of all rows, `[n, N]`, one set from each of the named draws."""
        probs = self.log_probs[draws].exp()
        flat = torch.multinomial(probs.flatten(0, 1), 1, generator=generator)
        return flat.reshape(len(draws), -1)


def binary_entropy(log_one: Float[Tensor, "*shape"], log_zero: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Entropy of a yes or no, in nats, from the log probabilities (0 where one of them is certain).

    >>> round(binary_entropy(torch.tensor(0.5).log(), torch.tensor(0.5).log()).item(), 4)
    0.6931
    """
    entropy: Tensor = torch.special.entr(log_one.exp()) + torch.special.entr(log_zero.exp())
    return entropy
