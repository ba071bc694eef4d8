"""Values against formulas written differently, scikit-learn, numerical integration and Monte Carlo."""

import math
import warnings

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from vibayes.kernels import (
    ArcCosine,
    Constant,
    Kernel,
    LinearKernel,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    SquaredExponential,
    White,
)

X = np.random.default_rng(0).normal(size=(7, 3))
Z = np.random.default_rng(1).normal(size=(5, 3))
LENGTHSCALES = np.array([0.7, 1.3, 2.1])


def close(kernel: Kernel, expected: NDArray[np.float64], x: NDArray[np.float64] = X, z=Z, tol=1e-12) -> None:
    got = kernel(torch.tensor(x), torch.tensor(z)).detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=tol, atol=tol)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SquaredExponential, sk.RBF),
        (Matern12, lambda length_scale: sk.Matern(length_scale, nu=0.5)),
        (Matern32, lambda length_scale: sk.Matern(length_scale, nu=1.5)),
        (Matern52, lambda length_scale: sk.Matern(length_scale, nu=2.5)),
    ],
)
def test_against_sklearn(ours, theirs) -> None:
    close(ours(3, lengthscale=0.6, variance=1.9), 1.9 * theirs(length_scale=0.6)(X, Z))
    close(ours(3, ard=True, lengthscale=torch.tensor(LENGTHSCALES)), theirs(length_scale=LENGTHSCALES)(X, Z))


def test_others_against_sklearn() -> None:
    close(RationalQuadratic(3, alpha=0.4, lengthscale=0.6), sk.RationalQuadratic(0.6, 0.4)(X, Z))
    one, two = X[:, :1], Z[:, :1]
    expected = sk.ExpSineSquared(length_scale=0.6, periodicity=1.7)(one, two)
    close(Periodic(1, lengthscale=0.6, period=1.7), expected, one, two)
    close(LinearKernel(3, variance=3.0, bias=0.25), sk.DotProduct(sigma_0=0.5)(X, Z))
    close(Constant(3, variance=0.7), sk.ConstantKernel(0.7)(X, Z))
    white = White(3, variance=0.3)
    np.testing.assert_allclose(white(torch.tensor(X)).detach().numpy(), sk.WhiteKernel(0.3)(X), rtol=1e-14)
    close(white, sk.WhiteKernel(0.3)(X, X[:4]), X, X[:4])


def test_against_loops() -> None:
    periodic, polynomial = np.empty((7, 5)), np.empty((7, 5))
    quadratic = np.empty((7, 5))
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            sines = sum(
                math.sin(math.pi * (a - b) / 1.7) ** 2 / l**2 for a, b, l in zip(x, z, LENGTHSCALES, strict=True)
            )
            periodic[i, j] = 0.9 * math.exp(-2 * sines)
            polynomial[i, j] = 0.9 * (sum(a * b for a, b in zip(x, z, strict=True)) / 3 + 0.4) ** 3
            r2 = sum(((a - b) / l) ** 2 for a, b, l in zip(x, z, LENGTHSCALES, strict=True))
            quadratic[i, j] = 0.9 * (1 + r2 / 2.6) ** -1.3
    scales = torch.tensor(LENGTHSCALES)
    close(Periodic(3, period=1.7, ard=True, lengthscale=scales, variance=0.9), periodic)
    close(Polynomial(3, 3, variance=0.9, offset=0.4), polynomial)
    close(RationalQuadratic(3, alpha=1.3, ard=True, lengthscale=scales, variance=0.9), quadratic)


def test_rational_quadratic_becomes_squared_exponential() -> None:
    expected = SquaredExponential(3)(torch.tensor(X), torch.tensor(Z)).detach().numpy()
    close(RationalQuadratic(3, alpha=1e7), expected, tol=1e-5)


@pytest.mark.parametrize("kernel_class", [SquaredExponential, Matern12, Matern32, Matern52, RationalQuadratic])
@pytest.mark.parametrize("offset", [1e6, -1e8])
def test_large_offsets_lose_no_digits(kernel_class, offset: float) -> None:
    grid = torch.arange(20.0)[:, None].expand(20, 2).contiguous()
    kernel = kernel_class(2, lengthscale=2.0)
    torch.testing.assert_close(kernel(grid + offset), kernel(grid), rtol=0, atol=1e-13)
    torch.testing.assert_close(kernel(grid + offset, grid[:7] + offset + 0.5), kernel(grid, grid[:7] + 0.5))


def test_periodic_at_large_offsets() -> None:
    grid = torch.arange(20.0)[:, None] / 8
    kernel = Periodic(1, period=1.5)
    torch.testing.assert_close(kernel(grid + 2.0**24), kernel(grid), rtol=0, atol=1e-13)


@pytest.mark.parametrize("kernel_class", [SquaredExponential, Matern12, Matern32, Matern52, RationalQuadratic])
def test_distance_of_a_row_with_itself_is_zero(kernel_class) -> None:
    for dtype in (torch.float64, torch.float32):
        kernel = kernel_class(9, lengthscale=0.01).to(dtype)
        x = torch.randn(100, 9).to(dtype)
        assert torch.equal(kernel(x).diagonal(), torch.ones(100, dtype=dtype))


@pytest.mark.parametrize("kernel_class", [Matern12, Matern32, Matern52, RationalQuadratic])
def test_nearly_equal_rows_of_two_sets(kernel_class) -> None:
    x = torch.randn(50, 4)
    value = kernel_class(4)(x, x.clone()).diagonal()
    torch.testing.assert_close(value, torch.ones(50), rtol=0, atol=2e-7)
    assert (value <= 1.0).all()


def by_integration(a: Tensor, b: Tensor, order: int) -> float:
    """2 E[phi(w.a) phi(w.b)], w ~ N(0, I/2) in the plane: radius in closed form, angle by quadrature."""

    def phi(t: float) -> float:
        return float(t > 0) if order == 0 else max(t, 0.0)

    (a1, a2), (b1, b2) = a.tolist(), b.tolist()

    def integrand(angle: float) -> float:
        c, s = math.cos(angle), math.sin(angle)
        return phi(a1 * c + a2 * s) * phi(b1 * c + b2 * s)

    kinks = sorted(
        (math.atan2(y, x) + quarter) % (2 * math.pi)
        for x, y in ((a1, a2), (b1, b2))
        for quarter in (math.pi / 2, -math.pi / 2)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrate.IntegrationWarning)
        value, _ = integrate.quad(integrand, 0, 2 * math.pi, points=kinks, limit=200, epsabs=1e-11)
    radius = 1.0 if order == 0 else 2.0 / 2.0  # E[r^2] of two weights of variance 1/2
    return 2.0 * radius * value / (2 * math.pi)


@pytest.mark.parametrize("order", [0, 1])
def test_arc_cosine_by_integration(order: int) -> None:
    x, z = torch.randn(4, 2), torch.randn(3, 2)
    z[0] = x[0] + 1e-3
    z[1] = -x[1]
    K = ArcCosine(2, order)(x, z)
    expected = torch.tensor([[by_integration(a, b, order) for b in z] for a in x])
    torch.testing.assert_close(K, expected, rtol=0, atol=3e-8)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("bias", [None, 0.7])
def test_arc_cosine_by_monte_carlo(order: int, bias: float | None) -> None:
    x, z, n = torch.randn(4, 5), torch.randn(3, 5), 400_000
    w = torch.randn(5, n) / math.sqrt(5)
    constant = 0.0 if bias is None else math.sqrt(bias) * torch.randn(n)
    f, g = x @ w + constant, z @ w + constant
    f, g = ((f > 0).double(), (g > 0).double()) if order == 0 else (f.relu(), g.relu())
    products = 2 * 1.3 * f[:, None] * g[None]
    stderr = products.std(-1) / math.sqrt(n)
    error = ArcCosine(5, order, bias=bias, variance=1.3)(x, z) - products.mean(-1)
    assert (error.abs() < 5 * stderr).all()


def test_arc_cosine_diagonal_is_the_documented_one() -> None:
    x = torch.randn(6, 5)
    torch.testing.assert_close(ArcCosine(5, 1, variance=1.3)(x).diagonal(), 1.3 * x.square().sum(1) / 5)
    torch.testing.assert_close(ArcCosine(5, 0, variance=1.3)(x).diagonal(), torch.full((6,), 1.3))


@pytest.mark.parametrize("order", [0, 1])
def test_arc_cosine_near_coincidence(order: int) -> None:
    """Rows at a known small angle, against the expansion of the formula for small angles."""
    for angle in (1e-2, 1e-4, 1e-6, 1e-8, 0.0):
        x, z = torch.tensor([[2.0, 0.0]]), torch.tensor([[2 * math.cos(angle), 2 * math.sin(angle)]])
        value = ArcCosine(2, order)(x, z).item()
        if order == 0:
            assert value == pytest.approx(1 - angle / math.pi, abs=2e-8)
        else:
            J = math.sin(angle) + (math.pi - angle) * math.cos(angle)
            assert value == pytest.approx(2 * J / math.pi, abs=1e-12)


def test_arc_cosine_zero_row() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    step, relu = ArcCosine(2, 0), ArcCosine(2, 1)
    torch.testing.assert_close(step(x), torch.tensor([[0.5, 0.5], [0.5, 1.0]]))
    torch.testing.assert_close(relu(x), torch.tensor([[0.0, 0.0], [0.0, 2.5]]), rtol=1e-13, atol=1e-17)
    (gradient,) = torch.autograd.grad(step(x)[0, 1], x)
    assert torch.equal(gradient, torch.zeros_like(x))
    (gradient,) = torch.autograd.grad(relu(x)[0, 1], x)  # relu'(0) = 1/2: z / (2 in_features)
    torch.testing.assert_close(gradient[0], x.detach()[1] / 4)


def test_arc_cosine_1_gradient_at_coincidence() -> None:
    """dk/dz at z = x is x / in_features for the relu kernel, which is smooth enough there."""
    x = torch.randn(5, 4)
    z = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ArcCosine(4, 1)(x, z).diagonal().sum(), z)
    torch.testing.assert_close(gradient, x / 4, rtol=1e-6, atol=1e-6)
