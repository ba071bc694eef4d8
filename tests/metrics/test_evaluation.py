"""All metrics of predictions of every kind, and what they refuse."""

import math

import pytest
import torch
from metric_cases import classes, gaussian
from torch import Tensor

from vibayes import metrics
from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.likelihoods import Bernoulli, Categorical, StudentT
from vibayes.prediction import Prediction


def test_evaluate_regression():
    prediction, y = gaussian(torch.randn(3, 6), 0.3), torch.randn(6)
    found = metrics.evaluate(prediction, y)
    assert list(found) == ["rmse", "log_likelihood", "coverage_95", "interval_width_95", "crps"]
    assert all(isinstance(v, float) and math.isfinite(v) for v in found.values())
    assert found["log_likelihood"] == pytest.approx(float(prediction.log_prob(y).mean()))


def test_evaluate_without_a_mean():
    prediction = Prediction(StudentT(df=0.9).predictive(torch.zeros(1, 4, 1)), squeeze=True)
    found = metrics.evaluate(prediction, torch.randn(4))
    assert math.isnan(found.pop("rmse"))
    assert all(math.isfinite(v) for v in found.values())


def test_evaluate_classes():
    prediction, y = Prediction(Categorical().predictive(2 * torch.randn(5, 60, 3))), torch.randint(3, (60,))
    found = metrics.evaluate(prediction, y)
    assert found["log_likelihood"] == pytest.approx(metrics.log_likelihood(prediction.probs, y), rel=1e-10)
    assert found["entropy"] == pytest.approx(float(prediction.entropy.mean()), rel=1e-10)
    wrong = prediction.mode != y
    assert found["misclassified_log_likelihood"] == pytest.approx(float(prediction.log_prob(y)[wrong].mean()))
    assert found["accuracy"] == pytest.approx(1 - float(wrong.double().mean()))


@pytest.mark.parametrize("squeeze", [True, False])
def test_evaluate_yes_or_no(squeeze):
    prediction = Prediction(Bernoulli().predictive(2 * torch.randn(5, 60, 1)), squeeze=squeeze)
    y = torch.randint(2, (60,))
    found = metrics.evaluate(prediction, y)
    assert found["accuracy"] == pytest.approx(float((prediction.mode.flatten() == y).double().mean()))
    assert found["log_likelihood"] == pytest.approx(float(prediction.log_prob(y).mean()))
    assert found == metrics.evaluate(prediction, y.double()[:, None])


def test_evaluate_several_yes_or_no_targets():
    prediction = Prediction(Bernoulli().predictive(2 * torch.randn(1, 30, 3)))
    y = torch.randint(2, (30, 3))
    found = metrics.evaluate(prediction, y)
    assert found["accuracy"] == pytest.approx(float((prediction.mode == y).double().mean()))
    assert found["log_likelihood"] == pytest.approx(float(prediction.log_prob(y).mean()))
    mass = torch.where(y == 1, prediction.probs, 1 - prediction.probs)
    assert found["misclassified_log_likelihood"] == pytest.approx(float(mass[mass < 0.5].log().mean()))


@pytest.mark.parametrize("name", ["rmse", "log_likelihood", "coverage", "crps", "evaluate"])
@pytest.mark.parametrize(
    ("y", "error"),
    [
        (torch.zeros(4), (ShapeError, DataError)),
        (torch.zeros(5, 2), ShapeError),
        (torch.zeros(0), DataError),
        (torch.tensor([0.0, 1.0, math.nan, 1.0, 1.0]), DataError),
    ],
)
def test_regression_refuses(name, y, error):
    with pytest.raises(error):
        getattr(metrics, name)(gaussian(torch.zeros(1, 5), 1.0), y)


@pytest.mark.parametrize("name", ["rmse", "log_likelihood", "coverage", "crps"])
def test_nan_predictions_are_refused(name):
    class Broken:
        mean = torch.full((3,), math.nan)

        def log_prob(self, y: Tensor) -> Tensor:
            return self.mean

        def interval(self, level: float) -> tuple[Tensor, Tensor]:
            return self.mean, self.mean

        def quantile(self, probability: float) -> Tensor:
            return self.mean

        def cdf(self, y: Tensor) -> Tensor:
            return self.mean

    with pytest.raises(DataError, match="NaN"):
        getattr(metrics, name)(Broken(), torch.zeros(3))


@pytest.mark.parametrize("name", ["accuracy", "brier", "ece", "log_likelihood", "misclassified_log_likelihood"])
@pytest.mark.parametrize(
    ("probs", "y", "error", "match"),
    [
        ([[0.5, 0.5]] * 2, [0, 1, 1], ShapeError, "one class label per point"),
        ([[0.5, 0.5]] * 2, [0, 2], DataError, "0 .. 1"),
        ([[0.5, 0.5]] * 2, [0, -1], DataError, "0 .. 1"),
        ([[0.5, 0.5]] * 2, [0.5, 1.0], DataError, "whole"),
        ([[0.5, 0.5], [math.nan, 0.5]], [0, 1], DataError, "NaN"),
        ([[2.5, -1.5], [3.0, 1.0]], [0, 1], DataError, "softmax"),
        ([], [], DataError, "empty"),
        ([[[0.5, 0.5]]], [0], ShapeError, r"\[N, C\]"),
    ],
)
def test_classification_refuses(name, probs, y, error, match):
    with pytest.raises(error, match=match):
        getattr(metrics, name)(torch.tensor(probs), torch.tensor(y))


def test_other_refusals():
    prediction, y = gaussian(torch.zeros(1, 5), 1.0), torch.zeros(5)
    for level in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(ConfigurationError, match="level"):
            metrics.coverage(prediction, y, level)
    with pytest.raises(ShapeError, match="levels"):
        metrics.coverage_curve(prediction, y, [])
    with pytest.raises(ConfigurationError, match="bins"):
        metrics.ece(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), 0)
    with pytest.raises(DataError, match="probs"):
        metrics.accuracy(prediction, y.long())
    with pytest.raises(DataError, match="NaN"):
        metrics.ood_auroc(torch.tensor([math.nan]), torch.tensor([1.0]))
    with pytest.raises(DataError, match="empty"):
        metrics.ood_auroc(torch.zeros(0), torch.tensor([1.0]))
    sure = Prediction(Categorical().predictive(torch.zeros(1, 5, 3)))
    with pytest.raises(DataError, match=r"in_scores must be numbers, got a Prediction; .* \.entropy"):
        metrics.ood_auroc(sure, sure)
    with pytest.raises(ShapeError, match="S >= 2"):
        metrics.crps(torch.zeros(1, 5), y)


def test_numpy_arrays_are_as_good_as_tensors():
    draws, y = torch.randn(5, 6), torch.randn(6)
    assert metrics.crps(draws.numpy(), y.numpy()) == metrics.crps(draws, y)
    assert metrics.rmse(draws[0].numpy(), y.numpy()) == metrics.rmse(draws[0], y)
    probs, labels = classes(20)
    for metric in (metrics.accuracy, metrics.log_likelihood, metrics.brier, metrics.ece):
        assert metric(probs.numpy(), labels.numpy()) == metric(probs, labels)
    assert metrics.mean_entropy(probs.tolist()) == metrics.mean_entropy(probs)
