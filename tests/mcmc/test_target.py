"""The log joint density of models: likelihood, priors and the space they live in; predictions of chains."""

import functools
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Gamma, Independent, LogNormal, MultivariateNormal, Normal

import vibayes as vb
from vibayes.errors import ConfigurationError
from vibayes.mcmc import Chains, ModelTarget, Target

X = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)[:, None]
Y = torch.sin(3.0 * X[:, 0])
UNIT = LogNormal(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))


def regression(noise: float = 0.25) -> vb.Model:
    return vb.Model(vb.Linear(1, 1, posterior=vb.Point()), vb.Gaussian(noise, learn=False))


def network(width: int = 4, **likelihood: object) -> vb.Model:
    layers = [vb.Linear(1, width, posterior=vb.Point()), nn.ReLU(), vb.Linear(width, 1, posterior=vb.Point())]
    return vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1, **likelihood), standardize="both")


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("prior", [UNIT, Gamma(torch.tensor(2.0).double(), torch.tensor(3.0).double())])
def test_a_prior_of_the_value_is_a_density_of_the_stored_number(scale: float, prior: torch.distributions.Distribution):
    gp = vb.ExactGP(
        vb.SquaredExponential(1, lengthscale=vb.Positive(1.0, scale=scale, prior=prior)), vb.Gaussian(0.1, learn=False)
    )
    gp.kernel.variance.fix()
    target = ModelTarget(gp, (X, Y))
    assert target.size == 1
    raw = torch.linspace(-14.0 / scale, 8.0 / scale, 4001)
    density = torch.func.vmap(target.log_prior)(raw[:, None]).exp()
    assert float(torch.trapezoid(density, raw)) == pytest.approx(1.0, abs=1e-4)
    # and its draws are those of the prior
    drawn = target.sample_prior(20_000, torch.Generator().manual_seed(0))
    values = target.parts[0].value(drawn)[:, None]
    assert float(values.log().mean()) == pytest.approx(float(prior.sample((200_000,)).log().mean()), abs=0.03)


def test_the_joint_density_of_linear_regression_is_posterior_times_evidence() -> None:
    model = regression()
    target = ModelTarget(model, (X, Y))
    design = torch.cat([X, torch.ones(12, 1)], 1) / math.sqrt(2.0)  # NealPrior: variance 1 / fan-in
    precision = design.T @ design / 0.25 + torch.eye(2)
    posterior = MultivariateNormal(torch.linalg.solve(precision, design.T @ Y / 0.25), precision_matrix=precision)
    evidence = MultivariateNormal(torch.zeros(12), design @ design.T + 0.25 * torch.eye(12)).log_prob(Y)
    theta = torch.randn(5, 2)
    # theta are the weights, v = theta sqrt(2)
    expected = posterior.log_prob(theta * math.sqrt(2.0)) + math.log(2.0) + evidence
    torch.testing.assert_close(target.evaluate(theta).log_density, expected)
    cold = target.evaluate(theta, beta=0.0)
    torch.testing.assert_close(cold.log_density, Normal(0.0, math.sqrt(0.5)).log_prob(theta).sum(1))
    torch.testing.assert_close(cold.log_likelihood, expected - cold.log_density)


def test_exact_gp_sgpr_and_deep_kernels() -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    target = ModelTarget(gp, (X, Y), {"*": UNIT})
    theta = target.current()
    torch.testing.assert_close(target.log_likelihood(theta), gp.log_marginal_likelihood(X, Y).detach())
    expected = sum(
        float((UNIT.log_prob(h.value) + h.raw).detach()) for h in (gp.likelihood.noise, *gp.kernel.children())
    )
    assert float(target.log_prior(theta)) == pytest.approx(expected)

    sparse = vb.SGPR(vb.SquaredExponential(1), vb.Gaussian(0.1), X[::3])
    sparse.inducing.requires_grad_(False)
    target = ModelTarget(sparse, (X, Y), {"*": UNIT})
    torch.testing.assert_close(target.log_likelihood(target.current()), sparse.elbo(X, Y).value.detach())

    net = nn.Sequential(nn.Linear(1, 5), nn.ReLU(), nn.Linear(5, 2))
    deep = vb.ExactGP(vb.DeepKernel(net, vb.SquaredExponential(2)), vb.Gaussian(0.1))
    target = ModelTarget(deep, (X, Y), {"kernel.network.*": Normal(0.0, 1.0), "*": UNIT})
    assert target.size == 22 + 3
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    rest = sum(
        float((UNIT.log_prob(h.value) + h.raw).detach())
        for h in (deep.likelihood.noise, *deep.kernel.kernel.children())
    )
    prior = float(Normal(0.0, 1.0).log_prob(weights).sum()) + rest
    assert float(target.log_prior(target.current())) == pytest.approx(prior)


def test_gradients_are_those_of_the_density() -> None:
    model = network(learn=False)
    target = ModelTarget(model, (X, Y))
    theta = target.sample_prior(3, torch.Generator().manual_seed(0))
    found = target.evaluate(theta)
    step = 1e-6 * torch.randn_like(theta)
    change = target.evaluate(theta + step).log_density - target.evaluate(theta - step).log_density
    torch.testing.assert_close(change, 2.0 * (found.gradient * step).sum(1), rtol=1e-4, atol=1e-9)


def test_vectors_go_into_models_and_back() -> None:
    model = network(learn=False)
    target = ModelTarget(model, (X, Y))
    theta = torch.randn(target.size)
    target.put(theta)
    torch.testing.assert_close(target.current(), theta)
    batch = model.prepare(X, Y)
    bound = model(batch.x, batch.y)
    whole = (bound.log_likelihood + bound.log_ratio).sum().detach()
    torch.testing.assert_close(target.log_likelihood(theta) + target.log_prior(theta), whole)


def test_what_has_no_prior_is_refused() -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    with pytest.raises(ConfigurationError, match=r"likelihood.noise, kernel.lengthscale, kernel.variance have none"):
        ModelTarget(gp, (X, Y))
    with pytest.raises(ConfigurationError, match=r"No parameter is called 'kernel.lengthscales'"):
        ModelTarget(gp, (X, Y), {"*": UNIT, "kernel.lengthscales": UNIT})
    with pytest.raises(ConfigurationError, match="must be a torch distribution"):
        ModelTarget(gp, (X, Y), {"*": 1.0})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match=r"priors must be distributions by name.* got LogNormal"):
        ModelTarget(gp, (X, Y), UNIT)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="flat and cannot be drawn from"):
        vb.sample_posterior(gp, (X, Y), priors={"*noise": None, "*": UNIT}, progress=False)
    variational = vb.Model(vb.Linear(1, 1, posterior=vb.MeanField()), vb.Gaussian(0.1, learn=False))
    with pytest.raises(
        ConfigurationError, match=r"place of approximate posteriors, .* MeanField.* posterior=Point\(\)"
    ):
        ModelTarget(variational, (X, Y))
    free = vb.Model(vb.Linear(1, 1, posterior=vb.Point(prior=False)), vb.Gaussian(0.1, learn=False))
    with pytest.raises(ConfigurationError, match=r"network.posterior.weight have none.* posterior is Point\(\)"):
        ModelTarget(free, (X, Y))
    with pytest.raises(ConfigurationError, match="have already"):
        ModelTarget(regression(), (X, Y), {"network.*": Normal(0.0, 1.0)})
    scaled = vb.Model(vb.Linear(1, 1, prior=vb.ScalePrior(), posterior=vb.Point()), vb.Gaussian(0.1, learn=False))
    with pytest.raises(ConfigurationError, match="drawn anew"):
        ModelTarget(scaled, (X, Y))
    fixed = regression()
    fixed.requires_grad_(False)
    with pytest.raises(ConfigurationError, match="nothing to sample"):
        ModelTarget(fixed, (X, Y))
    with pytest.raises(ConfigurationError, match="data must be"):
        vb.sample_posterior(regression())
    with pytest.raises(ConfigurationError, match="needs a function"):
        Target("density", 2)  # type: ignore[arg-type]


def test_a_density_that_fails_is_minus_infinity_in_its_chain_only() -> None:
    target = Target(lambda theta: theta.log().sum(), 1)
    found = target.evaluate(torch.tensor([[1.0], [-1.0]]))
    assert found.log_density.tolist() == [0.0, -math.inf]
    assert found.gradient.tolist() == [[1.0], [0.0]]


# -- chains ----------------------------------------------------------------------------------------------------------


def one_by_one(chains: Chains, x: Tensor) -> list[vb.Prediction]:
    return [chains.use(c, s).predict(x) for c in range(chains.n_chains) for s in range(chains.n_samples)]


@pytest.mark.parametrize("learn", [True, False])
def test_predictions_are_mixtures_over_draws(learn: bool) -> None:
    model = network(learn=learn)
    target = ModelTarget(model, (X, Y), {"*noise": UNIT} if learn else None)
    draws = target.sample_prior(6, torch.Generator().manual_seed(0)).reshape(2, 3, -1)
    chains = Chains(target, draws, draws[..., 0])
    before = target.current()
    prediction = chains.predict(X[:4])
    assert torch.equal(target.current(), before)
    parts = one_by_one(chains, X[:4])
    torch.testing.assert_close(prediction.mean, torch.stack([p.mean for p in parts]).mean(0))
    torch.testing.assert_close(prediction.aleatoric, torch.stack([p.aleatoric for p in parts]).mean(0))
    means = torch.stack([p.mean for p in parts])
    torch.testing.assert_close(prediction.epistemic, means.var(0, correction=0))
    density = torch.stack([p.log_prob(Y[:4]) for p in parts]).logsumexp(0) - math.log(6)
    torch.testing.assert_close(prediction.log_prob(Y[:4]), density)
    torch.testing.assert_close(chains.functions(X[:4]), means)
    assert chains.predict(X, n_samples=2).n_draws == 2
    if learn:
        values = chains.values["likelihood.noise"]
        assert values.shape == (2, 3)
        torch.testing.assert_close(values[1, 2], model.likelihood.noise.value)


def test_predictions_of_gaussian_processes_condition_on_the_data() -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1), standardize="both")
    target = ModelTarget(gp, (X, Y), {"*": UNIT})
    draws = target.sample_prior(4, torch.Generator().manual_seed(0)).reshape(1, 4, -1)
    chains = Chains(target, draws, draws[..., 0])
    prediction = chains.predict(X)
    torch.testing.assert_close(prediction.mean, torch.stack([p.mean for p in one_by_one(chains, X)]).mean(0))
    lower, upper = prediction.interval(0.9)
    assert bool((lower < upper).all())


def test_summary_says_what_is_wrong() -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    target = ModelTarget(gp, (X, Y), {"*": UNIT})
    draws = torch.randn(2, 40, 3)
    draws[0, :, 1] += 5.0
    diverging = torch.zeros(2, 40, dtype=torch.bool)
    diverging[0, :3] = True
    chains = Chains(target, draws, draws[..., 0], diverging=diverging)
    text = str(chains.summary(X[:5]))
    assert "Not converged (R-hat above 1.05): kernel.lengthscale" in text
    assert "3 transitions diverged" in text
    assert "Function at 5 inputs" in text
    rows = {row.name: row for row in chains.summary().rows}
    assert rows["likelihood.noise"].mean == pytest.approx(float(draws[..., 0].exp().mean()))
    wide = Chains(ModelTarget(network(30, learn=False), (X, Y)), torch.randn(2, 8, 91), torch.randn(2, 8))
    assert "Not shown for their size: network.0.posterior.weight" in str(wide.summary())


def test_classes_and_plain_targets() -> None:
    model = vb.Model(vb.Linear(1, 3, posterior=vb.Point()), vb.Categorical())
    labels = (X[:, 0] > 0).long() + (X[:, 0] > 0.5).long()
    target = ModelTarget(model, (X, labels))
    draws = target.sample_prior(4, torch.Generator().manual_seed(0))[None]
    probs = Chains(target, draws, draws[..., 0]).predict(X).probs
    assert probs.shape == (12, 3)
    torch.testing.assert_close(probs.sum(1), torch.ones(12))
    plain = Chains(Target(lambda theta: theta.sum(), 2), torch.zeros(1, 4, 2), torch.zeros(1, 4))
    with pytest.raises(ConfigurationError, match="no model"):
        plain.predict(X)


def test_only_predictions_of_the_same_rows_mix() -> None:
    a, b = (regression(noise) for noise in (0.1, 0.4))
    for model in (a, b):
        model.initialize(X, Y)
    mixed = vb.Prediction.mixture_of([a.predict(X), b.predict(X)])
    torch.testing.assert_close(mixed.aleatoric, torch.full((12,), 0.25))
    with pytest.raises(ConfigurationError, match="different rows"):
        vb.Prediction.mixture_of([a.predict(X), b.predict(X[:3])])
    with pytest.raises(ConfigurationError, match="at least one"):
        vb.Prediction.mixture_of([])


def test_a_compiled_density_is_the_density(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and differentiated as for compilation, without waiting for the C++ compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr("vibayes.mcmc.target.can_compile", lambda: True)
    features = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 2))
    gp = vb.ExactGP(vb.DeepKernel(features, vb.SquaredExponential(2, ard=True)), vb.Gaussian(0.1))
    priors = {"kernel.network.*": Normal(0.0, 1.0), "*": LogNormal(0.0, 1.0)}
    target = ModelTarget(gp, (X, Y), priors)
    theta = target.sample_prior(3, torch.Generator().manual_seed(0))
    eager = target.evaluate(theta)
    target.compile()
    for ours, theirs in zip(target.evaluate(theta), eager, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"needs a C\+\+ compiler"):
        vb.sample_posterior(regression(), (X, Y), n_samples=4, n_warmup=2, compile=True, progress=False)


def sampled(
    path: Path, gp: vb.ExactGP, data: tuple[Tensor, ...], priors: dict[str, Distribution], **options: Any
) -> Chains:
    quick = {"n_samples": 5, "n_warmup": 20, "n_chains": 2, "progress": False}
    return vb.sample_posterior(gp, data, priors=priors, checkpoint=path, **{**quick, **options})


def test_a_checkpoint_of_another_posterior_is_refused(tmp_path: Path) -> None:
    def gp(kernel: type[vb.Kernel] = vb.SquaredExponential, noise: float = 0.1) -> vb.ExactGP:
        return vb.ExactGP(kernel(1), vb.Gaussian(noise, learn=False))

    unit: dict[str, Distribution] = {"*": UNIT}
    first = sampled(tmp_path / "c", gp(), (X, Y), unit)
    again = sampled(tmp_path / "c", gp(), (X, Y), unit)
    assert torch.equal(first.draws, again.draws)
    narrow: dict[str, Distribution] = {"*": LogNormal(3.0, 0.1)}
    for other in (
        lambda: sampled(tmp_path / "c", gp(vb.Matern12), (X, Y), unit),
        lambda: sampled(tmp_path / "c", gp(noise=10.0), (X, Y), unit),
        lambda: sampled(tmp_path / "c", gp(), (X, Y.flip(0)), unit),
        lambda: sampled(tmp_path / "c", gp(), (X, Y), narrow),
    ):
        with pytest.raises(ConfigurationError, match="belongs to another"):
            other()

    def normal(mean: float) -> Target:
        return Target(lambda theta: -0.5 * (theta - mean).square().sum(), size=2)

    options = {"n_samples": 5, "n_warmup": 20, "n_chains": 2, "progress": False, "start": torch.zeros(2, 2)}
    vb.sample_posterior(normal(0.0), checkpoint=tmp_path / "t", **options)
    with pytest.raises(ConfigurationError, match="another density"):
        vb.sample_posterior(normal(100.0), checkpoint=tmp_path / "t", **options)


def test_weights_count_as_rows() -> None:
    weights = torch.tensor([2.0] * len(X))
    double = ModelTarget(regression(), (X, Y, weights))
    twice = ModelTarget(regression(), (torch.cat([X, X]), torch.cat([Y, Y])))
    theta = torch.randn(double.size)
    torch.testing.assert_close(double.log_likelihood(theta), twice.log_likelihood(theta))
    assert double.n_data == twice.n_data == 2 * len(X)
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1), standardize="both")
    uneven = torch.arange(len(X)).to(X)
    ModelTarget(gp, (X, Y, uneven), {"*": UNIT})
    torch.testing.assert_close(gp.units.y_mean[0], (uneven * Y).sum() / uneven.sum())
    with pytest.raises(vb.DataError, match="weight is zero"):
        ModelTarget(regression(), (X, Y, torch.zeros(len(X))))


def test_priors_that_reach_beyond_the_range_are_cut() -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1, learn=False))
    wide = Normal(torch.tensor(0.5), torch.tensor(1.0))
    target = ModelTarget(gp, (X, Y), {"*": wide})
    drawn = target.sample_prior(2000, torch.Generator().manual_seed(0))
    values = target.parts[0].value(drawn[:, 0])
    assert bool((values > 0).all())
    assert values.mean().item() == pytest.approx(scipy.stats.truncnorm(-0.5, 10, 0.5, 1.0).mean(), abs=0.05)
    with pytest.raises(ConfigurationError, match=r"kernel\.lengthscale, kernel\.variance reach beyond"):
        vb.evidence.ais(gp, (X, Y), priors={"*": wide}, n_particles=2, n_steps=2, progress=False)


def test_priors_of_several_numbers_and_of_names() -> None:
    def gp() -> vb.ExactGP:
        return vb.ExactGP(vb.SquaredExponential(2, ard=True), vb.Gaussian(0.1, learn=False))

    x = torch.cat([X, X], 1)
    together = Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1)
    target = ModelTarget(gp(), (x, Y), {"*": UNIT, "kernel.lengthscale": together})
    assert [part.prior is together or isinstance(part.prior, Independent) for part in target.parts] == [True, False]
    assert target.sample_prior(7, torch.Generator()).shape == (7, 3)
    with pytest.raises(vb.ShapeError, match=r"shape \[3\], of a parameter of shape \[2\]"):
        ModelTarget(gp(), (x, Y), {"*": UNIT, "kernel.lengthscale": LogNormal(torch.zeros(3), torch.ones(3))})
    with pytest.raises(ConfigurationError, match="Longer names"):
        ModelTarget(gp(), (x, Y), {"*": UNIT, "kernel.lengthscale": together, "kernel.variance": UNIT})


def test_chains_can_be_pickled(tmp_path: Path) -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1, learn=False))
    chains = sampled(tmp_path / "c", gp, (X, Y), {"*": UNIT})
    again = pickle.loads(pickle.dumps(chains))
    torch.testing.assert_close(again.predict(X).mean, chains.predict(X).mean)
