"""What an experiment is, as text: data sets, models and options, those that many runs share written once."""

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from vibayes.experiments.display import steps_of
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.experiment import Experiment, Unit
from vibayes.experiments.sweep import Selection, by_family, expand

__all__ = ["outline"]

_VARIED = ("depth", "prior")  # options of the model by which runs stand side by side in a table


def outline(experiment: Experiment, status: str, selection: Selection) -> str:
    """All that an experiment is; of a selection of its runs also the folders of their results.

    Args:
        experiment: what to tell of.
        status: whether it can run.
        selection: its runs.
    """
    lines = [f"{experiment.name}: {experiment.title}", f"  {status}", f"  thesis: {', '.join(experiment.labels)}"]
    if experiment.tables:
        lines.append(f"  reference tables: {', '.join(experiment.tables)}")
    if experiment.note:
        lines.append(f"  {experiment.note}")
    if experiment.script:
        lines += ["", *_figures(import_module(experiment.script).DRAWING)]
    if experiment.needs or experiment.script:
        return "\n".join(lines)
    lines.append(f"  metrics: {', '.join(experiment.metrics)}")
    lines += [f"  --preset {preset}: {what}" for preset, what in experiment.presets.items()]
    alike: dict[str, list[Unit]] = {}
    for unit in expand(experiment, selection):
        alike.setdefault(json.dumps([unit.model, _shared(unit)], sort_keys=True), []).append(unit)
    for units in alike.values():
        lines += ["", *_told(units, folders=selection != Selection())]
    if selection == Selection():
        lines += ["", "With --datasets, --models, --depths, --priors, --set: the folders of such runs' results, too."]
    return "\n".join(lines)


def _figures(drawing: Drawing) -> list[str]:
    """The figures that `--figures` takes, and what they want."""
    lines = []
    for name, label in drawing.labels.items():
        wants = [f"reads {drawing.files[name]}"] if name in drawing.files else []
        wants += ["needs a GPU"] if name in drawing.on_gpu else []
        wants += ["drawn when asked for by name"] if name in drawing.on_request else []
        lines.append(f"  --figures {name}: {'; '.join([label, *wants])}")
    return lines


def _shared(unit: Unit) -> dict[str, Any]:
    """Its options but for depth and prior."""
    model = {key: value for key, value in unit.options["model"].items() if key not in _VARIED}
    return {**unit.options, "model": model}


def _told(units: Sequence[Unit], *, folders: bool) -> list[str]:
    """Runs of one model that differ in nothing but data set, depth, prior and split."""
    options = _shared(units[0])
    axes = [
        f"{name} {_listed(unit.options['model'][name] for unit in units)}"
        for name in _VARIED
        if units[0].options["model"].get(name) is not None
    ]
    lines = [f"  {', '.join([units[0].model, *axes])}; {options['dtype']}, seed {options['seed']} + split"]
    families = list(by_family(units).values())
    where: dict[tuple[int, int], list[str]] = {}
    for members in families:
        where.setdefault((len(members), steps_of(members[0])), []).append(members[0].dataset)
    lines += [
        f"    {_listed(datasets)}: {splits} split{'s' if splits > 1 else ''}, {steps} steps"
        for (splits, steps), datasets in where.items()
    ]
    for section, values in options.items():
        if isinstance(values, Mapping):
            shown = ", ".join(f"{key}={value}" for key, value in values.items() if value is not None)
            lines.append(f"    {section}: {shown}")
    if folders:
        lines += [f"    {members[0].title}: {members[0].family}" for members in families]
    return lines


def _listed(values: Iterable[object]) -> str:
    """Each once, with commas between them.

    >>> _listed([2, 3, 2])
    '2, 3'
    """
    return ", ".join(str(value) for value in dict.fromkeys(values))
