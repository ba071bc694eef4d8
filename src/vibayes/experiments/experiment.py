"""An experiment is data: what is trained on what, how, and which tables of the thesis it stands beside."""

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from vibayes.errors import ConfigurationError
from vibayes.experiments.names import check_name
from vibayes.experiments.options import check_value

__all__ = ["Experiment", "ModelSpec", "Unit", "merge", "option_changes", "override"]

Options = Mapping[str, Any]

# Options that models and training understand but few experiments set: not part of a run unless somebody sets them.
OPTIONAL = {
    "model": (
        "hidden_outputs",
        "hidden_variance",
        "inducing",
        "jitter",
        "last",
        "last_log_precision",
        "layer_noise",
        "learn_inducing",
        "local_inputs",
        "log_precision",
        "precision",
    ),
    "training": ("lr_drops", "lr_factor", "lr_end", "lr_hold", "lr_warmup", "kl_warmup", "natural_rate", "starts"),
}


@dataclass(frozen=True)
class ModelSpec:
    """One model of an experiment.

    Attributes:
        builder: a name in `vibayes.experiments.models.MODELS`.
        options: sections `data`, `model`, `training` that differ from the experiment's.
        by_dataset: the same for single data sets; these come last.
        depths: the depths it is built with; each becomes `model.depth`. Empty: it has none.
        priors: the priors it is built with; each becomes `model.prior`. Empty: it has none.
        columns: further columns of the thesis's table that tell this model's rows, such as `feature_dim`.
        datasets: the data sets it is run on; all of the experiment's when empty.
        presets: what each preset of the experiment changes of this model's options, as `override` takes it.
    """

    builder: str
    options: Options = field(default_factory=dict)
    by_dataset: Mapping[str, Options] = field(default_factory=dict)
    depths: tuple[int, ...] = ()
    priors: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    datasets: tuple[str, ...] = ()
    presets: Mapping[str, Options] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One experiment of the thesis.

    Attributes:
        name: what `vibayes bench run` takes.
        title: one line.
        labels: the figures and tables of the thesis that it stands for.
        datasets: names that `vibayes.datasets.load` takes.
        splits: the splits of each data set.
        models: by the name they have in the thesis's tables.
        options: sections `data`, `model`, `training` shared by all models.
        by_dataset: the same for single data sets.
        metrics: what is measured after training.
        tables: names of the reference tables.
        note: what to know: choices that the thesis leaves open.
        needs: what is missing before it can run; empty when nothing is.
        script: a module whose function `run` draws figures, for experiments that are not a sweep.
        runs_of: the experiment whose runs these are, where the same runs stand for tables of their own.
        presets: other starts and schedules that have a name, and what each is.
    """

    name: str
    title: str
    labels: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    splits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    models: Mapping[str, ModelSpec] = field(default_factory=dict)
    options: Options = field(default_factory=dict)
    by_dataset: Mapping[str, Options] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    note: str = ""
    needs: str = ""
    script: str = ""
    runs_of: str = ""
    presets: Mapping[str, str] = field(default_factory=dict)

    def options_of(
        self, model: str, dataset: str, *, depth: int | None = None, prior: str | None = None, preset: str | None = None
    ) -> dict[str, Any]:
        """All options of one model on one data set: the experiment's, the data set's, the model's, the preset's."""
        spec = self.models[model]
        options = merge(
            {"data": {}, "model": {}, "training": {}, "dtype": "float64", "seed": 0},
            self.options,
            self.by_dataset.get(dataset, {}),
            spec.options,
            spec.by_dataset.get(dataset, {}),
        )
        options["model"] |= {k: v for k, v in {"depth": depth, "prior": prior}.items() if v is not None}
        for key, value in (spec.presets[preset] if preset is not None else {}).items():
            options = override(options, key, value)
        return options


@dataclass(frozen=True)
class Unit:
    """One run: a model with all its options on one split of one data set.

    Attributes:
        experiment: name of the experiment.
        dataset: name of the data set.
        model: the model's name in the tables.
        builder: what builds it.
        options: everything that changes the result.
        split: number of the split.
        metrics: what to measure.
        marks: further columns of the thesis's table that tell this run's rows.
    """

    experiment: str
    dataset: str
    model: str
    builder: str
    options: Options
    split: int
    metrics: tuple[str, ...] = ()
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Ten letters that stand for all options: another option, another run.

        The device, the number of threads and how runs are grouped change rounding only. They are written into result
        files but are not part of it.
        """
        content = {"builder": self.builder, "dataset": self.dataset, "options": self.options}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def family(self) -> PurePosixPath:
        """The folder, below that of all results, with the results of all splits."""
        return PurePosixPath(self.experiment, self.dataset, f"{_slug(self.model)}-{self.digest}")

    @property
    def path(self) -> PurePosixPath:
        """The result file, below the folder of all results."""
        return self.family / f"split-{self.split}.json"

    @property
    def columns(self) -> dict[str, str]:
        """The values by which rows of the thesis's tables are found."""
        model = self.options.get("model", {})
        found = {"dataset": self.dataset, "model": self.model}
        found |= {key: str(model[key]) for key in ("depth", "prior") if model.get(key) is not None}
        return found | dict(self.marks)

    @property
    def title(self) -> str:
        """For people: data set, model, depth and prior."""
        extra = [f"{key} {value}" for key, value in self.columns.items() if key not in ("dataset", "model")]
        return " ".join([self.dataset, self.model, *extra])

    def to_dict(self) -> dict[str, Any]:
        """Plain data, to send to another process."""
        return {
            "experiment": self.experiment,
            "dataset": self.dataset,
            "model": self.model,
            "builder": self.builder,
            "options": copy.deepcopy(dict(self.options)),
            "split": self.split,
            "metrics": list(self.metrics),
            "marks": dict(self.marks),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Unit":
        """The inverse of `to_dict`."""
        return cls(**{**values, "metrics": tuple(values["metrics"])})


def merge(*parts: Options) -> dict[str, Any]:
    """Options from several places; what comes later wins, section by section.

    >>> merge({"model": {"a": 1, "b": 2}}, {"model": {"b": 3}, "seed": 1})
    {'model': {'a': 1, 'b': 3}, 'seed': 1}
    """
    result: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            old = result.get(key)
            both = isinstance(value, Mapping) and isinstance(old, dict)
            result[key] = merge(old, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return result


def override(options: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Options with one changed, by its name (`lr`) or section and name (`training.lr`).

    None takes an option out that an experiment may leave unset; a value of the wrong kind is refused.

    >>> override({"training": {"lr": 0.1}}, "lr", 0.2)
    {'training': {'lr': 0.2}}
    """
    places = {
        f"{s}.{k}": (s, k)
        for s, part in options.items()
        if isinstance(part, dict)
        for k in (*part, *OPTIONAL.get(s, ()))
    }
    places |= {k: ("", k) for k, part in options.items() if not isinstance(part, dict)}
    by_leaf: dict[str, list[str]] = {}
    for full in places:
        by_leaf.setdefault(full.rpartition(".")[2], []).append(full)
    full = by_leaf[key][0] if key not in places and len(by_leaf.get(key, [])) == 1 else key
    if full not in places:
        if len(by_leaf.get(key, [])) > 1:
            raise ConfigurationError(f"{key!r} could be {' or '.join(by_leaf[key])}; write it in full.")
        full = check_name(key, sorted({*places, *by_leaf}), "option")
        return override(options, full, value)
    section, leaf = places[full]
    if value is None and leaf in OPTIONAL.get(section, ()):  # as if nobody had set it
        kept = {k: v for k, v in options[section].items() if k != leaf}
        return {**options, section: kept}
    value = check_value(leaf, value, (options[section] if section else options).get(leaf))
    return merge(options, {section: {leaf: value}} if section else {leaf: value})


def option_changes(options: Options, others: Options) -> dict[str, Any]:
    """The changes, as `override` takes them, that make other options of the first ones.

    >>> option_changes({"training": {"lr": 0.1, "kl_warmup": 10}}, {"training": {"lr": 0.2}})
    {'lr': 0.2, 'kl_warmup': None}
    """
    before, after = _flat(options), _flat(others)
    places = {**before, **after}
    leaves = [leaf for _, leaf in places]
    missing = object()
    return {
        leaf if leaves.count(leaf) == 1 or not section else f"{section}.{leaf}": after.get((section, leaf))
        for section, leaf in places
        if before.get((section, leaf), missing) != after.get((section, leaf), missing)
    }


def _flat(options: Options) -> dict[tuple[str, str], Any]:
    """Options by section and name; those in no section have the section `""`."""
    found: dict[tuple[str, str], Any] = {}
    for name, part in options.items():
        if isinstance(part, Mapping):
            found |= {(name, leaf): value for leaf, value in part.items()}
        else:
            found["", name] = part
    return found


def _slug(text: str) -> str:
    """A name that is safe in a path: `fac->gi` becomes `fac-gi`."""
    kept = "".join(c if c.isalnum() or c in "._" else "-" for c in text)
    return "-".join(part for part in kept.split("-") if part)
