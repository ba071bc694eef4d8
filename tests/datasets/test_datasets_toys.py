"""Generated sets: reproducible, with the moments that their descriptions give."""

import numpy as np
import pytest
import scipy.stats
import torch

from vibayes import datasets
from vibayes.errors import ConfigurationError, ShapeError

TOYS = {
    "cubic": datasets.cubic,
    "deep_linear": datasets.deep_linear,
    "deep_gp": datasets.deep_gp,
    "gaussian_bumps": datasets.gaussian_bumps,
}


@pytest.mark.parametrize("name", TOYS)
def test_registry(name: str) -> None:
    toy, entry = TOYS[name], datasets.info(name)
    a, b, c = toy(seed=3), toy(seed=3), toy(seed=4)
    assert torch.equal(a.x_train, b.x_train)
    assert torch.equal(a.y_train, b.y_train)
    assert not torch.equal(a.y_train, c.y_train)
    assert (len(a.x_train), len(a.x_test)) == (entry.n_train, entry.n_test)
    assert tuple(a.x_train.shape[1:]) == entry.input_shape
    assert a.y_train.shape == a.x_train.shape[:1]
    assert a.x_train.dtype == a.y_train.dtype == torch.float64
    assert toy(dtype=torch.float32).y_train.dtype == torch.float32
    assert torch.equal(datasets.load(name, seed=3).y_train, a.y_train)
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    toy(seed=0)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (np.random.get_state()[1] == state[1]).all()  # noqa: NPY002


def test_names_match() -> None:
    assert set(datasets.names(kind="generated")) == set(TOYS)


def test_frozen_stream() -> None:
    # The numbers themselves: results that people publish with a seed must not change with a release.
    data = datasets.cubic(seed=0)
    random = np.random.RandomState(0)
    x = random.uniform(2, 4, 40) * np.repeat([-1, 1], 20)
    np.testing.assert_allclose(data.x_train[:, 0].numpy(), x, rtol=1e-15)
    np.testing.assert_allclose(float(data.x_train[0, 0]), -3.0976270078546495, rtol=1e-14)


def test_cubic() -> None:
    data = datasets.cubic(seed=0)
    x = data.x_train[:, 0]
    assert ((x >= -4) & (x <= -2)).sum() == ((x >= 2) & (x <= 4)).sum() == 20
    many = datasets.cubic(seed=1, n=200_000)
    residual = many.y_train - many.x_train[:, 0] ** 3
    # Standard errors: 3 / sqrt(n) = 0.0067 for the mean, 9 sqrt(2 / n) = 0.028 for the variance.
    assert residual.mean().abs() < 0.03
    assert (residual.var() - 9.0).abs() < 0.12
    assert (many.x_train.abs().mean() - 3.0).abs() < 0.01


def test_deep_linear() -> None:
    data = datasets.deep_linear(seed=0, n_train=100_000)
    assert (torch.cov(data.x_train.T) - torch.eye(5)).abs().max() < 0.02
    residual = data.y_train - data.x_train @ data.metadata["weights"]
    assert (residual.var() - 0.1).abs() < 0.002
    assert data.has_test_targets
    weights = torch.stack([datasets.deep_linear(s, n_train=1).metadata["weights"] for s in range(4000)])
    assert (weights.var() - 0.2).abs() < 0.01


def test_deep_linear_evidence() -> None:
    data = datasets.deep_linear(seed=1, n_train=60)
    x, y = data.x_train, data.y_train
    covariance = (x @ x.T / 5 + 0.1 * torch.eye(60)).numpy()
    expected = scipy.stats.multivariate_normal(np.zeros(60), covariance).logpdf(y.numpy())
    np.testing.assert_allclose(float(datasets.deep_linear_log_evidence(x, y)), expected, rtol=1e-11)
    with pytest.raises(ShapeError, match="y \\[N\\]"):
        datasets.deep_linear_log_evidence(x, y[:, None])


def test_deep_gp() -> None:
    data = datasets.deep_gp(seed=0, noise_variance=1e-4)
    layers = data.metadata["layers"]
    assert layers.shape == (100, 2)
    assert ((data.y_train - layers[:, 1]).std() - 1e-2).abs() < 3e-3
    # One layer is a GP: over many samples at the same seeds' inputs, values have the kernel's covariance. The
    # whitened first layer must be standard normal, which tests kernel and lengthscale together.
    squares, n = [], 25
    for seed in range(400):
        toy = datasets.deep_gp(seed, n=n, lengthscales=(0.4,), variances=(2.0,), interval=(0, 8))
        x, f = toy.x_train, toy.metadata["layers"][:, 0]
        K = 2.0 * torch.exp(-0.5 * (x - x.T) ** 2 / 0.4**2) + 2e-10 * torch.eye(n)
        squares.append(f @ torch.linalg.solve(K, f) / n)
    # Mean of chi-squared / n: standard error sqrt(2 / (400 n)) = 0.014.
    assert (torch.stack(squares).mean() - 1.0).abs() < 0.06
    second = datasets.deep_gp(seed=5, lengthscales=(1.0, 1e3))
    assert second.metadata["layers"][:, 1].std() < 0.05  # a huge lengthscale: nearly constant in its input
    with pytest.raises(ConfigurationError, match="per layer"):
        datasets.deep_gp(lengthscales=(1.0,))
    with pytest.raises(ConfigurationError, match=r"variances\[1\]"):
        datasets.deep_gp(variances=(1.0, 0.0))


def test_gaussian_bumps() -> None:
    data = datasets.gaussian_bumps(seed=0, n=100_000, noise_variance=0.04)
    truth = data.metadata
    features = torch.exp(-(((data.x_train - truth["centres"]) / truth["lengthscale"]) ** 2))
    residual = data.y_train - features @ truth["weights"]
    assert (residual.var() - 0.04).abs() < 1e-3
    torch.testing.assert_close(truth["centres"], torch.linspace(-1, 1, 5))
    assert truth["lengthscale"] == 0.5
    assert data.x_train.min() > -1
    assert data.x_train.max() < 1
    assert datasets.gaussian_bumps(n_bumps=1).metadata["centres"].tolist() == [0.0]
    with pytest.raises(ConfigurationError, match="noise_variance must be positive"):
        datasets.gaussian_bumps(noise_variance=-1.0)
