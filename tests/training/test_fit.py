"""`fit`: what it optimizes, from which data and seeds, and which options it takes."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import data, deep, fit, same, svgp
from torch import Tensor, nn
from torch.distributions import Gamma
from torch.utils.data import DataLoader, TensorDataset

import vibayes as vb
from vibayes.trainable import TrainableModel


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
@pytest.mark.parametrize("make", [svgp, deep])
def test_training_raises_the_bound(optimizer: str, make: Callable[[], vb.Model]) -> None:
    model = make()
    history = fit(model, 60, optimizer=optimizer, lr=0.05)
    assert history.elbo[-1] > history.elbo[0] + 5
    assert history.step[-1] <= 60
    assert not history.events
    found = model.elbo(*data(), n_samples=200)
    assert history.elbo[-1] == pytest.approx(found.value.item(), abs=5 + 5 * found.stderr.item())


def test_the_history_is_the_bound() -> None:
    model = svgp()
    model.initialize(*data())
    before = model.elbo(*data())
    history = fit(model, 1, kl_weight=0.1)
    assert history.step == [1]
    assert history.elbo == pytest.approx([before.value.item()])
    assert history.kl == pytest.approx([before.kl.item()])
    assert history.log_likelihood == pytest.approx([before.log_likelihood.item()])
    assert history.per_datapoint == pytest.approx([before.per_datapoint.item()])
    assert history.n_data == 24
    assert math.isnan(fit(svgp(vb.StudentT()), 1).noise[0])
    assert history.noise == pytest.approx([model.likelihood.noise.value.item()], rel=0.05)


def map_noise(y: Tensor, a: float, b: float) -> float:
    """The mode of `N(y; 0, s) Gamma(s; a, b)` over s: the root of b s^2 + (N/2 - a + 1) s - y^T y / 2."""
    linear, constant = len(y) / 2 - a + 1, -0.5 * float(y @ y)
    return (-linear + math.sqrt(linear**2 - 4 * b * constant)) / (2 * b)


@pytest.mark.parametrize("name", ["exact", "svgp", "sgpr"])
def test_hyperparameter_priors_move_the_optimum(name: str) -> None:
    """Without a signal the noise variance is all there is, and its mode is known."""
    x, _ = data(10)
    y = torch.linspace(-2, 2, 10)
    a, b = 30.0, 8.0
    noise = vb.Positive(1.0, prior=Gamma(a, b))
    kernel = vb.SquaredExponential(1)
    kernel.variance.fix(1e-12)
    kernel.lengthscale.fix()
    models: dict[str, Callable[[], TrainableModel]] = {
        "exact": lambda: vb.ExactGP(kernel, vb.Gaussian(noise)),
        "svgp": lambda: svgp(vb.Gaussian(noise), kernel),
        "sgpr": lambda: vb.SGPR(kernel, vb.Gaussian(noise), 3),
    }
    fit(models[name](), None, optimizer="lbfgs", data=(x, y))
    assert noise.value.item() == pytest.approx(map_noise(y, a, b), rel=1e-4)
    assert abs(map_noise(y, a, b) - float(y @ y) / 10) > 0.5  # where it would be without the prior


def test_fixed_hyperparameters_stay() -> None:
    for make in (svgp, lambda: vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))):
        model = make()
        model.likelihood.noise.fix(0.3)
        kernel = next(m for m in model.modules() if isinstance(m, vb.SquaredExponential))
        kernel.lengthscale.fix(0.7)
        fit(model, 15)
        assert model.likelihood.noise.value.item() == pytest.approx(0.3, rel=1e-12)
        assert kernel.lengthscale.value.item() == pytest.approx(0.7, rel=1e-12)
        assert kernel.variance.value.item() != 1.0
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(vb.ConfigurationError, match="Every parameter of the model is fixed"):
        fit(model, 5)


@pytest.mark.parametrize("learn", [True, False])
def test_a_start_that_the_prior_excludes_is_named(learn: bool) -> None:
    prior = torch.distributions.Uniform(0.01, 0.5)
    model = vb.ExactGP(vb.SquaredExponential(1, lengthscale=vb.Positive(0.9, learn=learn, prior=prior)), vb.Gaussian())
    for train in (lambda: fit(model, None), lambda: vb.fit_many([model], [data()], steps=5, progress=False)):
        with pytest.raises(vb.ConfigurationError, match=r"kernel.lengthscale is 0.9.*no density \(Uniform\(low: 0.01"):
            train()
    model.kernel.lengthscale.set(0.4)
    fit(model, 2)


def test_weights_are_used() -> None:
    """Rows of weight zero could as well be missing; the bound's scale is the same."""
    x, y = data()
    z = torch.linspace(-2, 2, 5)[:, None]
    weights = torch.ones(24)
    weights[12:] = 0.0
    kept, dropped = (
        vb.Model(vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5, inputs=z)), vb.Gaussian(0.1))
        for _ in range(2)
    )
    wild = torch.where(weights == 0, 1e3, y)
    fit(kept, 20, data=(x, wild, weights))
    fit(dropped, 20, data=(x[:12], y[:12]))
    torch.testing.assert_close(kept.predict(x).mean, dropped.predict(x).mean)


@pytest.mark.parametrize("name", ["exact", "sgpr", "regression"])
def test_closed_form_models_condition_on_what_they_were_fitted_to(name: str) -> None:
    x, y = data()
    models: dict[str, Callable[[], TrainableModel]] = {
        "exact": lambda: vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1)),
        "sgpr": lambda: vb.SGPR(vb.SquaredExponential(1), vb.Gaussian(0.1), torch.linspace(-2, 2, 5)[:, None]),
        "regression": lambda: vb.LinearRegression(noise=0.1),
    }
    model = models[name]()
    fit(model, 5, data=(x, y))
    fit(model, 5, data=(x, y + 100))
    fresh = models[name]()
    fresh.load_state_dict(model.state_dict())
    fresh.condition(x, y + 100)
    torch.testing.assert_close(model.predict(x).mean, fresh.predict(x).mean)
    weights = torch.ones(24)
    weights[5:] = 0.0
    for source in ((x, y, weights), TensorDataset(x, y, weights)):
        model = models[name]()
        fit(model, 5, data=source)
        fresh.load_state_dict(model.state_dict())
        fresh.condition(x[:5], y[:5])
        torch.testing.assert_close(model.predict(x).mean, fresh.predict(x).mean)


def test_datasets_and_loaders_train_as_tensors_do() -> None:
    x, y = data()
    start = svgp()
    tensors, dataset, loader, whole = (copy.deepcopy(start) for _ in range(4))
    loader.initialize(x, y)  # which shuffles
    fit(tensors, 20, batch_size=6, data=(x, y))
    fit(dataset, 20, batch_size=6, data=TensorDataset(x, y))
    assert same(tensors, dataset)
    fit(loader, 20, data=DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True))
    fit(whole, 20, data=(x, y))
    for a, b in zip(loader.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    uneven = svgp()
    history = fit(uneven, 20, data=DataLoader(TensorDataset(x, y, torch.ones(24)), batch_size=7, shuffle=True))
    assert history.n_data == 24
    assert math.isfinite(history.elbo[-1])


@pytest.mark.parametrize("weight_decay", [0.0, 0.25])
def test_rows_of_a_loaders_short_last_batch_count_as_others(weight_decay: float) -> None:
    x, y = torch.ones(21, 1), torch.cat([torch.zeros(20), torch.full((1,), 10.0)])
    model = vb.Model(vb.Linear(1, 1, bias=False, posterior=vb.Point(prior=False)), vb.Gaussian(1.0, learn=False))
    loader = DataLoader(TensorDataset(x, y), batch_size=20)
    rate = vb.schedules.exponential(1.0, 1e-3, 300, hold=100)
    vb.fit(model, loader, steps=300, lr=0.05, lr_schedule=rate, weight_decay=weight_decay, progress=False)
    # the mean of all rows, drawn to zero by the decay of the loss per row; with batches alike it would be about 5
    expected = 10 / 21 / (1 + weight_decay)
    assert float(model.predict(x[:1]).mean) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("make", [svgp, deep, lambda: svgp(vb.StudentT())])
@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_a_seed_decides_everything_and_leaves_the_generators(make: Callable[[], vb.Model], optimizer: str) -> None:
    options = {} if optimizer == "lbfgs" else {"batch_size": 7}
    first, again = make(), make()
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global state is what must stay
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    fit(first, 12, optimizer=optimizer, **options)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == before_numpy  # noqa: NPY002
    torch.manual_seed(2)
    fit(again, 12, optimizer=optimizer, **options)
    assert same(first, again)


def test_seeds_differ() -> None:
    first, second = deep(), deep()
    fit(first, 5, seed=0)
    fit(second, 5, seed=1)
    assert not same(first, second)


def test_the_generator_is_left_alone_by_a_failure() -> None:
    before = torch.get_rng_state()
    with pytest.raises(vb.DataError):
        fit(svgp(), 5, data=(torch.full((3, 1), math.nan), torch.zeros(3)))
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state()[:8], before[:8])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a positive whole number, got 0"),
        ({"steps": 2.5}, "steps must be a positive"),
        ({"steps": True}, "steps must be a positive"),
        ({"n_samples": 0}, "n_samples must be a positive"),
        ({"log_every": 0}, "log_every must be a positive"),
        ({"max_steps": -1}, "max_steps must be a positive"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr": math.nan}, "lr must be positive"),
        ({"lr": math.inf}, "lr must be positive and finite, a number, got inf"),
        ({"lr": "1e-2"}, "lr must be positive and finite, a number, got '1e-2'"),
        ({"lr": [0.1]}, r"lr must be positive and finite, a number, got \[0.1\]"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"tolerance": -1.0}, "tolerance must be nats per row, not negative or infinite, got -1.0"),
        ({"tolerance": math.nan}, "tolerance must be"),
        ({"weight_decay": math.inf}, "weight_decay must be a number that is not negative or infinite, got inf"),
        ({"weight_decay": "1"}, "weight_decay must be a number"),
        ({"natural_rate": "1"}, "natural_rate must be above 0 and at most 1, got '1'"),
        ({"kl_weight": lambda step: None}, "kl_weight must not be .* at step 0 it is None"),
        ({"lr_schedule": lambda step: "fast"}, "lr_schedule must not be .* at step 0 it is 'fast'"),
        ({"optimizer": "sgd"}, "optimizer must be.*adam.*lbfgs.*'sgd'"),
        ({"restarts": 2}, "restarts go with optimizer='lbfgs'"),
        ({"optimizer": "lbfgs", "batch_size": 5}, "L-BFGS needs all rows"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"device": "gpu0"}, "Unknown device 'gpu0'"),
        ({"device": 1.5}, "Unknown device 1.5"),
        ({"checkpoint_seconds": "15"}, "checkpoint_seconds must be a number, 0 or more, got '15'"),
        ({"checkpoint_seconds": math.nan}, "checkpoint_seconds must be a number"),
        ({"kl_weight": "annealed"}, "A schedule is a number, or a function"),
        ({"lr_schedule": "cosine"}, "A schedule is a number, or a function"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(vb.ConfigurationError, match=message):
        vb.fit(svgp(), data(), **{"steps": 5, "progress": False, **options})


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    plain, theirs = svgp(), svgp()
    fit(plain, 4, batch_size=5, seed=3, n_samples=2, lr=0.5)
    options = {"batch_size": np.int64(5), "seed": np.int64(3), "n_samples": np.int32(2), "lr": np.float32(0.5)}
    for steps in (np.int64(2), np.int64(4)):  # the second time it resumes
        fit(theirs, steps, checkpoint=tmp_path / "run", **options)
    assert same(plain, theirs)


@pytest.mark.parametrize("seed", [-3, 2**40, 2**63 + 1])
def test_any_seed_will_do(seed: int) -> None:
    x, y = data()
    vb.fit(svgp(), DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True), steps=3, seed=seed, progress=False)
    fit(vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1)), None, restarts=2, seed=seed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu() -> None:
    with pytest.raises(vb.ConfigurationError, match=r"device='cuda' was asked for, but no CUDA GPU.*device='cpu'"):
        fit(svgp(), 5, device="cuda")
    assert fit(svgp(), 1, device="cpu").step == [1]
    assert fit(svgp(), 1, device=torch.device("cpu")).step == [1]


FACTORS = {"*kernel*": 0.5, "network.1.kernel.lengthscale": 3.0, "*posterior*": 0.1}


def test_parameters_have_rates_of_their_own() -> None:
    """Adam's first step is as long as the rate, whatever the gradient."""
    model = svgp()
    fit(model, 3)  # some gradients are zero at the start
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fit(model, 1, lr=0.01, lr_factors=FACTORS)
    moved = {name: float((p.detach() - before[name]).abs().max()) for name, p in model.named_parameters()}
    rates = {"likelihood.noise": 0.01, "network.1.kernel.lengthscale": 0.03, "network.1.kernel.variance": 0.005}
    posterior = {f"network.1.posterior.{name}": 0.001 for name in ("inputs", "mean", "raw_factor")}
    assert moved == pytest.approx({**{f"{name}.raw": rate for name, rate in rates.items()}, **posterior}, rel=1e-3)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"nobody": 2.0}, r"lr_factors\['nobody'\] is of no use. No parameter is called 'nobody'. There are: .*noise"),
        ({"likelihood.*": 2.0, "*noise": 1.0}, r"'\*noise'\] is of no use. Longer names have all"),
        ({"*": 0.0}, r"must be a positive number, got 0.0. To keep .* requires_grad_"),
        ({"*": math.nan}, "must be a positive number, got nan"),
        ({"*": "fast"}, "must be a positive number, got 'fast'"),
        ([("*", 1.0)], "must be factors by name, .* got list"),
    ],
)
def test_factors_of_rates_that_make_no_sense_are_refused(factors: Any, message: str) -> None:
    with pytest.raises(vb.ConfigurationError, match=message):
        fit(svgp(), 1, lr_factors=factors)


def test_lbfgs_has_one_rate() -> None:
    with pytest.raises(vb.ConfigurationError, match="lr_factors go with optimizer='adam'"):
        fit(svgp(), 1, optimizer="lbfgs", lr_factors=FACTORS)


def test_only_models_are_trained() -> None:
    with pytest.raises(vb.ConfigurationError, match=r"got Linear. Wrap a network in vibayes\.Model"):
        vb.fit(nn.Linear(1, 1), data(), steps=5)
    with pytest.raises(vb.ConfigurationError, match="got the class ExactGP; call it"):
        vb.fit(vb.ExactGP, data(), steps=5)


def test_noise_that_is_not_that_of_the_draws_is_named() -> None:
    x = torch.randn(20, 2)
    model = vb.Model(vb.Linear(2, 1), vb.StudentT(4.0, 0.1), inducing=x[:5])
    with pytest.raises(
        vb.ConfigurationError, match=r"noise must hold 'network\.inducing', of shape .* it holds nothing"
    ):
        vb.fit_many([model], [(x, x[:, 0])], steps=2, n_samples=2, noise=lambda _: {}, progress=False)
    for draws in (1, 3):
        few = {"network.inducing": torch.zeros(1, draws, 3, 1)}
        with pytest.raises(vb.ShapeError, match=r"'network\.inducing' must have an axis of 2 draws"):
            vb.fit_many([model], [(x, x[:, 0])], steps=2, n_samples=2, noise=lambda _, few=few: few, progress=False)
    for other in (torch.zeros(2, 1, 1), torch.zeros(2, 3), torch.zeros(2, 3, 1, dtype=torch.float32)):
        with pytest.raises(
            vb.ShapeError, match=r"'network\.inducing' must be of shape \[3, 1\] behind .* torch.float64"
        ):
            vb.fit(model, (x, x[:, 0]), steps=2, n_samples=2, noise=lambda _, n=other: {"network.inducing": n})
    right = {"network.inducing": torch.zeros(2, 3, 1)}
    vb.fit(model, (x, x[:, 0]), steps=2, n_samples=2, noise=lambda _: right, progress=False)
