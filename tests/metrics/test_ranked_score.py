"""The CRPS against closed forms, integrals and sums."""

import math

import numpy as np
import pytest
import torch
from metric_cases import gaussian
from scipy import integrate, special, stats
from torch import Tensor

from vibayes import metrics
from vibayes.likelihoods import Gaussian, Poisson, StudentT
from vibayes.prediction import Prediction


def gaussian_crps(mean: np.ndarray, std: float, y: np.ndarray) -> np.ndarray:
    """Gneiting and Raftery 2007, eq. 21."""
    z = (y - mean) / std
    return std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))


def mixture_crps(means: Tensor, std: float, y: Tensor) -> float:
    """Closed form of an equal mixture of Gaussians (Grimit et al. 2006), means `[S]`."""

    def A(m: Tensor, s: float) -> Tensor:
        z = (m / s).numpy()
        return torch.as_tensor(m.numpy() * (2 * stats.norm.cdf(z) - 1) + 2 * s * stats.norm.pdf(z))

    return float(A(y - means, std).mean() - 0.5 * A(means[:, None] - means, std * 2**0.5).mean())


class Integrated:
    """A prediction that does not tell its closed form."""

    def __init__(self, prediction: Prediction) -> None:
        self.quantile, self.cdf = prediction.quantile, prediction.cdf


@pytest.mark.parametrize(("of", "tolerance"), [(lambda prediction: prediction, 1e-12), (Integrated, 1e-6)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_crps_of_a_gaussian_is_the_closed_form(scale, of, tolerance):
    mean = scale * torch.randn(1, 50)
    y = mean[0] + scale * torch.linspace(-20, 20, 50)  # far outside too
    expected = gaussian_crps(mean[0].numpy(), scale, y.numpy()).mean()
    assert metrics.crps(of(gaussian(mean, scale**2)), y) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(("of", "tolerance"), [(lambda prediction: prediction, 1e-12), (Integrated, 1e-5)])
@pytest.mark.parametrize("std", [1.0, 0.1, 0.003])
@pytest.mark.parametrize("y", [-5.0, 0.3, 5.01])
def test_crps_of_a_mixture_is_the_closed_form(std, y, of, tolerance):
    means = torch.tensor([-5.0, -4.9, 0.0, 5.0, 5.0, 5.2])
    expected = mixture_crps(means, std, torch.tensor(y))
    got = metrics.crps(of(gaussian(means[:, None], std**2)), torch.tensor([y]))
    assert got == pytest.approx(expected, rel=tolerance)


def test_crps_of_draws_with_weights_and_variances_in_units():
    """What each draw leaves open of the function, weights of draws, two targets, units: the integral of all of it."""
    mean, variance, y = torch.randn(4, 3, 2), torch.rand(4, 3, 2), 10 * torch.randn(3, 2)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    mixture = Gaussian(torch.tensor([0.1, 0.5]), out_features=2).predictive(mean, variance, log_weights=weights.log())
    prediction = Prediction(mixture, loc=torch.tensor([1.0, 2.0]), scale=torch.tensor([3.0, 20.0]))
    scores = prediction.crps(y)
    assert scores.shape == (3, 2)
    assert metrics.crps(prediction, y) == pytest.approx(float(scores.mean()), rel=1e-12)
    assert metrics.crps(Integrated(prediction), y) == pytest.approx(float(scores.mean()), rel=1e-6)


def test_crps_integrates_few_rows_at_a_time(monkeypatch):
    prediction = Prediction(StudentT(df=3.0).predictive(torch.randn(2, 7, 1)), squeeze=True)
    assert prediction.crps(torch.zeros(7)) is None
    y = torch.randn(7)
    whole = metrics.crps(prediction, y)
    monkeypatch.setattr("vibayes.metrics.ranked_score._CRPS_ROWS", 3)
    assert metrics.crps(prediction, y) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(("df", "tolerance"), [(3.0, 1e-6), (1.0, 2e-5)])
def test_crps_with_heavy_tails_is_the_integral(df, tolerance):
    prediction = Prediction(StudentT(df=df, scale=1.5).predictive(torch.zeros(1, 1, 1)), squeeze=True)
    t = stats.t(df, scale=1.5)
    expected = (
        integrate.quad(lambda v: t.cdf(v) ** 2, -np.inf, 0.7)[0]
        + integrate.quad(lambda v: t.sf(v) ** 2, 0.7, np.inf)[0]
    )
    assert metrics.crps(prediction, torch.tensor([0.7])) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_crps_of_a_cauchy_around_a_wide_function(dtype):
    mixture = (
        StudentT(1.0, 0.1).to(dtype).predictive(torch.zeros(1, 1, 1, dtype=dtype), torch.ones(1, 1, 1, dtype=dtype))
    )
    places = np.concatenate([[0.0], np.logspace(-4, 7, 40_001)])
    density = special.voigt_profile(places, 1.0, 0.1)
    tail = 0.5 - integrate.cumulative_trapezoid(density, places, initial=0)
    tail[places > 1e3] = 0.1 / np.pi / places[places > 1e3]  # where the difference has lost its digits
    expected = 2 * np.trapezoid(tail**2, places)
    assert metrics.crps(Prediction(mixture), torch.zeros(1, 1)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("rate", [0.2, 7.0, 50_000.0])
def test_crps_of_counts_is_the_sum(rate):
    prediction = Prediction(Poisson().predictive(torch.full((1, 1, 1), math.log(rate))), squeeze=True)
    y = round(1.1 * rate) + 1
    k = np.arange(0, int(2 * rate) + 60)
    expected = ((stats.poisson(rate).cdf(k) - (k >= y)) ** 2).sum()
    got = metrics.crps(prediction, torch.tensor([y]))
    assert got == pytest.approx(expected, rel=1e-8 if rate < 1000 else 1e-3)


def test_crps_of_small_counts_beside_large_ones_is_the_sum():
    """How a target is scored does not depend on the others, whose counts may be too many to sum over."""
    rates, y = torch.tensor([0.3, 1.0, 8.0, 6000.0]), torch.tensor([0, 3, 9, 6100])

    def score(rows: slice) -> float:
        prediction = Prediction(Poisson().predictive(rates[rows].log()[None, :, None]), squeeze=True)
        return metrics.crps(prediction, y[rows])

    k = np.arange(0, 20_000)[:, None]
    expected = ((stats.poisson(rates.numpy()).cdf(k) - (k >= y.numpy())) ** 2).sum(0)
    assert score(slice(3)) == pytest.approx(expected[:3].mean(), rel=1e-8)
    assert score(slice(4)) == pytest.approx(expected.mean(), rel=1e-8)


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 4.0), (1.0, 3.0), (3.0, 2.0)])
def test_crps_of_counts_with_a_long_tail_is_the_sum(mean, variance):
    """Few counts have most of the probability, and the others are too many to sum over."""
    latent = torch.full((1, 1, 1), mean), torch.full((1, 1, 1), variance)
    prediction = Prediction(Poisson().predictive(*latent), squeeze=True)
    assert float(prediction.quantile(1 - 1e-6)) > 5_000
    k = torch.arange(0.0, 40_000.0)
    many = Prediction(Poisson().predictive(*(t.expand(1, len(k), 1) for t in latent)), squeeze=True)
    expected = float((many.cdf(k) - (k >= 2.0).double()).square().sum())
    assert metrics.crps(prediction, torch.tensor([2])) == pytest.approx(expected, rel=2e-5)


def test_crps_of_draws_is_fair():
    draws, y = torch.randn(5, 3), torch.randn(3)
    pairs = sum((draws[i] - draws[j]).abs() for i in range(5) for j in range(i))
    expected = ((draws - y).abs().mean(0) - pairs / 20).mean()
    assert metrics.crps(draws, y) == pytest.approx(float(expected), rel=1e-12)
    # unbiased: many tiny ensembles average to the distribution's score
    few, zero = torch.randn(2, 200_000), torch.zeros(200_000)
    assert metrics.crps(few, zero) == pytest.approx(float(gaussian_crps(0.0, 1.0, 0.0)), abs=0.01)


def test_crps_averages_over_outputs():
    mean, y = torch.randn(1, 4, 2), torch.randn(4, 2)
    expected = gaussian_crps(mean[0].numpy(), 0.5, y.numpy()).mean()
    assert metrics.crps(gaussian(mean, 0.25), y) == pytest.approx(expected, rel=1e-6)
    assert metrics.crps(mean.expand(3, 4, 2), y) == pytest.approx(float((mean[0] - y).abs().mean()), rel=1e-12)


def test_crps_of_float32_predictions():
    prediction = gaussian(torch.randn(1, 20, dtype=torch.float32), 0.25)
    y = torch.randn(20)
    expected = gaussian_crps(prediction.mean.double().numpy(), 0.5, y.numpy()).mean()
    assert metrics.crps(prediction, y) == pytest.approx(expected, rel=1e-5)
    assert set(metrics.evaluate(prediction, y)) >= {"rmse", "crps"}
