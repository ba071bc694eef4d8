"""Exact GP regression: posterior, failures, training."""

import os

import numpy as np
import pytest
import torch

import vibayes as vb
from vibayes.conjugate import ExactGP
from vibayes.kernels import DeepKernel


def test_posterior_is_the_conditional_of_the_joint_normal() -> None:
    x, new = torch.randn(12, 2), torch.randn(5, 2)
    y = torch.randn(12)
    gp = ExactGP(vb.Matern32(2, lengthscale=1.2, variance=2.0), vb.Gaussian(0.3), mean=vb.ConstantMean(-0.4))
    gp.condition(x, y)
    with torch.no_grad():
        both = torch.cat([x, new])
        K = gp.kernel(both).numpy()
    inverse = np.linalg.inv(K[:12, :12] + 0.3 * np.eye(12))
    mean = -0.4 + K[12:, :12] @ inverse @ (y.numpy() + 0.4)
    covariance = K[12:, 12:] - K[12:, :12] @ inverse @ K[:12, 12:]
    prediction = gp.predict(new, joint=True)
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(prediction.covariance[0], covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(prediction.variance, covariance.diagonal() + 0.3, rtol=1e-10)
    np.testing.assert_allclose(prediction.aleatoric, np.full(5, 0.3), rtol=1e-12)


def test_predictions_chain_to_the_marginal_likelihood() -> None:
    """`p(y) = prod_n p(y_n | y_<n)`."""
    x, y = torch.randn(8, 1), torch.randn(8)
    gp = ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.2))
    total = gp.log_marginal_likelihood(x[:1], y[:1]).detach()
    for n in range(1, 8):
        gp.condition(x[:n], y[:n])
        total = total + gp.predict(x[n : n + 1]).log_prob(y[n : n + 1]).sum()
    torch.testing.assert_close(total, gp.log_marginal_likelihood(x, y).detach(), rtol=1e-10, atol=0)


def test_white_noise_in_the_kernel_is_noise_of_training_rows() -> None:
    x, y = torch.randn(10, 1), torch.randn(10)
    white = ExactGP(vb.SquaredExponential(1) + vb.White(1, variance=0.3), vb.Gaussian(0.1))
    plain = ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.4))
    a, b = (model.log_marginal_likelihood(x, y).detach() for model in (white, plain))
    torch.testing.assert_close(a, b)
    for model in (white, plain):
        model.condition(x, y)
    new = torch.randn(4, 1)
    torch.testing.assert_close(white.predict(new).std, plain.predict(new).std)


def test_failed_factorization_is_nan_while_training_and_an_error_when_predicting() -> None:
    x = torch.zeros(30, 1)  # the same row thirty times, and noise below rounding
    gp = ExactGP(vb.SquaredExponential(1), vb.Gaussian(1e-25))
    gp.initialize(x, torch.randn(30))
    bound = gp(*gp.prepare(x, torch.randn(30)))
    assert torch.isnan(bound.objective())
    assert bound.failures["kernel matrix"] > 0
    with pytest.raises(vb.NotPositiveDefiniteError, match=r"\[30, 30\].*float64.*1e-25.*larger noise"):
        gp.predict(x)


def test_repeated_rows_and_small_noise_need_no_jitter() -> None:
    x = torch.linspace(0, 1, 10)[:, None].repeat(3, 1)
    gp = ExactGP(vb.SquaredExponential(1), vb.Gaussian(1e-8))
    gp.condition(x, torch.sin(x[:, 0]))
    torch.testing.assert_close(gp.predict(x).mean, torch.sin(x[:, 0]), rtol=0, atol=1e-4)


def test_hyperparameter_priors_enter_the_objective_only() -> None:
    x, y = torch.randn(8, 1), torch.randn(8)
    prior = torch.distributions.LogNormal(torch.tensor(0.0), torch.tensor(1.0))
    kernel = vb.SquaredExponential(1, lengthscale=vb.Positive(2.0, prior=prior))
    gp = ExactGP(kernel, vb.Gaussian())
    elbo = gp.elbo(x, y)
    expected = elbo.value + prior.log_prob(torch.tensor(2.0))
    torch.testing.assert_close(elbo.objective, expected)
    torch.testing.assert_close(elbo.value, gp.log_marginal_likelihood(x, y))


def test_initializing_again_forgets_the_old_data() -> None:
    gp = ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1), standardize="both")
    gp.initialize(torch.randn(9, 1), torch.randn(9))
    x, y = torch.randn(7, 1), 5 + torch.randn(7)
    gp.initialize(x, y)
    fresh = ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1), standardize="both")
    fresh.initialize(x, y)
    torch.testing.assert_close(gp.predict(x).mean, fresh.predict(x).mean)


def test_refusals() -> None:
    with pytest.raises(vb.ConfigurationError, match="kernel"):
        ExactGP(torch.nn.Linear(1, 1), vb.Gaussian())
    gp = ExactGP(vb.SquaredExponential(2), vb.Gaussian())
    with pytest.raises(vb.ShapeError):
        gp.log_marginal_likelihood(torch.randn(5, 1), torch.randn(5))
    gp.condition(torch.randn(5, 2), torch.randn(5))
    with pytest.raises(vb.ConfigurationError, match="n must be"):
        gp.sample_functions(torch.randn(5, 2), 0)
    with pytest.raises(vb.ConfigurationError, match="batch_size"):
        gp.predict(torch.randn(5, 2), batch_size=0)


@pytest.mark.parametrize("mean", [1.0, torch.sin])
def test_a_mean_is_a_mean_function(mean: object) -> None:
    with pytest.raises(vb.ConfigurationError, match="mean must be a mean function"):
        vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(), mean=mean)
    with pytest.raises(vb.ConfigurationError, match="mean must be a mean function"):
        vb.SGPR(vb.SquaredExponential(1), vb.Gaussian(), 3, mean=mean)


def test_rows_beyond_the_memory_are_refused_before_they_fill_it() -> None:
    gp = ExactGP(vb.SquaredExponential(1), vb.Gaussian())
    x = torch.zeros(2_000_000, 1)  # whose covariance has 32 TB
    with pytest.raises(vb.ConfigurationError, match=r"2,000,000 rows.*SGPR"):
        gp.initialize(x, x[:, 0])
    gp.initialize(x[:5], x[:5, 0])


def test_repeated_rows_by_weight_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 10**6}.__getitem__)  # a megabyte
    gp = ExactGP(vb.SquaredExponential(1), vb.Gaussian())
    gp.initialize(torch.randn(20, 1), torch.randn(20), torch.full((20,), 100.0))
    with pytest.raises(vb.ConfigurationError, match="200 rows"):
        gp.initialize(torch.randn(200, 1), torch.randn(200))


@pytest.mark.parametrize("kernel", [vb.SquaredExponential, vb.Matern32, vb.Matern52, vb.RationalQuadratic])
@pytest.mark.parametrize("noise", [1e-2, 1e-5])
def test_float32_has_the_evidence_and_the_posterior_of_float64(kernel: type[vb.Kernel], noise: float) -> None:
    """Rows over a hundred lengthscales, where squared distances lose four digits, and noise below those digits."""
    x = torch.linspace(0, 100, 200)[:, None]
    y = torch.stack([torch.sin(2 * x[:, 0]), torch.cos(x[:, 0])], 1)
    found = []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        gp = ExactGP(kernel(1), vb.Gaussian(noise, out_features=2))
        gp.condition(x, y, torch.arange(200) % 3)
        new = x[::10].float() + 0.25  # the same in both dtypes
        prediction, joint = gp.predict(new), gp.predict(new, joint=True)
        assert prediction.mean.dtype == joint.covariance.dtype == dtype
        evidence = gp.log_marginal_likelihood(x.float(), y.float())
        evidence.backward()
        gradient = gp.kernel.lengthscale.raw.grad
        parts = (evidence, gradient, prediction.mean, prediction.epistemic, joint.mean, joint.covariance)
        found.append([part.detach().double() for part in parts])
    for double, single in zip(*found, strict=True):
        torch.testing.assert_close(single, double, rtol=2e-3, atol=2e-3 * float(double.abs().max()) ** 0.5 * noise**0.5)


def test_networks_inside_sums_see_rows_of_the_model_s_dtype() -> None:
    torch.set_default_dtype(torch.float32)
    network = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.BatchNorm1d(3))
    gp = ExactGP(DeepKernel(network, vb.SquaredExponential(3)) + vb.White(1), vb.Gaussian(0.1))
    x = torch.linspace(-1, 1, 20)[:, None]
    gp.condition(x, x[:, 0])
    before = network[1].running_var.clone()
    gp.elbo(x, x[:, 0]).value.backward()
    assert network[0].weight.grad.abs().sum() > 0
    assert not torch.equal(network[1].running_var, before)
    assert torch.isfinite(gp.predict(x, joint=True).covariance).all()
