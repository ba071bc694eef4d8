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
from vibayes.factorization import factorize

__all__ = [
    "Factor",
    "add_jitter",
    "add_to_diagonal",
    "cholesky",
    "conditional_moments",
    "conditional_rows",
    "default_jitter",
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

_JITTER = {torch.float64: 1e-6, torch.float32: 1e-6}


def default_jitter(dtype: torch.dtype) -> float:
    """How much of its mean diagonal a kernel matrix gets added to stay positive definite, in a model of this dtype.

    The same for both, since the kernel matrices of inducing rows are made in float64 in either.

    >>> default_jitter(torch.float64)
    1e-06
    """
    try:
        return _JITTER[dtype]
    except KeyError:
        raise ConfigurationError(
            f"Models work in float32 or float64, not {dtype}. Convert with model.double() or model.float()."
        ) from None


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
    """

    lower: Tensor
    inverse: Tensor | None = None
    known_log_det: Tensor | None = None

    def solve(self, B: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """`L^-1 B`."""
        return solve_lower_many(self.lower, B) if self.inverse is None else self.inverse @ B

    def solve_transposed(self, B: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
        """`L^-T B`."""
        return solve_lower_transposed_many(self.lower, B) if self.inverse is None else self.inverse.mT @ B

    def to(self, dtype: torch.dtype) -> "Factor":
        """The factor in another dtype."""
        return Factor(*(None if part is None else part.to(dtype) for part in self))  # type: ignore[arg-type]

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
    L, inverse, log_det, info = factorize(K)
    return Factor(L, inverse, log_det), info


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
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, output[3])

    @staticmethod
    def backward(
        ctx: Any, g_quadratic: Tensor | None, g_log_det: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        B, R, L = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated again: what was saved must depend on the inputs
            L = cholesky(B)[0]
        inverse = torch.cholesky_inverse(L)
        g_log_det = L.new_zeros(L.shape[:-2]) if g_log_det is None else g_log_det
        d_B = g_log_det[..., None, None] * inverse
        if g_quadratic is None:
            return d_B, None
        solved = inverse @ R
        weighted = g_quadratic[..., None, None] * solved
        return d_B - weighted @ solved.mT, 2.0 * weighted


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


def conditional_moments(
    Kii: Float[Tensor, "m m"],
    factor: Factor,
    Kit: Float[Tensor, "m n"],
    mean: Float[Tensor, "m p"],
    R: Float[Tensor, "q m m"],
) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n q"]]:
    """Mean and change of variance of data rows, given Gaussian inducing values `u = L v`, `v ~ N(mean, R R^T)`.

    With `A = L^-1 Kit` they are `A^T mean` and `diag(A^T (R R^T - I) A)`: add the latter to the prior variances.

    Args:
        Kii: covariance of the inducing rows.
        factor: its factor `L`. Gradients go to `Kii` directly, which spares the factorization's own backward pass.
        Kit: covariances of inducing rows with data rows.
        mean: means of `v`, one column per output.
        R: the square root of their covariance, one per output or one for all.
    """
    given = (Kii, factor.lower, factor.inverse, Kit, mean, R)
    if torch.compiler.is_compiling():  # as in `conditional_rows`
        moments = _ConditionalMoments.forward(*given)
        return moments[0], moments[1]
    result: tuple[Tensor, ...] = _ConditionalMoments.apply(*given)  # type: ignore[no-untyped-call]
    return result[0], result[1]


def conditional_rows(
    factor: Factor, Kit: Float[Tensor, "m n"], v: Float[Tensor, "m p"]
) -> tuple[Float[Tensor, "n p"], Float[Tensor, " n"]]:
    """Mean and loss of variance of data rows given whitened inducing values: `A^T v`, `diag(A^T A)`, `A = L^-1 Kit`.

    >>> rows = conditional_rows(factor(torch.eye(2))[0], torch.tensor([[0.5], [0.0]]), torch.tensor([[2.0], [1.0]]))
    >>> rows[0].tolist(), rows[1].tolist()
    ([[1.0]], [0.25])
    """
    if factor.inverse is None:
        A = factor.solve(Kit)
        return A.mT @ v, A.square().sum(0)
    if torch.compiler.is_compiling():  # which fails on a Function inside a vmap that not all its inputs take part in
        mean, loss, _ = _ConditionalRows.forward(factor.inverse, Kit, v)
        return mean, loss
    result: tuple[Tensor, ...] = _ConditionalRows.apply(factor.inverse, Kit, v)  # type: ignore[no-untyped-call]
    return result[0], result[1]


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


def _few_rows(A: Tensor) -> bool:
    """Whether products over the data rows are cheaper than those of M x M matrices."""
    return 2 * A.shape[-1] < 3 * A.shape[-2]


class _ConditionalRows(torch.autograd.Function):
    """`conditional_rows` with a backward pass that reads and writes the M x N matrices as seldom as possible."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inverse: Tensor, Kit: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        A = inverse @ Kit  # [M, N]
        # Under a vmap that only `v` takes part in, both outputs must: the gradient of one that does not arrives summed
        # over the vmap, and would be counted once for each of its elements.
        # On a GPU the norm is one pass over A; on a CPU it takes ten times as long as the squares. The compiler fuses
        # the squares, and would differentiate the norm's square root.
        one_pass = A.is_cuda and not torch.compiler.is_compiling()
        loss = torch.linalg.vector_norm(A, dim=-2).square() if one_pass else A.square().sum(-2)
        return A.mT @ v, loss + 0.0 * v.sum(), A

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)  # the one of A would be an M x N matrix of zeros
        ctx.save_for_backward(*inputs, output[2])

    @staticmethod
    def backward(ctx: Any, g_mean: Tensor | None, g_loss: Tensor | None, _: Tensor | None) -> tuple[Tensor, ...]:
        inverse, Kit, v, A = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated again: what was saved must depend on the inputs
            A = inverse @ Kit
        # outputs that nothing was made of bring no gradient
        g_mean = A.new_zeros(A.shape[-1], v.shape[-1]) if g_mean is None else g_mean
        g_loss = A.new_zeros(A.shape[-1]) if g_loss is None else g_loss
        d_A = torch.addcmul(v @ g_mean.mT, A, 2.0 * g_loss[None, :])  # [M, N]
        return d_A @ Kit.mT, inverse.mT @ d_A, A @ g_mean


class _ConditionalMoments(torch.autograd.Function):
    """`conditional_moments` with a backward pass of its own.

    Plain autograd makes six products (or solves) of M x M with M x N matrices, and three M x M ones for the
    factorization. With many rows, `S = A diag(g) A^T` is made once and serves the gradients of both `R` and `Kii`,
    which leaves four and costs three M x M ones; with few rows those would dominate, and all six are made. Either way
    the factorization costs two.

    `torch.compile` may trace `forward` and differentiate that instead of using `backward`. It then finds the gradient
    of `L` or its inverse, and through it that of `Kii`: neither must be detached.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        Kii: Tensor, L: Tensor, inverse: Tensor | None, Kit: Tensor, mean: Tensor, R: Tensor
    ) -> tuple[Tensor, ...]:
        A = Factor(L, inverse).solve(Kit)  # [M, N]
        if _few_rows(A):
            B = R.mT @ A  # R^T A  [Q, M, N]
            T = R @ B - A  # (R R^T - I) A  [Q, M, N]
        else:
            B = R @ R.mT - torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)  # [Q, M, M]
            T = B @ A  # [Q, M, N]
        return A.mT @ mean, (A * T).sum(-2).mT, A, B, T

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        Kii, L, inverse, Kit, mean, R = inputs
        _, _, A, B, T = output
        ctx.mark_non_differentiable(A, B, T)
        ctx.save_for_backward(Kii, L, inverse, Kit, mean, R, A, B, T)

    @staticmethod
    def backward(ctx: Any, g_mean: Tensor, g_variance: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        Kii, L, inverse, Kit, mean, R, A, B, T = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated again: what was saved must depend on the inputs
            L, inverse = cholesky(Kii)[0], None
            A, B, T = _ConditionalMoments.forward(Kii, L, inverse, Kit, mean, R)[2:]
        factor = Factor(L, inverse)
        g = 2.0 * g_variance.mT[:, None, :]  # [Q, 1, N]
        d_A = mean @ g_mean.mT  # [M, N]
        for gq, Tq in zip(g.unbind(-3), T.unbind(-3), strict=True):
            d_A = torch.addcmul(d_A, gq, Tq)
        d_Kit = factor.solve_transposed(d_A)
        d_mean = A @ g_mean  # [M, P]
        if _few_rows(A):
            d_R = (g * A) @ B.mT  # [Q, M, M]
            W = d_A @ A.mT  # [M, M]
        else:
            S = (g * A) @ A.mT  # [Q, M, M], symmetric, with the factor 2 of both gradients it serves
            d_R = S @ R
            W = mean @ d_mean.mT + (B @ S).sum(-3)  # d_A A^T without another product over the data rows
        # Since d_L = -L^-T W, the backward pass of the factorization (Murray 2016) is -L^-T Phi(W) L^-1, symmetrised,
        # where Phi takes the lower triangle and halves the diagonal.
        phi = W.tril() - 0.5 * torch.diag_embed(W.diagonal(dim1=-2, dim2=-1))
        half = factor.solve_transposed(factor.solve_transposed(phi).mT)
        return -0.5 * (half + half.mT), None, None, d_Kit, d_mean, d_R
