"""Draws by precisions: against Cholesky factors and solves of torch's own, under vmap, differentiated twice."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vibayes.operators.precision_draw import precision_draw

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


def spd(n: int, *batch: int) -> Tensor:
    root = torch.randn(*batch, n, n)
    return root @ root.mT / n + 0.3 * torch.eye(n)


def plain(B: Tensor, b: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    C = torch.linalg.cholesky(B)
    half = torch.linalg.solve_triangular(C, b, upper=False) + noise
    return torch.linalg.solve_triangular(C.mT, half, upper=True), torch.logdet(B)


def both(function: Any, B: Tensor, b: Tensor, noise: Tensor) -> Tensor:
    v, log_det = function(0.5 * (B + B.mT), b, noise)[:2]
    return v.sin().sum((-2, -1)) + log_det.square()


@DEVICES
@pytest.mark.parametrize(("k", "c"), [(1, 1), (6, 1), (6, 4), (128, 2), (150, 1), (150, 3)])
def test_values_and_gradients(k: int, c: int, device: str) -> None:
    given = [t.to(device).requires_grad_() for t in (spd(k, 2), torch.randn(2, k, c), torch.randn(2, k, c))]
    v, log_det, info = precision_draw(*given)
    torch.testing.assert_close((v, log_det), plain(*given))
    assert info.tolist() == [0, 0]
    ours, theirs = (torch.autograd.grad(both(f, *given).sum(), given) for f in (precision_draw, plain))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("c", [1, 3])
def test_it_can_be_differentiated_again(c: int) -> None:
    given = [t.requires_grad_() for t in (spd(3, 2), torch.randn(2, 3, c), torch.randn(2, 3, c))]
    assert torch.autograd.gradcheck(lambda *t: both(precision_draw, *t), given)
    assert torch.autograd.gradgradcheck(lambda *t: both(precision_draw, *t), given)
    # of the gradients that are differentiated again it has only looked at the slopes
    once, again = (
        torch.autograd.grad(both(precision_draw, *given).sum(), given, create_graph=g) for g in (False, True)
    )
    torch.testing.assert_close(again, once)


def test_a_large_matrix_can_be_differentiated_again() -> None:
    given = [spd(130), torch.randn(130, 1), torch.randn(130, 1)]

    def slope(function: Any) -> Tensor:
        B, b, noise = (t.clone().requires_grad_() for t in given)
        g = torch.autograd.grad(both(function, B, b, noise), (B, b), create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in g), B)[0]  # type: ignore[arg-type]

    torch.testing.assert_close(slope(precision_draw), slope(plain))


@DEVICES
@pytest.mark.parametrize("batched", ["all", "noise", "b and noise", "B"])
def test_under_vmaps(batched: str, device: str) -> None:
    """One matrix for all draws is factorized once; gradients count every use."""
    has = {"all": (1, 1, 1), "noise": (0, 0, 1), "b and noise": (0, 1, 1), "B": (1, 0, 0)}[batched]
    sizes = [(5, 2) if of_draws else (5,) for of_draws in has]  # five models of two draws each
    given = [spd(4, *sizes[0]), torch.randn(*sizes[1], 4, 3), torch.randn(*sizes[2], 4, 3)]
    given = [t.to(device).requires_grad_() for t in given]
    dims = tuple(0 if of_draws else None for of_draws in has)

    def total(function: Any) -> Tensor:
        each = torch.func.vmap(lambda *t: both(function, *t), in_dims=dims)
        return torch.func.vmap(each)(*given).sin().sum()

    torch.testing.assert_close(total(precision_draw), total(plain))
    ours, theirs = (torch.autograd.grad(total(function), given) for function in (precision_draw, plain))
    torch.testing.assert_close(ours, theirs)


def test_moments() -> None:
    B, b = spd(3), torch.randn(3, 1)
    n = 200_000
    v = precision_draw(B, b.expand(3, n), torch.randn(3, n))[0]
    covariance = torch.linalg.inv(B)
    error = 4 * (covariance.diagonal() / n).sqrt()
    assert bool(((v.mean(1) - (covariance @ b)[:, 0]).abs() < error).all())
    spread = 4 * (covariance.square() + covariance.diagonal()[:, None] * covariance.diagonal()) / n
    assert bool(((v.cov() - covariance).square() < 4 * spread).all())


@pytest.mark.parametrize("k", [20, 150])
def test_a_failure_is_reported_and_spares_the_others(k: int) -> None:
    B = spd(k, 3)
    B[1, k - 2, k - 2] = -1.0
    v, log_det, info = precision_draw(B, torch.randn(3, k, 1), torch.randn(3, k, 1))
    assert (info != 0).tolist() == [False, True, False]
    assert v.isnan().all((-2, -1)).tolist() == [False, True, False]
    assert log_det.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("k", [4, 130])
def test_only_the_lower_triangle_is_read(k: int) -> None:
    B, b, noise = spd(k), torch.randn(k, 2), torch.randn(k, 2)
    torch.testing.assert_close(precision_draw(B.tril(), b, noise), precision_draw(B, b, noise), rtol=0, atol=0)


def test_the_operator_is_registered_soundly() -> None:
    """Shapes and strides as announced, for torch.compile; also for transposed matrices."""
    for k in (5, 130):
        B, b, noise = spd(k, 3), torch.randn(3, k, 2), torch.randn(3, 2, k).mT
        for matrix in (B, B.mT):
            torch.library.opcheck(
                torch.ops.vibayes.precision_draw,
                (matrix.detach().requires_grad_(), b.requires_grad_(), noise),
                test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
            )


def test_nothing_to_draw() -> None:
    v, log_det, info = precision_draw(torch.zeros(2, 0, 0), torch.zeros(2, 0, 3), torch.zeros(2, 0, 3))
    assert (v.shape, log_det.tolist(), info.tolist()) == ((2, 0, 3), [0.0, 0.0], [0, 0])


def test_float32_is_as_good_as_its_rounding() -> None:
    B, b, noise = spd(30, 4), torch.randn(4, 30, 1), torch.randn(4, 30, 1)
    v, log_det, _ = precision_draw(B.float(), b.float(), noise.float())
    assert v.dtype == log_det.dtype == torch.float32
    exact, exact_log_det, _ = precision_draw(B, b, noise)
    assert (v.double() - exact).abs().max() < 1e-5 * exact.abs().max()
    torch.testing.assert_close(log_det, exact_log_det.float(), rtol=1e-5, atol=1e-5)
