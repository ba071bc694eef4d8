"""The comparison: train the families that suit the table, rank them."""

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vibayes.compare.data import MAX_TEST_ROWS, Data
from vibayes.compare.display import Display, Silent
from vibayes.compare.families import FAMILIES, Family, Problem, choose
from vibayes.compare.ranking import Difference, Result, rank
from vibayes.compare.scores import LEVEL, bound, log_likelihoods, scores
from vibayes.compare.training import NO_TIME, NoTimeError, Trained, train
from vibayes.conjugate.base import ConjugateModel
from vibayes.data import check_count
from vibayes.errors import ConfigurationError, DataError, VibayesError
from vibayes.trainable import TrainableModel
from vibayes.training.run import find_device

__all__ = ["Comparison", "Validation", "compare"]

DEFAULT_BUDGET = 5.0  # minutes
# The part of the budget that training may take; the rest is for measuring and for the report.
FOR_TRAINING = 0.85
# Intervals that hold fewer of the held-out values than they promise, by this share and by more than chance, are narrow.
NARROW = 0.05


@dataclass(frozen=True)
class Validation:
    """The contest of a family that is not ranked with the best that is, on rows that neither was trained on.

    Attributes:
        family: the challenger.
        rows: how many validation rows.
        log_likelihood: the challenger's mean, targets in units of their standard deviation.
        winner_log_likelihood: the other's, learned from the same rows (an exact GP's hyperparameters from all).
        difference: challenger less winner, over rows.
        stderr: its standard error.
    """

    family: str
    rows: int
    log_likelihood: float
    winner_log_likelihood: float
    difference: float
    stderr: float

    @property
    def won(self) -> bool:
        """Whether the challenger is better by more than two standard errors."""
        return self.difference > 2.0 * self.stderr


@dataclass
class Comparison:
    """What `compare` found.

    Attributes:
        data: the table and its parts.
        results: trained families, in the order they were trained.
        skipped: families that were not, with the reason.
        validation: the contest of deep kernel learning with the winner, where it took place.
        seconds: how long it took.
        minutes: the budget.
        interrupted: whether someone ended it early.
    """

    data: Data
    results: list[Result]
    skipped: dict[str, str]
    validation: Validation | None
    seconds: float
    minutes: float
    interrupted: bool = False

    @property
    def ranking(self) -> list[tuple[Result, Difference | None]]:
        """Ranked families, best first."""
        return rank(self.results)

    @property
    def winner(self) -> Result:
        """The family to use: best by evidence, unless deep kernel learning beat it on validation rows."""
        if self.validation is not None and self.validation.won:
            return next(r for r in self.results if r.family == self.validation.family)
        return self.ranking[0][0]

    @property
    def model(self) -> TrainableModel:
        """The model to use: the winner's seed with the highest bound."""
        return self.winner.trained.models[self.winner.best]

    def verdict(self) -> str:
        """The outcome in a few sentences."""
        winner = self.winner
        best, *others = self.ranking
        said = f"{winner.about.title} is the one to use."
        if winner is not best[0]:
            assert self.validation is not None
            return (
                f"{said} By evidence {best[0].about.title} comes first, but on {self.validation.rows} validation rows "
                f"that neither saw, {winner.about.title} is better by {self.validation.difference:.3f} ± "
                f"{self.validation.stderr:.3f} nats per row.{self._caution()}"
            )
        if others:
            second, gap = others[0]
            assert gap is not None
            sure = "clearly ahead of" if gap.clear else "not clearly ahead of"
            margin = f"{gap.mean:.3f} ± {gap.stderr:.3f} nats per row ({gap.mean * gap.n_data:.1f} in all)"
            said += f" Its evidence is {sure} that of {second.about.title}, by {margin}."
        if winner.family == "gp" and others:
            said += " So the plain Gaussian process wins."
        rising = [r.about.title for r in self.results if r.about.ranked and r.rising]
        deeper = {family.name for family in FAMILIES.values() if family.ranked and not family.gp}
        if rising:
            said += (
                f" Still rising when their time was over: {', '.join(rising)}; a larger budget may change the ranking."
            )
        elif winner.family == "gp" and deeper <= {r.family for r in self.results}:
            said += " On this table nothing deeper is worth its trouble."
        left = [r.about.title for r in self.results if r.trained.out_of_reach]
        if left:
            said += (
                f" Ended before their time, because their evidence would not have reached the best: {', '.join(left)}."
            )
        untried = [FAMILIES[name].title for name, reason in self.skipped.items() if reason.startswith(NO_TIME)]
        if untried:
            said += f" Not tried for lack of time, and perhaps better: {', '.join(untried)}."
        return said + self._caution()

    def _caution(self) -> str:
        """What the held-out rows say against the winner, whom they do not choose."""
        found, said = self.winner.scores[self.winner.best], ""
        if found.get("r2", 1.0) <= 0.0:
            said += " But it predicts the held-out rows no better than their mean would."
        elif "accuracy" in found and found["log_likelihood"] <= self._by_frequencies():
            said += " But it predicts the held-out rows no better than the frequencies of the classes would."
        share = found.get("coverage_95", 1.0)
        values = len(self.data.test) * len(self.data.target.names)
        if share <= LEVEL - max(NARROW, 3.0 * math.sqrt(LEVEL * (1.0 - LEVEL) / values)):
            said += (
                f" But its intervals are too narrow: of the held-out values, {100 * share:.0f}% lie inside those that "
                f"promise {100 * LEVEL:.0f}%."
            )
        return said

    def _by_frequencies(self) -> float:
        """Mean log probability of the held-out rows' classes by their shares among the training rows."""
        train, test = (self.data.part(rows)[1].long() for rows in (self.data.train, self.data.test))
        shares = torch.bincount(train, minlength=len(self.data.target.labels)).double() / len(train)
        return float(shares[test].log().mean())


def compare(
    data: Data,
    *,
    minutes: float = DEFAULT_BUDGET,
    seeds: int = 3,
    device: str | None = None,
    families: Sequence[str] | None = None,
    steps: int | None = None,
    display: Display | None = None,
) -> Comparison:
    """Train the families that suit the data within a time, and rank them by evidence.

    A family that fails is reported and left out. On `KeyboardInterrupt` the comparison ends with the families trained
    so far.

    Args:
        data: from `prepare`.
        minutes: the time there is, in all.
        seeds: models per family; for exact GPs, starts.
        device: where to train.
        families: names of families, in place of all that suit.
        steps: so many steps for every model, in place of the time: slower machines then give the same result.
        display: hears of the progress.
    """
    _check(data, minutes, seeds, device, steps)
    shown = display or Silent()
    begin = time.monotonic()
    end = begin + 60.0 * minutes
    deadline = begin + FOR_TRAINING * 60.0 * minutes
    problem = data.problem(data.train, minutes)
    chosen, skipped = choose(problem, families)
    shown.begin(chosen, 60.0 * minutes)
    results: list[Result] = []
    validation: Validation | None = None
    interrupted = False
    shares = {family.name: family.time_share(problem) for family in chosen}
    try:
        for family in sorted(chosen, key=lambda family: not family.ranked):
            if steps is None and results and time.monotonic() > end:
                skipped[family.name] = f"{NO_TIME}: others took all of it; give it a larger budget"
                shown.say(f"{family.title}: {skipped[family.name]}")
                continue
            left = max(deadline - time.monotonic(), 0.0)  # a little for everybody until the budget is over
            seconds = max(left * shares[family.name] / sum(shares.values()), 0.02 * 60.0 * minutes)
            del shares[family.name]
            if not family.ranked and not results:
                skipped[family.name] = "nothing to compare it with"
                continue
            shown.family(family, seconds)
            try:
                if family.ranked:
                    best = max((result.elbo for result in results), default=-math.inf)
                    trained = train(
                        family, problem, range(seeds), seconds, device=device, steps=steps, watch=shown.progress,
                        best=best,
                    )  # fmt: skip
                    result = _measure(family, trained, problem, data)
                else:
                    winner = rank(results)[0][0]
                    result, validation = _challenge(
                        family, winner, data, range(seeds), seconds, device, steps, minutes, shown
                    )
            except NoTimeError as error:
                skipped[family.name] = str(error)
                shown.say(f"{family.title}: {error}")
                continue
            except (VibayesError, RuntimeError) as error:
                skipped[family.name] = f"failed: {error}"
                shown.failed(family, str(error))
                continue
            results.append(result)
            shown.result(result)
            if result.trained.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        if not any(result.about.ranked for result in results):
            raise
        interrupted = True
        for family in chosen:
            if family.name not in skipped and all(result.family != family.name for result in results):
                skipped[family.name] = "interrupted"
    if not any(result.about.ranked for result in results):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise DataError(f"No model could be trained on this table. {reasons}")
    return Comparison(data, results, skipped, validation, time.monotonic() - begin, minutes, interrupted)


def _check(data: Data, minutes: float, seeds: int, device: str | None, steps: int | None) -> None:
    """Refuse what no comparison can be made with."""
    check_count(seeds, "seeds")
    if steps is not None:
        check_count(steps, "steps")
    if device is not None:
        find_device(device)
    if not minutes > 0:
        raise ConfigurationError(f"The budget must be positive, got {minutes} minutes.")
    if len(data.test) == 0:
        raise ConfigurationError("A comparison needs held-out rows; let it hold out more than none.")


def _measure(family: Family, trained: Trained, problem: Problem, data: Data) -> Result:
    x, y = data.part(data.test)
    return Result(
        family.name,
        trained,
        [bound(model, problem.x, problem.y) for model in trained.models],
        [scores(model, x, y) for model in trained.models],
    )


def _challenge(
    family: Family,
    winner: Result,
    data: Data,
    seeds: Sequence[int],
    seconds: float,
    device: str | None,
    steps: int | None,
    minutes: float,
    shown: Display,
) -> tuple[Result, Validation]:
    """Train a family that is not ranked without some validation rows, and the winner anew without them, too.

    An exact GP forgets these rows but keeps its few hyperparameters, which is in its favour and takes no time.
    """
    random = np.random.RandomState(1)
    order = random.permutation(data.train)
    size = min(max(20, round(0.1 * len(order))), MAX_TEST_ROWS)
    problem = data.problem(np.sort(order[size:]), minutes)
    exact = winner.trained.models[winner.best]
    part = 1.0 if isinstance(exact, ConjugateModel) else 0.6
    trained = train(family, problem, seeds, part * seconds, device=device, steps=steps, watch=shown.progress)
    result = _measure(family, trained, problem, data)
    other: TrainableModel
    if isinstance(exact, ConjugateModel):
        other = exact = copy.deepcopy(exact)
        exact.condition(problem.x, problem.y)
    else:
        again = train(winner.about, problem, seeds[:1], 0.4 * seconds, device=device, steps=steps)
        other, trained.interrupted = again.models[0], trained.interrupted or again.interrupted
    x, y = data.part(np.sort(order[:size]))
    mine = log_likelihoods(trained.models[result.best], x, y)
    theirs = log_likelihoods(other, x, y)
    gap = mine - theirs
    validation = Validation(
        family.name, len(gap), float(mine.mean()), float(theirs.mean()), float(gap.mean()),
        float(gap.std(ddof=1) / math.sqrt(len(gap))),
    )  # fmt: skip
    return result, validation
