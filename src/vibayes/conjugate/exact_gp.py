"""Exact Gaussian process regression."""

import math
import os
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes import linalg
from vibayes.conjugate.base import ConjugateModel, Moment3, Moments, compared, counted_rows, positive_variance
from vibayes.errors import ConfigurationError
from vibayes.kernels.base import Kernel
from vibayes.kernels.deep import check_features
from vibayes.likelihoods import Likelihood
from vibayes.means import Mean, ZeroMean
from vibayes.trainable import Batch

__all__ = ["ExactGP", "LogMarginalLikelihood"]

# As many matrices of all rows are in memory at once, at the least: the covariance, its factor, and what gradients need.
_MATRICES = 4
# Random choices of rows over which the conditional evidence is averaged in training.
N_ORDERINGS = 4


class LogMarginalLikelihood(NamedTuple):
    """The log marginal likelihood in the parts of thesis Eq. (lml-blr); they add up to it.

    Attributes:
        data_fit: `-1/2 y^T (K + noise I)^-1 y`.
        complexity: `-1/2 log |K + noise I|`.
        constant: `-N/2 log 2 pi`.
    """

    data_fit: Float[Tensor, ""]
    complexity: Float[Tensor, ""]
    constant: Float[Tensor, ""]


class ExactGP(ConjugateModel):
    r"""Gaussian process regression in closed form: `y = f(x) + e`, `f ~ GP(mean, kernel)`, Gaussian `e`.

    `log p(y) = log N(y; mean, K + noise I)` and
    `f_* | y ~ N(mean_* + K_*x (K + noise I)^-1 (y - mean), K_** - K_*x (K + noise I)^-1 K_x*)`
    (thesis, Sec. "Gaussian processes"). Costs `N^3` time and `N^2` memory.

    Several outputs `[N, P]` are independent processes with one kernel and mean; the noise is shared, or one
    per output where the likelihood has it. No jitter is added to `K + noise I`. It is made in float64 in models of
    float32, too, which has no digits for a noise that is small against the kernel, or for distances of rows that lie
    many lengthscales apart; kernels of your own, and networks inside sums and products, stay in float32.

    Args:
        kernel: the covariance function.
        likelihood: `Gaussian`, whose `noise` is a variance.
        mean: the mean function, zero by default.
        standardize: `None`, `"inputs"`, `"targets"` or `"both"`.
        conditional: a share between 0 and 1: train on the *conditional* evidence `log p(y_rest | y_share)`, the mean
            over four fixed random choices of that share of the rows (Lotfi et al. 2022). It asks how well the model
            predicts after seeing data, not how well its prior does. `elbo` and the history still hold the evidence.

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(-3, 3, 20)[:, None]
    >>> gp = ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.01))
    >>> gp.condition(x, torch.sin(x[:, 0]))
    >>> bool((gp.predict(x).mean - torch.sin(x[:, 0])).abs().max() < 0.05)
    True
    """

    _given_rows: Tensor
    _n_rows: int = 0  # of which they are chosen; models saved before have none of their own

    def __init__(
        self,
        kernel: Kernel,
        likelihood: Likelihood,
        *,
        mean: Mean | None = None,
        standardize: str | None = None,
        conditional: float | None = None,
    ) -> None:
        super().__init__(likelihood, standardize)
        check_kernel(kernel)
        if conditional is not None and not 0.0 < conditional < 1.0:
            raise ConfigurationError(f"conditional must be a share strictly between 0 and 1, got {conditional}.")
        self.kernel = kernel
        self.mean = check_mean(mean)
        self.conditional = conditional
        # which rows the conditional evidence is conditioned on; known once data were seen
        self.register_buffer("_given_rows", torch.empty(0, 0, dtype=torch.long), persistent=False)
        self.row_shape = (kernel.in_features,)
        self._finish()

    def _check_targets(self, n: int) -> None:
        super()._check_targets(n)
        self.mean.check(self.kernel.in_features, n)

    def _begin(self, batch: Batch) -> None:
        if self.conditional is not None:
            self._choose_given(batch.x)  # refuses too few rows before anything is changed
        rows = counted_rows(batch)
        _check_memory(batch.x)
        check_features(self.kernel.features(rows), "the deep kernel", rows)
        self.mean.initialize(rows)

    def observe(self, batch: Batch) -> None:
        """Keep the data that predictions condition on, and choose the rows that the conditional evidence is given."""
        if self.conditional is not None:
            self._given_rows, self._n_rows = self._choose_given(batch.x), len(batch.x)
        super().observe(batch)

    def _choose_given(self, x: Tensor) -> Tensor:
        """Indices `[K, m]` of the share of the rows that is given, the same ones for every set of that size."""
        assert self.conditional is not None
        m = self._n_given(len(x), round(self.conditional * len(x)))
        return _orderings(len(x), N_ORDERINGS, seed=0)[:, :m].to(x.device)

    @staticmethod
    def _n_given(n: int, m: int) -> int:
        if not 0 < m < n:
            raise ConfigurationError(
                f"The conditional evidence needs rows to condition on and rows to predict; got {m} of {n} given ones."
            )
        return m

    def log_marginal_likelihood(self, x: Any, y: Any) -> Float[Tensor, ""]:
        """`log p(y | x)` in nats, differentiable; NaN where `K + noise I` cannot be factorised.

        It is on the scale the model trains on: for standardised targets, where the model standardises.
        """
        return torch.stack(self.lml_terms(x, y)).sum()

    def lml_terms(self, x: Any, y: Any) -> LogMarginalLikelihood:
        """The log marginal likelihood split into data fit, complexity and constant."""
        batch = self.prepare(x, y)
        return self._lml(*batch)[0]

    def conditional_log_marginal_likelihood(
        self, x: Any, y: Any, n_given: int, *, orderings: int = 20, seed: int = 0
    ) -> Float[Tensor, ""]:
        """`log p(y_rest | y_given)`, the evidence of all rows less that of `n_given` random ones.

        By the chain rule the evidence is a sum of predictive log densities, the first of them made by the prior alone;
        this leaves out the first `n_given` (Lotfi et al. 2022, "Bayesian model selection, the marginal likelihood, and
        generalization"). The mean over random orderings, in total nats of the other rows.
        """
        batch = self.prepare(x, y)
        self._n_given(len(batch.x), n_given)
        whole = torch.stack(self._lml(*batch)[0]).sum()
        rows = _orderings(len(batch.x), orderings, seed)[:, :n_given].to(batch.x.device)
        return whole - self._evidence_of(rows, *batch)

    def _evidence_of(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """The mean evidence of some of the rows, `[K, m]` indices."""
        parts = [self._lml(x[r], y[r], None if weights is None else weights[r])[0] for r in rows.unbind()]
        return torch.stack([torch.stack(terms).sum() for terms in parts]).mean()

    def _beside_evidence(self, x: Tensor, y: Tensor, weights: Tensor | None) -> float | Tensor:
        if self.conditional is None:
            return 0.0
        # shorter data sets of fit_many end with rows of weight zero
        padded = weights is not None and 0 < self._n_rows < len(x)
        rows = self._given_rows if padded or len(x) == self._n_rows else self._choose_given(x)
        return -self._evidence_of(rows, x, y, weights)

    def _lml(self, x: Tensor, y: Tensor, weights: Tensor | None) -> tuple[LogMarginalLikelihood, Tensor]:
        B, residual = self._system(x, y, weights)
        quadratic, log_det_B, info = linalg.quadratic_and_log_det(B, residual)
        count = weights.double().sum() if weights is not None else residual.new_tensor(len(y))
        P, Q = y.shape[1], len(self._noise)
        log_noise = self._noise.double().log().sum() * (P // Q)
        log_det = log_det_B.sum() * (P // Q) + count * log_noise
        constant = -0.5 * P * count * math.log(2.0 * math.pi)
        terms = (-0.5 * quadratic.sum(), -0.5 * log_det, constant)
        return LogMarginalLikelihood(*(term.to(y.dtype) for term in terms)), info

    def _system(self, x: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        r"""`B = I + W^1/2 K W^1/2 / s^2`, `[Q, N, N]`, and `W^1/2 (y - mean) / s`, `[Q, N, P / Q]`, both in float64.

        `s^2 B` is `K + noise I` for unit weights. In this form a row of weight zero drops out, and one of weight two is
        two observations, normalising constants included.
        """
        noise = self._noise.double()  # [Q]
        K = self.kernel.on_features(compared(self.kernel, x)).double()  # [N, N]
        residual = (y - self.mean.at(x, y.shape[1])).double() / noise.sqrt()  # [N, P]
        if weights is not None:
            root = weights.double().sqrt()
            K, residual = root[:, None] * K * root, root[:, None] * residual
        B = linalg.add_to_diagonal(K / noise[:, None, None], torch.ones_like(noise)[:, None])
        return B, residual[None] if len(noise) == 1 else residual.mT[..., None]

    def _terms(
        self, x: Tensor, y: Tensor, weights: Tensor | None, scale: float | Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        refused = self._needs_all_rows(scale)
        terms, info = self._lml(x, y, weights)
        total = torch.stack(terms).sum() + refused
        return total, torch.zeros_like(total), {"kernel matrix": info.sum()}

    def _posterior(self) -> Moments:
        x, y, weights = self._observed()
        assert weights is not None
        B, residual = self._system(x, y, weights)
        C, info = linalg.cholesky(B)
        white = linalg.solve_lower(C, residual)  # [Q, N, P / Q]
        self._check_factorization(
            info,
            "kernel matrix with noise",
            len(x),
            "Use a larger noise (likelihood.noise.set), or drop repeated rows.",
        )
        scale = (weights.double() / self._noise.double()[:, None]).sqrt()[..., None]  # [Q, N, 1]
        kernel, observed = self.kernel.on_features, compared(self.kernel, x)

        def moments(rows: Tensor, joint: bool) -> Moment3:
            new = compared(self.kernel, rows)
            A = linalg.solve_lower(C, scale * kernel(observed, new))  # [Q, N, N*]
            explained = (A.mT @ white).movedim(0, -1).flatten(-2)  # [N*, P]
            mean = explained.to(rows.dtype) + self.mean.at(rows, y.shape[1])
            if joint:
                covariance = (kernel(new) - A.mT @ A).to(rows.dtype).expand(y.shape[1], -1, -1)
                return mean, positive_variance(covariance.diagonal(dim1=-2, dim2=-1).mT), covariance
            variance = (kernel.diag(new) - A.square().sum(-2)).mT.to(rows.dtype)  # [N*, Q]
            return mean, positive_variance(variance).expand_as(mean), None

        return moments


def _orderings(n: int, count: int, seed: int) -> Tensor:
    """Random orders of `n` rows, `[count, n]`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(n, generator=generator) for _ in range(count)])


def check_mean(mean: Any) -> Mean:
    """The mean function, zero where there is none; refuses what is not one."""
    if mean is not None and not isinstance(mean, Mean):
        raise ConfigurationError(
            f"mean must be a mean function such as ConstantMean(0.0), or a subclass of vibayes.means.Mean of your own; "
            f"got {type(mean).__name__}."
        )
    return ZeroMean() if mean is None else mean


def check_kernel(kernel: Any) -> None:
    """Refuse what is not a kernel."""
    if not isinstance(kernel, Kernel):
        raise ConfigurationError(
            f"kernel must be a kernel such as SquaredExponential(in_features), got {type(kernel).__name__}."
        )


def _check_memory(rows: Tensor) -> None:
    """Refuse rows whose covariances a machine cannot hold: systems end such a process without a word."""
    if rows.device.type != "cpu" or not hasattr(os, "sysconf"):  # a GPU says so by itself
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = _MATRICES * len(rows) ** 2 * 8  # in float64
    if needed > memory:
        raise ConfigurationError(
            f"ExactGP works with matrices of all {len(rows):,} rows, which take some {needed / 2**30:,.0f} GB; this "
            f"machine has {memory / 2**30:,.0f}. Use SGPR(kernel, likelihood, inducing=500), or with minibatches "
            "Model(GP(1, kernel=kernel, posterior=LocalInducing(500)), likelihood)."
        )
