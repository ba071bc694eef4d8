"""Identities 15 and 16: sampling recovers an exact posterior, and annealing brackets an exact evidence."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import vibayes as vb
from vibayes.mcmc import HMC, NUTS, ess, sample_minibatch
from vibayes.mcmc.hmc import Sampler

NOISE = 0.25


def conjugate() -> tuple[vb.Model, tuple[Tensor, Tensor], MultivariateNormal, float]:
    """Linear regression: the model, its data, the exact posterior of its weights, and the exact log evidence."""
    x = torch.randn(30, 2)
    y = x @ torch.tensor([1.0, -0.5]) + 0.3 + math.sqrt(NOISE) * torch.randn(30)
    model = vb.Model(vb.Linear(2, 1, posterior=vb.Point()), vb.Gaussian(NOISE, learn=False))
    design = torch.cat([x, torch.ones(30, 1)], 1)
    precision = design.T @ design / NOISE + 3.0 * torch.eye(3)  # NealPrior: variance 1 / 3
    posterior = MultivariateNormal(torch.linalg.solve(precision, design.T @ y / NOISE), precision_matrix=precision)
    marginal = MultivariateNormal(torch.zeros(30), design @ design.T / 3.0 + NOISE * torch.eye(30))
    return model, (x, y), posterior, float(marginal.log_prob(y))


@pytest.mark.parametrize("sampler", [NUTS(4), HMC(4, jitter=0.3)])
def test_15_chains_have_the_exact_mean_and_covariance(sampler: Sampler) -> None:
    model, data, posterior, _ = conjugate()
    chains = vb.sample_posterior(
        model, data, sampler=sampler, n_chains=64, n_warmup=40, n_samples=25, seed=1, progress=False
    )
    draws = chains.draws
    z = torch.linalg.solve_triangular(posterior.scale_tril, (draws - posterior.mean)[..., None], upper=False)[..., 0]
    # whitened by the exact posterior: means 0, second moments the identity, within four standard errors
    moments = torch.cat([z, (z[..., :, None] * z[..., None, :]).flatten(-2)], -1)
    expected = torch.cat([torch.zeros(3), torch.eye(3).flatten()])
    error = moments.std((0, 1)) / ess(moments).sqrt()
    assert float(error.max()) < 0.1
    assert bool(((moments.mean((0, 1)) - expected).abs() < 4.0 * error).all())
    # and so has the function
    prediction = chains.predict(data[0][:5], n_samples=500)
    exact = torch.cat([data[0][:5], torch.ones(5, 1)], 1)
    variance = (exact @ posterior.covariance_matrix * exact).sum(1)
    torch.testing.assert_close(prediction.mean, exact @ posterior.mean, atol=0.03, rtol=0.0)
    torch.testing.assert_close(prediction.epistemic, variance, atol=0.0, rtol=0.25)


@pytest.mark.parametrize("method", ["sgld", "sghmc"])
def test_15_stochastic_gradients_do_so_loosely(method: str) -> None:
    model, data, posterior, _ = conjugate()
    lr = {"sgld": 0.15, "sghmc": 0.01}[method]
    chains = sample_minibatch(
        model, data, batch_size=15, lr=lr, burn_in=20, epochs=300, every=1, method=method, progress=False,
        lr_schedule=lambda epoch: 1.0 / (1.0 + 0.003 * epoch),
    )  # fmt: skip
    z = (chains.draws[0] - posterior.mean) / posterior.variance.sqrt()
    assert float(z.mean(0).abs().max()) < 0.5
    assert 0.6 < float(z.std(0).min()) < float(z.std(0).max()) < 1.5


def test_16_annealing_brackets_the_exact_evidence() -> None:
    model, data, posterior, exact = conjugate()
    target = vb.mcmc.ModelTarget(model, data)
    betas = torch.linspace(0.0, 1.0, 41) ** 4
    path = vb.evidence.anneal(target, betas, n_leapfrog=3, n_particles=50, generator=torch.Generator().manual_seed(1))
    options = {"path": path, "progress": False}
    forwards = vb.evidence.ais(target, n_particles=150, **options)
    draws = posterior.sample((1, 150))
    backwards = vb.evidence.reverse_ais(vb.Chains(target, draws, draws[..., 0]), n_particles=150, **options)
    assert forwards.stderr < 0.5
    assert backwards.stderr < 0.5
    assert abs(forwards.value - exact) < 4 * forwards.stderr
    assert abs(backwards.value - exact) < 4 * backwards.stderr
    # Jensen: single weights lie below the evidence on average, and those of the way back above it
    below = forwards.log_weights
    above = -backwards.log_weights
    assert float(below.mean() + 4 * below.std() / 150**0.5) < exact < float(above.mean() - 4 * above.std() / 150**0.5)
