"""`Model`: its bound, units, copies and dtypes, and what it refuses."""

import copy
import math
import threading
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from toy_models import bound, data, deep, svgp

# ---- the bound


@pytest.mark.parametrize("form", ["whitened", "pseudo"])
@pytest.mark.parametrize("p", [None, 3])
def test_a_weight_counts_rows(form: str, p: int | None) -> None:
    x, y = data(p=p)
    model = svgp(outputs=p or 1, form=form)
    twice = model.prepare(torch.cat([x, x[:10]]), torch.cat([y, y[:10]]))
    weights = torch.ones(24)
    weights[:10] = 2.0
    assert bound(model, model.prepare(x, y, weights)) == pytest.approx(bound(model, twice), rel=1e-12)
    weights = torch.ones(24)
    weights[5:] = 0.0
    assert bound(model, model.prepare(x, y, weights)) == pytest.approx(
        bound(model, model.prepare(x[:5], y[:5])), rel=1e-12
    )


def test_minibatches_are_unbiased() -> None:
    x, y = data()
    model = svgp()
    full = bound(model, model.prepare(x, y))
    parts = [bound(model, model.prepare(x[rows], y[rows]), scale=4.0) for rows in torch.randperm(24).split(6)]
    assert np.mean(parts) == pytest.approx(full, rel=1e-12)
    assert np.std(parts) > 1e-3
    elbos = [float(model.elbo(x[r], y[r], n_data=24).value.detach()) for r in torch.randperm(24).split(6)]
    assert np.mean(elbos) == pytest.approx(float(model.elbo(x, y).value.detach()), rel=1e-12)


@pytest.mark.parametrize("make", [svgp, lambda: svgp(form="pseudo")])
def test_the_order_of_rows_does_not_matter(make: Callable[[], vb.Model]) -> None:
    x, y = data()
    model, order = make(), torch.randperm(24)
    torch.testing.assert_close(model.elbo(x[order], y[order]).value, model.elbo(x, y).value)
    torch.testing.assert_close(model.predict(x[order]).mean, model.predict(x).mean[order])


def test_tempering_changes_the_objective_and_not_the_value() -> None:
    x, y = data()
    model = svgp()
    plain, tempered = model.elbo(x, y), model.elbo(x, y, kl_weight=0.1)
    assert torch.equal(tempered.value, plain.value)
    torch.testing.assert_close(tempered.objective, plain.log_likelihood - 0.1 * plain.kl)
    assert plain.kl > 0.1


def test_priors_enter_the_objective_only() -> None:
    x, y = data()
    model = svgp(vb.Gaussian(vb.Positive(0.3, prior=torch.distributions.LogNormal(0.0, 1.0))))
    elbo = model.elbo(x, y)
    expected = torch.distributions.LogNormal(0.0, 1.0).log_prob(torch.tensor(0.3))
    torch.testing.assert_close(elbo.log_prior, expected)
    torch.testing.assert_close(elbo.objective - elbo.value, expected)


def test_a_closed_form_bound_does_not_depend_on_samples() -> None:
    x, y = data()
    model = svgp()
    one, many = model.elbo(x, y, n_samples=1), model.elbo(x, y, n_samples=50)
    assert torch.equal(one.value, many.value)
    assert float(one.stderr) == 0.0


def test_a_two_layer_bound_has_an_error_and_agrees_across_seeds() -> None:
    x, y = data()
    model = deep()
    model.initialize(x, y)
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        found.append(model.elbo(x, y, n_samples=2000))
    assert found[0].value != found[1].value
    assert all(0 < e.stderr < e.value.abs() for e in found)
    assert (found[0].value - found[1].value).abs() < 4 * torch.hypot(found[0].stderr, found[1].stderr)
    assert torch.isnan(model.elbo(x, y, n_samples=1).stderr)


def test_draws_of_a_two_layer_network_differ() -> None:
    x, y = data()
    model = deep()
    found = model(*model.prepare(x, y), n_samples=6)
    assert found.log_likelihood.shape == (6,)
    assert len(torch.unique(found.log_likelihood)) == 6
    functions = model.sample_functions(x, 6)
    assert len(torch.unique(functions[:, 0])) == 6


def test_prepared_noise_decides_the_draws() -> None:
    x, y = data()
    model = deep()
    batch = model.prepare(x, y)
    noise = {"0.rows": torch.randn(5, 24, 2)}
    first, second = (model(*batch, n_samples=5, noise=noise) for _ in range(2))
    assert torch.equal(first.log_likelihood, second.log_likelihood)
    order = torch.tensor([3, 1, 0, 2, 4])
    shuffled = model(*batch, n_samples=5, noise={"0.rows": noise["0.rows"][order]})
    torch.testing.assert_close(shuffled.log_likelihood, first.log_likelihood[order])


class Skip(nn.Sequential):
    """A Sequential that does more than run its parts in turn."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows + super().forward(rows)


class Wrapped(nn.Module):
    """The same skip connection, written as a module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.inner(rows)


def test_what_follows_the_last_layer_does_not_lose_its_variance() -> None:
    """The skip is a shift of the mean: the bound is that of a GP with an identity mean."""
    x, _ = data()
    y = 0.5 * x
    gp = vb.GP(2, kernel=vb.SquaredExponential(2), mean=vb.IdentityMean(), posterior=vb.LocalInducing(4))
    exact = vb.Model(gp, vb.Gaussian(0.5))
    target = float(exact.elbo(x, y).value.detach())
    for wrapper in (Skip, Wrapped):
        inner = vb.GP(2, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(4))
        model = vb.Model(wrapper(inner), vb.Gaussian(0.5))
        inner.posterior.load_state_dict(gp.posterior.state_dict())
        elbo = model.elbo(x, y, n_samples=3000)
        assert abs(float(elbo.value.detach()) - target) < 4 * float(elbo.stderr)
        assert model.predict(x, n_samples=200).epistemic.min() > 0.5


# ---- units and forms of data


@pytest.mark.parametrize("p", [None, 2])
def test_predictions_are_in_user_units(p: int | None) -> None:
    x, y = data(p=p)
    plain, scaled = (svgp(outputs=p or 1, standardize="both") for _ in range(2))
    scaled.load_state_dict(plain.state_dict())
    vb.fit(plain, (x, y), steps=30, progress=False)
    vb.fit(scaled, (3 * x - 7, 1000 * y + 5), steps=30, progress=False)
    a, b = plain.predict(x), scaled.predict(3 * x - 7)
    torch.testing.assert_close(b.mean, 1000 * a.mean + 5, rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(b.std, 1000 * a.std, rtol=1e-6, atol=0)
    torch.testing.assert_close(b.epistemic, 1e6 * a.epistemic, rtol=1e-6, atol=0)
    outputs = p or 1
    torch.testing.assert_close(b.log_prob(1000 * y + 5), a.log_prob(y) - outputs * math.log(1000), rtol=1e-6, atol=1e-6)
    first, second = plain.elbo(x, y), scaled.elbo(3 * x - 7, 1000 * y + 5)
    torch.testing.assert_close(first.value, second.value, rtol=1e-6, atol=0)
    change = first.in_user_units - second.in_user_units
    assert float(change.detach()) == pytest.approx(24 * outputs * math.log(1000), rel=1e-6)
    torch.manual_seed(0)
    f = plain.sample_functions(x, 4)
    torch.manual_seed(0)
    g = scaled.sample_functions(3 * x - 7, 4)
    torch.testing.assert_close(g, 1000 * f + 5, rtol=1e-4, atol=0.1)


def test_user_units_are_those_of_an_unstandardized_model() -> None:
    """The same model written in both scales has the same bound on the user's targets."""
    x, y = data()
    y = 50 * y + 7
    scaled = svgp(standardize="targets")
    scaled.initialize(x, y)
    s2 = float(scaled.units.y_scale) ** 2
    kernel = vb.SquaredExponential(2, variance=s2)
    gp = vb.GP(1, kernel=kernel, mean=vb.ConstantMean(float(scaled.units.y_mean)), posterior=vb.LocalInducing(5))
    plain = vb.Model(gp, vb.Gaussian(0.1 * s2))
    gp.posterior.load_state_dict(scaled.network.posterior.state_dict())
    torch.testing.assert_close(plain.elbo(x, y).value, scaled.elbo(x, y).in_user_units)
    torch.testing.assert_close(plain.elbo(x, y).in_user_units, plain.elbo(x, y).value)


FORMS: dict[str, Callable[[Tensor], object]] = {
    "numpy": lambda t: t.numpy(),
    "list": lambda t: t.tolist(),
    "pandas": lambda t: pd.DataFrame(t.numpy()) if t.ndim == 2 else pd.Series(t.numpy()),
    "float32": lambda t: t.float(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("p", [None, 2])
def test_data_of_any_kind(form: str, p: int | None) -> None:
    x, y = data(p=p)
    convert = FORMS[form]
    model = svgp(outputs=p or 1)
    tolerance = 1e-5 if form == "float32" else 1e-12
    torch.testing.assert_close(model.elbo(convert(x), convert(y)).value, model.elbo(x, y).value, rtol=tolerance, atol=0)
    vb.fit(model, (convert(x), convert(y), convert(torch.ones(24))), steps=2, progress=False)
    prediction = model.predict(convert(x))
    assert prediction.mean.shape == (24,) if p is None else (24, 2)
    assert prediction.mean.dtype == torch.float64
    assert model.sample_functions(convert(x), 2).shape == ((2, 24) if p is None else (2, 24, 2))


def test_integers_and_booleans_are_cast() -> None:
    x = torch.randint(0, 4, (20, 2))
    y = x.sum(1)
    model = svgp()
    torch.testing.assert_close(model.elbo(x, y).value, model.elbo(x.double(), y.double()).value)
    assert torch.isfinite(model.elbo(x > 1, y > 2).value)
    vb.fit(model, (x > 1, y), steps=2, progress=False)
    assert torch.isfinite(model.predict(x > 1).mean).all()


def test_large_integers_keep_their_digits() -> None:
    torch.set_default_dtype(torch.float32)
    model = svgp().double()
    assert model.prepare(torch.zeros(1, 2), torch.tensor([123_456_789])).y.item() == 123_456_789


def test_targets_come_back_in_their_form() -> None:
    x, y = data()
    flat, column = svgp(), svgp()
    flat.initialize(x, y)
    column.initialize(x, y[:, None])
    assert flat.predict(x).mean.shape == (24,)
    assert column.predict(x).mean.shape == (24, 1)
    assert flat.sample_functions(x, 2).shape == (2, 24)
    assert column.sample_functions(x, 2).shape == (2, 24, 1)
    assert svgp(outputs=3).predict(x).mean.shape == (24, 3)  # before any data were seen


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("standardize", [None, "both"])
def test_fewer_rows_than_inducing_points(n: int, standardize: str | None) -> None:
    x, y = data(n)
    model = svgp(m=8, standardize=standardize)
    history = vb.fit(model, (x, y), steps=5, progress=False)
    assert math.isfinite(history.elbo[-1])
    assert torch.isfinite(model.predict(x).mean).all()


def test_a_constant_column_changes_nothing() -> None:
    x, y = data()
    wide = torch.cat([x, torch.full((24, 1), 288.15)], 1)
    models = []
    for rows in (x, wide):
        torch.manual_seed(0)
        kernel = vb.SquaredExponential(rows.shape[1])
        model = vb.Model(vb.GP(1, kernel=kernel, posterior=vb.LocalInducing(5)), vb.Gaussian(0.1), standardize="both")
        vb.fit(model, (rows, y), steps=20, progress=False)
        models.append(model)
    torch.testing.assert_close(models[0].predict(x).mean, models[1].predict(wide).mean, rtol=1e-6, atol=1e-8)


# ---- copies, files, threads


@pytest.mark.parametrize("make", [lambda: svgp(standardize="both"), deep])
def test_copies_predict_alike(make: Callable[[], vb.Model]) -> None:
    x, y = data()
    model = make()
    vb.fit(model, (x, y[:, None]), steps=5, progress=False)
    fresh = make()
    fresh.load_state_dict(model.state_dict())
    twin = copy.deepcopy(model)
    found = []
    for each in (model, fresh, twin):
        torch.manual_seed(0)
        found.append(each.predict(x, n_samples=5))
    for other in found[1:]:
        assert torch.equal(other.mean, found[0].mean)
        assert torch.equal(other.variance, found[0].variance)
    assert found[1].mean.shape == (24, 1)
    model.likelihood.noise.set(9.0)  # the twin shares no memory
    assert twin.likelihood.noise.value.item() != pytest.approx(9.0)
    torch.manual_seed(0)
    assert torch.equal(twin.predict(x, n_samples=5).variance, found[0].variance)
    assert bool(fresh.ready)


def test_a_loaded_model_still_checks_widths() -> None:
    x, y = data()
    model = svgp(standardize="both")
    model.initialize(x, y)
    fresh = svgp(standardize="both")
    fresh.load_state_dict(model.state_dict())
    with pytest.raises(vb.DataError, match=r"rows of shape \[2\]"):
        fresh.predict(x[:, :1])


def test_threads_predict_at_once() -> None:
    x, _ = data(50)
    models = [deep(), deep()]
    expected = [model.predict(x, n_samples=2000).mean for model in models]
    found: dict[int, list[Tensor]] = {0: [], 1: []}
    errors: list[BaseException] = []
    barrier = threading.Barrier(2)

    def work(index: int) -> None:
        try:
            barrier.wait(30)
            for _ in range(5):
                found[index].append(models[index].predict(x, n_samples=500, batch_size=25).mean)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    for i in range(2):
        spread = models[i].predict(x, n_samples=2000).epistemic.sqrt()
        for mean in found[i]:
            assert ((mean - expected[i]).abs() < 6 * spread * (1 / 500 + 1 / 2000) ** 0.5).all()


# ---- dtypes


@pytest.mark.parametrize("make", [svgp, deep])
def test_float32_trains(make: Callable[[], vb.Model]) -> None:
    torch.set_default_dtype(torch.float32)
    x, y = data()
    model = make()
    assert model.dtype == torch.float32
    history = vb.fit(model, (x.double(), y.double()), steps=40, lr=0.05, log_every=5, progress=False)
    assert history.elbo[-1] > history.elbo[0]
    assert not history.events
    assert model.predict(x).mean.dtype == torch.float32


def test_jitter_survives_the_dtype() -> None:
    model = svgp()
    assert model.float().jitter.item() == pytest.approx(1e-6)
    model.jitter.fill_(1e-3)
    assert model.double().jitter.item() == pytest.approx(1e-3)
    with pytest.raises(vb.ConfigurationError, match="float32 or float64"):
        svgp().half()
    unhurt = svgp()
    before = {name: value.clone() for name, value in unhurt.state_dict().items()}
    with pytest.raises(vb.ConfigurationError):
        unhurt.bfloat16()
    torch.testing.assert_close(dict(unhurt.state_dict()), before, rtol=0.0, atol=0.0)


def test_autocast_is_refused() -> None:
    x, y = data()
    for model in (svgp(), vb.ExactGP(vb.SquaredExponential(2), vb.Gaussian(0.1))):
        vb.fit(model, (x, y), steps=2, progress=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for call in (
                lambda model=model: vb.fit(model, (x, y), steps=2, progress=False),
                lambda model=model: model.elbo(x, y),
                lambda model=model: model.predict(x),
            ):
                with pytest.raises(vb.ConfigurationError, match=r"autocast.*bfloat16"):
                    call()
            with torch.autocast("cpu", enabled=False):
                model.predict(x)


def test_converted_models_agree() -> None:
    x, y = data()
    model = svgp(standardize="both")
    model.initialize(x, y)
    before = model.predict(x).mean
    torch.testing.assert_close(model.float().predict(x).mean.double(), before, rtol=1e-2, atol=1e-3)


def test_mixed_dtypes_are_refused() -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(2).float(), posterior=vb.LocalInducing(3))
    with pytest.raises(vb.ConfigurationError, match=r"one dtype.*float.*set_default_dtype"):
        vb.Model(gp, vb.Gaussian())


# ---- what cannot be put together


def test_parts_of_the_wrong_kind() -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3))
    with pytest.raises(vb.ConfigurationError, match="likelihood must be a likelihood"):
        vb.Model(gp, nn.MSELoss())
    with pytest.raises(vb.ConfigurationError, match="network must be a torch module, got str"):
        vb.Model("gp", vb.Gaussian())
    with pytest.raises(vb.ConfigurationError, match="standardize must be one of"):
        vb.Model(gp, vb.Gaussian(), standardize="x")
    with pytest.raises(vb.ConfigurationError, match=r"Bernoulli have no units.*standardize=\"inputs\""):
        vb.Model(gp, vb.Bernoulli(), standardize="both")
    with pytest.raises(vb.ConfigurationError, match="no Bayesian layer"):
        vb.Model(nn.Sequential(nn.Linear(2, 1)), vb.Gaussian())
    with pytest.raises(vb.ConfigurationError, match=r"inducing inputs of its own.*LocalInducing\(len\(z\), inputs=z\)"):
        vb.Model(gp, vb.Gaussian(), inducing=torch.randn(3, 2))
    vb.Model(gp, vb.Gaussian())  # none of the failures above has used it up


def test_a_network_belongs_to_one_model() -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3))
    model = vb.Model(gp, vb.Gaussian())
    with pytest.raises(vb.ConfigurationError, match=r"already belongs to a Model.*deepcopy"):
        vb.Model(gp, vb.Gaussian())
    with pytest.raises(vb.ConfigurationError, match="already belongs to a Model"):
        vb.Model(nn.Sequential(model), vb.Gaussian())


def test_a_layer_used_twice_is_named() -> None:
    gp = vb.GP(2, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3))
    model = vb.Model(nn.Sequential(gp, gp), vb.Gaussian())
    x, y = data(p=2)
    for call in (lambda: model.elbo(x, y), lambda: vb.fit(model, (x, y), steps=1, progress=False)):
        with pytest.raises(vb.ConfigurationError, match=r"'0' was .*twice"):
            call()


class Nested(nn.Module):
    """A network that calls another model's prediction in the middle of its own pass."""

    def __init__(self, gp: vb.GP, other: vb.Model) -> None:
        super().__init__()
        self.gp, self.other = gp, [other]

    def forward(self, rows: Tensor) -> Tensor:
        return self.gp(rows) + self.other[0].predict(rows).mean[:, None]


def test_a_model_inside_anothers_pass() -> None:
    x, y = data()
    other = svgp()
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3))
    model = vb.Model(Nested(gp, other), vb.Gaussian())
    with pytest.raises(vb.ConfigurationError, match="Nest networks, not Models"):
        model.elbo(x, y)
    assert torch.isfinite(other.elbo(x, y).value)  # the failed pass is over


@pytest.mark.parametrize(
    ("likelihood", "outputs", "p"),
    [
        (vb.Gaussian, 2, None),
        (vb.Gaussian, 1, 2),
        (vb.HeteroscedasticGaussian, 1, None),
        (vb.HeteroscedasticGaussian, 2, 2),
        (vb.StudentT, 3, 2),
    ],
)
@pytest.mark.parametrize("ending", [False, True])
def test_a_network_of_the_wrong_width(
    likelihood: type[vb.Likelihood], outputs: int, p: int | None, ending: bool
) -> None:
    x, y = data(p=p)
    gp = vb.GP(outputs, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3))
    model = vb.Model(nn.Sequential(gp, nn.LeakyReLU()) if ending else gp, likelihood())
    for call in (lambda: vb.fit(model, (x, y), steps=1, progress=False), lambda: model.elbo(x, y)):
        with pytest.raises((vb.ShapeError, vb.ConfigurationError), match="last layer"):
            call()


def test_more_classes_than_outputs() -> None:
    x, _ = data()
    y = torch.arange(24) % 3
    model = svgp(vb.Categorical(), 2)
    with pytest.raises(vb.DataError, match=r"beyond the 2 classes.*widen the network"):
        vb.fit(model, (x, y), steps=1, progress=False)
    model = svgp(vb.Categorical(), 3)
    vb.fit(model, (x, y), steps=1, progress=False)
    with pytest.raises(vb.DataError, match="beyond the 3 classes"):
        model.elbo(x, y + 1)


def test_images_need_flattening() -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(4), posterior=vb.LocalInducing(3))
    images, y = torch.rand(6, 1, 2, 2), torch.rand(6)
    with pytest.raises(vb.ShapeError, match="must return rows"):
        vb.Model(nn.Sequential(nn.Flatten(), gp, nn.Unflatten(1, (1, 1))), vb.Gaussian()).elbo(images, y)
    gp = vb.GP(1, kernel=vb.SquaredExponential(4), posterior=vb.LocalInducing(3))
    model = vb.Model(nn.Sequential(nn.Flatten(), gp), vb.Gaussian(), standardize="both")
    vb.fit(model, (images, y), steps=2, progress=False)
    assert model.predict(images).mean.shape == (6,)
    with pytest.raises(vb.DataError, match=r"rows of shape \[1, 2, 2\]"):
        model.predict(images[:, 0])


def test_a_model_that_could_not_be_built_keeps_no_layers() -> None:
    network = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(3))
    with pytest.raises(vb.ConfigurationError, match="dtype"):
        vb.Model(network.float(), vb.Gaussian(0.1).double())
    assert network.name is None
    vb.Model(network.double(), vb.Gaussian(0.1))
