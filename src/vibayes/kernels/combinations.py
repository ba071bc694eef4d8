"""Kernels made of kernels: sums, products, scaled ones, and kernels of some of the inputs."""

import functools
import numbers
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.errors import ConfigurationError
from vibayes.kernels.base import Kernel
from vibayes.parameters import Positive, positive

__all__ = ["ActiveDimensions", "Product", "Scaled", "Sum"]


def _is_kernel(value: object, owner: str) -> Kernel:
    if not isinstance(value, Kernel):
        raise ConfigurationError(
            f"{owner} combines kernels, got {value!r}. "
            "For a constant covariance add Constant(in_features, variance=...)."
        )
    return value


class _Combination(Kernel):
    """Several kernels of the same rows; nested combinations of the same kind are flattened."""

    def __init__(self, *kernels: Kernel) -> None:
        name = type(self).__name__
        if not kernels:
            raise ConfigurationError(f"{name} needs at least one kernel.")
        flat = [part for kernel in kernels for part in self._parts(_is_kernel(kernel, name))]
        widths = [part.in_features for part in flat]
        if len(set(widths)) > 1:
            raise ConfigurationError(
                f"{name} needs kernels of the same rows, got in_features {widths}. "
                "Use ActiveDimensions for kernels of some of the columns."
            )
        super().__init__(widths[0])
        self._kernels = nn.ModuleList(flat)
        # Distances are functions of inner products, so a mixture of both kinds still does not see rotations.
        kinds = {part.depends_on for part in flat}
        self.depends_on = kinds.pop() if len(kinds) == 1 else "inputs" if "inputs" in kinds else "inner_product"

    @classmethod
    def _parts(cls, kernel: Kernel) -> "tuple[Kernel, ...]":
        return kernel.kernels if isinstance(kernel, cls) else (kernel,)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that are combined."""
        return tuple(self)

    def __iter__(self) -> Iterator[Kernel]:
        for kernel in self._kernels:
            assert isinstance(kernel, Kernel)
            yield kernel


class Sum(_Combination):
    """The sum of kernels, `k1 + k2`: the kernel of a sum of independent functions.

    >>> from vibayes.kernels import LinearKernel, SquaredExponential
    >>> kernel = SquaredExponential(1) + LinearKernel(1)
    >>> kernel(torch.ones(1, 1), 2 * torch.ones(1, 1)).item()
    2.6065...
    """

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        return functools.reduce(operator.add, (kernel._matrix(x, z) for kernel in self))

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return functools.reduce(operator.add, (kernel._diag(x) for kernel in self))


class Product(_Combination):
    """The product of kernels, `k1 * k2`.

    >>> from vibayes.kernels import LinearKernel
    >>> kernel = LinearKernel(1) * LinearKernel(1)
    >>> kernel(torch.ones(1, 1), 3 * torch.ones(1, 1)).item()
    9.0
    """

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        return functools.reduce(operator.mul, (kernel._matrix(x, z) for kernel in self))

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return functools.reduce(operator.mul, (kernel._diag(x) for kernel in self))


class Scaled(Kernel):
    """A kernel times a learned factor, `variance * k(x, z)`; `2.0 * k` starts the factor at 2.

    Args:
        kernel: the kernel.
        variance: the factor, a number or a `Positive` (`.fix()` keeps it out of training).

    >>> from vibayes.kernels import LinearKernel
    >>> kernel = 2.0 * LinearKernel(1)
    >>> kernel.variance
    Positive(2)
    """

    kernel: Kernel
    variance: Positive

    def __init__(self, kernel: Kernel, variance: float | Tensor | Positive = 1.0) -> None:
        super().__init__(_is_kernel(kernel, "Scaled").in_features)
        if isinstance(variance, bool) or not isinstance(variance, numbers.Real | Tensor | Positive):
            raise ConfigurationError(f"A kernel can be multiplied by a number or a kernel, not {variance!r}.")
        self.kernel = kernel
        self.variance = positive(variance if isinstance(variance, Tensor | Positive) else float(variance))
        self.depends_on = kernel.depends_on

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        return self.variance.value * self.kernel._matrix(x, z)

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.variance.value * self.kernel._diag(x)


class ActiveDimensions(Kernel):
    """A kernel of some of the columns of the rows.

    Args:
        kernel: a kernel with `in_features == len(dimensions)`.
        dimensions: the columns it sees, from 0 to `in_features - 1`, each at most once.
        in_features: the width of the whole rows.

    >>> from vibayes.kernels import LinearKernel
    >>> kernel = ActiveDimensions(LinearKernel(1), [2], in_features=3)
    >>> kernel(torch.tensor([[1.0, 2.0, 3.0]])).item()
    9.0
    """

    kernel: Kernel
    _columns: Tensor

    def __init__(self, kernel: Kernel, dimensions: Sequence[int] | Tensor, in_features: int) -> None:
        super().__init__(in_features)
        given: list[Any] = dimensions.tolist() if isinstance(dimensions, Tensor) else list(dimensions)
        if any(
            isinstance(d, bool) or not isinstance(d, numbers.Integral) or not 0 <= int(d) < self.in_features
            for d in given
        ):
            raise ConfigurationError(f"dimensions must be whole numbers from 0 to {self.in_features - 1}, got {given}.")
        self.dimensions = tuple(int(d) for d in given)
        if len(set(self.dimensions)) < len(self.dimensions):
            raise ConfigurationError(f"dimensions must differ, got {list(self.dimensions)}.")
        if _is_kernel(kernel, "ActiveDimensions").in_features != len(self.dimensions):
            raise ConfigurationError(
                f"The kernel has in_features={kernel.in_features}, but {len(self.dimensions)} dimensions are "
                f"chosen: {list(self.dimensions)}. The two numbers must be equal."
            )
        self.kernel = kernel
        # With all columns chosen their order makes no difference to distances and inner products.
        self.depends_on = kernel.depends_on if len(self.dimensions) == self.in_features else "inputs"
        self.register_buffer("_columns", torch.tensor(self.dimensions), persistent=False)

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        return self.kernel._matrix(self._chosen(x), None if z is None else self._chosen(z))

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.kernel._diag(self._chosen(x))

    def _chosen(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        if rows.shape[-1] != self.in_features:  # imagined features, however many there are: all of them are chosen
            return rows
        return rows.index_select(-1, self._columns)

    def extra_repr(self) -> str:
        """The width and the columns."""
        return f"{super().extra_repr()}, dimensions={list(self.dimensions)}"
