"""Data rows given inducing values: against plain algebra in float64, under vmap, differentiated twice; accuracy."""

import pytest
import torch
from torch import Tensor

from vibayes import linalg
from vibayes.conditionals import conditional_rows
from vibayes.operators.data_rows import data_rows

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


def inputs(m: int, n: int, p: int, *batch: int, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """A covariance in float64, covariances with data rows and inducing values in the dtype."""
    generator = torch.Generator().manual_seed(m + n + p)
    root, Kit, v = (torch.randn(*batch, m, k, generator=generator) for k in (m, n, p))
    K = root @ root.mT / m + 0.5 * torch.eye(m)
    return [t.to(device).requires_grad_() for t in (K, Kit.to(dtype), v.to(dtype))]


def ours(K: Tensor, Kit: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    factor = linalg.factor(0.5 * (K + K.mT))[0]
    assert factor.inverse is not None
    assert factor.change is not None
    return data_rows(factor.inverse, factor.change, Kit, v)


def plain(K: Tensor, Kit: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The same by plain algebra, all in float64."""
    A = torch.linalg.solve_triangular(torch.linalg.cholesky(0.5 * (K + K.mT)), Kit.double(), upper=False)
    return A.mT @ v.double(), A.square().sum(-2)


def total(rows: tuple[Tensor, Tensor]) -> Tensor:
    mean, loss = (t.double() for t in rows)
    return mean.sin().sum() + loss.square().sum()


def assert_near(found: Tensor, wanted: Tensor, tolerance: float = 3e-6) -> None:
    """Within rounding (of float32), relative to the largest entry."""
    scale = wanted.abs().max().item()
    torch.testing.assert_close(found.double(), wanted.double(), rtol=0.0, atol=tolerance * scale)


@DEVICES
@DTYPES
@pytest.mark.parametrize(("m", "n", "p"), [(1, 1, 1), (30, 50, 4), (100, 300, 13), (20, 10, 17), (128, 70, 16)])
def test_values_and_gradients(m: int, n: int, p: int, dtype: torch.dtype, device: str) -> None:
    given = inputs(m, n, p, 2, 3, device=device, dtype=dtype)
    for found, wanted in zip(_each(given), plain(*given), strict=True):
        assert found.dtype == dtype
        assert_near(found, wanted, 3e-6 if dtype == torch.float32 else 1e-13)
    mine, theirs = (torch.autograd.grad(total(rows), given) for rows in (_each(given), plain(*given)))
    for found, wanted in zip(mine, theirs, strict=True):
        assert_near(found, wanted, 1e-5 if dtype == torch.float32 else 1e-12)


def _each(given: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Under two vmaps, as models are."""
    return torch.func.vmap(torch.func.vmap(ours))(*given)


@DEVICES
def test_inducing_values_may_have_draws_of_their_own(device: str) -> None:
    """As in a first layer, whose rows are the same in every draw."""
    K, Kit, v = inputs(20, 40, 3, 4, device=device)
    given = [K[0].detach().requires_grad_(), Kit[0].detach().requires_grad_(), v]
    rows = torch.func.vmap(ours, (None, None, 0))(*given)
    wanted = plain(*given)
    assert_near(rows[0], wanted[0])
    assert_near(rows[1], wanted[1].expand(4, -1))
    repeated = wanted[0], wanted[1].expand(4, -1)
    for mine, theirs in zip(
        torch.autograd.grad(total(rows), given), torch.autograd.grad(total(repeated), given), strict=True
    ):
        assert_near(mine, theirs, 1e-5)


@DEVICES
def test_differentiated_twice(device: str) -> None:
    given = inputs(6, 5, 2, device=device)

    def curvature(rows: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(total(rows), given, create_graph=True)
        return torch.autograd.grad(sum(g.double().square().sum() for g in first), given)

    for mine, theirs in zip(curvature(ours(*given)), curvature(plain(*given)), strict=True):
        assert_near(mine, theirs, 1e-5)


@DEVICES
def test_variances_of_rows_on_top_of_inducing_rows(device: str) -> None:
    """They are the jitter; a product with the inverse in float32 errs by ten times as much and more."""
    x = torch.linspace(-2.0, 2.0, 100)[:, None]
    K = torch.exp(-0.5 * torch.cdist(x, x).square()).to(device)
    factor, _ = linalg.factor(K, 1e-6)
    _, loss = conditional_rows(factor, K.float(), torch.zeros(100, 1, dtype=torch.float32, device=device))
    exact = plain(linalg.add_jitter(K, 1e-6), K, torch.zeros(100, 1, device=device))[1]
    assert (loss.double() - exact).abs().max() < 1e-6
    rounded = factor.to(torch.float32).solve(K.float()).square().sum(-2)
    assert (rounded.double() - exact).abs().max() > 1e-5
