"""Global inducing points: inducing rows that travel through the whole network, so that layers are correlated."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.draw import Draw
from vibayes.errors import ConfigurationError
from vibayes.parameters import Positive
from vibayes.posteriors.base import Gaussian, Posterior, Site
from vibayes.posteriors.pseudo import (
    check_precision,
    create_pseudo_outputs,
    pseudo_precision,
    sample_given_pseudo,
)

if TYPE_CHECKING:
    from vibayes.layers.base import Layer

__all__ = ["GlobalInducing"]


class GlobalInducing(Posterior):
    r"""The posterior of a layer given pseudo-observations of its values at the inducing rows that come in.

    With the layer's prior at the inducing rows `u ~ N(0, K)` and pseudo-outputs `y` (thesis: `V`) of precision
    `Lambda`, `q(u | rows) ∝ N(u; 0, K) N(y; u, Lambda^-1)`, independently per output (thesis, Sec. "Methods" of the
    chapter on global inducing points). `K` depends on the draw of the layers below, so layers are correlated.

    With `u = D v`, `v ~ N(0, I)`, it is one class for all layers. Where there are no more weights than inducing rows
    (`Linear`, `Conv2d`), `q(v) = N(B^-1 D^T Lambda y, B^-1)` with `B = I + D^T Lambda D` is drawn from as it stands.
    Otherwise (`GP`, wide `Linear`) a draw comes from Matheron's rule, a prior draw corrected by what it misses of the
    pseudo-outputs, and by Bayes' rule `log p(u) - log q(u) = log N(y; 0, K + Lambda^-1) - log N(y; u, Lambda^-1)`.
    Either way there is one factorization.

    Args:
        precision: `"diagonal"` (one diagonal shared by all outputs; for images one value per inducing image),
            `"per_output"` (a diagonal for each), `"full"` (a full matrix shared by all outputs) or
            `"full_per_output"` (a full matrix for each). In a model's last layer, if it is a GP, `"natural"`: full
            matrices that natural gradients move; see `NaturalSites`.
        pseudo_outputs: starting values `[M, P]`; standard normal by default, in the last layer the targets of the data
            rows nearest to the inducing inputs.
        log_precision: starting value of the log precision; by default -4, in the last layer 0 (thesis).

    >>> import vibayes as vb
    >>> layer = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=GlobalInducing())
    >>> model = vb.Model(layer, vb.Gaussian(0.1), inducing=torch.linspace(-1, 1, 10)[:, None])
    >>> layer.posterior.pseudo_outputs.shape
    torch.Size([10, 1])
    """

    pseudo_outputs: nn.Parameter
    precision: Positive
    raw_factor: nn.Parameter

    def __init__(
        self,
        precision: str = "diagonal",
        *,
        pseudo_outputs: Tensor | None = None,
        log_precision: float | Tensor | None = None,
    ) -> None:
        super().__init__()
        check_precision(precision)
        self.form = precision
        self.given_outputs = pseudo_outputs
        self.given_log_precision = log_precision

    def finish(self, layer: "Layer", n_inducing: int) -> None:
        """Create pseudo-outputs and precisions."""
        M, P = n_inducing, layer.out_features
        shape = (M, *(layer.out_shape or (P,)))
        if M == 0:
            raise ConfigurationError(
                f"Layer {layer.name!r} has a GlobalInducing posterior, which needs inducing inputs: "
                "Model(network, likelihood, inducing=x[:100])."
            )
        default = 0.0 if layer.is_output else -4.0
        create_pseudo_outputs(
            self,
            layer,
            shape,
            self.form,
            self.given_outputs,
            default if self.given_log_precision is None else self.given_log_precision,
        )
        self.closed_form = self.sites is not None

    def initialize_targets(self, targets: Float[Tensor, "m p"]) -> None:
        """Start the last layer's pseudo-outputs at targets, unless they were given."""
        if self.given_outputs is not None:
            return
        if self.sites is not None and targets.shape == self.sites.shift.shape:
            self.sites.start_at(targets)
        elif self.sites is None and targets.shape == self.pseudo_outputs.shape:
            with torch.no_grad():
                self.pseudo_outputs.copy_(targets)

    def marginal(self, site: Site) -> Gaussian | None:
        """With natural gradients `q(v)` given the rows that came in; otherwise it is drawn."""
        return None if self.sites is None else self.sites.gaussian(site)

    def sample(self, site: Site, draw: Draw) -> Float[Tensor, "k p"]:
        """Draw `v` given the pseudo-outputs and report `log p - log q`."""
        if self.sites is not None:
            return self.sites.gaussian(site).sample(site, draw)
        return sample_given_pseudo(site, draw, self.pseudo_outputs, *pseudo_precision(self, self.form))

    def extra_repr(self) -> str:
        """The form, for `print(model)`."""
        start = self.given_log_precision
        return f"precision={self.form!r}" + (f", log_precision={start}" if isinstance(start, int | float) else "")
