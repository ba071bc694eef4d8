"""Mean field: every weight has a Gaussian of its own."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.draw import Draw
from vibayes.errors import ConfigurationError
from vibayes.parameters import Positive
from vibayes.posteriors.base import Diagonal, Posterior, Site
from vibayes.posteriors.point import starting_weights

if TYPE_CHECKING:
    from vibayes.layers.base import Layer

__all__ = ["MeanField"]


class MeanField(Posterior):
    r"""Independent Gaussians, `q(w) = prod_kp N(w_kp; m_kp, s_kp^2)` (thesis: "factorised", "fac").

    What is stored is scaled to be of order one whatever the fan-in K, `m = mean / sqrt(K)` and `s = std / sqrt(K)`
    (thesis, appendix "Parameter scaling for Adam"). `KL(q || p)` is closed-form. Where no inducing rows travel through
    the network, the values of `Linear` are drawn in place of its weights, for every row apart (local
    reparameterisation, Kingma et al. 2015), which makes gradients less noisy; never in joint draws of functions. That
    takes it that rows go through the network one by one: one that mixes them, such as a graph convolution over all
    rows, would have the bound of another model.

    Args:
        variance: starting variance of the weights times their fan-in; 1e-3 by default.

    >>> import vibayes as vb
    >>> model = vb.Model(vb.Linear(3, 1, posterior=MeanField()), vb.Gaussian(0.1))
    >>> model.network.posterior.mean.shape  # three weights and the bias
    torch.Size([4, 1])
    """

    takes_inducing = False
    closed_form = True
    mean: nn.Parameter
    std: Positive

    def __init__(self, variance: float = 1e-3) -> None:
        super().__init__()
        if isinstance(variance, bool) or not isinstance(variance, int | float) or not 0 < variance < math.inf:
            raise ConfigurationError(f"variance must be a positive number, got {variance!r}.")
        self.variance = float(variance)

    def finish(self, layer: "Layer", n_inducing: int) -> None:
        """Means start at the layer's given weights, or at a draw from NealPrior."""
        weights = starting_weights(layer, self)
        self.scale = 1.0 / math.sqrt(len(weights))
        self.mean = nn.Parameter(weights / self.scale)
        self.std = Positive(torch.full_like(weights, math.sqrt(self.variance)))

    def marginal(self, site: Site) -> Diagonal:
        """`q(w)`."""
        return Diagonal(self.scale * self.mean, self.scale * self.std.value)

    def sample(self, site: Site, draw: Draw) -> Float[Tensor, "k p"]:
        """Draw weights, whitened, and report `log p(w) - log q(w)`."""
        q, root = self.marginal(site), site.root
        assert root is not None
        assert q.std is not None
        noise = draw.randn(f"{site.name}.inducing", *q.mean.shape, like=q.mean)
        w = q.mean + q.std * noise
        log_q = -0.5 * noise.square().sum() - q.std.log().sum() - 0.5 * w.numel() * math.log(2 * math.pi)
        draw.add(site.name, root.log_prob(w) - log_q)
        return root.solve(w)

    def extra_repr(self) -> str:
        """The starting variance, for `print(model)`."""
        return "" if self.variance == 1e-3 else f"variance={self.variance}"
