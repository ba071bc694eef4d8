"""Linear regression on features: weights, families of posteriors, features."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes.conjugate import ExactGP, GaussianBumps, LinearRegression, PolynomialFeatures


def data(n: int = 30) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 1) * 4 - 2
    return x, torch.sin(2 * x[:, 0]) + 0.2 * torch.randn(n)


def test_gaussian_bumps_are_the_formula() -> None:
    x = torch.randn(6, 2)
    centres = torch.randn(3, 2)
    expected = torch.stack([torch.exp(-((x - c) ** 2).sum(-1) / 0.7**2) for c in centres], -1)
    torch.testing.assert_close(GaussianBumps(centres, 0.7)(x), expected)
    assert not GaussianBumps(centres, 0.7).lengthscale.raw.requires_grad


def test_polynomial_features() -> None:
    features = PolynomialFeatures(2, in_features=2)
    assert features.n_features == 5
    assert features(torch.tensor([[2.0, 3.0]])).tolist() == [[1.0, 2.0, 3.0, 4.0, 9.0]]


def test_exact_posterior_is_the_thesis_formula() -> None:
    x, y = data()
    model = LinearRegression(PolynomialFeatures(3), noise=0.2, prior_variance=1.7)
    model.condition(x, y)
    Phi = model.features(x)
    S = torch.linalg.inv(torch.eye(4) / 1.7 + Phi.mT @ Phi / 0.2)
    found = model.weights()
    torch.testing.assert_close(found.mean[:, 0], S @ Phi.mT @ y / 0.2)
    torch.testing.assert_close(found.covariance[0], S)
    new = torch.randn(5, 1)
    phi = model.features(new)
    prediction = model.predict(new)
    torch.testing.assert_close(prediction.mean, phi @ found.mean[:, 0])
    torch.testing.assert_close(prediction.variance, (phi @ S * phi).sum(-1) + 0.2)


def test_point_is_least_squares() -> None:
    x, y = data()
    model = LinearRegression(GaussianBumps(torch.linspace(-2, 2, 5), 1.0), posterior="point", noise=0.2)
    model.condition(x, y)
    Phi = model.features(x).numpy()
    expected = np.linalg.lstsq(Phi, y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(model.weights().mean[:, 0], expected, rtol=1e-9)
    normal = torch.distributions.Normal(torch.as_tensor(Phi @ expected), 0.2**0.5)
    torch.testing.assert_close(model.elbo(x, y).value.detach(), normal.log_prob(y).sum())
    assert model.elbo(x, y).kl == 0
    assert not hasattr(model.prior_variance, "raw")


def test_point_takes_the_smallest_of_equally_good_weights() -> None:
    x, y = data()
    repeated = LinearRegression(lambda rows: torch.cat([rows, rows, rows**2], -1), posterior="point")
    repeated.condition(x, y)
    Phi = torch.cat([x, x, x**2], -1).numpy()
    np.testing.assert_allclose(repeated.weights().mean[:, 0], np.linalg.pinv(Phi) @ y.numpy(), rtol=1e-9, atol=1e-12)


def test_fitted_noise_of_the_point_is_the_mean_squared_residual() -> None:
    x, y = data()
    model = LinearRegression(PolynomialFeatures(3), posterior="point")
    vb.fit(model, (x, y), progress=False)
    residual = y - model.features(x) @ model.weights().mean[:, 0]
    torch.testing.assert_close(model.likelihood.noise.value.detach(), residual.square().mean(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("posterior", ["full", "mean_field"])
def test_optimal_q_is_a_stationary_maximum(posterior: str) -> None:
    x, y = data()
    bumps = GaussianBumps(torch.linspace(-2, 2, 6), 1.0)
    model = LinearRegression(bumps, posterior=posterior, noise=0.2, prior_variance=0.5)
    optimal = model.optimal_q(x, y)
    torch.testing.assert_close(optimal.log_det, torch.logdet(optimal.factor @ optimal.factor.mT))
    model.set_q(optimal)
    best = model.elbo(x, y).value
    best.backward()
    q = [p for n, p in model.named_parameters() if n in ("mean", "raw_factor", "raw_scale")]
    assert len(q) == 2
    assert all(p.grad.abs().max() < 1e-9 for p in q)
    for p in q:
        for sign in (-1, 1):
            with torch.no_grad():
                p.add_(0.05 * sign)
                assert model.elbo(x, y).value < best - 1e-3
                p.sub_(0.05 * sign)


def test_mean_field_has_the_exact_mean_and_too_little_variance() -> None:
    x, y = data()
    bumps = GaussianBumps(torch.linspace(-2, 2, 6), 1.0)
    exact = LinearRegression(bumps, noise=0.2)
    rough = LinearRegression(bumps, posterior="mean_field", noise=0.2)
    for model in (exact, rough):
        model.condition(x, y)
    torch.testing.assert_close(rough.weights().mean, exact.weights().mean)
    variances = [m.weights().covariance[0].diagonal() for m in (rough, exact)]
    assert (variances[0] < variances[1]).all()
    torch.testing.assert_close(
        1 / variances[0], torch.linalg.inv(exact.weights().covariance[0]).diagonal(), rtol=1e-7, atol=0
    )


@pytest.mark.parametrize("posterior", ["exact", "full", "mean_field"])
def test_prior_variance_is_learned_and_noise_can_be_fixed(posterior: str) -> None:
    x, y = data()
    bumps = GaussianBumps(torch.linspace(-2, 2, 12), 0.7)
    model = LinearRegression(bumps, posterior=posterior, noise=vb.Gaussian(0.04, learn=False))
    vb.fit(model, (x, y), steps=200, progress=False)
    assert model.likelihood.noise.value == pytest.approx(0.04, rel=1e-12)
    assert abs(model.prior_variance.value.item() - 1) > 0.01
    gradient = torch.autograd.grad(model.elbo(x, y).value, model.prior_variance.raw)[0]
    assert gradient.abs() < 1e-2


def test_features_default_to_the_rows() -> None:
    x, y = torch.randn(20, 3), torch.randn(20)
    identity = LinearRegression(noise=0.3, prior_variance=2.0)
    function = LinearRegression(lambda rows: rows, posterior="full", noise=0.3, prior_variance=2.0, n_features=3)
    function.initialize(x, y)
    kernel = ExactGP(vb.LinearKernel(3, variance=6.0), vb.Gaussian(0.3))  # it divides by in_features
    torch.testing.assert_close(identity.log_marginal_likelihood(x, y), kernel.log_marginal_likelihood(x, y))
    torch.testing.assert_close(function.elbo(x, y).value, identity.log_marginal_likelihood(x, y))


def test_refusals() -> None:
    x, y = data()
    with pytest.raises(vb.ConfigurationError, match="one of"):
        LinearRegression(posterior="laplace")
    with pytest.raises(vb.ConfigurationError, match="n_features"):
        LinearRegression(posterior="full")
    with pytest.raises(vb.ConfigurationError, match="prior_variance"):
        LinearRegression(posterior="point", prior_variance=1.0)
    with pytest.raises(vb.ConfigurationError, match="features"):
        LinearRegression(3)
    with pytest.raises(vb.ConfigurationError, match="prior"):
        LinearRegression(posterior="point").log_marginal_likelihood(x, y)
    exact = LinearRegression()
    q = exact.optimal_q(x, y)
    with pytest.raises(vb.ConfigurationError, match="parameters of q"):
        exact.set_q(q)
    with pytest.raises(vb.ShapeError, match="features must map"):
        LinearRegression(lambda rows: rows[:, 0]).log_marginal_likelihood(x, y)
    with pytest.raises(vb.ShapeError, match="out_features"):
        LinearRegression(PolynomialFeatures(2), posterior="full").initialize(x, torch.randn(30, 2))


@pytest.mark.parametrize("posterior", ["exact", "full"])
def test_bumps_at_the_front_of_a_sequence_follow_the_units(posterior: str) -> None:
    x, y = data()

    def predicted(features: torch.nn.Module) -> Tensor:
        options = {"posterior": posterior, "noise": 0.1, "n_features": 5, "standardize": "inputs"}
        model = LinearRegression(features, **options)
        model.condition(100 * x + 7, y)
        return model.predict(100 * x + 7).mean

    def bumps() -> GaussianBumps:
        return GaussianBumps(100 * torch.linspace(-2, 2, 5) + 7, 1.0)

    nested = torch.nn.Sequential(torch.nn.Sequential(bumps()), torch.nn.Identity())
    torch.testing.assert_close(predicted(nested), predicted(bumps()))
    behind = GaussianBumps(torch.linspace(-2, 2, 5), 1.0)  # among features, which have no units
    predicted(torch.nn.Sequential(torch.nn.Linear(1, 1), behind))
    assert torch.equal(behind.centres, behind.given)


@pytest.mark.parametrize("nest", [lambda bumps: bumps, lambda bumps: torch.nn.Sequential(bumps, torch.nn.Identity())])
def test_bumps_given_to_two_models_are_standardised_by_the_data_of_each(
    nest: Callable[[GaussianBumps], torch.nn.Module],
) -> None:
    x, y = data()
    bumps = GaussianBumps(torch.linspace(-2, 2, 5), vb.Positive(1.0))
    features = nest(bumps)
    first, second = (LinearRegression(features, noise=0.1, standardize="inputs") for _ in range(2))
    first.condition(x, y)
    before = first.predict(x).mean
    second.condition(10 * x + 3, y)
    torch.testing.assert_close(first.predict(x).mean, before)
    assert torch.equal(bumps.centres, bumps.given)
    bumps.lengthscale.set(0.5)  # shared
    assert not torch.allclose(first.predict(x).mean, before)


def test_bumps_whose_inputs_are_unknown_are_refused() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bumps = GaussianBumps(torch.linspace(-2, 2, 5))

        def forward(self, rows: Tensor) -> Tensor:
            return torch.cat([rows, self.bumps(rows)], -1)

    x, y = data()
    with pytest.raises(vb.ConfigurationError, match="GaussianBumps stands inside Both"):
        LinearRegression(Both(), standardize="both")
    LinearRegression(Both(), standardize="targets").condition(x, y)
    with pytest.raises(vb.ShapeError, match="centres of width 1"):
        LinearRegression(GaussianBumps(torch.linspace(-2, 2, 5)), standardize="inputs").condition(torch.randn(30, 2), y)
