"""What the distributions over matrices share: batch shapes, checks of arguments, prepared noise."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

from vibayes.distributions.lower_upper import LowerUpper, SquareMatrix
from vibayes.errors import ConfigurationError, DataError, ShapeError

__all__ = [
    "MatrixDistribution",
    "check_dtypes",
    "check_finite",
    "check_lower",
    "check_positive",
    "check_shape",
    "check_square",
    "values_visible",
]


class MatrixDistribution(Distribution, ABC):
    """A distribution over matrices that samples from prepared standard normals.

    Parameters keep the shapes they came with and broadcast when used; `batch_shape` is what they broadcast to.
    Shapes are always checked. Values of parameters, and matrices whose density is asked for, are checked unless
    `validate_args=False` (the check waits for the device), and where they can be looked at: never inside `torch.func`
    transforms, `torch.compile` or the capture of a CUDA graph. There a matrix outside the support has a density of NaN.
    """

    has_rsample = True
    # How many trailing axes of each parameter belong to one item; those in front are batch axes.
    _item_axes: ClassVar[dict[str, int]]

    def _finish(self, event_shape: Sequence[int], validate_args: bool | None) -> None:
        """Set the shapes, once the parameters are in place."""
        self._checks = validate_args
        batches = {}
        for name, axes in self._item_axes.items():
            value = getattr(self, name)
            if isinstance(value, Tensor | LowerUpper | SquareMatrix):
                batches[name] = value.shape[: len(value.shape) - axes]
        try:
            batch_shape = torch.broadcast_shapes(*batches.values())  # type: ignore[no-untyped-call]
        except RuntimeError:
            raise ShapeError(
                f"The batch shapes of the parameters do not broadcast: "
                f"{ {name: tuple(shape) for name, shape in batches.items()} }."
            ) from None
        super().__init__(batch_shape, torch.Size(event_shape), validate_args=False)

    @property
    @abstractmethod
    def noise_shape(self) -> torch.Size:
        """Shape of the standard normals that one (batched) sample is made of."""

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """The same distribution with its parameters expanded to a larger batch shape."""
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        for name, axes in self._item_axes.items():
            value = getattr(self, name)
            if isinstance(value, Tensor | LowerUpper | SquareMatrix):
                item = value.shape[len(value.shape) - axes :]
                new.__dict__[name] = value.expand(torch.Size(batch_shape) + item)
        new._finish(self.event_shape, self._checks)
        return new

    def __repr__(self) -> str:
        """The distribution in a line, by the shapes of its parameters."""
        parts = []
        for name in self._item_axes:
            value = getattr(self, name)
            if value is not None:
                shape = getattr(value, "shape", None)
                parts.append(f"{name}: {value if shape is None else tuple(shape)}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _noise(self, like: Tensor, sample_shape: Sequence[int], noise: Tensor | None) -> Tensor:
        shape = torch.Size(sample_shape) + self.noise_shape
        if noise is None:
            return torch.randn(shape, dtype=like.dtype, device=like.device)
        if noise.shape != shape:
            raise ShapeError(
                f"Expected noise of shape {tuple(shape)} (sample shape, then noise_shape), got {tuple(noise.shape)}."
            )
        return noise

    def _check_event(self, value: Tensor) -> None:
        """Refuse matrices of another shape, and those outside the support where values are checked."""
        self._check_event_shape(value)
        if values_visible(self._checks, value):
            support: Any = self.support
            inside = support.check(value)
            if not bool(inside.all()):
                raise DataError(
                    f"{type(self).__name__}.log_prob expects matrices in its support, {support}; "
                    f"{int((~inside).sum())} of {inside.numel()} are not. Look at where they come from; "
                    "validate_args=False gives NaN in their places."
                )

    def _check_event_shape(self, value: Tensor) -> None:
        if value.shape[-2:] != self.event_shape:
            raise ShapeError(
                f"{type(self).__name__}.log_prob expects matrices of shape {tuple(self.event_shape)}, "
                f"got a tensor of shape {tuple(value.shape)}."
            )


def values_visible(validate_args: bool | None, *tensors: Tensor) -> bool:
    """Whether checks of values are wanted and possible."""
    # torch's own default does not decide: the first use of torch.compile anywhere switches it off for the process.
    if validate_args is False or torch.compiler.is_compiling():
        return False
    if any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors):
        return False
    return not (any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing())


def check_shape(name: str, tensor: Tensor, item: tuple[int, ...]) -> None:
    """The trailing axes must be those of one item."""
    if not isinstance(tensor, Tensor):
        raise ConfigurationError(f"{name} must be a tensor of shape {item}, got {type(tensor).__name__}.")
    if tuple(tensor.shape[-len(item) :]) != item:
        raise ShapeError(f"{name} must have shape {item} after any batch axes, got {tuple(tensor.shape)}.")


def check_dtypes(**tensors: Tensor) -> None:
    """All parameters share one floating dtype."""
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    if len(set(dtypes.values())) > 1 or not all(dtype.is_floating_point for dtype in dtypes.values()):
        raise ConfigurationError(f"The parameters must share one floating dtype, got {dtypes}.")


def check_positive(validate_args: bool | None, name: str, tensor: Tensor) -> None:
    """All values must be positive."""
    if values_visible(validate_args, tensor) and not bool((tensor > 0).all()):
        raise ConfigurationError(f"{name} must be positive; its smallest value is {float(tensor.min())}.")


def check_finite(validate_args: bool | None, name: str, tensor: Tensor) -> None:
    """No value may be NaN or infinite."""
    if values_visible(validate_args, tensor) and not bool(tensor.isfinite().all()):
        raise ConfigurationError(f"{name} must be finite, but has values that are NaN or infinite.")


def check_lower(validate_args: bool | None, name: str, tensor: Tensor) -> None:
    """A square, floating, lower triangular matrix with positive diagonal."""
    check_square(name, tensor)
    check_finite(validate_args, name, tensor)
    check_positive(validate_args, f"The diagonal of {name}", tensor.diagonal(dim1=-2, dim2=-1))
    if values_visible(validate_args, tensor) and bool((tensor.triu(1) != 0).any()):
        raise ConfigurationError(f"{name} must be lower triangular, but has entries above its diagonal.")


def check_square(name: str, tensor: Tensor) -> None:
    """A square, floating matrix."""
    if not isinstance(tensor, Tensor):
        raise ConfigurationError(f"{name} must be a tensor, a square matrix, got {type(tensor).__name__}.")
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] == 0:
        raise ShapeError(f"{name} must be a square matrix after any batch axes, got shape {tuple(tensor.shape)}.")
    check_dtypes(**{name: tensor})
