"""What a posterior is: the approximating family of one layer's function."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from vibayes import linalg
from vibayes.operators.weighted_grams import weighted_grams

if TYPE_CHECKING:
    from vibayes.data import Units
    from vibayes.draw import Draw
    from vibayes.layers.base import Layer
    from vibayes.posteriors.natural import NaturalSites
    from vibayes.priors import Root

__all__ = ["Diagonal", "Gaussian", "Posterior", "Site"]


@dataclass(frozen=True)
class Site:
    """What a posterior needs to know of a layer: inducing values are `u = design @ v`, `v ~ N(0, I)` per output.

    A layer whose design may be too large to write down makes a subclass, which has `design=None` then and gives
    `moments`.

    Attributes:
        name: the layer's name, under which noise is drawn and log ratios are reported.
        design: `[M, K]`; for a GP the Cholesky factor of the kernel matrix of the inducing rows, for a layer of weights
            the features of the inducing rows times the prior's root. None where the layer has no inducing rows.
        n_out: the number of outputs P.
        gram: `design @ design^T` in float64, where the layer has it already.
        root: for a layer of weights, the root of the prior's covariance: `w = root.apply(v)`.
        factor: for a GP the design in float64, with its inverse where that is at hand.
        rows: for a layer of weights, the rows that came in.
    """

    name: str
    design: Tensor | None
    n_out: int
    gram: Tensor | None = None
    root: "Root | None" = None
    factor: linalg.Factor | None = None
    rows: Tensor | None = None

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device that noise should have."""
        found = self.design if self.rows is None else self.rows
        assert found is not None
        return found

    @property
    def width(self) -> int:
        """K, how many whitened values each output has."""
        if self.root is not None:
            return self.root.size
        assert self.design is not None
        return self.design.shape[-1]

    def design_transposed(self, B: Tensor) -> Tensor:
        """`D^T B` in float64."""
        assert self.design is not None
        factor = linalg.Factor(self.design.double()) if self.factor is None else self.factor
        return factor.multiply_transposed(B.double())

    @property
    def narrow(self) -> bool:
        """Whether algebra in K x K matrices is cheaper than in M x M ones, as it is for few weights."""
        return self.gram is None and (self.design is None or self.design.shape[-1] <= self.design.shape[-2])

    def observations(self, y: Tensor, precision: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Pseudo-outputs and the diagonal of their precision, one for each row of the design."""
        return y, precision

    def moments(self, precision: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """`D^T Lambda D` and `D^T Lambda y`: all that a regression onto pseudo-outputs needs in weight space.

        Args:
            precision: the diagonal of `Lambda`: `[M]`, shared by the outputs, or `[P, M]`.
            y: pseudo-outputs `[M, P]`.

        Returns:
            `[K, K]` or, for a precision per output, `[P, K, K]`; and `[K, P]`.
        """
        D = self.design
        assert D is not None
        if precision.ndim == 1:
            weighted = precision[:, None] * D  # Lambda D  [M, K]
            return D.mT @ weighted, weighted.mT @ y
        return weighted_grams(D, precision), D.mT @ (precision.mT * y)


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

    def kl(self, site: Site) -> Tensor:
        """`KL(q(v) || N(0, I))`, summed over outputs."""
        return linalg.gaussian_kl(self.mean, self.factor, self.log_det)

    def draw(self, noise: Tensor) -> Tensor:
        """`v` `[K, P]` from standard normal noise `[K, P]`."""
        if self.factor.shape[0] == 1:
            return self.mean + self.factor[0] @ noise
        return self.mean + torch.einsum("pij,jp->ip", self.factor, noise)

    def sample(self, site: Site, draw: "Draw") -> Tensor:
        """Draw `v` `[K, P]` and report `log p(v) - log q(v)`."""
        noise = draw.randn(f"{site.name}.inducing", *self.mean.shape, like=self.mean)  # [K, P]
        v = self.draw(noise)
        log_det = self.log_det.expand(site.n_out).sum()
        draw.add(site.name, 0.5 * (noise.square().sum() - v.square().sum() + log_det))
        return v


@dataclass(frozen=True)
class Diagonal:
    """Independent Gaussians over weights `w = R v`, or the weights themselves where there is no `std`.

    Attributes:
        mean: `[K, P]`.
        std: `[K, P]`, or None.
        log_ratio: what a posterior without `std` reports in place of `-KL`.
    """

    mean: Tensor
    std: Tensor | None = None
    log_ratio: Tensor | None = None

    def kl(self, site: Site) -> Tensor:
        """`KL(q(w) || p(w))`, summed over outputs."""
        if self.std is None:
            assert self.log_ratio is not None
            return -self.log_ratio
        assert site.root is not None
        return site.root.kl(self.mean, self.std)


class Posterior(nn.Module, ABC):
    """The approximating family of a layer, and a specification that many layers may be given.

    Attributes:
        local: whether the posterior has inducing inputs of its own, `inputs`, instead of the rows that come in.
        takes_inducing: whether it can make use of inducing rows that come in.
        rotates: whether the layer's values are known only up to a rotation of the outputs.
        closed_form: whether `marginal` gives the distribution of `v`, so that it can be integrated out.
        deterministic: whether every draw is the same.
        is_prior: whether it is the prior, hyperparameters included.
        has_prior: whether the prior of weights counts.
    """

    local: bool = False
    takes_inducing: bool = True
    closed_form: bool = False
    deterministic: bool = False
    is_prior: bool = False
    has_prior: bool = True
    rotates: bool = False
    inputs: nn.Parameter

    @property
    def sites(self) -> "NaturalSites | None":
        """Parameters that natural gradients move, where it has such; saved posteriors from before have none."""
        found = self._modules.get("natural")
        return None if found is None else cast("NaturalSites", found)

    @abstractmethod
    def finish(self, layer: "Layer", n_inducing: int) -> None:
        """Create the variational parameters, once, when the layer joins a model with so many inducing rows.

        `layer.out_shape` is the shape of one row of its values, `(P,)` or for images `(P, height, width)`.
        """

    @abstractmethod
    def sample(self, site: Site, draw: "Draw") -> Tensor:
        """Draw the whitened values `v` `[K, P]` and report `log p(v) - log q(v)` to the draw."""

    def marginal(self, site: Site) -> Gaussian | Diagonal | None:
        """The distribution of `v` (or of weights) when it is Gaussian and does not depend on the draw, else None.

        The layer then reports `-KL`, and may integrate it out.
        """
        return None

    def to_units(self, units: "Units", layer: "Layer") -> None:
        """Take what the user gave in user units to the model's, where this is the model's first layer."""
        return

    def initialize_targets(self, targets: Tensor) -> None:
        """Start from the targets of the data rows nearest to the inducing inputs, where this is the last layer."""
        return

    def starts_at_rows(self, layer: "Layer") -> bool:
        """Whether `initialize` looks at the data rows that come in, and the more of them the better."""
        return False

    def initialize(self, layer: "Layer", rows: Tensor) -> None:
        """Set data-dependent starting values."""
        return
