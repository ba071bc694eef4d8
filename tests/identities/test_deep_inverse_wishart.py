"""Deep inverse Wishart processes: identities 7, 14, 19 and the negative half of 20, and rows free of the minibatch."""

import math

import pytest
import scipy.stats
import torch
from test_evidence_oracle import log_mean_exp
from torch import Tensor, nn

import vibayes as vb
from vibayes.distributions import InverseWishart
from vibayes.draw import Draw
from vibayes.operators.gamma import NOISE_PER_GAMMA

X3 = torch.tensor([[-0.8, 0.3], [0.2, -1.1], [1.4, 0.6]], dtype=torch.float64)
Y3 = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)


def one_layer(dof: float, m: int = 3, out_features: int = 1) -> tuple[vb.InverseWishartProcess, Tensor]:
    """A layer that belongs to a model, and the model's inducing inputs."""
    layer = vb.InverseWishartProcess(
        kernel=vb.SquaredExponential(2, ard=True, lengthscale=1.5), dof=dof, out_features=out_features
    )
    z = torch.randn(m, 2)
    last = vb.GP(1, kernel=vb.SquaredExponential(out_features))
    vb.Model(nn.Sequential(layer, last), vb.Gaussian(0.1), inducing=z)
    return layer, z


def at_the_prior(layer: vb.InverseWishartProcess) -> None:
    with torch.no_grad():
        layer.posterior.V.zero_()
        layer.posterior.extra.set(1e-14)


def grams(layer: vb.InverseWishartProcess, rows: Tensor, m: int, draws: int, joint: bool) -> Tensor:
    """Gram matrices of inducing and data rows, `[draws, N, N]`."""

    def one(_: Tensor) -> Tensor:
        with Draw(n_inducing=m, joint=joint, marginal=False, jitter=1e-12):
            F = layer(rows)
        return F @ F.mT

    with torch.no_grad():
        return torch.func.vmap(one, randomness="different")(torch.zeros(draws))


@pytest.mark.parametrize(("dof", "data", "joint"), [(6.0, 1, False), (6.5, 3, True)])
def test_rows_complete_the_inverse_wishart(dof: float, data: int, joint: bool) -> None:
    """Like identity 14: with the posterior at the prior, inducing and data rows have the joint matrix's moments."""
    layer, z = one_layer(dof, m=2)
    at_the_prior(layer)
    rows = torch.cat([z, torch.randn(data, 2)])
    draws = 40_000
    G = grams(layer, rows, 2, draws, joint)
    with torch.no_grad():
        expected = InverseWishart(dof * layer.kernel(rows), dof + len(rows) + 1.0)
    assert torch.allclose(expected.mean, layer.kernel(rows).detach(), rtol=1e-6)
    assert bool(((G.mean(0) - expected.mean).abs() < 5 * G.std(0) / math.sqrt(draws)).all())
    squares = (G - expected.mean).square()
    assert bool(((squares.mean(0) - expected.variance).abs() < 5 * squares.std(0) / math.sqrt(draws)).all())


def test_a_row_does_not_know_its_minibatch() -> None:
    """The same noise gives the same row, alone or among others; and its residual has the law of one row."""
    layer, z = one_layer(4.0, m=3)
    x = torch.randn(5, 2)
    sites = {"0.inducing": (3 + NOISE_PER_GAMMA, 3), "0.rows": (3, 5), "0.residual": (NOISE_PER_GAMMA, 5)}
    noise = {site: torch.randn(shape) for site, shape in sites.items()}

    def rows(n: int) -> Tensor:
        cut = {site: t if site == "0.inducing" else t[..., :n] for site, t in noise.items()}
        with Draw(n_inducing=3, marginal=False, jitter=1e-10, noise=cut), torch.no_grad():
            return layer(torch.cat([z, x[:n]]))

    everything = rows(5)
    for n in (1, 3):
        assert torch.allclose(rows(n), everything[: 3 + n], rtol=1e-12)

    for n in (1, 6):  # sqrt(g) is the last feature
        with torch.no_grad():
            data = torch.randn(n, 2)

            def residual(_: Tensor, data: Tensor = data) -> Tensor:
                with Draw(n_inducing=3, marginal=False, jitter=1e-12):
                    return layer(torch.cat([z, data]))[3, -1]

            g = torch.func.vmap(residual, randomness="different")(torch.zeros(4000)).square()
            K = layer.kernel(torch.cat([z, data[:1]]))
            schur = K[3, 3] - K[3, :3] @ torch.linalg.solve_ex(K[:3, :3], K[:3, 3]).result
        law = scipy.stats.invgamma(0.5 * (4.0 + 3 + 2), scale=0.5 * 4.0 * float(schur))
        assert scipy.stats.kstest(g.numpy(), law.cdf).pvalue > 1e-3


def test_a_posterior_equal_to_the_prior_has_log_ratio_zero() -> None:
    layer, z = one_layer(2.5, m=5)
    at_the_prior(layer)
    for _ in range(5):
        draw = Draw(n_inducing=5, jitter=1e-3)
        with draw, torch.no_grad():
            layer(z)
        assert abs(float(draw.log_ratios["0"])) < 1e-8


@pytest.mark.parametrize(("dof", "out_features"), [(3.0, 1), (1.5, 2)])
def test_importance_weights_average_to_the_evidence(dof: float, out_features: int) -> None:
    """Identity 19 with two inverse Wishart layers below a GP, against draws of the prior's Gram matrices."""

    def width(features: int, **options: object) -> vb.SquaredExponential:
        return vb.SquaredExponential(features, lengthscale=1.4, **options)

    first = vb.InverseWishartProcess(kernel=width(2, ard=True), dof=dof, out_features=out_features)
    second = vb.InverseWishartProcess(kernel=width(out_features), dof=4.0, out_features=out_features)
    last = vb.GP(1, kernel=width(out_features), posterior=vb.GlobalInducing(log_precision=-1.0))
    model = vb.Model(nn.Sequential(first, second, last), vb.Gaussian(0.3), inducing=torch.randn(4, 2))
    model.jitter.fill_(1e-10)

    def gram(K: Tensor, degrees: float) -> Tensor:
        factor = InverseWishart(degrees * K, degrees + 4.0, validate_args=False).rsample_factor().factor
        return math.sqrt(out_features) * factor  # rows whose inner products are out_features G

    def prior(_: Tensor) -> Tensor:
        K = last.kernel._matrix(gram(second.kernel._matrix(gram(first.kernel(X3), dof), None), 4.0), None)
        L, _ = torch.linalg.cholesky_ex(K + 0.3 * torch.eye(3))
        white = torch.linalg.solve_triangular(L, Y3[:, None], upper=False)
        return -0.5 * white.square().sum() - L.diagonal().log().sum() - 1.5 * math.log(2 * math.pi)

    with torch.no_grad():
        last.posterior.pseudo_outputs.mul_(0.3)
        for layer in (first, second):
            layer.posterior.V.copy_(0.12 * torch.randn_like(layer.posterior.V))
            layer.posterior.extra.set(0.4)
        drawn = torch.func.vmap(prior, randomness="different")(torch.zeros(60_000))
        evidence, evidence_error = log_mean_exp(drawn)
        estimate, error = log_mean_exp(model.log_weights(X3, Y3, n_samples=20_000))
        bound = model.elbo(X3, Y3, n_samples=2000)
    assert error < 0.04
    assert abs(estimate - evidence) < 3.5 * math.hypot(error, evidence_error)
    assert float(bound.value) + 4 * float(bound.stderr) < evidence


@pytest.mark.parametrize("same", [True, False])
def test_one_more_point_cannot_have_the_prior_conditional(same: bool) -> None:
    """Identity 20, the negative half: no inverse Wishart over M + 1 points is q(U) p(* | U), unless q is the prior.

    Of the system of equations of the thesis the last cannot be solved: with the mean and the residual of the new point
    at the prior's conditional, the divergence from q(U) p(* | U) stays positive.
    """
    dof, m, draws = 4.0, 2, 20_000
    rows = torch.tensor([[-0.5, 0.0], [0.4, 1.0], [0.9, -0.3]])
    with torch.no_grad():
        S = dof * vb.SquaredExponential(2)(rows)
    scatter = torch.zeros(2, 2) if same else torch.tensor([[3.0, 1.0], [1.0, 2.0]])
    extra = 0.0 if same else 2.0
    Psi = S[:m, :m] + scatter
    u_side = torch.linalg.solve_ex(S[:m, :m], S[:m, m]).result  # S_uu^-1 sigma_u*
    x = Psi @ u_side
    a = S[m, m] - u_side @ (S[:m, :m] - Psi) @ u_side
    extended = torch.cat([torch.cat([Psi, x[:, None]], 1), torch.cat([x, a[None]])[None]])
    q1 = InverseWishart(Psi, dof + extra + m + 1)
    G = q1.sample((draws,))
    # the new point by the prior's conditional, Eq. dwp:iwcond
    residual = S[m, m] - S[m, :m] @ u_side
    g = 0.5 * residual / torch.distributions.Gamma(0.5 * (dof + m + 2), 1.0).sample((draws,))
    L = torch.linalg.cholesky_ex(S[:m, :m]).L
    noise = torch.linalg.solve_triangular(L.mT, torch.randn(draws, m, 1), upper=True)[..., 0]
    coefficients = u_side + g.sqrt()[:, None] * noise
    cross = (G @ coefficients[..., None])[..., 0]
    corner = g + (cross * coefficients).sum(-1)
    whole = torch.cat([torch.cat([G, cross[..., None]], -1), torch.cat([cross, corner[:, None]], -1)[:, None, :]], -2)
    prior = InverseWishart(S, dof + m + 2).log_prob(whole) - InverseWishart(S[:m, :m], dof + m + 1).log_prob(G)
    gap = q1.log_prob(G) + prior - InverseWishart(extended, dof + extra + m + 2).log_prob(whole)
    mean, error = float(gap.mean()), float(gap.std()) / math.sqrt(draws)
    if same:
        assert float(gap.abs().max()) < 1e-8
    else:
        assert mean > 0.05
        assert mean > 10 * error


def test_a_deep_inverse_wishart_process_trains_and_describes_itself() -> None:
    x = torch.rand(40, 2) * 4 - 2
    y = (2 * x[:, 0]).sin() + 0.1 * torch.randn(40)
    network = nn.Sequential(
        vb.InverseWishartProcess(kernel=vb.SquaredExponential(2, ard=True), dof=5.0),
        vb.InverseWishartProcess(kernel=vb.ArcCosine(1), dof=vb.Positive(7.0, learn=False)),
        vb.GP(1, kernel=vb.SquaredExponential(1)),
    )
    model = vb.Model(network, vb.Gaussian(0.1), inducing=x[:10], standardize="both")
    history = vb.fit(model, (x, y), steps=120, n_samples=4, log_every=10, batch_size=25, progress=False)
    assert not history.events
    assert sum(history.elbo[-3:]) / 3 > sum(history.elbo[:3]) / 3 + 5
    text = model.describe()
    assert "0: InverseWishartProcess 2 -> 1, posterior InverseWishartPosterior" in text
    assert "dof: 7 (fixed)" in text
    x_new = torch.randn(4, 2)
    assert model.sample_functions(x_new, 3).shape == (3, 4)
    assert model.predict(x_new, n_samples=10).mean.shape == (4,)
    assert model.predict(x_new, n_samples=10, joint=True).covariance.shape == (1, 4, 4)


def test_replicas_follow_separate_fits() -> None:
    """Identity 17, with prepared noise."""

    def model(r: int) -> vb.Model:
        torch.manual_seed(r)
        hidden = vb.InverseWishartProcess(kernel=vb.SquaredExponential(2), dof=4.0)
        network = nn.Sequential(hidden, vb.GP(1, kernel=vb.SquaredExponential(1)))
        return vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(3, 2))

    S, sets = 2, [(torch.randn(8, 2), torch.randn(8)) for _ in range(2)]
    shapes = {
        "0.inducing": (3 + NOISE_PER_GAMMA, 3),
        "0.rows": (3, 8),
        "0.residual": (NOISE_PER_GAMMA, 8),
        "1.inducing": (6, 1),
    }

    def noise(step: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(step)
        return {k: torch.randn(2, S, *s, generator=generator, dtype=torch.float64) for k, s in shapes.items()}

    together = [model(0), model(1)]
    vb.fit_many(together, sets, steps=6, n_samples=S, noise=noise, chunk=2, log_every=3, progress=False)
    for r in range(2):
        alone = model(r)
        own = lambda step, r=r: {k: v[r] for k, v in noise(step).items()}  # noqa: E731
        vb.fit(alone, sets[r], steps=6, n_samples=S, seed=r, noise=own, log_every=3, progress=False)
        for a, b in zip(alone.parameters(), together[r].parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-7, atol=1e-10)


def test_what_cannot_work_is_refused() -> None:
    kernel = vb.SquaredExponential(2)
    for dof in (0, -1.0, math.nan, math.inf, True, "five"):
        with pytest.raises(vb.ConfigurationError, match="dof must be a positive number"):
            vb.InverseWishartProcess(kernel=kernel, dof=dof)
    with pytest.raises(vb.ConfigurationError, match="kernel must be a kernel"):
        vb.InverseWishartProcess(kernel=nn.ReLU(), dof=1.0)
    last = vb.GP(1, kernel=vb.SquaredExponential(1))
    with pytest.raises(vb.ConfigurationError, match=r"inducing=x\[:100\]"):
        vb.Model(nn.Sequential(vb.InverseWishartProcess(kernel=kernel), last), vb.Gaussian())
    with pytest.raises(vb.ConfigurationError, match="End the network with a GP layer"):
        vb.Model(vb.InverseWishartProcess(kernel=kernel), vb.Gaussian(), inducing=torch.randn(3, 2))
    with pytest.raises(vb.ConfigurationError, match="known only up to a rotation"):
        vb.Model(
            nn.Sequential(vb.InverseWishartProcess(kernel=kernel), nn.ReLU(), last),
            vb.Gaussian(),
            inducing=torch.randn(3, 2),
        )
    wide = vb.GP(1, kernel=vb.SquaredExponential(3))
    with pytest.raises(vb.ShapeError, match=r"\[N, 3\].*in_features=out_features of the process"):
        vb.Model(
            nn.Sequential(vb.InverseWishartProcess(kernel=kernel), wide), vb.Gaussian(), inducing=torch.randn(4, 2)
        ).elbo(torch.randn(3, 2), torch.randn(3))
    for mean in (vb.IdentityMean(), vb.LinearMean(2, 2)):
        network = nn.Sequential(
            vb.InverseWishartProcess(kernel=kernel, out_features=2),
            vb.GP(2, kernel=vb.SquaredExponential(2), mean=mean),
        )
        with pytest.raises(vb.ConfigurationError, match=rf"'1' has the mean {type(mean).__name__}.*zero or constant"):
            vb.Model(network, vb.Gaussian(), inducing=torch.randn(4, 2))
