"""The same properties over every likelihood, and closed forms against numerical integration."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor
from torch.func import functional_call, grad, vmap

from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)
from vibayes.likelihoods.special import lgamma_half_step, log_ndtr, student_t_cdf
from vibayes.parameters import Positive
from vibayes.quadrature import GaussHermite, LogSigmoid, log_gamma_grid, normal_grid, standard_deviation

N, P = 6, 2


def _reals() -> Tensor:
    return torch.randn(N, P)


def _bits() -> Tensor:
    return torch.randint(0, 2, (N, P))


def _counts() -> Tensor:
    return torch.randint(0, 9, (N, P))


def _classes() -> Tensor:
    return torch.randint(0, 4, (N,))


# name -> (constructor, targets, latent width)
REGISTRY: dict[str, tuple[Callable[[], Likelihood], Callable[[], Tensor], int]] = {
    "gaussian": (lambda: Gaussian(0.3), _reals, P),
    "gaussian per target": (lambda: Gaussian(0.3, out_features=P), _reals, P),
    "heteroscedastic": (HeteroscedasticGaussian, _reals, 2 * P),
    "student t": (lambda: StudentT(3.0, 0.7), _reals, P),
    "student t, learned df": (lambda: StudentT(50.0, 0.7, learn_df=True, out_features=P), _reals, P),
    "logit": (Bernoulli, _bits, P),
    "probit": (lambda: Bernoulli("probit"), _bits, P),
    "categorical": (Categorical, _classes, 4),
    "poisson": (Poisson, _counts, P),
}
EVERY = pytest.mark.parametrize("name", REGISTRY)


def _setting(name: str, dtype: torch.dtype = torch.float64) -> tuple[Likelihood, Tensor, Tensor, Tensor, Any]:
    make, targets, width = REGISTRY[name]
    likelihood = make().to(dtype)
    y = likelihood.check_targets(targets())
    y = y.to(dtype) if y.is_floating_point() else y
    mean, variance = torch.randn(N, width, dtype=dtype), torch.rand(N, width, dtype=dtype) + 0.1
    K = likelihood.n_latent_noise
    eps = torch.randn(K, N, width, dtype=dtype) if K else None
    return likelihood, mean, variance, y, eps


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_dtypes_and_widths(name: str, dtype: torch.dtype) -> None:
    likelihood, mean, variance, y, eps = _setting(name, dtype)
    log_prob = likelihood.log_prob(mean, y)
    expected = likelihood.expected_log_prob(mean, variance, y, eps)
    assert log_prob.shape == expected.shape == (N,)
    assert log_prob.dtype == expected.dtype == dtype
    width = mean.shape[1]
    assert likelihood.latent_features(likelihood.n_targets(width)) == width
    assert likelihood.kind in ("regression", "binary", "classes", "counts")
    assert likelihood.scalable == (likelihood.kind == "regression")
    mixture = likelihood.predictive(mean[None], variance[None])
    assert (mixture.n_draws, mixture.n_rows, mixture.n_targets) == (1, N, likelihood.n_targets(width))
    assert mixture.dtype == dtype
    assert mixture.kind == likelihood.kind
    assert mixture.scalable == likelihood.scalable


@EVERY
def test_no_variance_is_the_log_probability(name: str) -> None:
    likelihood, mean, variance, y, eps = _setting(name)
    exact = likelihood.log_prob(mean, y)
    for none in (torch.zeros_like(variance), 1e-14 * variance):
        torch.testing.assert_close(likelihood.expected_log_prob(mean, none, y, eps), exact, rtol=1e-6, atol=1e-6)
        mixture = likelihood.predictive(mean[None], none[None])
        torch.testing.assert_close(mixture.draw_log_prob(y)[0], exact, rtol=1e-6, atol=1e-6)
    mixture = likelihood.predictive(mean[None])
    torch.testing.assert_close(mixture.draw_log_prob(y)[0], exact, rtol=1e-12, atol=1e-12)


@EVERY
def test_expectation_is_below_the_log_of_the_expectation(name: str) -> None:
    likelihood, mean, variance, y, eps = _setting(name)
    expected = likelihood.expected_log_prob(mean, variance, y, eps)
    predictive = likelihood.predictive(mean[None], variance[None], eps).draw_log_prob(y)[0]
    gap = predictive - expected
    if likelihood.kind == "classes":  # the linear term is exact there, so the inequality holds on average only
        assert gap.mean() > 0
    else:
        assert (gap > 1e-4).all()


@EVERY
def test_vmap_equals_a_loop(name: str) -> None:
    likelihood, mean, variance, y, eps = _setting(name)
    means, variances = torch.stack([mean, mean + 1, -mean]), torch.stack([variance, 2 * variance, variance])
    mapped = vmap(lambda m, v: likelihood.expected_log_prob(m, v, y, eps))(means, variances)
    looped = torch.stack([likelihood.expected_log_prob(m, v, y, eps) for m, v in zip(means, variances, strict=True)])
    torch.testing.assert_close(mapped, looped, rtol=1e-12, atol=1e-12)
    mapped = vmap(lambda m: likelihood.log_prob(m, y))(means)
    looped = torch.stack([likelihood.log_prob(m, y) for m in means])
    torch.testing.assert_close(mapped, looped, rtol=1e-12, atol=1e-12)
    per_draw = vmap(grad(lambda m, v: likelihood.expected_log_prob(m, v, y, eps).sum(), (0, 1)))
    assert all(torch.isfinite(g).all() for g in per_draw(means, variances))


@EVERY
def test_gradients(name: str) -> None:
    likelihood, mean, variance, y, eps = _setting(name)
    parameters = {k: v.detach().clone().requires_grad_() for k, v in likelihood.named_parameters()}

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.likelihood = likelihood

        def forward(self, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return likelihood.log_prob(m, y), likelihood.expected_log_prob(m, v, y, eps)

    both = Both()

    def evaluate(m: Tensor, v: Tensor, *values: Tensor) -> Any:
        given = {f"likelihood.{k}": value for k, value in zip(parameters, values, strict=True)}
        return functional_call(both, given, (m, v))

    arguments = (mean.requires_grad_(), variance.requires_grad_(), *parameters.values())
    assert torch.autograd.gradcheck(evaluate, arguments)


@EVERY
def test_zero_variance_has_finite_gradients(name: str) -> None:
    likelihood, mean, variance, y, eps = _setting(name)
    none = torch.zeros_like(variance).requires_grad_()
    likelihood.expected_log_prob(mean, none, y, eps).sum().backward()
    assert none.grad is not None
    assert torch.isfinite(none.grad).all()


@EVERY
def test_state_dict_round_trip(name: str) -> None:
    first, mean, variance, y, eps = _setting(name)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(0.3)
    second = REGISTRY[name][0]()
    second.load_state_dict(first.state_dict())
    expected = first.expected_log_prob(mean, variance, y, eps)
    torch.testing.assert_close(second.expected_log_prob(mean, variance, y, eps), expected, rtol=0, atol=0)
    assert all("quadrature" not in key for key in first.state_dict())


@EVERY
def test_shapes_that_would_broadcast_are_refused(name: str) -> None:
    likelihood, mean, variance, y, eps = _setting(name)
    wrong = y[:1] if y.ndim == 1 else y[:, :1]
    with pytest.raises(ShapeError, match="check_targets"):
        likelihood.log_prob(mean, wrong)
    with pytest.raises(ShapeError, match="shape of mean"):
        likelihood.expected_log_prob(mean, variance[:1], y, eps)
    with pytest.raises(ShapeError, match="S draws"):
        likelihood.predictive(mean)
    with pytest.raises(ShapeError, match="log weights"):
        likelihood.predictive(mean[None], log_weights=torch.zeros(3))


# ---- densities and expectations against scipy

SCALAR: dict[str, tuple[Callable[[], Likelihood], Callable[[float, np.ndarray], np.ndarray], list[float]]] = {
    "gaussian": (lambda: Gaussian(0.3), lambda y, f: stats.norm.logpdf(y, f, 0.3**0.5), [-1.0, 2.5]),
    "student t": (lambda: StudentT(3.0, 0.7), lambda y, f: stats.t.logpdf(y, 3.0, f, 0.7), [-1.0, 6.0]),
    "logit": (Bernoulli, lambda y, f: special.log_expit((2 * y - 1) * f), [0.0, 1.0]),
    "probit": (lambda: Bernoulli("probit"), lambda y, f: special.log_ndtr((2 * y - 1) * f), [0.0, 1.0]),
    "poisson": (Poisson, lambda y, f: stats.poisson.logpmf(y, np.exp(f)), [0.0, 7.0]),
}


def _gaussian_expectation(function: Callable[[np.ndarray], np.ndarray], mean: float, variance: float) -> float:
    """A dense trapezoid sum, far finer than any rule in the package."""
    f = np.linspace(mean - 12 * variance**0.5, mean + 12 * variance**0.5, 200_001)
    return float(np.sum(function(f) * stats.norm.pdf(f, mean, variance**0.5)) * (f[1] - f[0]))


@pytest.mark.parametrize("name", SCALAR)
@pytest.mark.parametrize(("mean", "variance"), [(0.4, 0.2), (-1.2, 1.0)])
def test_against_scipy(name: str, mean: float, variance: float) -> None:
    make, log_density, targets = SCALAR[name]
    likelihood = make()
    # poles and kinks off the axis limit Gauss-Hermite with 20 nodes; the closed forms are exact
    tolerance = {"student t": 5e-3, "logit": 1e-6, "probit": 1e-6}.get(name, 1e-9)
    m, v = torch.full((1, 1), mean), torch.full((1, 1), variance)
    for target in targets:
        y = torch.full((1, 1), target)
        assert likelihood.log_prob(m, y).item() == pytest.approx(float(log_density(target, mean)), abs=1e-12)
        expected = _gaussian_expectation(lambda f, y=target: log_density(y, f), mean, variance)
        assert likelihood.expected_log_prob(m, v, y).item() == pytest.approx(expected, abs=tolerance)
        marginal = _gaussian_expectation(lambda f, y=target: np.exp(log_density(y, f)), mean, variance)
        predictive = likelihood.predictive(m[None], v[None]).draw_log_prob(y).item()
        assert predictive == pytest.approx(np.log(marginal), abs=1e-8)


@pytest.mark.parametrize("nodes", [5, 60])
def test_more_nodes_are_more_accurate(nodes: int) -> None:
    likelihood = StudentT(3.0, 0.7, n_quadrature=nodes).double()
    y, m, v = torch.full((1, 1), 1.0), torch.zeros(1, 1), torch.full((1, 1), 1.0)
    expected = _gaussian_expectation(lambda f: stats.t.logpdf(1.0, 3.0, f, 0.7), 0.0, 1.0)
    error = abs(likelihood.expected_log_prob(m, v, y).item() - expected)
    assert error < 1e-5 if nodes == 60 else error > 1e-4


@pytest.mark.parametrize(("g_variance", "y"), [(0.3, 0.2), (1.5, 4.0)])
def test_heteroscedastic_against_integration(g_variance: float, y: float) -> None:
    likelihood = HeteroscedasticGaussian()
    mean, variance = torch.tensor([[0.5, -0.7]]), torch.tensor([[0.4, g_variance]])
    target = torch.tensor([[y]])

    def expected_log_density(g: float) -> float:
        return -0.5 * (np.log(2 * np.pi) + g + ((y - 0.5) ** 2 + 0.4) * np.exp(-g))

    reference = _gaussian_expectation(expected_log_density, -0.7, g_variance)
    assert likelihood.expected_log_prob(mean, variance, target).item() == pytest.approx(reference, abs=1e-8)
    marginal = _gaussian_expectation(lambda g: stats.norm.pdf(y, 0.5, np.sqrt(0.4 + np.exp(g))), -0.7, g_variance)
    predictive = likelihood.predictive(mean[None], variance[None]).draw_log_prob(target).item()
    assert predictive == pytest.approx(np.log(marginal), abs=1e-9)
    exact = likelihood.log_prob(mean, target).item()
    assert exact == pytest.approx(stats.norm.logpdf(y, 0.5, np.exp(-0.35)), abs=1e-12)


def test_categorical_against_a_million_samples() -> None:
    likelihood = Categorical(n_latent_noise=200_000)
    mean, variance = torch.tensor([[0.5, -1.0, 0.2]]), torch.tensor([[0.3, 1.0, 2.0]])
    f = mean + variance.sqrt() * torch.randn(1_000_000, 3)
    for c in range(3):
        y = torch.tensor([c])
        log_probs = torch.log_softmax(f, -1)[:, c]
        expected = likelihood.expected_log_prob(mean, variance, y).item()
        assert expected == pytest.approx(log_probs.mean().item(), abs=0.01)
        mixture = likelihood.predictive(mean[None], variance[None])
        assert mixture.draw_log_prob(y).exp().item() == pytest.approx(log_probs.exp().mean().item(), abs=3e-3)
        reference = stats.entropy(np.exp(torch.log_softmax(mean, -1).numpy()[0]))
        assert likelihood.predictive(mean[None]).entropy.item() == pytest.approx(reference, abs=1e-12)


def test_categorical_noise_of_the_caller_is_used() -> None:
    likelihood, mean, variance, y, eps = _setting("categorical")
    first, again = (likelihood.expected_log_prob(mean, variance, y, eps) for _ in range(2))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    f = mean + variance.sqrt() * eps
    by_hand = torch.stack([likelihood.log_prob(sample, y) for sample in f]).mean(0)
    shift = (variance.sqrt() * eps).mean(0).gather(1, y[:, None])[:, 0]  # the linear term, exact here
    torch.testing.assert_close(first, by_hand - shift)
    mixture = likelihood.predictive(mean[None], variance[None], eps)
    probs = torch.stack([likelihood.log_prob(sample, y).exp() for sample in f]).mean(0)
    torch.testing.assert_close(mixture.draw_log_prob(y)[0].exp(), probs)
    with pytest.raises(ShapeError, match="eps"):
        likelihood.expected_log_prob(mean, variance, y, eps[:, :2])
    with pytest.raises(ShapeError, match="eps"):
        likelihood.predictive(mean[None], variance[None], eps[..., :2])


@pytest.mark.parametrize("ratio", [0.01, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("df", [1.0, 4.0, 30.0])
def test_student_t_predictive_is_not_a_comb(ratio: float, df: float) -> None:
    """However narrow the noise is beside the function's Gaussian, the density is their convolution."""
    scale = 1.0 / ratio
    likelihood = StudentT(df, scale)
    y = np.linspace(-2.5, 2.5, 23)
    mixture = likelihood.predictive(torch.zeros(1, 23, 1), torch.ones(1, 23, 1))
    density = mixture.draw_log_prob(torch.as_tensor(y)[:, None])[0].exp().numpy()
    # the same convolution in the frequency domain would do; here over the t's own quantiles
    levels = (np.arange(200_000) + 0.5) / 200_000
    noise = stats.t.ppf(levels, df) * scale
    reference = [stats.norm.pdf(value - noise).mean() for value in y]
    np.testing.assert_allclose(density, reference, rtol=2e-4 if df == 1.0 or ratio == 0.01 else 1e-5)


def test_poisson_predictive_of_large_counts() -> None:
    for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 0.05)):
        for mean, variance in ((8.0, 0.5), (11.0, 1e-4), (3.0, 4.0), (-2.0, 1.0)):
            mixture = Poisson().predictive(
                torch.full((1, 1, 1), mean, dtype=dtype), torch.full((1, 1, 1), variance, dtype=dtype)
            )
            for count in (0, 3, int(np.exp(mean)), int(np.exp(mean + 3 * variance**0.5))):
                f = np.linspace(mean - 20, mean + 12 * variance**0.5, 400_001)
                terms = stats.poisson.logpmf(count, np.exp(f)) + stats.norm.logpdf(f, mean, variance**0.5)
                reference = special.logsumexp(terms) + np.log(f[1] - f[0])
                value = mixture.draw_log_prob(torch.full((1, 1), float(count), dtype=dtype)).item()
                assert value == pytest.approx(reference, abs=tolerance, rel=tolerance if reference < -50 else 0)


@pytest.mark.parametrize(("mean", "variance"), [(-3.0, 4.0), (1.0, 1e-4), (4.6, 0.05), (6.0, 3.0), (14.0, 4.0)])
def test_poisson_distribution_function_whatever_is_narrower(mean: float, variance: float) -> None:
    """The function or the counts' noise; the last needs some 100,000 equidistant nodes."""
    counts = [0, 1, *(int(np.exp(mean + k * (variance + np.exp(-mean)) ** 0.5)) for k in (-1, -0.2, 0.3, 1.5))]
    tall = [torch.full((1, len(counts), 1), value) for value in (mean, variance)]
    found = Poisson().predictive(*tall).cdf(torch.tensor(counts, dtype=torch.float64)[:, None])[:, 0]
    z = np.linspace(-8.5, 8.5, 400_001)
    mass = stats.norm.pdf(z) * (z[1] - z[0])
    expected = [(mass * stats.poisson.cdf(k, np.exp(mean + variance**0.5 * z))).sum() for k in counts]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_poisson_of_counts_that_have_no_neighbours_in_their_dtype(dtype: torch.dtype) -> None:
    """Quantiles of some once took for ever, and samples were negative; those of rows beside them stay exact."""
    log_rates = torch.tensor([2.0, 12.0, 17.0, 18.5, 38.0, 44.5, 60.0], dtype=dtype)
    known = Poisson().predictive(log_rates[None, :, None], torch.zeros(1, 7, 1, dtype=dtype))
    unsure = Poisson().predictive(log_rates[None, 2:, None], torch.full((1, 5, 1), 0.5, dtype=dtype))
    precise = 1e-6 if dtype == torch.float32 else 1e-9
    for q in (0.1, 0.3, 0.5, 0.9):
        rate = log_rates.double().exp().numpy()
        assert known.quantile(q)[0, 0] == stats.poisson.ppf(q, rate[0])
        normal = rate[4:] + rate[4:] ** 0.5 * stats.norm.ppf(q)
        np.testing.assert_allclose(known.quantile(q)[4:, 0].double(), normal, rtol=precise)
        expected = np.exp(log_rates[2:].double().numpy() + 0.5**0.5 * stats.norm.ppf(q))
        np.testing.assert_allclose(unsure.quantile(q)[:, 0].double(), expected, rtol=1e-5)
    draws = known.sample(torch.zeros(2000, dtype=torch.long), None)[..., 0].double()  # [2000, 7]
    error = (draws.mean(0) - log_rates.double().exp()) / (log_rates.double() / 2).exp() * 2000**0.5
    assert (error.abs()[:3] < 4).all()
    if dtype == torch.float64:  # float32 has no digits for the spread of the others
        assert (error.abs() < 4).all()
        np.testing.assert_allclose(draws.var(0), log_rates.exp(), rtol=0.15)
        assert torch.equal(draws, draws.round())
    np.testing.assert_allclose(draws.mean(0), log_rates.double().exp(), rtol=0.1)


# ---- wide functions, heavy tails and far targets


@pytest.mark.parametrize(("df", "scale", "variance", "y"), [(1.0, 0.01, 1.0, 0.3), (4.0, 0.05, 2.0, -1.0)])
def test_student_t_expectation_when_the_function_is_wide(df: float, scale: float, variance: float, y: float) -> None:
    expected = _gaussian_expectation(lambda f: stats.t.logpdf(y, df, f, scale), 0.0, variance)
    m, v, target = torch.zeros(1, 1), torch.full((1, 1), variance), torch.full((1, 1), y)
    assert StudentT(df, scale).expected_log_prob(m, v, target).item() == pytest.approx(expected, abs=5e-4)
    finer = StudentT(df, scale, n_quadrature=60).expected_log_prob(m, v, target).item()
    assert finer == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("mean", "deviation"), [(-80.0, 9.0), (-200.0, 15.0), (-40.0, 1.0), (3.0, 30.0), (-900.0, 30.0)]
)
def test_logit_predictive_far_in_the_tail(mean: float, deviation: float) -> None:
    f = np.linspace(mean - 40 * deviation, mean + 40 * deviation, 400_001)
    for y in (0.0, 1.0):
        terms = special.log_expit((2 * y - 1) * f) + stats.norm.logpdf(f, mean, deviation)
        expected = special.logsumexp(terms) + np.log(f[1] - f[0])
        for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 1e-5)):
            m, v = torch.full((1, 1, 1), mean, dtype=dtype), torch.full((1, 1, 1), deviation**2, dtype=dtype)
            value = Bernoulli().predictive(m, v).draw_log_prob(torch.full((1, 1), y, dtype=dtype)).item()
            assert value == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_a_huge_certain_rate_does_not_disturb_other_counts() -> None:
    mean = torch.tensor([180.0, 1.0], dtype=torch.float32)[None, :, None]
    variance = torch.tensor([0.0, 1.0], dtype=torch.float32)[None, :, None]
    below = Poisson().predictive(mean, variance).cdf(torch.full((2, 1), 3.0, dtype=torch.float32))[1].item()
    assert below == pytest.approx(_gaussian_expectation(lambda f: stats.poisson.cdf(3, np.exp(f)), 1.0, 1.0), abs=1e-5)


# ---- targets


@EVERY
def test_bad_targets_say_where(name: str) -> None:
    make, targets, _ = REGISTRY[name]
    likelihood, good = make(), targets().double()
    for value in (float("nan"), float("inf")):
        bad = good.clone()
        bad[3:] = value
        with pytest.raises(DataError, match=rf"{bad[3:].numel()} of {bad.numel()} .* row 3.*Remove"):
            likelihood.check_targets(bad)
    with pytest.raises(DataError, match="empty"):
        likelihood.check_targets(good[:0])
    with pytest.raises(ShapeError):
        likelihood.check_targets(good[None, None])
    with pytest.raises((ShapeError, DataError)):
        likelihood.check_targets(good, 1)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (Bernoulli(), [0.0, 1.0, -1.0], r"1 of 3 .* row 2.*0 and 1"),
        (Bernoulli(), [0.0, 0.5, 0.25], r"2 of 3 .* row 1"),
        (Categorical(), [0.0, 1.5], r"1 of 2 .*whole.* row 1"),
        (Categorical(), [-1, 2, -3], r"2 of 3 .*negative.* row 0"),
        (Poisson(), [3.0, -1.0], r"1 of 2 .*counts.* row 1"),
        (Poisson(), [0.5, 2.0], r"1 of 2 .*counts.* row 0"),
    ],
)
def test_values_that_do_not_fit(likelihood: Likelihood, y: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        likelihood.check_targets(torch.tensor(y))


def test_targets_in_their_internal_form() -> None:
    assert Gaussian().check_targets(torch.tensor([1, 2])).tolist() == [[1.0], [2.0]]
    assert Bernoulli().check_targets(torch.tensor([True, False])).tolist() == [[1.0], [0.0]]
    assert Bernoulli().check_targets(torch.ones(3, 2, dtype=torch.int64)).shape == (3, 2)
    classes = Categorical().check_targets(torch.tensor([0.0, 2.0]))
    assert classes.dtype == torch.int64
    assert classes.tolist() == [0, 2]
    with pytest.raises(DataError, match=r"3 classes.*row 1"):
        Categorical().check_targets(torch.tensor([0, 3]), 3)
    with pytest.raises(ShapeError, match="argmax"):
        Categorical().check_targets(torch.eye(3))
    with pytest.raises(DataError, match="real"):
        Gaussian().check_targets(torch.zeros(2, dtype=torch.complex128))


# ---- hyperparameters


def test_hyperparameters_are_shared_fixed_and_checked() -> None:
    shared = Positive(0.5)
    assert Gaussian(shared).noise is shared
    assert not Gaussian(0.1, learn=False).noise.raw.requires_grad
    assert Gaussian(0.1, out_features=3).noise.value.shape == (3,)
    assert Gaussian(torch.tensor([0.1, 0.2]), out_features=2).noise.value.tolist() == pytest.approx([0.1, 0.2])
    student = StudentT(4.0, 0.5)
    assert student.scale.raw.requires_grad
    assert not student.df.raw.requires_grad
    assert StudentT(4.0, learn_df=True).df.raw.requires_grad
    with pytest.raises(ConfigurationError, match="positive"):
        Gaussian(-1.0)
    with pytest.raises(ConfigurationError, match="positive"):
        StudentT(df=0.0)
    with pytest.raises(ShapeError, match="out_features"):
        Gaussian(torch.tensor([0.1, 0.2]))
    with pytest.raises(ConfigurationError, match="probit"):
        Bernoulli("cloglog")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="n_latent_noise"):
        Categorical(n_latent_noise=0)
    with pytest.raises(ConfigurationError, match="2 outputs for each target"):
        HeteroscedasticGaussian().n_targets(3)


@pytest.mark.parametrize("likelihood", [Gaussian(0.3, out_features=2), StudentT(scale=0.3, out_features=2)])
def test_values_for_other_targets_are_refused(likelihood: Likelihood) -> None:
    """Two noises of one target would count it twice."""
    what = r"has 2 values of (noise|scale) for 1 target\(s\)\. Use out_features=1"
    f, y = torch.zeros(4, 1), torch.zeros(4, 1)
    with pytest.raises(ShapeError, match=what):
        likelihood.log_prob(f, y)
    with pytest.raises(ShapeError, match=what):
        likelihood.expected_log_prob(f, torch.ones(4, 1), y)
    with pytest.raises(ShapeError, match=what):
        likelihood.predictive(f[None])
    with pytest.raises(ShapeError, match="for 3 target"):
        likelihood.n_targets(3)
    assert likelihood.n_targets(2) == 2
    assert Gaussian(0.3, out_features=1).n_targets(2) == 2  # one value for all


def test_predictions_do_not_follow_later_training() -> None:
    likelihood = Gaussian(0.5)
    mixture = likelihood.predictive(torch.zeros(1, 1, 1))
    before = mixture.draw_log_prob(torch.zeros(1, 1)).item()
    likelihood.noise.set(5.0)
    assert mixture.draw_log_prob(torch.zeros(1, 1)).item() == before


# ---- special functions and quadrature


@pytest.mark.parametrize("spacing", [0.0, 0.05, 0.6, 3.0, 8.0, math.inf])
def test_normal_grid_has_the_moments_of_a_gaussian_whatever_spacing_is_asked_for(spacing: float) -> None:
    nodes, log_weights = normal_grid(spacing, torch.float64)
    for power, moment in ((0, 1.0), (1, 0.0), (2, 1.0), (4, 3.0), (8, 105.0)):
        assert float((log_weights.exp() * nodes**power).sum()) == pytest.approx(moment, abs=1e-8)
    assert float(nodes.diff().max()) <= 0.6


@pytest.mark.parametrize("df", [0.3, 1.0, 2.5, 4.0, 30.0, 1e4])
def test_student_t_cdf(df: float) -> None:
    t = np.concatenate([-np.logspace(-6, 6, 41), [0.0], np.logspace(-6, 6, 41)])
    ours = student_t_cdf(torch.as_tensor(t), torch.tensor(df)).numpy()
    np.testing.assert_allclose(ours, stats.t.cdf(t, df), rtol=0, atol=1e-8)
    single = student_t_cdf(torch.as_tensor(t, dtype=torch.float32), torch.tensor(df, dtype=torch.float32))
    np.testing.assert_allclose(single.numpy(), ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("df", [9e4, 1.1e5, 1e7, 1e12, 1e15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_student_t_cdf_for_large_df(df: float, dtype: torch.dtype) -> None:
    t = np.array([-10.0, -5.0, -1.96, 0.0, 0.5, 1.96, 7.0])
    ours = student_t_cdf(torch.as_tensor(t, dtype=dtype), torch.tensor(df, dtype=dtype))
    assert ours.dtype == dtype
    tolerance = 1e-11 if dtype == torch.float64 else 3e-5  # the density at -10, where t has rounded
    np.testing.assert_allclose(ours.double().numpy(), stats.t.cdf(t, df), rtol=tolerance)


def test_student_t_cdf_is_the_integral_of_its_density() -> None:
    df = 2.5
    for t in (-7.0, 0.3, 2.0):
        area, _ = integrate.quad(lambda u: stats.t.pdf(u, df), 0, t, epsabs=1e-13, epsrel=1e-13)
        ours = student_t_cdf(torch.tensor(t), torch.tensor(df)).item()
        assert ours == pytest.approx(0.5 + area, abs=1e-12)
    cauchy = student_t_cdf(torch.tensor([-1e8, 1e-8]), torch.tensor(1.0))
    torch.testing.assert_close(cauchy, torch.tensor([1e-8 / np.pi, 0.5 + 1e-8 / np.pi]), rtol=1e-13, atol=0)


def test_log_ndtr_and_its_gradient() -> None:
    z = torch.linspace(-60, 12, 500).requires_grad_()
    value = log_ndtr(z)
    np.testing.assert_allclose(value.detach().numpy(), special.log_ndtr(z.detach().numpy()), rtol=1e-12)
    value.sum().backward()
    assert z.grad is not None
    expected = np.exp(stats.norm.logpdf(z.detach().numpy()) - special.log_ndtr(z.detach().numpy()))
    np.testing.assert_allclose(z.grad.numpy(), expected, rtol=1e-10)


def test_lgamma_half_step() -> None:
    a = np.array([0.05, 0.5, 3.0, 19.9, 20.1, 500.0])
    expected = special.gammaln(a + 0.5) - special.gammaln(a)
    np.testing.assert_allclose(lgamma_half_step(torch.as_tensor(a)).numpy(), expected, rtol=0, atol=2e-12)
    single = lgamma_half_step(torch.tensor(1e6, dtype=torch.float32)).item()
    assert single == pytest.approx(0.5 * np.log(1e6) - 1 / 8e6, rel=1e-6)


@pytest.mark.parametrize("shape", [0.1, 0.5, 2.0, 15.0, 5e4])
def test_log_gamma_grid(shape: float) -> None:
    nodes, log_weights = log_gamma_grid(shape, torch.float64)
    assert len(nodes) <= 4200
    # moments of a gamma with mean 1
    assert (log_weights + nodes).exp().sum().item() == pytest.approx(1.0, abs=1e-10)
    assert (log_weights + 2 * nodes).exp().sum().item() == pytest.approx(1 + 1 / shape, rel=1e-10)
    log_mean = special.digamma(shape) - np.log(shape)
    assert (log_weights.exp() * nodes).sum().item() == pytest.approx(log_mean, abs=1e-10)


def test_gauss_hermite_keeps_its_digits() -> None:
    torch.set_default_dtype(torch.float32)
    rule = GaussHermite(20).double()
    value = rule(lambda f: f**10, torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    assert value.item() == pytest.approx(945.0, rel=1e-12)
    with pytest.raises(ConfigurationError, match="nodes"):
        GaussHermite(0)


@pytest.mark.parametrize("variance", [0.0, 0.3, 10.0, 1e4, 1e7])
def test_logit_expectation_however_wide_the_function_is(variance: float) -> None:
    means = torch.tensor([-1000.0, -30.0, -2.0, 0.0, 0.7, 5.0, 40.0]).requires_grad_()
    variances = torch.full((7,), variance).requires_grad_()

    def by_parts(function: Callable[[np.ndarray], np.ndarray], mean: float) -> float:
        """Adaptive integration, on either side of the bend and of the Gaussian's middle."""
        if variance == 0.0:
            return float(function(np.array(mean)))
        d = variance**0.5
        ends = sorted({mean - 14 * d, mean + 14 * d, *(p for p in (-40.0, 0.0, 40.0, mean) if abs(p - mean) < 14 * d)})
        return sum(
            integrate.quad(lambda f: function(f) * stats.norm.pdf(f, mean, d), a, b, epsabs=0, epsrel=1e-11, limit=200)[
                0
            ]
            for a, b in itertools.pairwise(ends)
        )

    values = [by_parts(special.log_expit, m) for m in means.tolist()]
    slopes = [by_parts(lambda f: special.expit(-f), m) for m in means.tolist()]
    bends = [by_parts(lambda f: special.expit(-f) * special.expit(f), m) for m in means.tolist()]
    for nodes, tolerance in ((5, 2e-4), (12, 3e-8), (20, 1e-11)):
        found = LogSigmoid(nodes).double()(means, variances)
        by_mean, by_variance = torch.autograd.grad(found.sum(), (means, variances))
        np.testing.assert_allclose(found.detach().numpy(), values, rtol=1e-10, atol=tolerance)
        np.testing.assert_allclose(by_mean.numpy(), slopes, rtol=1e-10, atol=10 * tolerance)
        np.testing.assert_allclose(by_variance.numpy(), -0.5 * np.array(bends), rtol=1e-10, atol=10 * tolerance)
    default = Bernoulli().expected_log_prob(means[:, None], variances[:, None], torch.ones(7, 1))
    np.testing.assert_allclose(default.detach().numpy(), values, rtol=1e-10, atol=3e-8)


@pytest.mark.parametrize(("variance", "most"), [(1.0, 1e-9), (10.0, 3e-4), (100.0, 0.06)])
def test_probit_expectation_errs_no_more_than_its_description_says(variance: float, most: float) -> None:
    means, z = torch.linspace(-40.0, 40.0, 401)[:, None], torch.linspace(-9.0, 9.0, 4001)
    weights = torch.softmax(-0.5 * z.square(), 0)
    expected = (weights * log_ndtr(means + variance**0.5 * z)).sum(1)
    found = Bernoulli("probit").expected_log_prob(means, torch.full_like(means, variance), torch.ones_like(means))
    assert float((found - expected).abs().max()) < most


def test_a_logit_saved_with_gauss_hermite_nodes_keeps_them() -> None:
    likelihood, (mean, y) = Bernoulli(), (torch.randn(3, 1), torch.ones(3, 1))
    new = likelihood.expected_log_prob(mean, mean.square(), y)
    likelihood.quadrature = GaussHermite(40)
    torch.testing.assert_close(likelihood.expected_log_prob(mean, mean.square(), y), new, rtol=0, atol=1e-6)


def test_negative_variances_are_not_hidden() -> None:
    assert torch.isnan(standard_deviation(torch.tensor([-1e-9]))).all()
