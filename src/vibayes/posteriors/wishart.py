"""The generalized singular Wishart posterior: a GP layer seen through its Gram matrix."""

import math
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.distributions import GeneralizedSingularWishart, LowerUpper, Wishart
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError
from vibayes.parameters import Positive, Real
from vibayes.posteriors.base import Posterior, Site

if TYPE_CHECKING:
    from vibayes.layers.base import Layer

__all__ = ["GeneralizedWishart", "check_gram_layer"]

# Starts, chosen by the bound (docs/decisions/wishart-start.md): the share of the learned part of the scale matrix, and
# the standard deviations below the diagonal of the Bartlett factor (1 under the prior).
_SHARE = -8.0
_SIGMA = math.exp(-1.0)


def check_gram_layer(layer: "Layer", n_inducing: int) -> None:
    """Refuse a posterior over Gram matrices where there is no Gram matrix, or where more than it is asked for."""
    what = "a Wishart posterior" if type(layer).__name__ == "GP" else f"the posterior of {type(layer).__name__}"
    if n_inducing == 0:
        raise ConfigurationError(
            f"Layer {layer.name!r} has {what}, which needs inducing inputs: "
            "Model(network, likelihood, inducing=x[:100])."
        )
    if layer.is_output:
        raise ConfigurationError(
            f"Layer {layer.name!r} is the network's output, which {what} knows only up to a rotation. "
            "End the network with a GP layer that has a GlobalInducing posterior."
        )


class GeneralizedWishart(Posterior):
    r"""A posterior over the Gram matrix `G = F F^T / nu` of a GP layer with `nu` outputs: a deep Wishart layer.

    The prior `f_p ~ N(0, K)` of the outputs makes `G` Wishart with scale `K / nu` and `nu` degrees of freedom. The
    posterior is the generalized singular Wishart with scale `(1 - q) K / nu + q V V^T`, `q` and `V` learned (thesis,
    Sec. "Methods" of the chapter on deep Wishart processes). The layer's rows are imagined features: the factor that
    was drawn, scaled by `sqrt(nu)` and padded with zeros to width `nu`. Only distances and inner products of these rows
    have a meaning, so the next layer must be a `GP` whose kernel depends on nothing else, and the mean must be zero.

    Args:
        mixing: `"plain"`, `"A"` (a learned matrix mixes the rows of the Bartlett factor) or `"AB"` (a triangular one
            its columns, too).

    >>> import vibayes as vb
    >>> hidden = vb.GP(2, kernel=vb.SquaredExponential(1), posterior=GeneralizedWishart("AB"))
    >>> last = vb.GP(1, kernel=vb.SquaredExponential(2))
    >>> model = vb.Model(torch.nn.Sequential(hidden, last), vb.Gaussian(0.1), inducing=torch.randn(5, 1))
    >>> model.predict(torch.zeros(3, 1), n_samples=4).mean.shape
    torch.Size([3])
    """

    rotates = True
    V: nn.Parameter
    share: Real
    alpha: Positive
    beta: Positive
    mu: nn.Parameter
    sigma: Positive
    A: nn.Parameter
    B: nn.Parameter

    def __init__(self, mixing: str = "plain") -> None:
        super().__init__()
        if mixing not in ("plain", "A", "AB"):
            raise ConfigurationError(f'mixing must be "plain", "A" or "AB", got {mixing!r}.')
        self.mixing = mixing

    def finish(self, layer: "Layer", n_inducing: int) -> None:
        """Create the parameters: gammas at the prior's values, means at random, small around the prior's zero."""
        M, nu = n_inducing, layer.out_features
        check_gram_layer(layer, M)
        nt = min(nu, M)
        self.V = nn.Parameter(torch.eye(M) / math.sqrt(nu))
        self.share = Real(_SHARE)  # q = sigmoid(share)
        self.alpha = Positive(0.5 * (nu - torch.arange(nt, dtype=torch.get_default_dtype())))
        self.beta = Positive(torch.full((nt,), 0.5))
        self.mu = nn.Parameter(torch.randn(M, nt) / math.sqrt(nu))
        self.sigma = Positive(torch.full((M, nt), _SIGMA))
        if self.mixing in ("A", "AB"):
            self.A = nn.Parameter(torch.eye(M))
        if self.mixing == "AB":
            self.B = nn.Parameter(torch.eye(nt))

    @torch.no_grad()
    def initialize(self, layer: Any, rows: Tensor) -> None:
        """Put the learned part of the scale matrix where the prior's is: `V V^T = K / nu` in the first draw."""
        M = self.V.shape[0]
        K = linalg.add_jitter(layer.covariance(rows[:M].double()), linalg.JITTER)
        self.V.copy_(linalg.semidefinite_factor(K) / math.sqrt(layer.out_features))

    def distribution(self, L: Float[Tensor, "m m"], nu: int) -> GeneralizedSingularWishart:
        """The posterior of the Gram matrix, given the factor `L` of its scale matrix."""
        A = LowerUpper(self.A) if self.mixing in ("A", "AB") else None
        B = self.B.tril() if self.mixing == "AB" else None
        bartlett = (self.alpha.value, self.beta.value, self.mu, self.sigma.value)
        return GeneralizedSingularWishart(None, nu, *bartlett, A, B, scale_tril=L, validate_args=False)

    def sample(self, site: Site, draw: Draw) -> Float[Tensor, "m nu"]:
        """Draw imagined features, whitened, and report `log p(G) - log q(G)` ("sticking the landing")."""
        nu, L = site.n_out, site.design
        assert L is not None
        M = L.shape[-1]
        K = L @ L.mT if site.gram is None else site.gram
        q, V = torch.sigmoid(self.share.value).to(K.dtype), self.V.to(K.dtype)
        # Everything is said of nu G, whose densities have the same ratio: its scale matrix is K under the prior.
        mixture = torch.lerp(K, nu * (V @ V.mT), q)
        scale = draw.factor(f"{site.name}.scale", mixture, jitter=False).to(L.dtype)
        posterior = self.distribution(scale.lower, nu)
        noise = draw.randn(f"{site.name}.inducing", *posterior.noise_shape[-2:], like=L)
        T, density = posterior.rsample_with_density(noise=noise)
        F = scale.multiply(posterior.mix(T))  # [M, nt]
        factor = linalg.Factor(L) if site.factor is None else site.factor.to(L.dtype)
        v = factor.solve(F)  # whitened features, and the prior's Bartlett factor up to a rotation
        # For nu <= M both densities have the determinant of G's leading block to the same power, and it cancels.
        log_det = 0.0 if nu <= M else posterior.log_det(T)
        log_q = posterior.log_prob_bartlett(T, log_det, scale_log_det=scale.log_det, density=density)
        prior = Wishart(None, nu, scale_tril=L, validate_args=False)
        log_p = prior.log_prob_factor(F, log_det, whitened=v, scale_log_det=factor.log_det)
        draw.add(site.name, log_p - log_q)
        return v if nu <= M else nn.functional.pad(v, (0, nu - M))

    def extra_repr(self) -> str:
        """The form, for `print(model)`."""
        return f"mixing={self.mixing!r}"
