import pytest
import scipy.special
import scipy.stats
import torch

from vibayes.draw import Draw
from vibayes.operators.gamma import NOISE_PER_GAMMA, _marsaglia_tsang, gamma_from_normals

ALPHAS = [0.05, 0.3, 0.99, 1.0, 1.7, 8.0, 60.0]


def draws(alpha: float, n: int) -> torch.Tensor:
    return gamma_from_normals(torch.full((n,), alpha), torch.randn(NOISE_PER_GAMMA, n))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_distribution(alpha: float) -> None:
    found = scipy.stats.kstest(draws(alpha, 20_000).numpy(), scipy.stats.gamma(alpha).cdf)
    assert found.pvalue > 1e-3
    logs = draws(alpha, 400_000).log()
    error = float(logs.mean()) - scipy.special.digamma(alpha)
    assert abs(error) < 4.5 * (scipy.special.polygamma(1, alpha) / len(logs)) ** 0.5


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradient_is_that_of_moments(alpha: float) -> None:
    """E[x] = a and E[x^2] = a (a + 1), so the pathwise gradients average to 1 and 2 a + 1."""
    n = 200_000
    a = torch.tensor(alpha, requires_grad=True)
    x = gamma_from_normals(a.expand(n), torch.randn(NOISE_PER_GAMMA, n))
    for power, expected in ((1, 1.0), (2, 2 * alpha + 1)):
        each = torch._standard_gamma_grad(a.detach().expand(n), x.detach()) * power * x.detach() ** (power - 1)
        mean = torch.autograd.grad((x**power).mean(), a, retain_graph=True)[0]
        assert abs(float(mean) - expected) < 5 * float(each.std()) / n**0.5


def test_both_vmaps_draw_their_own_noise_and_gradients_match_a_loop() -> None:
    alphas = torch.tensor([[0.5, 2.0], [1.5, 7.0], [0.2, 3.0]])

    def one(alpha: torch.Tensor) -> torch.Tensor:
        return Draw().gamma("site", alpha)

    over_draws = torch.func.vmap(lambda _, a: one(a), in_dims=(0, None), randomness="different")
    both = torch.func.vmap(lambda a: over_draws(torch.zeros(4), a), randomness="different")(alphas)
    assert both.shape == (3, 4, 2)
    assert len(both.unique()) == both.numel()
    same = torch.func.vmap(lambda a: over_draws(torch.zeros(4), a), randomness="different")(alphas[:1].expand(3, 2))
    assert len(same.unique()) == same.numel()

    normals = torch.randn(3, NOISE_PER_GAMMA, 2)
    gradient = torch.func.grad(lambda a, z: gamma_from_normals(a, z).log().sum())
    mapped = torch.func.vmap(gradient)(alphas, normals)
    looped = torch.stack([gradient(a, z) for a, z in zip(alphas, normals, strict=True)])
    assert torch.allclose(mapped, looped)
    shared = torch.func.vmap(gradient, in_dims=(None, 0))(alphas[0], normals)
    assert torch.allclose(shared, torch.stack([gradient(alphas[0], z) for z in normals]))


def test_second_derivatives_are_refused_and_not_taken_for_zero() -> None:
    """But for those of what the draws are multiplied with."""
    normals = torch.randn(NOISE_PER_GAMMA, 3)
    alpha, factor = torch.tensor([0.5, 1.5, 4.0], requires_grad=True), torch.tensor(2.0, requires_grad=True)
    draws = gamma_from_normals(alpha, normals)
    (slope,) = torch.autograd.grad((factor.square() * draws).sum(), alpha, create_graph=True)
    expected = torch._standard_gamma_grad(alpha.detach(), draws.detach())
    torch.testing.assert_close(slope, 4.0 * expected)
    (mixed,) = torch.autograd.grad(slope.sum(), factor, retain_graph=True)
    torch.testing.assert_close(mixed, 4.0 * expected.sum())
    with pytest.raises(NotImplementedError, match="differentiated once"):
        torch.autograd.grad(slope.sum(), alpha)
    twice = torch.func.jacrev(torch.func.jacrev(lambda a: gamma_from_normals(a, normals)))
    with pytest.raises(NotImplementedError, match="differentiated once"):
        twice(alpha.detach())


def test_draws_of_constant_shapes_bear_second_derivatives() -> None:
    factor = torch.tensor(2.0, requires_grad=True)
    draws = gamma_from_normals(torch.ones(3), torch.randn(NOISE_PER_GAMMA, 3))
    (curvature,) = torch.func.jacrev(torch.func.jacrev(lambda f: (f[0].square() * draws).sum()))(factor[None])[0]
    torch.testing.assert_close(curvature, 2.0 * draws.sum())


def test_shapes_stay_apart_in_float32() -> None:
    x = gamma_from_normals(torch.full((1000,), 0.01, dtype=torch.float32), torch.randn(NOISE_PER_GAMMA, 1000).float())
    assert x.dtype == torch.float32
    assert bool((x > 0).all())


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gpu_draws_the_same(dtype: torch.dtype) -> None:
    alpha, normals = torch.tensor(ALPHAS, dtype=dtype), torch.randn(NOISE_PER_GAMMA, 500, len(ALPHAS), dtype=dtype)
    wanted = gamma_from_normals(alpha.expand(500, -1), normals)
    found = gamma_from_normals(alpha.cuda().expand(500, -1), normals.cuda())
    assert float((found.cpu() / wanted - 1.0).abs().median()) < (1e-5 if dtype == torch.float32 else 1e-12)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3 if dtype == torch.float32 else 1e-9, atol=1e-30)
    mapped = torch.func.vmap(gamma_from_normals, in_dims=(None, 1))(alpha.cuda(), normals.cuda())
    assert torch.equal(mapped, found)


def test_the_operator_draws_what_its_steps_draw() -> None:
    """Which is how a GPU draws, with a kernel in its place."""
    alpha, normals = torch.tensor(ALPHAS), torch.randn(NOISE_PER_GAMMA, 50, len(ALPHAS))
    wanted = _marsaglia_tsang(alpha.expand(50, -1), normals)
    operator = torch.ops.vibayes.gamma_draws
    assert torch.equal(operator(alpha.expand(50, -1), normals), wanted)
    assert torch.equal(torch.func.vmap(operator, in_dims=(None, 1))(alpha, normals), wanted)
    twice = torch.func.vmap(torch.func.vmap(operator, in_dims=(0, 1)), in_dims=(None, 1))
    assert torch.equal(twice(alpha, normals.movedim(-1, 2)), wanted)


def test_the_operators_are_registered_soundly() -> None:
    """Shapes and strides as announced, for torch.compile; also where shapes of draws lie across."""
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    draws, normals = torch.rand(2, 3), torch.randn(NOISE_PER_GAMMA, 2, 3)
    for alpha in (torch.rand(2, 3), torch.rand(3, 2).mT, torch.rand(3).expand(2, 3)):
        torch.library.opcheck(torch.ops.vibayes.gamma_draws, (alpha, normals), test_utils=checks)
        torch.library.opcheck(torch.ops.vibayes.gamma_slope, (alpha, draws), test_utils=checks)
        given = (alpha.clone().requires_grad_(), draws)
        torch.library.opcheck(torch.ops.vibayes.gamma_of_shape, given, test_utils=checks)
