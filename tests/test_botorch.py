"""The BoTorch adapter: its posterior is the model's, and acquisition functions can be optimized."""

import functools

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb

pytest.importorskip("botorch")

from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.generation import MaxPosteriorSampling
from botorch.optim import optimize_acqf

from vibayes.botorch import BoTorchModel, FunctionDraws

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def _data(n: int = 20) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, 10.0 - 20.0 * (x - 0.4).square().sum(1)


def _exact() -> vb.ExactGP:
    model = vb.ExactGP(vb.SquaredExponential(2, lengthscale=2.0), vb.Gaussian(0.01), standardize="both")
    model.condition(*_data())
    return model


@functools.cache
def _trained() -> vb.Model:
    return _deep()


def _deep(posterior: vb.posteriors.Posterior | None = None, steps: int = 100) -> vb.Model:
    x, y = _data()
    torch.manual_seed(0)
    hidden = vb.GP(2, kernel=vb.SquaredExponential(2, ard=True), posterior=posterior or vb.GeneralizedWishart("AB"))
    network = nn.Sequential(hidden, vb.GP(1, kernel=vb.SquaredExponential(2)))
    model = vb.Model(network, vb.Gaussian(0.05), inducing=x[:10], standardize="both")
    vb.fit(model, (x, y), steps=steps, lr=0.02, progress=False)
    return model


def test_the_exact_posterior_is_the_models() -> None:
    model, x = _exact(), torch.rand(5, 3, 2)
    posterior = BoTorchModel(model).posterior(x)
    for b in range(5):
        wanted = model.predict(x[b], joint=True)
        assert torch.allclose(posterior.mean[b, :, 0], wanted.mean, atol=1e-9)
        covariance = posterior.distribution.covariance_matrix[b]
        assert torch.allclose(covariance, wanted.covariance[0], rtol=1e-6, atol=1e-5)
    noisy = BoTorchModel(model).posterior(x, observation_noise=True)
    assert torch.allclose(noisy.variance[0, :, 0], model.predict(x[0]).variance, rtol=1e-4)


@pytest.mark.parametrize("posterior", [None, vb.GlobalInducing(), vb.LocalInducing(8)])
def test_draws_have_the_models_moments(posterior: vb.posteriors.Posterior | None) -> None:
    hidden_first = posterior is not None and posterior.local
    if hidden_first:  # one sparse GP: moments are known exactly
        x, y = _data()
        model = vb.Model(vb.GP(1, kernel=vb.SquaredExponential(2), posterior=posterior), vb.Gaussian(0.05))
        vb.fit(model, (x, y), steps=100, progress=False)
    else:
        model = _deep(posterior, steps=30)
    x = torch.rand(4, 2)
    draws = BoTorchModel(model, n_draws=4000).posterior(x)
    assert isinstance(draws, FunctionDraws)
    wanted = model.predict(x, n_samples=4000, joint=True)
    spread = wanted.epistemic.sqrt()
    assert ((draws.mean[:, 0] - wanted.mean).abs() < 6 * spread / 4000**0.5 * 2**0.5).all()
    got = torch.cov(draws.values[..., 0].mT)
    error = (got - wanted.covariance[0]) / (spread[:, None] * spread)
    assert error.abs().max() < 0.2  # of the correlations


def test_draws_do_not_depend_on_the_batch_and_have_gradients() -> None:
    wrapped = BoTorchModel(_deep(steps=20), n_draws=16)
    x = torch.rand(3, 2, 2, requires_grad=True)
    acquisition = qLogExpectedImprovement(wrapped, best_f=5.0)
    value = acquisition(x)
    assert torch.allclose(acquisition(x.detach()[1:2]), value[1:2], rtol=0, atol=1e-12)
    assert torch.equal(acquisition(x), value)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    step = torch.zeros_like(x)
    step[1, 0, 1] = 1e-5
    slope = (acquisition(x + step).sum() - acquisition(x - step).sum()) / 2e-5
    assert torch.isclose(gradient[1, 0, 1], slope, rtol=1e-3, atol=1e-6)
    assert float(slope.detach().abs()) > 1e-4


@pytest.mark.parametrize("targets", [1, 2])
def test_a_function_without_noise(targets: int) -> None:
    """Much variance and hardly any noise: rounding exceeds the posterior's variance, yet nothing fails."""
    x, y = _data()
    kernel, noise = vb.SquaredExponential(2, lengthscale=60.0, variance=3e7), vb.Gaussian(1e-6)
    model = vb.ExactGP(kernel, noise, standardize="both").double()
    model.condition(x, y if targets == 1 else torch.stack([y, -y], 1))
    points = torch.rand(2, 30, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
    posterior = BoTorchModel(model, n_draws=16).posterior(points)
    truth = 10.0 - 20.0 * (points.detach() - 0.4).square().sum(-1)
    assert torch.allclose(posterior.mean[..., 0], truth, atol=0.05)
    drawn = posterior.rsample(torch.Size([16]))
    assert torch.allclose(drawn[..., 0], truth.expand(16, 2, 30), atol=0.2)
    (gradient,) = torch.autograd.grad(drawn.sum(), points)
    assert bool(gradient.isfinite().all())


def test_points_that_coincide_have_finite_gradients() -> None:
    wrapped = BoTorchModel(_deep(steps=20), n_draws=16)
    x = torch.rand(1, 1, 2).expand(1, 3, 2).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(wrapped.posterior(x).values.sum(), x)
    assert gradient.isfinite().all()


def test_acquisition_functions_find_the_maximum() -> None:
    _, y = _data()
    for wrapped in (BoTorchModel(_exact()), BoTorchModel(_trained(), n_draws=64)):
        acquisition = qLogExpectedImprovement(wrapped, best_f=y.max() - 1.0)
        torch.manual_seed(0)
        point, value = optimize_acqf(acquisition, bounds=BOUNDS, q=1, num_restarts=2, raw_samples=16)
        assert value.isfinite()
        assert (point - 0.4).norm() < 0.25  # the true maximum is at (0.4, 0.4)
    analytic = LogExpectedImprovement(BoTorchModel(_exact()), best_f=y.max() - 1.0)
    assert (optimize_acqf(analytic, bounds=BOUNDS, q=1, num_restarts=2, raw_samples=16)[0] - 0.4).norm() < 0.25


def test_thompson_sampling_prefers_good_points() -> None:
    candidates = torch.rand(50, 2)
    wrapped = BoTorchModel(_trained(), n_draws=64)
    chosen = MaxPosteriorSampling(wrapped, replacement=False)(candidates, num_samples=5)
    assert chosen.shape == (5, 2)
    assert (chosen - 0.4).norm(dim=1).mean() < (candidates - 0.4).norm(dim=1).mean() / 1.5


def test_what_it_cannot_do_is_said() -> None:
    classes = vb.Model(vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(4)), vb.Bernoulli())
    with pytest.raises(vb.ConfigurationError, match="Bernoulli"):
        BoTorchModel(classes)
    with pytest.raises(vb.ConfigurationError, match="vibayes model"):
        BoTorchModel(nn.Linear(2, 1))  # type: ignore[arg-type]
    with pytest.raises(vb.NotFittedError):
        BoTorchModel(vb.ExactGP(vb.SquaredExponential(2), vb.Gaussian(), standardize="both"))
    with pytest.raises(vb.ConfigurationError, match="2 columns"):
        BoTorchModel(_exact()).posterior(torch.rand(3, 5))
    with pytest.raises(vb.ConfigurationError, match="True or False"):
        BoTorchModel(_exact()).posterior(torch.rand(3, 2), observation_noise=torch.ones(3, 1))


def test_a_subset_of_targets() -> None:
    x, y = _data()
    model = vb.ExactGP(vb.SquaredExponential(2, lengthscale=2.0), vb.Gaussian(0.01), standardize="both")
    model.condition(x, torch.stack([y, -2.0 * y, x[:, 0]], 1))
    whole = BoTorchModel(model)
    part = whole.subset_output([2, 0])
    assert (whole.num_outputs, part.num_outputs, part.subset_output([-1]).num_outputs) == (3, 2, 1)
    points = torch.rand(4, 2, 2)
    wanted = whole.posterior(points).mean
    assert torch.equal(part.posterior(points).mean, wanted[..., [2, 0]])
    assert torch.equal(part.posterior(points, output_indices=[1]).mean, whole.posterior(points, [0]).mean)
    assert torch.equal(part.subset_output([-1]).posterior(points).mean, whole.posterior(points, [0]).mean)
    for bad in ([3], [], [-4]):
        with pytest.raises(vb.ConfigurationError, match="numbered 0 to 2"):
            whole.subset_output(bad)
