"""Exponentials of squared distances against the plain formula, finite differences, and matrix products."""

import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes.kernels.exponential import exponential

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
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
