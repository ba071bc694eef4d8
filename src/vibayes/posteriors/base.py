"""What a posterior is: the approximating family of one layer's function."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from vibayes.data import Units
    from vibayes.draw import Draw
    from vibayes.layers.base import Layer

__all__ = ["Gaussian", "Posterior", "Site"]


@dataclass(frozen=True)
class Site:
    """What a posterior needs to know of a layer: inducing values are `u = design @ v`, `v ~ N(0, I)` per output.

    Attributes:
        name: the layer's name, under which noise is drawn and log ratios are reported.
        design: `[M, K]`; for a GP the Cholesky factor of the kernel matrix of the inducing rows.
        n_out: the number of outputs P.
        gram: `design @ design^T`, where the layer has it already.
    """

    name: str
    design: Tensor
    n_out: int
    gram: Tensor | None = None


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian over the whitened values `v`, one per output.

    Attributes:
        mean: `[K, P]`.
        factor: `[P, K, K]` or `[1, K, K]` (shared by the outputs): any square root `R` of the covariance `R R^T`.
        log_det: `[P]` or `[1]`, the log determinant of `R R^T`.
    """

    mean: Tensor
    factor: Tensor
    log_det: Tensor


class Posterior(nn.Module, ABC):
    """The approximating family of a layer, and a specification that many layers may be given.

    Attributes:
        local: whether the posterior has inducing inputs of its own, `inputs`, instead of the rows that come in.
        rotates: whether the layer's values are known only up to a rotation of the outputs.
        closed_form: whether `marginal` gives the distribution of `v`, so that it can be integrated out.
    """

    local: bool = False
    closed_form: bool = False
    rotates: bool = False
    inputs: nn.Parameter

    @abstractmethod
    def finish(self, layer: "Layer", n_inducing: int) -> None:
        """Create the variational parameters, once, when the layer joins a model with so many inducing rows."""

    @abstractmethod
    def sample(self, site: Site, draw: "Draw") -> Tensor:
        """Draw the whitened values `v` `[K, P]` and report `log p(v) - log q(v)` to the draw."""

    def marginal(self, site: Site) -> Gaussian | None:
        """The distribution of `v` when it is Gaussian and does not depend on the draw, else None."""
        return None

    def to_units(self, units: "Units") -> None:
        """Take what the user gave in user units to the model's, where this is the model's first layer."""
        return

    def initialize_targets(self, targets: Tensor) -> None:
        """Start from the targets of the data rows nearest to the inducing inputs, where this is the last layer."""
        return

    def initialize(self, layer: "Layer", rows: Tensor) -> None:
        """Set data-dependent starting values."""
        return
