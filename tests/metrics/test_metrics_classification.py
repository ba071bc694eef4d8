"""Scores of classes against scikit-learn, torchmetrics (where it is right) and loops written out."""

import math

import numpy as np
import pytest
import torch
from metric_cases import classes
from scipy import stats

from vibayes import metrics
from vibayes.errors import DataError
from vibayes.likelihoods import Categorical
from vibayes.prediction import Prediction


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
