"""Local inducing points: a layer with inducing inputs of its own."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.data import Units, as_rows, check_count
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.inducing import choose_inducing
from vibayes.parameters import Positive
from vibayes.posteriors.base import Gaussian, Posterior, Site
from vibayes.posteriors.pseudo import (
    PRECISION_SCALE,
    check_precision,
    create_pseudo_outputs,
    pseudo_gaussian,
    pseudo_precision,
    sample_given_pseudo,
)

if TYPE_CHECKING:
    from vibayes.layers.base import Layer

__all__ = ["LocalInducing"]


class LocalInducing(Posterior):
    r"""A Gaussian over the layer's function at `n_inducing` inputs that belong to the layer.

    With `K` the prior covariance of the inducing values `u`, `K = L L^T` and `u = L v`, the two forms are two
    parameterisations of one family:

    - `"whitened"`: `q(v_p) = N(m_p, R_p R_p^T)` for every output p, with `m` and the lower triangular `R` learned
      (Hensman et al. 2015; Salimbeni & Deisenroth 2017).
    - `"pseudo"`: `q(u_p)` proportional to `N(u_p; 0, K) N(y_p; u_p, Lambda^-1)` with pseudo-outputs `y` and their
      precision `Lambda` learned (thesis, Eq. `eq:gi:U|V`, with inputs of the layer's own). In `v` it is
      `N(B^-1 L^T Lambda y, B^-1)` with `B = I + L^T Lambda L`: with a full `Lambda`, every Gaussian below the prior.

    Either way, in a GP, `KL(q || p)` is closed-form and `v` is integrated out of the bound. Layers of weights know the
    second form only, with `u = D v` and `D` the features of the inducing inputs times the prior's root. With more
    weights per output than inducing inputs, their `v` is drawn, and the KL estimated by the draw. Inputs and
    pseudo-outputs start standard normal there, and log precisions at -4 (0 in the last layer), as in the thesis.

    Args:
        n_inducing: how many inducing inputs; where it is left out, as many as there are `inputs`.
        form: `"whitened"` (the default for GP layers) or `"pseudo"` (that for layers of weights).
        precision: of pseudo-outputs: `"diagonal"`, shared by all outputs, `"per_output"` (a diagonal for each),
            `"full"` (a full matrix, shared by all outputs) or `"full_per_output"` (a full matrix for each, as
            `"whitened"` has). In a model's last layer `"natural"`, with the form `"pseudo"`: full matrices that natural
            gradients move; see `NaturalSites`.
        inputs: starting values of the inducing inputs, `[n_inducing, D]`, as the layer receives its rows (in user
            units where the layer is the model's first). By default k-means centres of the rows that reach the layer.
            With a `DeepKernel` they live in its feature space: features of the given inputs, or centres of features.
        pseudo_outputs: starting values `[n_inducing, P]`, of the form `"pseudo"`; standard normal by default.
        log_precision: starting value of their log precision; by default 0 in GP layers.

    >>> import vibayes as vb
    >>> layer = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=LocalInducing(20))
    >>> model = vb.Model(layer, vb.Gaussian())
    >>> layer.posterior.inputs.shape
    torch.Size([20, 2])
    """

    local = True
    takes_inducing = False
    closed_form = True
    inputs: nn.Parameter
    mean: nn.Parameter
    raw_factor: nn.Parameter
    pseudo_outputs: nn.Parameter
    precision: Positive

    def __init__(
        self,
        n_inducing: int = 100,
        *,
        form: str | None = None,
        precision: str = "diagonal",
        inputs: Any = None,
        pseudo_outputs: Tensor | None = None,
        log_precision: float | Tensor | None = None,
    ) -> None:
        super().__init__()
        check_precision(precision)
        if form not in (None, "whitened", "pseudo"):
            raise ConfigurationError(f'form must be "whitened" or "pseudo", got {form!r}.')
        given: object = n_inducing
        if isinstance(given, Tensor):
            raise ConfigurationError(
                "n_inducing is a number, got a tensor. Inducing inputs to start from are LocalInducing(inputs=...)."
            )
        rows = None if inputs is None else as_rows(inputs, "inputs", all_digits=True)
        n_inducing = check_count(n_inducing, "n_inducing")
        if rows is not None and n_inducing == 100:  # left out
            n_inducing = len(rows)
        if rows is not None and (rows.ndim != 2 or rows.shape[0] != n_inducing):
            raise ShapeError(
                f"inputs must hold n_inducing={n_inducing} rows, [{n_inducing}, D]; got {list(rows.shape)}."
            )
        self.n_inducing = n_inducing
        self.form = form
        self.kind = precision
        self.given_inputs = rows
        self.given_outputs = pseudo_outputs
        self.given_log_precision = log_precision

    def finish(self, layer: "Layer", n_inducing: int) -> None:
        """Create inducing inputs and the parameters of `q`, which starts near the prior."""
        M, D, P = self.n_inducing, layer.in_features, layer.out_features
        weights: int | None = getattr(layer, "fan_in", None)
        if weights is not None and self.form == "whitened":
            raise ConfigurationError(
                f'Layer {layer.name!r} has weights, and LocalInducing in the form "whitened" is for GP layers. Leave '
                'form out, or use form="pseudo".'
            )
        self.form = self.form or ("whitened" if weights is None else "pseudo")
        self.closed_form = weights is None or weights <= M
        if self.form == "whitened":
            self._refuse_pseudo()
        if self.given_inputs is None:
            self.inputs = nn.Parameter(torch.randn(M, layer.inducing_features))
        elif self.given_inputs.shape[1] != D:
            raise ShapeError(
                f"LocalInducing inputs of layer {layer.name!r} must have width {D}, as its rows; "
                f"got {self.given_inputs.shape[1]}."
            )
        else:
            given = self.given_inputs.to(torch.get_default_dtype(), copy=True)
            self.inputs = nn.Parameter(layer.inducing_rows(given).detach())
        if self.form == "whitened":
            self.mean = nn.Parameter(torch.zeros(M, P))
            self.raw_factor = nn.Parameter(torch.zeros(P, M, M))
        else:
            default = 0.0 if weights is None or layer.is_output else -4.0
            create_pseudo_outputs(
                self,
                layer,
                (M, P),
                self.kind,
                self.given_outputs,
                default if self.given_log_precision is None else self.given_log_precision,
                scale=1.0 if weights is None else PRECISION_SCALE,
            )

    def _refuse_pseudo(self) -> None:
        """Nothing that was asked for may be of pseudo-outputs."""
        asked = {
            'precision="natural"': self.kind == "natural",
            "pseudo_outputs": self.given_outputs is not None,
            "log_precision": self.given_log_precision is not None,
        }
        for name, was in asked.items():
            if was:
                raise ConfigurationError(f'{name} is one of pseudo-outputs: set form="pseudo" with it.')

    def starts_at_rows(self, layer: "Layer") -> bool:
        """In a GP whose inducing inputs were not given."""
        return self.given_inputs is None and not hasattr(layer, "fan_in")

    def initialize(self, layer: "Layer", rows: Tensor) -> None:
        """Put the inducing inputs of a GP on k-means centres of the rows, unless they were given."""
        if self.starts_at_rows(layer):
            with torch.no_grad():
                self.inputs.copy_(choose_inducing(rows, self.n_inducing, method="kmeans"))

    @torch.no_grad()
    def to_units(self, units: Units, layer: "Layer") -> None:
        """Take given inducing inputs from user units to the model's, where this is the model's first layer."""
        if self.given_inputs is not None:
            given = layer.in_units(self.given_inputs.to(self.inputs.device), units)
            self.inputs.copy_(layer.inducing_rows(given.to(self.inputs.dtype)))

    def marginal(self, site: Site) -> Gaussian | None:
        """`q(v)`, a Gaussian per output; None for more weights than inducing inputs, where drawing is cheaper."""
        if not self.closed_form:
            return None
        if self.sites is not None:
            return self.sites.gaussian(site)
        if self.form == "whitened":
            log_det = 2.0 * self.raw_factor.diagonal(dim1=-2, dim2=-1).sum(-1)  # [P]
            return Gaussian(self.mean, linalg.lower_factor(self.raw_factor), log_det)
        return pseudo_gaussian(site, self.pseudo_outputs, *pseudo_precision(self, self.kind))

    def sample(self, site: Site, draw: Draw) -> Float[Tensor, "k p"]:
        """Draw `v` and report `log p(v) - log q(v)`."""
        q = self.marginal(site)
        if q is None:
            return sample_given_pseudo(site, draw, self.pseudo_outputs, *pseudo_precision(self, self.kind))
        return q.sample(site, draw)

    def extra_repr(self) -> str:
        """Number and form, for `print(model)`."""
        form = "" if self.form is None else f", form={self.form!r}"
        return f"{self.n_inducing}{form}" + ("" if self.form == "whitened" else f", precision={self.kind!r}")
