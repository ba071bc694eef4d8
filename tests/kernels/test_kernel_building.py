"""How kernels are put together: arguments, combinations, errors."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import LogNormal

import vibayes as vb
from vibayes import kernels
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.kernels import (
    ActiveDimensions,
    ArcCosine,
    Constant,
    LinearKernel,
    Matern32,
    Periodic,
    Polynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
    White,
)
from vibayes.parameters import Positive, hyperparameters, log_prior


def test_all_names_are_exported() -> None:
    assert all(hasattr(kernels, name) for name in kernels.__all__)


def test_whole_numbers_of_numpy_and_torch() -> None:
    three, chosen = np.int64(3), np.flatnonzero([True, False, True])
    x = torch.randn(4, 3)
    expected = ActiveDimensions(SquaredExponential(2), [0, 2], 3) + Polynomial(3, 2)
    for columns in (chosen, torch.from_numpy(chosen), range(0, 3, 2)):
        kernel = ActiveDimensions(SquaredExponential(np.int64(2)), columns, three) + Polynomial(three, np.int64(2))
        torch.testing.assert_close(kernel(x), expected(x), rtol=0, atol=0)
    assert vb.SGPR(SquaredExponential(three), vb.Gaussian(), np.int64(5)).inducing.shape == (5, 3)
    assert vb.LinearMean(three, np.int64(1))(x).shape == (4, 1)
    with pytest.raises(ConfigurationError, match="from 0 to 2"):
        ActiveDimensions(SquaredExponential(2), np.array([True, False]), 3)


def test_arguments_become_positive_modules() -> None:
    shared = Positive(0.3, prior=LogNormal(0.0, 1.0))
    kernel = RationalQuadratic(2, lengthscale=shared, alpha=torch.tensor(2.0), variance=3)
    assert kernel.lengthscale is shared
    assert dict(hyperparameters(kernel)).keys() == {"lengthscale", "variance", "alpha"}
    assert kernel.variance.value.item() == pytest.approx(3.0)
    assert log_prior(kernel) == shared.log_prior()
    kernel.lengthscale.fix(0.5)
    assert kernel.lengthscale.value.item() == pytest.approx(0.5)


def test_lengthscale_shapes() -> None:
    assert SquaredExponential(3).lengthscale.value.shape == ()
    assert SquaredExponential(3, ard=True, lengthscale=0.5).lengthscale.value.tolist() == [0.5] * 3
    with pytest.raises(ShapeError, match="ard=True"):
        SquaredExponential(3, lengthscale=torch.ones(3))
    with pytest.raises(ShapeError, match="shape"):
        SquaredExponential(3, ard=True, lengthscale=torch.ones(2))
    with pytest.raises(ConfigurationError, match="positive"):
        SquaredExponential(3, lengthscale=-1.0)


@pytest.mark.parametrize("error", [ConfigurationError, TypeError])
def test_unknown_argument(error: type[Exception]) -> None:
    expected = (
        r"SquaredExponential has no argument 'lengthscales'. Did you mean lengthscale\? "
        r"Its arguments are in_features, ard, lengthscale, variance\."
    )
    with pytest.raises(error, match=expected):
        SquaredExponential(1, lengthscales=2.0)  # type: ignore[call-arg]


def test_unknown_argument_without_a_near_one() -> None:
    with pytest.raises(ConfigurationError, match=r"no argument 'zzz'\. Its arguments are in_features, period"):
        Periodic(1, zzz=2.0)  # type: ignore[call-arg]


@pytest.mark.parametrize("width", [0, -1, 1.5, True, "3"])
def test_bad_widths(width: object) -> None:
    with pytest.raises(ConfigurationError, match="in_features"):
        SquaredExponential(width)  # type: ignore[arg-type]


def test_bad_orders_and_degrees() -> None:
    with pytest.raises(ConfigurationError, match="order must be 0"):
        ArcCosine(2, order=2)
    for degree in (0, 1.5):
        with pytest.raises(ConfigurationError, match="degree"):
            Polynomial(2, degree)  # type: ignore[arg-type]


def test_operators_flatten() -> None:
    a, b, c = SquaredExponential(2), LinearKernel(2), White(2)
    total = a + b + c
    assert isinstance(total, Sum)
    assert total.kernels == (a, b, c)
    product = a * (b * c)
    assert isinstance(product, Product)
    assert product.kernels == (a, b, c)
    assert (a * b + c).kernels[0].kernels == (a, b)  # type: ignore[attr-defined]
    x = torch.randn(4, 2)
    torch.testing.assert_close(total(x), a(x) + b(x) + c(x))
    torch.testing.assert_close(product(x), a(x) * b(x) * c(x))
    torch.testing.assert_close(product.diag(x), a.diag(x) * b.diag(x) * c.diag(x))


def test_scaling() -> None:
    kernel = 2.0 * LinearKernel(2)
    assert isinstance(kernel, Scaled)
    x = torch.randn(4, 2)
    torch.testing.assert_close(kernel(x), 2.0 * kernel.kernel(x))
    torch.testing.assert_close((LinearKernel(2) * 3)(x), 3.0 * LinearKernel(2)(x))
    assert kernel.variance.raw.requires_grad
    with pytest.raises(ConfigurationError, match="positive"):
        -1.0 * LinearKernel(2)
    with pytest.raises(ConfigurationError, match="multiplied by a number"):
        LinearKernel(2) * "two"  # type: ignore[operator]


def test_sums_of_lists() -> None:
    a, b = SquaredExponential(1), LinearKernel(1)
    total = sum([a, b])
    assert isinstance(total, Sum)
    assert total.kernels == (a, b)
    assert sum([a]) is a
    with pytest.raises(TypeError):
        1 + a  # type: ignore[operator]


@pytest.mark.parametrize("number", [np.float32(2), np.float64(2), np.int64(2)])
def test_numbers_of_numpy_scale(number: float) -> None:
    for kernel in (LinearKernel(1), LinearKernel(1) + White(1)):
        for scaled in (kernel * number, number * kernel):
            assert isinstance(scaled, Scaled)
            assert scaled.variance.value.item() == pytest.approx(2.0)
    with pytest.raises(ConfigurationError, match="multiplied by a number"):
        np.ones(2) * LinearKernel(1)  # type: ignore[operator]


@pytest.mark.parametrize("kernel", [Constant(1), White(1), 2.0 * Constant(1), SquaredExponential(1)])
def test_float64_rows_have_float64_covariances(kernel: vb.Kernel) -> None:
    x = torch.randn(3, 1)
    kernel = kernel.float()
    assert kernel(x).dtype == kernel(x, x).dtype == kernel.diag(x).dtype == torch.float64


def test_a_kernel_in_two_places_is_shared() -> None:
    a = SquaredExponential(1)
    both = Sum(a, Product(a, LinearKernel(1)))
    assert len(list(both.parameters())) == 3


def test_bad_combinations() -> None:
    with pytest.raises(ConfigurationError, match=r"same rows, got in_features \[1, 2\]"):
        SquaredExponential(1) + SquaredExponential(2)
    with pytest.raises(ConfigurationError, match=r"same rows"):
        SquaredExponential(1) * SquaredExponential(2)
    with pytest.raises(ConfigurationError, match=r"Sum combines kernels, got 1\.0"):
        SquaredExponential(1) + 1.0  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match="at least one"):
        Sum()


def test_depends_on() -> None:
    distance, inner, inputs = Matern32(2), LinearKernel(2), SquaredExponential(2, ard=True)
    assert (distance + White(2) + Constant(2)).depends_on == "distance"
    assert (inner * inner).depends_on == "inner_product"
    assert (inner + White(2)).depends_on == "inner_product"
    assert (distance * inner).depends_on == "inner_product"
    assert (distance + inputs).depends_on == "inputs"
    assert (2.0 * (inner + inputs)).depends_on == "inputs"
    assert (2.0 * distance).depends_on == "distance"
    assert Periodic(2).depends_on == "inputs"
    assert ActiveDimensions(distance, [1, 0], 2).depends_on == "distance"
    assert ActiveDimensions(distance, [1, 0], 3).depends_on == "inputs"


def test_active_dimensions() -> None:
    inner = SquaredExponential(2, ard=True, lengthscale=torch.tensor([0.5, 2.0]))
    kernel = ActiveDimensions(inner, (2, 0), in_features=3)
    x, z = torch.randn(4, 3), torch.randn(5, 3)
    torch.testing.assert_close(kernel(x, z), inner(x[:, [2, 0]], z[:, [2, 0]]))
    assert list(kernel.state_dict()) == ["kernel.lengthscale.raw", "kernel.variance.raw"]
    for dimensions, message in (
        ([0, -1], "from 0 to 2"),
        ([0, 3], "from 0 to 2"),
        ([0, 1.0], "whole numbers"),
        ([1, 1], "must differ"),
        ([0], "in_features=2, but 1 dimensions"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            ActiveDimensions(inner, dimensions, in_features=3)  # type: ignore[arg-type]


def test_white_sees_rows_and_not_locations() -> None:
    kernel = White(2, variance=0.3)
    x = torch.zeros(3, 2)
    torch.testing.assert_close(kernel(x), 0.3 * torch.eye(3))
    assert torch.equal(kernel(x, x), torch.zeros(3, 3))


def test_printing() -> None:
    assert "Positive(0.3)" in repr(SquaredExponential(2, lengthscale=0.3))
    assert "dimensions=[1]" in repr(ActiveDimensions(LinearKernel(1), [1], 2))


def test_a_kernel_cannot_hide_a_method() -> None:
    kernel = kernels.SquaredExponential(1)
    with pytest.raises(ConfigurationError, match="cannot have an attribute 'features'"):
        kernel.features = torch.nn.Linear(1, 1)  # type: ignore[assignment]


class Projected(vb.Kernel):
    """Somebody's own kernel, with a matrix product that takes one dtype only."""

    def __init__(self) -> None:
        super().__init__(3)
        self.weight = nn.Parameter(torch.tensor([[1.0, 0.5], [-0.3, 0.7], [0.2, -1.1]]))

    def _matrix(self, x: Tensor, z: Tensor | None) -> Tensor:
        a = x @ self.weight
        b = a if z is None else z @ self.weight
        return (-0.5 * (a[:, None] - b[None]).square().sum(-1)).exp()

    def _diag(self, x: Tensor) -> Tensor:
        return torch.ones_like(x[:, 0])


@pytest.mark.parametrize("own", [Projected, lambda: Projected() + vb.SquaredExponential(3, ard=True)])
def test_own_kernels_take_float64_rows_in_models_of_float32(own: Callable[[], vb.Kernel]) -> None:
    kernel = own()
    x = torch.randn(20, 3).float()
    expected = kernel(x.double())
    found = kernel.float()(x.double())
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), [next(iter(kernel.parameters()))])
    assert gradient.dtype == torch.float32
    assert bool((gradient != 0).any())
    torch.set_default_dtype(torch.float32)
    model = vb.Model(vb.GP(1, kernel=own()), vb.Gaussian(0.1), inducing=x[:8])
    history = vb.fit(model, (x, x[:, 0]), steps=5, lr=0.05, log_every=1, progress=False)
    assert all(math.isfinite(value) for value in history.elbo)
