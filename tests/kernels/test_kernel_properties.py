"""The same properties for every kernel: add a kernel to KERNELS and it is tested."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from vibayes.errors import ShapeError
from vibayes.kernels import (
    ActiveDimensions,
    ArcCosine,
    Constant,
    DeepKernel,
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
from vibayes.parameters import hyperparameters

D = 3


def ard() -> Tensor:
    return torch.tensor([0.7, 1.3, 2.1])


KERNELS: dict[str, Callable[[], Kernel]] = {
    "se": lambda: SquaredExponential(D, lengthscale=1.4, variance=0.8),
    "se_ard": lambda: SquaredExponential(D, ard=True, lengthscale=ard(), variance=1.7),
    "matern12": lambda: Matern12(D, lengthscale=1.4, variance=0.8),
    "matern32": lambda: Matern32(D, lengthscale=1.4, variance=0.8),
    "matern32_ard": lambda: Matern32(D, ard=True, lengthscale=ard()),
    "matern52": lambda: Matern52(D, lengthscale=1.4, variance=0.8),
    "rational_quadratic": lambda: RationalQuadratic(D, alpha=0.6, lengthscale=1.4, variance=0.8),
    "periodic": lambda: Periodic(D, period=2.3, lengthscale=1.4, variance=0.8),
    "periodic_ard": lambda: Periodic(D, period=2.3, ard=True, lengthscale=ard()),
    "linear": lambda: LinearKernel(D, variance=0.8),
    "linear_bias": lambda: LinearKernel(D, variance=0.8, bias=0.3),
    "polynomial": lambda: Polynomial(D, 3, variance=0.8, offset=0.4),
    "arc_cosine_0": lambda: ArcCosine(D, order=0, variance=0.8),
    "arc_cosine_1": lambda: ArcCosine(D, order=1, variance=0.8),
    "arc_cosine_0_bias": lambda: ArcCosine(D, order=0, bias=0.5),
    "arc_cosine_1_bias": lambda: ArcCosine(D, order=1, bias=0.5),
    "white": lambda: White(D, variance=0.8),
    "constant": lambda: Constant(D, variance=0.8),
    "sum": lambda: SquaredExponential(D) + LinearKernel(D) + White(D, variance=0.1),
    "product": lambda: Matern52(D, lengthscale=2.0) * ArcCosine(D) * Constant(D),
    "scaled": lambda: 2.0 * RationalQuadratic(D),
    "active": lambda: ActiveDimensions(SquaredExponential(2, ard=True), [2, 0], D),
    "deep": lambda: DeepKernel(nn.Sequential(nn.Linear(D, 2), nn.Tanh()), SquaredExponential(2)),
}
# Not differentiable where two rows coincide (or point the same way): their gradient there is a convention.
CUSP = {"matern12", "arc_cosine_0", "arc_cosine_0_bias"}


@pytest.fixture(params=KERNELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kernel(name: str) -> Kernel:
    return KERNELS[name]()


def rows(n: int, seed: int = 1, width: int = D) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def random_rotation() -> Tensor:
    return torch.linalg.qr(rows(D, seed=9))[0]


def test_shapes(kernel: Kernel) -> None:
    x, z = rows(5), rows(4, seed=2)
    assert kernel(x).shape == (5, 5)
    assert kernel(x, z).shape == (5, 4)
    assert kernel.diag(x).shape == (5,)
    assert kernel(x[:0], z).shape == (0, 4)
    assert kernel(x, z[:0]).shape == (5, 0)
    assert kernel(x).dtype == kernel(x, z).dtype == kernel.diag(x).dtype == torch.float64


def test_symmetric_to_the_last_bit(kernel: Kernel) -> None:
    K = kernel(rows(57))
    assert torch.equal(K, K.mT)


def test_positive_semidefinite(kernel: Kernel) -> None:
    x = torch.cat([rows(40), rows(5), -rows(3), torch.zeros(2, D)])  # repeated, opposite and zero rows
    eigenvalues = torch.linalg.eigvalsh(kernel(x))
    assert eigenvalues.min() > -1e-7 * eigenvalues.max()  # 1e-8 is what a cusp makes of rounding


def test_diagonal(kernel: Kernel) -> None:
    x = torch.cat([30.0 * rows(20), torch.zeros(1, D)])
    torch.testing.assert_close(kernel(x).diagonal(), kernel.diag(x), rtol=1e-13, atol=1e-17)


def test_two_sets_agree_with_one(kernel: Kernel, name: str) -> None:
    x = rows(12)
    K = kernel(x)
    expected = K[:7, 7:] if name != "white" else torch.zeros(7, 5)
    torch.testing.assert_close(kernel(x[:7], x[7:]), expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(kernel(x[7:], x[:7]), expected.mT, rtol=1e-12, atol=1e-13)


def test_float32_agrees_with_float64(kernel: Kernel) -> None:
    x, z = rows(20), rows(10, seed=2)
    exact, exact_symmetric = kernel(x, z), kernel(x)
    low = copy.deepcopy(kernel).float()
    assert low(x.float()).dtype == torch.float32
    torch.testing.assert_close(low(x.float(), z.float()).double(), exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(low(x.float()).double(), exact_symmetric, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(low.diag(x.float()).double(), kernel.diag(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_where_rows_coincide(kernel: Kernel, dtype: torch.dtype) -> None:
    kernel.to(dtype)
    for x in (
        torch.cat([rows(4), rows(2), 2 * rows(2), -rows(2), torch.zeros(2, D)]),
        torch.zeros(3, D),
        1e-20 * rows(3),
        1e4 * rows(3) + 1e6,
    ):
        x = x.to(dtype).requires_grad_()
        z = x.detach().clone().requires_grad_()
        generator = torch.Generator().manual_seed(3)
        weight = torch.randn(len(x), len(x), generator=generator, dtype=torch.float64).to(dtype)
        loss = (weight * kernel(x)).sum() + (weight * kernel(x, z)).sum() + (weight[0] * kernel.diag(x)).sum()
        parameters = list(kernel.parameters())
        gradients = torch.autograd.grad(loss, [x, z, *parameters], allow_unused=True)
        assert torch.isfinite(loss)
        for gradient in gradients:
            assert gradient is None or torch.isfinite(gradient).all()


def test_gradcheck(kernel: Kernel, name: str) -> None:
    x, z = rows(4).requires_grad_(), rows(3, seed=2).requires_grad_()
    names = [n for n, _ in kernel.named_parameters()]

    def both(x: Tensor, z: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        state = dict(zip(names, values, strict=True))
        outputs = functional_call(kernel, state, (x,)), functional_call(kernel, state, (x, z))
        return tuple(o for o in outputs if o.requires_grad)

    assert torch.autograd.gradcheck(both, (x, z, *kernel.parameters()), fast_mode=False)


def test_gradient_where_rows_coincide_matches_differences(kernel: Kernel, name: str) -> None:
    if name in CUSP:
        pytest.skip("the derivative does not exist there")
    x = torch.cat([rows(3), rows(2)])
    z = rows(2)
    jacobian = jacrev(lambda x: torch.cat([kernel(x), kernel(x, z)], 1))(x)
    step = 1e-5
    for row, column in ((0, 0), (1, 2), (3, 1), (2, 0)):
        move = torch.zeros_like(x)
        move[row, column] = step
        numerical = (kernel(x + move) - kernel(x - move)) / (2 * step)
        numerical_two = (kernel(x + move, z) - kernel(x - move, z)) / (2 * step)
        torch.testing.assert_close(
            jacobian[:, :, row, column], torch.cat([numerical, numerical_two], 1), rtol=1e-4, atol=1e-5
        )


def test_second_derivatives(kernel: Kernel) -> None:
    x, z = rows(3).requires_grad_(), rows(2, seed=2)
    if not kernel(x, z).requires_grad or kernel(x, z).grad_fn is None:
        pytest.skip("constant")
    assert torch.autograd.gradgradcheck(lambda x: kernel(x, z).sin().sum() + 0.0 * x.square().sum(), (x,))


def test_vmap_equals_loop(kernel: Kernel) -> None:
    x = torch.stack([rows(5, seed=s) for s in range(3)])
    z = torch.stack([rows(4, seed=s) for s in range(3, 6)])

    def check(batched: Tensor, loop: list[Tensor]) -> None:
        torch.testing.assert_close(batched, torch.stack(loop), rtol=1e-12, atol=1e-13)

    check(vmap(lambda a: kernel(a), randomness="error")(x), [kernel(a) for a in x])
    check(vmap(kernel.diag)(x), [kernel.diag(a) for a in x])
    check(vmap(kernel)(x, z), [kernel(a, b) for a, b in zip(x, z, strict=True)])
    check(vmap(kernel, in_dims=(0, None))(x, z[0]), [kernel(a, z[0]) for a in x])
    check(vmap(kernel, in_dims=(None, 0))(x[0], z), [kernel(x[0], b) for b in z])


def test_vmap_of_grad_and_over_parameters(kernel: Kernel) -> None:
    x = torch.stack([rows(5, seed=s) for s in range(3)])
    weight = rows(5, seed=8, width=5)

    def loss(parameters: dict[str, Tensor], a: Tensor) -> Tensor:
        cross = functional_call(kernel, parameters, (a, a[:2]))
        return (weight * functional_call(kernel, parameters, (a,))).sum() + cross.square().sum()

    single = {n: p.detach() for n, p in kernel.named_parameters()}
    stacked = {n: torch.stack([p, p + 0.1, p - 0.2]) for n, p in single.items()}
    for in_dims, parameters in (((None, 0), single), ((0, 0), stacked)):
        batched = vmap(grad(loss, argnums=(0, 1)), in_dims=in_dims)(parameters, x)
        for i in range(3):
            own = {n: p[i] if in_dims[0] == 0 else p for n, p in parameters.items()}
            expected = grad(loss, argnums=(0, 1))(own, x[i])
            torch.testing.assert_close(batched[1][i], expected[1], rtol=1e-6, atol=1e-6)
            for n in single:
                torch.testing.assert_close(batched[0][n][i], expected[0][n], rtol=1e-6, atol=1e-6)


def test_state_dict_round_trip(kernel: Kernel, name: str) -> None:
    x = rows(5)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(0.3)
    other = KERNELS[name]()
    if list(kernel.parameters()):
        assert not torch.equal(other(x), kernel(x))
    other.load_state_dict(kernel.state_dict())
    assert torch.equal(other(x), kernel(x))


def test_fixed_hyperparameters_get_no_gradient(kernel: Kernel) -> None:
    found = list(hyperparameters(kernel))
    assert found
    for _, hyperparameter in found:
        hyperparameter.fix()
    if isinstance(kernel, DeepKernel):
        kernel.network.requires_grad_(False)  # weights are no hyperparameters with names
    assert not kernel(rows(4)).requires_grad
    found[0][1].free()
    kernel(rows(4)).sum().backward()
    assert found[0][1].raw.grad is not None
    assert all(h.raw.grad is None for _, h in found[1:])


def test_invariances_are_those_of_depends_on(kernel: Kernel) -> None:
    x, z = rows(6), rows(5, seed=2)
    shift, Q = torch.tensor([0.5, -1.0, 0.3]), random_rotation()

    def same(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-10, atol=1e-10)

    rotated = same(kernel(x @ Q), kernel(x)) and same(kernel(x @ Q, z @ Q), kernel(x, z))
    shifted = same(kernel(x + shift), kernel(x)) and same(kernel(x + shift, z + shift), kernel(x, z))
    assert rotated == kernel.rotation_invariant
    if kernel.depends_on == "distance":
        assert shifted
    elif kernel.depends_on == "inner_product":
        assert not shifted


def test_wrong_width_is_refused(kernel: Kernel) -> None:
    with pytest.raises(ShapeError, match=r"expects rows of shape \[N, 3\], got \[4, 2\]"):
        kernel(torch.zeros(4, 2))
    with pytest.raises(ShapeError, match="expects rows"):
        kernel(torch.zeros(4, D), torch.zeros(4, 2))
    with pytest.raises(ShapeError, match="expects rows"):
        kernel.diag(torch.zeros(D))


def test_deepcopy_is_independent(kernel: Kernel) -> None:
    twin = copy.deepcopy(kernel)
    before = kernel(rows(4)).clone()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(kernel(rows(4)), before)
