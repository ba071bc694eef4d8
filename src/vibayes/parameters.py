"""Hyperparameters: numbers that are learned, fixed, or given a prior.

Every scale in the package (a lengthscale, a noise variance) is a `Positive`; every free number (a constant
mean) is a `Real`. They are modules, so `torch` finds their values, and they share one way of being fixed and
of carrying a log-prior.
"""

import copy
import math
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from vibayes.errors import ConfigurationError, ShapeError

__all__ = [
    "Hyperparameter",
    "Positive",
    "Real",
    "as_value",
    "hyperparameters",
    "log_prior",
    "name_of",
    "positive",
    "unchecked",
]


class Hyperparameter(nn.Module):
    """A learnable number or vector, stored as `raw` and used as `value`.

    Args:
        value: the starting value.
        learn: whether training changes it.
        prior: a `torch.distributions` distribution over `value`; its log density enters the training objective.
    """

    raw: nn.Parameter

    def __init__(self, value: float | Tensor, *, learn: bool = True, prior: Distribution | None = None) -> None:
        super().__init__()
        tensor = as_value(value).detach().clone()
        self.raw = nn.Parameter(self.to_raw(_finite(tensor)), requires_grad=learn)
        if prior is not None and not isinstance(prior, Distribution):
            raise ConfigurationError(
                f"prior must be a torch distribution over the value, such as torch.distributions.Gamma(2.0, 1.0); "
                f"got {type(prior).__name__}."
            )
        if prior is not None and not _broadcasts(shape := prior.batch_shape + prior.event_shape, tensor.shape):
            raise ShapeError(
                f"The prior has shape {tuple(shape)}, and the hyperparameter {tuple(tensor.shape)}. Give a prior of "
                "one number, which holds for each of them, or one of the hyperparameter's shape."
            )
        self.prior = None if prior is None else unchecked(prior)

    def to_raw(self, value: Tensor) -> Tensor:
        """The raw parameter that stands for a value."""
        return value

    def from_raw(self, raw: Tensor) -> Tensor:
        """The value that a raw parameter stands for."""
        return raw

    def log_jacobian(self, raw: Tensor) -> Tensor:
        """`log |d value / d raw|`, summed: what takes a density of `value` to one of `raw`."""
        return raw.new_zeros(())

    @property
    def value(self) -> Tensor:
        """The value as used in the model, differentiable with respect to `raw`."""
        return self.from_raw(self.raw)

    def forward(self) -> Tensor:
        """The same as `value`: `kernel.lengthscale()`."""
        return self.value

    def set(self, value: float | Tensor) -> Self:
        """Put a new value in place; a scalar fills the whole shape."""
        tensor = torch.as_tensor(value, dtype=self.raw.dtype, device=self.raw.device)
        if tensor.numel() != 1 and tensor.shape != self.raw.shape:
            raise ShapeError(f"Expected a value of shape {tuple(self.raw.shape)}, got {tuple(tensor.shape)}.")
        with torch.no_grad():
            self.raw.copy_(_filling(self.to_raw(_finite(tensor)), self.raw.shape))
        return self

    def fix(self, value: float | Tensor | None = None) -> Self:
        """Keep the value out of training, after setting it if one is given."""
        if value is not None:
            self.set(value)
        self.raw.requires_grad_(False)
        return self

    def free(self) -> Self:
        """Let training change the value again."""
        self.raw.requires_grad_(True)
        return self

    def log_prior(self) -> Tensor:
        """Log density of the prior at `value`, summed; zero without a prior."""
        if self.prior is None:
            return self.raw.new_zeros(())
        log_density: Tensor = self.prior.log_prob(self.value)
        return log_density.sum()

    def extra_repr(self) -> str:
        """The value, for `print(model)`."""
        shown = self.value.detach().flatten()[:4].tolist()
        dots = ", ..." if self.raw.numel() > 4 else ""
        fixed = "" if self.raw.requires_grad else ", fixed"
        return ", ".join(f"{v:.4g}" for v in shown) + dots + fixed


class Real(Hyperparameter):
    """A hyperparameter without bounds.

    Args:
        value: the starting value, a number or a tensor.
        learn: whether training changes it.
        prior: a `torch.distributions` distribution over `value`; its log density enters the training objective.

    >>> import vibayes as vb
    >>> mean = vb.ConstantMean(Real(0.5, prior=torch.distributions.Normal(0.0, 1.0)))
    >>> mean.value.value.item()
    0.5
    """


class Positive(Hyperparameter):
    r"""A positive hyperparameter, `value = least + exp(scale * raw)`.

    `scale` multiplies the effective learning rate of the logarithm under Adam (thesis, appendix "Parameter
    scaling for Adam"). `least` is a known part that is not learned, such as the variance of rounding in a noise.

    Args:
        value: the starting value, a number or a tensor.
        learn: whether training changes it.
        prior: a `torch.distributions` distribution over `value`; its log density enters the training objective.
        scale: a factor of the learning rate.
        least: a number below which the value cannot be.

    >>> import vibayes as vb
    >>> kernel = vb.SquaredExponential(1, lengthscale=Positive(2.0, prior=torch.distributions.LogNormal(0.0, 1.0)))
    >>> kernel.lengthscale.set(0.5).value.item()
    0.5
    >>> kernel.lengthscale.fix()
    Positive(0.5, fixed)
    """

    least: float = 0.0  # of the class, so that saved models that know of none have it

    def __init__(
        self,
        value: float | Tensor,
        *,
        learn: bool = True,
        prior: Distribution | None = None,
        scale: float = 1.0,
        least: float = 0.0,
    ) -> None:
        if not (math.isfinite(scale) and scale > 0):
            raise ConfigurationError(f"scale must be a positive number, got {scale}.")
        if not (math.isfinite(least) and least >= 0):
            raise ConfigurationError(f"least must be zero or a positive number, got {least}.")
        self.scale = scale
        if least:
            self.least = least
        super().__init__(value, learn=learn, prior=prior)

    def to_raw(self, value: Tensor) -> Tensor:
        """The scaled logarithm of what lies above `least`."""
        if not bool((value > self.least).all()):
            bound = f"larger than {self.least}" if self.least else "positive"
            raise ConfigurationError(f"This hyperparameter must be {bound}, got {value.tolist()}.")
        return (value - self.least).log() / self.scale

    def from_raw(self, raw: Tensor) -> Tensor:
        """The positive value."""
        above = (self.scale * raw).exp() if self.scale != 1.0 else raw.exp()
        return above + self.least if self.least else above

    @property
    def log(self) -> Tensor:
        """The logarithm of the value."""
        if self.least:
            return self.value.log()
        return self.scale * self.raw if self.scale != 1.0 else self.raw

    def log_jacobian(self, raw: Tensor) -> Tensor:
        """The derivative is `scale * exp(scale * raw)`."""
        return (self.scale * raw + math.log(self.scale)).sum()


def positive(value: "float | Tensor | Positive", shape: tuple[int, ...] = ()) -> Positive:
    """A `Positive` of the given shape; one that is already `Positive` is used as it is (and may be shared)."""
    if isinstance(value, Positive):
        if tuple(value.raw.shape) not in (shape, ()):
            raise ShapeError(
                f"Expected a hyperparameter of shape {shape}, got {tuple(value.raw.shape)}. "
                "Set ard=True for one lengthscale per input."
            )
        return value
    tensor = as_value(value)
    if tensor.numel() != 1 and tuple(tensor.shape) != shape:
        raise ShapeError(
            f"Expected a number or a tensor of shape {shape}, got shape {tuple(tensor.shape)}. "
            "Set ard=True for one lengthscale per input."
        )
    return Positive(_filling(tensor, shape))


def _filling(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor, or its one value at every place of the shape."""
    return tensor.reshape(()).expand(shape) if tensor.numel() == 1 else tensor


def as_value(value: float | Tensor) -> Tensor:
    """A value of a hyperparameter as a tensor of the default dtype."""
    try:
        return torch.as_tensor(value, dtype=torch.get_default_dtype())
    except (TypeError, ValueError, RuntimeError):
        raise ConfigurationError(f"A hyperparameter must be a number or several, got {value!r}.") from None


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    try:
        common: torch.Size = torch.broadcast_shapes(shape, to)  # type: ignore[no-untyped-call]
        return math.prod(common) == math.prod(to)
    except RuntimeError:
        return False


def _finite(value: Tensor) -> Tensor:
    if not bool(torch.isfinite(value).all()):
        raise ConfigurationError(f"A hyperparameter must have a finite value; got {value.tolist()}.")
    return value


def unchecked(prior: Distribution) -> Distribution:
    """The distribution without torch's checks of values.

    They wait for the device, do not work under `vmap`, and would turn a step that went wrong into an error before
    training could go back.
    """
    prior = copy.copy(prior)
    prior._validate_args = False
    for name, part in vars(prior).items():
        if isinstance(part, Distribution):  # what it is made of, such as the Dirichlet distribution of a Beta
            prior.__dict__[name] = unchecked(part)
    return prior


def hyperparameters(module: nn.Module) -> Iterator[tuple[str, Hyperparameter]]:
    """All hyperparameters inside a module, with their names, each once."""
    for name, child in module.named_modules():
        if isinstance(child, Hyperparameter):
            yield name, child


def name_of(key: str, module: nn.Module) -> str:
    """What people call a parameter: by its key, or, of a hyperparameter, by the name of that."""
    owner, _, last = key.rpartition(".")
    return owner if last == "raw" and isinstance(module.get_submodule(owner), Hyperparameter) else key


def log_prior(module: nn.Module) -> Tensor | float:
    """Sum of the log-priors of all hyperparameters inside a module (0.0 when none has one)."""
    total: Tensor | float = 0.0
    for _, hyperparameter in hyperparameters(module):
        if hyperparameter.prior is not None:
            total = total + hyperparameter.log_prior()
    return total
