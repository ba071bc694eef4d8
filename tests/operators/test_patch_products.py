"""Products of image patches: under nested vmap, differentiated inside of it, and few patches at once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vibayes.operators import patch_products as module
from vibayes.operators.patch_products import cut, patch_products

WHERE: list[tuple[Any, ...]] = [
    ((3, 2), (2, 1), (1, 0), False),
    ((3, 3), (1, 1), (1, 1), True),
    ((5, 3), (1, 1), (2, 1), True),
    ((1, 1), (2, 2), (0, 0), False),
]


def plain(x: Tensor, y: Tensor, precision: Tensor, *where: Any) -> Tensor:
    """From the definition, differentiated by torch."""
    D = cut(x, *where)  # [M, locations, K]
    beside = torch.cat([D, torch.ones_like(D[..., :1]), y.mT], -1)
    return torch.einsum("m,mlk,mlj->kj", precision, D, beside)


def given(where: tuple[Any, ...], *batch: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    locations = cut(torch.zeros(1, 4, 5), *where).shape[-2]
    return torch.randn(*batch, 3, 2, 4, 5), torch.randn(*batch, 3, 2, locations), torch.rand(*batch, 3)


@pytest.mark.parametrize("where", WHERE, ids=str)
def test_values_and_gradients(where: tuple[Any, ...]) -> None:
    inputs = [t.requires_grad_() for t in given(where)]
    ours, theirs = patch_products(*inputs, *where), plain(*inputs, *where)
    torch.testing.assert_close(ours, theirs)
    found, wanted = (torch.autograd.grad(R.sin().sum(), inputs) for R in (ours, theirs))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("batched", [(0, None, None), (None, 0, 0), (None, 0, None), (0, 0, 0)])
@pytest.mark.parametrize("where", WHERE[:2], ids=str)
def test_gradients_inside_and_outside_of_nested_vmap(where: tuple[Any, ...], batched: tuple[int | None, ...]) -> None:
    """Replicas of draws; of these, some things are shared."""
    whole = given(where, 2, 3)
    inputs = [t if dim == 0 else t[:, 0] for t, dim in zip(whole, batched, strict=True)]

    def loss(function: Any) -> Any:
        return lambda *t: function(*t, *where).sin().sum()

    def nested(function: Any) -> Any:
        return torch.func.vmap(torch.func.vmap(function, batched))

    inside = [nested(torch.func.grad(loss(f), (0, 1, 2)))(*inputs) for f in (patch_products, plain)]
    torch.testing.assert_close(*inside)
    leaves = [t.clone().requires_grad_() for t in inputs]
    outside = [torch.autograd.grad(nested(loss(f))(*leaves).sum(), leaves) for f in (patch_products, plain)]
    torch.testing.assert_close(*outside)


def test_few_patches_are_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    where, numbers = WHERE[0], []

    def watched(*arguments: Any) -> Tensor:
        found = cut(*arguments)
        numbers.append(found.numel())
        return found

    monkeypatch.setattr(module, "cut", watched)
    monkeypatch.setattr(module, "_PATCH_NUMBERS", 800)
    x, y, precision = given(where, 4)  # 1,152 numbers
    x.requires_grad_()
    torch.func.vmap(lambda x: patch_products(x, y[0], precision[0], *where))(x).sum().backward()
    assert len(numbers) == 4  # twice, forward and backward
    assert max(numbers) <= 800
