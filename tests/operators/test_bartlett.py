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


def test_second_derivatives_are_the_slopes_of_the_first() -> None:
    """Which have the parameters of the density in them, though not its slopes by these."""
    *given, noise = example(3, 2)
    learned = [t.requires_grad_() for t in given]

    def slopes(*learned: Tensor) -> tuple[Tensor, ...]:
        squares, _, *rest = learned
        T, density = bartlett_and_density(*learned, noise)
        return torch.autograd.grad(T.sin().sum() + 2.0 * density, (squares, *rest), create_graph=True)

    assert torch.autograd.gradcheck(slopes, learned)


def test_second_derivatives_have_the_right_mean() -> None:
    """`E[density] = -log sigma + ...` of one normal entry: the mean over noise of -1 and 1 is that over all noise."""
    one, sigma = torch.ones(2, 1), torch.tensor(0.7, requires_grad=True)
    noise = torch.tensor([[[0.0], [1.0]], [[0.0], [-1.0]]])
    matrix = sigma.expand(2, 2, 1)
    density = bartlett_and_density(one, one, one, torch.zeros(2, 2, 1), matrix, noise)[1].mean()
    (slope,) = torch.autograd.grad(density, sigma, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, sigma)
    torch.testing.assert_close((slope * sigma).item(), -1.0)
    torch.testing.assert_close((curvature * sigma.square()).item(), 1.0)


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


def test_the_operators_are_registered_soundly() -> None:
    """Shapes and strides as announced, for torch.compile; also where vectors lie across."""
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = example(5, 3, 2)
    across = [torch.rand(3, 2).mT + 0.5 for _ in range(3)]
    backward = (*across, *given[3:], torch.randn(5, 3, 2).movedim(-1, 0), torch.randn(2))
    torch.library.opcheck(torch.ops.vibayes.bartlett_backward, backward, test_utils=checks)
    for t in given[2:5]:
        t.requires_grad_()
    forward = (*given[:5], torch.randn(2, 8, 3)[:, :5])
    torch.library.opcheck(torch.ops.vibayes.bartlett, forward, test_utils=checks)
