"""Bayesian linear regression on features: exact, variational, and maximum likelihood."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.conjugate.base import ConjugateModel, Moment3, Moments, optimal_gaussian, project
from vibayes.data import check_count
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.likelihoods import Gaussian
from vibayes.modes import evaluating
from vibayes.parameters import Positive, positive
from vibayes.posteriors.base import Gaussian as Whitened
from vibayes.trainable import Batch

__all__ = ["LinearRegression", "WeightPosterior"]

POSTERIORS = ("exact", "full", "mean_field", "point")


class WeightPosterior(NamedTuple):
    """A Gaussian over the weights of each output.

    Attributes:
        mean: `[W, P]`.
        covariance: `[P, W, W]`; zero for the maximum-likelihood point.
    """

    mean: Float[Tensor, "w p"]
    covariance: Float[Tensor, "p w w"]


class LinearRegression(ConjugateModel):
    r"""Linear regression on features, `y = w^T phi(x) + e`, `w ~ N(0, prior_variance I)`, noise `e`.

    (thesis, introduction: "Bayesian modeling" and Fig. "blr_vi".) `posterior` says what is inferred about `w`:

    - `"exact"`: the posterior `N(m, S)` with `S^-1 = I / prior_variance + Phi^T Phi / noise` and
      `m = S Phi^T y / noise`. Hyperparameters are trained on the evidence
      `N(y; 0, prior_variance Phi Phi^T + noise I)`.
    - `"full"`: a Gaussian with full covariance, its mean and factor parameters of the closed-form bound,
      which reaches the evidence.
    - `"mean_field"`: a Gaussian with diagonal covariance; its bound stays below the evidence.
    - `"point"`: maximum likelihood without a prior, the least-squares solution (of smallest norm where
      features are dependent).

    `initialize` and `condition` put `"full"` and `"mean_field"` at their optimum for the hyperparameters as they are.
    The cost is `N W^2 + W^3`. A bias is a constant feature.

    Args:
        features: a module or function from rows `[N, D]` to features `[N, W]`, such as `GaussianBumps`; None
            for the rows themselves. It sees rows in the model's units (standardised, if inputs are). Where inputs
            are standardised, the model has centres of its own; all else of a module given to two models is shared.
        posterior: `"exact"`, `"full"`, `"mean_field"` or `"point"`.
        noise: the noise variance to start from, a `Positive`, or a `Gaussian` likelihood.
        prior_variance: the prior variance of each weight (1 by default), a number or a `Positive`; learned.
        n_features: W, for `"full"` and `"mean_field"` where `features` has no attribute `n_features`.
        out_features: the number of targets P, for `"full"` and `"mean_field"`.
        standardize: `None`, `"inputs"`, `"targets"` or `"both"`.

    >>> import torch
    >>> from vibayes.conjugate import GaussianBumps
    >>> x = torch.linspace(-1, 1, 30)[:, None]
    >>> y = torch.sin(3 * x[:, 0])
    >>> bumps = GaussianBumps(torch.linspace(-1, 1, 5), lengthscale=0.5)
    >>> exact, rough = (LinearRegression(bumps, posterior=q, noise=0.01) for q in ("exact", "mean_field"))
    >>> rough.initialize(x, y)
    >>> bool(rough.elbo(x, y).value < exact.log_marginal_likelihood(x, y))
    True
    """

    mean: nn.Parameter
    raw_factor: nn.Parameter
    raw_scale: nn.Parameter

    def __init__(
        self,
        features: nn.Module | Callable[[Tensor], Tensor] | None = None,
        *,
        posterior: str = "exact",
        noise: float | Tensor | Positive | Gaussian = 1.0,
        prior_variance: float | Positive | None = None,
        n_features: int | None = None,
        out_features: int = 1,
        standardize: str | None = None,
    ) -> None:
        super().__init__(noise if isinstance(noise, Gaussian) else Gaussian(noise), standardize)
        if posterior not in POSTERIORS:
            raise ConfigurationError(f"posterior must be one of {POSTERIORS}, got {posterior!r}.")
        if features is not None and not callable(features):
            raise ConfigurationError(
                f"features must be a module or function from rows to features, got {type(features).__name__}."
            )
        if posterior == "point" and prior_variance is not None:
            raise ConfigurationError('posterior="point" is maximum likelihood and has no prior: drop prior_variance.')
        self.posterior = posterior
        self.features = features
        self._check_bumps()
        if self.units.of_inputs and hasattr(self._entry, "to_units"):
            self.features = _with_own_centres(features)
        self.prior_variance = (
            None if posterior == "point" else positive(1.0 if prior_variance is None else prior_variance)
        )
        if posterior in ("full", "mean_field"):
            self._create(n_features if n_features is not None else getattr(features, "n_features", None), out_features)
        self._finish()

    def _create(self, W: int | None, P: int) -> None:
        """The parameters of `q(v)`, `w = sqrt(prior_variance) v`, at the prior."""
        if W is None:
            raise ConfigurationError(
                f'posterior="{self.posterior}" has parameters for every feature, and features does not say '
                "how many there are: give n_features=W."
            )
        W, P = check_count(W, "n_features"), check_count(P, "out_features")
        self.mean = nn.Parameter(torch.zeros(W, P))
        if self.posterior == "full":
            self.raw_factor = nn.Parameter(torch.zeros(P, W, W))
        else:
            self.raw_scale = nn.Parameter(torch.zeros(P, W))

    # -- the weights -------------------------------------------------------------------------------------

    def _phi(self, rows: Tensor) -> Float[Tensor, "n w"]:
        Phi = rows if self.features is None else self.features(rows)
        if Phi.ndim != 2 or Phi.shape[0] != rows.shape[0]:
            raise ShapeError(f"features must map {len(rows)} rows to [{len(rows)}, W], got {list(Phi.shape)}.")
        return Phi

    def _design(self, rows: Tensor) -> Float[Tensor, "w n"]:
        """`A` of `f = A^T v`, `v ~ N(0, I)`."""
        assert self.prior_variance is not None
        return self.prior_variance.value.sqrt() * self._phi(rows).mT

    def _q(self) -> Whitened:
        """`q(v)` as its parameters have it."""
        if self.posterior == "full":
            log_det = 2.0 * self.raw_factor.diagonal(dim1=-2, dim2=-1).sum(-1)  # [P]
            return Whitened(self.mean, linalg.lower_factor(self.raw_factor), log_det)
        return Whitened(self.mean, torch.diag_embed(self.raw_scale.exp()), 2.0 * self.raw_scale.sum(-1))

    def _optimal_q(self, batch: Batch) -> tuple[Whitened, Tensor]:
        A = self._design(batch.x)
        exact, failed = optimal_gaussian(A, batch.y, self._noise, batch.weights)
        if self.posterior != "mean_field":
            return exact, failed
        # mean-field: the mean is the exact one, and the precisions are the diagonal of the exact precision B
        squares = A.square().sum(-1) if batch.weights is None else (batch.weights * A.square()).sum(-1)  # [W]
        precision = 1.0 + squares / self._noise[:, None]  # diag B  [Q, W]
        return Whitened(exact.mean, torch.diag_embed(precision.rsqrt()), -precision.log().sum(-1)), failed

    def _checked_q(self, batch: Batch) -> Whitened:
        q, failed = self._optimal_q(batch)
        remedy = "Use a larger noise (likelihood.noise.set), a smaller prior_variance, or fewer features."
        self._check_factorization(failed, "weight precision", len(q.mean), remedy)
        return q

    def optimal_q(self, x: Any, y: Any) -> Whitened:
        """The best `q(v)` of the family for the current hyperparameters, `w = sqrt(prior_variance) v`.

        Returns:
            `mean` `[W, P]`, lower triangular `factor` of the covariance `[1, W, W]` (`[P, W, W]` with one
            noise per output), and `log_det` of the covariance.
        """
        self._needs_prior("optimal_q")
        return self._optimal_q(self.prepare(x, y))[0]

    @torch.no_grad()
    def set_q(self, q: Whitened) -> None:
        """Put the parameters of `"full"` or `"mean_field"` at a given `q(v)`, such as `optimal_q`."""
        if self.posterior not in ("full", "mean_field"):
            raise ConfigurationError(f'posterior="{self.posterior}" has no parameters of q to set.')
        if q.mean.shape != self.mean.shape:
            raise ShapeError(
                f"LinearRegression was built for {self.mean.shape[0]} features and {self.mean.shape[1]} "
                f"targets; got {q.mean.shape[0]} and {q.mean.shape[1]}. Set n_features and out_features."
            )
        self.mean.copy_(q.mean)
        diagonal = q.factor.diagonal(dim1=-2, dim2=-1).log()
        if self.posterior == "full":
            self.raw_factor.copy_(q.factor.tril(-1) + torch.diag_embed(diagonal))
        else:
            self.raw_scale.copy_(diagonal)

    def _least_squares(self, batch: Batch) -> Float[Tensor, "w p"]:
        """The least-squares weights of smallest norm, zero along what the features lack to rounding.

        Not differentiated: at the optimum the likelihood has no gradient with respect to the weights.
        """
        with torch.no_grad():
            Phi, y = self._phi(batch.x), batch.y
            if batch.weights is not None:
                Phi, y = Phi * batch.weights.sqrt()[:, None], y * batch.weights.sqrt()[:, None]
            U, s, Vh = torch.linalg.svd(Phi, full_matrices=False)
            cutoff = max(Phi.shape) * torch.finfo(s.dtype).eps * s.amax(-1, keepdim=True)
            inverse = torch.where(s > cutoff, 1.0 / torch.where(s > cutoff, s, 1.0), 0.0)
            w: Tensor = Vh.mT @ (inverse[:, None] * (U.mT @ y))
            return w

    @torch.no_grad()
    def weights(self) -> WeightPosterior:
        """The inferred distribution of the weights, in the model's units."""
        with evaluating(self):
            if self.posterior == "point":
                mean = self._least_squares(self._observed())
                W, P = mean.shape
                return WeightPosterior(mean, mean.new_zeros(P, W, W))
            q = self._current_q()
        assert self.prior_variance is not None
        alpha2 = self.prior_variance.value
        covariance = alpha2 * (q.factor @ q.factor.mT)
        return WeightPosterior(alpha2.sqrt() * q.mean, covariance.expand(q.mean.shape[1], -1, -1))

    def _current_q(self) -> Whitened:
        return self._checked_q(self._observed()) if self.posterior == "exact" else self._q()

    # -- bound, evidence, predictions --------------------------------------------------------------------

    def _check_targets(self, n: int) -> None:
        super()._check_targets(n)
        if self.posterior in ("full", "mean_field") and n != self.mean.shape[1]:
            raise ShapeError(
                f'posterior="{self.posterior}" has parameters for {self.mean.shape[1]} target(s), got {n}. '
                f"Use out_features={n}."
            )

    def _begin(self, batch: Batch) -> None:
        to_units = getattr(self._entry, "to_units", None)
        if to_units is not None:
            to_units(self.units)
        self._infer(batch)

    def _infer(self, batch: Batch) -> None:
        if self.posterior in ("full", "mean_field"):
            self.set_q(self._checked_q(batch))

    @property
    def _entry(self) -> Any:
        """What sees the rows: the features, or the first of them in an `nn.Sequential`."""
        entry = self.features
        while isinstance(entry, nn.Sequential) and len(entry) > 0:
            entry = entry[0]
        return entry

    def _check_bumps(self) -> None:
        entry = self._entry
        if not self.units.of_inputs or not isinstance(entry, nn.Module) or hasattr(entry, "to_units"):
            return
        hidden = [type(m).__name__ for m in entry.modules() if hasattr(m, "to_units")]
        if hidden:
            raise ConfigurationError(
                f"{hidden[0]} stands inside {type(entry).__name__}, and may or may not see the inputs: it is unknown "
                "whether its centres are to be standardised with them. Make it the features themselves, or the first "
                'of an nn.Sequential; or standardise the inputs before, and use standardize="targets" or None.'
            )

    def _needs_prior(self, what: str) -> None:
        if self.posterior == "point":
            raise ConfigurationError(f'{what} needs a prior over the weights; posterior="point" has none.')

    def log_marginal_likelihood(self, x: Any, y: Any) -> Float[Tensor, ""]:
        """`log N(y; 0, prior_variance Phi Phi^T + noise I)` in nats, differentiable.

        The evidence at the current hyperparameters, whatever the posterior, on the scale the model trains on.
        `"full"` and `"mean_field"` bound it.
        """
        self._needs_prior("log_marginal_likelihood")
        batch = self.prepare(x, y)
        A = self._design(batch.x)
        log_likelihood, log_ratio = self._bound(A, optimal_gaussian(A, batch.y, self._noise)[0], batch.y, None)
        return log_likelihood + log_ratio

    def _bound(self, A: Tensor, q: Whitened, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """`E_q[log p(y | v)]` and `-KL(q || p)`."""
        mean = A.mT @ q.mean
        variance = (q.factor.mT @ A).square().sum(-2).mT  # [N, Q]
        log_likelihood = self._expected_log_likelihood(mean, variance, y, weights)
        return log_likelihood, -linalg.gaussian_kl(q.mean, q.factor, q.log_det)

    def _terms(
        self, x: Tensor, y: Tensor, weights: Tensor | None, scale: float | Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        batch = Batch(x, y, weights)
        if self.posterior == "point":
            refused = self._needs_all_rows(scale)
            mean = self._phi(x) @ self._least_squares(batch)
            log_likelihood = self._expected_log_likelihood(mean, torch.zeros_like(mean), y, weights) + refused
            return log_likelihood, torch.zeros_like(log_likelihood), {}
        if self.posterior == "exact":
            refused = self._needs_all_rows(scale)
            q, failed = self._optimal_q(batch)
            log_likelihood, log_ratio = self._bound(self._design(x), q, y, weights)
            return log_likelihood + refused, log_ratio, {"weight precision": failed}
        log_likelihood, log_ratio = self._bound(self._design(x), self._q(), y, weights)
        return scale * log_likelihood, log_ratio, {}

    def _posterior(self) -> Moments:
        if self.posterior == "point":
            w = self._least_squares(self._observed())

            def point(rows: Tensor, joint: bool) -> Moment3:
                mean = self._phi(rows) @ w
                covariance = mean.new_zeros(mean.shape[1], len(rows), len(rows)) if joint else None
                return mean, torch.zeros_like(mean), covariance

            return point
        q = self._current_q()
        return lambda rows, joint: project(self._design(rows), q, None, joint)

    def _draw(self, rows: Tensor, n: int) -> Float[Tensor, "n rows p"]:
        if self.posterior == "point":
            return (self._phi(rows) @ self._least_squares(self._observed())).expand(n, -1, -1)
        q = self._current_q()
        noise = torch.randn(n, *q.mean.shape, dtype=q.mean.dtype, device=q.mean.device)
        factor = q.factor.expand(q.mean.shape[1], -1, -1)
        v = q.mean + torch.einsum("pij,sjp->sip", factor, noise)  # [n, W, P]
        return self._design(rows).mT @ v


def _with_own_centres(features: Any) -> Any:
    """Features that share everything with those given but the centres, which become standardised by a model's data."""
    own = copy.copy(features)
    own._buffers, own._modules = dict(features._buffers), dict(features._modules)
    if isinstance(features, nn.Sequential):
        first = next(iter(own._modules))
        own._modules[first] = _with_own_centres(own._modules[first])
    return own
