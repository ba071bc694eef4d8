"""What every distribution over matrices must do: shapes, dtypes, batches, noise, `vmap`, gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from wishart_cases import build, parameters, scale

from vibayes.distributions import InverseWishart, LowerUpper, MatrixNormal, Wishart
from vibayes.distributions.base import MatrixDistribution
from vibayes.errors import ShapeError

Parameters = dict[str, Tensor]
Build = Callable[[Parameters], MatrixDistribution]
WISHART = {"scale_tril": torch.linalg.cholesky_ex(scale(3)).L, "nu": torch.tensor(4.3, dtype=torch.float64)}
NORMAL = {
    "mean": scale(3)[:, :2],
    "row": torch.linalg.cholesky_ex(scale(3)).L,
    "column": torch.linalg.cholesky_ex(scale(2, 5)).L,
}


def wishart(p: Parameters) -> MatrixDistribution:
    return Wishart(None, p["nu"], scale_tril=p["scale_tril"].tril())


def inverse_wishart(p: Parameters) -> MatrixDistribution:
    return InverseWishart(None, p["nu"], scale_tril=p["scale_tril"].tril())


def matrix_normal(p: Parameters) -> MatrixDistribution:
    return MatrixNormal(p["mean"], p["row"].tril(), p["column"].tril())


REGISTRY: dict[str, tuple[Build, Parameters]] = {
    "wishart": (wishart, WISHART),
    "singular": (lambda p: Wishart(None, 2, scale_tril=p["scale_tril"].tril()), {"scale_tril": WISHART["scale_tril"]}),
    "inverse": (inverse_wishart, WISHART),
    "normal": (matrix_normal, NORMAL),
}
for _n, _nu in ((4, 2), (3, 3), (2, 3)):
    for _form in ("plain", "A", "dense", "AB"):
        REGISTRY[f"{_form} {_n} {_nu}"] = (
            lambda p, nu=_nu, form=_form: build(nu, p, form),  # type: ignore[misc]
            parameters(_n, _nu),
        )
every = pytest.mark.parametrize("name", REGISTRY)


@every
def test_shapes_batches_and_expand(name: str) -> None:
    make, p = REGISTRY[name]
    one = make(p)
    assert one.batch_shape == ()
    assert one.rsample((5, 2)).shape == (5, 2, *one.event_shape)
    assert one.sample().grad_fn is None
    factors = torch.tensor([0.9, 1.0, 1.2])
    stacked = {key: torch.stack([value * f for f in factors]) for key, value in p.items()}
    batch = make(stacked)
    assert batch.batch_shape == (3,)
    noise = torch.randn(4, *batch.noise_shape)
    drawn = batch.rsample((4,), noise=noise)
    assert drawn.shape == (4, 3, *one.event_shape)
    for k in range(3):
        single = make({key: value[k] for key, value in stacked.items()})
        torch.testing.assert_close(drawn[:, k], single.rsample((4,), noise=noise[:, k]))
        torch.testing.assert_close(batch.log_prob(drawn)[:, k], single.log_prob(drawn[:, k]))
        torch.testing.assert_close(batch.mean[k], single.mean, equal_nan=True)
    wide = batch.expand((2, 3))
    assert wide.batch_shape == (2, 3)
    assert wide.rsample().shape == wide.mean.shape == (2, 3, *one.event_shape)
    torch.testing.assert_close(wide.log_prob(drawn[0]), batch.log_prob(drawn[0]).expand(2, 3))
    assert one.expand((7,)).rsample().shape == (7, *one.event_shape)


@every
def test_float32_agrees_with_float64(name: str) -> None:
    make, p = REGISTRY[name]
    small = make({key: value.float() for key, value in p.items()})
    noise = torch.randn(10, *small.noise_shape)
    drawn = small.rsample((10,), noise=noise.float())
    assert drawn.dtype == torch.float32
    torch.testing.assert_close(drawn.double(), make(p).rsample((10,), noise=noise), rtol=1e-3, atol=1e-4)
    # on the factor where there is one: a nearly singular G has lost digits
    if hasattr(small, "rsample_factor"):
        F, T, _ = small.rsample_factor((10,), noise=noise.float())
        F64, T64, _ = make(p).rsample_factor((10,), noise=noise)
        bartlett = hasattr(small, "log_prob_bartlett")
        found = small.log_prob_bartlett(T) if bartlett else small.log_prob_factor(F)
        expected = make(p).log_prob_bartlett(T64) if bartlett else make(p).log_prob_factor(F64)
    else:
        found, expected = small.log_prob(drawn), make(p).log_prob(drawn.double())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


@every
def test_under_vmap_draws_differ_and_gradients_match_a_loop(name: str) -> None:
    make, p = REGISTRY[name]

    def drawn_inside(_: Tensor) -> Tensor:
        return make(p).rsample()

    G = vmap(drawn_inside, randomness="different")(torch.zeros(6))
    assert len(torch.unique(G[:, 0, 0])) == 6

    def log_density(p: Parameters, noise: Tensor) -> Tensor:
        q = make(p)
        return q.log_prob(q.rsample(noise=noise))

    noise = torch.randn(4, *make(p).noise_shape)
    together = vmap(grad(log_density), in_dims=(None, 0))(p, noise)
    for k in range(4):
        leaves = {key: value.clone().requires_grad_() for key, value in p.items()}
        alone = torch.autograd.grad(log_density(leaves, noise[k]), list(leaves.values()), allow_unused=True)
        for key, expected in zip(leaves, alone, strict=True):
            found = together[key][k]
            torch.testing.assert_close(found, torch.zeros_like(found) if expected is None else expected)
    # nested: replicas with their own parameters
    stacked = {key: torch.stack([value, value]) for key, value in p.items()}
    nested = vmap(vmap(grad(log_density), in_dims=(None, 0)), in_dims=(0, None))(stacked, noise)
    for key, value in together.items():
        torch.testing.assert_close(nested[key][1], value)


@every
def test_gradients_of_the_density_by_finite_differences(name: str) -> None:
    make, p = REGISTRY[name]
    G = make(p).sample()

    def log_density(*values: Tensor) -> Tensor:
        return make(dict(zip(p, values, strict=True))).log_prob(G)

    assert torch.autograd.gradcheck(log_density, [value.clone().requires_grad_() for value in p.values()])


@every
def test_gradients_of_draws_by_finite_differences(name: str) -> None:
    """All parameters but those of the gammas' shapes, which move through a rejection sampler."""
    make, p = REGISTRY[name]
    noise = torch.randn(make(p).noise_shape)
    smooth = [key for key in p if key not in ("alpha", "nu")]

    def draw(*values: Tensor) -> Tensor:
        return make(p | dict(zip(smooth, values, strict=True))).rsample(noise=noise)

    assert torch.autograd.gradcheck(draw, [p[key].clone().requires_grad_() for key in smooth])


@every
def test_score_has_mean_zero(name: str) -> None:
    """E[d log q(G) / d parameter] = 0 under q: fails for a density that is not normalised at every parameter."""
    make, p = REGISTRY[name]
    G = make(p).sample((8_000,))
    scores = vmap(grad(lambda p, G: make(p).log_prob(G)), in_dims=(None, 0))(p, G)
    for key, score in scores.items():
        error = 5 * score.std(0) / len(G) ** 0.5
        assert bool((score.mean(0).abs() <= error + 1e-12).all()), key


@every
def test_pathwise_gradients_of_the_mean(name: str) -> None:
    """The gradient of draws averages to the gradient of the closed-form mean, gamma shapes included."""
    make, p = REGISTRY[name]
    if name == "inverse":
        p = p | {"nu": torch.tensor(12.0)}
    one = make(p)
    noise = torch.randn(8_000, *one.noise_shape)
    weights = torch.randn(one.event_shape)
    paths = vmap(grad(lambda p, z: (weights * make(p).rsample(noise=z)).sum()), in_dims=(None, 0))(p, noise)
    expected = grad(lambda p: (weights * make(p).mean).sum())(p)
    for key, path in paths.items():
        error = 5 * path.std(0) / len(noise) ** 0.5
        assert bool(((path.mean(0) - expected[key]).abs() <= error + 1e-12).all()), key


@every
def test_wrong_shapes_are_refused(name: str) -> None:
    make, p = REGISTRY[name]
    one = make(p)
    with pytest.raises(ShapeError, match=r"Expected noise of shape .*noise_shape"):
        one.rsample((2,), noise=torch.randn(one.noise_shape))
    with pytest.raises(ShapeError, match="expects matrices of shape"):
        one.log_prob(torch.eye(7))


def test_parameters_that_do_not_broadcast() -> None:
    with pytest.raises(ShapeError, match=r"do not broadcast.*scale_tril.*\(2,\).*nu.*\(3,\)"):
        Wishart(torch.eye(2).expand(2, 2, 2), torch.full((3,), 4.0))


def test_lower_upper() -> None:
    packed = parameters(4, 2)["A"]
    A = LowerUpper(packed)
    torch.testing.assert_close(A.matrix, (packed.tril(-1) + torch.eye(4)) @ packed.triu())
    torch.testing.assert_close(A.log_abs_det, torch.linalg.slogdet(A.matrix).logabsdet)
    X = torch.randn(5, 4, 2)
    torch.testing.assert_close(A.solve(A.matmul(X)), X)
    torch.testing.assert_close(A.matmul(X), A.matrix @ X)
    with pytest.raises(ShapeError, match="square"):
        LowerUpper(torch.ones(2, 3))


def test_scale_matrices_under_vmap() -> None:
    """The scale itself, factorised inside; a bad one yields NaN there, where it cannot raise."""
    S = torch.stack([scale(3, 1), scale(3, 2), -torch.eye(3)])
    G = scale(3, 4)
    for make in (lambda S: Wishart(S, 2), lambda S: InverseWishart(S, 4.5)):
        found, slopes = vmap(torch.func.grad_and_value(lambda S, make=make: make(S).log_prob(G)))(S)[::-1]
        for k in range(2):
            torch.testing.assert_close(found[k], make(S[k]).log_prob(G))
            leaf = S[k].clone().requires_grad_()
            torch.testing.assert_close(slopes[k], torch.autograd.grad(make(leaf).log_prob(G), leaf)[0])
        assert found[2].isnan()


@pytest.mark.filterwarnings("ignore")  # tracing an autograd.Function, torch warns of its own ways
@pytest.mark.parametrize("form", ["dense", "AB"])
def test_a_log_ratio_is_one_graph(form: str) -> None:
    """`torch.compile` with `fullgraph` traces construction, drawing and both densities, `vmap` around them."""
    p = parameters(4, 2)
    noise = torch.randn(5, *build(2, p).noise_shape)

    def ratio(p: Parameters, noise: Tensor) -> Tensor:
        q = build(2, p, form)
        F, T, log_det = q.rsample_factor(noise=noise)
        prior = Wishart(None, 2, scale_tril=p["scale_tril"].tril())
        return prior.log_prob_factor(F, log_det) - q.log_prob_bartlett(T, log_det, sticking_the_landing=True)

    def mean_ratio(p: Parameters) -> Tensor:
        return vmap(ratio, in_dims=(None, 0))(p, noise).mean()

    results = []
    for function in (mean_ratio, torch.compile(mean_ratio, backend="aot_eager", fullgraph=True)):
        leaves = {key: value.clone().requires_grad_() for key, value in p.items()}
        value = function(leaves)
        results.append([value, *torch.autograd.grad(value, list(leaves.values()))])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)
