"""Identities 5, 6, 7, 17 and 19 for layers of weights."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb

FORMS = ["diagonal", "per_output", "full", "full_per_output"]
PRIORS: dict[str, Callable[[], vb.NealPrior | vb.StandardPrior | vb.ScalePrior]] = {
    "neal": vb.NealPrior,
    "standard": vb.StandardPrior,
    "scale": vb.ScalePrior,
    "root scale": lambda: vb.ScalePrior("sqrt(s)"),
}


def regression(n: int = 14, d: int = 3, p: int = 1) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, d)
    return x, x @ torch.randn(d, p) + 0.3 + 0.2 * torch.randn(n, p)


def exact_regression(x: Tensor, y: Tensor, bias: bool, noise: float, variance: float) -> vb.LinearRegression:
    """Bayesian linear regression with the prior variance of the layer's weights."""

    class Features(nn.Module):
        n_features = x.shape[1] + bias

        def forward(self, rows: Tensor) -> Tensor:
            return torch.cat([rows, torch.ones_like(rows[:, :1])], 1) if bias else rows

    model = vb.LinearRegression(Features(), noise=vb.Gaussian(noise), prior_variance=variance)
    model.condition(x, y)
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("wide", [False, True])
def test_every_draw_of_one_layer_at_the_data_is_the_evidence(form: str, bias: bool, wide: bool) -> None:
    """Identity 5, in weight space and (more weights than rows) by Matheron's rule."""
    x, y = regression(4 if wide else 14, 9 if wide else 3, 2)
    noise = 0.07
    posterior = vb.GlobalInducing(form, pseudo_outputs=y, log_precision=-math.log(noise))
    layer = vb.Linear(x.shape[1], 2, bias, posterior=posterior)
    model = vb.Model(layer, vb.Gaussian(noise), inducing=x)
    exact = exact_regression(x, y, bias, noise, 1.0 / layer.fan_in)
    evidence = float(exact.log_marginal_likelihood(x, y).detach())
    with torch.no_grad():
        bound = model(*model.prepare(x, y)[:2], n_samples=20)
    each = bound.log_likelihood + bound.log_ratio
    assert torch.allclose(each, torch.full_like(each, evidence), rtol=0, atol=1e-9)
    grid, n = torch.randn(5, x.shape[1]), 40_000
    ours, theirs = model.predict(grid, n_samples=n), exact.predict(grid)
    assert bool(((ours.mean - theirs.mean).abs() < 4.5 * theirs.epistemic.sqrt() / math.sqrt(n)).all())
    assert torch.allclose(ours.epistemic, theirs.epistemic, rtol=4.5 * math.sqrt(2 / n))


@pytest.mark.parametrize("form", FORMS)
def test_linear_layer_and_linear_kernel_have_the_same_posterior(form: str) -> None:
    """Identity 5: Woodbury. Moments of the inducing values of both, and the closed form."""
    z, _ = regression(4, 6)
    pseudo, log_precision = torch.randn(4, 2), torch.tensor([-1.0, 0.3, 1.0, -0.2])
    n = 40_000
    moments = []
    for make in (
        lambda posterior: vb.Linear(6, 2, bias=False, posterior=posterior),
        lambda posterior: vb.GP(2, kernel=vb.LinearKernel(6, variance=1.0), posterior=posterior),
    ):
        posterior = vb.GlobalInducing(form, pseudo_outputs=pseudo, log_precision=log_precision)
        model = vb.Model(make(posterior), vb.Gaussian(0.1), inducing=z)
        model.jitter.fill_(1e-12)
        f = model.sample_functions(z, n)  # [n, M, P]
        moments.append((f.mean(0), torch.einsum("sip,sjp->ijp", f - f.mean(0), f - f.mean(0)) / n))
    K, Lambda = z @ z.T / 6, torch.diag(log_precision.exp())
    S = K - K @ torch.linalg.inv(K + torch.linalg.inv(Lambda)) @ K
    for mean, covariance in moments:
        assert bool(((mean - S @ Lambda @ pseudo).abs() < 4.5 * S.diagonal()[:, None].sqrt() / math.sqrt(n)).all())
        error = ((S.square() + S.diagonal()[:, None] * S.diagonal()) / n).sqrt()
        assert bool(((covariance - S[..., None]).abs() < 4.5 * error[..., None]).all())


def top_layer_model(x: Tensor, y: Tensor, noise: float) -> tuple[vb.Model, vb.Linear]:
    last = vb.Linear(6, 1, posterior=vb.GlobalInducing(pseudo_outputs=y, log_precision=-math.log(noise)))
    network = nn.Sequential(vb.Linear(x.shape[1], 6, posterior=vb.GlobalInducing(log_precision=-1.0)), nn.ReLU(), last)
    return vb.Model(network, vb.Gaussian(noise), inducing=x), last


def test_the_best_top_layer_has_zero_gradient() -> None:
    """Identity 6: in expectation, above any lower layer, pseudo-outputs = y and precision = 1 / noise are optimal."""
    x, y = regression(10)
    model, last = top_layer_model(x, y, 0.1)
    top = [last.posterior.pseudo_outputs, last.posterior.precision.raw]
    batch = model.prepare(x, y)
    gradients = []
    for _ in range(300):
        objective = model(batch.x, batch.y, n_samples=1).objective()
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(objective, top)]))
    each = torch.stack(gradients)
    assert bool((each.mean(0).abs() < 4 * each.std(0) / math.sqrt(len(each)) + 1e-9).all())
    with torch.no_grad():
        last.posterior.pseudo_outputs.add_(0.5)
    moved = torch.autograd.grad(model(batch.x, batch.y, n_samples=50).objective(), top)[0]
    assert float(moved.abs().max()) > 1.0


def test_the_best_top_layer_has_no_gradient_without_the_score() -> None:
    """Identity 6, per draw: with `log q` taken at parameters that are held fixed, the gradient is exactly zero."""
    _, y = regression(10)
    noise = 0.1
    features = torch.cat([torch.relu(torch.randn(10, 5)), torch.ones(10, 1)], 1)  # of a frozen draw below
    D = features / math.sqrt(6)

    def objective(outputs: Tensor, log_precision: Tensor, eps: Tensor) -> Tensor:
        def regress(outputs: Tensor, log_precision: Tensor) -> tuple[Tensor, Tensor]:
            B = torch.eye(6) + D.T @ (log_precision.exp()[:, None] * D)
            return torch.linalg.solve(B, D.T @ (log_precision.exp()[:, None] * outputs)), B

        mean, B = regress(outputs, log_precision)
        v = mean + torch.linalg.solve(torch.linalg.cholesky(B).T, eps)
        held_mean, held_B = regress(outputs.detach(), log_precision.detach())
        log_q = 0.5 * torch.logdet(held_B) - 0.5 * ((v - held_mean).T @ held_B @ (v - held_mean)).sum()
        return -0.5 * v.square().sum() - log_q - 0.5 * (y - D @ v).square().sum() / noise

    outputs = y.clone().requires_grad_()
    log_precision = torch.full((10,), -math.log(noise)).requires_grad_()
    for _ in range(3):
        found = torch.autograd.grad(objective(outputs, log_precision, torch.randn(6, 1)), (outputs, log_precision))
        assert max(float(g.abs().max()) for g in found) < 1e-11
    # the layer draws the same v from the same noise, and reports the same ratio
    layer = vb.Linear(5, 1, posterior=vb.GlobalInducing(pseudo_outputs=y, log_precision=-math.log(noise)))
    model = vb.Model(layer, vb.Gaussian(noise, learn=False), inducing=features[:, :5])
    eps = torch.randn(6, 1)
    batch = model.prepare(features[:, :5], y)
    bound = model(batch.x, batch.y, noise={"network.inducing": eps[None]}, n_samples=1)
    constant = -5 * math.log(2 * math.pi * noise)
    expected = objective(outputs, log_precision, eps) + constant
    torch.testing.assert_close((bound.log_likelihood + bound.log_ratio)[0], expected)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("inducing", [None, torch.randn(4, 1, dtype=torch.float64)])
def test_from_prior_is_the_prior(prior: str, inducing: Tensor | None) -> None:
    """Identity 7: log ratio zero, and the bound is the expected log likelihood under the prior."""

    def layer(n: int, m: int) -> vb.Linear:
        return vb.Linear(n, m, prior=PRIORS[prior](), posterior=vb.FromPrior())

    model = vb.Model(nn.Sequential(layer(1, 4), nn.ReLU(), layer(4, 1)), vb.Gaussian(0.5), inducing=inducing)
    x, y = torch.tensor([[0.5]]), torch.tensor([0.3])
    with torch.no_grad():
        bound = model.elbo(x, y, n_samples=20_000)
        assert float(bound.kl) == 0.0
        n = 400_000

        def std(fan_in: int) -> Tensor:
            s = torch.distributions.Gamma(2.0, 2.0).sample((n, 1, 1)).to(x)
            power = {"neal": 0.0, "standard": 0.0, "scale": -0.5, "root scale": 0.25}[prior]
            return s**power / (1.0 if prior == "standard" else math.sqrt(fan_in))

        hidden = torch.relu(torch.cat([x, torch.ones(1, 1)], 1) @ (std(2) * torch.randn(n, 2, 4)))
        f = (torch.cat([hidden, torch.ones(n, 1, 1)], 2) @ (std(5) * torch.randn(n, 5, 1)))[:, 0, 0]
        each = -0.5 * math.log(2 * math.pi * 0.5) - 0.5 * (0.3 - f).square() / 0.5
    error = math.hypot(float(bound.stderr), float(each.std()) / math.sqrt(n))
    assert abs(float(bound.value) - float(each.mean())) < 4 * error


POSTERIORS: dict[str, Callable[[], vb.posteriors.Posterior]] = {
    "global": vb.GlobalInducing,
    "local": lambda: vb.LocalInducing(6),
    "mean field": vb.MeanField,
    "point": vb.Point,
}


@pytest.mark.parametrize("kind", ["global", "local", "mean field", "mean field -> global", "point"])
def test_replicas_follow_separate_fits(kind: str) -> None:
    """Identity 17: `fit_many` equals separate fits with shared noise."""
    below, _, above = kind.partition(" -> ")

    def model(r: int) -> vb.Model:
        torch.manual_seed(r)
        network = nn.Sequential(
            vb.Linear(3, 5, prior=vb.ScalePrior(), posterior=POSTERIORS[below]()),
            nn.Tanh(),
            vb.Linear(5, 1, posterior=POSTERIORS[above or below]()),
        )
        return vb.Model(network, vb.Gaussian(0.1), inducing=regression(8)[0] if "global" in kind else None)

    torch.manual_seed(3)
    sets = [regression(20), regression(17)]
    S, shapes = 2, {"0.prior": (17,), "0.inducing": (4, 5), "0.rows": (20, 5), "2.inducing": (6, 1), "2.rows": (20, 1)}

    def noise(step: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(step)
        return {k: torch.randn(2, S, *s, generator=generator, dtype=torch.float64) for k, s in shapes.items()}

    def alone_noise(r: int, step: int) -> dict[str, Tensor]:
        found = {k: v[r] for k, v in noise(step).items()}
        return {k: v[:, : len(sets[r][0])] if k.endswith("rows") else v for k, v in found.items()}

    options = {"steps": 20, "n_samples": S, "log_every": 10, "progress": False}
    together = [model(0), model(1)]
    vb.fit_many(together, sets, noise=noise, chunk=2, **options)
    for r in range(2):
        alone = model(r)
        vb.fit(alone, sets[r], seed=r, noise=lambda step, r=r: alone_noise(r, step), **options)
        for a, b in zip(alone.parameters(), together[r].parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-7, atol=1e-10)
