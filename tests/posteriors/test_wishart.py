"""What a Wishart posterior reports of its draws."""

import math

import pytest
import torch

import vibayes as vb
from vibayes.distributions import Wishart
from vibayes.draw import Draw
from vibayes.posteriors.base import Site
from vibayes.posteriors.inverse_wishart import GramSite

MIXINGS = ["plain", "A", "AB"]
WIDTHS = [1, 2, 4, 6]  # fewer outputs than the four inducing rows, as many, and more


def anywhere(mixing: str, width: int) -> vb.GeneralizedWishart:
    """A posterior whose parameters have no special values."""
    hidden = vb.GP(width, kernel=vb.SquaredExponential(2), posterior=vb.GeneralizedWishart(mixing))
    last = vb.GP(1, kernel=vb.SquaredExponential(width))
    vb.Model(torch.nn.Sequential(hidden, last), vb.Gaussian(0.3), inducing=torch.randn(4, 2))
    with torch.no_grad():
        for parameter in hidden.posterior.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        hidden.posterior.share.set(0.4)
    posterior = hidden.posterior
    assert isinstance(posterior, vb.GeneralizedWishart)
    return posterior


@pytest.mark.parametrize("given", ["design", "factor"])
@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_log_ratio_is_that_of_the_two_densities(mixing: str, width: int, given: str) -> None:
    posterior = anywhere(mixing, width)
    K = vb.SquaredExponential(2)(torch.randn(4, 2)) + 0.1 * torch.eye(4)
    factor, _ = vb.linalg.factor(K)
    more = {"gram": K, "factor": factor} if given == "factor" else {}
    draw = Draw()
    v = posterior.sample(Site("w", factor.lower, width, **more), draw)

    F = factor.lower @ v / math.sqrt(width)
    q = torch.sigmoid(posterior.share.value)
    scale = (1.0 - q) * K / width + q * posterior.V @ posterior.V.mT
    law = posterior.distribution(torch.linalg.cholesky(scale), width)
    rank = min(width, 4)
    assert torch.count_nonzero(v[:, rank:]) == 0
    expected = Wishart(K / width, width).log_prob_factor(F) - law.log_prob_factor(F[:, :rank])
    torch.testing.assert_close(draw.log_ratios["w"], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("width", WIDTHS)
def test_gradients_come_through_the_draw_alone(mixing: str, width: int) -> None:
    """Sticking the landing: densities see the Bartlett parameters as constants, all others as parameters."""
    posterior = anywhere(mixing, width)
    K = vb.SquaredExponential(2)(torch.randn(4, 2)) + 0.1 * torch.eye(4)
    noise = {"w.inducing": torch.randn(posterior.distribution(torch.eye(4), width).noise_shape)}
    draw = Draw(noise=noise)
    posterior.sample(Site("w", torch.linalg.cholesky(K), width), draw)

    q = torch.sigmoid(posterior.share.value)
    L = torch.linalg.cholesky((1.0 - q) * K / width + q * posterior.V @ posterior.V.mT)
    law = posterior.distribution(L, width)
    F, T, _ = law.rsample_factor(noise=noise["w.inducing"])
    expected = Wishart(K / width, width).log_prob_factor(F) - law.log_prob_bartlett(T, sticking_the_landing=True)
    parameters = [p for p in posterior.parameters() if p.requires_grad]
    found = torch.autograd.grad(draw.log_ratios["w"], parameters)
    for mine, other in zip(found, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("width", [2, 6])
def test_the_scale_matrix_starts_at_the_priors(width: int) -> None:
    """Whatever the share of its learned part is. The mean of an inverse Wishart starts at the kernel matrix."""
    x = torch.randn(9, 2)
    wishart = vb.GP(width, kernel=vb.SquaredExponential(2), noise=0.1, posterior=vb.GeneralizedWishart())
    inverse = vb.InverseWishartProcess(kernel=vb.SquaredExponential(2), dof=3.0, out_features=width)
    for layer in (wishart, inverse):
        last = vb.GP(1, kernel=vb.SquaredExponential(width))
        model = vb.Model(torch.nn.Sequential(layer, last), vb.Gaussian(0.3), inducing=x[:4], standardize="both")
        model.initialize(x, x[:, 0])
        with torch.no_grad():
            K, V = layer.covariance(model.inducing), layer.posterior.V
        of = 1.0 / width if layer is wishart else layer.posterior.extra.value.detach()
        torch.testing.assert_close(V @ V.mT, of * K, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(inverse.posterior.extra.value.detach(), torch.tensor(0.2 * 3.0))  # a share of the dof
    with torch.no_grad():
        site = GramSite("w", None, 4, K, dof=inverse.dof.value)
        mean = inverse.posterior.distribution(site, Draw()).mean
    torch.testing.assert_close(mean, K, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [3, 200])
def test_the_bartlett_factor_starts_as_decided(width: int) -> None:
    """Gammas at the prior's values, normals small around means of the size that they have under the prior."""
    layer = vb.GP(width, kernel=vb.SquaredExponential(2), posterior=vb.GeneralizedWishart("AB"))
    last = vb.GP(1, kernel=vb.SquaredExponential(width))
    vb.Model(torch.nn.Sequential(layer, last), vb.Gaussian(), inducing=torch.randn(100, 2))
    posterior, rank = layer.posterior, min(width, 100)
    with torch.no_grad():
        law, standard = posterior.distribution(torch.eye(100), width), Wishart(torch.eye(100), width)
        noise = torch.randn(law.noise_shape)
        T, chi = law.rsample_bartlett(noise=noise), standard.rsample_factor(noise=noise).bartlett
        torch.testing.assert_close(T.diagonal(), chi.diagonal())
        below = torch.ones(100, rank).tril(-1) > 0
        torch.testing.assert_close((T - law.mu)[below], math.exp(-1.0) * noise[:100][below])
        mu, q = law.mu[below], torch.sigmoid(posterior.share.value)
        assert abs(float(mu.std()) * math.sqrt(width) - 1.0) < 5 / math.sqrt(2 * len(mu))
        torch.testing.assert_close(law.mix(T), T)
        torch.testing.assert_close(q, torch.sigmoid(torch.tensor(-8.0)))
