"""Square matrices that are multiplied with, solved with, and whose determinant is known."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.errors import ShapeError

__all__ = ["LowerUpper", "SquareMatrix", "log_abs_det"]


class LowerUpper:
    """An invertible matrix `A = l u` by its LU factorisation, packed into one square matrix.

    `l` is unit lower triangular with the entries below the diagonal of `packed`; `u` is upper triangular with the rest.
    So `packed = I` is `A = I`, and `log |det A| = sum_i log |packed_ii|` costs nothing. Negative diagonal entries are
    allowed; zeros are not.

    Args:
        packed: `[*batch, n, n]`, usually a parameter.

    >>> A = LowerUpper(torch.tensor([[2.0, 1.0], [3.0, -4.0]]))
    >>> A.matrix.tolist(), round(A.log_abs_det.exp().item(), 4)
    ([[2.0, 1.0], [6.0, -1.0]], 8.0)
    """

    def __init__(self, packed: Float[Tensor, "*batch n n"]) -> None:
        if packed.dim() < 2 or packed.shape[-1] != packed.shape[-2]:
            raise ShapeError(f"LowerUpper expects a square matrix after any batch axes, got {tuple(packed.shape)}.")
        self.packed = packed

    @property
    def shape(self) -> torch.Size:
        """Shape of `A`, batch axes first."""
        return self.packed.shape

    def expand(self, shape: torch.Size) -> "LowerUpper":
        """The same matrix with more batch axes."""
        return LowerUpper(self.packed.expand(shape))

    @property
    def matrix(self) -> Float[Tensor, "*batch n n"]:
        """`A` itself."""
        return self.matmul(torch.eye(self.shape[-1], dtype=self.packed.dtype, device=self.packed.device))

    @property
    def log_abs_det(self) -> Float[Tensor, "*batch"]:
        """`log |det A|`."""
        return self.packed.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)

    def matmul(self, X: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """`A X`."""
        upper = self.packed.triu() @ X
        return upper + self.packed.tril(-1) @ upper

    def solve(self, X: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """`A^-1 X`."""
        half = torch.linalg.solve_triangular(self.packed, X, upper=False, unitriangular=True)
        solved: Tensor = torch.linalg.solve_triangular(self.packed.triu(), half, upper=True)
        return solved


class SquareMatrix:
    """A dense invertible matrix with the methods of `LowerUpper`.

    >>> SquareMatrix(torch.tensor([[0.0, 2.0], [1.0, 0.0]])).log_abs_det.exp().item()
    2.0
    """

    def __init__(self, matrix: Float[Tensor, "*batch n n"]) -> None:
        self.matrix = matrix

    @property
    def shape(self) -> torch.Size:
        """Shape of the matrix, batch axes first."""
        return self.matrix.shape

    def expand(self, shape: torch.Size) -> "SquareMatrix":
        """The same matrix with more batch axes."""
        return SquareMatrix(self.matrix.expand(shape))

    @property
    def log_abs_det(self) -> Float[Tensor, "*batch"]:
        """`log |det A|`."""
        return log_abs_det(self.matrix)

    def matmul(self, X: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """`A X`."""
        return self.matrix @ X

    def solve(self, X: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """`A^-1 X`."""
        # With other batch axes than the matrix, X could be read as a batch of vectors.
        batch = torch.broadcast_shapes(self.matrix.shape[:-2], X.shape[:-2])  # type: ignore[no-untyped-call]
        X = X.expand(batch + X.shape[-2:])
        solved: Tensor = torch.linalg.solve_ex(self.matrix.expand(batch + self.matrix.shape[-2:]), X).result
        return solved


def log_abs_det(X: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """`log |det X|`, without waiting for the device in its gradient as `torch.linalg.slogdet` may.

    >>> log_abs_det(torch.diag(torch.tensor([1.0, -1.0, 1.0]))).item()
    0.0
    """
    if torch.compiler.is_compiling():  # which fails on a Function inside vmap whose input has no axis of that vmap
        return _LogAbsDet.forward(X)
    value: Tensor = _LogAbsDet.apply(X)  # type: ignore[no-untyped-call]
    return value


class _LogAbsDet(torch.autograd.Function):
    """`log |det X|` with the gradient `X^-T`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(X: Tensor) -> Tensor:
        value: Tensor = torch.linalg.slogdet(X).logabsdet
        return value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (X,) = ctx.saved_tensors
        inverse: Tensor = torch.linalg.inv_ex(X).inverse  # inv_ex: no check for singularity, hence no wait
        return grad[..., None, None] * inverse.mT
