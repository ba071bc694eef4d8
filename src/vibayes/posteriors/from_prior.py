"""The prior as posterior: a layer that learns nothing and whose draws come from its prior."""

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from vibayes.draw import Draw
from vibayes.posteriors.base import Posterior, Site

if TYPE_CHECKING:
    from vibayes.layers.base import Layer

__all__ = ["FromPrior"]


class FromPrior(Posterior):
    """`q = p`: the log ratio is zero in every draw (thesis: the lower layers of "rand -> gi").

    In every layer it makes a model of the prior: `sample_functions`, `layer_functions` and `predict` draw from that.

    >>> import torch, vibayes as vb
    >>> layer = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=FromPrior())
    >>> model = vb.Model(layer, vb.Gaussian(0.1))
    >>> abs(model.elbo(torch.zeros(1, 1), torch.zeros(1)).kl.item())
    0.0
    """

    is_prior = True

    def finish(self, layer: "Layer", n_inducing: int) -> None:
        """There are no parameters."""
        return

    def sample(self, site: Site, draw: Draw) -> Float[Tensor, "k p"]:
        """Standard normal `v`, with log ratio zero."""
        v = draw.randn(f"{site.name}.inducing", site.width, site.n_out, like=site.like)
        draw.add(site.name, v.new_zeros(()))
        return v
