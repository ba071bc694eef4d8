"""The history of a run."""

import json

import matplotlib as mpl
import pytest

import vibayes as vb

mpl.use("Agg")


def history(steps: int = 3) -> vb.History:
    found = vb.History(n_data=10)
    for k in range(steps):
        found.log(step=10 * (k + 1), log_likelihood=-20.0 + k, kl=1.0 + k / 2, noise=0.1, lr=0.01, seconds=float(k))
    return found


def test_the_bound_is_the_difference_of_its_terms() -> None:
    found = history()
    assert found.elbo == [-21.0, -20.5, -20.0]
    assert found.per_datapoint == [-2.1, -2.05, -2.0]
    assert len(found) == 3


def test_plain_lists_go_to_json_and_back() -> None:
    found = history()
    found.events.append("something happened")
    found.stopped = "ran"
    again = vb.History.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found
    again.step.append(1)
    assert len(found.step) == 3


class Number(float):
    """One that is not to be copied."""

    def __deepcopy__(self, memo: object) -> "Number":
        raise AssertionError


def test_lists_are_copied_in_one_go() -> None:
    """Training keeps its state at every entry: number by number, a run would slow down as its history grows."""
    found = history()
    found.elbo[-1] = Number(-20.0)
    kept = found.to_dict()
    again = vb.History.from_dict(kept)
    for owner in (found, again):
        owner.log(step=40, log_likelihood=-1.0, kl=1.0, noise=0.1, lr=0.01, seconds=2.0)
        assert [len(kept[name]) for name in ("step", "elbo", "seconds")] == [3, 3, 3]


def test_printing() -> None:
    assert repr(vb.History()) == "History(empty)"
    assert repr(vb.History(stopped="gave up")) == "History(empty, gave up)"
    assert "30 steps, elbo -21 -> -20" in repr(history())
    assert "unfinished" in repr(history())


def test_plot() -> None:
    import matplotlib.pyplot as plt

    axes = history().plot()
    lines = axes.get_lines()
    assert lines
    assert list(lines[0].get_xdata()) == [10, 20, 30]
    mine = plt.figure().add_subplot()
    assert history().plot(ax=mine) is mine
    plt.close("all")


def test_two_histories_do_not_share_lists() -> None:
    first, second = vb.History(), vb.History()
    first.log(step=1, log_likelihood=0.0, kl=0.0, noise=0.1, lr=0.1, seconds=0.0)
    assert second.step == []
    assert first.per_datapoint == [0.0]  # no division by a missing number of rows
    with pytest.raises(TypeError):
        vb.History.from_dict({"unknown": 1})
