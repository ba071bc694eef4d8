"""Correlations of images at small shifts: against sums over rolled images, under vmap, differentiated twice."""

import pytest
import torch
from torch import Tensor

from vibayes.operators.correlations import correlations

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


def plain(z: Tensor, precision: Tensor, first: int, shifts: tuple[int, int]) -> Tensor:
    """From the definition."""
    down, across = shifts
    found = []
    for dh in range(-(down // 2), down // 2 + 1):
        for dw in range(-(across // 2), across // 2 + 1):
            moved = z.roll((-dh, -dw), (-2, -1))  # z at u + d
            found.append(torch.einsum("i,iahw,ibhw->ab", precision, z[:, :first], moved))
    return torch.stack(found)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(
    ("size", "shifts"), [((6, 6), (5, 5)), ((5, 4), (3, 5)), ((1, 7), (1, 3)), ((3, 2), (5, 5)), ((1, 1), (3, 3))]
)
@pytest.mark.parametrize(("first", "channels"), [(2, 3), (1, 1)])
def test_values_and_gradients(
    size: tuple[int, int], shifts: tuple[int, int], first: int, channels: int, device: str
) -> None:
    z = torch.randn(4, channels, *size, device=device, requires_grad=True)
    precision = torch.rand(4, device=device, requires_grad=True)
    ours, theirs = correlations(z, precision, first, shifts), plain(z, precision, first, shifts)
    torch.testing.assert_close(ours, theirs)
    found, wanted = (torch.autograd.grad(R.sin().sum(), (z, precision)) for R in (ours, theirs))
    torch.testing.assert_close(found, wanted)


def test_differentiated_twice() -> None:
    given = torch.randn(2, 2, 3, 4, requires_grad=True), torch.rand(2, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, precision: correlations(z, precision, 1, (3, 3)).sin(), given)
    assert torch.autograd.gradgradcheck(lambda z, precision: correlations(z, precision, 1, (3, 3)).sin(), given)


def test_under_vmap() -> None:
    z, precision = torch.randn(3, 2, 4, 3, 5, 5), torch.rand(3, 4)  # draws share the precision

    def one(z: Tensor, precision: Tensor) -> Tensor:
        return correlations(z, precision, 2, (3, 3))

    each = torch.func.vmap(torch.func.vmap(one, in_dims=(0, None)))(z, precision)
    torch.testing.assert_close(each[1, 0], plain(z[1, 0], precision[1], 2, (3, 3)))


def test_after_predictions_it_is_still_differentiated_twice() -> None:
    """What is kept from a pass without gradients must not be in the way of one with them."""
    z = torch.randn(2, 1, 7, 3, requires_grad=True)
    with torch.inference_mode():
        correlations(z, torch.ones(2), 1, (5, 1))
    (first,) = torch.autograd.grad(correlations(z, torch.ones(2), 1, (5, 1)).sin().sum(), z, create_graph=True)
    assert torch.autograd.grad(first.sum(), z)[0].isfinite().all()
