"""What every Bayesian layer is: a prior over functions, with a posterior chosen separately."""

import copy

from torch import Tensor, nn

from vibayes.draw import Draw, current_draw
from vibayes.errors import ConfigurationError
from vibayes.posteriors.base import Posterior

__all__ = ["Layer"]


class Layer(nn.Module):
    """A layer that is a prior over functions of its rows.

    A layer is bound to the name it has inside its `Model`, which names its noise, its log ratio and its errors.
    The posterior given is a specification: the layer keeps its own copy.

    Attributes:
        in_features: the width of the rows that come in.
        out_features: the width of the rows that go out.
        posterior: the approximating family, with this layer's own variational parameters.
        name: the layer's name in its model.
        is_output: whether the layer's rows are the network's output.
    """

    def __init__(self, in_features: int, out_features: int, posterior: Posterior) -> None:
        super().__init__()
        if isinstance(out_features, bool) or not isinstance(out_features, int) or out_features < 1:
            raise ConfigurationError(f"out_features must be a positive whole number, got {out_features!r}.")
        if not isinstance(posterior, Posterior):
            raise ConfigurationError(
                f"posterior must be a posterior such as LocalInducing(100), got {type(posterior).__name__}."
            )
        self.in_features = in_features
        self.out_features = out_features
        self.posterior = copy.deepcopy(posterior)
        self.name: str | None = None
        self.is_output = False

    def bind(self, name: str, n_inducing: int = 0, is_output: bool = False) -> None:
        """Take a name in a model and create the variational parameters; a second model is refused."""
        if self.name is not None:
            raise ConfigurationError(
                f"Layer {name!r} already belongs to a Model (as {self.name!r}). A network can be in one Model only: "
                "build it anew, or copy.deepcopy the whole Model."
            )
        self.name, self.is_output = name, is_output
        self.posterior.finish(self, n_inducing)

    def draw(self) -> tuple[Draw, str]:
        """The draw in progress and this layer's name."""
        name = self.name if self.name is not None else type(self).__name__
        draw = current_draw(name)
        if self.name is None:
            raise ConfigurationError(f"{name} is not part of the Model that is running.")
        return draw, self.name

    def initialize(self, rows: Tensor) -> None:
        """Set data-dependent starting values from the rows that reach this layer."""
        self.posterior.initialize(self, rows)
