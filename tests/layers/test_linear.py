"""The fully connected layer: shapes, draws of functions, and what it refuses."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.draw import Draw

POSTERIORS = {
    "global": vb.GlobalInducing,
    "local": lambda: vb.LocalInducing(9),
    "mean field": lambda: vb.MeanField(variance=0.5),
    "from prior": vb.FromPrior,
    "point": vb.Point,
}


class Skip(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def model(posterior: str, last: str | None = None, *, bias: bool = True, prior: object = None) -> vb.Model:
    """A network with a residual connection and ordinary modules in between."""
    made = POSTERIORS[posterior]
    network = nn.Sequential(
        vb.Linear(2, 6, bias, prior=prior, posterior=made()),
        nn.LayerNorm(6),
        Skip(nn.Sequential(nn.ReLU(), vb.Linear(6, 6, bias, prior=prior, posterior=made()))),
        nn.Tanh(),
        vb.Linear(6, 1, bias, prior=prior, posterior=POSTERIORS[last or posterior]()),
    )
    needs = "global" in (posterior, last)
    return vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(5, 2) if needs else None)


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("last", [None, "global", "mean field", "point"])
@pytest.mark.parametrize("bias", [True, False])
def test_every_mixture_gives_bound_predictions_and_functions(posterior: str, last: str | None, bias: bool) -> None:
    found = model(posterior, last, bias=bias)
    x = torch.randn(11, 2)
    elbo = found.elbo(x, x[:, 0], n_samples=3)
    trained = [p for p in found.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(elbo.value, trained, allow_unused=True)
    assert all(g is not None and bool(torch.isfinite(g).all()) for g in gradients)
    assert found.predict(x, n_samples=4).mean.shape == (11,)
    assert found.predict(x, n_samples=4, joint=True).covariance.shape == (1, 11, 11)
    assert found.sample_functions(x, 3).shape == (3, 11)
    assert found.log_weights(x, x[:, 0], 3).shape == (3,)


@pytest.mark.parametrize("posterior", ["global", "local", "mean field", "from prior"])
def test_function_draws_are_functions(posterior: str) -> None:
    """One draw has one set of weights: a linear network is linear along each draw, and repeated rows agree."""
    made = POSTERIORS[posterior]
    network = nn.Sequential(vb.Linear(2, 4, posterior=made()), vb.Linear(4, 1, posterior=made()))
    inducing = torch.randn(5, 2) if posterior == "global" else None
    found = vb.Model(network, vb.Gaussian(), inducing=inducing)
    x = torch.randn(2, 2)
    rows = torch.cat([x, x.mean(0, keepdim=True), x])
    f = found.sample_functions(rows, 50)
    torch.testing.assert_close(f[:, 2], f[:, :2].mean(1))
    torch.testing.assert_close(f[:, :2], f[:, 3:])
    assert float(f.std(0).min()) > 0.01


@pytest.mark.parametrize("posterior", ["local", "mean field"])
def test_moments_of_one_layer(posterior: str) -> None:
    """Closed-form predictions of a single layer are the moments of its function draws."""
    layer = vb.Linear(2, 2, posterior=POSTERIORS[posterior]())
    found = vb.Model(layer, vb.Gaussian(0.1))
    assert not found.draws_differ
    x, n = torch.randn(4, 2), 40_000
    f = found.sample_functions(x, n)
    closed = found.predict(x, joint=True)
    scale = closed.epistemic.sqrt()
    assert bool(((f.mean(0) - closed.mean).abs() < 4.5 * scale / math.sqrt(n)).all())
    centred = f - f.mean(0)
    covariance = torch.einsum("snp,smp->pnm", centred, centred) / n
    outer = torch.einsum("np,mp->pnm", scale, scale)
    assert bool(((covariance - closed.covariance).abs() < 5 * outer * math.sqrt(2 / n)).all())


def test_rows_apart_have_noise_of_their_own_only_without_inducing_rows() -> None:
    layer = vb.Linear(2, 1, posterior=vb.MeanField(variance=1.0))
    vb.Model(nn.Sequential(layer, nn.ReLU()), vb.Gaussian())
    x = torch.randn(1, 2).expand(6, 2)

    def spread(draw: Draw, n_rows: int = 6) -> float:
        draw.n_rows = n_rows
        with draw:
            return float(layer(x).std().detach())

    assert spread(Draw()) > 0.1
    assert spread(Draw(joint=True)) < 1e-12
    assert spread(Draw(marginal=False)) < 1e-12
    assert spread(Draw(n_inducing=2)) < 1e-12
    assert spread(Draw(), n_rows=3) < 1e-12  # rows cut into two pieces share their weights


def test_bias_is_a_weight_on_a_constant_feature() -> None:
    layer = vb.Linear(2, 3, posterior=vb.Point())
    found = vb.Model(layer, vb.Gaussian())
    assert layer.fan_in == 3
    x = torch.randn(4, 2)
    w = layer.posterior.weight
    torch.testing.assert_close(found.predict(x).mean, (x @ w[:2] + w[2]).detach())
    prior = torch.distributions.Normal(0.0, 1 / math.sqrt(3))
    torch.testing.assert_close(found.elbo(x, x @ torch.ones(2, 3)).kl, -prior.log_prob(w).sum())


def test_maximum_likelihood_has_no_prior() -> None:
    found = vb.Model(vb.Linear(2, 1, posterior=vb.Point(prior=False)), vb.Gaussian(0.01))
    x = torch.randn(30, 2)
    y = x @ torch.tensor([1.0, -2.0]) + 0.5
    vb.fit(found, (x, y), steps=1500, lr=0.03, progress=False)
    torch.testing.assert_close(found.predict(x).mean, y, rtol=0, atol=1e-2)
    assert float(found.elbo(x, y).kl.detach()) == 0.0


@pytest.mark.parametrize("prior", [vb.ScalePrior(), vb.SpatialIWPrior()])
def test_maximum_likelihood_ignores_priors_with_hyperparameters(prior: vb.priors.Prior) -> None:
    """They were drawn, and their divergence taken from the likelihood."""
    found = vb.Model(vb.Linear(2, 1, prior=prior, posterior=vb.Point(prior=False)), vb.Gaussian(0.01))
    x, y = torch.randn(30, 2), torch.randn(30)
    before = [p.detach().clone() for p in found.network.prior.parameters()]
    vb.fit(found, (x, y), steps=5, progress=False)
    bound = found.elbo(x, y, n_samples=3)
    assert float(bound.kl.detach()) == 0.0
    assert float(bound.stderr) == 0.0
    assert found.predict(x).n_draws == 1
    for now, then in zip(found.network.prior.parameters(), before, strict=True):
        assert torch.equal(now, then)


def test_layer_functions_on_a_grid() -> None:
    found = model("global")
    x = torch.randn(4, 2)
    inside = found.layer_functions(x, 6, grids={"2.inner.1": torch.randn(3, 6)})
    assert {name: tuple(one.draws.shape) for name, one in inside.items()} == {
        "0": (6, 4, 6),
        "2.inner.1": (6, 3, 6),
        "4": (6, 4, 1),
    }


def test_float32_and_a_saved_state() -> None:
    found = model("global").float()
    other = copy.deepcopy(found)
    x = torch.randn(6, 2, dtype=torch.float32)
    assert found.predict(x, n_samples=2).mean.dtype == torch.float32
    vb.fit(found, (x, x[:, 0]), steps=3, progress=False)
    other.load_state_dict(found.state_dict())
    for a, b in zip(found.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_refusals() -> None:
    with pytest.raises(vb.ConfigurationError, match=r"network is a Bayesian layer.*vibayes\.Model|outside a Model"):
        vb.Linear(2, 1)(torch.randn(3, 2))
    with pytest.raises(vb.ConfigurationError, match="in_features must be at least 1"):
        vb.Linear(0, 1)
    with pytest.raises(vb.ConfigurationError, match="out_features must be at least 1"):
        vb.Linear(2, 1.5)
    with pytest.raises(vb.ConfigurationError, match=r"bias must be True or False, got ScalePrior.*given by name"):
        vb.Linear(2, 1, vb.ScalePrior())
    with pytest.raises(vb.ConfigurationError, match="needs inducing inputs"):
        vb.Model(vb.Linear(2, 1), vb.Gaussian())
    with pytest.raises(vb.ShapeError, match="width 2"):
        vb.Model(vb.Linear(2, 1), vb.Gaussian(), inducing=torch.randn(5, 3))
    with pytest.raises(vb.ShapeError, match=r"'1' expects rows of shape \[N, 4\], got \[6, 3\]"):
        vb.Model(nn.Sequential(vb.Linear(2, 3), vb.Linear(4, 1)), vb.Gaussian(), inducing=torch.randn(5, 2))
    with pytest.raises(vb.ConfigurationError, match="no layer of this network uses them"):
        vb.Model(vb.Linear(2, 1, posterior=vb.MeanField()), vb.Gaussian(), inducing=torch.randn(5, 2))
    with pytest.raises(vb.ConfigurationError, match="is a posterior of GP layers"):
        vb.Linear(2, 1, posterior=vb.GeneralizedWishart())
    with pytest.raises(vb.ConfigurationError, match='"whitened" is for GP layers'):
        vb.Model(vb.Linear(2, 1, posterior=vb.LocalInducing(5, form="whitened")), vb.Gaussian())
    with pytest.raises(vb.ConfigurationError, match="is a GP and has no weights, as MeanField needs"):
        vb.Model(vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.MeanField()), vb.Gaussian())
    with pytest.raises(vb.ConfigurationError, match="variance must be a positive number"):
        vb.MeanField(variance=0.0)
    with pytest.raises(vb.ConfigurationError, match="prior must be True"):
        vb.Point(prior="yes")
    layer = vb.Linear(2, 2)
    layer.start = torch.zeros(2, 2)
    layer.posterior = vb.MeanField()
    with pytest.raises(vb.ShapeError, match=r"starting weights of shape \[2, 2\]; it has \[3, 2\]"):
        vb.Model(layer, vb.Gaussian())


def test_a_layer_that_failed_to_join_stays_free() -> None:
    layer = vb.Linear(2, 1)
    with pytest.raises(vb.ConfigurationError, match="needs inducing inputs"):
        vb.Model(layer, vb.Gaussian())
    vb.Model(layer, vb.Gaussian(), inducing=torch.randn(5, 2))
    with pytest.raises(vb.ConfigurationError, match="already belongs to a Model"):
        vb.Model(layer, vb.Gaussian(), inducing=torch.randn(5, 2))


def test_rows_that_change_their_number_are_refused() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(-1, 1)

    network = nn.Sequential(vb.Linear(2, 2), Halves(), vb.Linear(1, 1))
    with pytest.raises(vb.ShapeError, match="cannot tell which are inducing rows"):
        vb.Model(network, vb.Gaussian(), inducing=torch.randn(5, 2))


def test_the_last_layer_starts_at_the_targets_of_the_nearest_rows() -> None:
    x, y = torch.randn(20, 2), torch.randn(20, 3)
    last = vb.Linear(4, 3)
    found = vb.Model(nn.Sequential(vb.Linear(2, 4), nn.ReLU(), last), vb.Gaussian(), inducing=x[[7, 2, 11]] + 1e-6)
    found.initialize(x, y)
    torch.testing.assert_close(last.posterior.pseudo_outputs.detach(), y[[7, 2, 11]])
