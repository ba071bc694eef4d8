"""One value of the weights: maximum likelihood, or the maximum of the posterior density."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.posteriors.base import Diagonal, Posterior, Site

if TYPE_CHECKING:
    from vibayes.layers.base import Layer

__all__ = ["Point", "starting_weights"]


class Point(Posterior):
    """Weights as ordinary parameters: the same model as a plain network.

    With `prior=True` the log ratio is the log prior density of the weights, `log p(w)`, so that the bound is the log
    joint density and training finds its maximum (MAP); without, it is zero (maximum likelihood) and the layer's prior
    plays no part. Neither is a bound on the evidence.

    Args:
        prior: whether the prior counts.

    >>> import vibayes as vb
    >>> model = vb.Model(vb.Linear(3, 1, posterior=Point()), vb.Gaussian(0.1))
    >>> model.network.posterior.weight.shape  # three weights and the bias
    torch.Size([4, 1])
    """

    takes_inducing = False
    closed_form = True
    deterministic = True
    weight: nn.Parameter

    def __init__(self, prior: bool = True) -> None:
        super().__init__()
        if not isinstance(prior, bool):
            raise ConfigurationError(f"prior must be True (MAP) or False (maximum likelihood), got {prior!r}.")
        self.prior = prior

    @property
    def has_prior(self) -> bool:  # type: ignore[override]
        """Whether the prior counts."""
        return self.prior

    def finish(self, layer: "Layer", n_inducing: int) -> None:
        """Start at the layer's given weights, or at a draw from NealPrior."""
        self.weight = nn.Parameter(starting_weights(layer, self))

    def _log_ratio(self, site: Site) -> Tensor:
        assert site.root is not None
        return site.root.log_prob(self.weight) if self.prior else self.weight.new_zeros(())

    def marginal(self, site: Site) -> Diagonal:
        """The weights, with no spread."""
        return Diagonal(self.weight, log_ratio=self._log_ratio(site))

    def sample(self, site: Site, draw: Draw) -> Float[Tensor, "k p"]:
        """The weights, whitened."""
        assert site.root is not None
        draw.add(site.name, self._log_ratio(site))
        return site.root.solve(self.weight)

    def extra_repr(self) -> str:
        """Whether the prior counts, for `print(model)`."""
        return f"prior={self.prior}"


def starting_weights(layer: "Layer", posterior: Posterior) -> Float[Tensor, "k p"]:
    """The weights a layer was given to start from, or a draw from NealPrior."""
    fan_in = getattr(layer, "fan_in", None)
    if fan_in is None:
        raise ConfigurationError(
            f"Layer {layer.name!r} is a {type(layer).__name__} and has no weights, as {type(posterior).__name__} needs "
            "them. Use GlobalInducing() or LocalInducing() there."
        )
    start: Tensor | None = getattr(layer, "start", None)
    if start is None:
        return torch.randn(fan_in, layer.out_features) / math.sqrt(fan_in)
    if start.shape != (fan_in, layer.out_features):
        raise ShapeError(
            f"Layer {layer.name!r} was given starting weights of shape {list(start.shape)}; it has "
            f"[{fan_in}, {layer.out_features}] (inputs and bias, outputs)."
        )
    if not bool(start.isfinite().all()):
        raise ConfigurationError(
            f"The weights that layer {layer.name!r} is to start from have NaN or infinite values. Load or train the "
            "network anew, or leave out pretrained=True."
        )
    return start.detach().to(torch.get_default_dtype(), copy=True)
