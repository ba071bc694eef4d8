"""What a kernel is: a module that turns two sets of rows into the matrix of their covariances."""

import inspect
from abc import ABC, abstractmethod
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from vibayes.data import check_count
from vibayes.draw import fits
from vibayes.errors import ConfigurationError, ShapeError

if TYPE_CHECKING:
    from vibayes.kernels.combinations import Sum

__all__ = ["Kernel"]


class UnknownArgumentError(ConfigurationError, TypeError):
    """A keyword that a kernel does not take; a `TypeError` too, as Python itself would raise."""


class Kernel(nn.Module, ABC):
    """A covariance function `k(x, x')` over rows of width `in_features`.

    Subclasses implement `_matrix` and `_diag` for plain rows `[N, D]`; `forward` and `diag` check widths.
    `kernel(x)` is the symmetric matrix of one set of rows with itself, `kernel(x, z)` the matrix of two sets.
    The difference matters for `White`, whose noise belongs to a row and not to its location.

    Kernels combine: `k1 + k2`, `k1 * k2`, `2.0 * k`.

    Attributes:
        in_features: the width of the rows.
        depends_on: what of the rows the kernel sees. `"distance"`: only the distance of two rows, so that
            neither a shift nor a rotation of all rows changes it. `"inner_product"`: only inner products of
            the two rows with each other and themselves (which give distances too), so that a rotation does
            not change it. `"inputs"`: anything else, such as one lengthscale per input.
    """

    depends_on: str = "inputs"
    in_features: int
    __array_ufunc__ = None  # numpy's numbers leave `2 * kernel` to the kernel
    ROTATION_INVARIANT: ClassVar[tuple[str, ...]] = ("distance", "inner_product")

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Refuse unknown keywords with the valid ones, before any `__init__` runs."""
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        valid = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
        open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        for name in kwargs:
            if name not in valid and not open_ended:
                near = get_close_matches(name, valid, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise UnknownArgumentError(
                    f"{cls.__name__} has no argument {name!r}.{hint} Its arguments are {', '.join(valid)}."
                )
        return super().__new__(cls)

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.in_features = check_count(in_features, "in_features")

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to hide a method: a kernel with an attribute `features` would silently be another one."""
        if not name.startswith("_") and callable(vars(Kernel).get(name)):
            raise ConfigurationError(
                f"{type(self).__name__} cannot have an attribute {name!r}: every kernel has a method of that name. "
                "Choose another name."
            )
        super().__setattr__(name, value)

    @abstractmethod
    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        """The covariance matrix; `z` is None for the symmetric matrix of `x` with itself."""

    @abstractmethod
    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The diagonal of `_matrix(x, None)`."""

    def forward(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None = None) -> Float[Tensor, "n m"]:
        """The matrix of covariances of the rows of `x` with those of `z` (with themselves when None).

        Rows may be float64 where parameters are float32; then the matrix is.
        """
        self._check(x)
        if z is not None:
            self._check(z)
        if x.dtype == torch.float64 and self.needs_one_dtype:
            both = (*self.named_parameters(), *self.named_buffers())
            wide = {name: tensor.double() for name, tensor in both if tensor.is_floating_point()}
            matrix: Tensor = functional_call(self, wide, (x, z))
            return matrix
        return self._like_rows(self._matrix(x, z), x)

    @staticmethod
    def _like_rows(covariances: Tensor, x: Tensor) -> Tensor:
        """In float64 where the rows are, even if the kernel does not look at them (`Constant`)."""
        return covariances.double() if x.dtype == torch.float64 else covariances

    @property
    def needs_one_dtype(self) -> bool:
        """Whether parameters are float32 and a network or somebody's own kernel, which may not mix dtypes, is here."""
        first = next(self.parameters(), None)
        if first is None or first.dtype == torch.float64:
            return False
        parts = [m for m in self.modules() if isinstance(m, Kernel)]
        return any(m.on_features is not m or not type(m).__module__.startswith("vibayes.") for m in parts)

    def diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The variances of the rows, without the matrix."""
        self._check(x)
        return self._like_rows(self._diag(x), x)

    @property
    def rotation_invariant(self) -> bool:
        """Whether a rotation of all rows leaves the kernel as it is."""
        return self.depends_on in self.ROTATION_INVARIANT

    def features(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        """The rows that the kernel compares: the inputs themselves, or a network's features of them (`DeepKernel`).

        `kernel(x, z)` is `kernel.on_features(kernel.features(x), kernel.features(z))`. A model that keeps features
        computes them once per pass, and its inducing inputs live among them.
        """
        self._check(x)
        return x

    @property
    def on_features(self) -> "Kernel":
        """The kernel of rows that `features` gave: this kernel itself, unless it is deep."""
        return self

    def _check(self, rows: Tensor) -> None:
        if not fits(rows, self.in_features):
            raise ShapeError(
                f"{type(self).__name__}(in_features={self.in_features}) expects rows of shape "
                f"[N, {self.in_features}], got {list(rows.shape)}."
            )
        if rows.shape[1] != self.in_features and not self.rotation_invariant:
            raise ConfigurationError(
                f"{type(self).__name__} stands behind a layer whose features are known only up to a rotation, and "
                "would notice one. Take an isotropic, linear or arc-cosine kernel (no ard)."
            )

    def __add__(self, other: "Kernel") -> "Sum":
        from vibayes.kernels.combinations import Sum

        return Sum(self, other)

    def __radd__(self, other: object) -> "Kernel":
        # `sum` of several kernels begins with 0
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, other: "Kernel | float | Tensor") -> "Kernel":
        from vibayes.kernels.combinations import Product, Scaled

        return Product(self, other) if isinstance(other, Kernel) else Scaled(self, other)

    __rmul__ = __mul__

    def extra_repr(self) -> str:
        """The width, for `print(kernel)`."""
        return f"in_features={self.in_features}"
