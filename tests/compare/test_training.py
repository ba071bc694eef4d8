"""Training within a time, and what an interrupt leaves."""

import math

import numpy as np
import pytest
import torch

import vibayes as vb
from vibayes.compare import FAMILIES, Data, Problem, choose, training
from vibayes.compare.families import rounding
from vibayes.compare.training import train
from vibayes.errors import ConfigurationError
from vibayes.training.history import Logged

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
    assert trained.histories[0].step[-1] == 1  # the first look at the run
    assert not trained.interrupted


def test_exact_gp_keeps_the_best_start(regression: Data) -> None:
    trained = train(FAMILIES["gp"], problem_of(regression), range(3), 60.0)
    assert len(trained.starts) >= 2
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
    assert len(trained.histories[0].step) == 1
    assert trained.histories[0].n_data == problem.n
    with pytest.raises(KeyboardInterrupt):  # nothing has come to an end yet
        train(FAMILIES["gp"], problem, SEEDS, 60.0, watch=interrupt)


def test_schedule_cools_down_by_steps(regression: Data) -> None:
    trained = train(FAMILIES["bnn-mean-field"], problem_of(regression), range(1), math.inf, steps=100)
    rates = dict(zip(trained.histories[0].step, trained.histories[0].lr, strict=True))
    assert rates[50] == pytest.approx(0.05)
    assert rates[100] == pytest.approx(0.005)


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
    assert isinstance(FAMILIES["gp"].plan(problem).model, vb.SGPR)
    assert FAMILIES["bnn-mean-field"].plan(problem).batch_size == 500
    small = Problem(x[:100], x[:100, 0], "regression", 1)
    assert isinstance(FAMILIES["gp"].plan(small).model, vb.ExactGP)
    assert FAMILIES["deep-gp"].plan(small).batch_size is None
    assert Problem(x, torch.zeros(2500), "classes", 100).n_inducing(150) == 141
    very_large = Problem(torch.randn(10_001, 1), torch.randn(10_001), "regression", 1)
    assert very_large.gp_method == "svgp"
    assert FAMILIES["gp"].plan(very_large).batch_size == 500


def test_small_budgets_leave_no_large_exact_gp() -> None:
    x = torch.randn(1_500, 1)
    methods = [Problem(x, x[:, 0], "regression", 1, minutes).gp_method for minutes in (0.5, 1.0, 2.0, 5.0)]
    assert methods == ["sgpr", "sgpr", "exact", "exact"]


# -- what is worth its time -------------------------------------------------------------------------------------


def logged(bounds: list[float]) -> list[Logged]:
    return [Logged(step, 10 * b, b, 10 * b, 0.0, 1.0, 0.1, float(step)) for step, b in enumerate(bounds)]


def test_prospects_of_a_run() -> None:
    """A straight line goes on above itself; a run without a rise stays where it is, but for the slack."""
    line = logged([0.01 * i for i in range(100)])
    assert 0.99 + 1.0 < training.prospect(line, 1.0) < 0.99 + 1.5  # on the line it would be 1.99
    assert training.prospect(logged([-1.0] * 40), 1.0) == pytest.approx(-1.0 + training.SLACK)
    assert training.prospect(logged([-9.0] + [0.0] * 39), 1.0) == pytest.approx(training.SLACK)  # a bad start is past
    assert training.prospect(line[:7], 1.0) == math.inf  # too early to tell


@pytest.mark.parametrize(
    ("part", "best", "ends"), [(0.5, 2.0, True), (0.5, 1.0, False), (0.1, 2.0, False), (0.9, 2.0, False)]
)
def test_what_cannot_win_is_ended(part: float, best: float, ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not early, when all may change, and not late, when little is gained; and only if no seed may reach the best."""
    monkeypatch.setattr(training._Listener, "elapsed", part * 1000.0)
    listener = training._Listener(1000.0, None, None, best)
    listener.logged = {0: logged([0.0] * 20), 1: logged([0.95] * 20)}
    assert listener(logged([0.0])[0]) is ends
    assert listener.out_of_reach is ends


def test_a_family_out_of_reach_says_so(regression: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training._Listener, "hopeless", lambda _: True)
    ended = train(FAMILIES["bnn-mean-field"], problem_of(regression), range(2), 60.0, best=9.0)
    assert ended.out_of_reach
    assert {history.stopped for history in ended.histories} == {training.OUT_OF_REACH}
    assert len(ended.models) == 2


def test_little_time_means_fewer_seeds(regression: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(regression)
    monkeypatch.setattr(training, "_time_steps", lambda *_: 1.0 / training.ENOUGH)  # one second for a seed
    assert [len(train(FAMILIES["bnn-mean-field"], problem, range(3), s).models) for s in (0.5, 2.2)] == [1, 2]


def test_a_few_steps_are_refused(regression: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(regression)
    monkeypatch.setattr(training, "_time_steps", lambda *_: 0.01)
    with pytest.raises(training.NoTimeError, match="30 steps would have fitted"):
        train(FAMILIES["bnn-mean-field"], problem, range(1), 0.301, best=0.0)
    assert train(FAMILIES["bnn-mean-field"], problem, range(1), 0.301).models  # where there is nothing else


def test_starts_end_when_two_agree(regression: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(regression)
    monkeypatch.setattr(training, "AGREE", math.inf)
    assert len(train(FAMILIES["gp"], problem, range(2), 60.0).starts) == 2
    monkeypatch.setattr(training, "AGREE", -1.0)
    assert len(train(FAMILIES["gp"], problem, range(2), 60.0).starts) == 2 * training.MORE_STARTS
    assert len(train(FAMILIES["gp"], problem, range(2), math.inf, steps=3).starts) == 2


# -- coarse targets ---------------------------------------------------------------------------------------------


def test_steps_of_targets() -> None:
    assert rounding(torch.tensor([5.0, 6.0, 8.0])) == 1.0
    assert rounding(torch.tensor([0.25, 0.5, 7.0]).double()) == 0.25
    assert rounding(torch.randn(100, generator=torch.Generator().manual_seed(0))) == 0.0
    assert rounding(torch.tensor([1.0, 2.0, 2.0])) == 0.0  # a grid of two values is no grid


def test_noise_is_not_let_below_the_rounding() -> None:
    """Copies of rows with whole numbers as targets: noise would go to zero and evidence to infinity."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator).repeat(2, 1)
    y = (2.0 * x[:, 0] + torch.randn(40, generator=generator).repeat(2)).round()
    problem = Problem(x, y, "regression", 1)
    least = 1.0 / (12.0 * float(y.var(correction=0)))
    assert problem.least_noise == pytest.approx(least)
    model = train(FAMILIES["gp-two-scales"], problem, range(1), 60.0).models[0]
    noise = float(model.likelihood.noise.value.detach())  # type: ignore[union-attr]
    assert least < noise < 1.05 * least
    assert Problem(x, torch.stack([y, x[:, 1]], 1), "regression", 2).least_noise == 0.0
