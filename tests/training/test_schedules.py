"""Schedules: values at every step, ends included."""

import pickle

import pytest

import vibayes as vb
from vibayes.training import schedules
from vibayes.training.schedules import as_schedule


def test_linear_reaches_both_ends() -> None:
    rise = schedules.linear(0.2, 1.0, 8)
    assert rise(0) == 0.2
    assert rise(8) == 1.0
    assert rise(100) == 1.0
    assert rise(4) == pytest.approx(0.6)
    assert [schedules.linear(1.0, 0.0, 2)(k) for k in range(4)] == [1.0, 0.5, 0.0, 0.0]


def test_piecewise_changes_at_the_milestone() -> None:
    steps = schedules.piecewise([3, 5], [1.0, 0.5, 0.1])
    assert [steps(k) for k in range(7)] == [1.0, 1.0, 1.0, 0.5, 0.5, 0.1, 0.1]
    assert schedules.piecewise([], [0.3])(10) == 0.3


def test_staircase_rises_and_stops() -> None:
    stairs = schedules.staircase(0.0, 0.5, 2, 1.0)
    assert [stairs(k) for k in range(7)] == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0]
    down = schedules.staircase(1.0, -0.4, 1, 0.0)
    assert [round(down(k), 12) for k in range(5)] == [1.0, 0.6, 0.2, 0.0, 0.0]


def test_exponential_falls_by_one_factor() -> None:
    fall = schedules.exponential(2.0, 0.02, 50, hold=10)
    assert [fall(step) for step in (0, 10)] == [2.0, 2.0]
    factors = [fall(step + 1) / fall(step) for step in range(10, 50)]
    assert max(factors) - min(factors) < 1e-12
    assert [round(fall(step), 12) for step in (50, 60)] == [0.02, 0.02]


def test_warmup_rises_to_what_follows_and_can_be_pickled() -> None:
    schedule = schedules.warmup(5, schedules.exponential(1.0, 0.01, 20, hold=10))
    assert [schedule(step) for step in (0, 1, 4, 9)] == pytest.approx([0.2, 0.4, 1.0, 1.0])
    assert schedule(20) == pytest.approx(0.01)
    assert pickle.loads(pickle.dumps(schedule))(1) == schedule(1)
    assert schedules.warmup(2)(0) == 0.5
    with pytest.raises(vb.ConfigurationError, match="at least one step"):
        schedules.warmup(0)


def test_numbers_and_functions_are_schedules() -> None:
    assert as_schedule(0.3)(7) == 0.3
    assert as_schedule(2)(7) == 2.0
    assert as_schedule(lambda step: step / 10)(7) == 0.7
    assert schedules.constant(0.1)(0) == 0.1


def test_refusals() -> None:
    with pytest.raises(vb.ConfigurationError, match="at least one step, got 0"):
        schedules.linear(0.0, 1.0, 0)
    with pytest.raises(vb.ConfigurationError, match="hold below steps"):
        schedules.exponential(1.0, 0.1, 10, hold=10)
    with pytest.raises(vb.ConfigurationError, match="one value more than milestones"):
        schedules.piecewise([1, 2], [1.0, 0.1])
    with pytest.raises(vb.ConfigurationError, match="rising milestones"):
        schedules.piecewise([2, 1], [1.0, 0.1, 0.01])
    with pytest.raises(vb.ConfigurationError, match="every=0"):
        schedules.staircase(0.0, 0.1, 0, 1.0)
    with pytest.raises(vb.ConfigurationError, match="rise=0"):
        schedules.staircase(0.0, 0, 5, 1.0)
    for start, rise, end in ((0.0, -0.1, 1.0), (1.0, 0.1, 0.0)):
        with pytest.raises(vb.ConfigurationError, match="the other sign"):
            schedules.staircase(start, rise, 5, end)
    for value in ("cosine", None, True):
        with pytest.raises(vb.ConfigurationError, match=r"schedules\.linear"):
            as_schedule(value)
