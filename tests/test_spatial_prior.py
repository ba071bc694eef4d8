"""SpatialIWPrior: its root against dense matrices, its divergence against Monte Carlo, its moments."""

import math

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.draw import Draw
from vibayes.spatial_prior import Spatial, _kl


def factor(places: int) -> Tensor:
    return torch.randn(places, places).tril(-1) + torch.diag(torch.rand(places) + 0.5)


def dense(root: Spatial) -> Tensor:
    """`R`, from the definition."""
    blocks = torch.kron(torch.eye(root.channels), root.inverse.mT.contiguous())
    return root.std * torch.block_diag(blocks, torch.eye(root.size - len(blocks)))


@pytest.mark.parametrize(("places", "size", "channels"), [(4, 8, 2), (4, 13, 3), (9, 10, 1), (1, 3, 3), (1, 3, 2)])
def test_the_root_equals_the_dense_matrix(places: int, size: int, channels: int) -> None:
    root = Spatial(factor(places), 0.7, size, channels)
    R = dense(root)
    w, variance = torch.randn(size, 5), torch.rand(size, 5)
    torch.testing.assert_close(root.apply(w), R @ w)
    torch.testing.assert_close(root.transposed(w), R.mT @ w)
    torch.testing.assert_close(root.solve(w), torch.linalg.solve(R, w))
    torch.testing.assert_close(root.log_det(), torch.linalg.slogdet(R)[1])
    inverse = torch.linalg.inv(R)
    torch.testing.assert_close(root.expected_square(variance), (inverse.square() @ variance).sum())
    normal = torch.distributions.MultivariateNormal(torch.zeros(size), R @ R.mT)
    torch.testing.assert_close(root.log_prob(w), normal.log_prob(w.mT).sum())
    std = variance.sqrt()
    expected = sum(
        torch.distributions.kl_divergence(
            torch.distributions.MultivariateNormal(w[:, p], torch.diag(variance[:, p])), normal
        )
        for p in range(5)
    )
    torch.testing.assert_close(root.kl(w, std), expected)


def prepared(layer: vb.Conv2d | vb.Linear) -> vb.SpatialIWPrior:
    """The layer's prior, its posterior moved away from its start."""
    layer.bind("layer")
    prior = layer.prior
    assert isinstance(prior, vb.SpatialIWPrior)
    with torch.no_grad():
        prior.delta.set(7.0)
        prior.raw_factor.mul_(0.2).add_(0.5 * torch.randn_like(prior.raw_factor))
    return prior


def many(layer: vb.Conv2d | vb.Linear, n: int, *, learned: bool, marginal: bool) -> tuple[Tensor, Tensor]:
    """Factors `F` of draws of `L` and log ratios."""

    def one(zero: Tensor) -> tuple[Tensor, Tensor]:
        draw = Draw(zero=zero, marginal=marginal)
        root = layer.prior.root(layer, draw, learned=learned)
        return root.F, zero + draw.log_ratio()

    return torch.func.vmap(one, randomness="different")(torch.zeros(n))


@pytest.mark.parametrize("k", [1, 2])
def test_log_ratio_averages_to_minus_the_divergence(k: int) -> None:
    layer = vb.Conv2d(2, 3, k, prior=vb.SpatialIWPrior(), posterior=vb.MeanField())
    prior = prepared(layer)
    with torch.no_grad():
        _, ratios = many(layer, 200_000, learned=True, marginal=False)
        _, exact = many(layer, 2, learned=True, marginal=True)
        kl = _kl(*prior.posterior(Draw(), "layer"))
    torch.testing.assert_close(exact, -kl.expand(2))
    assert kl > 0.1
    assert abs(float(ratios.mean() + kl)) < 4 * float(ratios.std()) / math.sqrt(len(ratios))
    # and the ratio is a density ratio: E_q[p / q] = 1
    weights = ratios.exp()
    assert abs(float(weights.mean()) - 1.0) < 4 * float(weights.std()) / math.sqrt(len(ratios))


def test_the_divergence_is_zero_at_the_prior() -> None:
    layer = vb.Conv2d(2, 3, 2, prior=vb.SpatialIWPrior(), posterior=vb.MeanField())
    prior = prepared(layer)
    with torch.no_grad():
        prior.delta.set(1e-9)
        prior.raw_factor.zero_()
        assert abs(float(_kl(*prior.posterior(Draw(), "layer")))) < 1e-7


@pytest.mark.parametrize("k", [1, 2])
def test_moments_of_the_prior_and_of_the_posterior(k: int) -> None:
    """`E_p[L^-1] = I`; `E_q[L^-1] = (p + 1 + delta) ((p + 1) I + Psi)^-1`."""
    layer = vb.Conv2d(2, 3, k, prior=vb.SpatialIWPrior(), posterior=vb.MeanField())
    prior = prepared(layer)
    p = k * k
    A = prior.raw_factor.detach()
    expected = (p + 8.0) * torch.linalg.inv((p + 1.0) * torch.eye(p) + A @ A.mT)
    for learned, mean in ((False, torch.eye(p)), (True, expected)):
        with torch.no_grad():
            F, ratios = many(layer, 100_000, learned=learned, marginal=True)
        W = torch.cholesky_inverse(F)
        error = W.std(0) / math.sqrt(len(W))
        assert bool(((W.mean(0) - mean).abs() < 4.5 * error).all())
        assert learned or float(ratios.abs().max()) == 0.0


def test_it_starts_near_the_identity() -> None:
    layer = vb.Conv2d(2, 3, 3, prior=vb.SpatialIWPrior(), posterior=vb.MeanField())
    layer.bind("layer")
    with torch.no_grad():
        F, _ = many(layer, 2000, learned=True, marginal=True)
    W = torch.cholesky_inverse(F)
    torch.testing.assert_close(W.mean(0), torch.eye(9), atol=0.03, rtol=0)


def test_weights_of_prior_draws_have_the_covariance_of_the_definition() -> None:
    """Kernels are correlated over places in one draw, and have variance 1 / fan-in over draws."""
    layer = vb.Conv2d(2, 2, 2, prior=vb.SpatialIWPrior(), posterior=vb.FromPrior())
    layer.bind("layer")

    def weights(zero: Tensor) -> Tensor:
        draw = Draw(zero=zero)
        root = layer.prior.root(layer, draw, learned=False)
        return root.apply(draw.randn("v", 9, 2, like=root.inverse))

    with torch.no_grad():
        w = torch.func.vmap(weights, randomness="different")(torch.zeros(200_000))
    covariance = w[:, :, 0].mT @ w[:, :, 0] / len(w)
    torch.testing.assert_close(covariance, torch.eye(9) / 9, atol=0.004, rtol=0)
    fourth = (w[:, 0, 0].square() * w[:, 0, 1].square()).mean() * 81  # E[(L^-1)_00^2] = 1 + 2 / (p + 1)
    assert abs(float(fourth) - 1.4) < 0.05


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("learned", [True, False])
@torch.no_grad()
def test_the_bias_of_a_convolution_has_no_place_in_the_kernel(k: int, learned: bool) -> None:
    """Its prior is `N(0, 1 / fan-in)` in every draw of `L`; that of kernels, and of a `Linear` layer's bias, is not."""
    layer = vb.Conv2d(3, 2, k, prior=vb.SpatialIWPrior(), posterior=vb.MeanField())
    prepared(layer)
    K = layer.fan_in
    R = layer.prior.root(layer, Draw(), learned=learned).apply(torch.eye(K))
    assert torch.equal(R[-1], torch.eye(K)[-1] / math.sqrt(K))
    assert bool(((R.diagonal()[:-1] * math.sqrt(K) - 1.0).abs() > 1e-6).all())

    plain = vb.Linear(2, 1, prior=vb.SpatialIWPrior(), posterior=vb.MeanField())
    prepared(plain)
    R = plain.prior.root(plain, Draw(), learned=learned).apply(torch.eye(3))
    assert torch.equal(R, R[0, 0] * torch.eye(3))
    assert abs(float(R[0, 0]) * math.sqrt(3.0) - 1.0) > 1e-6


def test_gradients_reach_all_hyperparameters() -> None:
    net = nn.Sequential(
        vb.Conv2d(1, 2, 3, padding=1, prior=vb.SpatialIWPrior()),
        nn.Flatten(),
        vb.Linear(18, 1, prior=vb.SpatialIWPrior()),
    )
    model = vb.Model(net, vb.Gaussian(0.1), inducing=torch.randn(4, 1, 3, 3))
    model.elbo(torch.randn(5, 1, 3, 3), torch.randn(5), n_samples=2).value.backward()
    for name, parameter in model.network.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.abs().sum() > 0), name
    assert net[2].prior.raw_factor.shape == (1, 1)
