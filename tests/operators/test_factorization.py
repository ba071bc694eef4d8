"""Factors with their inverses against LAPACK, finite differences, and twice the digits."""

import math

import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes import linalg
from vibayes.operators import cuda_kernels
from vibayes.operators.factorization import factorize

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.cuda),
]


def spd(n: int, *batch: int, device: str = "cpu") -> Tensor:
    root = torch.randn(*batch, n, n)
    return (root @ root.mT / n + 0.1 * torch.eye(n)).to(device)


def kernel_matrix(n: int, jitter: float = 1e-6) -> Tensor:
    """As ill-conditioned as they come in deep models."""
    x = torch.linspace(0, 1, n)[:, None]
    return linalg.add_jitter(vb.SquaredExponential(1, lengthscale=0.2)(x), jitter).detach()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 7, 16, 17, 100, 128, 129, 300])
def test_factor_and_inverse(n: int, device: str) -> None:
    K = spd(n, 3, device=device)
    L, inverse, log_det, info, _ = factorize(K)
    assert info.tolist() == [0, 0, 0]
    torch.testing.assert_close(log_det, torch.logdet(K))
    eye = torch.eye(n, device=device)
    torch.testing.assert_close(L, torch.linalg.cholesky(K))
    torch.testing.assert_close(inverse @ L, eye.expand_as(K))
    assert torch.equal(L, L.tril())
    assert torch.equal(inverse, inverse.tril())


@pytest.mark.parametrize("device", DEVICES)
def test_only_the_lower_triangle_is_read(device: str) -> None:
    K = spd(40, device=device)
    torch.testing.assert_close(factorize(K.tril())[0], factorize(K)[0], rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [20, 150])
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_a_failure_is_reported_and_spares_the_others(n: int, value: float, device: str) -> None:
    K = spd(n, 3, device=device)
    K[1, n - 2, n - 2] = value
    L, inverse, log_det, info, _ = factorize(K)
    assert torch.isnan(log_det).tolist() == [False, True, False]
    assert (info != 0).tolist() == [False, True, False]
    assert torch.isnan(L[1]).all()
    assert torch.isnan(inverse[1]).all()
    torch.testing.assert_close(L[::2], torch.linalg.cholesky(K[::2]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [100, 200])
def test_float32_loses_nothing_inside(n: int, device: str) -> None:
    """A float32 matrix is factorized in float64: only its own rounding and that of the result remain."""
    K = kernel_matrix(n, 1e-4).float().to(device)
    L, inverse, _, info, _ = factorize(K)
    exact = torch.linalg.cholesky(K.double())
    assert L.dtype == torch.float32
    assert int(info) == 0
    torch.testing.assert_close(L.double(), exact, rtol=1e-6, atol=1e-7)
    identity = inverse.double() @ exact
    plain = torch.linalg.solve_triangular(torch.linalg.cholesky(K), torch.eye(n, device=device).float(), upper=False)
    eye = torch.eye(n, device=device)
    assert (identity - eye).abs().max() < 0.1 * (plain.double() @ exact - eye).abs().max()


@pytest.mark.parametrize("device", DEVICES)
def test_products_with_the_inverse_err_no_more_than_solves(device: str) -> None:
    K = kernel_matrix(100).to(device)
    B = torch.randn(100, 20, device=device)
    L, inverse, _, _, _ = factorize(K)
    residual = (L @ (inverse @ B) - B).norm()
    assert residual < 10 * (L @ linalg.solve_lower(L, B) - B).norm() + 1e-12 * B.norm()


@pytest.mark.parametrize("n", [4, 130])
def test_gradients(n: int) -> None:
    base, W, V = spd(n, 2).requires_grad_(), torch.randn(2, n, n), torch.randn(2, n, n)

    def ours(base: Tensor) -> Tensor:
        L, inverse, log_det, _, _ = factorize(0.5 * (base + base.mT))
        return (W * L).sum() + (V * inverse).sin().sum() + log_det.square().sum()

    def plain(base: Tensor) -> Tensor:
        L = torch.linalg.cholesky(0.5 * (base + base.mT))
        inverse = torch.linalg.solve_triangular(L, torch.eye(n), upper=False)
        return (W * L).sum() + (V * inverse).sin().sum() + torch.logdet(base).square().sum()

    torch.testing.assert_close(*(torch.autograd.grad(f(base), base)[0] for f in (ours, plain)))
    if n < 10:
        assert torch.autograd.gradcheck(ours, base)
        assert torch.autograd.gradgradcheck(ours, base)
        for output in range(3):  # each alone
            assert torch.autograd.gradcheck(lambda K, output=output: factorize(0.5 * (K + K.mT))[output], base)


def test_under_nested_vmap() -> None:
    K = spd(4, 2, 3).requires_grad_()
    values = torch.func.vmap(torch.func.vmap(lambda k: factorize(k)[1].sum()))(K)
    torch.testing.assert_close(values, factorize(K)[1].sum((-2, -1)))
    ours, plain = (torch.autograd.grad(v.square().sum(), K)[0] for v in (values, factorize(K)[1].sum((-2, -1))))
    torch.testing.assert_close(ours, plain)


def test_the_operator_is_registered_soundly() -> None:
    """Shapes and strides as announced, for torch.compile; also for transposed and sliced matrices."""
    K = spd(5, 3)
    for k in (K, K.mT, K[0], K[:, :3, :3], spd(140)):
        torch.library.opcheck(
            torch.ops.vibayes.factorize,
            (k.detach().requires_grad_(),),
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


def test_nothing_to_factorize() -> None:
    assert [t.shape for t in factorize(torch.zeros(3, 0, 0))] == [(3, 0, 0), (3, 0, 0), (3,), (3,), (3, 0, 0)]


@pytest.mark.cuda
def test_the_kernel_is_used() -> None:
    assert cuda_kernels.available()


def test_gradients_that_are_batched_in_one_result_only() -> None:
    root = torch.randn(4, 4)
    K = root @ root.mT + torch.eye(4)
    wanted = torch.linalg.inv(K)
    found = torch.func.jacrev(lambda K: linalg.factor(K)[0].log_det)(K)
    torch.testing.assert_close(found, wanted)

    def both(K: Tensor) -> tuple[Tensor, Tensor]:
        F, _ = linalg.factor(K)
        return F.inverse, F.log_det

    _, pull = torch.func.vjp(both, K)
    weights = torch.arange(3.0)
    mapped = torch.func.vmap(lambda w: pull((torch.ones(4, 4), w))[0])(weights)
    torch.testing.assert_close(mapped, torch.stack([pull((torch.ones(4, 4), w))[0] for w in weights]))
