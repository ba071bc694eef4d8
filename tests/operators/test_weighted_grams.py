"""Grams for many weights: against plain sums, under vmap, differentiated twice, on a GPU by kernels of our own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vibayes.operators import cuda_kernels
from vibayes.operators.weighted_grams import weighted_grams

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


def plain(D: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("mk,pm,ml->pkl", D, weights, D)


def test_gradients() -> None:
    D, weights = torch.randn(5, 3, requires_grad=True), torch.rand(2, 5, requires_grad=True)
    torch.testing.assert_close(weighted_grams(D, weights), plain(D, weights))

    def function(D: Tensor, weights: Tensor) -> Tensor:
        return (weighted_grams(D, weights) * torch.arange(18.0).view(2, 3, 3)).sin().sum()  # not symmetric

    assert torch.autograd.gradcheck(function, (D, weights))
    assert torch.autograd.gradgradcheck(function, (D, weights))
    # of the gradients that are differentiated again it has only looked at the slopes
    once, again = (torch.autograd.grad(function(D, weights), (D, weights), create_graph=g) for g in (False, True))
    torch.testing.assert_close(again, once)


@DEVICES
@pytest.mark.parametrize("shared", ["neither", "D", "weights"])
def test_under_vmaps(shared: str, device: str) -> None:
    """Draws share their weights, and in a first layer their design: gradients count every use once."""
    D = torch.randn(3, 5, 3) if shared == "D" else torch.randn(3, 2, 5, 3)
    weights = torch.rand(3, 4, 5) if shared == "weights" else torch.rand(3, 2, 4, 5)
    D, weights = D.to(device).requires_grad_(), weights.to(device).requires_grad_()
    dims = (None if shared == "D" else 0, None if shared == "weights" else 0)

    def total(function: Any) -> Tensor:
        return torch.func.vmap(torch.func.vmap(function, in_dims=dims))(D, weights).sin().sum()

    found = [torch.autograd.grad(total(function), (D, weights)) for function in (weighted_grams, plain)]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("m", "k", "p"), [(455, 51, 50), (20, 14, 3), (100, 64, 1), (30, 65, 2), (1, 1, 1)])
def test_sizes(m: int, k: int, p: int, dtype: torch.dtype, device: str) -> None:
    """Up to 64 columns are the kernel's own on a GPU; float32 is as good as its rounding."""
    D, weights = torch.randn(2, m, k), torch.rand(2, p, m)
    g = torch.randn(2, p, k, k)
    exact = [D.clone().requires_grad_(), weights.clone().requires_grad_()]
    given = [t.to(device, dtype).requires_grad_() for t in (D, weights)]
    if device == "cuda":
        assert cuda_kernels.grams_available(given[0]) == (k <= 64)
    ours, theirs = (torch.func.vmap(f)(*t) for f, t in ((weighted_grams, given), (plain, exact)))
    pairs = [
        (ours, theirs),
        *zip(torch.autograd.grad(ours, given, g.to(device, dtype)), torch.autograd.grad(theirs, exact, g), strict=True),
    ]
    for found, wanted in pairs:
        assert found.dtype == dtype
        error = (found.detach().cpu().double() - wanted.detach()).abs().max()
        assert error <= (3e-6 if dtype == torch.float32 else 1e-13) * wanted.abs().max()


@DEVICES
def test_no_rows(device: str) -> None:
    D, weights = torch.zeros(0, 3, device=device), torch.zeros(2, 0, device=device)
    assert weighted_grams(D, weights).tolist() == torch.zeros(2, 3, 3).tolist()
