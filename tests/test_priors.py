"""Priors of weights against torch's distributions."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Gamma, MultivariateNormal, Normal, kl_divergence

import vibayes as vb
from vibayes.draw import Draw
from vibayes.priors import Isotropic, _gamma_kl, _log_gamma


@pytest.mark.parametrize("std", [0.4, torch.tensor(1.7, dtype=torch.float64)])
def test_isotropic_root(std: float | Tensor) -> None:
    root = Isotropic(std, 3)
    w, s = torch.randn(3, 2), torch.rand(3, 2) + 0.1
    p = MultivariateNormal(torch.zeros(3), float(std) ** 2 * torch.eye(3))
    torch.testing.assert_close(root.log_prob(w), p.log_prob(w.T).sum())
    q = Normal(w, s)
    torch.testing.assert_close(root.kl(w, s), kl_divergence(q, Normal(torch.zeros(3, 2), float(std))).sum())
    torch.testing.assert_close(root.solve(root.apply(w)), w)
    torch.testing.assert_close(root.transposed(w), float(std) * w)
    torch.testing.assert_close(torch.as_tensor(root.log_det()), torch.tensor(3 * math.log(float(std))))


@pytest.mark.parametrize(("shape", "rate"), [(2.0, 2.0), (3.5, 0.7), (102.0, 90.0)])
def test_gamma_densities(shape: float, rate: float) -> None:
    a, b = torch.tensor(shape), torch.tensor(rate)
    s = torch.tensor(0.8)
    torch.testing.assert_close(_log_gamma(s, a, b), Gamma(a, b).log_prob(s))
    torch.testing.assert_close(_gamma_kl(a, b), kl_divergence(Gamma(a, b), Gamma(torch.tensor(2.0), torch.tensor(2.0))))


def layer(prior: vb.priors.Prior, posterior: vb.posteriors.Posterior | None = None) -> vb.Linear:
    found = vb.Linear(4, 2, prior=prior, posterior=posterior or vb.MeanField())
    vb.Model(found, vb.Gaussian())
    return found


def test_scales_of_the_fixed_priors() -> None:
    assert layer(vb.NealPrior()).prior.root(layer(vb.NealPrior()), Draw()).std == pytest.approx(1 / math.sqrt(5))
    assert layer(vb.StandardPrior()).prior.root(layer(vb.StandardPrior()), Draw()).std == 1.0


@pytest.mark.parametrize(("covariance", "power"), [("1/s", -1.0), ("sqrt(s)", 0.5)])
@pytest.mark.parametrize("learned", [True, False])
def test_scale_prior_draws_and_reports(covariance: str, power: float, learned: bool) -> None:
    found = layer(vb.ScalePrior(covariance))
    found.prior.alpha.set(3.0)
    found.prior.beta.set(0.5)
    n = 40_000

    def one(zero: Tensor) -> tuple[Tensor, Tensor]:
        draw = Draw(zero=zero, marginal=False)
        root = found.prior.root(found, draw, learned=learned)
        return root.std, zero + draw.log_ratio()

    with torch.no_grad():
        std, ratio = torch.func.vmap(one, randomness="different")(torch.zeros(n))
    s = (std.square() * 5) ** (1 / power)
    q = Gamma(torch.tensor(5.0), torch.tensor(2.5)) if learned else Gamma(torch.tensor(2.0), torch.tensor(2.0))
    p = Gamma(torch.tensor(2.0), torch.tensor(2.0))
    assert abs(float(s.mean() - q.mean)) < 4 * float(q.stddev) / math.sqrt(n)
    assert float(s.var()) == pytest.approx(float(q.variance), rel=0.06)
    torch.testing.assert_close(ratio, p.log_prob(s) - q.log_prob(s), rtol=1e-8, atol=1e-8)
    if learned:
        draw = Draw()
        found.prior.root(found, draw)
        torch.testing.assert_close(draw.log_ratios["network.prior"], -kl_divergence(q, p))


def test_scale_prior_learns_the_scale_of_its_weights() -> None:
    """Weights far below NealPrior's scale: the posterior of s moves to large values, and the bound is better for it."""
    x = torch.randn(60, 4)
    y = 0.02 * x @ torch.randn(4, 2) + 0.01 * torch.randn(60, 2)
    bounds = {}
    for prior in (vb.NealPrior(), vb.ScalePrior()):
        one = vb.Linear(4, 2, prior=prior, posterior=vb.MeanField())
        model = vb.Model(one, vb.Gaussian(1e-4, learn=False))
        vb.fit(model, (x, y), steps=400, lr=0.1, n_samples=2, progress=False)
        bounds[type(prior).__name__] = float(model.elbo(x, y, n_samples=200).value.detach())
    assert float((one.prior.alpha.value / one.prior.beta.value).detach()) > 3.0
    assert bounds["ScalePrior"] > bounds["NealPrior"] + 3.0


def test_a_specification_serves_many_layers() -> None:
    prior = vb.ScalePrior()
    first, second = (vb.Linear(2, 2, prior=prior, posterior=vb.MeanField()) for _ in range(2))
    vb.Model(torch.nn.Sequential(first, second), vb.Gaussian())
    assert first.prior.alpha is not second.prior.alpha
    assert not hasattr(prior, "alpha")


def test_refusals() -> None:
    with pytest.raises(vb.ConfigurationError, match=r'"1/s" or "sqrt\(s\)"'):
        vb.ScalePrior("s")
    with pytest.raises(vb.ConfigurationError, match="the class NealPrior; call it"):
        vb.Linear(2, 1, prior=vb.NealPrior)
