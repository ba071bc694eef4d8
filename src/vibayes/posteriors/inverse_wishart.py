"""The inverse Wishart posterior of a deep inverse Wishart layer."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.distributions import InverseWishart
from vibayes.draw import Draw
from vibayes.parameters import Positive
from vibayes.posteriors.base import Posterior, Site
from vibayes.posteriors.wishart import check_gram_layer

__all__ = ["GramSite", "InverseWishartPosterior"]


@dataclass(frozen=True)
class GramSite(Site):
    """A layer whose prior over the Gram matrix of M inducing rows is `InverseWishart(dof K, dof + M + 1)`.

    Attributes:
        dof: the degrees of freedom that do not change when rows are left out (thesis: `nu - 1`).
    """

    dof: Tensor | float = 1.0


class InverseWishartPosterior(Posterior):
    r"""`q(G) = InverseWishart(dof K + V V^T, dof + extra + M + 1)` with `V` and `extra > 0` learned.

    It is conjugate-like: the prior after `extra` imagined observations with scatter `V V^T` (Aitchison et al. 2021;
    thesis, Sec. "Comparing the DWP to the DIWP"). The scatter starts at `extra K`, so that the mean of `G` starts at
    `K`, and `extra` at a share of `dof`.
    """

    rotates = True
    V: nn.Parameter
    extra: Positive

    def __init__(self, share: float = 0.2) -> None:
        super().__init__()
        self.share = share

    def finish(self, layer: Any, n_inducing: int) -> None:
        """Create the scatter's factor and the number of observations."""
        check_gram_layer(layer, n_inducing)
        self.extra = Positive(self.share * layer.dof.value)
        self.V = nn.Parameter(self.extra.value.detach().sqrt() * torch.eye(n_inducing))

    @torch.no_grad()
    def initialize(self, layer: Any, rows: Tensor) -> None:
        """Start the scatter at `extra K`, with the kernel matrix that the first draw meets."""
        M = self.V.shape[0]
        K = linalg.add_jitter(layer.covariance(rows[:M].double()), linalg.JITTER)
        self.V.copy_(self.extra.value.sqrt() * linalg.semidefinite_factor(K))

    def distribution(self, site: GramSite, draw: Draw) -> InverseWishart:
        """The posterior of the Gram matrix of the inducing rows."""
        assert site.gram is not None
        V = self.V.to(site.gram.dtype)
        scale = site.dof * site.gram + V @ V.mT
        tril = draw.cholesky(f"{site.name}.scale", scale, jitter=False).to(self.V.dtype)
        nu = site.dof + self.extra.value + self.V.shape[0] + 1.0
        return InverseWishart(None, nu, scale_tril=tril, validate_args=False)

    def sample(self, site: Site, draw: Draw) -> Float[Tensor, "m m"]:
        """Draw `L^-1 C`, where `C` is the Cholesky factor of `G`, and report `log p(G) - log q(G)`."""
        assert isinstance(site, GramSite)
        assert site.design is not None
        L, dof = site.design, torch.as_tensor(site.dof, dtype=site.design.dtype, device=site.design.device)
        posterior = self.distribution(site, draw)
        noise = draw.randn(f"{site.name}.inducing", *posterior.noise_shape[-2:], like=L)
        C = posterior.rsample_factor(noise=noise).factor  # [M, M]
        prior = InverseWishart(None, dof + L.shape[-1] + 1.0, scale_tril=dof.sqrt() * L, validate_args=False)
        draw.add(site.name, prior.log_prob_factor(C) - posterior.log_prob_factor(C))
        return linalg.solve_lower(L, C)

    def extra_repr(self) -> str:
        """The start, for `print(model)`."""
        return f"share={self.share}"
