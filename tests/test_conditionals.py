"""Data rows given inducing values, against plain algebra, loops and finite differences."""

import pytest
import torch
from torch import Tensor

from vibayes import linalg
from vibayes.conditionals import conditional_moments, conditional_rows


def spd(n: int, *batch: int) -> Tensor:
    root = torch.randn(*batch, n, n)
    return root @ root.mT / n + 0.5 * torch.eye(n)


def moments(K: Tensor, Kit: Tensor, mean: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """Plain algebra for `conditional_moments`."""
    A = torch.linalg.solve(torch.linalg.cholesky(K), Kit)
    change = torch.einsum("mn,qmk,kn->nq", A, R @ R.mT - torch.eye(len(K)), A)
    return A.mT @ mean, change


@pytest.mark.parametrize("outputs", [(1, 1), (2, 2), (2, 1)])
def test_conditional_moments_and_their_gradients(outputs: tuple[int, int]) -> None:
    P, Q = outputs
    base, Kit, mean, R = spd(3), torch.randn(3, 4), torch.randn(3, P), torch.randn(Q, 3, 3)
    inputs = [t.requires_grad_() for t in (base, Kit, mean, R)]

    def ours(base: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        K = 0.5 * (base + base.mT)  # a kernel matrix is symmetric, and so are its changes
        return conditional_moments(K, linalg.factor(K)[0], *rest)

    for mine, plain in zip(ours(*inputs), moments(*inputs), strict=True):
        torch.testing.assert_close(mine, plain)
    assert torch.autograd.gradcheck(ours, inputs)
    assert torch.autograd.gradgradcheck(ours, inputs, fast_mode=True)  # not silently wrong when differentiated twice


def loss_of_moments(K: Tensor, Kit: Tensor, mean: Tensor, R: Tensor) -> Tensor:
    m, v = conditional_moments(K, linalg.factor(K)[0], Kit, mean, R)
    return (m.sin() * v).sum()


@pytest.mark.parametrize("columns", [2, 7])  # fewer rows than inducing ones, and more
@pytest.mark.parametrize("batched", [(0, 0, 0, 0), (None, 1, None, None), (0, 0, None, None), (None, None, 0, 0)])
def test_conditional_moments_under_vmap(batched: tuple[int | None, ...], columns: int) -> None:
    """Values and gradients are those of a loop, whichever inputs take part."""
    inputs = [spd(3, 4), torch.randn(4, 3, columns), torch.randn(4, 3, 2), torch.randn(4, 2, 3, 3)]
    inputs = [t[0] if dim is None else t.movedim(0, dim) for t, dim in zip(inputs, batched, strict=True)]
    inputs = [t.clone().requires_grad_() for t in inputs]

    def element(t: Tensor, dim: int | None, i: int) -> Tensor:
        return t if dim is None else t.select(dim, i)

    def plain(K: Tensor, Kit: Tensor, mean: Tensor, R: Tensor) -> Tensor:
        m, v = moments(K, Kit, mean, R)
        return (m.sin() * v).sum()

    each = [plain(*(element(t, dim, i) for t, dim in zip(inputs, batched, strict=True))) for i in range(4)]
    together = torch.func.vmap(loss_of_moments, in_dims=batched)(*inputs)
    torch.testing.assert_close(together, torch.stack(each))

    def symmetric(K: Tensor) -> Tensor:  # plain algebra reads the lower triangle alone
        return K + K.mT

    expected = torch.autograd.grad(torch.stack(each).sum(), inputs, retain_graph=True)
    found = torch.autograd.grad(together.sum(), inputs)
    for place, (mine, other) in enumerate(zip(found, expected, strict=True)):
        same = symmetric if place == 0 else lambda t: t
        torch.testing.assert_close(same(mine), same(other))


def test_conditional_moments_of_replicas_with_draws() -> None:
    """Two vmaps: the draws of one replica share its inducing rows, the replicas share nothing."""
    K, Kit, mean, R = spd(3, 2), torch.randn(2, 4, 3, 6), torch.randn(2, 3, 2), torch.randn(2, 2, 3, 3)
    inputs = [t.requires_grad_() for t in (K, Kit, mean, R)]
    draws = torch.func.vmap(loss_of_moments, in_dims=(None, 0, None, None))
    together = torch.func.vmap(draws)(*inputs)
    looped = torch.stack(
        [torch.stack([loss_of_moments(K[r], Kit[r, s], mean[r], R[r]) for s in range(4)]) for r in (0, 1)]
    )
    torch.testing.assert_close(together, looped)
    for mine, other in zip(
        torch.autograd.grad(together.sum(), inputs), torch.autograd.grad(looped.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_conditional_rows_and_their_gradients() -> None:
    for n in (4, 130):  # with the inverse at hand, and without
        base, Kit, v = spd(n), torch.randn(n, 5), torch.randn(n, 2)
        inputs = [t.requires_grad_() for t in (base, Kit, v)]

        def ours(base: Tensor, Kit: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return conditional_rows(linalg.factor(0.5 * (base + base.mT))[0], Kit, v)

        A = torch.linalg.solve(torch.linalg.cholesky(base), Kit)
        mean, loss = ours(*inputs)
        torch.testing.assert_close(mean, A.mT @ v)
        torch.testing.assert_close(loss, A.square().sum(0))
        if n < 10:
            assert torch.autograd.gradcheck(ours, inputs)
            assert torch.autograd.gradgradcheck(ours, inputs, fast_mode=True)


@pytest.mark.parametrize("batched", [(0, 0, 0), (None, None, 0), (0, None, None), (None, 0, 0)])
def test_conditional_rows_under_vmap(batched: tuple[int | None, ...]) -> None:
    """Gradients are those of a loop, whichever inputs take part in the vmap."""
    full = [spd(4, 3), torch.randn(3, 4, 5), torch.randn(3, 4, 2)]
    inputs = [t if b == 0 else t[0] for t, b in zip(full, batched, strict=True)]
    inputs = [t.clone().requires_grad_() for t in inputs]

    def one(K: Tensor, Kit: Tensor, v: Tensor) -> Tensor:
        mean, loss = conditional_rows(linalg.factor(K)[0], Kit, v)
        return mean.square().sum() + loss.sin().sum()

    together = torch.func.vmap(one, in_dims=batched)(*inputs).sum()
    looped = sum(
        (one(*(t[i] if b == 0 else t for t, b in zip(inputs, batched, strict=True))) for i in range(3)), torch.zeros(())
    )
    torch.testing.assert_close(together, looped)
    for ours, plain in zip(torch.autograd.grad(together, inputs), torch.autograd.grad(looped, inputs), strict=True):
        torch.testing.assert_close(ours, plain)
