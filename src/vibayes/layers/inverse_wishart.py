"""A layer of a deep inverse Wishart process."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.distributions import InverseWishart
from vibayes.draw import Draw, fits
from vibayes.errors import ConfigurationError
from vibayes.kernels.base import Kernel
from vibayes.layers.base import Layer
from vibayes.parameters import Positive, positive
from vibayes.posteriors.inverse_wishart import GramSite, InverseWishartPosterior

__all__ = ["InverseWishartProcess"]


class InverseWishartProcess(Layer):
    r"""A layer whose Gram matrix of any `N` rows is `G ~ InverseWishart(dof K, dof + N + 1)`, so that `E[G] = K`.

    The number of rows enters so that leaving rows out leaves a matrix of the same kind (Aitchison et al. 2021; thesis,
    Sec. "Comparing the DWP to the DIWP", whose `nu` is `dof + 1`). Large `dof` keep `G` near `K`, small ones let it
    vary. With inducing rows `i`, `S = dof K` and `g = G_tt - G_ti G_ii^-1 G_it`, a data row `t` follows
    Eq. `eq:dwp:iwcond`:

    `g ~ InverseGamma((dof + M + 2) / 2, S_tt.i / 2)`,  `G_ii^-1 G_it ~ N(S_ii^-1 S_it, g S_ii^-1)`,

    whatever else is in the batch. The rows that go out are imagined features: with `G_ii = C C^T` the rows of `C` for
    inducing rows, `[C^-1 G_it, sqrt(g)]` for a data row, `M + 1` columns together, and `M + n` where `n` data rows are
    drawn jointly. Only their inner products with inducing rows and with themselves (jointly: with each other) have a
    meaning, so the next layer must be a `GP` or another `InverseWishartProcess` with a kernel of nothing else. It is
    declared with `in_features=out_features` of this one, however many columns there are.

    The posterior is `InverseWishart(dof K + V V^T, dof + extra + M + 1)` with `V` and `extra` learned.

    Args:
        kernel: the covariance function.
        dof: the degrees of freedom, positive; a number, which will be learned, or a `Positive`.
        out_features: by what inner products are multiplied, so that the next kernel meets rows of the size that a layer
            with so many outputs has: a kernel with `lengthscale=sqrt(13)` behind a `GP` of 13 outputs stays as it is.

    >>> import vibayes as vb
    >>> network = nn.Sequential(
    ...     InverseWishartProcess(kernel=vb.SquaredExponential(2, ard=True), dof=5.0),
    ...     InverseWishartProcess(kernel=vb.SquaredExponential(1), dof=5.0),
    ...     vb.GP(1, kernel=vb.SquaredExponential(1)),
    ... )
    >>> model = vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(5, 2))
    >>> model.predict(torch.zeros(3, 2), n_samples=4).mean.shape
    torch.Size([3])
    """

    def __init__(self, *, kernel: Kernel, dof: float | Positive = 5.0, out_features: int = 1) -> None:
        if not isinstance(kernel, Kernel):
            raise ConfigurationError(
                f"kernel must be a kernel such as SquaredExponential(in_features), got {type(kernel).__name__}."
            )
        if not isinstance(dof, Positive) and (
            isinstance(dof, bool) or not isinstance(dof, int | float) or not (math.isfinite(dof) and dof > 0)
        ):
            raise ConfigurationError(
                f"dof must be a positive number: the Gram matrix of N rows then has dof + N + 1 > N + 1 degrees of "
                f"freedom, and a mean; got {dof!r}."
            )
        super().__init__(kernel.in_features, out_features, InverseWishartPosterior())
        self.kernel = kernel
        self.dof = positive(dof)

    def covariance(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        """The mean of the Gram matrix of the rows."""
        K: Tensor = self.kernel(x)
        return K

    def send_through_own_modules(self, rows: Tensor) -> None:
        """Run the kernel, which may be one of a network's features."""
        self.kernel(rows)

    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        """Draw imagined features of the rows, inducing rows first."""
        draw, name = self.draw()
        if draw.placeholder is not None:
            return draw.placeholder(self, rows)
        if not fits(rows, self.in_features):
            raise self.wrong_width(rows, draw)
        self.refuse_pieces(rows, draw)
        if draw.initializing:
            self.initialize(rows)
        z, x = rows[: draw.n_inducing], rows[draw.n_inducing :]
        dof = self.dof.value
        Kii = linalg.add_jitter(self.kernel(z.double()), draw.jitter)  # [M, M], float64 as in `GP`
        exact = draw.factor(name, Kii, jitter=False)
        factor = exact.to(z.dtype)
        W = self.posterior.sample(GramSite(name, factor.lower, len(z), Kii, dof=dof), draw)  # L^-1 C  [M, M]
        A = exact.solve(self.kernel(z, x).to(Kii.dtype)).to(z.dtype)  # L^-1 K_it  [M, N]
        R = self._residual(x, A, draw, name)  # [N, 1] or [N, N]
        # C^T G_ii^-1 G_it = W^T (L^-1 K_it + noise of covariance g / dof): the columns of noise are those of R
        noise = draw.randn(f"{name}.rows", len(z), len(x), like=A)
        seen = A + (noise @ R.mT if draw.joint else noise * R.mT) / dof.sqrt()
        inducing = nn.functional.pad(factor.multiply(W), (0, R.shape[1]))
        features = torch.cat([inducing, torch.cat([seen.mT @ W, R], 1)])  # [M + N, M + 1] or [M + N, M + N]
        draw.imagine(self.out_features, features.shape[1])
        draw.rotated.append(math.sqrt(self.out_features) * features)
        return draw.rotated[-1]

    def _residual(self, x: Tensor, A: Tensor, draw: Draw, name: str) -> Tensor:
        """What data rows have beyond inducing rows: `sqrt(g)` per row, or a factor of their joint Gram matrix."""
        (M, N), dof = A.shape, self.dof.value
        if draw.joint:
            S = dof * (self.kernel(x) - A.mT @ A)
            # The Schur complement of an inverse Wishart keeps the degrees of freedom of the whole
            law = InverseWishart(None, dof + M + N + 1.0, scale_tril=linalg.semidefinite_factor(S), validate_args=False)
            drawn = draw.randn(f"{name}.residual", *law.noise_shape[-2:], like=A)
            return law.rsample_factor(noise=drawn).factor
        variance = self.kernel.diag(x) - A.square().sum(0)  # [N]
        # Exactly zero or slightly negative only through rounding; the floor keeps the square root differentiable.
        variance = variance.clamp_min(torch.finfo(variance.dtype).tiny)
        shape = 0.5 * (dof + M + 2.0)  # one row's, however many there are
        return (0.5 * dof * variance / draw.gamma(f"{name}.residual", shape.expand(N))).sqrt()[:, None]

    def extra_repr(self) -> str:
        """Widths, for `print(layer)`."""
        return f"in_features={self.in_features}, out_features={self.out_features}"
