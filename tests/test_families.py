"""Models of the families for a table: sizes, starts, and what a short training makes of them."""

import math

import pytest
import torch
from torch import nn

import vibayes as vb
from vibayes import families
from vibayes.families import Plan, Task
from vibayes.means import IdentityMean, ZeroMean
from vibayes.parameters import hyperparameters
from vibayes.training.lbfgs import perturb


def task(n: int = 60, d: int = 3, outputs: int = 1) -> Task:
    x = 100.0 + 20.0 * torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return Task(x, outputs, families.noise(outputs), "both")


def deep_gp(of: Task, depth: int = 3) -> Plan:
    return families.deep_gp(of, kernel="squared_exponential", depth=depth, width=None, n_inducing=20)


def test_noise_of_each_target() -> None:
    assert families.noise(1).noise.value.shape == ()
    several = families.noise(3, variance=4.0)
    torch.testing.assert_close(several.noise.value, torch.full((3,), 0.4))
    coarse = families.noise(1, least=0.2)  # starts above what it may not go below
    assert coarse.noise.least == 0.2
    assert float(coarse.noise.value.detach()) == pytest.approx(0.4)


def test_likelihoods_of_classes() -> None:
    assert families.classes(2)[1] == 1
    assert isinstance(families.classes(2)[0], vb.Bernoulli)
    assert families.classes(5)[1] == 5


@pytest.mark.parametrize(
    ("n", "kind"), [(families.EXACT_ROWS, vb.ExactGP), (families.COLLAPSED_ROWS, vb.SGPR), (10_001, vb.Model)]
)
def test_gps_by_the_number_of_rows(n: int, kind: type) -> None:
    made = families.gp(task(n, 1), kernel="matern32", method="auto", n_inducing=5, restarts=2)
    assert type(made.model) is kind
    assert made.optimizer == ("adam" if kind is vb.Model else "lbfgs")


def test_deep_gps_start_near_the_identity() -> None:
    """Hidden layers as wide as their inputs add to them; the last one starts sure of the targets it was shown."""
    network = deep_gp(task()).model.network
    assert [type(layer.mean) for layer in network] == [IdentityMean, IdentityMean, ZeroMean]
    assert [layer.out_features for layer in network] == [3, 3, 1]
    wide = families.deep_gp(task(d=40), kernel="matern52", depth=2, width=None, n_inducing=20).model.network
    assert [layer.out_features for layer in wide] == [30, 1]
    assert isinstance(wide[0].mean, ZeroMean)


def test_last_layers_move_by_natural_gradients_where_the_noise_is_gaussian() -> None:
    x = torch.randn(50, 3)
    tasks = {"real": Task(x, 1, families.noise(1), None), "two": Task(x, 1, vb.Bernoulli(), None)}
    tasks["many"] = Task(x, 11, families.noise(11), None)
    forms = {name: deep_gp(of).model.network[-1].posterior.form for name, of in tasks.items()}
    assert forms == {"real": "natural", "two": "full", "many": "diagonal"}
    options = {"kernel": "squared_exponential", "depth": 2, "width": None, "n_inducing": 20, "mixing": "AB"}
    wishart = families.deep_wishart(Task(x, 1, families.noise(1), None), **options).model.network
    assert wishart[-1].posterior.form == "full"


def test_inducing_points_lie_among_the_data_and_differ_between_seeds() -> None:
    of = task()
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        made.append(of.inducing(10))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert ((made[0] >= of.x.amin(0)) & (made[0] <= of.x.amax(0))).all()
    assert len(of.inducing(1000)) == 60


@pytest.mark.parametrize(("rows", "each"), [(29, False), (30, True)])
def test_lengthscales_of_every_input_want_rows(rows: int, each: bool) -> None:
    task = Task(torch.randn(rows, 3), 1, families.noise(1), "both")
    options = {"kernel": "matern52", "n_inducing": 5}
    deep = {**options, "depth": 2, "width": None}
    models = [
        families.gp(task, **options, method="auto", restarts=1).model,
        families.deep_gp(task, **deep).model,
        families.deep_wishart(task, **deep, mixing="A").model,
    ]
    found = [[m.lengthscale.value.ndim > 0 for m in model.modules() if isinstance(m, vb.Matern52)] for model in models]
    assert found == [[each], [each, each], [each, False]]  # a Wishart layer's features have no axes


def test_wide_tables_do_not_make_sure() -> None:
    """With a lengthscale for each of a hundred columns the mean log density of other rows is below -20."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(160, 100, generator=generator)
    y = x[:, :5].sum(1) + 0.3 * torch.randn(160, generator=generator)
    task = Task(x[:60], 1, families.noise(1), "both")
    model = families.gp(task, kernel="squared_exponential", method="auto", n_inducing=9, restarts=1).model
    vb.fit(model, (x[:60], y[:60]), progress=False)
    assert model.predict(x[60:]).log_prob(y[60:]).mean() > -2.5


def test_starts_of_the_deep_gp_are_worth_many_steps() -> None:
    """After 60 steps the bound is near that of the exact GP; from the layers' own defaults it is far below."""
    generator = torch.Generator().manual_seed(0)
    x = 4.0 * torch.rand(60, 2, generator=generator) - 2.0
    y = torch.sin(2.0 * x[:, 0]) + 0.3 * x[:, 1] + 0.05 * torch.randn(60, generator=generator)
    exact = families.gp(
        Task(x, 1, families.noise(1), "both"), kernel="squared_exponential", method="auto", n_inducing=9, restarts=1
    )
    best = vb.fit(exact.model, (x, y), progress=False).per_datapoint[-1]
    made = families.deep_gp(
        Task(x, 1, families.noise(1), "both"), kernel="squared_exponential", depth=2, width=None, n_inducing=40
    )
    plain = vb.Model(
        nn.Sequential(
            *(vb.GP(p, kernel=vb.SquaredExponential(2, ard=True, lengthscale=math.sqrt(2.0))) for p in (2, 1))
        ),
        vb.Gaussian(0.1),
        inducing=x[:40],
        standardize="both",
    )
    ours, theirs = (
        vb.fit(m, (x, y), steps=60, lr=made.lr, n_samples=3, progress=False).per_datapoint[-1]
        for m in (made.model, plain)
    )
    assert best > ours > theirs + 0.3
    assert best - ours < 0.8


def test_new_starts_move_logarithms_alike() -> None:
    """However fast Adam moves a parameter, another start lies one unit of its logarithm away."""
    moved = []
    for scale in (1.0, 5.0):
        gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(vb.Positive(0.1, scale=scale)))
        perturb(gp, 3)
        moved.append({name: float(p.value.detach()) for name, p in hyperparameters(gp)})
    assert moved[0] == pytest.approx(moved[1])
    assert moved[0]["likelihood.noise"] != pytest.approx(0.1)
