"""The normal equations of convolutions (identity 8), forward, backward and under vmap."""

import pytest
import torch
from torch import Tensor

from vibayes.convolution import (
    Geometry,
    autocorrelation_equations,
    normal_equations,
    patch_equations,
    patches,
)
from vibayes.errors import ConfigurationError, ShapeError

SAME = [Geometry((3, 3), padding=(1, 1)), Geometry((5, 3), padding=(2, 1)), Geometry((1, 5), padding=(0, 2))]
OTHER = [
    Geometry((3, 3)),
    Geometry((2, 2)),
    Geometry((3, 3), (2, 2), (1, 1)),
    Geometry((4, 3), (1, 2), (1, 2)),
    Geometry((1, 1), (2, 2)),
]


def images(geometry: Geometry, *, seed: int = 0, size: tuple[int, int] = (6, 7)) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 3, *size, generator=generator)
    y = torch.randn(4, 2, *geometry.output_size(*size), generator=generator)
    return x, y, torch.rand(4, generator=generator) + 0.1


def explicit(x: Tensor, y: Tensor, precision: Tensor, geometry: Geometry, bias: bool) -> tuple[Tensor, Tensor]:
    """The equations with every patch written out by hand."""
    (kh, kw), (sh, sw), (ph, pw) = geometry.kernel, geometry.stride, geometry.padding
    m, _, height, width = x.shape
    rows, weights, targets = [], [], []
    for i in range(m):
        for a in range(y.shape[2]):
            for b in range(y.shape[3]):
                patch = torch.zeros(x.shape[1], kh, kw)
                for p in range(kh):
                    for q in range(kw):
                        r, s = sh * a + p - ph, sw * b + q - pw
                        if geometry.circular:
                            patch[:, p, q] = x[i, :, r % height, s % width]
                        elif 0 <= r < height and 0 <= s < width:
                            patch[:, p, q] = x[i, :, r, s]
                rows.append(torch.cat([patch.flatten(), torch.ones(int(bias))]))
                weights.append(precision[i])
                targets.append(y[i, :, a, b])
    D, Y = torch.stack(rows), torch.stack(targets)
    weighted = torch.stack(weights)[:, None] * D
    return weighted.T @ D, weighted.T @ Y


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("geometry", [*SAME, *OTHER], ids=str)
def test_equations_equal_those_of_patches_written_out(geometry: Geometry, bias: bool) -> None:
    x, y, precision = images(geometry)
    expected = explicit(x, y, precision, geometry, bias)
    found = [normal_equations(x, y, precision, geometry, bias=bias)]
    found.append(patch_equations(x, y, precision, geometry, bias=bias))
    if geometry.circular:
        found.append(autocorrelation_equations(x, y, precision, geometry, bias=bias))
    for G, h in found:
        torch.testing.assert_close(G, expected[0], atol=1e-11, rtol=0)
        torch.testing.assert_close(h, expected[1], atol=1e-11, rtol=0)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 4), (4, 5), (8, 8)])
def test_kernels_may_be_larger_than_images(size: tuple[int, int]) -> None:
    geometry = Geometry((5, 5), padding=(2, 2))
    x, y, precision = images(geometry, size=size)
    expected = explicit(x, y, precision, geometry, bias=True)
    for equations in (autocorrelation_equations, patch_equations):
        G, h = equations(x, y, precision, geometry, bias=True)
        torch.testing.assert_close(G, expected[0], atol=1e-11, rtol=0)
        torch.testing.assert_close(h, expected[1], atol=1e-11, rtol=0)


def test_the_gram_matrix_is_positive_semidefinite() -> None:
    geometry = SAME[0]
    x, y, precision = images(geometry)
    G, _ = normal_equations(x, y, precision, geometry, bias=True)
    values = torch.linalg.eigvalsh(G)
    assert values.min() > -1e-12 * values.max()
    torch.testing.assert_close(G, G.mT, atol=1e-12, rtol=0)


@pytest.mark.parametrize("equations", [autocorrelation_equations, patch_equations])
@pytest.mark.parametrize("geometry", [Geometry((3, 1), padding=(1, 0)), OTHER[2]], ids=str)
def test_gradients(equations, geometry: Geometry, monkeypatch: pytest.MonkeyPatch) -> None:
    if equations is autocorrelation_equations and not geometry.circular:
        pytest.skip("autocorrelations keep the size")
    monkeypatch.setattr("vibayes.operators.patch_products._PATCH_NUMBERS", 80)  # several chunks
    inputs = [t.requires_grad_() for t in images(geometry, size=(3, 4))]

    def function(x: Tensor, y: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
        return equations(x, y, precision, geometry, bias=True)

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("equations", [autocorrelation_equations, patch_equations])
def test_gradients_can_be_differentiated(equations) -> None:
    geometry = Geometry((3, 1), padding=(1, 0))
    inputs = [t[:2].requires_grad_() for t in images(geometry, size=(2, 2))]

    def function(x: Tensor, y: Tensor, precision: Tensor) -> Tensor:
        G, h = equations(x, y, precision, geometry, bias=True)
        return G.sin().sum() + h.square().sum()

    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("batched", [(True, False, False), (False, True, False), (True, True, True)])
@pytest.mark.parametrize("geometry", [SAME[0], OTHER[2]], ids=str)
def test_vmap_over_draws_equals_a_loop(geometry: Geometry, batched: tuple[bool, bool, bool]) -> None:
    parts = [images(geometry, seed=s) for s in range(3)]
    x, y, precision = (torch.stack(t) for t in zip(*parts, strict=True))

    def loss(x: Tensor, y: Tensor, precision: Tensor) -> Tensor:
        G, h = normal_equations(x, y, precision, geometry, bias=True)
        return G.sin().sum() + h.cos().sum()

    def gradients(total: Tensor, *wrt: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(total, wrt)

    inputs = [(t if b else t[0]).requires_grad_() for t, b in zip((x, y, precision), batched, strict=True)]
    together = torch.func.vmap(loss, in_dims=tuple(0 if b else None for b in batched))(*inputs)
    parts = [[t[s] if b else t for t, b in zip(inputs, batched, strict=True)] for s in range(3)]
    apart = torch.stack([loss(*part) for part in parts])
    torch.testing.assert_close(together, apart)
    for a, b in zip(gradients(together.sum(), *inputs), gradients(apart.sum(), *inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("geometry", [*SAME, *OTHER], ids=str)
def test_patches_times_weights_are_the_convolution(geometry: Geometry) -> None:
    x, y, _ = images(geometry)
    weight = torch.randn(2, 3, *geometry.kernel)
    expected = torch.nn.functional.conv2d(x, weight, stride=geometry.stride, padding=geometry.padding)
    found = patches(x, geometry) @ weight.flatten(1).mT  # [N, locations, P]
    torch.testing.assert_close(found.mT.reshape(y.shape), expected)


def test_float32_equations_are_accurate() -> None:
    geometry = SAME[0]
    x, y, precision = images(geometry, size=(16, 16))
    exact = autocorrelation_equations(x, y, precision, geometry)
    found = autocorrelation_equations(x.float(), y.float(), precision.float(), geometry)
    for a, b in zip(exact, found, strict=True):
        torch.testing.assert_close(b.double(), a, atol=2e-6 * a.abs().max().item(), rtol=0)


def test_bad_input() -> None:
    x, y, precision = images(OTHER[0])
    with pytest.raises(ConfigurationError, match="stride 1"):
        autocorrelation_equations(x, y, precision, OTHER[0])
    with pytest.raises(ShapeError, match="locations"):
        patch_equations(x, y[..., 1:], precision, OTHER[0])
    with pytest.raises(ShapeError, match="does not fit"):
        Geometry((9, 9)).output_size(6, 7)
