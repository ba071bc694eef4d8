"""Identities 12, 13, 14, 19 and 20 for deep Wishart processes."""

import math

import pytest
import torch
from test_evidence_oracle import log_mean_exp
from torch import Tensor, nn

import vibayes as vb
from vibayes.distributions import Wishart
from vibayes.draw import Draw
from vibayes.operators.gamma import NOISE_PER_GAMMA
from vibayes.posteriors.base import Site

X3 = torch.tensor([[-0.8, 0.3], [0.2, -1.1], [1.4, 0.6]], dtype=torch.float64)
Y3 = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)
MIXINGS = ["plain", "A", "AB"]
WIDTHS = [1, 2, 4, 6]  # fewer outputs than the four inducing rows, as many, and more


def deep(
    posterior: vb.GeneralizedWishart | vb.FromPrior, width: int, m: int = 4, kernel: vb.Kernel | None = None
) -> vb.Model:
    hidden = vb.GP(width, kernel=vb.SquaredExponential(2, ard=True, lengthscale=1.5), posterior=posterior)
    kernel = vb.SquaredExponential(width) if kernel is None else kernel
    last = vb.GP(1, kernel=kernel, posterior=vb.GlobalInducing(log_precision=-1.0))
    model = vb.Model(nn.Sequential(hidden, last), vb.Gaussian(0.3), inducing=torch.randn(m, 2))
    model.jitter.fill_(1e-10)
    return model


def at_the_prior(model: vb.Model) -> vb.Model:
    posterior = model.network[0].posterior
    with torch.no_grad():
        posterior.share.set(-1e4)  # q = 0
        posterior.mu.zero_()
        posterior.sigma.set(1.0)
    return model


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_posterior_equal_to_the_prior_has_log_ratio_zero(mixing: str, width: int) -> None:
    """Identity 12, first half: in every draw."""
    model = at_the_prior(deep(vb.GeneralizedWishart(mixing), width))
    layer = model.network[0]
    with torch.no_grad():
        L = torch.linalg.cholesky(layer.kernel(torch.randn(4, 2)))
        for _ in range(5):
            draw = Draw(jitter=0.1)  # which the kernel matrix has already
            layer.posterior.sample(Site("w", L, width), draw)
            assert abs(float(draw.log_ratios["w"])) < 1e-9


@pytest.mark.parametrize("width", [2, 6])
def test_prior_functions_are_those_of_the_deep_gp(width: int) -> None:
    """Identity 12, second half: moments of outputs at the prior match those of a deep GP drawn from its prior.

    A stationary kernel would give outputs the same variance whatever the features are.
    """
    torch.manual_seed(0)
    wishart = at_the_prior(deep(vb.GeneralizedWishart(), width, kernel=vb.ArcCosine(width)))
    torch.manual_seed(0)
    gaussian = deep(vb.FromPrior(), width, kernel=vb.ArcCosine(width))
    x = torch.tensor([[0.3, -0.2], [1.0, 0.8]])
    draws = 100_000
    moments = []
    for model in (wishart, gaussian):
        with torch.no_grad():
            model.network[1].posterior.precision.set(1e-12)  # the last layer is its prior, too
            model.network[1].posterior.pseudo_outputs.zero_()
        f = model.sample_functions(x, draws)
        products = torch.stack([f[:, 0] ** 2, f[:, 0] * f[:, 1], (f[:, 0] * f[:, 1]) ** 2], 1)
        moments.append((products.mean(0), products.std(0) / math.sqrt(draws)))
    (a, a_error), (b, b_error) = moments
    assert bool(((a - b).abs() < 4 * (a_error.square() + b_error.square()).sqrt()).all())


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("width", [2, 6])
def test_a_rotation_of_the_features_changes_nothing(width: int, joint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Identity 13: neither the log ratio nor the law of inner products with data rows.

    With the features turned, and the noise of the data rows, whose law knows no directions, all rows come out turned.
    """
    layer = deep(vb.GeneralizedWishart("AB"), width).network[0]
    posterior, sample = layer.posterior, layer.posterior.sample
    rows, rotation = torch.randn(7, 2), torch.linalg.qr(torch.randn(width, width)).Q

    def run(noise: dict[str, Tensor] | None) -> tuple[Tensor, Draw]:
        draw = Draw(n_inducing=4, joint=joint, marginal=False, noise=noise)
        with torch.no_grad(), draw:
            return layer(rows), draw

    noise = {name: torch.randn(shape) for name, shape in run(None)[1].requests.items()}
    plain, draw = run(noise)
    monkeypatch.setattr(posterior, "sample", lambda site, draw: sample(site, draw) @ rotation)
    turned, _ = run(noise | {"0.rows": noise["0.rows"] @ rotation})
    assert not torch.allclose(turned, plain, atol=1e-2)
    torch.testing.assert_close(turned @ turned.mT, plain @ plain.mT)

    with torch.no_grad():
        K, q = layer.kernel(rows[:4]), torch.sigmoid(posterior.share.value)
        F = plain[:4] @ rotation
        scale = torch.linalg.cholesky((1 - q) * K + width * q * posterior.V @ posterior.V.mT)
        log_ratio = Wishart(K, width).log_prob_factor(F) - posterior.distribution(scale, width).log_prob_factor(F)
    torch.testing.assert_close(draw.log_ratios["0"], log_ratio)


@pytest.mark.parametrize("joint", [False, True])
def test_data_rows_complete_the_wishart(joint: bool) -> None:
    """Identity 14: the Gram matrix of inducing and data rows, marginalised, has the joint Wishart's moments.

    Data rows that are not drawn jointly know nothing of each other, so that there is only one of them here.
    """
    width, draws = 3, 60_000
    kernel = vb.SquaredExponential(1)
    layer = vb.GP(width, kernel=kernel, posterior=vb.GeneralizedWishart())
    network = nn.Sequential(layer, vb.GP(1, kernel=vb.SquaredExponential(width)))
    model = at_the_prior(vb.Model(network, vb.Gaussian(0.1), inducing=torch.tensor([[-0.5], [0.4]])))
    rows = torch.tensor([[-0.5], [0.4], [1.1], [-0.9]] if joint else [[-0.5], [0.4], [1.1]])

    def one(_: Tensor) -> Tensor:
        with Draw(n_inducing=2, joint=joint, marginal=False, jitter=1e-12):
            F = layer(rows)
        return F @ F.mT

    with torch.no_grad():
        G = torch.func.vmap(one, randomness="different")(torch.zeros(draws))
        K = kernel(rows)
    assert model.inducing is not None
    variance = width * (K.square() + K.diagonal()[:, None] * K.diagonal())
    assert torch.allclose(G.mean(0), width * K, atol=4.5 * float((variance / draws).sqrt().max()))
    assert torch.allclose(G.var(0), variance, rtol=0.06)


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_importance_weights_average_to_the_evidence(mixing: str, width: int) -> None:
    """Identity 19: the deep GP's evidence, whatever the Wishart posterior."""
    model = deep(vb.GeneralizedWishart(mixing), width)
    posterior = model.network[0].posterior
    with torch.no_grad():
        model.network[1].posterior.pseudo_outputs.mul_(0.3)
        posterior.share.set(-3.0)
        posterior.V.copy_(0.5 * torch.randn_like(posterior.V))
        posterior.mu.mul_(0.3)
        posterior.sigma.set(1.0 + 0.2 * torch.rand_like(posterior.mu))
        posterior.beta.set(0.45 + 0.02 * torch.rand(posterior.beta.raw.shape))
        if mixing != "plain":
            posterior.A.add_(0.1 * torch.randn_like(posterior.A))
        if mixing == "AB":
            posterior.B.add_(0.1 * torch.randn_like(posterior.B))
        hidden = model.network[0].kernel(X3)
        L1 = torch.linalg.cholesky(hidden)
        F = torch.einsum("ij,njp->nip", L1, torch.randn(400_000, 3, width))
        K2 = torch.func.vmap(lambda rows: model.network[1].kernel(rows))(F) + 0.3 * torch.eye(3)
        prior = torch.distributions.MultivariateNormal(torch.zeros(3), K2).log_prob(Y3)
        evidence, evidence_error = log_mean_exp(prior)
        estimate, error = log_mean_exp(model.log_weights(X3, Y3, n_samples=200_000))
        bound = model.elbo(X3, Y3, n_samples=4000)
    assert error < 0.03
    assert abs(estimate - evidence) < 3.5 * math.hypot(error, evidence_error)
    assert float(bound.value) + 4 * float(bound.stderr) < evidence


def log_ratio(posterior: vb.GeneralizedWishart, K: Tensor, width: int, noise: Tensor) -> float:
    draw = Draw(noise={"w.inducing": noise})
    posterior.sample(Site("w", torch.linalg.cholesky(K), width), draw)
    return float(draw.log_ratios["w"])


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("width", [2, 6])
def test_one_more_point_with_the_prior_conditional_changes_nothing(mixing: str, width: int) -> None:
    """Identity 20: the new row of `V` is `K_*u K_uu^-1 V` and the rest of the new point is its prior's.

    Then the extended scale matrix has the factor `[[L, 0], [K_*u K_uu^-1 L, sqrt(K_**.u / nu)]]`, so that
    `F_* = K_*u K_uu^-1 F_u` plus the prior's residual. With a `B` that is not diagonal there is no such extension:
    the residual's columns would be correlated.
    """
    x, y = X3.repeat(3, 1) + 0.3 * torch.randn(9, 2), Y3.repeat(3)
    z = torch.randn(5, 2)
    few, more = (deep(vb.GeneralizedWishart(mixing), width, m) for m in (4, 5))
    with torch.no_grad():
        for model in (few, more):
            model.inducing.copy_(z[: len(model.inducing)])
            model.likelihood.load_state_dict(few.likelihood.state_dict())
        a, b = few.network[0].posterior, more.network[0].posterior
        K = few.network[0].kernel(z) + 1e-10 * torch.eye(5)
        weights = torch.linalg.solve_ex(K[:4, :4], K[:4, 4]).result  # K_uu^-1 K_u*
        residual = K[4, 4] - K[4, :4] @ weights
        nt, nt_more = min(width, 4), min(width, 5)
        a.V.copy_(0.4 * torch.randn(4, 4))
        a.mu.copy_(0.5 * torch.randn(4, nt))
        a.sigma.set(0.4 + torch.rand(4, nt))
        a.beta.set(0.3 + 0.4 * torch.rand(nt))
        b.V.zero_()
        b.V[:4, :4], b.V[4, :4], b.V[4, 4] = a.V, weights @ a.V, (residual / width).sqrt()
        for posterior in (a, b):
            posterior.share.set(-1.5)
        b.mu.zero_()
        b.mu[:4, :nt] = a.mu
        b.sigma.set(torch.ones(5, nt_more))
        b.sigma.raw[:4, :nt] = a.sigma.raw
        b.beta.raw[:nt] = a.beta.raw  # the shapes of the gammas are the prior's in both
        if mixing != "plain":
            a.A.add_(0.3 * torch.randn(4, 4))
            b.A[:4, :4] = a.A
        if mixing == "AB":
            a.B.diagonal().add_(0.3 * torch.rand(nt))
            b.B[:nt, :nt] = a.B
            b.sigma.raw[4, :nt] = -a.B.diagonal().log()
        for _ in range(3):  # in every draw, with the noise of the old points as it was
            noise = torch.randn(5 + NOISE_PER_GAMMA, nt_more)
            old = torch.cat([noise[:4], noise[5:]])[:, :nt]
            ratios = [log_ratio(p, K[:m, :m], width, e) for p, m, e in ((a, 4, old), (b, 5, noise))]
            assert math.isclose(*ratios, abs_tol=1e-6)
        last, longer = few.network[1].posterior, more.network[1].posterior
        longer.pseudo_outputs[:4] = last.pseudo_outputs
        longer.precision.raw[:4] = last.precision.raw
        longer.precision.raw[4] = -20.0  # no precision: the prior's conditional, as for GP layers
        bounds = [model.elbo(x, y, n_samples=30_000) for model in (few, more)]
        difference = abs(float(bounds[0].value - bounds[1].value))
        assert difference < 4 * math.hypot(*(float(bound.stderr) for bound in bounds))
        assert min(float(bound.stderr) for bound in bounds) < 0.3
        b.V[4, :4] *= 0.5  # any other row costs something
        assert float(bounds[0].value) > float(more.elbo(x, y, n_samples=30_000).value) + 4 * float(bounds[0].stderr)


def test_a_deep_wishart_process_trains() -> None:
    x = torch.rand(40, 2) * 4 - 2
    y = (2 * x[:, 0]).sin() + 0.1 * torch.randn(40)
    model = vb.Model(
        nn.Sequential(
            vb.GP(2, kernel=vb.SquaredExponential(2, ard=True), posterior=vb.GeneralizedWishart("AB")),
            vb.GP(2, kernel=vb.SquaredExponential(2), posterior=vb.GeneralizedWishart("A")),
            vb.GP(1, kernel=vb.SquaredExponential(2)),
        ),
        vb.Gaussian(0.1),
        inducing=x[:10],
        standardize="both",
    )
    history = vb.fit(model, (x, y), steps=150, n_samples=4, log_every=10, progress=False)
    assert not history.events
    assert sum(history.elbo[-3:]) / 3 > sum(history.elbo[:3]) / 3 + 5


def test_what_would_notice_a_rotation_is_refused() -> None:
    def hidden(**options: object) -> vb.GP:
        return vb.GP(2, kernel=vb.SquaredExponential(1), posterior=vb.GeneralizedWishart(), **options)

    z = torch.randn(4, 1)
    last = vb.GP(1, kernel=vb.SquaredExponential(2))
    with pytest.raises(vb.ConfigurationError, match="zero mean"):
        hidden(mean=vb.LinearMean(1, 2))
    for behind in (
        [vb.GP(1, kernel=vb.SquaredExponential(2, ard=True))],
        [nn.ReLU(), last],
        [vb.GP(2, kernel=vb.SquaredExponential(2), mean=vb.IdentityMean()), last],
    ):
        with pytest.raises(vb.ConfigurationError, match="known only up to a rotation"):
            vb.Model(nn.Sequential(hidden(), *behind), vb.Gaussian(), inducing=z)
    with pytest.raises(vb.ConfigurationError, match="End the network with a GP layer"):
        vb.Model(hidden(), vb.Gaussian(), inducing=z)
    with pytest.raises(vb.ConfigurationError, match=r"inducing=x\[:100\]"):
        vb.Model(nn.Sequential(hidden(), vb.GP(1, kernel=vb.SquaredExponential(2))), vb.Gaussian())
