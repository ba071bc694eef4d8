"""Global inducing points: inducing rows that travel through the whole network, so that layers are correlated."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.parameters import Positive
from vibayes.posteriors.base import Gaussian, Posterior, Site
from vibayes.posteriors.natural import NaturalSites
from vibayes.posteriors.pseudo import sample_given_pseudo

if TYPE_CHECKING:
    from vibayes.layers.base import Layer

__all__ = ["GlobalInducing", "check_precision", "full_precision_of_images"]

# How much faster than other parameters the log precision moves (thesis, appendix "Parameter scaling for Adam").
PRECISION_SCALE = 3.0


PRECISIONS = ("diagonal", "per_output", "full", "full_per_output", "natural")


def check_precision(precision: str) -> None:
    """Refuse precisions of pseudo-outputs that do not exist."""
    if precision not in PRECISIONS:
        names = ", ".join(f'"{name}"' for name in PRECISIONS[:-1])
        raise ConfigurationError(f'precision must be {names} or "{PRECISIONS[-1]}", got {precision!r}.')


def full_precision_of_images(layer: "Layer") -> ConfigurationError:
    """What to say where a layer of images is given a full precision."""
    return ConfigurationError(
        f"Layer {layer.name!r} gives images, and its precision cannot be full: it must not differ between the places "
        'of an image. Use precision="diagonal", one value per inducing image.'
    )


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
        if self.given_outputs is not None and tuple(self.given_outputs.shape) != shape:
            raise ShapeError(
                f"pseudo_outputs of layer {layer.name!r} must be {list(shape)} (inducing rows, outputs); "
                f"got {list(self.given_outputs.shape)}."
            )
        if self.form.startswith("full") and len(shape) > 2:
            raise full_precision_of_images(layer)
        dtype = torch.get_default_dtype()
        start = torch.randn(shape) if self.given_outputs is None else self.given_outputs.detach().to(dtype, copy=True)
        default = 0.0 if layer.is_output else -4.0
        given = default if self.given_log_precision is None else self.given_log_precision
        log_precision = torch.as_tensor(given, dtype=dtype)
        if self.form == "natural":
            self.add_module("natural", NaturalSites(layer, start, log_precision))
            self.closed_form = True
            return
        self.pseudo_outputs = nn.Parameter(start)
        if self.form.startswith("full"):
            half = 0.5 * log_precision.expand(M) if log_precision.ndim < 2 else None
            if half is None:
                raise ShapeError(f'log_precision of a "{self.form}" precision is one number or one per inducing row.')
            factor = torch.diag_embed(half)
            self.raw_factor = nn.Parameter(factor if self.form == "full" else factor.repeat(P, 1, 1))
        else:
            of = (M,) if self.form == "diagonal" else (P, M)
            self.precision = Positive(log_precision.exp().expand(of).clone(), scale=PRECISION_SCALE)

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
        if self.form.startswith("full"):
            return sample_given_pseudo(site, draw, self.pseudo_outputs, None, linalg.lower_factor(self.raw_factor))
        return sample_given_pseudo(site, draw, self.pseudo_outputs, self.precision.value)

    def extra_repr(self) -> str:
        """The form, for `print(model)`."""
        start = "" if self.given_log_precision is None else f", log_precision={self.given_log_precision}"
        return f"precision={self.form!r}{start}"
