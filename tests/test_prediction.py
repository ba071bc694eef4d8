"""Predictions as distributions: they integrate to one, invert, decompose, and agree with their samples."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import vibayes as vb
from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Mixture,
    Poisson,
    StudentT,
    mixtures,
)
from vibayes.prediction import Prediction

S, N = 5, 4
LOC, SCALE = 3.0, 0.4

LIKELIHOODS: dict[str, Callable[[], Likelihood]] = {
    "gaussian": lambda: Gaussian(0.3),
    "heteroscedastic": HeteroscedasticGaussian,
    "student t": lambda: StudentT(4.5, 0.7),
    "logit": Bernoulli,
    "probit": lambda: Bernoulli("probit"),
    "categorical": Categorical,
    "poisson": Poisson,
}
REAL = ("gaussian", "heteroscedastic", "student t")
ORDERED = (*REAL, "poisson")


def _latents(
    name: str, targets: int = 1, exact: bool = False, dtype: torch.dtype = torch.float64
) -> tuple[Likelihood, Tensor, Tensor | None]:
    likelihood = LIKELIHOODS[name]().to(dtype)
    width = likelihood.latent_features(3 if name == "categorical" else targets)
    mean = torch.randn(S, N, width, dtype=dtype)
    return likelihood, mean, None if exact else 0.2 + 0.5 * torch.rand(S, N, width, dtype=dtype)


def _prediction(name: str, targets: int = 1, *, exact: bool = False, dtype: torch.dtype = torch.float64) -> Prediction:
    likelihood, mean, variance = _latents(name, targets, exact, dtype)
    units = {"loc": LOC, "scale": SCALE} if likelihood.scalable else {}
    weights = torch.linspace(0, 1, S)  # unequal draws
    return Prediction(likelihood.predictive(mean, variance, log_weights=weights), **units)


every = pytest.mark.parametrize("name", LIKELIHOODS)
real = pytest.mark.parametrize("name", REAL)
ordered = pytest.mark.parametrize("name", ORDERED)
exactness = pytest.mark.parametrize("exact", [True, False])


@real
@exactness
def test_density_integrates_to_one_and_to_the_cdf(name: str, exact: bool) -> None:
    prediction = _prediction(name, exact=exact)[0]

    def density(y: float) -> float:
        return prediction.log_prob(torch.tensor([y])).exp().item()

    pieces = [-math.inf, 0.0, 2.0, 3.0, 4.0, 6.0, math.inf]
    total = sum(integrate.quad(density, a, b, epsabs=1e-10)[0] for a, b in itertools.pairwise(pieces))
    assert total == pytest.approx(1.0, abs=1e-7)
    area = integrate.quad(density, 2.7, 3.5, epsabs=1e-12)[0]
    assert (prediction.cdf(3.5) - prediction.cdf(2.7)).item() == pytest.approx(area, abs=1e-9)


def test_probabilities_sum_to_one() -> None:
    counts = _prediction("poisson")[0]
    support = torch.arange(400.0)
    mass = torch.cat([counts.log_prob(value[None]).exp() for value in support])
    assert mass.sum().item() == pytest.approx(1.0, abs=1e-4)  # a log-normal rate has a long tail
    torch.testing.assert_close(mass[:50].sum(), counts.cdf(49.0)[0, 0], rtol=0, atol=1e-9)
    torch.testing.assert_close(counts.cdf(49.7), counts.cdf(49.0), rtol=0, atol=0)
    assert counts.cdf(-0.5).item() == 0
    classes = _prediction("categorical")
    torch.testing.assert_close(classes.probs.sum(-1), torch.ones(N))
    for c in range(3):
        torch.testing.assert_close(classes.log_prob(torch.full((N,), c)).exp(), classes.probs[:, c])
    for name in ("logit", "probit"):
        binary = _prediction(name)
        torch.testing.assert_close(binary.log_prob(torch.ones(N)).exp(), binary.probs[:, 0])
        torch.testing.assert_close(binary.log_prob(torch.zeros(N)).exp(), 1 - binary.probs[:, 0])


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name != "categorical"])
@exactness
def test_law_of_total_variance_and_samples(name: str, exact: bool) -> None:
    prediction = _prediction(name, exact=exact)
    torch.testing.assert_close(prediction.epistemic + prediction.aleatoric, prediction.variance)
    torch.testing.assert_close(prediction.std.square(), prediction.variance)
    assert (prediction.epistemic > 0).all()
    assert (prediction.aleatoric > 0).all()
    samples = prediction.sample(200_000, torch.Generator().manual_seed(1))
    assert samples.shape == (200_000, N, 1)
    error = samples.std(0) / samples.shape[0] ** 0.5
    assert ((samples.mean(0) - prediction.mean).abs() < 5 * error).all()
    spread = (samples - samples.mean(0)).square()
    error = spread.std(0) / samples.shape[0] ** 0.5
    assert ((spread.mean(0) - prediction.variance).abs() < 6 * error).all()
    again = prediction.sample(200_000, torch.Generator().manual_seed(1))
    torch.testing.assert_close(samples, again, rtol=0, atol=0)


@pytest.mark.parametrize("name", [*REAL, "logit", "probit", "poisson"])
def test_split_of_the_variance_against_sampled_functions(name: str) -> None:
    """`epistemic` is the variance of `E[y | f]` when f is sampled, its own Gaussian included."""
    likelihood, mean, variance = _latents(name)
    assert variance is not None
    prediction = Prediction(likelihood.predictive(mean, variance))
    copies = 40_000
    f = (mean + variance.sqrt() * torch.randn(copies, *mean.shape)).flatten(0, 1)  # exact draws, many
    sampled = Prediction(likelihood.predictive(f))
    for a, b in ((sampled.mean, prediction.mean), (sampled.epistemic, prediction.epistemic)):
        torch.testing.assert_close(a, b, rtol=0.06, atol=3e-3)
    torch.testing.assert_close(sampled.aleatoric, prediction.aleatoric, rtol=0.03, atol=1e-3)
    if prediction.kind == "binary":
        torch.testing.assert_close(sampled.entropy, prediction.entropy, rtol=0, atol=3e-3)
        torch.testing.assert_close(sampled.mutual_information, prediction.mutual_information, rtol=0, atol=3e-3)


@real
@exactness
def test_quantiles_invert_the_cdf(name: str, exact: bool) -> None:
    prediction = _prediction(name, 2, exact=exact)
    levels = [1e-6, 0.025, 0.3, 0.5, 0.975, 0.9999]
    quantiles = prediction.quantile(levels)
    assert quantiles.shape == (len(levels), N, 2)
    for level, value in zip(levels, quantiles, strict=True):
        torch.testing.assert_close(
            prediction.cdf(value), torch.full((N, 2), level), rtol=1e-9 if level > 1e-3 else 1e-7, atol=1e-11
        )
    assert (quantiles.diff(dim=0) > 0).all()
    torch.testing.assert_close(prediction.quantile(0.3), quantiles[2], rtol=0, atol=0)
    lower, upper = prediction.interval(0.95)
    torch.testing.assert_close(lower, quantiles[1], rtol=1e-12, atol=0)
    torch.testing.assert_close(upper, quantiles[4], rtol=1e-12, atol=0)


def test_quantile_of_one_component_is_the_closed_form() -> None:
    levels = [0.001, 0.2, 0.9]
    gaussian = Prediction(Gaussian(0.25).predictive(torch.full((1, 1, 1), 1.5)), loc=LOC, scale=SCALE)
    expected = LOC + SCALE * stats.norm.ppf(levels, 1.5, 0.5)
    np.testing.assert_allclose(gaussian.quantile(levels)[:, 0, 0].numpy(), expected, rtol=0, atol=1e-10)
    for df in (0.5, 1.0, 2.5, 30.0):
        student = Prediction(StudentT(df, 0.5).predictive(torch.full((1, 1, 1), 1.5)), loc=LOC, scale=SCALE)
        expected = LOC + SCALE * stats.t.ppf(levels, df, 1.5, 0.5)
        np.testing.assert_allclose(student.quantile(levels)[:, 0, 0].numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("df", [0.3, 0.5, 1.0, 1.03, 3.0])
def test_quantiles_of_heavy_tails_around_a_wide_function(df: float, dtype: torch.dtype) -> None:
    """The distribution function at the quantile, by averaging scipy's over the function's own quantiles."""
    mean, variance = torch.full((1, 1, 1), 0.7, dtype=dtype), torch.full((1, 1, 1), 1.5, dtype=dtype)
    prediction = Prediction(StudentT(df, 0.2).to(dtype).predictive(mean, variance))
    f = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000, 0.7, 1.5**0.5)
    for level in (0.01, 0.05, 0.3, 0.5, 0.9, 0.995):
        value = prediction.quantile(level).item()
        assert stats.t.cdf(value, df, f, 0.2).mean() == pytest.approx(level, abs=2e-5)
    lower, upper = prediction.interval(0.9)
    assert (upper > lower + 1).all()


def test_quantiles_of_wildly_different_components() -> None:
    """Needles, giants and gaps: the answer by brute bisection with scipy."""
    locations = np.array([0.0, 1e4, -3.0, 0.5, 7.0])
    deviations = np.array([1e-6, 1e-3, 200.0, 1.0, 1e-9])
    mixture = Gaussian(1e-30).predictive(
        torch.as_tensor(locations)[:, None, None], torch.as_tensor(deviations**2)[:, None, None]
    )
    prediction = Prediction(mixture)
    for level in (0.001, 0.3, 0.35, 0.55, 0.7, 0.79, 0.95):
        lower, upper = -1e6, 1e6
        for _ in range(200):
            middle = 0.5 * (lower + upper)
            if stats.norm.cdf(middle, locations, deviations).mean() < level:
                lower = middle
            else:
                upper = middle
        assert prediction.quantile(level).item() == pytest.approx(upper, abs=1e-8)
    # the search starts inside a needle, where Newton's steps are tiny far from the answer
    needle = Gaussian(1e-20).predictive(torch.zeros(2, 1, 1), torch.tensor([0.0, 1e4])[:, None, None])
    expected = 100 * stats.norm.ppf(0.6)
    assert Prediction(needle).quantile(0.8).item() == pytest.approx(expected, abs=1e-8)
    # between two far modes the distribution function is flat
    flat = Prediction(Gaussian(1e-6).predictive(torch.tensor([[[-100.0]], [[100.0]]])))
    assert -100 <= flat.quantile(0.5).item() <= 100
    assert flat.quantile(0.500001).item() == pytest.approx(100.0, abs=0.01)


def test_counts_have_the_smallest_quantile_that_reaches() -> None:
    prediction = _prediction("poisson", 2)
    for level in (1e-9, 0.025, 0.5, 0.99):
        value = prediction.quantile(level)
        assert (prediction.cdf(value) >= level).all()
        assert ((prediction.cdf(value - 1) < level) | (value == 0)).all()
    rates = torch.tensor([0.01, 3.0, 250.0, 4e4])
    exact = Prediction(Poisson().predictive(rates.log()[None, :, None]), squeeze=True)
    levels = [0.025, 0.4, 0.999]
    expected = stats.poisson.ppf(np.array(levels)[:, None], rates.numpy())
    np.testing.assert_array_equal(exact.quantile(levels).numpy(), expected)


@every
def test_several_targets_share_the_draw_only(name: str) -> None:
    """The joint density of a row's targets is the mean over draws of products, not the product of means."""
    if name == "categorical":
        pytest.skip("one class per row")
    likelihood, mean, variance = _latents(name, 2)
    y = likelihood.check_targets(torch.randint(0, 2, (N, 2)))
    joint = Prediction(likelihood.predictive(mean, variance)).log_prob(y)
    order = [0, 2, 1, 3] if name == "heteroscedastic" else [0, 1]
    half = len(order) // 2
    by_draw = torch.zeros(S, N)
    for target in range(2):
        columns = torch.tensor(order[target * half : (target + 1) * half])
        assert variance is not None
        for s in range(S):
            one = Prediction(likelihood.predictive(mean[s : s + 1, :, columns], variance[s : s + 1, :, columns]))
            by_draw[s] += one.log_prob(y[:, target])
    torch.testing.assert_close(joint, torch.logsumexp(by_draw, 0) - math.log(S), rtol=1e-8, atol=1e-8)


def test_units() -> None:
    likelihood, mean, variance = _latents("gaussian", 2)
    mixture = likelihood.predictive(mean, variance)
    plain = Prediction(mixture)
    loc, scale = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 10.0])
    scaled = Prediction(mixture, loc=loc, scale=scale)
    y = torch.randn(N, 2)
    torch.testing.assert_close(scaled.mean, loc + scale * plain.mean)
    torch.testing.assert_close(scaled.epistemic, scale**2 * plain.epistemic)
    torch.testing.assert_close(scaled.quantile(0.2), loc + scale * plain.quantile(0.2))
    torch.testing.assert_close(scaled.cdf(loc + scale * y), plain.cdf(y))
    torch.testing.assert_close(scaled.log_prob(loc + scale * y), plain.log_prob(y) - scale.log().sum())
    with pytest.raises(ConfigurationError, match="positive"):
        Prediction(mixture, scale=0.0)
    with pytest.raises(ShapeError, match="loc"):
        Prediction(mixture, loc=torch.zeros(3))
    with pytest.raises(ConfigurationError, match="regression"):
        Prediction(Poisson().predictive(torch.zeros(1, 2, 1)), loc=1.0)


def test_classes() -> None:
    torch.manual_seed(3)
    likelihood, mean, _ = _latents("categorical")
    probs = torch.softmax(mean, -1)
    prediction = Prediction(likelihood.predictive(mean), class_labels=["ant", "bee", "cat"])
    torch.testing.assert_close(prediction.probs, probs.mean(0))
    torch.testing.assert_close(prediction.entropy, torch.as_tensor(stats.entropy(probs.mean(0).numpy(), axis=-1)))
    expected = torch.as_tensor(stats.entropy(probs.numpy(), axis=-1)).mean(0)
    torch.testing.assert_close(prediction.mutual_information, prediction.entropy - expected)
    assert (prediction.mutual_information > 0).all()
    assert torch.equal(prediction.mode, probs.mean(0).argmax(-1))
    assert list(prediction.labels) == [["ant", "bee", "cat"][c] for c in prediction.mode]
    samples = prediction.sample(100_000, torch.Generator().manual_seed(0))
    assert samples.shape == (100_000, N)
    shares = torch.stack([(samples == c).double().mean(0) for c in range(3)], -1)
    torch.testing.assert_close(shares, prediction.probs, rtol=0, atol=0.008)
    with pytest.raises(DataError, match="3 classes"):
        prediction.log_prob(torch.tensor([0, 1, 2, 3]))
    with pytest.raises(ShapeError, match="labels"):
        Prediction(likelihood.predictive(mean), class_labels=["ant"])


def test_classes_of_wide_functions_are_those_of_their_samples() -> None:
    """Entropy, too, of which the mean over a draw's own samples is taken, not that of their mean probabilities."""
    likelihood, mean, variance = _latents("categorical")
    assert variance is not None
    eps = torch.randn(60, *mean.shape[1:])
    wide = Prediction(likelihood.predictive(mean, variance, eps))
    f = mean[:, None] + variance[:, None].sqrt() * eps  # [S, K, N, C]
    exact = Prediction(likelihood.predictive(f.flatten(0, 1)))
    for name in ("probs", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(wide, name), getattr(exact, name))
    y = torch.arange(N) % 3
    torch.testing.assert_close(wide.log_prob(y), exact.log_prob(y))


@pytest.mark.parametrize("draws", [1, 50])
def test_classes_of_wide_functions_have_a_thousand_samples_in_all(draws: int) -> None:
    """However few the draws are, and however few samples training takes."""
    mean = torch.zeros(draws, 400, 2)
    probs = Prediction(Categorical(n_latent_noise=10).predictive(mean, torch.full_like(mean, 4.0))).probs[:, 0]
    spread = torch.sigmoid(8.0**0.5 * torch.randn(100_000)).std() / 1000**0.5  # of a mean of a thousand
    assert float(probs.std()) == pytest.approx(float(spread), rel=0.2)  # its own error is 4 %


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("name", ["heteroscedastic", "student t"])
def test_a_mixture_integrates_as_finely_as_its_widest_part_needs(name: str, order: tuple[int, int]) -> None:
    """One part with a function that is hardly uncertain, or not at all, beside one whose log noise or function is."""
    likelihood, mean, _ = _latents(name)
    spreads = (torch.full_like(mean, 1e-6), torch.full_like(mean, 6.0))
    if name == "student t":
        parts = [Prediction(likelihood.predictive(mean, variance)) for variance in (None, spreads[1])]
    else:
        parts = [Prediction(likelihood.predictive(mean, variance)) for variance in spreads]
    mixed = Prediction.mixture_of([parts[i] for i in order])
    y = torch.randn(N, 1)
    expected = torch.logaddexp(parts[0].log_prob(y), parts[1].log_prob(y)) - math.log(2.0)
    torch.testing.assert_close(mixed.log_prob(y), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("level", [0.2, 0.8])
def test_a_needle_does_not_hold_quantiles(level: float) -> None:
    """Where the search begins the density is so large that Newton's steps are nothing, far from the quantile."""
    means, noises = [0.0, *torch.linspace(-1.0, 1.0, 9).tolist()], [1e-28] + 9 * [1.0]
    parts = [Gaussian(noise).predictive(torch.full((1, 1, 1), mean)) for mean, noise in zip(means, noises, strict=True)]
    mixed = Prediction.mixture_of([Prediction(part) for part in parts])
    assert mixed.cdf(mixed.quantile(level)).item() == pytest.approx(level, abs=1e-9)


def test_binary() -> None:
    binary = _prediction("probit", 2)
    torch.testing.assert_close(binary.mean, binary.probs)
    torch.testing.assert_close(binary.variance, binary.probs * (1 - binary.probs))
    assert torch.equal(binary.mode, (binary.probs > 0.5).long())
    assert (binary.mutual_information > 0).all()
    certain = Prediction(Bernoulli().predictive(torch.full((1, 1, 1), 800.0)))
    assert certain.entropy.item() == 0
    assert certain.log_prob(torch.zeros(1)).item() == -800
    # closed form of the probit: Phi(m / sqrt(1 + v))
    mean, variance = torch.tensor([[[0.7]]]), torch.tensor([[[2.0]]])
    probs = Prediction(Bernoulli("probit").predictive(mean, variance)).probs.item()
    assert probs == pytest.approx(stats.norm.cdf(0.7 / 3**0.5), abs=1e-14)


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("logit", "quantile"),
        ("categorical", "quantile"),
        ("categorical", "cdf"),
        ("categorical", "mean"),
        ("categorical", "variance"),
        ("gaussian", "probs"),
        ("poisson", "entropy"),
        ("student t", "mode"),
    ],
)
def test_what_makes_no_sense_says_what_to_use(name: str, attribute: str) -> None:
    prediction = _prediction(name)

    def ask() -> None:
        getattr(prediction, attribute)(0.5)

    with pytest.raises(ConfigurationError, match=rf"{prediction.kind} has no .*{attribute}.*Use .*log_prob"):
        ask()


def test_student_t_without_moments() -> None:
    latents = torch.zeros(2, 3, 1)
    infinite = Prediction(StudentT(2.0).predictive(latents))
    assert torch.isinf(infinite.variance).all()
    assert torch.isfinite(infinite.mean).all()
    cauchy = Prediction(StudentT(1.0).predictive(latents))
    assert torch.isnan(cauchy.mean).all()
    torch.testing.assert_close(cauchy.quantile(0.75), torch.ones(3, 1))


@exactness
def test_mixture_of_different_degrees_of_freedom(exact: bool) -> None:
    mean = torch.randn(2, N, 1, dtype=torch.float64)
    variance = None if exact else torch.rand(2, N, 1, dtype=torch.float64)
    parts = [Prediction(StudentT(df, 0.5).double().predictive(mean, variance)) for df in (1.5, 4.0, 80.0)]
    mixture = Prediction.mixture_of(parts)
    y = torch.linspace(-2, 6, N, dtype=torch.float64)[:, None]
    torch.testing.assert_close(mixture.log_prob(y).exp(), sum(p.log_prob(y).exp() for p in parts) / 3)
    torch.testing.assert_close(mixture.cdf(y), sum(p.cdf(y) for p in parts) / 3)
    torch.testing.assert_close(mixture.cdf(mixture.quantile(0.9)), torch.full_like(y, 0.9))
    torch.testing.assert_close(mixture.mean, parts[0].mean)
    assert torch.isinf(mixture.variance).all()
    generator = torch.Generator().manual_seed(0)
    below = (mixture.sample(20_000, generator) <= y).double().mean(0)
    torch.testing.assert_close(below, mixture.cdf(y), rtol=0, atol=0.015)


@every
@exactness
def test_slices_and_joins(name: str, exact: bool) -> None:
    prediction = _prediction(name, exact=exact)
    assert len(prediction) == N
    y = torch.randint(0, 2, (N,))
    joined = Prediction.concatenate([prediction[:1], prediction[1], prediction[2:]])
    torch.testing.assert_close(joined.log_prob(y), prediction.log_prob(y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(prediction[[3, 0]].log_prob(y[[3, 0]]), prediction.log_prob(y)[[3, 0]])
    torch.testing.assert_close(prediction[-1].log_prob(y[-1:]), prediction.log_prob(y)[-1:])
    assert len(list(prediction)) == N
    assert set(joined.numpy()) == set(prediction.numpy())
    for key, value in prediction.numpy().items():
        np.testing.assert_allclose(joined.numpy()[key], value, rtol=1e-12)
    assert f"{N} rows" in repr(prediction)
    assert ".log_prob" in repr(prediction)
    with pytest.raises(IndexError):
        prediction[N]


def test_joins_that_cannot_be() -> None:
    few = Prediction(Gaussian(0.3).predictive(torch.zeros(2, 3, 1)))
    many = Prediction(Gaussian(0.3).predictive(torch.zeros(4, 3, 1)))
    with pytest.raises(ShapeError, match="n_samples"):
        Prediction.concatenate([few, many])
    with pytest.raises(ConfigurationError, match="noise differs"):
        Prediction.concatenate([few, Prediction(Gaussian(0.4).predictive(torch.zeros(2, 3, 1)))])
    with pytest.raises(ConfigurationError, match="same model"):
        Prediction.concatenate([few, Prediction(Poisson().predictive(torch.zeros(2, 3, 1)))])
    with pytest.raises(ConfigurationError, match="units"):
        Prediction.concatenate([few, Prediction(few.mixture, scale=2.0)])
    with pytest.raises(ConfigurationError, match="at least one"):
        Prediction.concatenate([])


@every
def test_small_memory_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prediction = _prediction(name)
    y = torch.randint(0, 2, (N,))

    def results() -> list[Tensor]:
        fresh = prediction[:]  # nothing computed yet
        values = [fresh.log_prob(y)]
        if name in ORDERED:
            values += [fresh.quantile([0.1, 0.6]), fresh.cdf(1.0), fresh.mean, fresh.variance]
        return values

    before = results()
    monkeypatch.setattr(mixtures, "_BUDGET", 1)
    assert len(list(prediction.mixture.parts())) == N
    for a, b in zip(before, results(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    if name in ("logit", "probit"):  # their nodes are summed when the mixture is made
        likelihood, mean, variance = _latents(name)
        small = likelihood.predictive(mean, variance)
        monkeypatch.undo()
        torch.testing.assert_close(small.log_one, likelihood.predictive(mean, variance).log_one)


def test_temporaries_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    prediction = Prediction(Gaussian(0.1).predictive(torch.randn(200, 50, 1)))
    monkeypatch.setattr(mixtures, "_BUDGET", 2_000)
    rows: list[int] = []
    original = Mixture.rows

    def spy(self: Mixture, index: slice) -> Mixture:
        piece = original(self, index)
        rows.append(piece.n_rows)
        return piece

    monkeypatch.setattr(Mixture, "rows", spy)
    prediction.log_prob(torch.zeros(50))
    prediction.quantile(0.5)
    assert max(rows) == 10
    assert sum(rows) == 100


@every
def test_float32(name: str) -> None:
    torch.manual_seed(1)
    single = _prediction(name, dtype=torch.float32)
    torch.manual_seed(1)
    y = torch.randint(0, 2, (N,))
    assert single.log_prob(y).dtype == torch.float32
    assert torch.isfinite(single.log_prob(y)).all()
    if name in ORDERED:
        for level in (0.025, 0.5, 0.975):
            value = single.quantile(level)
            assert value.dtype == torch.float32
            if name in REAL:
                torch.testing.assert_close(single.cdf(value), torch.full_like(value, level), rtol=0, atol=2e-6)


def test_squeeze_and_shapes() -> None:
    likelihood, mean, variance = _latents("gaussian")
    prediction = Prediction(likelihood.predictive(mean, variance), squeeze=True)
    assert prediction.mean.shape == prediction.std.shape == prediction.quantile(0.2).shape == (N,)
    assert prediction.quantile([0.2, 0.4]).shape == (2, N)
    assert prediction.sample(7).shape == (7, N)
    assert prediction.cdf(prediction.mean).shape == (N,)
    assert prediction.log_prob(prediction.mean).shape == (N,)
    assert (prediction.n_draws, prediction.n_components) == (S, S)
    with pytest.raises(ShapeError, match="single target"):
        Prediction(likelihood.predictive(torch.zeros(1, 3, 2)), squeeze=True)
    with pytest.raises(ShapeError, match="4 rows"):
        prediction.log_prob(torch.zeros(3))
    with pytest.raises(ShapeError, match="shape"):
        prediction.cdf(torch.zeros(3))
    with pytest.raises(DataError, match="NaN"):
        prediction.log_prob(torch.full((N,), math.nan))
    for bad in (0.0, 1.0, [0.5, 1.5], math.nan):
        with pytest.raises(ConfigurationError, match="between 0 and 1"):
            prediction.quantile(bad)
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        prediction.interval(95)


def test_covariance() -> None:
    draws = torch.randn(50, N, 2)
    centred = draws - draws.mean(0)
    covariance = torch.einsum("snp,smp->pnm", centred, centred) / 50
    scale = torch.tensor([2.0, 0.1])
    prediction = Prediction(Gaussian(0.1).predictive(draws), scale=scale, covariance=covariance)
    torch.testing.assert_close(prediction.covariance.diagonal(dim1=1, dim2=2).T, prediction.epistemic)
    part = prediction[[2, 0]]
    torch.testing.assert_close(part.covariance, prediction.covariance[:, [2, 0]][:, :, [2, 0]])
    with pytest.raises(ConfigurationError, match=r"joint=True"):
        _ = Prediction.concatenate([part, part]).covariance
    with pytest.raises(ShapeError, match="covariance"):
        Prediction(Gaussian(0.1).predictive(draws), covariance=covariance[:1])


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("n_draws", [1, 3])
def test_samples_have_the_covariance_between_rows(name: str, n_draws: int) -> None:
    likelihood = LIKELIHOODS[name]()
    mean = torch.randn(n_draws, N, likelihood.latent_features(1))
    root = torch.randn(N, N)
    within = root @ root.T / N
    variance = torch.zeros_like(mean)
    variance[:, :, 0] = within.diagonal()
    centred = mean[:, :, 0] - mean[:, :, 0].mean(0)
    covariance = within + centred.T @ centred / n_draws
    prediction = Prediction(likelihood.predictive(mean, variance), loc=LOC, scale=SCALE, covariance=covariance[None])
    samples = prediction.sample(200_000, torch.Generator().manual_seed(1))[..., 0]
    error = samples.std(0) / 200_000**0.5
    assert ((samples.mean(0) - prediction.mean[:, 0]).abs() < 5 * error).all()
    expected = prediction.covariance[0] + prediction.aleatoric[:, 0].diag()
    products = torch.einsum("sn,sm->snm", samples - samples.mean(0), samples - samples.mean(0))
    error = products.std(0) / 200_000**0.5
    assert ((products.mean(0) - expected).abs() < 6 * error).all()


def test_joint_predictions_of_close_inputs_are_sampled_alike() -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.01))
    gp.condition(torch.tensor([[0.0]]), torch.tensor([0.0]))
    prediction = gp.predict(torch.tensor([[3.0], [3.01]]), joint=True)
    assert torch.corrcoef(prediction.sample(20_000).T)[0, 1] == pytest.approx(1 / 1.01, abs=0.01)


def test_integer_targets_keep_their_digits() -> None:
    torch.set_default_dtype(torch.float32)
    mean = torch.full((1, 1, 1), 20000001.0, dtype=torch.float64)
    prediction = Prediction(Gaussian(0.01).double().predictive(mean))
    expected = stats.norm.logpdf(0.0, 0.0, 0.1)
    for y in (torch.tensor([20000001]), np.array([20000001])):
        assert prediction.log_prob(y).item() == pytest.approx(expected)
        assert prediction.cdf(y).item() == pytest.approx(0.5)
    counts = Prediction(Poisson().predictive(torch.full((1, 1, 1), math.log(2e7), dtype=torch.float64)))
    assert counts.log_prob(torch.tensor([20000001])).item() == pytest.approx(stats.poisson.logpmf(20000001, 2e7))


def test_rows_by_scalars_of_any_kind_and_no_rows() -> None:
    prediction = _prediction("gaussian")
    for index in (np.int64(3), torch.tensor(3), torch.tensor(-1)):
        torch.testing.assert_close(prediction[index].mean, prediction.mean[3:], rtol=0, atol=0)
    with pytest.raises(IndexError, match="Row 9"):
        prediction[np.int64(9)]
    empty = prediction[2:2]
    assert empty.mean.shape == empty.cdf(0.0).shape == (0, 1)
    assert empty.quantile([0.1, 0.9]).shape == (2, 0, 1)


def test_rows_by_lists_masks_and_steps() -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    gp.condition([[0.0], [1.0]], [0.0, 1.0])
    prediction = gp.predict([[0.0], [0.5], [1.5]], joint=True)
    for index, rows in (
        (slice(None, None, -1), [2, 1, 0]),
        ([], []),
        ([-1, 0], [2, 0]),
        ([True, False, True], [0, 2]),
        (np.array([False, True, True]), [1, 2]),
        (torch.tensor([True, False, False]), [0]),
    ):
        some = prediction[index]
        torch.testing.assert_close(some.mean, prediction.mean[rows], rtol=0, atol=0)
        torch.testing.assert_close(some.covariance, prediction.covariance[:, rows][:, :, rows], rtol=0, atol=0)
    for wrong in ([3], [True, False], [0.5], None, [[0, 1], [1, 2]], torch.ones(3, 1, dtype=torch.long)):
        with pytest.raises(IndexError):
            prediction[wrong]


@pytest.mark.parametrize("n", [0, -1, 2.5, True])
def test_numbers_of_draws_that_are_none(n: float) -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    gp.condition([[0.0], [1.0]], [0.0, 1.0])
    prediction = gp.predict([[0.5]])
    for draw in (prediction.sample, lambda n: gp.sample_functions([[0.5]], n)):
        with pytest.raises(ConfigurationError, match="n must be at least 1, a whole number"):
            draw(n)
    with pytest.raises(ConfigurationError, match="batch_size must be at least 1, a whole number"):
        gp.predict([[0.5]], batch_size=n)


def test_cdf_of_pandas_and_lists() -> None:
    pandas = pytest.importorskip("pandas")
    prediction = _prediction("gaussian")
    values = [1.0, 2.0, 3.0, 4.0]
    for given in (pandas.Series(values, index=[7, 8, 9, 10]), values, np.array(values)):
        torch.testing.assert_close(prediction.cdf(given), prediction.cdf(torch.tensor(values)))
