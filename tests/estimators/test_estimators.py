"""The estimators: what they learn, predict, refuse, and how they live in scikit-learn."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from common import ALL, CLASSIFIERS, REGRESSORS, labels, small, table
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import vibayes as vb
from vibayes.sklearn import BNNRegressor, DeepGPRegressor, DKLRegressor, GPClassifier, GPRegressor

# -- weights, several targets, draws -------------------------------------------------------------------------------


def test_weights_count_rows() -> None:
    X, y = table(30)
    weights = np.ones(30)
    weights[:5], weights[5:10] = 0, 2
    weighted = GPRegressor(restarts=1, device="cpu").fit(X, y, sample_weight=weights)
    rows = np.repeat(np.arange(30), weights.astype(int))
    repeated = GPRegressor(restarts=1, device="cpu").fit(X[rows], y[rows])
    assert weighted.elbo_ == pytest.approx(repeated.elbo_, abs=1e-3)
    assert weighted.elbo_per_datapoint_ == pytest.approx(repeated.elbo_per_datapoint_, abs=1e-4)
    assert np.allclose(weighted.predict(X), repeated.predict(X), atol=1e-2)
    for bad, message in ((-weights, "Negative values"), (0 * weights, "zero"), (weights[:3], "shape")):
        with pytest.raises(ValueError, match=message):
            GPRegressor().fit(X, y, sample_weight=bad)


@pytest.mark.parametrize("name", REGRESSORS)
def test_several_targets_and_draws(name: str) -> None:
    X, y = table(30)
    both = np.stack([y, -y], 1)
    model = small(name).fit(X, both)
    mean, std = model.predict(X[:7], return_std=True)
    assert mean.shape == std.shape == (7, 2)
    drawn = model.sample_y(X[:7], 5, random_state=1)
    assert drawn.shape == (7, 2, 5)
    assert np.array_equal(drawn, model.sample_y(X[:7], 5, random_state=1))
    assert not np.array_equal(drawn, model.sample_y(X[:7], 5, random_state=2))
    generator = np.random.RandomState(0)
    given = [model.sample_y(X[:7], 5, random_state=g) for g in (generator, generator, np.random.RandomState(0))]
    assert np.array_equal(given[0], given[2])
    assert not np.array_equal(given[0], given[1])
    one = small(name).fit(X, y)
    assert one.sample_y(X[:7], 5).shape == (7, 5)


def test_draws_have_the_predictive_moments() -> None:
    X, y = table(30)
    model = GPRegressor(restarts=1, device="cpu").fit(X, y)
    new = X[:6] + 5.0
    mean, std = model.predict(new, return_std=True)
    drawn = model.sample_y(new, 4000)
    assert np.allclose(drawn.mean(1), mean, atol=5 * std.max() / np.sqrt(4000))
    assert np.allclose(drawn.std(1), std, rtol=0.07)
    functions = model.sample_y(new, 4000, noise=False)
    epistemic = model.predict_distribution(new).epistemic.numpy()
    assert np.allclose(functions.var(1), epistemic, rtol=0.15)
    covariance = model.model_.predict(new, joint=True).covariance[0].numpy()
    scale = np.sqrt(np.diag(covariance))
    assert np.allclose(np.cov(functions) / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=0.1)


def test_the_seed_decides_and_leaves_the_callers_generator() -> None:
    X, y = table(20)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, other = (small("BNNRegressor", seed=s).fit(X, y) for s in (0, 0, 1))
    assert np.array_equal(one.predict(X), two.predict(X))
    assert np.array_equal(one.predict(X), one.predict(X))
    assert not np.array_equal(one.predict(X), other.predict(X))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float64  # as the tests have set it


# -- scikit-learn's ways -------------------------------------------------------------------------------------------


def test_pipelines_grids_and_copies() -> None:
    X, y = table(30)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), small("DKLRegressor")), {"dklregressor__width": [3, 5]}, cv=2
    ).fit(X, y)
    assert search.best_params_["dklregressor__width"] in (3, 5)
    assert search.predict(X).shape == (30,)
    assert len(cross_val_score(small("GPClassifier"), X, labels(y), cv=2)) == 2
    model = DKLRegressor(width=7, steps=3)
    again = clone(model)
    assert again.get_params() == model.get_params()
    again.set_params(width=9)
    assert (model.width, again.width) == (7, 9)
    fitted = small("DeepGPRegressor").fit(X, y)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


def test_data_frames_and_their_names() -> None:
    X, y = table(30)
    frame = pd.DataFrame(X, columns=["length", "mass"])
    model = small("GPRegressor").fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["length", "mass"]
    assert np.array_equal(model.predict(frame), model.predict(frame.copy()))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"mass": "weight"}))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["mass", "length"]])


def test_a_kernel_of_ones_own() -> None:
    X, y = table(30)
    kernel = vb.Matern52(2, ard=True) + vb.LinearKernel(2)
    model = GPRegressor(kernel=kernel, restarts=1, device="cpu").fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.kernel is kernel  # its values are as they were: the model has a copy
    assert float(kernel.kernels[0].variance.value.detach()) == pytest.approx(1.0)
    with pytest.raises(vb.ConfigurationError, match="in_features=2"):
        GPRegressor(kernel=kernel).fit(X[:, :1], y)


@pytest.mark.parametrize("name", ALL)
def test_save_and_load(name: str, tmp_path: Path) -> None:
    X, y = table(20)
    frame = pd.DataFrame(X, columns=["length", "mass"])
    model = small(name, callback=lambda logged: False).fit(frame, y if name in REGRESSORS else labels(y, 3))
    model.save(tmp_path)
    again = vb.load(tmp_path)
    assert type(again) is type(model)
    assert np.array_equal(again.predict(frame), model.predict(frame))
    ask = "predict_proba" if name in CLASSIFIERS else "sample_y"
    assert np.array_equal(getattr(again, ask)(frame), getattr(model, ask)(frame))
    assert again.elbo_ == model.elbo_
    assert (again.history_.step, again.history_.elbo) == (model.history_.step, model.history_.elbo)
    assert again.feature_names_in_.tolist() == ["length", "mass"]
    kept = {**model.get_params(), "callback": None}
    assert again.get_params() == kept
    if name in CLASSIFIERS:
        assert again.classes_.tolist() == model.classes_.tolist()
        assert again.classes_.dtype == model.classes_.dtype
    again.fit(frame, y if name in REGRESSORS else labels(y, 3))


def test_float32_and_callbacks() -> None:
    X, y = table(30)
    seen: list[Any] = []
    model = small("BNNRegressor", dtype="float32", steps=8, callback=seen.append).fit(X, y)
    assert model.model_.dtype == torch.float32
    assert [entry.step for entry in seen] == model.history_.step
    stopped = small("BNNRegressor", steps=100, callback=lambda logged: True).fit(X, y)
    assert stopped.n_iter_ == 25


# -- bad input -----------------------------------------------------------------------------------------------------


def test_bad_data_are_named() -> None:
    X, y = table(30)
    hole = X.copy()
    hole[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        small("GPRegressor").fit(hole, y)
    with pytest.raises(ValueError, match="NaN"):
        small("GPRegressor").fit(X, np.where(np.arange(30) == 4, np.nan, y))
    fitted = small("GPRegressor").fit(X, y)
    with pytest.raises(ValueError, match="3 features, but GPRegressor is expecting 2"):
        fitted.predict(np.ones((4, 3)))
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict(hole)
    with pytest.raises(NotFittedError):
        small("GPRegressor").predict(X)
    with pytest.raises(vb.DataError, match="only one class, 'high'"):
        small("GPClassifier").fit(X, np.full(30, "high"))
    classes = small("GPClassifier").fit(X, labels(y))
    with pytest.raises(vb.DataError, match=r"not in training: \['purple'\]"):
        classes.log_prob(X[:2], ["high", "purple"])
    with pytest.raises(ValueError, match="Unknown label type"):
        small("GPClassifier").fit(X, y)


def test_bad_options_are_named() -> None:
    X, y = table(12)
    names = labels(y)
    for model, targets, message in (
        (GPRegressor(kernel="cubic"), y, "squared_exponential"),
        (GPRegressor(method="magic"), y, "sgpr"),
        (GPClassifier(method="exact"), names, "regression"),
        (GPRegressor(dtype="float16"), y, "float64"),
        (GPRegressor(steps=0), y, "steps must be a positive"),
        (GPRegressor(device="tpu9"), y, "device"),
        (GPRegressor(seed="x"), y, "seed"),
        (BNNRegressor(posterior="laplace"), y, "mean_field"),
        (BNNRegressor(prior="flat"), y, "neal"),
        (BNNRegressor(depth=0), y, "depth must be a whole number of at least 1"),
        (DKLRegressor(n_inducing=0), y, "n_inducing"),
    ):
        with pytest.raises(vb.ConfigurationError, match=message):
            model.fit(X, targets)


def test_constant_columns_and_targets() -> None:
    X, y = table(20)
    X[:, 1] = 7.0
    model = small("GPRegressor").fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    flat = small("GPRegressor").fit(X, np.full(20, 3.0))
    assert np.allclose(flat.predict(X), 3.0, atol=1e-3)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    X = np.random.RandomState(0).randn(12, 2)
    steps, few = np.int64(8), np.int64(2)
    model = DeepGPRegressor(
        steps=steps, depth=few, n_inducing=np.int64(4), n_samples=few, n_draws=few, batch_size=np.int64(6)
    )
    found = model.fit(X, X[:, 0])
    plain = DeepGPRegressor(steps=8, depth=2, n_inducing=4, n_samples=2, n_draws=2, batch_size=6).fit(X, X[:, 0])
    np.testing.assert_array_equal(found.predict(X), plain.predict(X))
    GPRegressor(restarts=np.int64(1), steps=few).fit(X, X[:, 0])
