"""The comparison: hold out rows, train the families that suit the table, rank them."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vibayes.compare.families import Family, Problem, choose
from vibayes.compare.ranking import Difference, Result, rank
from vibayes.compare.scores import bound, log_likelihoods, scores
from vibayes.compare.training import Trained, train
from vibayes.data import check_count
from vibayes.errors import ConfigurationError, DataError, VibayesError
from vibayes.tables import Encoder, Table, Target
from vibayes.tables.columns import count
from vibayes.tables.targets import learn_target
from vibayes.trainable import TrainableModel

__all__ = ["Comparison", "Data", "Display", "Validation", "compare", "prepare"]

DEFAULT_BUDGET = 5.0  # minutes
MIN_ROWS = 10
MAX_TEST_ROWS = 10_000
# The part of the budget that training may take; the rest is for measuring and for the report.
FOR_TRAINING = 0.85


class Display(Protocol):
    """Hears what a comparison does while it does it."""

    def begin(self, families: Sequence[Family], seconds: float) -> None:
        """The families that will be trained and the time there is."""

    def family(self, family: Family, seconds: float) -> None:
        """A family begins, with about so many seconds."""

    def progress(self, fraction: float, bound: float) -> None:
        """How far the family is, and its bound in nats per row so far."""

    def result(self, result: Result) -> None:
        """A family is trained and measured."""

    def failed(self, family: Family, reason: str) -> None:
        """A family could not be trained."""

    def say(self, text: str) -> None:
        """Something worth knowing."""


class Silent:
    """A display that shows nothing."""

    def begin(self, families: Sequence[Family], seconds: float) -> None:
        """Nothing."""

    def family(self, family: Family, seconds: float) -> None:
        """Nothing."""

    def progress(self, fraction: float, bound: float) -> None:
        """Nothing."""

    def result(self, result: Result) -> None:
        """Nothing."""

    def failed(self, family: Family, reason: str) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


@dataclass
class Data:
    """A table ready for models.

    Attributes:
        table: the table.
        encoder: how inputs become numbers; learned from rows that train, and nothing else.
        target: what is predicted.
        x: `[rows, D]`, every row of the table.
        y: the targets of all rows; rows without a target hold zeros.
        known: which rows have a target.
        train: numbers of the rows that train.
        test: numbers of the held-out rows.
        notes: what was decided, in sentences.
    """

    table: Table
    encoder: Encoder
    target: Target
    x: Tensor
    y: Tensor
    known: NDArray[np.bool_]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    notes: list[str] = field(default_factory=list)

    def part(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows."""
        chosen = torch.as_tensor(rows)
        return self.x[chosen], self.y[chosen]

    def problem(self, rows: NDArray[np.int64], minutes: float = math.inf) -> Problem:
        """What models learn from some rows."""
        x, y = self.part(rows)
        return Problem(x, y, self.target.kind, self.target.width, minutes)


@dataclass(frozen=True)
class Validation:
    """The contest of a family that is not ranked with the best that is, on rows that neither was trained on.

    Attributes:
        family: the challenger.
        rows: how many validation rows.
        log_likelihood: the challenger's mean, targets in units of their standard deviation.
        winner_log_likelihood: the other's, trained on the same rows.
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
                f"{self.validation.stderr:.3f} nats per row."
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
        if rising:
            said += (
                f" Still rising when their time was over: {', '.join(rising)}; a larger budget may change the ranking."
            )
        elif winner.family == "gp" and len(others) > 2:
            said += " On this table nothing deeper is worth its trouble."
        return said


def prepare(
    table: Table,
    targets: Sequence[str],
    *,
    task: str | None = None,
    ignore: Sequence[str] = (),
    test: float | NDArray[np.int64] | None = None,
    seed: int = 0,
) -> Data:
    """Encode a table and hold out rows.

    Args:
        table: the table.
        targets: the columns to predict.
        task: `"regression"` or `"classification"`, where it should not be guessed.
        ignore: columns not to be used.
        test: the share of rows to hold out, or their numbers; by default a tenth, at least 20 and at most 10,000 rows,
            and a fifth of tables with fewer than 100 rows. Zero holds out nothing.
        seed: which rows.
    """
    frame = table.frame
    for name in (*targets, *ignore):
        if name in table.repeated:
            raise DataError(
                f"The name {name!r} stands over several columns, so it does not say which one is meant. Rename them."
            )
    for name in ignore:
        if name not in frame.columns:
            raise DataError(f"The table has no column {name!r} to ignore.")
    target = learn_target(frame, list(targets), task)
    y, known = target.encode(frame)
    notes = list(table.notes)
    if not known.all():
        notes.append(f"{count((~known).sum(), 'row')} without a target cannot train or test, but get predictions.")
    rows = np.flatnonzero(known)
    if len(rows) < MIN_ROWS:
        raise DataError(f"The table has {count(len(rows), 'row')} with a target; at least {MIN_ROWS} are needed.")
    train_rows, test_rows = _split(rows, y, target.kind, test, seed)
    encoder = Encoder.learn(frame.iloc[train_rows], leave_out=(*targets, *ignore))
    encoded = encoder.encode(frame)
    return Data(
        table, encoder, target, torch.as_tensor(encoded.x), torch.as_tensor(y), known, train_rows, test_rows,
        notes + encoded.notes,
    )  # fmt: skip


def _split(
    rows: NDArray[np.int64], y: NDArray[Any], kind: str, test: float | NDArray[np.int64] | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that train and rows that test; every class has its share of both."""
    if isinstance(test, np.ndarray):
        held = np.intersect1d(rows, test)
        rest = np.setdiff1d(rows, test)
        if len(held) == 0 or len(rest) < MIN_ROWS // 2:
            raise ConfigurationError("The numbers of test rows leave nothing to train on or nothing to test.")
        return rest, held
    n = len(rows)
    if test is None:
        size = min(max(20, round(0.1 * n)), MAX_TEST_ROWS) if n >= 100 else max(2, round(0.2 * n))
    else:
        if not 0.0 <= test < 1.0:
            raise ConfigurationError(f"The share of test rows must be at least 0 and below 1, got {test}.")
        size = round(test * n)
    random = np.random.RandomState(seed)
    if kind == "regression":
        order = random.permutation(rows)
        return np.sort(order[size:]), np.sort(order[:size])
    held_rows: list[int] = []
    for label in np.unique(y[rows]):
        members = random.permutation(rows[y[rows] == label])
        held_rows += members[: min(round(size * len(members) / n), len(members) - 1)].tolist()
    held = np.sort(np.array(held_rows, dtype=np.int64))
    return np.setdiff1d(rows, held), held


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
    check_count(seeds, "seeds")
    if not minutes > 0:
        raise ConfigurationError(f"The budget must be positive, got {minutes} minutes.")
    if len(data.test) == 0:
        raise ConfigurationError("A comparison needs held-out rows; let it hold out more than none.")
    shown = display or Silent()
    begin = time.monotonic()
    deadline = begin + FOR_TRAINING * 60.0 * minutes
    problem = data.problem(data.train, minutes)
    chosen, skipped = choose(problem, families)
    shown.begin(chosen, 60.0 * minutes)
    results: list[Result] = []
    validation: Validation | None = None
    interrupted = False
    shares = {family.name: family.share for family in chosen}
    try:
        for family in sorted(chosen, key=lambda family: not family.ranked):
            left = max(deadline - time.monotonic(), 0.0)  # nobody is left without any time where others took too much
            seconds = max(left * shares[family.name] / sum(shares.values()), 0.02 * 60.0 * minutes)
            del shares[family.name]
            if not family.ranked and not results:
                skipped[family.name] = "nothing to compare it with"
                continue
            shown.family(family, seconds)
            try:
                if family.ranked:
                    trained = train(
                        family, problem, range(seeds), seconds, device=device, steps=steps, watch=shown.progress
                    )
                    result = _measure(family, trained, problem, data)
                else:
                    winner = rank(results)[0][0]
                    result, validation = _challenge(
                        family, winner, data, range(seeds), seconds, device, steps, minutes, shown
                    )
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
    """Train a family that is not ranked without some validation rows, and the winner anew without them, too."""
    random = np.random.RandomState(1)
    order = random.permutation(data.train)
    size = min(max(20, round(0.1 * len(order))), MAX_TEST_ROWS)
    problem = data.problem(np.sort(order[size:]), minutes)
    trained = train(family, problem, seeds, 0.6 * seconds, device=device, steps=steps, watch=shown.progress)
    result = _measure(family, trained, problem, data)
    again = train(winner.about, problem, seeds[:1], 0.4 * seconds, device=device, steps=steps)
    x, y = data.part(np.sort(order[:size]))
    mine = log_likelihoods(trained.models[result.best], x, y)
    theirs = log_likelihoods(again.models[0], x, y)
    gap = mine - theirs
    validation = Validation(
        family.name, len(gap), float(mine.mean()), float(theirs.mean()), float(gap.mean()),
        float(gap.std(ddof=1) / math.sqrt(len(gap))),
    )  # fmt: skip
    trained.interrupted = trained.interrupted or again.interrupted
    return result, validation
