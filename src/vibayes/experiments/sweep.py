"""From an experiment to runs: filters, changed options, and groups that train together."""

import contextlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from vibayes.errors import ConfigurationError
from vibayes.experiments import claims
from vibayes.experiments.catalogue import available
from vibayes.experiments.experiment import Experiment, Unit, override
from vibayes.experiments.names import check_name, parse_numbers, pick
from vibayes.experiments.options import check_value
from vibayes.experiments.results import code_digest, finished, write_file

__all__ = ["WORK", "Group", "Selection", "by_family", "check_preset", "expand", "plan", "tidy"]

# Where a sweep keeps its checkpoints and claims, below the folder of results.
WORK = ".work"

T = TypeVar("T")


@dataclass(frozen=True)
class Selection:
    """Which runs of an experiment, and with which options changed; None means all and none.

    Attributes:
        datasets: names.
        models: names.
        depths: numbers, for experiments with depths.
        priors: names, for experiments with priors.
        splits: numbers as text, `"0-4,7"`.
        steps: how many training steps.
        dtype: `"float32"` or `"float64"`.
        changes: other options by name, such as `{"lr": 0.01}`.
        preset: the name of a start or schedule of the experiment's; only models that have it are selected.
    """

    datasets: Sequence[str] | None = None
    models: Sequence[str] | None = None
    depths: str | None = None
    priors: Sequence[str] | None = None
    splits: str | None = None
    steps: int | None = None
    dtype: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None


def expand(experiment: Experiment, selection: Selection | None = None) -> list[Unit]:
    """All runs that are selected, in order: data set, model, depth, prior, split."""
    chosen = selection or Selection()
    if experiment.needs:
        raise ConfigurationError(f"{experiment.name} needs {experiment.needs}, not available yet.")
    names = pick(chosen.datasets, experiment.datasets, f"data set of {experiment.name}")
    preset = None if chosen.preset is None else check_preset(experiment, chosen.preset)
    models = _models(experiment, chosen, preset)
    splits = None if chosen.splits is None else parse_numbers(chosen.splits)
    depths = None if chosen.depths is None else parse_numbers(chosen.depths, "depths")
    _check_axis(experiment, "depths", depths, {d for m in models for d in experiment.models[m].depths})
    known_priors = {p for m in models for p in experiment.models[m].priors}
    _check_axis(experiment, "priors", chosen.priors, known_priors)
    priors = None if chosen.priors is None else pick(chosen.priors, sorted(known_priors), "prior")
    known = {k for name in names for k in experiment.splits[name]}
    unknown = sorted(set(splits or ()) - known)
    if unknown:
        raise ConfigurationError(
            f"{', '.join(names)} of {experiment.name} have splits {min(known)} to {max(known)}; got {unknown[0]}."
        )
    units = []
    for dataset in names:
        for model in models:
            spec = experiment.models[model]
            if spec.datasets and dataset not in spec.datasets:
                continue
            for depth in _axis(spec.depths, depths):
                for prior in _axis(spec.priors, priors):
                    options = experiment.options_of(model, dataset, depth=depth, prior=prior, preset=preset)
                    options = _changed(options, chosen)
                    units += [
                        Unit(
                            experiment=experiment.runs_of or experiment.name,
                            dataset=dataset,
                            model=model,
                            builder=spec.builder,
                            options=options,
                            split=split,
                            metrics=experiment.metrics,
                            marks=spec.columns,
                        )
                        for split in experiment.splits[dataset]
                        if splits is None or split in splits
                    ]
    if not units and any(part is not None for part in (chosen.datasets, chosen.models, depths, priors, splits)):
        raise ConfigurationError(
            f"No run of {experiment.name} has all that was asked for: the models {', '.join(models)} are not run on "
            f"{', '.join(names)} with these depths, priors and splits. See `vibayes bench show {experiment.name}`."
        )
    return units


def _axis(known: Sequence[T], wanted: Sequence[T] | None) -> list[T | None]:
    """The values of an axis that are wanted; one None where a model has no such axis."""
    return [value for value in known if wanted is None or value in wanted] if known else [None]


def check_preset(experiment: Experiment, name: str) -> str:
    """The name of a preset of an experiment, or an error that lists them."""
    if not experiment.presets:
        raise ConfigurationError(f"{experiment.name} has no presets; leave --preset out.")
    return check_name(name, experiment.presets, f"preset of {experiment.name}")


def _models(experiment: Experiment, chosen: Selection, preset: str | None) -> list[str]:
    there = available(experiment)
    having = [name for name in there if preset is None or preset in experiment.models[name].presets]
    if chosen.models is None:
        return having
    names = [check_name(name, experiment.models, f"model of {experiment.name}") for name in chosen.models]
    for name in names:
        if name not in there:
            raise ConfigurationError(f"{name} of {experiment.name} is not available yet; there is {', '.join(there)}.")
        if name not in having:
            raise ConfigurationError(
                f"{name} of {experiment.name} has no preset {preset!r}; {', '.join(having)} "
                f"{'have' if len(having) > 1 else 'has'}."
            )
    return [name for name in there if name in names]


def _check_axis(experiment: Experiment, what: str, wanted: Sequence[Any] | None, known: set[Any]) -> None:
    if wanted and not known:
        raise ConfigurationError(f"The models of {experiment.name} have no {what}; leave --{what} out.")
    if what == "depths" and known.intersection(wanted or ()):
        return  # a range may reach over numbers that are none
    for value in wanted or ():
        check_name(str(value), [str(k) for k in sorted(known)], what[:-1])


def _changed(options: dict[str, Any], chosen: Selection) -> dict[str, Any]:
    """Options with what was asked for by hand, which comes last."""
    if chosen.steps is not None:
        if chosen.steps < 1:
            raise ConfigurationError(f"steps must be a positive whole number, got {chosen.steps}.")
        options["training"]["steps"] = chosen.steps
    if chosen.dtype is not None:
        options["dtype"] = check_value("dtype", chosen.dtype)
    for key, value in chosen.changes.items():
        options = override(options, key, value)
    return options


def by_family(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    """Runs that differ in the split only, together, by the name of their folder."""
    found: dict[str, list[Unit]] = {}
    for unit in units:
        found.setdefault(str(unit.family), []).append(unit)
    return found


# -- groups -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs that train together, and where they keep their state.

    Attributes:
        units: the runs; on a resume the same as at the start, so that the same numbers come out.
        folder: for the checkpoint.
        how: what was decided at the start: `chunk`, `executor`, the code's digest.
    """

    units: tuple[Unit, ...]
    folder: Path
    how: Mapping[str, Any]

    @property
    def lock(self) -> Path:
        """The claim of whoever works on it."""
        return self.folder.with_name(self.folder.name + ".lock")

    @property
    def title(self) -> str:
        """For people: what is trained."""
        splits = [unit.split for unit in self.units]
        together = len(splits) > 2 and splits == list(range(splits[0], splits[-1] + 1))
        shown = f"{splits[0]}-{splits[-1]}" if together else ",".join(map(str, splits))
        return f"{self.units[0].title} split{'s' if len(splits) > 1 else ''} {shown}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, to send to another process."""
        return {"units": [u.to_dict() for u in self.units], "folder": str(self.folder), "how": dict(self.how)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Group":
        """The inverse of `to_dict`."""
        return cls(tuple(map(Unit.from_dict, values["units"])), Path(values["folder"]), values["how"])


def plan(out: Path, units: Sequence[Unit], *, size: int | None, how: Mapping[str, Any]) -> list[Group]:
    """Groups that cover all unfinished runs.

    The first process to plan a family writes the groups down, and all others, and a resumed sweep, keep to them.

    Args:
        out: the folder of results.
        units: the runs that are wanted.
        size: how many runs train together at most; None: all splits of a family.
        how: what to note with new groups.
    """
    groups = []
    for family, members in by_family(units).items():
        todo = [unit for unit in members if finished(out, unit) is None]
        if not todo:
            tidy(out, members)
            continue
        folder = out / WORK / re.sub(r"[^\w.-]", "--", family)
        claim = claims.take(folder / "plan.lock", out / WORK / "guard")
        while claim is None:  # held for milliseconds
            claims.wait()
            claim = claims.take(folder / "plan.lock", out / WORK / "guard")
        with claim:
            groups += _groups_of(out, folder, members, todo, size, how)
    return groups


def _groups_of(
    out: Path, folder: Path, members: Sequence[Unit], todo: Sequence[Unit], size: int | None, how: Mapping[str, Any]
) -> list[Group]:
    file = folder / "plan.json"
    try:
        entries: list[dict[str, Any]] = json.loads(file.read_text())
        assert all(set(entry) == {"splits", "how"} for entry in entries)
    except (OSError, json.JSONDecodeError, AssertionError, TypeError):
        entries = []
    example = members[0]
    missing = {unit.split for unit in todo}
    groups, covered = [], set()
    for number, entry in enumerate(entries):
        own = tuple(_sibling(example, split) for split in entry["splits"])
        left = {unit.split for unit in own if finished(out, unit) is None}
        begun = (folder / f"group-{number}").exists() or (folder / f"group-{number}.lock").exists()
        # a finished group of which a result was lost later is not trained again as a whole
        if left & missing and (len(left) == len(own) or begun):
            groups.append(Group(own, folder / f"group-{number}", entry["how"]))
            covered |= left
    rest = sorted(missing - covered)
    step = size or max(len(rest), 1)
    for first in range(0, len(rest), step):
        splits = rest[first : first + step]
        note = {**how, "code": code_digest()}
        groups.append(Group(tuple(_sibling(example, s) for s in splits), folder / f"group-{len(entries)}", note))
        entries.append({"splits": splits, "how": note})
    if rest:
        write_file(file, json.dumps(entries))
    return groups


def _sibling(unit: Unit, split: int) -> Unit:
    return Unit.from_dict({**unit.to_dict(), "split": split})


def tidy(out: Path, units: Sequence[Unit]) -> None:
    """Remove what a family kept for resuming, once all its planned runs are finished."""
    for family, members in by_family(units).items():
        folder = out / WORK / re.sub(r"[^\w.-]", "--", family)
        if not folder.exists():
            continue
        claim = claims.take(folder / "plan.lock", out / WORK / "guard")
        if claim is None:
            continue
        with claim:
            try:
                entries = json.loads((folder / "plan.json").read_text())
                planned = [split for entry in entries for split in entry["splits"]]
            except (OSError, json.JSONDecodeError, KeyError, TypeError):
                planned = []
            busy = any(not claims.free(lock) for lock in folder.glob("group-*.lock"))
            if busy or any(finished(out, _sibling(members[0], split)) is None for split in planned):
                continue
            for path in folder.glob("group-*"):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            (folder / "plan.json").unlink(missing_ok=True)
        with claims.guard(out / WORK / "guard"), contextlib.suppress(OSError):
            folder.rmdir()  # unless somebody has just come in
