"""The commands of the benchmark system, for both front ends: `vibayes bench` and `python -m vibayes.experiments`."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from vibayes import datasets as data_sets
from vibayes.errors import ConfigurationError, DataError
from vibayes.experiments import catalogue
from vibayes.experiments.display import duration
from vibayes.experiments.executors import make_executor
from vibayes.experiments.experiment import Experiment, Unit, option_changes
from vibayes.experiments.figures import compare_figures, read_figures
from vibayes.experiments.names import check_name
from vibayes.experiments.outline import outline
from vibayes.experiments.report import Section, page
from vibayes.experiments.results import finished, read_result, write_file
from vibayes.experiments.runner import Settings, Summary, run_sweep
from vibayes.experiments.sweep import Selection, expand
from vibayes.experiments.tables import FORMATS, compare, render, require_tables

__all__ = ["describe", "draw", "report", "run_experiment", "select", "status", "table"]

DEFAULT_OUT = Path("results")

# Draws the named figures of an experiment, or all, into a folder, with a seed.
DrawFigures = Callable[[Experiment, Path, Sequence[str] | None, int], None]


def status(experiment: Experiment) -> str:
    """In a few words, whether an experiment can run."""
    if experiment.needs:
        return f"needs {experiment.needs}, not available yet"
    if experiment.script:
        return "ready"
    there = catalogue.available(experiment)
    missing = [name for name in experiment.models if name not in there]
    return f"ready: {', '.join(there)}" + (f"; not yet: {', '.join(missing)}" if missing else "")


def words(given: Sequence[str] | None) -> list[str] | None:
    """Names from options that may hold several, with commas between them."""
    if not given:
        return None
    found = [part.strip() for text in given for part in text.split(",") if part.strip()]
    if not found:  # such as a variable of a shell that is not set
        raise ConfigurationError(f"An option got no name, but {given[0]!r}; leave it out to choose all.")
    return found


def typed_value(text: str) -> Any:
    """An option's value as it was typed: JSON, or else the text itself."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except ValueError:
        return text.strip()


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")  # but Python reads NaN and Infinity, which no option takes


def typed_text(value: Any) -> str:
    """How an option's value is typed, so that `typed_value` gives it back.

    >>> typed_text([0.5]), typed_text(None), typed_text("greedy"), typed_text("1")
    ('[0.5]', 'null', 'greedy', '"1"')
    """
    plain = isinstance(value, str) and typed_value(value) == value
    return value if plain else json.dumps(value, separators=(",", ":"))


def select(
    *,
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    depths: str | None = None,
    priors: Sequence[str] | None = None,
    splits: str | None = None,
    steps: int | None = None,
    dtype: str | None = None,
    changes: Sequence[str] | None = None,
    preset: str | None = None,
) -> Selection:
    """A selection from what was typed; `changes` are `KEY=VALUE` with JSON values."""
    changed: dict[str, Any] = {}
    for text in changes or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"--set takes KEY=VALUE, such as lr=0.01; got {text!r}.")
        changed[key.strip()] = typed_value(value)
    return Selection(words(datasets), words(models), depths, words(priors), splits, steps, dtype, changed, preset)


def describe(name: str, selection: Selection | None = None) -> str:
    """All that an experiment is, as text; of a selection of its runs also the folders of their results."""
    experiment = catalogue.get(name)
    return outline(experiment, status(experiment), selection or Selection())


def run_experiment(
    name: str,
    selection: Selection,
    settings: Settings,
    *,
    executor: str,
    workers: int | None,
    address: str | None,
    figures: Sequence[str] | None,
    seed: int | None,
    draw_figures: DrawFigures,
) -> int:
    """Run an experiment; 0 when all went well, 1 when a part of it failed.

    Figures are drawn by `draw_figures`, which prints their numbers as its front end can.
    """
    experiment = catalogue.get(name)
    if experiment.script:
        usual = Settings(settings.out, command=settings.command, show=settings.show)
        given = (selection, settings, executor, workers, address)
        if given != (Selection(), usual, "process", None, None):
            raise ConfigurationError(
                f"{experiment.name} draws figures; it takes --figures, --seed, --out and --quiet only."
            )
        draw_figures(experiment, settings.out, words(figures), seed or 0)
        return 0
    if figures:
        raise ConfigurationError(f"{experiment.name} is a sweep; --figures belongs to experiments that draw figures.")
    if seed is not None:
        raise ConfigurationError(
            f"{experiment.name} is a sweep; --seed belongs to experiments that draw figures. Here a run's seed is the "
            f"option seed plus its split: --set seed={seed}."
        )
    for key, value in {"group": settings.group, "chunk": settings.chunk}.items():
        if value is not None and value < 1:
            raise ConfigurationError(f"--{key} must be a positive whole number, got {value}.")
    if not settings.checkpoint_seconds >= 0:
        raise ConfigurationError(f"--checkpoint-seconds must not be negative, got {settings.checkpoint_seconds}.")
    units = expand(experiment, selection)
    for dataset in sorted({unit.dataset for unit in units}):  # all of them, before hours of training on the first
        data_sets.info(dataset)
    summary = run_sweep(units, settings, make_executor(executor, workers=workers, address=address))
    _conclude(summary, experiment, selection, settings.out)
    return 0 if summary.ok else 1


def draw(name: str, *, out: Path = DEFAULT_OUT) -> list[Path]:
    """Draw an experiment's figures anew from the arrays that a run has left."""
    experiment = catalogue.get(name)
    drawing = import_module(experiment.script).DRAWING if experiment.script else None
    if drawing is None or not drawing.paint:
        raise ConfigurationError(f"{experiment.name} keeps no arrays of its figures; `run` draws them.")
    drawn: list[Path] = drawing.draw(out / experiment.name)
    return drawn


def _conclude(summary: Summary, experiment: Experiment, selection: Selection, out: Path) -> None:
    parts = [f"{summary.wanted} runs: {summary.before} finished before, {summary.trained} trained now"]
    if summary.elsewhere:
        parts.append(f"{summary.elsewhere} by other processes")
    if summary.left:
        parts.append(f"{summary.left} not finished")
    print(f"{', '.join(parts)} ({duration(summary.seconds)}).")
    for message in summary.failed:
        print(f"failed: {message}", file=sys.stderr)
    if summary.left:
        return
    if experiment.tables:
        asked = replace(selection, datasets=None, models=None, depths=None, priors=None, splits=None)
        flags = [*_model_flags(experiment, asked, selection.models or ()), *_option_flags(selection)]
        shown = ["vibayes", "bench", "table", experiment.name, "--out", str(out), *flags]
        print(f"See: {shlex.join(shown)}")
    else:  # no numbers of the thesis to set them beside
        print(f"Results: {out / (experiment.runs_of or experiment.name)}")


def _option_flags(selection: Selection) -> list[str]:
    """What was typed to change options."""
    flags = [] if selection.preset is None else ["--preset", selection.preset]
    flags += [] if selection.steps is None else ["--steps", str(selection.steps)]
    flags += [] if selection.dtype is None else ["--dtype", selection.dtype]
    return flags + [
        part for key, value in selection.changes.items() for part in ("--set", f"{key}={typed_text(value)}")
    ]


def _model_flags(experiment: Experiment, selection: Selection, models: Iterable[str]) -> list[str]:
    """`--models` with these, where others of the selected models do not know an option that is changed."""
    try:
        expand(experiment, selection)
    except ConfigurationError:
        return ["--models", ",".join(dict.fromkeys(models))]
    return []


def table(
    name: str,
    selection: Selection,
    *,
    out: Path = DEFAULT_OUT,
    form: str = "md",
    everything: bool = False,
    need_folder: bool = False,
) -> str:
    """The experiment's tables as text.

    Args:
        name: of the experiment.
        selection: the runs, of a sweep; there is nothing to select of figures.
        out: the folder of results.
        form: `"md"`, `"csv"` or `"json"`.
        everything: whether rows without a result of ours are shown, too.
        need_folder: whether a missing folder of results is an error; else there is no number of ours.
    """
    check_name(form, FORMATS, "format")
    experiment = catalogue.get(name)
    if experiment.script:
        require_tables(experiment)
    if need_folder and not out.is_dir() and not (everything and out == DEFAULT_OUT):
        raise ConfigurationError(_no_folder(experiment.name, out))
    if experiment.script:
        if selection != Selection():
            raise ConfigurationError(
                f"{experiment.name} draws figures; its table takes --format, --all and --out only."
            )
        text = render(compare_figures(experiment, out), form, everything=everything)
        return f"{text}\n{experiment.note}\n" if form == "md" and experiment.note else text
    units = [] if experiment.needs else expand(experiment, selection)
    models = None if selection.models is None else sorted({unit.model for unit in units})
    rows = compare(experiment, units, out, models)
    text = render(rows, form, everything=everything)
    if form == "md" and not rows:
        text = f"There are no results of these runs in {out}.\n"
    others = _other_options(experiment, selection, units, out) if form == "md" and units else []
    if others:
        text += "\nThere are results with other options too; these show them:\n"
        text += "".join(f"- {line}\n" for line in others)
    return text


def _no_folder(name: str, out: Path) -> str:
    if out.exists():
        return f"--out must be a folder of results; got the file {out}."
    if out != DEFAULT_OUT:
        return f"There is no folder of results {out}; give --out the folder that `bench run` wrote to."
    return (
        f"Nothing has been run yet: there is no folder {out} here. Run `vibayes bench run {name}` first, give another "
        "folder with --out, or see the thesis's numbers alone with --all."
    )


def _other_options(experiment: Experiment, selection: Selection, units: Sequence[Unit], out: Path) -> list[str]:
    """The selected runs' results with options that the table does not show: how to see them, and what they are of."""
    shown = {str(unit.family) for unit in units}
    own = {_kind(u.dataset, u.model, u.options): u for u in expand(experiment, _unchanged(selection))}
    found: dict[str, list[tuple[Unit, str]]] = {}
    changed: dict[str, Selection] = {}
    for folder in sorted({p.parent for p in (out / (experiment.runs_of or experiment.name)).glob("*/*/split-*.json")}):
        files = sorted(folder.glob("split-*.json"))
        if folder.relative_to(out).as_posix() in shown:
            continue
        try:
            result = read_result(files[0])
        except DataError:  # named where it would be used
            continue
        unit = own.get(_kind(result["dataset"], result["model"], result["options"]))
        if unit is not None:
            preset, changes = _difference(experiment, unit, result["options"])
            asked = replace(_unchanged(selection), changes=changes, preset=preset)
            flags = shlex.join(_option_flags(asked))
            changed[flags] = asked
            found.setdefault(flags, []).append((unit, f"{unit.title} ({len(files)} runs)"))
    lines = []
    for flags, runs in found.items():
        models = shlex.join(_model_flags(experiment, changed[flags], (unit.model for unit, _ in runs)))
        how = " ".join(filter(None, (models, flags)))
        lines.append(f"{f'`{how}`' if how else 'no option'}: {', '.join(title for _, title in runs)}")
    return lines


def _difference(experiment: Experiment, unit: Unit, options: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """What makes these options of a run's own: a preset where that is all, or changes."""
    chosen = unit.options["model"]
    for preset in experiment.models[unit.model].presets:
        named = experiment.options_of(
            unit.model, unit.dataset, depth=chosen.get("depth"), prior=chosen.get("prior"), preset=preset
        )
        if named == options:
            return preset, {}
    return None, option_changes(unit.options, options)


def _unchanged(selection: Selection) -> Selection:
    return replace(selection, steps=None, dtype=None, changes={}, preset=None)


def _kind(dataset: str, model: str, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """What stays when options change: what a row of a table is about."""
    chosen = options.get("model", {})
    return dataset, model, chosen.get("depth"), chosen.get("prior")


def report(names: Sequence[str] | None, *, out: Path = DEFAULT_OUT, file: Path = Path("report.html")) -> Path:
    """Write the report on all experiments that have results, or on those named."""
    if not out.is_dir():
        raise ConfigurationError(f"There is no folder of results {out}; run an experiment first, or give --results.")
    chosen = [catalogue.get(name) for name in names] if names else list(catalogue.EXPERIMENTS.values())
    sections = []
    for experiment in chosen:
        if experiment.needs and not names:
            continue
        if experiment.script:
            figures = read_figures(experiment, out)
            if names or figures is not None:
                sections.append(Section(experiment, [], compare_figures(experiment, out), out, figures))
            continue
        found = []
        for preset in (None, *experiment.presets):
            units = [] if experiment.needs else expand(experiment, Selection(preset=preset))
            if any(finished(out, unit) is not None for unit in units):
                found.append(Section(experiment, units, compare(experiment, units, out), out, preset=preset))
        if names and not found:
            found.append(Section(experiment, units, compare(experiment, units, out), out))
        sections += found
    if not sections:
        raise ConfigurationError(
            f"There are no results in {out} of runs with the experiments' own options (runs with others, such as "
            "--steps, are not in the report). Run an experiment first, or give --results."
        )
    try:
        write_file(file, page(sections, out.resolve()))
    except OSError as error:
        raise ConfigurationError(f"The report {file} cannot be written ({error.strerror}).") from error
    return file
