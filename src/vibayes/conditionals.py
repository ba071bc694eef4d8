"""Data rows given inducing values: the two products with `A = L^-1 Kit` that GP layers are made of.

Both have backward passes of their own, which read and write the M x N matrices as seldom as possible. Products with few
columns are written as those of their transposes, with few rows: a CPU takes two thirds of the time for them.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.linalg import Factor, cholesky
from vibayes.operators.data_rows import data_rows

__all__ = ["conditional_moments", "conditional_rows"]


def conditional_moments(
    Kii: Float[Tensor, "m m"],
    factor: Factor,
    Kit: Float[Tensor, "m n"],
    mean: Float[Tensor, "m p"],
    R: Float[Tensor, "q m m"],
) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n q"]]:
    """Mean and change of variance of data rows, given Gaussian inducing values `u = L v`, `v ~ N(mean, R R^T)`.

    With `A = L^-1 Kit` they are `A^T mean` and `diag(A^T (R R^T - I) A)`: add the latter to the prior variances.
    `A` is made in the dtype of `Kii`, float64 in models of float32, too (docs/decisions/jitter.md).

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

    >>> independent = Factor(torch.eye(2), torch.eye(2))
    >>> mean, loss = conditional_rows(independent, torch.tensor([[0.5], [0.0]]), torch.tensor([[2.0], [1.0]]))
    >>> mean.tolist(), loss.tolist()
    ([[1.0]], [0.25])
    """
    # On a CPU, in float64, a compiled step takes 6 % less without the operator: the compiler fuses what follows.
    if (Kit.is_cuda or Kit.dtype == torch.float32) and factor.inverse is not None and factor.change is not None:
        return data_rows(factor.inverse, factor.change, Kit, v)
    A = factor.solve(Kit.to(factor.lower.dtype)).to(Kit.dtype)  # [M, N]
    if torch.compiler.is_compiling():  # which fails on a Function inside a vmap that not all its inputs take part in
        return _ConditionalRows.forward(A, v)
    result: tuple[Tensor, Tensor] = _ConditionalRows.apply(A, v)  # type: ignore[no-untyped-call]
    return result


def _few_rows(A: Tensor) -> bool:
    """Whether products over the data rows are cheaper than those of M x M matrices."""
    return 2 * A.shape[-1] < 3 * A.shape[-2]


class _ConditionalRows(torch.autograd.Function):
    """`conditional_rows` with a backward pass that reads and writes the M x N matrices as seldom as possible."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        # Under a vmap that only `v` takes part in, both outputs must: the gradient of one that does not arrives summed
        # over the vmap, and would be counted once for each of its elements.
        return (v.mT @ A).mT, A.square().sum(-2) + 0.0 * v.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g_mean: Tensor, g_loss: Tensor) -> tuple[Tensor, Tensor]:
        A, v = ctx.saved_tensors
        return torch.addcmul(v @ g_mean.mT, A, 2.0 * g_loss[None, :]), (g_mean.mT @ A.mT).mT


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
        A = Factor(L, inverse).solve(Kit.to(L.dtype)).to(Kit.dtype)  # [M, N]
        if _few_rows(A):
            B = R.mT @ A  # R^T A  [Q, M, N]
            T = R @ B - A  # (R R^T - I) A  [Q, M, N]
        else:
            B = R @ R.mT - torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)  # [Q, M, M]
            T = B @ A  # [Q, M, N]
        return (mean.mT @ A).mT, (A * T).sum(-2).mT, A, B, T

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
        exact = Factor(L, inverse)
        g = 2.0 * g_variance.mT[:, None, :]  # [Q, 1, N]
        d_A = mean @ g_mean.mT  # [M, N]
        for gq, Tq in zip(g.unbind(-3), T.unbind(-3), strict=True):
            d_A = torch.addcmul(d_A, gq, Tq)
        d_Kit = exact.to(A.dtype).solve_transposed(d_A)
        d_mean = (g_mean.mT @ A.mT).mT  # [M, P]
        if _few_rows(A):
            d_R = (g * A) @ B.mT  # [Q, M, M]
            W = d_A @ A.mT  # [M, M]
        else:
            S = (g * A) @ A.mT  # [Q, M, M], symmetric, with the factor 2 of both gradients it serves
            d_R = S @ R
            W = mean @ d_mean.mT + (B @ S).sum(-3)  # d_A A^T without another product over the data rows
        # Since d_L = -L^-T W, the backward pass of the factorization (Murray 2016) is -L^-T Phi(W) L^-1, symmetrised,
        # where Phi takes the lower triangle and halves the diagonal.
        phi = (W.tril() - 0.5 * torch.diag_embed(W.diagonal(dim1=-2, dim2=-1))).to(L.dtype)
        half = exact.solve_transposed(exact.solve_transposed(phi).mT)
        return -0.5 * (half + half.mT), None, None, d_Kit, d_mean, d_R
