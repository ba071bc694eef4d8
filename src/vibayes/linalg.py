"""Linear algebra with Cholesky factors, safe inside `vmap`, CUDA graphs and `torch.compile`.

Nothing here branches on data or waits for the device. A factorization that fails yields NaN, so that it cannot
pass unnoticed, and its `info` (0 is success) so that the culprit can be named.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.errors import ConfigurationError
from vibayes.operators.factor_products import factor_product
from vibayes.operators.factorization import factorize

__all__ = [
    "DTYPES",
    "JITTER",
    "Factor",
    "add_jitter",
    "add_to_diagonal",
    "check_dtype",
    "cholesky",
    "factor",
    "gaussian_kl",
    "log_normal",
    "logdet_factor",
    "lower_factor",
    "quadratic_and_log_det",
    "semidefinite_factor",
    "solve_lower",
    "solve_lower_many",
    "solve_lower_transposed",
    "solve_lower_transposed_many",
]

JITTER = 1e-6
"""How much of its mean diagonal a model's kernel matrices get added by default (docs/decisions/jitter.md)."""

DTYPES = (torch.float32, torch.float64)


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse a dtype in which kernel matrices cannot be worked with."""
    if dtype not in DTYPES:
        raise ConfigurationError(
            f"Models work in float32 or float64, not {dtype}. Convert with model.double() or model.float()."
        )


def add_jitter(K: Float[Tensor, "*batch n n"], jitter: float | Float[Tensor, ""]) -> Float[Tensor, "*batch n n"]:
    """`K + jitter * mean(diag K) * I`."""
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    return add_to_diagonal(K, jitter * diagonal.mean(-1, keepdim=True))


def add_to_diagonal(
    K: Float[Tensor, "*batch n n"], values: Float[Tensor, "*batch n"] | Float[Tensor, "*batch 1"]
) -> Float[Tensor, "*batch n n"]:
    """`K + diag(values)`.

    >>> add_to_diagonal(torch.zeros(2, 2), torch.tensor([1.0, 2.0])).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    if torch.compiler.is_compiling():  # which fails on a Function inside vmap, and fuses by itself
        return _AddToDiagonal.forward(K, values, eye)
    added: Tensor = _AddToDiagonal.apply(K, values, eye)  # type: ignore[no-untyped-call]
    return added


class _AddToDiagonal(torch.autograd.Function):
    """One pass over the matrix forwards, and one over its diagonal backwards."""

    generate_vmap_rule = True

    @staticmethod
    def forward(K: Tensor, values: Tensor, eye: Tensor) -> Tensor:
        return torch.addcmul(K, values[..., None], eye)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.one = inputs[1].shape[-1] == 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        diagonal = g.diagonal(dim1=-2, dim2=-1)
        return g, diagonal.sum(-1, keepdim=True) if ctx.one else diagonal, None


def cholesky(
    K: Float[Tensor, "*batch n n"], jitter: float | Float[Tensor, ""] = 0.0
) -> tuple[Float[Tensor, "*batch n n"], Tensor]:
    """Lower Cholesky factor of `K` plus relative jitter, and `info` (0 where it succeeded).

    Where it failed the factor is all NaN.

    >>> L, info = cholesky(torch.tensor([[4.0, 2.0], [2.0, 3.0]]))
    >>> (L @ L.T).tolist(), info.item()
    ([[4.0, 2.0], [2.0, 3.0]], 0)
    """
    if not (isinstance(jitter, float) and jitter == 0.0):
        K = add_jitter(K, jitter)
    L, info = torch.linalg.cholesky_ex(K)
    return torch.where((info == 0)[..., None, None], L, math.nan), info


class Factor(NamedTuple):
    """A Cholesky factor, with its inverse where products with it are faster than triangular solves.

    Attributes:
        lower: `L` with `L L^T = K`.
        inverse: `L^-1`, or None.
        known_log_det: `log |K|`, where the factorization gave it.
        change: that takes the gradients of products with the factor, where it came with its inverse; see `factorize`.
    """

    lower: Tensor
    inverse: Tensor | None = None
    known_log_det: Tensor | None = None
    change: Tensor | None = None

    def multiply(self, B: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """`L B`."""
        if self.change is None:
            return self.lower @ B
        return factor_product(self.lower, self.change, B, inverse=False, transposed=False)

    def multiply_transposed(self, B: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """`L^T B`."""
        if self.change is None:
            return self.lower.mT @ B
        return factor_product(self.lower, self.change, B, inverse=False, transposed=True)

    def solve(self, B: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """`L^-1 B`."""
        if self.inverse is None:
            return solve_lower_many(self.lower, B)
        if self.change is None:
            return self.inverse @ B
        return factor_product(self.inverse, self.change, B, inverse=True, transposed=False)

    def solve_transposed(self, B: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """`L^-T B`."""
        if self.inverse is None:
            return solve_lower_transposed_many(self.lower, B)
        if self.change is None:
            return self.inverse.mT @ B
        return factor_product(self.inverse, self.change, B, inverse=True, transposed=True)

    def to(self, dtype: torch.dtype) -> "Factor":
        """The factor in another dtype."""
        inverse, log_det = (None if part is None else part.to(dtype) for part in (self.inverse, self.known_log_det))
        return Factor(self.lower.to(dtype), inverse, log_det, self.change)

    @property
    def log_det(self) -> Float[Tensor, "*batch"]:
        """`log |K|`."""
        return logdet_factor(self.lower) if self.known_log_det is None else self.known_log_det


def factor(K: Float[Tensor, "*batch n n"], jitter: float | Float[Tensor, ""] = 0.0) -> tuple[Factor, Tensor]:
    """The Cholesky factor of `K` plus relative jitter as a `Factor`, and `info`; NaN where it failed, as `cholesky`.

    The inverse comes along on a GPU, where products are so much faster than solves, and for matrices up to 128.

    >>> found, info = factor(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    >>> found.solve(torch.tensor([[2.0], [5.0]])).tolist()
    [[1.0], [2.0]]
    """
    if K.shape[-1] > _BLOCK and not K.is_cuda:
        L, info = cholesky(K, jitter)
        return Factor(L), info
    if not (isinstance(jitter, float) and jitter == 0.0):
        K = add_jitter(K, jitter)
    L, inverse, log_det, info, change = factorize(K)
    return Factor(L, inverse, log_det, change), info


def semidefinite_factor(K: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """The lower triangular `L` with `L L^T = K`, for drawing from a covariance that may be singular to rounding.

    Where `K` is positive definite it is the Cholesky factor. It needs no jitter: eigenvalues below zero are rounding.
    Not for training: its gradient is undefined where eigenvalues coincide.

    >>> semidefinite_factor(torch.ones(2, 2)).allclose(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), atol=1e-3)
    True
    """
    # eigh refuses NaN, which stands for a failed factorization elsewhere and is reported there
    values, vectors = torch.linalg.eigh(torch.nan_to_num(K))
    root = vectors * values.clamp_min(0.0).sqrt()[..., None, :]
    # Eigenvectors come in any sign and rotation; K = root root^T = U^T U makes the factor, and so the draw, unique.
    U = torch.linalg.qr(root.mT, mode="r").R
    signs = torch.where(U.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(U.dtype)
    factor: Tensor = (signs[..., None] * U).mT
    return factor


def solve_lower(L: Float[Tensor, "*batch n n"], B: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
    """`L^-1 B` for lower triangular `L`."""
    solved: Tensor = torch.linalg.solve_triangular(L, B, upper=False)
    return solved


def solve_lower_transposed(
    L: Float[Tensor, "*batch n n"], B: Float[Tensor, "*batch n k"]
) -> Float[Tensor, "*batch n k"]:
    """`L^-T B` for lower triangular `L`."""
    solved: Tensor = torch.linalg.solve_triangular(L.mT, B, upper=True)
    return solved


def logdet_factor(L: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """`log |L L^T|` from the triangular factor."""
    return 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def log_normal(residual: Float[Tensor, "n p"], L: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Log density of the columns of `residual` under N(0, L L^T), summed over columns.

    >>> value = log_normal(torch.zeros(3, 1), torch.eye(3))
    >>> bool(torch.isclose(value, torch.tensor(-1.5 * math.log(2 * math.pi))))
    True
    """
    n, p = residual.shape
    white = solve_lower(L, residual)
    return -0.5 * white.square().sum() - 0.5 * p * logdet_factor(L) - 0.5 * n * p * math.log(2 * math.pi)


def quadratic_and_log_det(
    B: Float[Tensor, "*batch n n"], R: Float[Tensor, "*batch n k"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"], Tensor]:
    """`sum_k R_k^T B^-1 R_k`, `log |B|` and `info` of the factorization; NaN where it failed.

    >>> quadratic, log_det, _ = quadratic_and_log_det(2.0 * torch.eye(3), torch.ones(3, 1))
    >>> round(quadratic.item(), 4), round(log_det.exp().item(), 4)
    (1.5, 8.0)
    """
    if torch.compiler.is_compiling():  # which fails on a Function inside vmap
        return _QuadraticAndLogDet.forward(B, R)[:3]
    found: tuple[Tensor, ...] = _QuadraticAndLogDet.apply(B, R)  # type: ignore[no-untyped-call]
    return found[0], found[1], found[2]


class _QuadraticAndLogDet(torch.autograd.Function):
    """With a backward pass by the inverse: a third of the arithmetic of differentiating the factorization."""

    generate_vmap_rule = True

    @staticmethod
    def forward(B: Tensor, R: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        L, info = cholesky(B)
        half = solve_lower(L, R)
        return half.square().sum((-2, -1)), logdet_factor(L) + 0.0 * R.sum((-2, -1)), info, L

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2], output[3])
        ctx.save_for_backward(*inputs, output[3])

    @staticmethod
    def backward(ctx: Any, g_quadratic: Tensor, g_log_det: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        B, R, L = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated again: what was saved must depend on the inputs
            L = cholesky(B)[0]
        inverse = torch.cholesky_inverse(L)
        solved = inverse @ R
        weighted = g_quadratic[..., None, None] * solved
        return g_log_det[..., None, None] * inverse - weighted @ solved.mT, 2.0 * weighted


def lower_factor(raw: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """A lower triangular factor with positive diagonal, from an unconstrained square matrix.

    Entries below the diagonal are taken as they are, the diagonal is `exp` of the raw one, the rest is unused.
    """
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())


def gaussian_kl(
    mean: Float[Tensor, "n p"], factor: Float[Tensor, "q n n"], log_det: Float[Tensor, " q"]
) -> Float[Tensor, ""]:
    """`KL(N(mean_p, R_p R_p^T) || N(0, I))`, summed over outputs p.

    Args:
        mean: one column per output.
        factor: `R`, any square factor of each covariance; `q` is p, or 1 when the outputs share it.
        log_det: `log |R R^T|`, which the caller knows from its parameterisation.
    """
    n, p = mean.shape
    shared = p // factor.shape[0]
    return 0.5 * (shared * (factor.square().sum() - log_det.sum()) + mean.square().sum() - n * p)


# Up to this size a triangular block is inverted and multiplied with: for many columns that beats triangular solves on
# CPU and GPU, and errs no more than they do (tests/test_linalg.py).
_BLOCK = 128


def solve_lower_many(L: Float[Tensor, "n n"], B: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """`L^-1 B` for many columns, made of matrix products."""
    if L.shape[-1] == 0:
        return B
    found: list[Tensor] = []
    for start in range(0, L.shape[-1], _BLOCK):
        rows = slice(start, start + _BLOCK)
        rest = B[..., rows, :]
        if found:
            rest = rest - L[..., rows, :start] @ torch.cat(found, -2)
        found.append(_inverse(L[..., rows, rows]) @ rest)
    return found[0] if len(found) == 1 else torch.cat(found, -2)


def solve_lower_transposed_many(L: Float[Tensor, "n n"], B: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """`L^-T B` for many columns, made of matrix products."""
    if L.shape[-1] == 0:
        return B
    found: list[Tensor] = []
    for start in reversed(range(0, L.shape[-1], _BLOCK)):
        rows, below = slice(start, start + _BLOCK), slice(start + _BLOCK, None)
        rest = B[..., rows, :]
        if found:
            rest = rest - L[..., below, rows].mT @ torch.cat(found, -2)
        found.insert(0, _inverse(L[..., rows, rows]).mT @ rest)
    return found[0] if len(found) == 1 else torch.cat(found, -2)


def _inverse(L: Tensor) -> Tensor:
    return solve_lower(L, torch.eye(L.shape[-1], dtype=L.dtype, device=L.device))
