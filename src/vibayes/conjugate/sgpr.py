"""Sparse Gaussian process regression with Titsias's collapsed bound."""

import numbers
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.conjugate.base import ConjugateModel, Moment3, Moments, compared, counted_rows, optimal_gaussian, project
from vibayes.conjugate.exact_gp import check_kernel, check_mean
from vibayes.data import as_rows, check_count
from vibayes.inducing import choose_inducing
from vibayes.kernels.base import Kernel
from vibayes.kernels.deep import check_features
from vibayes.likelihoods import Likelihood
from vibayes.means import Mean
from vibayes.modes import evaluating
from vibayes.posteriors.base import Gaussian as Whitened
from vibayes.trainable import Batch

__all__ = ["SGPR"]


class SGPR(ConjugateModel):
    r"""Sparse GP regression: the variational posterior over inducing values `u = f(z)` is at its optimum.

    `elbo = log N(y; mean, K_xz K_zz^-1 K_zx + noise I) - tr(K_xx - K_xz K_zz^-1 K_zx) / (2 noise)`
    (Titsias 2009; thesis, Sec. "Variational inference for Gaussian processes"), in `N M^2` time. With
    `K_zz = L L^T`, `u = L v` and `A = L^-1 K_zx`, the optimum is `q(v) = N(B^-1 A (y - mean) / noise, B^-1)`
    where `B = I + A A^T / noise`. The bound comes as `E_q[log p(y | f)] - KL(q || p)`, which is the same
    number, and in which rounding errors of `q` cancel to first order.

    The model's relative jitter is added to `K_zz` only. As in `ExactGP`, matrices are made in float64 in models of
    float32, too. Several outputs share kernel, mean and inducing inputs; the noise is shared, or one per output where
    the likelihood has it.

    Args:
        kernel: the covariance function.
        likelihood: `Gaussian`, whose `noise` is a variance.
        inducing: starting values of the inducing inputs `[M, D]` in user units, or their number M: then
            k-means centres of the training inputs. They are learned, unless
            `model.inducing.requires_grad_(False)`. With a `DeepKernel` they live in its feature space `[M, W]`,
            and start at the network's features of the given inputs, or at k-means centres of features.
        mean: the mean function, zero by default.
        standardize: `None`, `"inputs"`, `"targets"` or `"both"`.

    >>> import torch, vibayes as vb
    >>> from vibayes.conjugate import ExactGP
    >>> x = torch.linspace(-3, 3, 50)[:, None]
    >>> y = torch.sin(x[:, 0])
    >>> sparse = SGPR(vb.SquaredExponential(1), vb.Gaussian(0.1), inducing=x[::10])
    >>> exact = ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    >>> bool(sparse.elbo(x, y).value < exact.log_marginal_likelihood(x, y))
    True
    """

    def __init__(
        self,
        kernel: Kernel,
        likelihood: Likelihood,
        inducing: Any,
        *,
        mean: Mean | None = None,
        standardize: str | None = None,
    ) -> None:
        super().__init__(likelihood, standardize)
        check_kernel(kernel)
        self.kernel = kernel
        self.mean = check_mean(mean)
        self.row_shape = (kernel.in_features,)
        self._given: Tensor | None = None
        if isinstance(inducing, numbers.Number):
            start = torch.randn(check_count(inducing, "The number of inducing inputs"), kernel.on_features.in_features)
        else:
            self._given = as_rows(inducing, "inducing", shape=self.row_shape, all_digits=True).clone()
            with evaluating(kernel):  # averages of BatchNorm are not for rows in user units
                start = kernel.features(self._given.to(torch.get_default_dtype())).detach()
        self.inducing = nn.Parameter(start.clone())
        self._finish()

    def _check_targets(self, n: int) -> None:
        super()._check_targets(n)
        self.mean.check(self.kernel.in_features, n)

    @torch.no_grad()
    def _begin(self, batch: Batch) -> None:
        rows = counted_rows(batch)
        features = self.kernel.features(rows)
        check_features(features, "the deep kernel", rows)
        self.mean.initialize(rows)
        if self._given is None:
            start = choose_inducing(features, len(self.inducing), method="kmeans")
        else:
            start = self.kernel.features(self.units.inputs(self._given.to(self.inducing.device)).to(self.inducing))
        self.inducing.copy_(start)

    def _project(self, features: Float[Tensor, "n w"]) -> tuple[Float[Tensor, "m n"], Tensor]:
        """`A = L^-1 K_zx`, and whether `K_zz` could be factorised; `x` by what the kernel compares of it.

        In float64 whatever the dtype: docs/decisions/jitter.md.
        """
        kernel = self.kernel.on_features
        L, info = linalg.cholesky(kernel(self.inducing.double()), self.jitter)
        K_zx = kernel(self.inducing.to(features.dtype), features)
        return linalg.solve_lower(L, K_zx.double()), info

    def optimal_q(self, x: Any, y: Any) -> Whitened:
        """Titsias's optimal `q(v)`, where `u = mean(z) + L v` with `K_zz = L L^T` (jitter included).

        Returns:
            `mean` `[M, P]`, lower triangular `factor` of the covariance `[1, M, M]` (`[P, M, M]` with one
            noise per output), and `log_det` of the covariance.
        """
        batch = self.prepare(x, y)
        q = self._optimal_q(self._project(compared(self.kernel, batch.x))[0], batch)[0]
        return Whitened(*(part.to(self.dtype) for part in (q.mean, q.factor, q.log_det)))

    def _optimal_q(self, A: Tensor, batch: Batch) -> tuple[Whitened, Tensor]:
        return optimal_gaussian(A, batch.y - self.mean.at(batch.x, batch.y.shape[1]), self._noise, batch.weights)

    def _terms(
        self, x: Tensor, y: Tensor, weights: Tensor | None, scale: float | Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        refused = self._needs_all_rows(scale)
        features = compared(self.kernel, x)
        A, info = self._project(features)
        q, failed = self._optimal_q(A, Batch(x, y, weights))
        mean = A.mT @ q.mean + self.mean.at(x, y.shape[1])  # [N, P]
        unexplained = self.kernel.on_features.diag(features) - A.square().sum(0)  # diag(K_xx - A^T A)  [N]
        variance = unexplained[:, None] + (q.factor.mT @ A).square().sum(-2).mT  # [N, Q]
        log_likelihood = self._expected_log_likelihood(mean, variance, y, weights) + refused
        return (
            log_likelihood.to(y.dtype),
            -linalg.gaussian_kl(q.mean, q.factor, q.log_det).to(y.dtype),
            {"inducing kernel matrix": info, "inducing precision": failed},
        )

    def _posterior(self) -> Moments:
        batch = self._observed()
        A, info = self._project(compared(self.kernel, batch.x))
        self._check_factorization(
            info,
            f"inducing kernel matrix (relative jitter {float(self.jitter):.1g})",
            len(self.inducing),
            "Use fewer inducing inputs, or a larger model.jitter.",
        )
        q, info = self._optimal_q(A, batch)
        self._check_factorization(
            info, "inducing precision", len(self.inducing), "Use a larger noise (likelihood.noise.set)."
        )

        def moments(rows: Tensor, joint: bool) -> Moment3:
            features, kernel = compared(self.kernel, rows), self.kernel.on_features
            prior = kernel(features) if joint else kernel.diag(features)
            mean, variance, covariance = project(self._project(features)[0], q, prior, joint)
            mean = mean.to(rows.dtype) + self.mean.at(rows, mean.shape[1])
            return mean, variance.to(rows.dtype), None if covariance is None else covariance.to(rows.dtype)

        return moments
