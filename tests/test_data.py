"""Arrays of any kind become checked tensors, and units are undone exactly."""

import logging
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import vibayes as vb
from vibayes.data import Units, as_rows, as_tensor, as_weights, check_count, check_finite

VALUES = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
FORMS = {
    "list": VALUES,
    "tuple": tuple(map(tuple, VALUES)),
    "tensor": torch.tensor(VALUES),
    "float32 tensor": torch.tensor(VALUES, dtype=torch.float32),
    "integer tensor": torch.tensor(VALUES, dtype=torch.int32),
    "numpy": np.array(VALUES),
    "numpy float16": np.array(VALUES, dtype=np.float16),
    "numpy longdouble": np.array(VALUES, dtype=np.longdouble),
    "numpy uint16": np.array(VALUES, dtype=np.uint16),
    "numpy other endian": np.array(VALUES).astype(">f8"),
    "numpy reversed": np.array(VALUES)[::-1][::-1],
    "numpy negative stride": np.array(VALUES[::-1])[::-1],
    "numpy transposed": np.array(VALUES).T.copy().T,
    "numpy of objects": np.array(VALUES, dtype=object),
    "data frame": pd.DataFrame(VALUES),
    "mixed data frame": pd.DataFrame({"a": [1, 3, 5], "b": np.array([2, 4, 6], dtype=np.float32)}),
    "nullable data frame": pd.DataFrame(VALUES).astype("Int64"),
    "list of arrays": [np.array(row) for row in VALUES],
    "list of tensors": [torch.tensor(row) for row in VALUES],
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_rows(form: str) -> None:
    rows = as_rows(FORMS[form], dtype=torch.float64)
    assert rows.dtype == torch.float64
    assert rows.tolist() == VALUES


def test_booleans_are_zero_and_one() -> None:
    assert as_rows([[True], [False]]).tolist() == [[1.0], [0.0]]
    frame = pd.DataFrame({"flag": [True, False], "x": [0.5, 1.5]})  # numpy sees objects here
    assert as_rows(frame).tolist() == [[1.0, 0.5], [0.0, 1.5]]


def test_a_read_only_array_is_copied() -> None:
    array = np.array(VALUES)
    array.flags.writeable = False
    as_rows(array).mul_(0.0)
    assert array.tolist() == VALUES
    writeable = np.array(VALUES)
    as_tensor(writeable, "x").mul_(0.0)
    assert writeable.tolist() == VALUES


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([["a"], ["b"]], "x holds values of type <U1; numbers are needed"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "Encode categories and dates"),
        ([[1.0], [2.0, 3.0]], "x cannot be read as an array"),
        ({"a": 1}, "x holds values of type object"),
        (pd.DataFrame({"a": ["low", "high"], "b": [1, 2]}), "Encode categories"),
        (np.array([[1 + 2j]]), "x holds values of type complex128"),
        (torch.ones(2, 1, dtype=torch.complex64), "x is complex"),
        (pd.DataFrame({"a": [1, None]}, dtype="Int64"), "x h"),
        ([[1.0], [None]], "row 1, column 0"),
    ],
)
def test_what_is_not_numbers(values: object, message: str) -> None:
    with pytest.raises(vb.DataError, match=message):
        as_rows(values)


@pytest.mark.parametrize("values", [[], torch.empty(0), torch.empty(0, 3), torch.empty(3, 0), np.empty((0, 2))])
def test_nothing_is_refused(values: object) -> None:
    with pytest.raises(vb.DataError, match=r"x is empty .*at least one row"):
        as_rows(values)


def test_rows_need_a_row_axis() -> None:
    for error in (vb.ShapeError, vb.DataError):
        with pytest.raises(error, match=r"\[N, D\].*x\[:, None\]"):
            as_rows(torch.ones(3))
    with pytest.raises(vb.ShapeError, match=r"inducing\[:, None\]"):
        as_rows([1.0, 2.0], "inducing")
    with pytest.raises(vb.ShapeError, match=r"got shape \[\]"):
        as_rows(1.0)


def test_rows_of_another_shape() -> None:
    for error in (vb.ShapeError, vb.DataError):
        with pytest.raises(error, match=r"rows of shape \[3\].*got rows of shape \[2\].*same columns"):
            as_rows(VALUES, shape=(3,))
    assert as_rows(torch.ones(2, 1, 4, 4), shape=(1, 4, 4)).shape == (2, 1, 4, 4)


@pytest.mark.parametrize(("value", "kind"), [(math.nan, "NaN"), (math.inf, "infinite"), (-math.inf, "infinite")])
def test_not_finite(value: float, kind: str) -> None:
    tensor = torch.ones(4, 3)
    tensor[2, 1] = value
    tensor[3, 0] = value
    with pytest.raises(vb.DataError, match=rf"x has 2 value.*first is {kind}, in row 2, column 1.*impute"):
        check_finite(tensor, "x")
    with pytest.raises(vb.DataError, match="in row 2"):
        check_finite(tensor[:, 1], "x")
    check_finite(torch.tensor([1, 2]), "x")


def test_too_large_for_float32() -> None:
    with pytest.raises(vb.DataError, match="infinite"):
        as_rows([[1e300]], dtype=torch.float32)


def test_weights() -> None:
    assert as_weights([0, 1, 2], 3, dtype=torch.float32).dtype == torch.float32
    assert as_weights(pd.Series([0.5, 1.0]), 2, dtype=torch.float64).tolist() == [0.5, 1.0]
    with pytest.raises(vb.DataError, match=r"one number per row, \[3\]; got shape \[2\]"):
        as_weights([1.0, 1.0], 3, dtype=torch.float64)
    with pytest.raises(vb.DataError, match=r"got shape \[3, 1\]"):
        as_weights(torch.ones(3, 1), 3, dtype=torch.float64)
    with pytest.raises(vb.DataError, match="must not be negative; use 0"):
        as_weights([1.0, -1.0], 2, dtype=torch.float64)
    with pytest.raises(vb.DataError, match="weights has 1 value"):
        as_weights([1.0, math.nan], 2, dtype=torch.float64)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None])
def test_counts(value: object) -> None:
    with pytest.raises(vb.ConfigurationError, match="n_samples must be at least 1"):
        check_count(value, "n_samples")
    assert check_count(np.int64(3), "n_samples") == 3


# ---- units


def test_unknown_choice() -> None:
    with pytest.raises(vb.ConfigurationError, match=r"'inputs', 'targets', 'both'.*got 'all'"):
        Units("all")


@pytest.mark.parametrize("choice", [None, "inputs", "targets", "both"])
def test_units_are_undone(choice: str | None) -> None:
    x, y = torch.randn(20, 3) * torch.tensor([1.0, 100.0, 1e-3]) + 7, torch.randn(20, 2) * 50 - 3
    units = Units(choice)
    units.learn(x, y)
    inside, target = units.inputs(x), units.targets(y)
    torch.testing.assert_close(units.outputs(target), y)
    scaled = inside if choice in ("inputs", "both") else None
    if scaled is None:
        assert torch.equal(inside, x)
    else:
        torch.testing.assert_close(scaled.mean(0), torch.zeros(3), atol=1e-10, rtol=0)
        torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3))
    jacobian = y.std(0, correction=0).log().sum() if choice in ("targets", "both") else torch.zeros(())
    torch.testing.assert_close(units.log_jacobian(), jacobian)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("value", [0.1, 0.998, 288.0, 0.0, -1e-9, 1e8])
def test_a_constant_column_is_zero(dtype: torch.dtype, value: float, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(1000, 3, dtype=dtype)
    x[:, 1] = value
    units = Units("inputs")
    with caplog.at_level(logging.INFO, logger="vibayes"):
        units.learn(x, x)
    assert torch.equal(units.inputs(x)[:, 1], torch.zeros(1000, dtype=dtype))
    assert units.inputs(x)[:, [0, 2]].std(0).min() > 0.9
    assert caplog.messages == ["Constant input column(s) [1]: standardised to zero."]
    alone = x[:, 1:2].contiguous()  # summed in another order, which rounds otherwise
    units_alone = Units("inputs")
    units_alone.learn(alone, alone)
    assert torch.equal(units_alone.inputs(alone), torch.zeros(1000, 1, dtype=dtype))
    # another value at prediction is moved by its own distance and not blown up
    other = x[:1].clone()
    other[:, 1] += 1.0
    assert abs(float(units.inputs(other)[0, 1]) - float(other[0, 1] - x[0, 1])) < 1e-6


def test_a_small_but_real_spread_is_kept() -> None:
    x = 1e3 + 1e-5 * torch.randn(50, 1)
    units = Units("inputs")
    units.learn(x, x)
    assert units.inputs(x).std() > 0.9


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e-30), (torch.float32, 1e30), (torch.float64, 1e-200), (torch.float64, 1e200)]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_whose_squares_vanish_or_overflow(dtype: torch.dtype, size: float, weighted: bool) -> None:
    plain = torch.randn(50, 2, dtype=torch.float64)
    weights = torch.ones(50, dtype=dtype) if weighted else None
    units, expected = Units("inputs"), Units("inputs")
    units.learn((plain * size).to(dtype), plain, weights)
    expected.learn(plain, plain)
    torch.testing.assert_close(units.x_scale / size, expected.x_scale, rtol=1e-5, atol=0.0)
    found = units.inputs((plain * size).to(dtype))
    torch.testing.assert_close(found.double(), expected.inputs(plain), rtol=1e-4, atol=1e-5)


def test_one_row() -> None:
    x = torch.tensor([[3.0, -2.0]])
    units = Units("both")
    units.learn(x, x)
    assert units.inputs(x).tolist() == [[0.0, 0.0]]
    assert units.outputs(units.targets(x)).tolist() == x.tolist()
    assert float(units.log_jacobian()) == 0.0


def test_statistics_travel_in_the_state_dict() -> None:
    x, y = torch.randn(9, 3), torch.randn(9, 2)
    units, fresh = Units("both"), Units("both")
    units.learn(x, y)
    fresh.load_state_dict(units.state_dict())
    assert torch.equal(fresh.inputs(x), units.inputs(x))
    assert torch.equal(fresh.targets(y), units.targets(y))


def test_images_are_standardised_per_channel() -> None:
    x = torch.rand(10, 3, 4, 5) * torch.tensor([1.0, 50.0, 1e-3])[:, None, None] + 7
    x[:, :, 0, 0] = 7.0  # a pixel that never changes, which must not be told from the others
    units = Units("inputs")
    units.learn(x, torch.ones(10, 1))
    mean, scale = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(units.inputs(x), (x - mean) / scale)
    assert torch.equal(units.inputs(x.roll(1, -1)), units.inputs(x).roll(1, -1))  # it commutes with translations


def test_weights_count_images() -> None:
    x, weights = torch.randn(5, 2, 3, 3), torch.tensor([0.0, 1.0, 2.0, 3.0, 1.0])
    weighted, repeated = Units("inputs"), Units("inputs")
    weighted.learn(x, x, weights)
    repeated.learn(x.repeat_interleave(weights.long(), 0), x)
    torch.testing.assert_close(weighted.inputs(x), repeated.inputs(x))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_constant_channel_is_zero(weighted: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Also where its mean, over millions of float32 values, is off by more than their rounding."""
    x = torch.rand(4000, 2, 28, 28, dtype=torch.float32)
    x[:, 1] = 0.998
    units = Units("inputs")
    with caplog.at_level(logging.INFO, logger="vibayes"):
        units.learn(x, torch.ones(4000, 1), torch.rand(4000, dtype=torch.float32) if weighted else None)
    assert not units.inputs(x)[:, 1].any()
    assert units.inputs(x)[:, 0].std() > 0.9
    assert caplog.messages == ["Constant input channel(s) [1]: standardised to zero."]


def test_statistics_of_images_have_the_shape_of_a_row() -> None:
    """As those of models saved when they were per pixel: old states load, and stack with new ones."""
    x, y = torch.rand(10, 2, 4, 4), torch.ones(10, 1)
    units = Units("inputs")
    units.learn(x, y)
    assert units.x_mean.shape == units.x_scale.shape == (2, 4, 4)
    assert units.x_mean.is_contiguous()
    assert units.x_scale.is_contiguous()
    old = {**units.state_dict(), "x_mean": x.mean(0), "x_scale": x.std(0, correction=0)}
    units.load_state_dict(old)
    torch.testing.assert_close(units.inputs(x).mean(0), torch.zeros(2, 4, 4), atol=1e-12, rtol=0)


def test_what_a_masked_array_hides_is_missing() -> None:
    values = np.ma.masked_values([[1, 2], [-999, 4]], -999)
    with pytest.raises(vb.DataError, match="first is NaN, in row 1, column 0"):
        as_rows(values)
    assert as_rows(np.ma.masked_array([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(vb.DataError, match=r"x is a sparse tensor; pass x.to_dense\(\)"):
        as_rows(torch.eye(3).to_sparse())
    with pytest.raises(vb.DataError, match="y is a sparse tensor"):
        as_tensor(torch.ones(3).to_sparse(), "y")


def test_missing_values_of_pandas_are_nan() -> None:
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [0.5, 1.5]})
    with pytest.raises(vb.DataError, match=r"x has 1 value.*NaN, in row 1, column 0"):
        as_rows(frame, "x")


SECONDS = 1_600_000_000 + np.arange(60)  # times, of which float32 holds every 128th
HIGH = 1e6 + np.sin(np.arange(60) / 8)
FAR = {
    "exact": lambda: vb.ExactGP(vb.SquaredExponential(2, lengthscale=0.3), vb.Gaussian(0.01), standardize="both"),
    "sparse": lambda: vb.SGPR(vb.SquaredExponential(2), vb.Gaussian(0.01), far_rows()[::6], standardize="both"),
    "local": lambda: vb.Model(
        vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(10, inputs=far_rows()[::6])),
        vb.Gaussian(0.01),
        standardize="both",
    ),
    "global": lambda: vb.Model(
        vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.GlobalInducing()),
        vb.Gaussian(0.01),
        inducing=far_rows()[::6],
        standardize="both",
    ),
}


def far_rows() -> np.ndarray:
    """Times, and a constant that float32 does not hold."""
    return np.stack([SECONDS, np.full(60, 123_456_789)], 1)


@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_columns_far_from_zero_are_standardised_with_all_digits(name: str, dtype: type) -> None:
    x, batches, inducing = far_rows().astype(dtype), [], []
    for precision in (torch.float64, torch.float32):
        model = FAR[name]().to(precision)
        model.initialize(x, HIGH)
        batches.append(model.prepare(x, HIGH))
        torch.testing.assert_close(model.prepare_inputs(x), batches[-1].x, rtol=0, atol=0)
        assert model.units.x_mean.dtype == torch.float64
        inducing += [p.detach() for k, p in model.named_parameters() if k.endswith(("inducing", "posterior.inputs"))]
    wide, narrow = batches
    assert narrow.x.dtype == narrow.y.dtype == torch.float32
    torch.testing.assert_close(narrow.x.double(), wide.x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(narrow.y.double(), wide.y, rtol=1e-6, atol=1e-6)
    assert bool((narrow.x[:, 1] == 0).all())
    if inducing:
        torch.testing.assert_close(inducing[1].double(), inducing[0], rtol=1e-6, atol=1e-6)


def test_predictions_far_from_zero_in_float32(tmp_path: Path) -> None:
    x, found = far_rows(), []
    for precision in (torch.float64, torch.float32):
        model = FAR["exact"]().to(precision)
        model.condition(x, HIGH)
        model.save(tmp_path / str(precision))
        loaded = vb.load(tmp_path / str(precision))
        for each in (model, loaded, model.double().to(precision)):
            prediction = each.predict(x)
            assert prediction.mean.dtype == precision
            found.append(prediction.log_prob(HIGH).double())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-3, atol=1e-3)
