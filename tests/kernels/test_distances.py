"""Exponentials of squared distances against the plain formula, finite differences, and matrix products."""

import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes.kernels.distances import exponential, squares

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.cuda),
]


def plain(x: Tensor, z: Tensor, offset: Tensor) -> Tensor:
    return torch.exp(offset[..., None, None] - 0.5 * torch.cdist(x, z).square())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (16, 256, 4), (17, 257, 13), (100, 455, 32), (40, 3, 2)])
def test_values(n: int, m: int, d: int, device: str) -> None:
    x, z = torch.randn(3, n, d, device=device), torch.randn(3, m, d, device=device)
    offset = torch.randn(3, device=device)
    torch.testing.assert_close(exponential(x, z, offset), plain(x, z, offset))
    torch.testing.assert_close(exponential(x, None, offset), plain(x, x, offset))


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e2), (torch.float32, 1e5), (torch.float64, 1e8)])
def test_no_covariance_exceeds_the_variance(dtype: torch.dtype, scale: float) -> None:
    """Rounding makes small distances of large numbers negative."""
    x = (scale * torch.randn(100, 3)).to(dtype)
    K = exponential(x, x[:20].clone(), torch.zeros((), dtype=dtype))
    assert bool((K <= 1.0).all())


def test_squares() -> None:
    x, z = torch.randn(2, 5, 3), torch.randn(2, 4, 3)
    torch.testing.assert_close(squares(x, z), torch.cdist(x, z).square())
    among = squares(x, None)
    torch.testing.assert_close(among, torch.cdist(x, x).square())
    assert torch.equal(among, among.mT)
    assert bool((among.diagonal(dim1=-2, dim2=-1) == 0.0).all())


@pytest.mark.parametrize("device", DEVICES)
def test_rows_among_themselves_are_symmetric_and_exact(device: str) -> None:
    x = 1e3 + torch.randn(50, 5, device=device).float()
    K = exponential(x, None, torch.zeros((), device=device).float())
    assert torch.equal(K, K.mT)
    assert torch.equal(K.diagonal(), torch.ones(50, device=device).float())


@pytest.mark.parametrize("device", DEVICES)
def test_gradients(device: str) -> None:
    x, z = torch.randn(2, 5, 3, device=device), torch.randn(2, 4, 3, device=device)
    inputs = [part.requires_grad_() for part in (x, z, torch.randn(2, device=device))]
    assert torch.autograd.gradcheck(exponential, inputs)
    assert torch.autograd.gradgradcheck(exponential, inputs)
    among = [inputs[0], inputs[2]]
    assert torch.autograd.gradcheck(lambda x, offset: exponential(x, None, offset), among)
    assert torch.autograd.gradgradcheck(lambda x, offset: exponential(x, None, offset), among)


@pytest.mark.parametrize("device", DEVICES)
def test_torch_func(device: str) -> None:
    x, z = torch.randn(3, 4, 2, device=device), torch.randn(5, 2, device=device)
    offset = torch.tensor(0.3, device=device)

    def total(x: Tensor, z: Tensor) -> Tensor:
        return exponential(x, z, offset).square().sum() + exponential(x, None, offset).square().sum()

    together = torch.func.vmap(torch.func.grad(total), (0, None))(x, z)
    for rows, found in zip(x, together, strict=True):
        rows = rows.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(total(rows, z), rows)
        torch.testing.assert_close(found, wanted)


def test_compiled() -> None:
    """The gradient of the operator is that of the function that stands for it elsewhere."""
    x, z, offset = (part.requires_grad_() for part in (torch.randn(4, 2), torch.randn(3, 2), torch.tensor(0.1)))

    def total(x: Tensor, z: Tensor, offset: Tensor) -> Tensor:
        return exponential(x, z, offset).square().sum() + exponential(x, None, offset).square().sum()

    made = torch.compile(total, backend="aot_eager")
    found = torch.autograd.grad(made(x, z, offset), [x, z, offset])
    for given, wanted in zip(found, torch.autograd.grad(total(x, z, offset), [x, z, offset]), strict=True):
        torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (None, 0, None), (1, None, 0), (0, None, None), (None, None, 0)])
def test_vmap(in_dims: tuple[int | None, ...], device: str) -> None:
    shapes = [(4, 2), (6, 2), ()]
    given = [
        torch.randn([*s[: dim or 0], *([] if dim is None else [3]), *s[dim or 0 :]], device=device)
        for s, dim in zip(shapes, in_dims, strict=True)
    ]
    together = torch.func.vmap(exponential, in_dims)(*given)
    for k in range(3):
        one = [part if dim is None else part.select(dim, k) for part, dim in zip(given, in_dims, strict=True)]
        torch.testing.assert_close(together[k], exponential(*one))


@pytest.mark.cuda
@pytest.mark.parametrize("among", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_on_a_gpu_is_that_of_the_cpu(among: bool, dtype: torch.dtype) -> None:
    kernel = vb.SquaredExponential(3, ard=True, lengthscale=torch.tensor([0.5, 1.0, 2.0]), variance=1.7)
    x, z = torch.randn(20, 3), torch.randn(30, 3)

    def gradients(device: str, dtype: torch.dtype) -> list[Tensor]:
        kernel.to(device, dtype)
        rows = [part.to(device, dtype).requires_grad_() for part in ([x] if among else [x, z])]
        K = kernel(*rows)
        loss = (K * torch.linspace(0, 1, K.numel(), device=device, dtype=dtype).view(K.shape)).sum()
        return [K, *torch.autograd.grad(loss, [*rows, *kernel.parameters()])]

    exact = [part.cpu() for part in gradients("cpu", torch.float64)]
    for found, wanted in zip(gradients("cuda", dtype), exact, strict=True):
        assert found.dtype == dtype
        accuracy = 1e-10 if dtype == torch.float64 else 1e-4
        torch.testing.assert_close(found.cpu().double(), wanted, rtol=accuracy, atol=accuracy)


def test_operator_rules() -> None:
    x, z, offset = torch.randn(2, 5, 3), torch.randn(2, 4, 3), torch.randn(2)
    for second in (z, None):
        torch.library.opcheck(
            torch.ops.vibayes.exponential,
            (x.requires_grad_(), second, offset),
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )
