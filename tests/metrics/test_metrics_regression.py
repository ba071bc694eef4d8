"""Scores of real targets against scipy and loops written out."""

import math

import numpy as np
import pytest
import torch
from metric_cases import gaussian
from scipy import stats

from vibayes import metrics
from vibayes.errors import ConfigurationError
from vibayes.likelihoods import Poisson
from vibayes.metrics import Predictive
from vibayes.prediction import Prediction


def test_a_prediction_is_predictive():
    assert isinstance(gaussian(torch.zeros(1, 3), 1.0), Predictive)


@pytest.mark.parametrize("width", [None, 2])
def test_rmse_is_that_of_a_loop(width):
    shape = (1, 7) if width is None else (1, 7, width)
    prediction, y = gaussian(torch.randn(shape), 0.3), torch.randn(shape[1:])
    expected = math.sqrt(
        np.mean([(float(a) - float(b)) ** 2 for a, b in zip(prediction.mean.flatten(), y.flatten(), strict=True)])
    )
    assert metrics.rmse(prediction, y) == pytest.approx(expected, rel=1e-12)
    assert metrics.rmse(prediction.mean, y) == pytest.approx(expected, rel=1e-12)


def test_rmse_does_not_broadcast_a_column_against_a_row():
    mean, y = torch.randn(5), torch.randn(5)
    assert metrics.rmse(mean[:, None], y) == pytest.approx(metrics.rmse(mean, y), rel=1e-14)


def test_log_likelihood_is_scipys_mean():
    prediction, y = gaussian(torch.randn(1, 20), 0.3), torch.randn(20)
    expected = stats.norm(prediction.mean.numpy(), 0.3**0.5).logpdf(y.numpy()).mean()
    assert metrics.log_likelihood(prediction, y) == pytest.approx(expected, rel=1e-12)


def test_coverage_and_width_of_a_gaussian():
    mean = torch.randn(1, 400)
    prediction, y = gaussian(mean, 4.0), mean[0] + 2 * torch.randn(400)
    for level in (0.5, 0.95):
        reach = 2 * stats.norm.ppf(0.5 + level / 2)
        assert metrics.interval_width(prediction, level) == pytest.approx(2 * reach, rel=1e-8)
        inside = ((y - mean[0]).abs() <= reach).double().mean()
        assert metrics.coverage(prediction, y, level) == pytest.approx(float(inside), abs=1e-12)


def test_coverage_curve_of_exact_quantiles_is_the_diagonal():
    n = 1000
    y = torch.special.ndtri((torch.arange(n) + 0.5) / n)
    levels, covered = metrics.coverage_curve(gaussian(torch.zeros(1, n), 1.0), y)
    assert levels.tolist() == pytest.approx([0.05 * k for k in range(1, 20)])
    assert torch.allclose(covered, levels, atol=1.5 / n)
    narrow = metrics.coverage_curve(gaussian(torch.zeros(1, n), 0.25), y, [0.5, 0.9])[1]
    assert narrow.tolist() == pytest.approx(
        [2 * stats.norm.cdf(0.5 * stats.norm.ppf(0.5 + p / 2)) - 1 for p in (0.5, 0.9)], abs=1.5 / n
    )


@pytest.mark.parametrize("rate", [0.3, 2.0, 40.0])
def test_coverage_curve_of_calibrated_counts_is_the_diagonal(rate):
    # every count as often as the prediction says
    n = 100_000
    y = torch.as_tensor(stats.poisson(rate).ppf((np.arange(n) + 0.5) / n))
    prediction = Prediction(Poisson().predictive(torch.full((1, n, 1), math.log(rate))), squeeze=True)
    levels, covered = metrics.coverage_curve(prediction, y)
    assert torch.allclose(covered, levels, atol=1e-3)
    assert metrics.coverage_curve(prediction, y + 100, [0.5])[1] == 0.0
    for level in (0.0, 1.0):
        with pytest.raises(ConfigurationError, match="strictly between"):
            metrics.coverage_curve(prediction, y, [0.5, level])
