"""Linear algebra against dense formulas, scipy and finite differences."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

import vibayes as vb
from vibayes import linalg


def spd(n: int, *batch: int) -> Tensor:
    root = torch.randn(*batch, n, n)
    return root @ root.mT + 0.5 * torch.eye(n)


def test_jitter_is_a_share_of_the_mean_diagonal() -> None:
    K = torch.stack([spd(3), 100 * spd(3)])
    added = linalg.add_jitter(K, 0.01) - K
    for k in range(2):
        torch.testing.assert_close(added[k], 0.01 * K[k].diagonal().mean() * torch.eye(3))
    torch.testing.assert_close(linalg.add_jitter(K, torch.tensor(0.01)) - K, added)


def test_other_dtypes_are_refused() -> None:
    linalg.check_dtype(torch.float32)
    with pytest.raises(vb.ConfigurationError, match=r"float32 or float64.*model\.double\(\)"):
        linalg.check_dtype(torch.float16)


def test_cholesky_fails_only_where_it_fails() -> None:
    K = torch.stack([spd(4), -torch.eye(4), spd(4)])
    L, info = linalg.cholesky(K)
    assert (info != 0).tolist() == [False, True, False]
    assert torch.isnan(L[1]).all()
    torch.testing.assert_close(L[0] @ L[0].mT, K[0])
    torch.testing.assert_close(L[2] @ L[2].mT, K[2])


def test_jitter_rescues_a_singular_matrix() -> None:
    K = torch.ones(3, 3)
    assert bool(linalg.cholesky(K)[1] != 0)
    L, info = linalg.cholesky(K, 1e-6)
    assert int(info) == 0
    torch.testing.assert_close(L @ L.mT, K + 1e-6 * torch.eye(3))


def test_failed_cholesky_under_vmap_spares_the_gradients_of_the_others() -> None:
    scale = torch.tensor([1.0, -1.0, 2.0], requires_grad=True)
    base = spd(3)
    values = torch.func.vmap(lambda s: linalg.logdet_factor(linalg.cholesky(s * base)[0]))(scale)
    assert torch.isnan(values).tolist() == [False, True, False]
    (gradient,) = torch.autograd.grad(values[0] + values[2], scale)
    torch.testing.assert_close(gradient[[0, 2]], torch.tensor([3.0, 1.5]))


def test_semidefinite_factor_is_the_cholesky_factor() -> None:
    K = spd(5, 2)
    torch.testing.assert_close(linalg.semidefinite_factor(K), torch.linalg.cholesky(K))
    torch.testing.assert_close(torch.func.vmap(linalg.semidefinite_factor)(K), torch.linalg.cholesky(K))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_semidefinite_factor_of_a_singular_matrix(dtype: torch.dtype) -> None:
    root = torch.randn(6, 2, dtype=dtype)
    K = root @ root.mT - 10 * torch.finfo(dtype).eps * torch.eye(6, dtype=dtype)  # below zero by rounding
    L = linalg.semidefinite_factor(K)
    assert torch.equal(L, L.tril())
    torch.testing.assert_close(L @ L.mT, K, atol=1e3 * torch.finfo(dtype).eps, rtol=0)
    assert not torch.isnan(linalg.semidefinite_factor(torch.full((3, 3), torch.nan))).any()


@pytest.mark.parametrize("n", [1, 7, 128, 129, 300])
def test_triangular_solves(n: int) -> None:
    L, B = torch.linalg.cholesky(spd(n) + n * torch.eye(n)), torch.randn(n, 3)
    for solve in (linalg.solve_lower, linalg.solve_lower_many):
        torch.testing.assert_close(L @ solve(L, B), B)
    for solve in (linalg.solve_lower_transposed, linalg.solve_lower_transposed_many):
        torch.testing.assert_close(L.mT @ solve(L, B), B)


def test_solves_of_many_columns_err_no_more_than_substitution() -> None:
    """An ill-conditioned kernel matrix, against twice the digits."""
    x = torch.linspace(0, 1, 150)[:, None]
    K = linalg.add_jitter(vb.SquaredExponential(1, lengthscale=0.2)(x), 1e-6).detach()
    exact_L = torch.linalg.cholesky(K)
    B = torch.randn(150, 20)
    exact = linalg.solve_lower(exact_L, B)
    exact_transposed = linalg.solve_lower_transposed(exact_L, B)
    L, low = exact_L.float(), B.float()

    def error(found: Tensor, reference: Tensor) -> float:
        return float((found - reference).norm() / reference.norm())

    plain = error(linalg.solve_lower(L, low), exact)
    plain_transposed = error(linalg.solve_lower_transposed(L, low), exact_transposed)
    assert error(linalg.solve_lower_many(L, low), exact) < 2 * plain
    assert error(linalg.solve_lower_transposed_many(L, low), exact_transposed) < 2 * plain_transposed


def test_log_determinant_and_normal_density() -> None:
    K = spd(4)
    L = torch.linalg.cholesky(K)
    torch.testing.assert_close(linalg.logdet_factor(L), torch.logdet(K))
    residual = torch.randn(4, 3)
    normal = scipy.stats.multivariate_normal(np.zeros(4), K.numpy())
    expected = sum(normal.logpdf(residual[:, p].numpy()) for p in range(3))
    assert math.isclose(float(linalg.log_normal(residual, L)), expected, rel_tol=1e-12)


def test_lower_factor() -> None:
    raw = torch.randn(2, 3, 3)
    factor = linalg.lower_factor(raw)
    assert torch.equal(factor, factor.tril())
    torch.testing.assert_close(factor.diagonal(dim1=1, dim2=2), raw.diagonal(dim1=1, dim2=2).exp())
    assert torch.equal(factor.tril(-1), raw.tril(-1))


@pytest.mark.parametrize("shared", [False, True])
def test_gaussian_kl(shared: bool) -> None:
    mean, R = torch.randn(4, 3), torch.randn(1 if shared else 3, 4, 4)
    log_det = torch.logdet(R @ R.mT)
    standard = MultivariateNormal(torch.zeros(4), torch.eye(4))
    expected = sum(
        kl_divergence(MultivariateNormal(mean[:, p], (R @ R.mT)[0 if shared else p]), standard) for p in range(3)
    )
    torch.testing.assert_close(linalg.gaussian_kl(mean, R, log_det), expected)


def plain_quadratic_and_log_det(B: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    return (R * torch.linalg.solve(B, R)).sum((-2, -1)), torch.logdet(B)


def test_quadratic_and_log_det() -> None:
    root = torch.randn(3, 5, 5)
    B, R = (root @ root.mT + torch.eye(5)).requires_grad_(), torch.randn(3, 5, 2, requires_grad=True)
    quadratic, log_det, info = linalg.quadratic_and_log_det(B, R)
    assert info.tolist() == [0, 0, 0]
    for ours, plain in zip((quadratic, log_det), plain_quadratic_and_log_det(B, R), strict=True):
        torch.testing.assert_close(ours, plain)

    def function(B: Tensor, R: Tensor) -> Tensor:
        quadratic, log_det, _ = linalg.quadratic_and_log_det(0.5 * (B + B.mT), R)
        return (quadratic.sin() + 0.3 * log_det * quadratic).sum()

    assert torch.autograd.gradcheck(function, (B, R))
    assert torch.autograd.gradgradcheck(function, (B, R))
    for output in range(2):  # each alone
        one = lambda B, R, output=output: linalg.quadratic_and_log_det(0.5 * (B + B.mT), R)[output]  # noqa: E731
        assert torch.autograd.gradcheck(one, (B, R))


def test_quadratic_and_log_det_under_vmaps() -> None:
    """Also where the matrix is shared, whose gradient must be counted once for each use and no more."""
    root = torch.randn(3, 4, 4)
    B, R = (root @ root.mT + torch.eye(4)).requires_grad_(), torch.randn(3, 2, 4, 1, requires_grad=True)

    def total(function: Any) -> Tensor:
        over_right_hand_sides = torch.func.vmap(lambda b, r: sum(function(b, r)[:2]), in_dims=(None, 0))
        return torch.func.vmap(over_right_hand_sides)(B, R).square().sum()

    found = [
        torch.autograd.grad(total(function), (B, R))
        for function in (linalg.quadratic_and_log_det, plain_quadratic_and_log_det)
    ]
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain)


def test_quadratic_and_log_det_of_what_is_not_definite() -> None:
    B = torch.eye(3).expand(2, 3, 3).clone()
    B[1, 2, 2] = -1.0
    quadratic, log_det, info = linalg.quadratic_and_log_det(B, torch.ones(2, 3, 1))
    assert (info != 0).tolist() == [False, True]
    assert torch.isnan(quadratic).tolist() == torch.isnan(log_det).tolist() == [False, True]
