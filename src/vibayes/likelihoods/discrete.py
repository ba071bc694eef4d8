"""Likelihoods of yes and no, of classes and of counts."""

import math
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from vibayes.data import check_count
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.likelihoods.base import Likelihood
from vibayes.likelihoods.discrete_mixtures import (
    BernoulliMixture,
    CategoricalMixture,
    PoissonMixture,
    binary_entropy,
)
from vibayes.likelihoods.mixtures import Mixture, row_slices
from vibayes.likelihoods.special import log_ndtr
from vibayes.likelihoods.targets import binary_targets, class_targets, count_targets
from vibayes.quadrature import GaussHermite, LogSigmoid, normal_grid, standard_deviation

__all__ = ["Bernoulli", "Categorical", "Poisson"]

_FEWEST_LATENT_SAMPLES = 1000  # over all draws, for a prediction


class Bernoulli(Likelihood):
    r"""Yes or no, `P(y = 1 | f) = sigmoid(f)` or `Phi(f)`, for one or several targets.

    The expected log probability of the logit comes from `vibayes.quadrature.LogSigmoid`, to 2e-8 whatever the variance
    of the function. That of the probit comes from Gauss-Hermite quadrature: its error is at most 3e-4 nats at a
    variance of 10 and 0.06 at 100.

    Args:
        link: `"logit"` or `"probit"`.
        n_quadrature: number of quadrature nodes; by default 12 for the logit and 20 for the probit.

    >>> import vibayes as vb
    >>> x = torch.linspace(-3, 3, 40)[:, None]
    >>> layer = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(10))  # one output for each target
    >>> model = vb.Model(layer, Bernoulli())
    >>> history = vb.fit(model, (x, x[:, 0] > 0), steps=30, progress=False)
    >>> model.predict(torch.tensor([[-2.0], [2.0]])).mode.tolist()
    [0, 1]
    """

    kind: ClassVar[str] = "binary"

    def __init__(self, link: Literal["logit", "probit"] = "logit", *, n_quadrature: int | None = None) -> None:
        super().__init__()
        if link not in ("logit", "probit"):
            raise ConfigurationError(f'link must be "logit" or "probit", got {link!r}.')
        self.link = link
        rule, nodes = (LogSigmoid, 12) if link == "logit" else (GaussHermite, 20)
        self.quadrature = rule(nodes if n_quadrature is None else n_quadrature)

    def check_targets(self, y: Tensor, n_targets: int | None = None) -> Float[Tensor, "n p"]:
        """Booleans or zeros and ones, `[N]` or `[N, P]`, returned as floating `[N, P]`."""
        return binary_targets(y, n_targets)

    def _log_one(self, f: Tensor) -> Tensor:
        """`log P(y = 1 | f)`; by symmetry `log P(y = 0 | f)` is the same at `-f`."""
        return logsigmoid(f) if self.link == "logit" else log_ndtr(f)

    def _log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return self._log_one((2 * y - 1) * f).sum(-1)

    def _expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, eps: Tensor | None) -> Tensor:
        towards = (2 * y - 1) * mean  # the Gaussian of (2 y - 1) f has the same variance as that of f
        if isinstance(self.quadrature, LogSigmoid):
            expectation: Tensor = self.quadrature(towards, variance)
        else:  # the probit, and saved models of before
            expectation = self.quadrature(self._log_one, towards, variance)
        return expectation.sum(-1)

    def _predictive(self, mean: Tensor, variance: Tensor | None, eps: Tensor | None, log_weights: Tensor) -> Mixture:
        if variance is None:
            one, zero = self._log_one(mean), self._log_one(-mean)
            return BernoulliMixture(log_weights, one, zero, torch.zeros_like(one), binary_entropy(one, zero))
        widest = float(variance.max().sqrt()) if variance.numel() else 0.0
        nodes, log_nodes = normal_grid(0.6 / max(widest, 1.0), mean.dtype, mean.device)
        nodes, log_nodes = nodes[:, None, None], log_nodes[:, None, None]
        draws, rows, targets = mean.shape
        parts = []
        for part in row_slices(rows, draws * targets * len(nodes)):
            m, v = mean[:, part], variance[:, part]
            f = m[:, None] + standard_deviation(v)[:, None] * nodes  # [S, Q, N, P]
            log_one, log_zero = self._log_one(f), self._log_one(-f)
            if self.link == "probit":
                z = m / (1 + v).sqrt()
                one, zero = log_ndtr(z), log_ndtr(-z)
            else:
                one, zero = (_log_mean_sigmoid(u, v, nodes, log_nodes) for u in (m, -m))
            weights = log_nodes.exp()
            spread = (weights * (log_one.exp() - one.exp()[:, None]).square()).sum(1)  # Var_f(p)
            parts.append((one, zero, spread, (weights * binary_entropy(log_one, log_zero)).sum(1)))
        return BernoulliMixture(log_weights, *(torch.cat(pieces, 1) for pieces in zip(*parts, strict=True)))


class Categorical(Likelihood):
    r"""Classes, `P(y = c | f) = softmax(f)_c` over the F outputs of the network.

    The expected log probability is a Monte Carlo mean over latent samples `mean + sqrt(variance) * eps`; the
    caller may hand in `eps` so that the randomness is its own. `latent_features` and `n_targets` count
    classes.

    Args:
        n_latent_noise: number of latent samples.

    >>> import vibayes as vb
    >>> x = torch.linspace(-3, 3, 40)[:, None]
    >>> y = torch.bucketize(x[:, 0], torch.tensor([-1.0, 1.0]))  # 0, 1 and 2, from left to right
    >>> layer = vb.GP(3, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(10))  # one output for each class
    >>> model = vb.Model(layer, Categorical())
    >>> history = vb.fit(model, (x, y), steps=30, progress=False)
    >>> model.predict(torch.tensor([[-2.0], [2.0]])).probs.shape
    torch.Size([2, 3])
    """

    kind: ClassVar[str] = "classes"

    def __init__(self, *, n_latent_noise: int = 10) -> None:
        super().__init__()
        self._n_latent_noise = check_count(n_latent_noise, "n_latent_noise")

    @property
    def n_latent_noise(self) -> int:
        """K, the number of latent samples in `expected_log_prob`."""
        return self._n_latent_noise

    def check_targets(self, y: Tensor, n_targets: int | None = None) -> Tensor:
        """Class numbers `0, ..., C - 1` of shape `[N]`, returned as long integers."""
        return class_targets(y, n_targets)

    def _check(self, f: Tensor, y: Tensor) -> None:
        if f.ndim != 2 or y.shape != f.shape[:1] or y.is_floating_point():
            raise ShapeError(
                f"Categorical expected latents [N, C] and whole class numbers [N], got {list(f.shape)} and "
                f"{list(y.shape)} of {y.dtype}. Pass targets through check_targets first."
            )

    def _log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.log_softmax(f, -1).gather(-1, y[:, None])[:, 0]

    def _expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, eps: Tensor | None) -> Tensor:
        if eps is None:
            eps = torch.randn(self.n_latent_noise, *mean.shape, dtype=mean.dtype, device=mean.device)
        if eps.ndim != 3 or eps.shape[1:] != mean.shape:
            raise ShapeError(f"Expected eps of shape [K, {mean.shape[0]}, {mean.shape[1]}], got {list(eps.shape)}.")
        f = mean + standard_deviation(variance) * eps  # [K, N, C]
        chosen = mean.gather(-1, y[:, None])[:, 0]  # the linear term has a closed form
        return chosen - torch.logsumexp(f, -1).mean(0)

    def _predictive(self, mean: Tensor, variance: Tensor | None, eps: Tensor | None, log_weights: Tensor) -> Mixture:
        if variance is None:
            log_probs = torch.log_softmax(mean, -1)
            return CategoricalMixture(log_weights, log_probs, torch.special.entr(log_probs.exp()).sum(-1))
        draws, rows, classes = mean.shape
        count = max(self.n_latent_noise, -(-_FEWEST_LATENT_SAMPLES // draws)) if eps is None else eps.shape[-3]
        if eps is not None and (eps.shape[-2:] != mean.shape[1:] or eps.shape[:-3] not in ((), (draws,))):
            raise ShapeError(
                f"Expected eps of shape [K, {rows}, {classes}] or [{draws}, K, {rows}, {classes}], "
                f"got {list(eps.shape)}."
            )
        parts = []
        for part in row_slices(rows, draws * classes * count):
            m, spread = mean[:, None, part], standard_deviation(variance[:, None, part])
            if eps is None:
                noise = torch.randn(draws, count, *m.shape[2:], dtype=m.dtype, device=m.device)
            else:
                noise = eps[..., part, :]
            log_probs = torch.log_softmax(m + spread * noise, -1)  # [S, K, N, C]
            entropy = torch.special.entr(log_probs.exp()).sum(-1).mean(1)
            parts.append((torch.logsumexp(log_probs, 1) - math.log(count), entropy))
        return CategoricalMixture(log_weights, *(torch.cat(pieces, 1) for pieces in zip(*parts, strict=True)))


class Poisson(Likelihood):
    r"""Counts, `y ~ Poisson(exp(f))`.

    `E[log p(y | f)] = y mean - exp(mean + variance / 2) - log y!`.

    >>> import vibayes as vb
    >>> x = torch.linspace(0, 3, 40)[:, None]
    >>> layer = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(10))
    >>> model = vb.Model(layer, Poisson())
    >>> history = vb.fit(model, (x, x[:, 0].exp().round()), steps=30, progress=False)
    >>> lower, upper = model.predict(torch.tensor([[2.0]])).interval(0.9)  # of the count, not of its mean
    >>> bool(lower < upper), bool(lower == lower.round())
    (True, True)
    """

    kind: ClassVar[str] = "counts"

    def check_targets(self, y: Tensor, n_targets: int | None = None) -> Float[Tensor, "n p"]:
        """Whole numbers from 0, `[N]` or `[N, P]`, returned as floating `[N, P]`."""
        return count_targets(y, n_targets)

    def _log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return (y * f - f.exp() - torch.lgamma(y + 1)).sum(-1)

    def _expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, eps: Tensor | None) -> Tensor:
        return (y * mean - (mean + 0.5 * variance).exp() - torch.lgamma(y + 1)).sum(-1)

    def _predictive(self, mean: Tensor, variance: Tensor | None, eps: Tensor | None, log_weights: Tensor) -> Mixture:
        return PoissonMixture(log_weights, mean, torch.zeros_like(mean) if variance is None else variance)


def _log_mean_sigmoid(mean: Tensor, variance: Tensor, nodes: Tensor, log_nodes: Tensor) -> Tensor:
    r"""`log E[sigmoid(f)]` under `f ~ N(mean, variance)`, far into the tail, `[S, N, P]`.

    For any tilt t, with `z` standard normal and `f = mean + t variance + sqrt(variance) z`, it is
    `log E_z[sigmoid(f) exp(-t sqrt(variance) z)] - t^2 variance / 2` (exponential tilting, or importance sampling with
    a shifted mean). Where `t = sigmoid(-f)` at `z = 0` the integrand peaks there, so that nodes around 0 serve.
    """
    lower, upper = torch.zeros_like(mean), torch.ones_like(mean)
    for _ in range(40):  # bisection: the tilt need not be exact
        tilt = 0.5 * (lower + upper)
        small = tilt < torch.sigmoid(-mean - tilt * variance)
        lower, upper = torch.where(small, tilt, lower), torch.where(small, upper, tilt)
    step = standard_deviation(variance)[:, None] * nodes  # [S, Q, N, P]
    log_terms = logsigmoid((mean + tilt * variance)[:, None] + step) - tilt[:, None] * step
    return torch.logsumexp(log_nodes + log_terms, 1) - 0.5 * tilt.square() * variance
