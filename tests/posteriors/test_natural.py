"""Posteriors moved by natural gradients: their steps, their optima, and how training keeps them."""

import copy

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.errors import ConfigurationError

F64 = torch.float64
N, M = 30, 8


def data(targets: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    x = torch.randn(N, 2, dtype=F64)
    y = torch.stack([torch.sin(2 * x[:, 0] + k) + x[:, 1] for k in range(targets)], 1)
    return x, y + 0.1 * torch.randn_like(y)


def kernel() -> vb.SquaredExponential:
    return vb.SquaredExponential(2, lengthscale=0.8, variance=1.5)


def one_layer(
    kind: str, x: Tensor, likelihood: vb.likelihoods.Likelihood, outputs: int = 1, mean: float = 0.0
) -> vb.Model:
    posterior: vb.posteriors.Posterior
    if kind == "global":
        posterior = vb.GlobalInducing("natural")
    else:
        posterior = vb.LocalInducing(M, form="pseudo", precision="natural", inputs=x[:M])
    layer = vb.GP(outputs, kernel=kernel(), mean=vb.ConstantMean(mean), posterior=posterior)
    return vb.Model(layer, likelihood, inducing=x[:M] if kind == "global" else None).double()


def fix(model: vb.Model) -> None:
    """Fix all that Adam would move, so that natural gradients alone do the work."""
    model.requires_grad_(False)
    model.layers["network"].posterior.sites.requires_grad_(True)


def steps(model: vb.Model, rows: tuple[Tensor, ...], count: int, rate: float, **options: object) -> vb.History:
    return vb.fit(model, rows, steps=count, natural_rate=rate, progress=False, log_every=1, **options)


@pytest.mark.parametrize("kind", ["global", "local"])
@pytest.mark.parametrize(("targets", "mean"), [(1, 0.0), (2, 0.0), (2, 3.0)])
def test_one_whole_step_reaches_the_optimum_of_a_gaussian_likelihood(kind: str, targets: int, mean: float) -> None:
    x, y = data(targets)
    noise = torch.tensor([0.05, 0.2][:targets])
    model = one_layer(kind, x, vb.Gaussian(noise, out_features=targets), targets, mean)
    sparse = vb.SGPR(
        kernel(), vb.Gaussian(noise, out_features=targets), inducing=x[:M], mean=vb.ConstantMean(mean)
    ).double()
    fix(model)
    steps(model, (x, y), 1, 1.0)
    assert model.elbo(x, y).value.item() == pytest.approx(sparse.elbo(x, y).value.item(), rel=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_of_rows_count(weighted: bool) -> None:
    x, y = data()
    weights = torch.linspace(0.0, 2.0, N, dtype=F64) if weighted else None
    model = one_layer("global", x, vb.Gaussian(0.1))
    sparse = vb.SGPR(kernel(), vb.Gaussian(0.1), inducing=x[:M]).double()
    rows = (x, y) if weights is None else (x, y, weights)
    fix(model)
    steps(model, rows, 1, 1.0)
    sparse.initialize(x, y)
    batch = sparse.prepare(x, y, weights)
    ours, theirs = model(batch.x, batch.y, batch.weights), sparse(batch.x, batch.y, batch.weights)
    assert ours.objective().item() == pytest.approx(theirs.objective().item(), rel=1e-9)


def test_a_step_is_a_natural_gradient_step() -> None:
    """A step of rate r moves natural parameters by r times the gradient with respect to expectation parameters."""
    x, y = data()
    model = one_layer("global", x, vb.Gaussian(0.1))
    fix(model)
    steps(model, (x, y), 1, 0.3)  # somewhere
    sites = model.layers["network"].posterior.sites
    before = sites.precision.clone(), sites.shift.clone()
    K = kernel().double()(x[:M]) + float(model.jitter) * 1.5 * torch.eye(M, dtype=F64)
    prior = torch.linalg.inv(K).detach()
    S = torch.linalg.inv(prior + before[0][0])
    m = S @ before[1]

    def bound(first: Tensor, second: Tensor) -> Tensor:
        """The bound by E[u] and E[u u^T]."""
        mean, covariance = first, second - first @ first.T
        A = torch.linalg.solve(K, kernel().double()(x[:M], x)).detach()
        f, v = A.T @ mean, 1.5 - (A * (K @ A)).sum(0) + (A * (covariance @ A)).sum(0)
        fit = -0.5 * (((y - f).square()[:, 0] + v) / 0.1).sum()
        kl = 0.5 * ((prior @ covariance).trace() + (mean.T @ prior @ mean)[0, 0] - torch.logdet(covariance))
        return fit - kl

    first, second = torch.autograd.functional.jacobian(bound, (m, S + m @ m.T))
    steps(model, (x, y), 1, 0.3)
    # natural parameters of u: shift, and minus half of its precision
    assert torch.allclose(sites.shift - before[1], 0.3 * first, rtol=1e-6, atol=1e-8)
    assert torch.allclose(-0.5 * (sites.precision - before[0])[0], 0.3 * second, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("likelihood", [vb.Bernoulli, vb.Poisson])
def test_other_likelihoods_are_stationary_where_steps_end(likelihood: type[vb.likelihoods.Likelihood]) -> None:
    x, y = data()
    targets = (y > 0).to(F64) if likelihood is vb.Bernoulli else y.exp().round()
    model = one_layer("local", x, likelihood())
    fix(model)
    steps(model, (x, targets), 300, 0.5)
    sites = model.layers["network"].posterior.sites
    precision = sites.precision.clone().requires_grad_(True)
    shift = sites.shift.clone().requires_grad_(True)
    batch = model.prepare(x, targets)
    buffers = {"network.posterior.natural.precision": precision, "network.posterior.natural.shift": shift}
    found = torch.func.functional_call(model, buffers, (batch.x, batch.y))
    slopes = torch.autograd.grad(found.objective(), (precision, shift))
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-7


def test_outliers_of_a_heavy_tail_do_not_make_it_wider_than_the_prior() -> None:
    x, y = data()
    y[0] = 50.0  # far out a Student t is not log-concave
    model = one_layer("local", x, vb.StudentT())
    fix(model)
    history = steps(model, (x, y), 50, 0.5)
    assert not history.events
    assert float(torch.linalg.eigvalsh(model.layers["network"].posterior.sites.precision).min()) > -1e-9
    assert history.per_datapoint[-1] > history.per_datapoint[0]
    far = model(x[:1], y[:1]).targets["network.posterior.natural.precision"]  # of a row that others do not outweigh
    assert torch.equal(far, torch.zeros_like(far))


def test_minibatches_average_to_the_whole() -> None:
    x, y = data()
    model = one_layer("global", x, vb.Gaussian(0.1))
    model.initialize(x, y)
    whole = model(x, y).targets
    parts = [model(x[i::3], y[i::3], scale=3.0).targets for i in range(3)]
    for name, target in whole.items():
        assert torch.allclose(sum(part[name] for part in parts) / 3, target, rtol=1e-10)


def deep(seed: int, last: str = "natural") -> vb.Model:
    torch.manual_seed(seed)
    x, _ = data()
    hidden = vb.GP(2, kernel=kernel(), mean=vb.IdentityMean(), noise=1e-3, posterior=vb.GlobalInducing("full"))
    return vb.Model(
        nn.Sequential(hidden, vb.GP(1, kernel=kernel(), posterior=vb.GlobalInducing(last))),
        vb.Gaussian(0.1),
        inducing=x[:M],
    ).double()


def test_targets_are_of_data_rows_alone() -> None:
    """Inducing rows that go through a last layer with inducing inputs of its own are no data."""
    x, y = data()
    hidden = vb.GP(2, kernel=kernel(), mean=vb.IdentityMean(), posterior=vb.GlobalInducing())

    def last() -> vb.GP:
        posterior = vb.LocalInducing(M, form="pseudo", precision="natural", inputs=x[:M])
        return vb.GP(1, kernel=kernel(), mean=vb.LinearMean(2, 1), posterior=posterior)

    model = vb.Model(nn.Sequential(hidden, last()), vb.Gaussian(0.1), inducing=x[:5])
    rows: list[Tensor] = []
    model.network[1].register_forward_pre_hook(lambda _, arguments: rows.extend(arguments))
    found = model(x, y).targets
    alone = vb.Model(last(), vb.Gaussian(0.1))
    alone.load_state_dict({k.replace("network.1", "network"): v for k, v in model.state_dict().items()}, strict=False)
    expected = alone(rows[0][5:], y).targets
    for name, target in found.items():
        assert torch.allclose(target, expected[name.replace("network.1", "network")], rtol=1e-10), name
    assert len(found) == len(expected) == 2


def test_many_at_once_are_as_many_alone() -> None:
    x, y = data()
    g = torch.Generator().manual_seed(5)
    noise = [
        {
            "0.inducing": torch.randn(2, 3, 2 * M, 2, generator=g, dtype=F64),
            "0.rows": torch.randn(2, 3, N, 2, generator=g, dtype=F64),
        }
        for _ in range(5)
    ]
    joint = [deep(0), deep(1)]
    vb.fit_many(joint, [(x, y)] * 2, steps=5, n_samples=3, progress=False, chunk=2, noise=lambda step: noise[step])
    for r, model in enumerate([deep(0), deep(1)]):
        vb.fit(
            model,
            (x, y),
            steps=5,
            n_samples=3,
            progress=False,
            noise=lambda step, r=r: {name: value[r] for name, value in noise[step].items()},
        )
        for (name, a), b in zip(model.state_dict().items(), joint[r].state_dict().values(), strict=True):
            assert torch.allclose(a, b, rtol=1e-8, atol=1e-10), name


def test_checkpoints_and_files_hold_it(tmp_path) -> None:
    x, y = data()
    whole, parts = deep(0), deep(0)
    vb.fit(whole, (x, y), steps=20, n_samples=2, log_every=5, progress=False)
    keep = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0, "n_samples": 2, "log_every": 5}
    vb.fit(parts, (x, y), steps=10, progress=False, **keep)
    again = deep(0)
    vb.fit(again, (x, y), steps=20, progress=False, **keep)
    for (name, a), b in zip(whole.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    again.save(tmp_path / "model")
    loaded = vb.load(tmp_path / "model")
    assert torch.equal(loaded.layers["1"].posterior.sites.precision, again.layers["1"].posterior.sites.precision)
    assert "natural" in repr(loaded.layers["1"].posterior)
    before = loaded.layers["1"].posterior.sites.shift.clone()
    vb.fit(loaded, (x, y), steps=2, n_samples=2, progress=False)
    assert not torch.equal(loaded.layers["1"].posterior.sites.shift, before)


def test_a_step_gone_wrong_is_undone() -> None:
    """NaN noise in one step of one replica: its sites go back, and the other's are not touched."""
    x, y = data()
    g = torch.Generator().manual_seed(5)

    def noise(step: int, spoiled: set[int] = {7}) -> dict[str, Tensor]:  # noqa: B006 - the set is the memory
        found = {"0.inducing": torch.randn(2, 1, 2 * M, 2, generator=g, dtype=F64),
                 "0.rows": torch.randn(2, 1, N, 2, generator=g, dtype=F64)}  # fmt: skip
        if step in spoiled:
            spoiled.remove(step)
            found["0.rows"][0] = torch.nan
        return found

    models = [deep(0), deep(1)]
    histories = vb.fit_many(
        models, [(x, y)] * 2, steps=20, n_samples=1, log_every=5, progress=False, chunk=2, noise=noise
    )
    assert len(histories[0].events) == 1
    assert not histories[1].events
    for model in models:
        assert all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())


@pytest.mark.parametrize("joint", [False, True])
def test_it_stays_where_it_is_while_it_asks_for_no_gradient(joint: bool, tmp_path) -> None:
    x, y = data()

    def train(model: vb.Model, steps: int) -> list[str]:
        """What has changed."""
        before = {name: value.clone() for name, value in model.state_dict().items()}
        options = {"steps": steps, "n_samples": 2, "progress": False}
        if joint:
            vb.fit_many([model, copy.deepcopy(model)], [(x, y)] * 2, chunk=2, **options)
        else:
            vb.fit(model, (x, y), **options)
        return [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]

    model = deep(0)
    model.initialize(x, y)
    trained = model.describe()
    model.layers["1"].posterior.requires_grad_(False)
    assert trained != model.describe()
    assert "1: GP 2 -> 1, posterior GlobalInducing(precision='natural'), 2 parameters to train" in model.describe()
    changed = train(model, 2)
    assert "network.1.kernel.variance.raw" in changed
    assert not any("network.1.posterior" in name for name in changed)
    model.save(tmp_path / "model")
    assert not any("network.1.posterior" in name for name in train(vb.load(tmp_path / "model"), 2))
    model.layers["1"].posterior.requires_grad_(True)
    assert {f"network.1.posterior.natural.{name}" for name in ("precision", "shift")} <= set(train(model, 2))
    model.requires_grad_(False)
    with pytest.raises(ConfigurationError, match="nothing to train"):
        vb.fit(model, (x, y), steps=2, progress=False)


def test_states_and_files_from_before_it_could_be_fixed() -> None:
    x, y = data()
    model, other = deep(0), deep(1)
    older = {name: value for name, value in model.state_dict().items() if not name.endswith("mark")}
    assert len(older) == len(model.state_dict()) - 1
    other.load_state_dict(older)
    assert torch.equal(other.layers["1"].posterior.sites.shift, model.layers["1"].posterior.sites.shift)
    sites = other.layers["1"].posterior.sites
    del sites.mark
    other.load_state_dict(older)
    before = sites.shift.clone()
    vb.fit(other, (x, y), steps=2, n_samples=2, progress=False)
    assert not torch.equal(sites.shift, before)


def test_functions_are_drawn_from_it() -> None:
    x, y = data()
    model = one_layer("global", x, vb.Gaussian(0.05))
    fix(model)
    steps(model, (x, y), 1, 1.0)
    torch.manual_seed(0)
    draws = model.sample_functions(x[:4], 20_000)
    prediction = model.predict(x[:4])
    assert torch.allclose(draws.mean(0), prediction.mean.reshape(draws.mean(0).shape), atol=0.01)
    spread = prediction.variance.reshape(-1) - 0.05
    assert torch.allclose(draws.var(0).reshape(-1), spread, rtol=0.05, atol=1e-4)
    # and its importance weights average to the bound without closed forms, which is the same on average
    weights = model.log_weights(x, y, n_samples=4000)
    elbo = model.elbo(x, y).value.item()
    assert weights.mean().item() == pytest.approx(elbo, abs=5 * weights.std().item() / 4000**0.5)


def test_single_precision_stays_near_double() -> None:
    x, y = data()
    ends = []
    for dtype in (torch.float32, F64):
        model = one_layer("global", x, vb.Gaussian(0.05)).to(dtype)
        fix(model)
        steps(model, (x, y), 3, 0.7)
        ends.append(model.elbo(x, y).value.item())
        assert model.layers["network"].posterior.sites.precision.dtype == F64
    assert ends[0] == pytest.approx(ends[1], abs=1e-2)


def test_hidden_layers_refuse_it() -> None:
    x, _ = data()
    layers = [vb.GP(2, kernel=kernel(), posterior=vb.GlobalInducing("natural")), vb.GP(1, kernel=kernel())]
    with pytest.raises(ConfigurationError, match=r"last layer.*precision=\"full\""):
        vb.Model(nn.Sequential(*layers), vb.Gaussian(), inducing=x[:M])


def test_layers_of_weights_refuse_it() -> None:
    x, _ = data()
    with pytest.raises(ConfigurationError, match="GP"):
        vb.Model(vb.Linear(2, 1, posterior=vb.GlobalInducing("natural")), vb.Gaussian(), inducing=x[:M])


def test_lbfgs_refuses_it() -> None:
    x, y = data()
    with pytest.raises(ConfigurationError, match="adam"):
        vb.fit(one_layer("local", x, vb.Gaussian()), (x, y), optimizer="lbfgs", progress=False)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_rates_outside_zero_and_one_are_refused(rate: float) -> None:
    x, y = data()
    with pytest.raises(ConfigurationError, match="natural_rate"):
        vb.fit(one_layer("local", x, vb.Gaussian()), (x, y), steps=1, natural_rate=rate, progress=False)


@pytest.mark.parametrize("precision", ["diagonal", "natural"])
def test_a_last_layer_with_log_variances_starts_at_targets_and_the_prior(precision: str) -> None:
    x, y = data(2)
    mean = vb.ConstantMean(torch.tensor([0.5, 0.0, -1.0, -2.0]), out_features=4)
    layer = vb.GP(4, kernel=kernel(), mean=mean, posterior=vb.GlobalInducing(precision, log_precision=0.7))
    model = vb.Model(layer, vb.HeteroscedasticGaussian(), inducing=x[-M:] + 1e-3).double()
    model.initialize(x, y)
    sites = layer.posterior.sites
    found = layer.posterior.pseudo_outputs if sites is None else torch.linalg.solve(sites.precision[0], sites.shift)
    expected = torch.cat([y[-M:] - torch.tensor([0.5, 0.0]), torch.zeros(M, 2)], 1)
    torch.testing.assert_close(found.detach(), expected)


@pytest.mark.parametrize("log_precision", [0.7, torch.linspace(-1.0, 1.0, M, dtype=F64)])
def test_it_starts_where_it_is_told_to(log_precision: float | Tensor) -> None:
    """At the pseudo-outputs and the precision given, as the other forms do."""
    x, y = data(2)
    start = torch.randn(M, 2, dtype=F64)
    bounds = []
    for precision in ("natural", "full_per_output"):
        posterior = vb.LocalInducing(
            M, form="pseudo", precision=precision, inputs=x[:M], pseudo_outputs=start, log_precision=log_precision
        )
        model = vb.Model(vb.GP(2, kernel=kernel(), posterior=posterior), vb.Gaussian(0.1)).double()
        bounds.append(float(model.elbo(x, y).value.detach()))
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-10)


@pytest.mark.parametrize("kind", ["global", "local"])
@pytest.mark.parametrize("weight", [0.2, 3.0])
def test_a_weight_of_the_kl_tempers_it(kind: str, weight: float) -> None:
    """The best Gaussian for `E[log N(y; f, noise)] - weight KL` is the best one for a noise of `weight noise`."""
    x, y = data()
    tempered, plain, other = (one_layer(kind, x, vb.Gaussian(noise)) for noise in (0.1, 0.1, weight * 0.1))
    rising = vb.schedules.linear(0.0, weight, 2)  # natural gradients head for where it ends
    for model, kl_weight in ((tempered, weight), (plain, 1.0), (other, 1.0)):
        fix(model)
        steps(model, (x, y), 1, 1.0, kl_weight=kl_weight)
    expected = other.layers["network"].posterior.sites
    torch.testing.assert_close(tempered.layers["network"].posterior.sites.precision, expected.precision)
    torch.testing.assert_close(tempered.layers["network"].posterior.sites.shift, expected.shift)
    objectives = [float(m.elbo(x, y, kl_weight=weight).objective.detach()) for m in (tempered, plain)]
    assert objectives[0] > objectives[1]
    steps(plain, (x, y), 3, 1.0, kl_weight=rising)
    torch.testing.assert_close(plain.layers["network"].posterior.sites.precision, expected.precision)


def test_targets_are_averaged_over_draws() -> None:
    x, y = data()
    hidden = vb.GP(2, kernel=kernel(), posterior=vb.GlobalInducing())
    last = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.GlobalInducing("natural"))
    model = vb.Model(nn.Sequential(hidden, last), vb.Gaussian(0.1), inducing=x[:M]).double()
    noise = {"0.inducing": torch.randn(3, 2 * M, 2, dtype=F64), "0.rows": torch.randn(3, N, 2, dtype=F64)}
    together = model(x, y, n_samples=3, noise=noise).targets
    apart = [model(x, y, noise={k: v[s : s + 1] for k, v in noise.items()}).targets for s in range(3)]
    assert set(together) == {"network.1.posterior.natural.precision", "network.1.posterior.natural.shift"}
    for name, target in together.items():
        torch.testing.assert_close(target, sum(one[name] for one in apart) / 3)


def test_its_rate_falls_as_the_root_of_the_learning_rate() -> None:
    x, y = data()
    falling = one_layer("local", x, vb.Gaussian(0.1))
    constant = copy.deepcopy(falling)
    for model, rate, schedule in ((falling, 1.0, 0.25), (constant, 0.5, 1.0)):
        fix(model)
        steps(model, (x, y), 2, rate, lr_schedule=schedule)
    found, expected = (m.layers["network"].posterior.sites for m in (falling, constant))
    torch.testing.assert_close(found.precision, expected.precision)
    torch.testing.assert_close(found.shift, expected.shift)


def test_a_loaders_short_last_batch_moves_it_less() -> None:
    """By the share of its rows: its target is as large as those of the others."""
    x, y = data()
    rate, noise = 0.4, 0.1
    model = one_layer("local", x, vb.Gaussian(noise))
    fix(model)
    expected = model.layers["network"].posterior.sites.precision[0].clone()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20)
    vb.fit(model, loader, steps=2, natural_rate=rate, progress=False)
    with torch.no_grad():
        K = vb.linalg.add_jitter(kernel().double()(x[:M]), model.jitter)
        A = torch.linalg.solve(K, kernel().double()(x[:M], x))  # [M, N]
    for rows, share in ((slice(0, 20), 1.0), (slice(20, 30), 0.5)):
        target = N / (20 * share) * A[:, rows] @ A[:, rows].mT / noise
        expected = expected + share * rate * (target - expected)
    torch.testing.assert_close(model.layers["network"].posterior.sites.precision[0], expected)
