"""Products with factors against plain ones: values, gradients once and twice, under vmap, compiled, after failures."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from vibayes.compiler import quiet_compiler
from vibayes.linalg import factor
from vibayes.operators.factor_products import factor_product, gram
from vibayes.operators.factorization import factorize

KINDS = list(itertools.product([False, True], [False, True]))


def spd(n: int, *batch: int) -> Tensor:
    root = torch.randn(*batch, n, n)
    return root @ root.mT / n + 0.5 * torch.eye(n)


def ours(K: Tensor, B: Tensor, inverse: bool, transposed: bool) -> Tensor:
    L, L_inverse, _, _, change = factorize(0.5 * (K + K.mT))
    return factor_product(L_inverse if inverse else L, change, B, inverse=inverse, transposed=transposed)


def plain(K: Tensor, B: Tensor, inverse: bool, transposed: bool) -> Tensor:
    L = torch.linalg.cholesky(0.5 * (K + K.mT))
    L = L.mT if transposed else L
    return torch.linalg.solve_triangular(L, B, upper=transposed) if inverse else L @ B


@pytest.mark.parametrize(("inverse", "transposed"), KINDS)
@pytest.mark.parametrize("batches", [((), ()), ((3,), (3,)), ((3,), ()), ((), (3,))])
def test_values_and_gradients(inverse: bool, transposed: bool, batches: tuple[tuple[int], tuple[int]]) -> None:
    K, B = spd(4, *batches[0]).requires_grad_(), torch.randn(*batches[1], 4, 2, requires_grad=True)
    torch.testing.assert_close(ours(K, B, inverse, transposed), plain(K, B, inverse, transposed))
    expected = torch.autograd.grad(plain(K, B, inverse, transposed).sin().sum(), (K, B))
    for again in (False, True):  # whether gradients will be differentiated again, which takes another way
        found = torch.autograd.grad(ours(K, B, inverse, transposed).sin().sum(), (K, B), create_graph=again)
        torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lambda K, B: ours(K, B, inverse, transposed), (K, B))
    assert torch.autograd.gradgradcheck(lambda K, B: ours(K, B, inverse, transposed), (K, B))


@pytest.mark.parametrize(("inverse", "transposed"), KINDS)
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 1)])
def test_nested_vmaps_are_loops(inverse: bool, transposed: bool, dims: tuple[int | None, int | None]) -> None:
    """Over replicas, which all take part in, and over draws, which may share either."""
    K = spd(4, 2) if dims[0] is None else spd(4, 2, 3)
    B = torch.randn(2, 4, 2) if dims[1] is None else torch.randn(2, 3, 4, 2)
    if dims[1] == 1:
        B = B.transpose(1, 2).contiguous()  # the draws' axis in the middle
    K, B = K.requires_grad_(), B.requires_grad_()

    def one(K: Tensor, B: Tensor) -> Tensor:
        return ours(K, B, inverse, transposed)

    together = torch.func.vmap(torch.func.vmap(one, in_dims=dims))(K, B)
    alone = torch.stack(
        [
            torch.stack(
                [
                    one(K[i] if dims[0] is None else K[i, j], B[i].select(dims[1], j) if dims[1] is not None else B[i])
                    for j in range(3)
                ]
            )
            for i in range(2)
        ]
    )
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(*(torch.autograd.grad(v.sin().sum(), (K, B)) for v in (together, alone)))


def test_compiled_gradients_are_eager_ones() -> None:
    K, B = spd(4, 3).requires_grad_(), torch.randn(4, 4, requires_grad=True)

    def value(K: Tensor, B: Tensor) -> Tensor:
        def one(K: Tensor) -> Tensor:
            found, _ = factor(0.5 * (K + K.mT))
            F = found.multiply_transposed(B)
            inner, _ = factor(gram(F) + torch.eye(4))
            return (found.multiply(inner.solve_transposed(inner.solve(F)))).sin().sum() + inner.log_det

        return torch.func.vmap(one)(K).sum()

    with quiet_compiler():
        eager, compiled = (torch.autograd.grad(f(K, B), (K, B)) for f in (value, torch.compile(value)))
    torch.testing.assert_close(eager, compiled)


def test_gram() -> None:
    F = torch.randn(3, 5, 4, requires_grad=True)
    torch.testing.assert_close(gram(F), F.mT @ F)
    assert torch.autograd.gradcheck(gram, F)
    assert torch.autograd.gradgradcheck(gram, F)
    torch.testing.assert_close(torch.func.vmap(gram, in_dims=1)(F), F.transpose(0, 1).mT @ F.transpose(0, 1))


@pytest.mark.parametrize(("inverse", "transposed"), KINDS)
def test_a_failure_gives_nan(inverse: bool, transposed: bool) -> None:
    K = spd(4, 2)
    K[1, 2, 2] = -1.0
    K.requires_grad_()
    X = ours(K, torch.randn(4, 2), inverse, transposed)
    assert torch.isnan(X).any((-2, -1)).tolist() == [False, True]
    (g,) = torch.autograd.grad(X.sum(), K)
    assert torch.isnan(g).any((-2, -1)).tolist() == [False, True]
    assert math.isfinite(g[0].sum())


@pytest.mark.parametrize(("inverse", "transposed"), KINDS)
def test_float32_products_with_a_float64_factor(inverse: bool, transposed: bool) -> None:
    K, B = spd(6).requires_grad_(), torch.randn(6, 2).float()
    found = factor(0.5 * (K + K.mT))[0].to(torch.float32)
    X = [found.multiply, found.multiply_transposed, found.solve, found.solve_transposed][2 * inverse + transposed](B)
    assert X.dtype == torch.float32
    (g,) = torch.autograd.grad(X.sum(), K)
    (exact,) = torch.autograd.grad(plain(K, B.double(), inverse, transposed).sum(), K)
    torch.testing.assert_close(g, exact, rtol=1e-4, atol=1e-5)


def test_the_operators_are_registered_soundly() -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    L, _, _, _, change = (t.detach() for t in factorize(spd(5, 3)))
    for B in (torch.randn(3, 5, 2), torch.randn(5, 2), torch.randn(3, 2, 5).mT):
        for kind in KINDS:
            given = (L.requires_grad_(), change.requires_grad_(), B.requires_grad_(), *kind)
            torch.library.opcheck(torch.ops.vibayes.factor_product, given, test_utils=checks)
    for F in (torch.randn(3, 5, 4), torch.randn(4, 5).mT):
        torch.library.opcheck(torch.ops.vibayes.gram, (F.requires_grad_(),), test_utils=checks)
