"""The generalized singular Wishart distribution: plain, A and AB."""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from vibayes import linalg
from vibayes.distributions.bartlett import FactorSample, bartlett_factor, split_noise, trapezoid, triangularize
from vibayes.distributions.base import (
    check_dtypes,
    check_finite,
    check_positive,
    check_shape,
    values_visible,
)
from vibayes.distributions.gram import GramDistribution
from vibayes.distributions.lower_upper import LowerUpper, SquareMatrix, log_abs_det
from vibayes.errors import ConfigurationError
from vibayes.operators.bartlett import bartlett_and_density

__all__ = ["GeneralizedSingularWishart"]


class GeneralizedSingularWishart(GramDistribution):
    r"""`G = F F^T` with `F = L A T B`, where `T` is a generalized Bartlett factor and `scale = L L^T`.

    `T` is lower triangular, `N x nt` with `nt = min(nu, N)`: `T_jj^2 ~ Gamma(alpha_j, rate beta_j)` and below the
    diagonal `T_ij ~ N(mu_ij, sigma_ij^2)`. With `C = T B B^T T^T` the density with respect to `G_ij`,
    `j <= min(i, nt)`, is (thesis, App. A; there is no factor `2 T_jj`, it cancels)

        q(G) = |det L A|^-nt  (|G[:nt, :nt]| / |C[:nt, :nt]|)^((nt - N - 1) / 2)
               prod_(j <= nt) Gamma(T_jj^2; alpha_j, beta_j) / ( T_jj^(N - j) |B_jj|^(2 (N - j + 1)) )
               prod_(i > j) N(T_ij; mu_ij, sigma_ij^2)

    It depends on `nu` through `nt` alone: the thesis's powers of `nu` are the same thing when `nu > N`. The Wishart of
    the same scale and `nu` has `alpha_j = (nu - j + 1) / 2`, `beta_j = 1/2`, `mu = 0`, `sigma = 1`, `A = B = I`.

    Args:
        scale: `L L^T`, `[*batch, N, N]`; or None, with `scale_tril` in its place.
        nu: degrees of freedom, a positive integer or a real number `> N - 1`.
        alpha: `[*batch, nt]`, positive.
        beta: `[*batch, nt]`, positive.
        mu: `[*batch, N, nt]`; only entries below the diagonal are used.
        sigma: `[*batch, N, nt]`; likewise, and those must be positive.
        A: None for the identity, an invertible matrix `[*batch, N, N]`, or a `LowerUpper`, whose determinant is free.
        B: None for the identity, or `[*batch, nt, nt]`, lower triangular without zeros on the diagonal.
        scale_tril: lower Cholesky factor of the scale.
        validate_args: whether to check values; see `MatrixDistribution`.

    >>> alpha, beta, mu, sigma = torch.ones(2), torch.ones(2), torch.zeros(3, 2), torch.ones(3, 2)
    >>> q = GeneralizedSingularWishart(torch.eye(3), 2, alpha, beta, mu, sigma, A=LowerUpper(torch.eye(3)))
    >>> F, T, log_det = q.rsample_factor()
    >>> F.shape, bool(torch.isclose(q.log_prob_bartlett(T, log_det), q.log_prob(F @ F.T), rtol=1e-3))
    (torch.Size([3, 2]), True)
    """

    arg_constraints = {  # noqa: RUF012
        "scale_tril": constraints.lower_cholesky,
        "alpha": constraints.positive,
        "beta": constraints.positive,
        "mu": constraints.real,
        "sigma": constraints.positive,
    }
    _item_axes = {"scale_tril": 2, "alpha": 1, "beta": 1, "mu": 2, "sigma": 2, "A": 2, "B": 2}  # noqa: RUF012

    def __init__(
        self,
        scale: Float[Tensor, "*batch n n"] | None,
        nu: float,
        alpha: Float[Tensor, "*batch nt"],
        beta: Float[Tensor, "*batch nt"],
        mu: Float[Tensor, "*batch n nt"],
        sigma: Float[Tensor, "*batch n nt"],
        A: Float[Tensor, "*batch n n"] | LowerUpper | None = None,
        B: Float[Tensor, "*batch nt nt"] | None = None,
        *,
        scale_tril: Float[Tensor, "*batch n n"] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        degrees: object = nu
        if isinstance(degrees, Tensor):
            raise ConfigurationError("nu of a generalized Wishart must be a number: it only fixes the rank of a draw.")
        n = self._take(scale, nu, scale_tril, validate_args)
        self.alpha, self.beta, self.mu, self.sigma, self.B = alpha, beta, mu, sigma, B
        shapes = {"alpha": (self.rank,), "beta": (self.rank,), "mu": (n, self.rank), "sigma": (n, self.rank)}
        if B is not None:
            shapes["B"] = (self.rank, self.rank)
        tensors = {name: getattr(self, name) for name in shapes}
        for name, shape in shapes.items():
            check_shape(name, tensors[name], shape)
        if A is not None:
            tensors["A"] = A.packed if isinstance(A, LowerUpper) else A
            check_shape("A", tensors["A"], (n, n))
        check_dtypes(scale=self.scale_tril, **tensors)
        if validate_args is not False:
            self._check_values(validate_args, tensors, A)
        self.A = SquareMatrix(A) if isinstance(A, Tensor) else A
        self._finish((n, n), validate_args)

    def _check_values(
        self, validate_args: bool | None, tensors: Mapping[str, Tensor], A: Tensor | LowerUpper | None
    ) -> None:
        for name, tensor in tensors.items():
            check_finite(validate_args, name, self._below(tensor, 0.0) if name in ("mu", "sigma") else tensor)
        for name in ("alpha", "beta"):
            check_positive(validate_args, name, tensors[name])
        check_positive(validate_args, "sigma below its diagonal", self._below(self.sigma, 1.0))
        if isinstance(A, LowerUpper):
            check_positive(validate_args, "The size of A's diagonal", A.packed.diagonal(dim1=-2, dim2=-1).abs())
        if isinstance(A, Tensor) and values_visible(validate_args, A) and not bool(log_abs_det(A).isfinite().all()):
            raise ConfigurationError("A must be invertible, but its determinant is zero.")
        if self.B is not None:
            check_positive(validate_args, "The size of B's diagonal", self.B.diagonal(dim1=-2, dim2=-1).abs())
            if values_visible(validate_args, self.B) and bool((self.B.triu(1) != 0).any()):
                raise ConfigurationError("B must be lower triangular, but has entries above its diagonal.")

    def rsample_factor(self, sample_shape: Sequence[int] = (), noise: Tensor | None = None) -> FactorSample:
        """A draw of the factor `F = L A T B`, `[N, nt]`, with `T` and `log |G_{:nt, :nt}|`.

        `log_prob_bartlett(T, log_det)` is then its log density here, and `Wishart.log_prob_factor(F, log_det)` that
        under a Wishart of the same `nu`, without another factorization.
        """
        T = self.rsample_bartlett(sample_shape, noise)
        return FactorSample(self.scale_tril @ self.mix(T), T, self.log_det(T))

    def rsample_bartlett(self, sample_shape: Sequence[int] = (), noise: Tensor | None = None) -> Tensor:
        """A draw of the Bartlett factor `T` alone, `[N, nt]`."""
        noise = self._noise(self.scale_tril, sample_shape, noise)
        return bartlett_factor(self.alpha, noise, self.beta, self.mu, self.sigma)

    def rsample_with_density(
        self, sample_shape: Sequence[int] = (), noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """A draw of `T` and its `density`, which `log_prob_bartlett` takes: a quick way to stick the landing."""
        noise = self._noise(self.scale_tril, sample_shape, noise)
        if torch.compiler.is_compiling() and not noise.is_cuda:  # it fuses these steps with what is around them
            T = bartlett_factor(self.alpha, noise, self.beta, self.mu, self.sigma)
            return T, self._density(T, sticking_the_landing=True)
        squares, normals = split_noise(self.alpha, noise)
        alpha, beta = (t.expand(squares.shape) for t in (self.alpha, self.beta))
        mu, sigma = (t.expand(normals.shape) for t in (self.mu, self.sigma))
        return bartlett_and_density(squares, alpha, beta, mu, sigma, normals)

    def mix(self, T: Float[Tensor, "*batch n nt"]) -> Float[Tensor, "*batch n nt"]:
        """`A T B`, which `L` makes the factor `F`."""
        AT = T if self.A is None else self.A.matmul(T)
        return AT if self.B is None else AT @ self.B

    def log_prob(
        self, value: Float[Tensor, "*batch n n"], *, sticking_the_landing: bool = False
    ) -> Float[Tensor, "*batch"]:
        """Log density of `G`, from its elements `G_ij`, `j <= nt`; that a singular `G` has rank `nt` is not checked."""
        self._check_event(value)
        return self._log_prob_factor(trapezoid(value, self.rank), self.A is None, sticking_the_landing)

    def log_prob_factor(
        self, F: Float[Tensor, "*batch n w"], *, sticking_the_landing: bool = False
    ) -> Float[Tensor, "*batch"]:
        """Log density of `G = F F^T` for any factor, `w >= nt`, whoever drew it; `T` is found by solving for it."""
        self._check_factor(F, self.rank)
        return self._log_prob_factor(F, False, sticking_the_landing)

    def _log_prob_factor(self, F: Tensor, triangular: bool, sticking_the_landing: bool) -> Tensor:
        T = linalg.solve_lower(self.scale_tril, F)
        T = T if self.A is None else self.A.solve(T)
        T = T if triangular else triangularize(T, self.rank)  # T B up to the signs of B's diagonal
        if self.B is not None:
            signs = self.B.diagonal(dim1=-2, dim2=-1).sign()
            T = torch.linalg.solve_triangular(self.B, T * signs[..., None, :], upper=False, left=False)
        return self.log_prob_bartlett(T, sticking_the_landing=sticking_the_landing)

    def log_prob_bartlett(
        self,
        T: Float[Tensor, "*batch n nt"],
        log_det: Float[Tensor, "*batch"] | float | None = None,
        *,
        scale_log_det: Float[Tensor, "*batch"] | None = None,
        density: Float[Tensor, "*batch"] | None = None,
        sticking_the_landing: bool = False,
    ) -> Float[Tensor, "*batch"]:
        """Log density of `G` (not of `T`) by the Bartlett factor that *this* distribution drew; the cheapest way.

        Args:
            T: `FactorSample.bartlett`.
            log_det: `FactorSample.log_det`, if at hand.
            scale_log_det: the log determinant of the scale matrix, if at hand.
            density: what `rsample_with_density` gave with `T`, which sticks the landing.
            sticking_the_landing: detach `alpha`, `beta`, `mu` and `sigma` in the density, so that their gradients come
                through the sample alone (Roeder et al. 2017). The part left out has expectation zero; of second
                derivatives it has not.
        """
        n, nt = self.event_shape[0], self.rank
        check_shape("T", T, (n, nt))
        if log_det is None:
            log_det = self.log_det(T)
        if scale_log_det is None:
            scale_log_det = linalg.logdet_factor(self.scale_tril)
        if density is None:
            density = self._density(T, sticking_the_landing)
        power = nt - n - 1  # of |G_{:nt, :nt}|^(1/2), next to |C|^(1/2) with C the same block of T B B^T T^T
        log_q = density - (0.5 * nt) * scale_log_det
        if self.A is not None:
            log_q = log_q - nt * self.A.log_abs_det
        if self.B is not None:
            below = n - 1.0 - torch.arange(nt, dtype=T.dtype, device=T.device)  # N - j
            log_q = log_q - ((2.0 * below + (2.0 + power)) * self._log_B()).sum(-1)
        constant = 0.5 * math.log(2 * math.pi) * (nt * n - nt * (nt + 1) // 2)
        return log_q + (0.5 * power * log_det - constant)

    def _density(self, T: Tensor, sticking_the_landing: bool) -> Tensor:
        """What the entries of `T` contribute; see `bartlett_and_density`."""
        alpha, beta, mu, sigma = self.alpha, self.beta, self.mu, self._below(self.sigma, 1.0)
        if sticking_the_landing:
            alpha, beta, mu, sigma = alpha.detach(), beta.detach(), mu.detach(), sigma.detach()
        diagonal = T.diagonal(dim1=-2, dim2=-1)  # [nt]
        z = ((T - mu) / sigma).tril(-1)
        normals = 0.5 * z.square() + sigma.log()
        # the power of T_jj is that of its gamma, less N - j from the Jacobian and nt - N - 1 from |C|
        powers = 2.0 * alpha - torch.arange(self.rank, 0, -1, dtype=T.dtype, device=T.device)
        gammas = powers * diagonal.log() - beta * diagonal.square() + (alpha * beta.log() - alpha.lgamma())
        return gammas.sum(-1) - normals.sum((-2, -1))

    def log_det(self, T: Float[Tensor, "*batch n nt"]) -> Float[Tensor, "*batch"]:
        """`log |G_{:nt, :nt}|` of the matrix with Bartlett factor `T`, of whose root the block is `L (A T) B`."""
        nt = self.rank
        total = self.scale_tril.diagonal(dim1=-2, dim2=-1)[..., :nt].log().sum(-1)
        if self.A is None or nt == self.event_shape[0]:
            total = total + T.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            if self.A is not None:
                total = total + self.A.log_abs_det
        else:
            total = total + log_abs_det(self.A.matmul(T)[..., :nt, :])
        if self.B is not None:
            total = total + self._log_B().sum(-1)
        return 2.0 * total

    def _log_B(self) -> Tensor:
        assert self.B is not None
        return self.B.diagonal(dim1=-2, dim2=-1).abs().log()

    @staticmethod
    def _below(tensor: Tensor, elsewhere: float) -> Tensor:
        """The tensor below its diagonal, a harmless value elsewhere."""
        return torch.where(torch.ones_like(tensor, dtype=torch.bool).tril(-1), tensor, elsewhere)

    @property
    def mean(self) -> Float[Tensor, "*batch n n"]:
        """`L A E[T B B^T T^T] A^T L^T`; the entries of `T` are independent."""
        means = (torch.lgamma(self.alpha + 0.5) - torch.lgamma(self.alpha)).exp() / self.beta.sqrt()  # E[T_jj]
        eye = torch.eye(self.event_shape[0], self.rank, dtype=means.dtype, device=means.device)
        M = self._below(self.mu, 0.0) + eye * means[..., None, :]
        variances = self._below(self.sigma, 0.0).square()
        variances = variances + eye * (self.alpha / self.beta - means.square())[..., None, :]
        MB = M if self.B is None else M @ self.B
        W = torch.ones_like(means) if self.B is None else self.B.square().sum(-1)  # diagonal of B B^T
        inner = MB @ MB.mT + torch.diag_embed((variances * W[..., None, :]).sum(-1))
        half = inner if self.A is None else self.A.matmul(self.A.matmul(inner).mT)
        return (self.scale_tril @ half @ self.scale_tril.mT).expand(self._extended_shape())
