"""What the estimators learn, within few steps."""

import numpy as np
import pytest
from common import CLASSIFIERS, REGRESSORS, labels, small, table
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.preprocessing import StandardScaler

import vibayes as vb
from vibayes.sklearn import GPRegressor


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors_learn(name: str) -> None:
    X, y = table()
    steps = None if name == "GPRegressor" else 300 if name == "DKLRegressor" else 120
    model = small(
        name, steps=steps, n_inducing=20, n_draws=20, n_samples=3, **({} if name == "GPRegressor" else {"lr": 0.03})
    )
    model.fit(X[:50], y[:50])
    assert model.score(X[50:], y[50:]) > 0.8
    mean, std = model.predict(X[50:], return_std=True)
    lower, upper = model.predict_interval(X[50:], 0.95)
    assert mean.shape == std.shape == lower.shape == (10,)
    assert (lower < mean).all()
    assert (mean < upper).all()
    assert model.log_prob(X[50:], y[50:]).mean() > -np.log(2 * 50.0 * np.sqrt(3))  # better than a flat guess
    assert model.elbo_per_datapoint_ == pytest.approx(model.elbo_ / 50)
    quantiles = model.predict_quantiles(X[50:], [0.1, 0.5, 0.9])
    assert (np.diff(quantiles, axis=0) > 0).all()
    assert np.array_equal(model.predict_quantiles(X[50:], 0.5), quantiles[1])


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_classifiers_learn(name: str, n_classes: int) -> None:
    X, y = table()
    names = labels(y, n_classes)
    model = small(name, steps=120, n_inducing=40, n_draws=20, n_samples=2, lr=0.03).fit(X[:50], names[:50])
    assert model.score(X[:50], names[:50]) > 0.8
    probs = model.predict_proba(X[50:])
    assert probs.shape == (10, n_classes)
    assert np.allclose(probs.sum(1), 1.0)
    assert (model.predict(X[50:]) == model.classes_[probs.argmax(1)]).all()
    codes = np.searchsorted(model.classes_, names[50:])
    assert np.allclose(model.log_prob(X[50:], names[50:]), np.log(probs[np.arange(10), codes]), atol=1e-8)
    drawn = model.sample_y(X[50:], 30)
    assert drawn.shape == (10, 30)
    assert set(drawn.ravel()) <= set(model.classes_)


def test_the_gp_is_no_worse_than_scikit_learns() -> None:
    X, y = table(80)
    kernel = ConstantKernel() * RBF(np.ones(2)) + WhiteKernel()
    scaler = StandardScaler().fit(X[:50])
    theirs = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0)
    theirs.fit(scaler.transform(X[:50]), y[:50])
    mine = GPRegressor(device="cpu").fit(X[:50], y[:50])
    # both report the evidence of their own units: theirs of standardised targets
    in_their_units = mine.elbo_ + 50 * np.log(y[:50].std())
    assert in_their_units > theirs.log_marginal_likelihood_value_ - 1e-2
    mean, std = theirs.predict(scaler.transform(X[50:]), return_std=True)
    my_mean, my_std = mine.predict(X[50:], return_std=True)
    assert np.allclose(mean, my_mean, atol=0.02 * y.std())
    assert np.allclose(std, my_std, rtol=0.05)


def test_the_method_follows_the_size() -> None:
    rng = np.random.default_rng(0)
    for n, expected in ((30, vb.ExactGP), (2001, vb.SGPR), (10_001, vb.Model)):
        X = rng.normal(size=(n, 1))
        model = GPRegressor(steps=1, restarts=1, n_inducing=5, device="cpu").fit(X, X[:, 0])
        assert type(model.model_) is expected
    assert type(GPRegressor(method="svgp", steps=1, device="cpu").fit(X[:30], X[:30, 0]).model_) is vb.Model
