"""Estimates of the evidence: their weights and errors, what brackets what, and what is refused."""

import math

import pytest
import torch
from torch.distributions import Gamma, LogNormal, Normal

import vibayes as vb
from vibayes.errors import ConfigurationError
from vibayes.evidence import Evidence, ais, anneal, importance_weighted
from vibayes.mcmc import Target

X = torch.linspace(-1.0, 1.0, 10, dtype=torch.float64)[:, None]
Y = torch.sin(3.0 * X[:, 0])


def test_weights_give_the_estimate_and_its_error() -> None:
    weights = torch.tensor([0.2, 0.9, 1.6, 0.5])
    found = Evidence.of(weights.log(), "lower", n_data=3, log_jacobian=0.5)
    assert found.value == pytest.approx(math.log(0.8))
    assert found.stderr == pytest.approx(float(weights.std()) / 0.8 / 2.0)  # delta method
    assert found.ess == pytest.approx(float(weights.sum() ** 2 / weights.square().sum()))
    assert found.per_datapoint == pytest.approx(math.log(0.8) / 3)
    assert found.in_user_units == pytest.approx(math.log(0.8) - 1.5)
    above = Evidence.of(weights.log(), "upper")
    assert above.value == pytest.approx(-math.log(0.8))
    assert "upper bound" in repr(above)
    with pytest.raises(ConfigurationError, match="rows"):
        above.per_datapoint  # noqa: B018


def test_a_skewed_posterior_of_one_number() -> None:
    # y ~ Poisson(5 exp(theta)) five times, theta ~ N(0, 1): the evidence by quadrature
    counts = torch.tensor([3.0, 9.0, 4.0, 7.0, 2.0])

    def log_likelihood(theta: torch.Tensor) -> torch.Tensor:
        return (counts * (theta + math.log(5.0)) - 5.0 * theta.exp() - torch.lgamma(counts + 1.0)).sum()

    grid = torch.linspace(-6.0, 6.0, 20_001)[:, None]
    joint = torch.func.vmap(log_likelihood)(grid) + Normal(0.0, 1.0).log_prob(grid[:, 0])
    exact = math.log(float(torch.trapezoid(joint.exp(), grid[:, 0])))
    target = Target(
        log_likelihood,
        1,
        log_prior=lambda theta: -0.5 * theta.square().sum() - 0.5 * math.log(2 * math.pi),
        sample_prior=lambda n, generator: torch.randn(n, 1, generator=generator),
    )
    found = ais(target, n_particles=200, n_steps=30, n_leapfrog=3, progress=False)
    assert found.stderr < 0.1
    assert abs(found.value - exact) < 4 * found.stderr


def test_hyperparameters_of_a_gaussian_process_are_integrated() -> None:
    # one free hyperparameter: the evidence by quadrature over its prior
    prior = Gamma(torch.tensor(3.0), torch.tensor(4.0))
    kernel = vb.SquaredExponential(1, lengthscale=vb.Positive(1.0, prior=prior))
    gp = vb.ExactGP(kernel, vb.Gaussian(0.05, learn=False), standardize="targets")
    kernel.variance.fix()
    gp.initialize(X, Y)
    grid = torch.linspace(0.01, 6.0, 600)
    values = []
    for value in grid:
        kernel.lengthscale.set(value)
        values.append(gp.log_marginal_likelihood(X, Y).detach() + prior.log_prob(value))
    exact = math.log(float(torch.trapezoid(torch.stack(values).exp(), grid)))
    found = ais(gp, (X, Y), n_particles=100, n_steps=20, n_leapfrog=3, progress=False)
    assert found.stderr < 0.1
    assert abs(found.value - exact) < 4 * found.stderr
    assert found.in_user_units == pytest.approx(found.value - 10 * float(Y.std(correction=0).log()))


def test_a_path_can_be_used_again() -> None:
    target = Target(
        lambda theta: -0.5 * (theta - 1.0).square().sum(),
        1,
        log_prior=lambda theta: -0.5 * theta.square().sum() - 0.5 * math.log(2 * math.pi),
        sample_prior=lambda n, generator: torch.randn(n, 1, generator=generator),
    )
    generator = torch.Generator().manual_seed(0)
    betas = torch.linspace(0.0, 1.0, 6)
    path = anneal(target, betas, n_leapfrog=2, n_particles=20, generator=generator)
    assert path.scale.shape == (5, 1)
    a = ais(target, path=path, n_particles=8, seed=1, progress=False)
    b = ais(target, path=path, n_particles=8, seed=1, progress=False)
    assert a.value == b.value
    c = ais(target, betas=betas, n_leapfrog=2, n_particles=8, seed=2, progress=False)
    assert c.value != a.value


def test_the_importance_weighted_bound_lies_between_the_bound_and_the_evidence() -> None:
    kernel = vb.SquaredExponential(1)
    exact = vb.ExactGP(kernel, vb.Gaussian(0.1)).log_marginal_likelihood(X, Y).item()
    layer = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(10, inputs=X))
    model = vb.Model(layer, vb.Gaussian(0.1))
    for parameter in [*layer.kernel.parameters(), *model.likelihood.parameters(), layer.posterior.inputs]:
        parameter.requires_grad_(False)
    vb.fit(model, (X, Y), steps=60, lr=0.05, progress=False)
    bound = float(model.elbo(X, Y).value.detach())
    found = importance_weighted(model, (X, Y), 250)
    assert len(found.log_weights) == 250
    assert bound + 4 * found.stderr < found.value < exact + 3 * found.stderr
    with pytest.raises(ConfigurationError, match="closed form"):
        importance_weighted(vb.ExactGP(kernel, vb.Gaussian(0.1)), (X, Y))  # type: ignore[arg-type]


def test_what_is_refused() -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    with pytest.raises(ConfigurationError, match=r"likelihood.noise have a flat one"):
        ais(gp, (X, Y), priors={"*noise": None, "*": LogNormal(0.0, 1.0)})
    with pytest.raises(ConfigurationError, match="proper prior"):
        ais(Target(lambda theta: theta.sum(), 1))
    priors = {"*": LogNormal(0.0, 1.0)}
    with pytest.raises(ConfigurationError, match="betas must rise"):
        ais(gp, (X, Y), priors=priors, betas=[0.0, 0.6, 0.5, 1.0], progress=False)
    with pytest.raises(ConfigurationError, match="n_particles"):
        ais(gp, (X, Y), priors=priors, n_particles=0, progress=False)
    with pytest.raises(ConfigurationError, match="n_steps"):
        ais(gp, (X, Y), priors=priors, n_steps=0, progress=False)
    draws = torch.zeros(1, 4, 3)
    chains = vb.Chains(vb.mcmc.ModelTarget(gp, (X, Y), priors), draws, draws[..., 0])
    with pytest.raises(ConfigurationError, match="as many posterior draws"):
        vb.evidence.reverse_ais(chains, n_particles=5, progress=False)
    with pytest.raises(ConfigurationError, match="Chains; got ExactGP"):
        vb.evidence.reverse_ais(gp)
