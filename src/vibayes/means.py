"""Mean functions: what a Gaussian process is centred on.

A mean maps rows `[N, D]` to `[N, out_features]`, or to `[N, 1]` where all outputs share it.
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.data import check_count
from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.parameters import Real

__all__ = ["ConstantMean", "IdentityMean", "LinearMean", "Mean", "ZeroMean"]


class Mean(nn.Module, ABC):
    """A mean function. Subclasses implement `forward`, and `check` where not every width fits."""

    @abstractmethod
    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """The mean at the rows, `[N, out_features]`, or `[N, 1]` where all outputs share it."""

    def at(self, rows: Float[Tensor, "n d"], out_features: int) -> Float[Tensor, "n p"]:
        """What `forward` gives, refused in a shape that would broadcast to something else, such as `[N]`."""
        found: Tensor = self(rows)
        if tuple(found.shape) not in ((len(rows), out_features), (len(rows), 1)):
            shapes = f"[{len(rows)}, {out_features}]" + (f" or [{len(rows)}, 1]" if out_features > 1 else "")
            raise ShapeError(
                f"{type(self).__name__} must give {shapes} for {len(rows)} rows and {out_features} output(s), got "
                f"{list(found.shape)}. Return a column for each output, or one for all of them."
            )
        return found

    def check(self, in_features: int, out_features: int) -> None:
        """Raise `ConfigurationError` if the mean cannot map this input width to this output width."""
        return

    def initialize(self, rows: Float[Tensor, "n d"]) -> None:
        """Choose a start from the rows that enter; by default there is nothing to choose."""
        return


class ZeroMean(Mean):
    """The zero function.

    >>> ZeroMean()(torch.ones(2, 3)).tolist()
    [[0.0], [0.0]]
    """

    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n 1"]:
        """Zeros `[N, 1]`, for any number of outputs."""
        return rows.new_zeros(rows.shape[0], 1)


class ConstantMean(Mean):
    """A constant, learned unless told otherwise.

    Args:
        value: the start; a number, a tensor of shape `[out_features]`, or a `Real`.
        learn: whether training changes it (a `Real` brings its own choice).
        out_features: one constant per output; with 1, all outputs share it.

    >>> ConstantMean(2.0, learn=False)(torch.ones(2, 3)).tolist()
    [[2.0], [2.0]]
    """

    value: Real

    def __init__(self, value: float | Tensor | Real = 0.0, learn: bool = True, out_features: int = 1) -> None:
        super().__init__()
        out_features = check_count(out_features, "out_features")
        if not isinstance(value, Real):
            tensor = torch.as_tensor(value, dtype=torch.get_default_dtype())
            value = Real(tensor.expand(out_features) if tensor.numel() == 1 else tensor, learn=learn)
        if tuple(value.raw.shape) not in ((), (out_features,)):
            raise ShapeError(
                f"Expected a number or {out_features} of them (out_features={out_features}), "
                f"got shape {tuple(value.raw.shape)}."
            )
        self.value = value
        self.out_features = out_features

    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """The constant at every row."""
        return self.value.value.expand(rows.shape[0], self.out_features)

    def check(self, in_features: int, out_features: int) -> None:
        """The number of constants is 1 or the number of outputs."""
        if self.out_features not in (1, out_features):
            raise ConfigurationError(
                f"ConstantMean has {self.out_features} constants for {out_features} outputs. "
                f"Use out_features={out_features}, or 1 to share one constant."
            )


class IdentityMean(Mean):
    """The rows themselves: a skip connection around the process.

    >>> IdentityMean()(torch.tensor([[1.0, 2.0]])).tolist()
    [[1.0, 2.0]]
    """

    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The rows."""
        return rows

    def check(self, in_features: int, out_features: int) -> None:
        """Inputs and outputs have the same width."""
        if in_features != out_features:
            raise ConfigurationError(
                f"IdentityMean needs as many outputs as inputs, got {in_features} inputs and {out_features} "
                f"outputs. Use LinearMean({in_features}, {out_features}) between different widths."
            )


class LinearMean(Mean):
    """A linear projection, `rows @ weight`: a skip connection between different widths.

    The weight starts as the first columns of the identity (zeros beyond it where there are more outputs than
    inputs). `initialize` turns it to the principal directions of the data when outputs are fewer, as in
    doubly stochastic deep Gaussian processes (Salimbeni & Deisenroth 2017).

    Args:
        in_features: the width of the rows.
        out_features: the width of the mean.
        learn: whether training changes the projection.
        weight: what the projection is, `[in_features, out_features]`, where `initialize` is not to choose it.

    >>> mean = LinearMean(3, 2)
    >>> mean(torch.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 2.0]]
    >>> mean.weight.raw.requires_grad
    False
    """

    weight: Real
    given_weight = False  # projections saved before it could be given

    def __init__(
        self, in_features: int, out_features: int, learn: bool = False, *, weight: Tensor | None = None
    ) -> None:
        super().__init__()
        in_features, out_features = check_count(in_features, "in_features"), check_count(out_features, "out_features")
        if weight is not None and tuple(weight.shape) != (in_features, out_features):
            raise ShapeError(f"weight must have shape [{in_features}, {out_features}], got {list(weight.shape)}.")
        self.in_features = in_features
        self.out_features = out_features
        self.given_weight = weight is not None
        self.weight = Real(torch.eye(in_features, out_features) if weight is None else weight, learn=learn)

    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """The projected rows."""
        return rows @ self.weight.value

    def check(self, in_features: int, out_features: int) -> None:
        """Both widths are those of the projection."""
        if (in_features, out_features) != (self.in_features, self.out_features):
            raise ConfigurationError(
                f"LinearMean({self.in_features}, {self.out_features}) stands where {in_features} inputs and "
                f"{out_features} outputs meet. Use LinearMean({in_features}, {out_features})."
            )

    @torch.no_grad()
    def initialize(self, rows: Float[Tensor, "n d"]) -> None:
        """Point the projection along the leading principal directions of the rows.

        With at least as many outputs as inputs nothing would be lost, and the identity stays. The sign of
        each direction makes its largest entry positive, so that the same rows give the same start everywhere.
        """
        if rows.ndim != 2 or rows.shape[1] != self.in_features or rows.shape[0] == 0:
            raise ShapeError(f"Expected rows of shape [N, {self.in_features}], got {list(rows.shape)}.")
        if not bool(torch.isfinite(rows).all()):
            raise DataError("The rows contain NaN or infinite values; clean them before initializing the mean.")
        if self.given_weight or self.out_features >= self.in_features:
            return
        covariance = torch.cov(rows.double().mT, correction=0).reshape(self.in_features, self.in_features)
        directions = torch.linalg.eigh(covariance).eigenvectors.flip(-1)[:, : self.out_features]
        largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
        self.weight.set(directions * largest.sign())
