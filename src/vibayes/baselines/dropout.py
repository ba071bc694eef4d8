"""MC dropout: random masks in training and in prediction."""

import torch
from torch import Tensor

from vibayes.errors import ConfigurationError, ShapeError
from vibayes.layers.base import Layer
from vibayes.posteriors.from_prior import FromPrior

__all__ = ["Dropout"]


class Dropout(Layer):
    """Dropout that stays on in predictions (Gal & Ghahramani 2016), as a layer of a `Model`.

    Each value of a row is kept with probability `1 - p` and divided by it. The masks are random variables that learn
    nothing (log ratio zero), so that the bound is the expected log likelihood; the usual prior is `weight_decay` of
    `fit`. Masks differ between rows, and are shared by all rows in joint draws, where a draw is one function.

    Args:
        features: the width of the rows, or the channels of images `[N, C, H, W]`.
        p: the probability of dropping a value.

    >>> import vibayes as vb
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 30), nn.ReLU(), Dropout(30, 0.1), vb.Linear(30, 1, posterior=vb.Point()))
    >>> model = vb.Model(net, vb.Gaussian(0.1))
    >>> model.predict(torch.zeros(3, 1), n_samples=50).n_draws
    50
    """

    def __init__(self, features: int, p: float = 0.1) -> None:
        super().__init__(features, features, FromPrior())
        if not 0.0 <= p < 1.0:
            raise ConfigurationError(f"p must be at least 0 and less than 1, got {p}.")
        self.p = p
        # standard normal noise below this keeps a value: noise of a draw is normal
        self.threshold = float(torch.special.ndtri(torch.tensor(1.0 - p, dtype=torch.float64)))

    def value_shape(self, rows: Tensor) -> tuple[int, ...]:
        """That of a row that comes in."""
        return tuple(rows.shape[1:])

    def forward(self, rows: Tensor) -> Tensor:
        """Drop values at random."""
        draw, name = self.draw()
        if draw.placeholder is not None:
            return draw.placeholder(self, rows)
        width = rows.shape[1] if rows.ndim == 4 else rows.shape[-1]
        if width != self.in_features:
            raise ShapeError(
                f"Dropout({self.in_features}) got rows of shape {list(rows.shape)}. Give it features={width}, the "
                "width of rows or the channels of images."
            )
        shape = (1, *rows.shape[1:]) if draw.joint else tuple(rows.shape)
        kept = draw.randn(f"{name}.mask", *shape, like=rows) < self.threshold
        draw.add(name, rows.new_zeros(()))
        return rows * kept / (1.0 - self.p)

    def extra_repr(self) -> str:
        """The probability, for `print(model)`."""
        return f"{self.in_features}, p={self.p}"
