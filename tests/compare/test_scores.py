"""What is measured, against formulas written out."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import vibayes as vb
from vibayes.compare import scores
from vibayes.compare.insight import least_sure, sensitivity
from vibayes.likelihoods import Bernoulli, Categorical, Gaussian
from vibayes.prediction import Prediction
from vibayes.tables import Column, Encoder


def fitted() -> tuple[Any, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.rand(40, 2) * 4 - 2
    y = 100 + 7 * (torch.sin(x[:, 0]) + 0.1 * torch.randn(40))
    gp = vb.ExactGP(vb.SquaredExponential(2), vb.Gaussian(0.05), standardize="both")
    gp.condition(x, y)
    return gp, x, y


def test_regression_scores() -> None:
    gp, _x, _ = fitted()
    torch.manual_seed(1)
    x_new = torch.rand(30, 2) * 4 - 2
    y_new = 100 + 7 * (torch.sin(x_new[:, 0]) + 0.1 * torch.randn(30))
    found = scores.scores(gp, x_new, y_new)
    prediction = gp.predict(x_new)
    mean, std = prediction.mean.numpy(), prediction.std.numpy()
    each = stats.norm.logpdf(y_new.numpy(), mean, std)
    scale = float(gp.units.y_scale)
    assert found["log_likelihood"] == pytest.approx(each.mean(), rel=1e-9)
    assert found["log_likelihood_stderr"] == pytest.approx(each.std(ddof=1) / math.sqrt(30), rel=1e-9)
    in_units = stats.norm.logpdf(y_new.numpy() / scale, mean / scale, std / scale)
    assert found["log_likelihood_standardized"] == pytest.approx(in_units.mean(), rel=1e-9)
    np.testing.assert_allclose(scores.log_likelihoods(gp, x_new, y_new), in_units, rtol=1e-9)
    errors = y_new.numpy() - mean
    assert found["rmse"] == pytest.approx(math.sqrt((errors**2).mean()), rel=1e-9)
    assert found["r2"] == pytest.approx(1 - (errors**2).mean() / y_new.numpy().var(), rel=1e-9)
    assert found["coverage_95"] == np.mean(np.abs(errors) < stats.norm.ppf(0.975) * std)
    assert found["interval_width_95"] == pytest.approx((2 * stats.norm.ppf(0.975) * std).mean(), rel=1e-6)


def test_bound_in_parts_is_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    gp, x, y = fitted()
    assert scores.bound(gp, x, y).value == pytest.approx(
        float(gp.log_marginal_likelihood(x, y).detach()) / 40, rel=1e-9
    )
    assert scores.bound(gp, x, y).stderr == 0.0
    sparse = vb.Model(vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(7)), vb.Gaussian(0.1))
    sparse.initialize(x, y)
    with torch.no_grad():
        sparse.network.posterior.mean.normal_()  # a divergence that is not zero must not be scaled with the rows
    whole = float(sparse.elbo(x, y).per_datapoint.detach())
    monkeypatch.setattr(scores, "ROWS", 11)
    found = scores.bound(sparse, x, y)
    assert found.value == pytest.approx(whole, rel=1e-9)
    assert found.stderr == 0.0
    monkeypatch.setattr(scores, "MAX_PARTS", 2)  # a random part of the rows only: near, with an honest error
    part = scores.bound(sparse, x, y)
    assert part.stderr > 0
    assert part.value != found.value
    assert abs(part.value - whole) < 5 * part.stderr


def test_bound_of_draws_has_a_monte_carlo_error() -> None:
    _gp, x, y = fitted()
    model = vb.Model(vb.GP(1, kernel=vb.SquaredExponential(2)), vb.Gaussian(0.5), inducing=x[:5], standardize="both")
    model.initialize(x, y)
    torch.manual_seed(0)
    few = [scores.bound(model, x, y, 50) for _ in range(20)]
    spread = np.std([b.value for b in few], ddof=1)
    assert 0.5 * spread < np.mean([b.stderr for b in few]) < 2.0 * spread


class Function:
    """Stands for a model whose predictive mean is known."""

    device = torch.device("cpu")

    def __init__(self, function: Any, kind: str = "regression") -> None:
        self.function, self.kind = function, kind
        self.units = vb.data.Units()

    def predict(self, x: torch.Tensor, n_samples: int = 1) -> Prediction:
        f = self.function(x)[None]
        if self.kind == "regression":
            return Prediction(Gaussian(0.1).predictive(f), squeeze=True)
        likelihood = Bernoulli() if self.kind == "binary" else Categorical()
        return Prediction(likelihood.predictive(f), squeeze=self.kind == "binary")


def three_columns() -> Encoder:
    return Encoder([Column(name, "number", (name,)) for name in ("x1", "x2", "x3")])


def test_sensitivity_is_the_total_effect_index() -> None:
    """`f = 3 x1 + x2 x3` with standard normal columns: total indices 9/10, 1/10, 1/10 (closed form)."""
    torch.manual_seed(0)
    x = torch.randn(4000, 3)
    model: Any = Function(lambda x: 3 * x[:, :1] + x[:, 1:2] * x[:, 2:])
    values = []
    for seed in range(8):
        shares = {entry.column: entry.share for entry in sensitivity(model, three_columns(), x, seed)}
        values.append([shares["x1"], shares["x2"], shares["x3"]])
    np.testing.assert_allclose(np.mean(values, 0), [0.9, 0.1, 0.1], atol=0.03)
    assert sensitivity(model, three_columns(), x)[0].column == "x1"


def test_sensitivity_of_few_rows_takes_more_shuffles() -> None:
    """Three of them say up to 120% for the one column that a function of 24 rows depends on."""
    torch.manual_seed(0)
    model: Any = Function(lambda x: 3 * x[:, :1])
    found = [sensitivity(model, three_columns(), torch.randn(24, 3), seed)[0].share for seed in range(40)]
    np.testing.assert_allclose(np.mean(found), 1.0, atol=0.05)
    assert np.std(found) < 0.08


def test_sensitivity_of_an_exact_gp_is_of_its_predictive_mean() -> None:
    """The GP's own means, which are taken from one factorization, give what its predictions give."""
    gp, x, _ = fitted()
    names = Encoder([Column(name, "number", (name,)) for name in ("x1", "x2")])
    means: Any = Function(lambda x: gp.predict(x).mean[:, None] / gp.units.y_scale)
    wanted = sensitivity(means, names, x)
    found = sensitivity(gp, names, x)
    assert [entry.column for entry in found] == [entry.column for entry in wanted]
    np.testing.assert_allclose([e.share for e in found], [e.share for e in wanted], rtol=1e-6)


def test_sensitivity_of_many_columns_predicts_no_more_rows() -> None:
    rows = []

    def function(x: torch.Tensor) -> torch.Tensor:
        rows.append(len(x))
        return x[:, :1] + 0.5 * x[:, 7:8]

    torch.manual_seed(0)
    many = Encoder([Column(f"x{i}", "number", (f"x{i}",)) for i in range(300)])
    model: Any = Function(function)
    found = sensitivity(model, many, torch.randn(1000, 300))
    assert sum(rows) < 41_000
    assert [entry.column for entry in found[:2]] == ["x0", "x7"]
    assert all(entry.share == 0.0 for entry in found[2:])


def test_sensitivity_of_classes_and_constants() -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 3)
    model: Any = Function(lambda x: torch.cat([3 * x[:, 1:2], -3 * x[:, 1:2]], 1), "classes")
    shares = {entry.column: entry.share for entry in sensitivity(model, three_columns(), x)}
    assert shares["x2"] > 0.8
    assert shares["x1"] == shares["x3"] == 0.0
    still: Any = Function(lambda x: torch.zeros(len(x), 1))
    assert all(entry.share == 0.0 for entry in sensitivity(still, three_columns(), x))


def test_predict_all_of_numbers_and_classes() -> None:
    gp, x, _ = fitted()
    found = scores.predict_all(gp, x)
    prediction = gp.predict(x)
    np.testing.assert_allclose(found.mean[:, 0], prediction.mean.numpy())
    np.testing.assert_allclose(found.std[:, 0] ** 2, found.epistemic[:, 0] + found.aleatoric[:, 0])
    np.testing.assert_allclose(found.upper - found.mean, stats.norm.ppf(0.975) * found.std, rtol=1e-6)
    widest = least_sure(found, 3)
    assert widest[0] == np.argmax(found.std[:, 0])
    two: Any = Function(lambda x: 2 * x[:, :1], "binary")
    probs = scores.predict_all(two, x)
    np.testing.assert_allclose(probs.probs[:, 1], 1 / (1 + np.exp(-2 * x[:, 0].numpy())), rtol=1e-9)
    np.testing.assert_allclose(probs.probs.sum(1), 1.0)
    np.testing.assert_allclose(probs.entropy, stats.entropy(probs.probs.T), rtol=1e-9)
    with pytest.raises(AttributeError):
        _ = probs.mean


def test_the_bound_of_a_sparse_gp_is_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "ROWS", 5)
    x = torch.randn(30, 2)
    model = vb.SGPR(vb.SquaredExponential(2), vb.Gaussian(0.1), x[:6])
    model.condition(x, x[:, 0])
    with torch.no_grad():
        found = scores.bound(model, x, x[:, 0])
        assert found.value == pytest.approx(float(model.elbo(x, x[:, 0]).per_datapoint))
