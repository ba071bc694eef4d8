"""What every Bayesian layer is: a prior over functions, with a posterior chosen separately."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vibayes.data import check_count
from vibayes.draw import Draw, current_draw
from vibayes.errors import ConfigurationError, ShapeError, kind_of
from vibayes.posteriors.base import Posterior

if TYPE_CHECKING:
    from vibayes.data import Units

__all__ = ["Layer", "rows_given"]


def rows_given(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """The rows that a module was called with, `module(rows)` or `module(input=rows)`; for hooks on it."""
    return next(iter((*arguments, *keywords.values())))


class Layer(nn.Module):
    """A layer that is a prior over functions of its rows.

    A layer is bound to the name it has inside its `Model`, which names its noise, its log ratio and its errors.
    The posterior given is a specification: the layer keeps its own copy.

    Attributes:
        in_features: the width of the rows that come in.
        out_features: the width of the rows that go out.
        row_shape: the shape of one row that comes in, where it is known beforehand.
        out_shape: the shape of one row that goes out; None until a pass has shown it (convolutions).
        inducing_features: the width of inducing inputs of the layer's own, mostly `in_features`.
        posterior: the approximating family, with this layer's own variational parameters.
        name: the layer's name in its model.
        is_output: whether the layer's rows are the network's output.
        waits: for how many inducing rows the variational parameters will be made, where `out_shape` must come first.
        learned_shape: whether a pass has shown `out_shape`.
    """

    def __init__(self, in_features: int, out_features: int, posterior: Posterior) -> None:
        super().__init__()
        out_features = check_count(out_features, "out_features")
        if not isinstance(posterior, Posterior):
            raise ConfigurationError(
                f"posterior must be a posterior such as LocalInducing(100), got {kind_of(posterior)}."
            )
        self.in_features = in_features
        self.out_features = out_features
        self.row_shape: tuple[int, ...] | None = (in_features,)
        self.out_shape: tuple[int, ...] | None = (out_features,)
        self.inducing_features = in_features
        self.posterior = copy.deepcopy(posterior)
        self.name: str | None = None
        self.is_output = False
        self.waits: int | None = None
        self.learned_shape = False

    def bind(self, name: str, n_inducing: int = 0, is_output: bool = False) -> None:
        """Take a name in a model and create the variational parameters; a second model is refused."""
        if self.name is not None:
            raise ConfigurationError(
                f"Layer {name!r} already belongs to a Model (as {self.name!r}). A network can be in one Model only: "
                "build it anew, or copy.deepcopy the whole Model."
            )
        self.name, self.is_output, self.waits = name, is_output, None
        if self.out_shape is None and self.posterior.takes_inducing and n_inducing > 0:
            self.waits = n_inducing
            return
        try:
            self.posterior.finish(self, n_inducing)
        except Exception:
            self.name = None  # a layer that could not join a model stays free
            raise

    def unbind(self) -> None:
        """Leave a model that could not be built, as if it had never been tried."""
        if self.learned_shape:
            self.out_shape = None
        self.name, self.waits, self.learned_shape = None, None, False

    def complete(self, out_shape: tuple[int, ...]) -> None:
        """Create variational parameters that waited for the shape of a row that goes out."""
        if self.waits is not None:
            self.out_shape, self.learned_shape = out_shape, True
            self.posterior.finish(self, self.waits)
            self.waits = None

    @property
    def closed_form(self) -> bool:
        """Whether the moments of its rows are known given the rows that come in."""
        return self.posterior.closed_form

    @property
    def deterministic(self) -> bool:
        """Whether every draw gives the same rows."""
        return self.posterior.deterministic

    def covariance_size(self, n_inducing: int) -> int:
        """The size of the largest covariance matrix of weights in a draw, with as many inducing rows."""
        return 0

    def draw(self) -> tuple[Draw, str]:
        """The draw in progress and this layer's name."""
        kind = type(self).__name__
        draw = current_draw(kind if self.name is None else f"{kind} {self.name!r}")
        if self.name is None and draw.placeholder is None:
            raise ConfigurationError(f"{kind} is not part of the Model that is running.")
        return draw, self.name or kind

    def wrong_width(self, rows: Tensor, draw: Draw) -> ShapeError:
        """The error of a layer with a kernel, whose rows have another width than that."""
        advice = "Flatten images before it." if rows.ndim > 2 else "Change the width of what comes before it."
        if draw.imagined:
            advice += (
                " Features of an InverseWishartProcess, whose number is that of inducing rows and one more, must reach "
                "the next layer as they are, and its kernel is given in_features=out_features of the process."
            )
        return ShapeError(
            f"{type(self).__name__} layer {self.name!r} expects rows of shape [N, {self.in_features}] (its kernel's "
            f"in_features), got {list(rows.shape)}. {advice}"
        )

    def refuse_pieces(self, rows: Tensor, draw: Draw) -> None:
        """Refuse rows whose number has changed on the way, where they are drawn independently given inducing rows."""
        if draw.n_rows is None or len(rows) == draw.n_rows:
            return
        if draw.joint and (self.posterior.local or draw.n_inducing == 0):
            return
        unknown = "" if self.posterior.local else " It cannot tell which of them are inducing rows."
        raise ShapeError(
            f"{type(self).__name__} layer {self.name!r} got {len(rows)} rows where the pass has {draw.n_rows}."
            f"{unknown} Pieces of one row would be drawn as if they were rows of their own, without the covariance "
            "between them. Keep the first axis as it is."
        )

    def value_shape(self, rows: Tensor) -> tuple[int, ...]:
        """The shape of one row that goes out, given the rows that come in."""
        return (self.out_features,)

    def send_through_own_modules(self, rows: Tensor) -> None:
        """Run what the layer has inside of a user's modules, such as the network of a deep kernel; see `survey`."""
        return

    def in_units(self, inputs: Tensor, units: "Units") -> Tensor:
        """Inducing inputs that were given for the layer, a model's first, in the model's units."""
        return units.inputs(inputs)

    def inducing_rows(self, inputs: Tensor) -> Tensor:
        """What the layer keeps of inducing inputs given for it: themselves, or features of them."""
        return inputs

    def offset(self, rows: Tensor) -> Tensor:
        """The part of the layer's values at rows that is no random function's: a mean function."""
        return rows.new_zeros(())

    def initialize(self, rows: Tensor) -> None:
        """Set data-dependent starting values from the rows that reach this layer."""
        self.posterior.initialize(self, rows)
