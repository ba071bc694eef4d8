"""Training within a time, and what an interrupt leaves."""

import math

import numpy as np
import pytest
import torch

import vibayes as vb
from vibayes.compare import FAMILIES, Data, Problem, choose
from vibayes.compare.training import train
from vibayes.errors import ConfigurationError

SEEDS = range(2)


def problem_of(data: Data) -> Problem:
    return data.problem(data.train)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_trains_on_numbers(name: str, regression: Data) -> None:
    problem = problem_of(regression)
    trained = train(FAMILIES[name], problem, SEEDS, math.inf, steps=3)
    assert len(trained.models) == (1 if trained.starts else 2)
    assert all(np.isfinite(history.per_datapoint[-1]) for history in trained.histories)
    assert trained.models[0].units.standardize == "both"
    if len(trained.models) == 2:
        first, second = (next(iter(model.parameters())) for model in trained.models)
        assert not torch.equal(first, second)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_trains_on_classes(name: str, classes: Data) -> None:
    problem = problem_of(classes)
    trained = train(FAMILIES[name], problem, range(1), math.inf, steps=2)
    probs = trained.models[0].predict(problem.x[:4], n_samples=3).probs  # type: ignore[operator]
    assert probs.shape == (4, 3)


@pytest.mark.parametrize("name", ["gp", "deep-gp", "bnn-mean-field"])
def test_several_targets_have_a_noise_each(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 2)
    problem = Problem(x, torch.stack([x[:, 0], 5 * x[:, 1] ** 2], 1), "regression", 2)
    model = train(FAMILIES[name], problem, range(1), math.inf, steps=2).models[0]
    assert model.likelihood.noise.value.shape == (2,)  # type: ignore[union-attr]
    assert model.predict(x[:3]).mean.shape == (3, 2)  # type: ignore[operator]


def test_steps_can_be_repeated_exactly(regression: Data) -> None:
    problem = problem_of(regression)
    first, second = (train(FAMILIES["bnn-global"], problem, SEEDS, math.inf, steps=4) for _ in range(2))
    for a, b in zip(first.models, second.models, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_time_ends_training(regression: Data) -> None:
    trained = train(FAMILIES["bnn-mean-field"], problem_of(regression), range(1), 1e-3)
    assert trained.histories[0].step[-1] == 25  # the first look at the run
    assert not trained.interrupted


def test_exact_gp_keeps_the_best_start(regression: Data) -> None:
    trained = train(FAMILIES["gp"], problem_of(regression), range(3), 60.0)
    assert len(trained.starts) == 3
    assert len(trained.models) == 1
    assert trained.histories[0].per_datapoint[-1] == max(trained.starts)
    hurried = train(FAMILIES["gp"], problem_of(regression), range(3), 1e-6)
    assert len(hurried.starts) == 1


def test_an_interrupt_leaves_what_there_is(regression: Data) -> None:
    problem = problem_of(regression)

    def interrupt(fraction: float, bound: float) -> None:
        raise KeyboardInterrupt

    trained = train(FAMILIES["bnn-mean-field"], problem, SEEDS, 60.0, watch=interrupt)
    assert trained.interrupted
    assert trained.histories[0].step == [25]
    assert trained.histories[0].n_data == problem.n
    with pytest.raises(KeyboardInterrupt):  # nothing has come to an end yet
        train(FAMILIES["gp"], problem, SEEDS, 60.0, watch=interrupt)


def test_schedule_cools_down_by_steps(regression: Data) -> None:
    trained = train(FAMILIES["bnn-mean-field"], problem_of(regression), range(1), math.inf, steps=100)
    rates = dict(zip(trained.histories[0].step, trained.histories[0].lr, strict=True))
    assert rates[50] == pytest.approx(0.03)
    assert rates[100] == pytest.approx(0.003)


def test_which_families_suit() -> None:
    x = torch.zeros(30, 2)
    chosen, refused = choose(Problem(x, x[:, 0], "regression", 1))
    assert [family.name for family in chosen][:3] == ["gp", "gp-matern", "gp-two-scales"]
    assert set(refused) == {"dkl"}
    _many, refused = choose(Problem(torch.zeros(500, 2), torch.zeros(500), "classes", 40))
    assert {"deep-gp", "deep-wishart"} <= set(refused)
    with pytest.raises(ConfigurationError, match="Did you mean 'deep-gp'"):
        choose(Problem(x, x[:, 0], "regression", 1), ["deep-pg"])
    with pytest.raises(ConfigurationError, match="dkl needs at least 100"):
        choose(Problem(x, x[:, 0], "regression", 1), ["dkl"])


def test_large_tables_are_sparse_and_in_minibatches() -> None:
    x = torch.randn(2500, 2)
    problem = Problem(x, x[:, 0], "regression", 1)
    assert isinstance(FAMILIES["gp"].build(problem), vb.Model)
    assert FAMILIES["gp"].training(problem)["batch_size"] == 1000
    small = Problem(x[:100], x[:100, 0], "regression", 1)
    assert isinstance(FAMILIES["gp"].build(small), vb.ExactGP)
    assert FAMILIES["deep-gp"].training(small)["batch_size"] is None
    assert Problem(x, torch.zeros(2500), "classes", 100).n_inducing(150) == 141
