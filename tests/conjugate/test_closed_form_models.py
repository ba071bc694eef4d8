"""The same properties for every closed-form model."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes.conjugate import SGPR, ExactGP, GaussianBumps, LinearRegression, PolynomialFeatures
from vibayes.conjugate.base import ConjugateModel

Z = torch.linspace(-2, 2, 5, dtype=torch.float64)[:, None]


def bumps() -> GaussianBumps:
    return GaussianBumps(Z, lengthscale=0.8)


MODELS: dict[str, Callable[..., ConjugateModel]] = {
    "exact GP": lambda likelihood, **k: ExactGP(vb.Matern52(1), likelihood, mean=vb.ConstantMean(0.3), **k),
    "SGPR": lambda likelihood, **k: SGPR(vb.Matern52(1), likelihood, Z, mean=vb.ConstantMean(0.3), **k),
    **{
        f"{posterior} regression": lambda likelihood, posterior=posterior, **k: LinearRegression(
            bumps(), posterior=posterior, noise=likelihood, out_features=2, **k
        )
        for posterior in ("exact", "full", "mean_field", "point")
    },
}
BAYESIAN = [name for name in MODELS if "point" not in name]


def data(n: int = 20, p: int = 2) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 1) * 4 - 2
    return x, torch.sin(2 * x) * torch.linspace(1, 2, p) + 0.2 * torch.randn(n, p)


def built(name: str, per_output: bool = False, **options: object) -> ConjugateModel:
    noise = torch.tensor([0.1, 0.3]) if per_output else torch.tensor(0.1)
    return MODELS[name](vb.Gaussian(noise, out_features=2 if per_output else None), **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("per_output", [False, True])
def test_shapes_of_predictions_and_draws(name: str, per_output: bool) -> None:
    x, y = data()
    model = built(name, per_output)
    model.condition(x, y)
    prediction = model.predict(x[:7], joint=True)
    assert prediction.mean.shape == prediction.std.shape == (7, 2)
    assert prediction.covariance.shape == (2, 7, 7)
    diagonal = prediction.covariance.diagonal(dim1=-2, dim2=-1).mT
    torch.testing.assert_close(prediction.epistemic, diagonal, atol=1e-12, rtol=1e-8)
    assert model.sample_functions(x[:7], 3).shape == (3, 7, 2)
    bound = model(*model.prepare(x, y))
    assert bound.log_likelihood.shape == bound.log_ratio.shape == (1,)
    assert all(int(info) == 0 for info in bound.failures.values())
    assert model.elbo(x, y).stderr == 0


@pytest.mark.parametrize("name", ["exact GP", "SGPR", "exact regression", "point regression"])
def test_flat_targets_come_back_flat(name: str) -> None:
    x, y = data(p=1)
    model = built(name)
    model.condition(x, y[:, 0])
    assert model.predict(x).mean.shape == (20,)
    assert model.sample_functions(x, 3).shape == (3, 20)


@pytest.mark.parametrize("name", MODELS)
def test_prediction_does_not_depend_on_batch_size(name: str) -> None:
    x, y = data()
    model = built(name)
    model.condition(x, y)
    whole, parts = model.predict(x), model.predict(x, batch_size=3)
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.std, whole.std)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("per_output", [False, True])
def test_weights_count_rows(name: str, per_output: bool) -> None:
    """Weights 0, 1 and 2 are no row, one row and two rows, to the last constant."""
    x, y = data()
    weights = torch.arange(20) % 3
    repeated = torch.arange(20).repeat_interleave(weights)
    model = built(name, per_output)
    model.initialize(x, y)
    weighted = model(*model.prepare(x, y, weights))
    expected = model(*model.prepare(x[repeated], y[repeated]))
    torch.testing.assert_close(weighted.log_likelihood, expected.log_likelihood, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(weighted.log_ratio, expected.log_ratio, rtol=1e-9, atol=1e-9)

    other = copy.deepcopy(model)
    model.condition(x, y, weights)
    other.condition(x[repeated], y[repeated])
    torch.testing.assert_close(model.predict(Z).mean, other.predict(Z).mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(model.predict(Z).std, other.predict(Z).std, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_standardizing_changes_no_units_that_a_person_sees(name: str) -> None:
    x, y = data()
    inside = built(name, standardize="targets")
    inside.initialize(x, 50 * y + 7)
    outside = built(name)
    shift, scale = inside.units.y_mean, inside.units.y_scale
    standard = (50 * y + 7 - shift) / scale
    outside.initialize(x, standard)
    a, b = inside.predict(Z, joint=True), outside.predict(Z, joint=True)
    torch.testing.assert_close(a.mean, shift + scale * b.mean)
    torch.testing.assert_close(a.std, scale * b.std)
    torch.testing.assert_close(a.covariance, scale.square()[:, None, None] * b.covariance)
    torch.testing.assert_close(inside.elbo(x, 50 * y + 7).value, outside.elbo(x, standard).value)
    torch.testing.assert_close(
        a.log_prob(50 * y[:5] + 7), b.log_prob(standard[:5]) - scale.log().sum(), rtol=1e-8, atol=1e-8
    )
    torch.manual_seed(3)
    drawn = inside.sample_functions(Z, 4)
    torch.manual_seed(3)
    torch.testing.assert_close(drawn, shift + scale * outside.sample_functions(Z, 4), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_standardized_inputs_take_inducing_inputs_and_centres_along(name: str) -> None:
    x, y = data()
    inside = built(name, standardize="inputs")
    inside.initialize(100 * x - 3, y)
    mean, scale = inside.units.x_mean, inside.units.x_scale
    where = {"SGPR": "inducing", "exact GP": None}.get(name, "features.centres")
    if where is not None:
        found = dict(inside.named_parameters()) | dict(inside.named_buffers())
        torch.testing.assert_close(found[where].detach(), (Z - mean) / scale)
    assert inside.predict(100 * x - 3).mean.shape == (20, 2)


@pytest.mark.parametrize("name", BAYESIAN)
def test_function_draws_have_the_predicted_moments(name: str) -> None:
    x, y = data()
    model = built(name, per_output=True)
    model.condition(x, y)
    prediction = model.predict(Z, joint=True)
    drawn = model.sample_functions(Z, 20_000)
    error = prediction.epistemic.sqrt() / 20_000**0.5
    assert ((drawn.mean(0) - prediction.mean).abs() < 5 * error + 1e-12).all()
    centred = drawn - drawn.mean(0)
    covariance = torch.einsum("snp,smp->pnm", centred, centred) / 20_000
    size = prediction.covariance.diagonal(dim1=-2, dim2=-1)
    allowed = 5 * (2 / 20_000) ** 0.5 * (size[:, :, None] * size[:, None, :]).sqrt() + 1e-12
    assert ((covariance - prediction.covariance).abs() < allowed).all()


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    x, y = data(8)
    model = built(name, per_output=True)
    if isinstance(model, LinearRegression):
        model.features.lengthscale.free()
    model.initialize(x, y)
    if isinstance(model, LinearRegression) and model.posterior in ("full", "mean_field"):
        with torch.no_grad():
            model.mean.add_(0.1 * torch.randn_like(model.mean))
    batch = model.prepare(x, y)
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    values = tuple(p for p in model.parameters() if p.requires_grad)

    def objective(*given: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, given, strict=True)), batch).objective()

    assert torch.autograd.gradcheck(objective, values, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_replicas_under_vmap_equal_single_models(name: str) -> None:
    x, y = data()
    models = [built(name) for _ in range(3)]
    for i, model in enumerate(models):
        model.initialize(x, y)
        model.likelihood.noise.set(0.1 * (i + 1))
    parameters, buffers = torch.func.stack_module_state(models)
    batch = models[0].prepare(x, y)

    def bound(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(models[0], (p, b), batch, {"scale": torch.tensor(1.0)}).objective()

    together = torch.func.vmap(bound)(parameters, buffers)
    torch.testing.assert_close(together, torch.stack([m(*batch).objective() for m in models]))


@pytest.mark.parametrize("name", MODELS)
def test_state_dict_keeps_predictions(name: str) -> None:
    x, y = data()
    model = built(name, standardize="both")
    model.condition(x, y, torch.rand(20))
    other = built(name, standardize="both")
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.predict(x).mean, model.predict(x).mean)
    torch.testing.assert_close(other.predict(x).std, model.predict(x).std)


@pytest.mark.parametrize("name", MODELS)
def test_order_of_rows_does_not_matter(name: str) -> None:
    x, y = data()
    model = built(name)
    model.initialize(x, y)
    order = torch.randperm(20)
    torch.testing.assert_close(model.elbo(x[order], y[order]).value, model.elbo(x, y).value)


@pytest.mark.parametrize("name", MODELS)
def test_float32_agrees_with_float64(name: str) -> None:
    x, y = data()
    double = built(name)
    double.initialize(x, y)
    torch.set_default_dtype(torch.float32)
    single = built(name)
    single.initialize(x, y)
    assert single.dtype == torch.float32
    single.jitter.fill_(1e-6)
    assert single.predict(x).mean.dtype == torch.float32
    torch.testing.assert_close(single.elbo(x, y).value.double(), double.elbo(x, y).value, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_fit_improves_the_bound(name: str) -> None:
    x, y = data()
    model = built(name)
    model.initialize(x, y)
    before = model.elbo(x, y).value
    vb.fit(model, (x, y), steps=20, progress=False)
    assert model.elbo(x, y).value > before
    assert torch.isfinite(model.predict(x).mean).all()


@pytest.mark.parametrize("name", ["exact GP", "SGPR", "exact regression", "point regression"])
def test_minibatches_are_refused(name: str) -> None:
    x, y = data()
    model = built(name)
    with pytest.raises(vb.ConfigurationError, match="all data rows"):
        model.elbo(x, y, n_data=100)
    batch = model.prepare(x, y)
    assert torch.isnan(model(*batch, scale=torch.tensor(2.0)).objective())


@pytest.mark.parametrize("name", ["full regression", "mean_field regression"])
def test_variational_regression_takes_minibatches(name: str) -> None:
    x, y = data()
    model = built(name)
    model.initialize(x, y)
    halves = [model.elbo(x[i], y[i], n_data=20).value for i in (slice(0, 10), slice(10, 20))]
    torch.testing.assert_close(sum(halves) / 2, model.elbo(x, y).value)


@pytest.mark.parametrize("name", ["exact GP", "SGPR", "exact regression", "point regression"])
def test_predicting_without_data_says_what_to_do(name: str) -> None:
    with pytest.raises(vb.NotFittedError, match=r"condition\(x, y\)"):
        built(name).predict(Z)


@pytest.mark.parametrize("name", MODELS)
def test_number_of_noises_is_that_of_targets(name: str) -> None:
    x, y = data(p=3)
    model = MODELS[name](vb.Gaussian(torch.tensor([0.1, 0.3]), out_features=2))
    with pytest.raises(vb.ShapeError):
        model.condition(x, y)
    if "full" not in name and "mean_field" not in name:
        with pytest.raises(vb.ShapeError, match="values of noise"):
            model.elbo(x, y)


def test_other_likelihoods_are_sent_elsewhere() -> None:
    for likelihood in (vb.StudentT(), vb.HeteroscedasticGaussian(), vb.Bernoulli()):
        with pytest.raises(vb.ConfigurationError, match="LocalInducing"):
            ExactGP(vb.SquaredExponential(1), likelihood)


def test_units_must_be_known() -> None:
    x, y = data()
    gp = ExactGP(vb.SquaredExponential(1), vb.Gaussian(), standardize="both")
    with pytest.raises(vb.NotFittedError, match="initialize"):
        gp.log_marginal_likelihood(x, y)


@pytest.mark.parametrize("make", [lambda: bumps(), lambda: PolynomialFeatures(2)])
def test_features_check_the_width_of_rows(make: Callable[[], torch.nn.Module]) -> None:
    with pytest.raises(vb.ShapeError):
        make()(torch.zeros(3, 2))


WEIGHTS = torch.tensor([3, 1, 0, 2, 1] * 4)


@pytest.mark.parametrize("name", [*MODELS, "k-means SGPR", "projected GP"])
@pytest.mark.parametrize("standardize", [None, "both"])
@pytest.mark.parametrize("how", ["initialize", "condition", "fit"])
def test_weights_are_repeated_rows_from_the_start(name: str, standardize: str | None, how: str) -> None:
    """Units, starting values and inferred posteriors, however the data come in."""
    x, y = data()
    if name == "projected GP":  # whose mean starts along principal directions
        x, y = torch.cat([x, torch.randn(20, 2)], -1), y[:, :1]
    repeated = torch.arange(20).repeat_interleave(WEIGHTS)

    def make() -> ConjugateModel:
        if name == "k-means SGPR":
            return SGPR(vb.Matern52(1), vb.Gaussian(0.1), 5, standardize=standardize)
        if name == "projected GP":
            return ExactGP(vb.Matern52(3), vb.Gaussian(0.1), mean=vb.LinearMean(3, 1), standardize=standardize)
        return built(name, standardize=standardize)

    found = []
    for rows in ((x, y, WEIGHTS), (x[repeated], y[repeated])):
        model = make()
        if "GP" in name:
            model.likelihood.noise.fix()  # copies of a row ask for none at all
        if how == "fit":
            vb.fit(model, rows, progress=False)
        else:
            getattr(model, how)(*rows)
        found.append(model.predict(x))
    error = 1e-3 if how == "fit" else 1e-7  # steps depend on the number of rows, the optimum does not
    torch.testing.assert_close(found[0].mean, found[1].mean, rtol=error, atol=error)
    torch.testing.assert_close(found[0].std, found[1].std, rtol=error, atol=error)


@pytest.mark.parametrize("name", MODELS)
def test_fractional_weights_start_from_rows_that_count(name: str) -> None:
    x, y = data()
    weights = torch.rand(20) * (torch.arange(20) > 5)
    whole, part = built(name, standardize="both"), built(name, standardize="both")
    whole.initialize(x, y, weights)
    part.initialize(x[6:], y[6:], weights[6:])
    torch.testing.assert_close(whole.predict(Z).mean, part.predict(Z).mean)


@pytest.mark.parametrize("name", MODELS)
def test_weights_that_are_all_zero_are_refused(name: str) -> None:
    x, y = data()
    model = built(name)
    for _ in range(2):
        with pytest.raises(vb.DataError, match="Every weight is zero"):
            model.condition(x, y, torch.zeros(20))
        model.initialize(x, y)


@pytest.mark.parametrize("name", MODELS)
def test_conditioning_is_on_the_new_data(name: str) -> None:
    x, y = data()
    moved, fresh = built(name), built(name)
    moved.initialize(x, y)
    moved.condition(x[:8], y[:8] + 3.0)
    fresh.condition(x[:8], y[:8] + 3.0)
    torch.testing.assert_close(moved.predict(Z).mean, fresh.predict(Z).mean)
    torch.testing.assert_close(moved.predict(Z).std, fresh.predict(Z).std)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("standardize", [None, "targets"])
def test_another_number_of_targets_is_refused_and_leaves_no_trace(name: str, standardize: str | None) -> None:
    x, y = data()
    model = built(name, per_output=True, standardize=standardize)
    model.initialize(x, y)
    before = model.predict(Z)
    others = [torch.randn(20, 3)] + ([] if standardize is None else [torch.randn(20), torch.randn(20, 1)])
    for other in others:
        for call in (model.condition, model.elbo, model.prepare, lambda a, b: vb.fit(model, (a, b), progress=False)):
            with pytest.raises(vb.ShapeError, match="target"):
                call(x, other)
    with pytest.raises(vb.ShapeError, match="values of noise for 3"):
        model.initialize(x, others[0])
    assert torch.equal(model.predict(Z).mean, before.mean)


@pytest.mark.parametrize("name", ["exact GP", "SGPR"])
def test_the_width_of_the_mean_is_checked_everywhere(name: str) -> None:
    x, y = torch.randn(20, 2), torch.randn(20)

    kernel, mean = vb.SquaredExponential(2), vb.IdentityMean()
    wide: ExactGP | SGPR = ExactGP(kernel, vb.Gaussian(), mean=mean)
    if name == "SGPR":
        wide = SGPR(kernel, vb.Gaussian(), x[:5], mean=mean)
    evidence = wide.log_marginal_likelihood if isinstance(wide, ExactGP) else wide.optimal_q
    for call in (wide.condition, wide.elbo, wide.initialize, evidence):
        with pytest.raises(vb.ConfigurationError, match="as many outputs as inputs"):
            call(x, y)
    wide.condition(x, torch.stack([y, y], -1))
    before = wide.predict(x).mean
    with pytest.raises(vb.ConfigurationError, match="as many outputs as inputs"):
        wide.initialize(x + 1.0, y)
    assert torch.equal(wide.predict(x).mean, before)


def conditioned(model: ConjugateModel, x: Tensor, y: Tensor) -> ConjugateModel:
    model.condition(x, y)
    return model


@pytest.mark.parametrize("name", ["SGPR", "exact regression", "full regression", "mean_field regression"])
def test_a_failed_precision_is_an_error_with_advice(name: str) -> None:
    """Noise below rounding and more inducing inputs or features than rows tell apart."""
    x, y = torch.full((20, 1), 0.3), torch.randn(20, 2)
    model = built(name)
    model.likelihood.noise.set(1e-25)
    with pytest.raises(vb.NotPositiveDefiniteError, match=r"precision of .*\[5, 5\].*1e-25.*larger noise"):
        conditioned(model, x, y).predict(x)
    if name in ("SGPR", "exact regression"):
        bound = model(*model.prepare(x, y))
        assert torch.isnan(bound.objective())
        assert sum(int(info) for site, info in bound.failures.items() if "precision" in site) > 0


def test_float32_keeps_the_posterior_where_noise_is_small() -> None:
    """`I + A A^T / noise` is made in float64: rounded to float32 it would not be positive definite."""
    x = torch.linspace(-2, 2, 100)[:, None]
    y = torch.sin(3 * x[:, 0])
    makes = [
        lambda: LinearRegression(GaussianBumps(torch.linspace(-2, 2, 30)), noise=1e-4, prior_variance=100.0),
        lambda: SGPR(vb.SquaredExponential(1), vb.Gaussian(1e-6), torch.linspace(-2, 2, 20)[:, None]),
    ]
    for make in makes:
        found = []
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            model = make()
            model.condition(x, y)
            assert model.predict(x).mean.dtype == dtype
            found.append((model.predict(x).mean.double(), model.elbo(x, y).value.double().detach()))
        torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=2e-3)
        torch.testing.assert_close(found[1][1], found[0][1], rtol=0.01, atol=0)
