"""Metrics against scipy, scikit-learn, torchmetrics (where it is right) and loops written out."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor

from vibayes import metrics
from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.likelihoods import Bernoulli, Categorical, Gaussian, Poisson, StudentT
from vibayes.metrics import Predictive
from vibayes.prediction import Prediction


def gaussian(mean: Tensor, noise: float, **options: object) -> Prediction:
    """N(mean, noise) from draws `[S, N]` or `[S, N, P]` of the mean."""
    draws = mean if mean.ndim == 3 else mean[:, :, None]
    return Prediction(Gaussian(noise).predictive(draws), squeeze=mean.ndim == 2, **options)


def classes(n: int = 500, c: int = 4, temperature: float = 2.0) -> tuple[Tensor, Tensor]:
    logits = 3 * torch.randn(n, c)
    return logits.softmax(-1), torch.distributions.Categorical(logits=logits / temperature).sample()


# ---- regression


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


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_crps_of_a_gaussian_is_the_closed_form(scale):
    mean = scale * torch.randn(1, 50)
    y = mean[0] + scale * torch.linspace(-20, 20, 50)  # far outside too
    expected = gaussian_crps(mean[0].numpy(), scale, y.numpy()).mean()
    assert metrics.crps(gaussian(mean, scale**2), y) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("std", [1.0, 0.1, 0.003])
@pytest.mark.parametrize("y", [-5.0, 0.3, 5.01])
def test_crps_of_a_mixture_is_the_closed_form(std, y):
    means = torch.tensor([-5.0, -4.9, 0.0, 5.0, 5.0, 5.2])
    expected = mixture_crps(means, std, torch.tensor(y))
    got = metrics.crps(gaussian(means[:, None], std**2), torch.tensor([y]))
    assert got == pytest.approx(expected, rel=1e-5)


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


# ---- classification


def test_accuracy_brier_entropy_against_loops():
    probs, y = classes()
    p, labels = probs.tolist(), y.tolist()
    assert metrics.accuracy(probs, y) == np.mean(
        [max(range(4), key=r.__getitem__) == c for r, c in zip(p, labels, strict=True)]
    )
    brier = np.mean([sum((v - (k == c)) ** 2 for k, v in enumerate(r)) for r, c in zip(p, labels, strict=True)])
    assert metrics.brier(probs, y) == pytest.approx(brier, rel=1e-12)
    assert metrics.mean_entropy(probs) == pytest.approx(stats.entropy(probs.numpy(), axis=1).mean(), rel=1e-12)
    assert metrics.log_likelihood(probs, y) == pytest.approx(
        np.mean([math.log(r[c]) for r, c in zip(p, labels, strict=True)])
    )


def test_brier_of_two_classes_is_twice_scikit_learns():
    from sklearn.metrics import brier_score_loss

    probs, y = classes(c=2)
    one = brier_score_loss(y.numpy(), probs[:, 1].numpy(), scale_by_half=True)
    assert metrics.brier(probs, y) == pytest.approx(2 * one, rel=1e-12)
    assert metrics.brier(probs[:, 1], y) == pytest.approx(2 * one, rel=1e-12)


@pytest.mark.parametrize("bins", [1, 7, 20])
def test_ece_is_that_of_a_loop_and_of_torchmetrics(bins):
    probs, y = classes()
    confidence, correct = probs.max(-1).values.numpy(), (probs.argmax(-1) == y).numpy()
    expected = 0.0
    for m in range(bins):
        inside = (confidence > m / bins) & (confidence <= (m + 1) / bins)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert metrics.ece(probs, y, bins) == pytest.approx(expected, rel=1e-12)
    reference = pytest.importorskip("torchmetrics.functional.classification")
    # no confidence lies on an edge here, so both conventions agree, to its float32
    theirs = reference.multiclass_calibration_error(probs, y, num_classes=4, n_bins=bins)
    assert metrics.ece(probs, y, bins) == pytest.approx(float(theirs), abs=1e-5)


def test_confidence_on_an_edge_belongs_to_the_bin_below():
    confidence = torch.tensor([0.55, 0.6, 0.65, 0.7, 0.85, 1.0, 0.999])
    for dtype in (torch.float64, torch.float32):
        probs = torch.stack([confidence, 1 - confidence], -1).to(dtype)
        curve = metrics.calibration_curve(probs, torch.zeros(7, dtype=torch.long))
        assert curve.count[10:].tolist() == [1, 1, 1, 1, 0, 0, 1, 0, 0, 2]
    assert curve.accuracy.isnan().tolist() == (curve.count == 0).tolist()


def test_certain_points_share_the_last_bin():
    probs, y = torch.tensor([[1.0, 0.0], [0.96, 0.04]]), torch.tensor([1, 0])
    assert metrics.ece(probs, y) == pytest.approx(0.98 - 0.5, rel=1e-12)
    above_one = torch.tensor([[1.0 + 2e-16, 0.0], [0.96, 0.04]])  # what rounding may leave
    assert metrics.ece(above_one, y) == pytest.approx(0.48, rel=1e-9)


def test_perfect_calibration_has_no_error():
    probs = torch.tensor([0.75, 0.25]).repeat(8, 1)
    assert metrics.ece(probs, torch.tensor([0, 0, 0, 1] * 2)) == 0.0


def test_probabilities_of_float32_are_scored_in_float64():
    probs, y = classes(n=2000)
    given = probs.float()
    assert metrics.brier(given, y) == metrics.brier(given.double(), y)


def test_probabilities_below_zero_by_rounding_are_zero():
    probs = torch.tensor([[1.0 + 1e-7, -1e-7], [0.5, 0.5]], dtype=torch.float64)
    assert metrics.mean_entropy(probs) == pytest.approx(math.log(2) / 2, abs=1e-6)
    assert metrics.log_likelihood(probs, torch.tensor([1, 0])) == -math.inf


def test_a_prediction_of_one_class_is_certain_of_it():
    prediction, y = Prediction(Categorical().predictive(torch.randn(3, 5, 1))), torch.zeros(5)
    scores = metrics.evaluate(prediction, y)
    expected = {"accuracy": 1.0, "log_likelihood": 0.0, "brier": 0.0, "ece": 0.0, "entropy": 0.0}
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert metrics.accuracy(torch.tensor([[0.9], [0.2]]), torch.tensor([1, 0])) == 1.0  # of a tensor, those of one


def test_entropy_ratio():
    certain, vague = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])
    expected = stats.entropy([0.9, 0.1]) / math.log(2)
    assert metrics.entropy_ratio(certain, vague) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(DataError, match="zero entropy"):
        metrics.entropy_ratio(vague, torch.tensor([[1.0, 0.0]]))


def test_auroc_is_scikit_learns_with_ties_and_any_scale():
    from sklearn.metrics import roc_auc_score

    inside, outside = torch.randint(0, 8, (90,)).double(), torch.randint(3, 11, (70,)).double()
    truth = np.r_[np.zeros(90), np.ones(70)]
    expected = roc_auc_score(truth, torch.cat([inside, outside]).numpy())
    for a, b in ((1.0, 0.0), (100.0, 40.0), (1e-9, 0.0)):
        assert metrics.ood_auroc(a * inside + b, a * outside + b) == pytest.approx(expected, rel=1e-12)
    reference = pytest.importorskip("torchmetrics.functional.classification")
    scores = torch.cat([inside, outside]) / 20  # only scores in [0, 1] are safe there
    assert float(reference.binary_auroc(scores, torch.as_tensor(truth).long())) == pytest.approx(expected, abs=1e-6)


def test_misclassified_log_likelihood():
    probs = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8]])
    y = torch.tensor([0, 1, 0])
    expected = (math.log(0.4) + math.log(0.2)) / 2
    assert metrics.misclassified_log_likelihood(probs, y) == pytest.approx(expected, rel=1e-12)
    assert math.isnan(metrics.misclassified_log_likelihood(probs, torch.tensor([0, 0, 1])))


# ---- predictions of every kind


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


def test_float32_predictions():
    prediction = gaussian(torch.randn(1, 20, dtype=torch.float32), 0.25)
    y = torch.randn(20)
    expected = gaussian_crps(prediction.mean.double().numpy(), 0.5, y.numpy()).mean()
    assert metrics.crps(prediction, y) == pytest.approx(expected, rel=1e-5)
    assert set(metrics.evaluate(prediction, y)) >= {"rmse", "crps"}


# ---- refusals


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
