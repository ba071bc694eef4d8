"""Tables, toys from files and bundled sets: sizes, splits, units, and the errors of `load`."""

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vibayes import datasets
from vibayes.errors import ConfigurationError, ShapeError

# name: rows, inputs, splits, training rows, test rows
TABLES = {
    "boston": (506, 13, 20, 455, 51),
    "concrete": (1030, 8, 20, 927, 103),
    "energy": (768, 8, 20, 691, 77),
    "kin8nm": (8192, 8, 20, 7373, 819),
    "naval": (11934, 16, 20, 10741, 1193),
    "power": (9568, 4, 20, 8611, 957),
    "protein": (45730, 9, 5, 41157, 4573),
    "wine": (1599, 11, 20, 1439, 160),
    "yacht": (308, 6, 20, 277, 31),
    "kin40k": (40000, 8, 10, 36000, 4000),
}
BUNDLED = {
    "diabetes": (442, 10),
    "linnerud": (20, 3),
    "digits": (1797, 64),
    "iris": (150, 4),
    "wine_recognition": (178, 13),
    "breast_cancer": (569, 30),
}


def test_catalogue_has_the_published_sizes() -> None:
    assert set(datasets.names(kind="table")) == set(TABLES)
    assert set(datasets.names(kind="bundled")) == set(BUNDLED)
    for name, (n, d, splits, n_train, n_test) in TABLES.items():
        entry = datasets.info(name)
        assert (entry.n_rows, entry.input_shape, entry.n_splits) == (n, (d,), splits)
        assert (entry.n_train, entry.n_test) == (n_train, n_test)
    for name in datasets.names():
        entry = datasets.info(name)
        assert entry.title
        assert entry.kind == "generated" or (entry.citation and entry.licence)


@pytest.mark.parametrize("name", TABLES)
def test_published_splits(name: str, data_root: Path) -> None:
    n, d, splits, n_train, n_test = TABLES[name]
    with np.load(data_root / "uci" / f"{name}.npz") as archive:
        X, y = archive["X"], archive["y"]
        assert f"train_{splits - 1}" in archive.files
        assert f"train_{splits}" not in archive.files
    seen = set()
    for k in (0, splits // 2, splits - 1):
        data = datasets.load(name, split=k)
        assert data.split == k
        assert data.x_train.shape == (n_train, d)
        assert data.y_train.shape == (n_train,)
        assert data.x_test.shape == (n_test, d)
        assert data.y_test.shape == (n_test,)
        assert data.x_train.dtype == data.y_test.dtype == torch.float64
        train, test = data.metadata["train_index"].numpy(), data.metadata["test_index"].numpy()
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(n))
        np.testing.assert_array_equal(data.x_train.numpy(), X[train])
        np.testing.assert_array_equal(data.y_train.numpy(), y[train])
        np.testing.assert_array_equal(data.x_test.numpy(), X[test])
        np.testing.assert_array_equal(data.y_test.numpy(), y[test])
        seen.add(test.tobytes())
    assert len(seen) == 3


@pytest.mark.parametrize("name", ["boston", "kin40k"])
def test_random_splits(name: str, data_root: Path) -> None:
    n, d, _, n_train, n_test = TABLES[name]
    first, again, other = (datasets.load(name, split="random", seed=s) for s in (0, 0, 1))
    assert first.x_train.shape == (n_train, d)
    assert first.x_test.shape == (n_test, d)
    assert first.split is None
    assert first.seed == 0
    assert torch.equal(first.x_train, again.x_train)
    assert not torch.equal(first.x_train, other.x_train)
    train, test = first.metadata["train_index"], first.metadata["test_index"]
    assert torch.equal(torch.cat([train, test]).sort().values, torch.arange(n))
    # Written out once more: the documented recipe.
    expected = np.random.RandomState(1).permutation(n)[:n_train]
    np.testing.assert_array_equal(other.metadata["train_index"].numpy(), expected)
    assert len(datasets.load(name, seed=0, test_fraction=0.5).x_train) == n // 2


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_sets(name: str) -> None:
    n, d = BUNDLED[name]
    data = datasets.load(name, seed=2)
    n_train = round(0.9 * n)
    assert data.x_train.shape == (n_train, d)
    assert data.x_test.shape == (n - n_train, d)
    classes = datasets.info(name).task == "classification"
    assert data.y_train.dtype == (torch.long if classes else torch.float64)
    assert data.y_train.shape == ((n_train, 3) if name == "linnerud" else (n_train,))
    assert not torch.equal(data.x_train, datasets.load(name, seed=3).x_train)
    scaled = data.standardized("inputs" if classes else "both")
    torch.testing.assert_close(scaled.x_train * scaled.x_std + scaled.x_mean, data.x_train)
    torch.testing.assert_close(scaled.original_targets(scaled.y_test), data.y_test, check_dtype=False)


def test_diabetes_is_raw() -> None:
    assert datasets.load("diabetes").x_train[:, 0].mean() > 40  # age in years


def test_snelson(data_root: Path) -> None:
    data = datasets.load("snelson", standardize="both", ddof=1)
    assert data.x_train.shape == (200, 1)
    assert data.y_train.shape == (200,)
    assert data.x_test.shape == (301, 1)
    assert not data.has_test_targets
    torch.testing.assert_close(data.x_train.std(0, correction=1), torch.ones(1))
    torch.testing.assert_close(data.y_train.std(correction=1), torch.tensor(1.0))
    raw = datasets.load("snelson")
    torch.testing.assert_close(raw.x_test[[0, -1], 0], torch.tensor([-3.0, 10.0]))
    torch.testing.assert_close(data.x_test * data.x_std + data.x_mean, raw.x_test)
    twenty = datasets.load("snelson", every=10)
    assert torch.equal(twenty.x_train, raw.x_train[::10])
    assert torch.equal(twenty.y_train, raw.y_train[::10])
    own = datasets.load("snelson", every=10, standardize="both")
    full = datasets.load("snelson", every=10, standardize="both", full_statistics=True)
    torch.testing.assert_close(own.y_train.mean(), torch.tensor(0.0))
    assert full.y_train.mean().abs() > 1e-3
    torch.testing.assert_close(full.y_mean, raw.y_train.mean())


def test_standardising_uses_training_rows_only(data_root: Path) -> None:
    raw, data = datasets.load("boston", split=4), datasets.load("boston", split=4, standardize="both")
    torch.testing.assert_close(data.x_mean, raw.x_train.mean(0))
    torch.testing.assert_close(data.x_std, raw.x_train.std(0, correction=0))
    torch.testing.assert_close(data.y_std, raw.y_train.std(correction=0))
    torch.testing.assert_close(data.x_train.mean(0), torch.zeros(13), atol=1e-12, rtol=0)
    torch.testing.assert_close(data.x_train.std(0, correction=0), torch.ones(13))
    torch.testing.assert_close(data.x_test, (raw.x_test - raw.x_train.mean(0)) / raw.x_train.std(0, correction=0))
    assert data.x_test.mean(0).abs().max() > 1e-2
    torch.testing.assert_close(data.original_targets(data.y_test), raw.y_test)
    inputs = datasets.load("boston", split=4, standardize="inputs")
    assert torch.equal(inputs.y_train, raw.y_train)
    assert float(inputs.y_std) == 1.0
    targets = datasets.load("boston", split=4, standardize="targets")
    assert torch.equal(targets.x_train, raw.x_train)


def test_constant_columns_of_naval(data_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="vibayes.datasets"):
        data = datasets.load("naval", standardize="both")
        datasets.load("naval", standardize="both")
    assert len([r for r in caplog.records if "[8, 11]" in r.message]) == 1
    for x in (data.x_train, data.x_test):
        assert torch.isfinite(x).all()
        assert (x[:, [8, 11]] == 0).all()
    raw = datasets.load("naval")
    torch.testing.assert_close(data.x_test * data.x_std + data.x_mean, raw.x_test)


def test_standardising_twice_and_like() -> None:
    a = datasets.cubic(seed=0)
    twice = a.standardized("inputs").standardized("both")
    assert twice.standardize == "both"
    torch.testing.assert_close(twice.x_train * twice.x_std + twice.x_mean, a.x_train)
    torch.testing.assert_close(twice.original_targets(twice.y_train), a.y_train)
    assert a.standardized("inputs").standardized("targets").standardize == "both"
    b = datasets.cubic(seed=1)
    like = b.standardized("inputs").standardized("both", like=a.standardized("both"))
    own = a.standardized("both")
    torch.testing.assert_close(like.x_train, (b.x_train - own.x_mean) / own.x_std)
    torch.testing.assert_close(like.y_train, (b.y_train - own.y_mean) / own.y_std)
    with pytest.raises(ShapeError, match="cannot share statistics"):
        datasets.deep_linear().standardized("inputs", like=own)
    with pytest.raises(ConfigurationError, match="class labels"):
        datasets.load("iris", standardize="both")
    with pytest.raises(ConfigurationError, match='"inputs", "targets" or "both"; got \'all\''):
        datasets.cubic().standardized("all")  # type: ignore[arg-type]


def test_dtype_and_moving() -> None:
    data = datasets.load("iris", dtype=torch.float32, standardize="inputs")
    assert data.x_train.dtype == data.x_mean.dtype == torch.float32
    moved = data.to(dtype=torch.float64)
    assert moved.x_test.dtype == torch.float64
    assert moved.y_test.dtype == torch.long
    with pytest.raises(ConfigurationError, match="floating-point"):
        datasets.load("iris", dtype=torch.int32)


def test_subset() -> None:
    data = datasets.deep_linear().subset(n_train=7, n_test=0)
    assert data.x_train.shape == (7, 5)
    assert data.y_train.shape == (7,)
    assert not data.has_test_targets
    assert len(datasets.load("iris", n_train=10, every=2).metadata["train_index"]) == 10
    with pytest.raises(ConfigurationError, match="n_train must be 0 to 1000"):
        datasets.deep_linear().subset(n_train=1001)
    with pytest.raises(ConfigurationError, match="every"):
        datasets.deep_linear().subset(every=0)


def test_repr(data_root: Path) -> None:
    text = repr(datasets.load("boston", split=3))
    assert text == "Split('boston', split=3, train=455, test=51, inputs=(13,))"


def test_names_and_splits_that_do_not_exist() -> None:
    with pytest.raises(ConfigurationError, match=r"no data set 'bostom'. Did you mean 'boston'\?.*kin40k"):
        datasets.load("bostom")
    with pytest.raises(ConfigurationError, match="Did you mean 'cifar10'"):
        datasets.load("CIFAR-10")
    with pytest.raises(ConfigurationError, match="Known: boston, concrete"):
        datasets.info("q")
    assert datasets.info("Fashion-MNIST").name == "fashion_mnist"
    with pytest.raises(ConfigurationError, match="boston has 20 splits, 0 to 19; got split=20"):
        datasets.load("boston", split=20)
    with pytest.raises(ConfigurationError, match="protein has 5 splits"):
        datasets.load("protein", split=-1)
    with pytest.raises(ConfigurationError, match="mnist has one split"):
        datasets.load("mnist", split=1)
    with pytest.raises(ConfigurationError, match="no published splits"):
        datasets.load("iris", split=0)
    with pytest.raises(ConfigurationError, match='"random"'):
        datasets.load("boston", split="best")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match='"random"'):
        datasets.load("boston", split=0.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="fixed split"):
        datasets.load("utkface", split="random")
    with pytest.raises(ConfigurationError, match="belong to"):
        datasets.load("boston", split=1, seed=2)
    with pytest.raises(ConfigurationError, match="takes no split"):
        datasets.load("cubic", split=1)
    with pytest.raises(ConfigurationError, match="seed must be"):
        datasets.load("iris", seed=-1)
    with pytest.raises(ConfigurationError, match="at least one"):
        datasets.load("iris", test_fraction=1.0)


def test_import_is_light() -> None:
    heavy = ("sklearn", "pooch", "requests", "pandas", "matplotlib", "scipy")
    code = f"import vibayes.datasets, sys; print([m for m in {heavy!r} if m in sys.modules])"
    # torch itself may bring some of them in, which is not ours to change.
    base = f"import torch, jaxtyping, sys; print([m for m in {heavy!r} if m in sys.modules])"
    ours, torchs = (subprocess.check_output([sys.executable, "-c", c], text=True) for c in (code, base))
    assert ours == torchs


@pytest.mark.parametrize("ddof", [0, 1])
def test_statistics_over_several_pieces(ddof: int) -> None:
    # More rows than one piece of the sums, with a drift, a large offset and a constant column.
    random = np.random.RandomState(0)
    x = random.normal(size=(9000, 3)) + np.arange(9000)[:, None] / 1000 + np.array([0.0, 1e6, 0.0])
    x[:, 2] = 0.1
    rows = torch.as_tensor(x)
    data = datasets.Split(rows, rows[:, 0], rows[:5], rows[:5, 0]).standardized("both", ddof=ddof)
    np.testing.assert_allclose(data.x_mean.numpy(), [*x[:, :2].mean(0), 0.1], rtol=1e-12)
    np.testing.assert_allclose(data.x_std.numpy(), [*x[:, :2].std(0, ddof=ddof), 1.0], rtol=1e-9)
    np.testing.assert_allclose(float(data.y_std), x[:, 0].std(ddof=ddof), rtol=1e-12)
    assert (data.x_train[:, 2] == 0).all()


def test_constant_columns_are_exactly_zero() -> None:
    # The computed mean of many equal numbers is off by rounding for some of them.
    x = torch.as_tensor(np.random.RandomState(0).normal(size=50)).expand(9001, 50)
    assert (torch.split(x, 4096)[0].mean(0) != x[0]).any() or (x.mean(0) != x[0]).any()
    data = datasets.Split(x, x[:, 0], x[:5], x[:5, 0]).standardized("inputs")
    assert (data.x_train == 0).all()
    assert torch.equal(data.x_mean, x[0])
