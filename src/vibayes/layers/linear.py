"""A fully connected layer with weights to infer."""

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.data import check_count
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.layers.weights import WeightLayer, with_ones
from vibayes.posteriors.base import Diagonal, Gaussian, Posterior, Site
from vibayes.priors import Prior, Root

__all__ = ["Linear"]


class Linear(WeightLayer):
    r"""A Bayesian fully connected layer: `f = x W + b` with a prior and a posterior over `W` and `b`.

    The bias is a weight on a constant feature and counts in the fan-in: with `x' = [x, 1]` of width K, `f = x' w`,
    `w_p ~ N(0, Sigma / K)` for every output p (thesis, Eq. `eq:back:pw`; `Sigma` from the prior).

    Args:
        in_features: width of the rows that come in.
        out_features: number of outputs P.
        bias: whether there is a bias.
        prior: of the weights; `NealPrior()` by default.
        posterior: the approximating family; `GlobalInducing()` by default, which needs `Model(..., inducing=...)`.

    >>> import vibayes as vb
    >>> network = torch.nn.Sequential(vb.Linear(2, 20), torch.nn.ReLU(), vb.Linear(20, 1))
    >>> model = vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(10, 2))
    >>> model.predict(torch.zeros(3, 2), n_samples=5).mean.shape
    torch.Size([3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        prior: Prior | None = None,
        posterior: Posterior | None = None,
    ) -> None:
        in_features = check_count(in_features, "in_features")
        if bias not in (True, False):
            raise ConfigurationError(
                f"bias must be True or False, got {bias!r}. Priors and posteriors are given by name, "
                "prior=NealPrior(), posterior=MeanField()."
            )
        super().__init__(in_features, out_features, in_features + bool(bias), prior, posterior)
        self.bias = bool(bias)

    def check(self, rows: Tensor) -> None:
        """Rows must be `[N, in_features]`."""
        if rows.ndim != 2 or rows.shape[1] != self.in_features:
            raise ShapeError(
                f"Linear layer {self.name!r} expects rows of shape [N, {self.in_features}], got {list(rows.shape)}. "
                + ("Change in_features." if rows.ndim == 2 else "Each row must be a vector: flatten it before.")
            )

    def values(self, rows: Float[Tensor, "n d"], w: Float[Tensor, "k p"]) -> Float[Tensor, "n p"]:
        """`x W + b`."""
        return rows @ w[:-1] + w[-1] if self.bias else rows @ w

    def site(self, name: str, root: Root, rows: Tensor, inducing: Float[Tensor, "m d"] | None) -> Site:
        """The design is the features of the inducing rows times the prior's root."""
        design = None if inducing is None else self._design(root, inducing)
        return Site(name, design, self.out_features, root=root, rows=rows)

    def moments(
        self, rows: Float[Tensor, "n d"], site: Site, q: Gaussian | Diagonal, joint: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Moments of `x w`."""
        covariance = None
        if isinstance(q, Diagonal):
            assert q.std is not None
            mean = self.values(rows, q.mean)
            variance = self.values(rows.square(), q.std.square())
            if joint:
                x = with_ones(rows, self.bias)
                covariance = torch.einsum("nk,kp,mk->pnm", x, q.std.square(), x)
        else:
            assert site.root is not None
            D = self._design(site.root, rows)  # [N, K]
            mean = D @ q.mean
            half = D @ q.factor  # [Q, N, K]
            variance = half.square().sum(-1).mT.expand_as(mean)
            if joint:
                covariance = half @ half.mT
        # zero only for rows of zeros; the floor keeps the square root differentiable
        return mean, variance.clamp_min(torch.finfo(mean.dtype).tiny), covariance

    def _design(self, root: Root, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return root.transposed(with_ones(x, self.bias).mT).mT

    def extra_repr(self) -> str:
        """Widths, for `print(layer)`."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias}"
