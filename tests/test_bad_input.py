"""Bad input raises one class of error with a message that names the cause and the remedy, for every model."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes.trainable import TrainableModel

D = 3


def svgp(standardize: str | None = None) -> vb.Model:
    gp = vb.GP(1, kernel=vb.SquaredExponential(D), posterior=vb.LocalInducing(4))
    return vb.Model(gp, vb.Gaussian(0.1), standardize=standardize)


MODELS: dict[str, Callable[..., TrainableModel]] = {
    "svgp": svgp,
    "exact": lambda standardize=None: vb.ExactGP(vb.SquaredExponential(D), vb.Gaussian(0.1), standardize=standardize),
    "sgpr": lambda standardize=None: vb.SGPR(vb.SquaredExponential(D), vb.Gaussian(0.1), 4, standardize=standardize),
    "regression": lambda standardize=None: vb.LinearRegression(noise=0.1, standardize=standardize),
    "full regression": lambda standardize=None: vb.LinearRegression(
        noise=0.1, posterior="full", n_features=D, standardize=standardize
    ),
}


def data(n: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, D, generator=generator)
    return x, x[:, 0].sin() + 0.1 * torch.randn(n, generator=generator)


def with_value(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor.view(len(tensor), -1)[4, 0] = value
    return tensor


@dataclass
class Bad:
    """Inputs and targets, the error they raise, and what its message says: the cause, then the remedy."""

    x: Any
    y: Any
    error: type[Exception]
    cause: str
    remedy: str


X, Y = data()
BAD_ROWS = {
    "NaN": Bad(with_value(X, math.nan), Y, vb.DataError, r"x has 1 value.*NaN, in row 4, column 0", "impute"),
    "infinite": Bad(with_value(X, math.inf), Y, vb.DataError, "x has 1 value.*infinite, in row 4", "impute"),
    "one axis": Bad(X[:, 0], Y, vb.ShapeError, r"\[N, D\]; got shape \[12\]", r"x\[:, None\]"),
    "a list of numbers": Bad([1.0, 2.0], [1.0, 2.0], vb.ShapeError, r"got shape \[2\]", r"x\[:, None\]"),
    "empty": Bad(X[:0], Y[:0], vb.DataError, r"x is empty \(shape \[0, 3\]\)", "at least one row"),
    "empty list": Bad([], [], vb.DataError, "x is empty", "at least one row"),
    "no columns": Bad(X[:, :0], Y, vb.DataError, r"x is empty \(shape \[12, 0\]\)", "one column"),
    "text": Bad(np.array([["a"] * D] * 12), Y, vb.DataError, "x holds values of type <U1", "Encode"),
    "a category": Bad(
        pd.DataFrame({"a": ["x"] * 12, "b": 1.0, "c": 2.0}), Y, vb.DataError, "x holds values of type object", "Encode"
    ),
    "ragged": Bad([[1.0], [1.0, 2.0]], [0.0, 1.0], vb.DataError, "x cannot be read as an array", ""),
}
BAD_WIDTHS = {
    "narrow": Bad(X[:, :2], Y, vb.DataError, r"rows of shape \[3\].*got rows of shape \[2\]", "same columns"),
    "wide": Bad(torch.cat([X, X], 1), Y, vb.DataError, r"got rows of shape \[6\]", "same columns"),
    "images": Bad(X[:, None], Y, vb.DataError, r"got rows of shape \[1, 3\]", "same columns"),
}
BAD_TARGETS = {
    "NaN": Bad(X, with_value(Y, math.nan), vb.DataError, "1 of 12 targets are NaN.*row 4", "Remove|impute"),
    "infinite": Bad(X, with_value(Y, -math.inf), vb.DataError, "1 of 12 targets are NaN or infinite", "Remove"),
    "too few": Bad(X, Y[:-1], vb.DataError, "x has 12 rows but y has 11 entries", "one target for each row"),
    "too many": Bad(X[:-1], Y, vb.DataError, "x has 11 rows but y has 12 entries", "one target for each row"),
    "a number": Bad(X, 1.0, vb.DataError, "y has no entries", "one target for each row"),
    "text": Bad(X, ["low"] * 12, vb.DataError, "y holds values of type <U3", "Encode"),
    "too many axes": Bad(X, Y[:, None, None], vb.ShapeError, r"\[N\] or \[N, P\], got \[12, 1, 1\]", "Reshape"),
}


def entry_points(model: TrainableModel, bad: Bad) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every way in which data with targets enter a model."""
    yield "elbo", lambda: model.elbo(bad.x, bad.y)
    yield "initialize", lambda: model.initialize(bad.x, bad.y)
    yield "fit", lambda: vb.fit(model, (bad.x, bad.y), steps=2, progress=False)
    yield "fit with Adam", lambda: vb.fit(model, (bad.x, bad.y), steps=2, optimizer="adam", progress=False)
    for name in ("log_marginal_likelihood", "condition", "log_weights"):
        if hasattr(model, name):
            yield name, lambda name=name: getattr(model, name)(bad.x, bad.y)


def refused(call: Callable[[], object], bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.cause) as caught:
        call()
    assert isinstance(caught.value, vb.VibayesError)
    if bad.remedy:
        with pytest.raises(bad.error, match=bad.remedy):
            raise caught.value


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("case", [*BAD_ROWS, *(f"targets: {name}" for name in BAD_TARGETS)])
@pytest.mark.parametrize("name", MODELS)
def test_training_data(name: str, case: str, fitted: bool) -> None:
    bad = BAD_TARGETS[case.removeprefix("targets: ")] if case.startswith("targets") else BAD_ROWS[case]
    model = MODELS[name]()
    if fitted:
        model.initialize(X, Y)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for _, call in entry_points(model, bad):
        refused(call, bad)
    after = model.state_dict()
    for key, value in before.items():  # nothing was half done
        assert torch.equal(value, after[key]), key


@pytest.mark.parametrize("case", [*BAD_ROWS, *BAD_WIDTHS])
@pytest.mark.parametrize("standardize", [None, "both"])
@pytest.mark.parametrize("name", MODELS)
def test_prediction_inputs(name: str, case: str, standardize: str | None) -> None:
    bad = {**BAD_ROWS, **BAD_WIDTHS}[case]
    model = MODELS[name](standardize)
    model.initialize(X, Y)
    refused(lambda: model.predict(bad.x), bad)
    refused(lambda: model.predict(bad.x, joint=True), bad)
    refused(lambda: model.sample_functions(bad.x, 2), bad)


@pytest.mark.parametrize("case", BAD_WIDTHS)
@pytest.mark.parametrize("name", MODELS)
def test_widths_after_fitting(name: str, case: str) -> None:
    bad = BAD_WIDTHS[case]
    model = MODELS[name]()
    model.initialize(X, Y)
    for entry, call in entry_points(model, bad):
        if entry != "initialize":
            refused(call, bad)


@pytest.mark.parametrize("name", ["svgp", "exact", "sgpr"])
def test_widths_before_fitting(name: str) -> None:
    """A kernel knows its width before any data."""
    for _, call in entry_points(MODELS[name](), BAD_WIDTHS["narrow"]):
        refused(call, BAD_WIDTHS["narrow"])


@pytest.mark.parametrize("name", MODELS)
def test_weights(name: str) -> None:
    cases = {
        "negative": (with_value(torch.ones(12), -1.0), "negative"),
        "NaN": (with_value(torch.ones(12), math.nan), "weights has 1 value"),
        "too few": (torch.ones(11), r"one number per row, \[12\]; got shape \[11\]"),
    }
    for weights, message in cases.values():
        with pytest.raises(vb.DataError, match=message):
            vb.fit(MODELS[name](), (X, Y, weights), steps=2, progress=False)


@pytest.mark.parametrize("name", MODELS)
def test_counts(name: str) -> None:
    model = MODELS[name]()
    model.initialize(X, Y)
    for call in (
        lambda: model.elbo(X, Y, n_samples=0),
        lambda: getattr(model, "log_weights", model.elbo)(X, Y, n_samples=0),
        lambda: model.elbo(X, Y, n_data=0),
        lambda: model.predict(X, batch_size=0),
        lambda: model.sample_functions(X, 0),
    ):
        with pytest.raises(vb.ConfigurationError, match="must be at least 1"):
            call()


@pytest.mark.parametrize("name", MODELS)
def test_units_must_be_known(name: str) -> None:
    model = MODELS[name]("both")
    for call in (
        lambda: model.elbo(X, Y),
        lambda: model.predict(X),
        lambda: model.sample_functions(X),
    ):
        with pytest.raises(vb.NotFittedError, match=r"no training data.*initialize\(x, y\) or fit"):
            call()


@pytest.mark.parametrize("kernel", [vb.SquaredExponential, vb.Matern32, vb.LinearKernel])
def test_unknown_kernel_arguments(kernel: type[vb.Kernel]) -> None:
    for error in (vb.ConfigurationError, TypeError):
        with pytest.raises(error, match=rf"{kernel.__name__} has no argument 'varaince'. Did you mean variance\?"):
            kernel(1, varaince=2.0)


def test_too_large_for_the_dtype() -> None:
    torch.set_default_dtype(torch.float32)
    with pytest.raises(vb.DataError, match=r"y in torch\.float32 has 1 value.*infinite"):
        svgp().elbo(X.float(), with_value(Y.double(), 1e300))


# ---- what works


@pytest.mark.parametrize("standardize", [None, "both"])
@pytest.mark.parametrize("name", MODELS)
def test_one_row(name: str, standardize: str | None) -> None:
    model = MODELS[name](standardize)
    history = vb.fit(model, (X[:1], Y[:1]), steps=3, progress=False)
    assert math.isfinite(history.elbo[-1])
    prediction = model.predict(X[:1])
    assert torch.isfinite(prediction.mean).all()
    assert (prediction.std > 0).all()
    assert torch.isfinite(model.sample_functions(X[:1], 2)).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_constant_column(name: str, caplog: pytest.LogCaptureFixture) -> None:
    x = X.clone()
    x[:, 1] = 0.998
    model = MODELS[name]("both")
    with caplog.at_level(logging.INFO, logger="vibayes"):
        vb.fit(model, (x, Y), steps=3, progress=False)
        model.predict(x)
    assert [m for m in caplog.messages if "onstant" in m] == ["Constant input column(s) [1]: standardised to zero."]
    assert torch.equal(model.prepare_inputs(x)[:, 1], torch.zeros(12))
    assert torch.isfinite(model.predict(x).mean).all()


@pytest.mark.parametrize("name", MODELS)
def test_constant_targets(name: str) -> None:
    model = MODELS[name]("both")
    vb.fit(model, (X, torch.full((12,), 7.0)), steps=3, progress=False)
    torch.testing.assert_close(model.predict(X).mean, torch.full((12,), 7.0), atol=0.5, rtol=0)


@pytest.mark.parametrize("name", ["svgp", "sgpr"])
def test_more_inducing_points_than_rows(name: str) -> None:
    model = MODELS[name]()
    vb.fit(model, (X[:2], Y[:2]), steps=3, progress=False)
    assert torch.isfinite(model.predict(X).mean).all()


@pytest.mark.parametrize("name", MODELS)
def test_integers_and_booleans(name: str) -> None:
    x = torch.randint(0, 3, (12, D), generator=torch.Generator().manual_seed(0))
    y = x.sum(1)
    for rows in (x, x > 1, x.numpy().astype(np.uint8)):
        model = MODELS[name]()
        vb.fit(model, (rows, y), steps=3, progress=False)
        same = MODELS[name]()
        same.load_state_dict(model.state_dict())
        expected = same.predict(torch.as_tensor(rows).double()).mean
        torch.testing.assert_close(model.predict(rows).mean, expected)
        assert expected.dtype == torch.float64


@pytest.mark.parametrize("name", MODELS)
def test_repeated_rows(name: str) -> None:
    model = MODELS[name]()
    vb.fit(model, (X[:2].repeat(6, 1), Y), steps=3, progress=False)
    assert torch.isfinite(model.predict(X[:2].repeat(6, 1)).mean).all()
    assert torch.isfinite(model.sample_functions(X[:2].repeat(6, 1), 3)).all()
