"""What layers of weights have in common: a prior of the weights, and a posterior over them or their values."""

import copy
from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError, kind_of
from vibayes.layers.base import Layer
from vibayes.posteriors.base import Diagonal, Gaussian, Posterior, Site
from vibayes.posteriors.global_inducing import GlobalInducing
from vibayes.priors import Isotropic, NealPrior, Prior, Root

__all__ = ["WeightLayer"]


class WeightLayer(Layer):
    """A layer that is linear in weights `w` `[K, P]`: K per output, the last of them the bias if there is one.

    Subclasses say what the weights do (`values`), what posteriors see of inducing rows (`site`) and, where they can,
    the moments of the values under a Gaussian (`moments`).

    Attributes:
        fan_in: K.
        prior: the prior of the weights.
        start: weights `[K, P]` from which posteriors with a mean start, such as pretrained ones.
    """

    def __init__(
        self, in_features: int, out_features: int, fan_in: int, prior: Prior | None, posterior: Posterior | None
    ) -> None:
        super().__init__(in_features, out_features, GlobalInducing() if posterior is None else posterior)
        if prior is not None and not isinstance(prior, Prior):
            raise ConfigurationError(f"prior must be a prior of weights such as NealPrior(), got {kind_of(prior)}.")
        if self.posterior.rotates:
            raise ConfigurationError(
                f"{type(self.posterior).__name__} is a posterior of GP layers. Layers of weights take GlobalInducing, "
                "LocalInducing, MeanField, FromPrior or Point."
            )
        self.fan_in = fan_in
        self.prior = NealPrior() if prior is None else copy.deepcopy(prior)
        self.start: Tensor | None = None

    @abstractmethod
    def check(self, rows: Tensor) -> None:
        """Refuse rows of a wrong shape."""

    @abstractmethod
    def values(self, rows: Tensor, w: Float[Tensor, "k p"]) -> Tensor:
        """The layer's values at the rows, given the weights."""

    @abstractmethod
    def site(self, name: str, root: Root, rows: Tensor, inducing: Tensor | None) -> Site:
        """What a posterior learns of the layer; `inducing` are the inducing rows it is to see, if any."""

    @abstractmethod
    def moments(
        self, rows: Tensor, site: Site, q: Gaussian | Diagonal, joint: bool
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Mean and variance of the values, and in joint draws covariance `[P, N, N]`; None where they are not known."""

    def values_apart(self, rows: Tensor, q: Diagonal, draw: Draw) -> Tensor | None:
        """Values drawn with noise of its own in every row, where `moments` would not make a draw; else None."""
        return None

    def bind(self, name: str, n_inducing: int = 0, is_output: bool = False) -> None:
        """Take a name in a model and create all parameters."""
        super().bind(name, n_inducing, is_output)
        self.prior.finish(self)

    @property
    def closed_form(self) -> bool:
        """Whether the posterior is, and nothing of the prior is drawn."""
        return self.posterior.closed_form and not self._draws_prior

    @property
    def deterministic(self) -> bool:
        """Whether the weights are one value, and nothing of the prior is drawn."""
        return self.posterior.deterministic and not self._draws_prior

    @property
    def _draws_prior(self) -> bool:
        return self.prior.random and self.posterior.has_prior

    def forward(self, input: Tensor) -> Tensor:
        """Draw the layer's values at the rows, inducing rows first."""
        rows = input  # the name by which a network may call the torch layer that this one stands for
        draw, name = self.draw()
        if draw.placeholder is not None:
            return draw.placeholder(self, rows)
        self.check(rows)
        whole = draw.n_rows is None or rows.shape[0] == draw.n_rows
        if self.waits is not None:
            self.complete(self.value_shape(rows))
        if draw.initializing:
            self.initialize(rows)
        if self.posterior.has_prior:
            root = self.prior.root(self, draw, learned=not self.posterior.is_prior)
        else:
            root = Isotropic(1.0, self.fan_in)
        site = self.site(name, root, rows, self._inducing(rows, draw, whole))
        q = self.posterior.marginal(site) if draw.marginal else None
        if q is None:
            return self.values(rows, root.apply(self.posterior.sample(site, draw)))

        draw.add(name, -q.kl(site))
        if isinstance(q, Diagonal) and q.std is None:
            return self.values(rows, q.mean)
        # Where no inducing rows travel along, only each row's own distribution matters, and a row may have its own
        # noise (local reparameterisation). Rows that were cut into pieces must share their weights.
        apart = isinstance(q, Diagonal) and draw.n_inducing == 0 and not draw.joint and whole
        if apart:
            assert isinstance(q, Diagonal)
            own = self.values_apart(rows, q, draw)
            if own is not None:
                return own
        if apart or name == draw.output_layer:
            found = self.moments(rows, site, q, draw.joint)
            if found is not None:
                return draw.gaussian_rows(name, *found)
        noise = draw.randn(f"{name}.inducing", *q.mean.shape, like=q.mean)
        if isinstance(q, Diagonal):
            assert q.std is not None
            return self.values(rows, q.mean + q.std * noise)
        return self.values(rows, root.apply(q.draw(noise)))

    def covariance_size(self, n_inducing: int) -> int:
        """With inducing points: the fan-in, or their number where that is less."""
        if self.posterior.local:
            return min(self.fan_in, len(self.posterior.inputs))
        return min(self.fan_in, n_inducing) if self.posterior.takes_inducing and not self.posterior.is_prior else 0

    def _inducing(self, rows: Tensor, draw: Draw, whole: bool) -> Tensor | None:
        """The inducing rows the posterior sees: its own, or those that come in."""
        posterior = self.posterior
        if posterior.local:
            return posterior.inputs
        if not posterior.takes_inducing or posterior.is_prior:
            return None
        if not whole:
            raise ShapeError(
                f"Layer {self.name!r} got {rows.shape[0]} rows where the pass has {draw.n_rows}, so it cannot tell "
                "which are inducing rows. Keep the first axis as it is, or give the layer a MeanField posterior."
            )
        return rows[: draw.n_inducing]


def with_ones(x: Float[Tensor, "n d"], bias: bool) -> Float[Tensor, "n k"]:
    """Features with the bias's constant one behind them."""
    return torch.cat([x, torch.ones_like(x[:, :1])], 1) if bias else x
