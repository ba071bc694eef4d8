"""Bartlett factors with their densities: against the plain formulas, under vmap, differentiated twice."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vibayes.operators.bartlett import bartlett_and_density

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


def plain(
    squares: Tensor, alpha: Tensor, beta: Tensor, mu: Tensor, sigma: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """By torch's own distributions, from which `T -> T T^T` takes away the powers of its Jacobian."""
    n, nt = noise.shape[-2:]
    below = torch.ones(n, nt, device=noise.device).tril(-1)
    eye = torch.eye(n, nt, device=noise.device)
    T = below * (mu + sigma * noise) + eye * (squares / beta).sqrt()[..., None, :]
    diagonal = T.diagonal(dim1=-2, dim2=-1)
    alpha, beta, mu, sigma = (t.detach() for t in (alpha, beta, mu, sigma))
    gammas = torch.distributions.Gamma(alpha, beta, validate_args=False).log_prob(diagonal.square())
    gammas = gammas - (nt - 2 - torch.arange(nt, device=noise.device)) * diagonal.log()
    normals = torch.distributions.Normal(mu, sigma, validate_args=False).log_prob(T) + 0.5 * torch.log(
        torch.tensor(2 * torch.pi)
    )
    return T, gammas.sum(-1) + (below * normals).sum((-2, -1))


def example(n: int, nt: int, *batch: int, shared: bool = False) -> list[Tensor]:
    own = () if shared else batch
    positive = [torch.rand(*size, nt) + 0.5 for size in (batch, own, own)]
    return [*positive, torch.randn(*own, n, nt), torch.rand(*own, n, nt) + 0.3, torch.randn(*batch, n, nt)]


def total(function: Any, *given: Tensor) -> Tensor:
    T, density = function(*given)
    return T.sin().sum((-2, -1)) + density.square()


@DEVICES
@pytest.mark.parametrize(("n", "nt"), [(1, 1), (5, 3), (4, 4), (100, 13)])
def test_values_and_gradients(n: int, nt: int, device: str) -> None:
    given = [t.to(device) for t in example(n, nt, 2)]
    torch.testing.assert_close(bartlett_and_density(*given), plain(*given))
    learned = [given[i].requires_grad_() for i in (0, 2, 3, 4)]
    ours, theirs = (torch.autograd.grad(total(f, *given).sum(), learned) for f in (bartlett_and_density, plain))
    torch.testing.assert_close(ours, theirs)


def test_shapes_get_gradients_through_their_draws_alone() -> None:
    given = example(4, 2, 3)
    alpha = given[1].requires_grad_()
    (slope,) = torch.autograd.grad(total(bartlett_and_density, *given).sum(), alpha, allow_unused=True)
    assert slope is None


def test_it_can_be_differentiated_again() -> None:
    given = example(3, 2)
    learned = [given[i].requires_grad_() for i in (0, 2, 3, 4)]

    def slopes(function: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(total(function, *given), learned, create_graph=True)

    ours, theirs = slopes(bartlett_and_density), slopes(plain)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(ours, theirs, strict=True):
        again = [torch.autograd.grad(t.sin().sum(), learned, retain_graph=True, allow_unused=True) for t in (a, b)]
        for x, y in zip(*again, strict=True):
            torch.testing.assert_close(torch.zeros(()) if x is None else x, torch.zeros(()) if y is None else y)


@DEVICES
@pytest.mark.parametrize("shared", [True, False])
def test_under_vmaps(shared: bool, device: str) -> None:
    """Draws of a model share their parameters, whose gradients count every draw."""
    models = [example(4, 3, 2, shared=shared) for _ in range(5)]
    given = [torch.stack(parts).to(device) for parts in zip(*models, strict=True)]
    learned = [given[i].requires_grad_() for i in (0, 2, 3, 4)]
    own = None if shared else 0
    dims = (0, own, own, own, own, 0)

    def all_of(function: Any) -> Tensor:
        each = torch.func.vmap(lambda *t: total(function, *t), in_dims=dims)
        return torch.func.vmap(each)(*given).sin().sum()

    torch.testing.assert_close(all_of(bartlett_and_density), all_of(plain))
    ours, theirs = (torch.autograd.grad(all_of(function), learned) for function in (bartlett_and_density, plain))
    torch.testing.assert_close(ours, theirs)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_above_the_diagonal_is_read(dtype: torch.dtype, device: str) -> None:
    """Nor on it, but for the squares."""
    given = [t.to(device, dtype) for t in example(4, 3, 2)]
    clean = bartlett_and_density(*given)
    assert clean[0].dtype == clean[1].dtype == dtype
    unused = torch.ones(4, 3, device=device).triu() > 0
    dirty = [*given[:3], *(torch.where(unused, torch.nan, t).requires_grad_() for t in given[3:5]), given[5]]
    found = bartlett_and_density(*dirty)
    torch.testing.assert_close(found, clean, rtol=0, atol=0)
    for slope in torch.autograd.grad(total(bartlett_and_density, *dirty).sum(), dirty[3:5]):
        assert bool((slope[:, unused] == 0).all())


def test_the_operator_is_registered_soundly() -> None:
    given = example(5, 3, 2)
    for t in given[2:5]:
        t.requires_grad_()
    torch.library.opcheck(
        torch.ops.vibayes.bartlett,
        (*given[:5], torch.randn(2, 8, 3)[:, :5]),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
