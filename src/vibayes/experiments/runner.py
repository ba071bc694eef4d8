"""Running a sweep: claim a group, train it, write one result per run."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vibayes.errors import ConfigurationError, DataError, VibayesError
from vibayes.experiments import claims
from vibayes.experiments.display import Display, ProgressFile
from vibayes.experiments.executors import Executor, ThisProcess
from vibayes.experiments.experiment import Unit
from vibayes.experiments.record import provenance
from vibayes.experiments.results import code_digest, finished, thin, writable_folder, write_result
from vibayes.experiments.sweep import WORK, Group, by_family, plan, tidy
from vibayes.experiments.training import load_split, measure, train_group
from vibayes.training.history import History

__all__ = ["Outcome", "Settings", "Summary", "check_device", "run_sweep", "work"]

logger = logging.getLogger("vibayes")


@dataclass(frozen=True)
class Settings:
    """How a sweep is run; none of it changes the results but for rounding.

    Attributes:
        out: the folder of results.
        device: where to train; None: a GPU where there is one.
        group: how many runs train together; None: all splits of a model on a GPU, on a CPU ten where steps are small
            and one where they are not.
        chunk: how many models of a group go through a step at once; None: on a GPU what fits into memory, on a CPU
            the whole group, so that the numbers do not depend on a measurement.
        compile: whether steps go through `torch.compile`: a minute or two at the start, then shorter steps.
        checkpoint_seconds: how often a group's state is kept.
        command: what was typed.
        wait: whether to wait for runs that other processes are at.
        show: whether to show progress.
    """

    out: Path
    device: str | None = None
    group: int | None = None
    chunk: int | None = None
    compile: bool = False
    checkpoint_seconds: float = 15.0
    command: str = ""
    wait: bool = True
    show: bool = True


@dataclass(frozen=True)
class Outcome:
    """What became of a group: `state` is "done", "busy" (somebody else is at it) or "failed"."""

    state: str
    title: str
    runs: int = 0
    seconds: float = 0.0
    message: str = ""


@dataclass
class Summary:
    """What a sweep did.

    Attributes:
        wanted: how many runs were asked for.
        before: how many were finished already.
        trained: how many were trained now, here.
        elsewhere: how many another process finished meanwhile.
        failed: messages of groups that failed.
        left: how many runs are not finished.
        seconds: how long it took.
    """

    wanted: int = 0
    before: int = 0
    trained: int = 0
    elsewhere: int = 0
    failed: list[str] = field(default_factory=list)
    left: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed


def check_device(device: str | None) -> str:
    """The device to train on, or an error before anything starts."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigurationError(f"Unknown device {device!r}; use cpu, cuda or cuda:1.") from error
    if place.type == "cuda" and (not torch.cuda.is_available() or (place.index or 0) >= torch.cuda.device_count()):
        raise ConfigurationError(
            f"device={device} was asked for, but this machine has {torch.cuda.device_count()} usable CUDA GPUs. "
            "Leave --device out, or use --device cpu."
        )
    return device


def run_sweep(units: Sequence[Unit], settings: Settings, executor: Executor | None = None) -> Summary:
    """Train every run that has no result yet.

    Args:
        units: the runs.
        settings: how.
        executor: where groups are trained; this process when None.
    """
    begin = time.monotonic()
    executor = executor or ThisProcess()
    out = writable_folder(settings.out).resolve()
    # an executor elsewhere has devices of its own, which its workers look for
    device = check_device(settings.device) if executor.local else settings.device or executor.device
    how = {"chunk": settings.chunk, "executor": executor.name, "device": device, "compile": settings.compile}

    def planned() -> list[Group]:
        found = []
        for members in by_family(units).values():
            size = settings.group or (None if device.startswith("cuda") else cpu_group(members[0]))
            chunk = settings.chunk or (None if device.startswith("cuda") else size)
            found += plan(out, members, size=size, how={**how, "chunk": chunk})
        return found

    summary = Summary(wanted=len(units))
    missing = {unit.path for unit in units if finished(out, unit) is None}
    summary.before = len(units) - len(missing)
    message: dict[str, Any] = {
        "out": str(out),
        "device": device,
        "checkpoint_seconds": settings.checkpoint_seconds,
        "command": settings.command or provenance()["command"],
        "executor": executor.name,
    }
    groups = planned()
    attempted: set[Path] = set()
    with Display(out, groups, show=settings.show, finished_before=summary.before, wanted=len(units)) as display:
        while groups:
            tasks = [{**message, "group": group.to_dict()} for group in groups]
            busy = 0
            for group, outcome in executor.run(work, tasks, groups, display):
                if outcome.state == "busy":
                    busy += 1
                    continue
                attempted.add(group.folder)
                # a group may hold runs of an earlier sweep that this one was not asked for
                new = {unit.path for unit in group.units if unit.path in missing and finished(out, unit) is not None}
                missing -= new
                if outcome.state == "failed":
                    summary.failed.append(f"{outcome.title}: {outcome.message}")
                if outcome.state == "failed" or outcome.runs:
                    summary.trained += len(new)
                display.done(group, outcome.state, outcome.message, len(new))
                tidy(out, group.units)
            if not busy or not settings.wait:
                break
            display.waiting(busy)
            time.sleep(0.5)
            groups = [group for group in planned() if group.folder not in attempted]
    summary.left = sum(finished(out, unit) is None for unit in units)
    summary.elsewhere = summary.wanted - summary.before - summary.trained - summary.left
    summary.seconds = time.monotonic() - begin
    return summary


def cpu_group(unit: Unit) -> int:
    """How many runs train together on a CPU: small steps cost mostly overhead, which they share."""
    model = unit.options.get("model", {})
    return 10 if (model.get("n_inducing") or 1000) <= 128 and not model.get("depth") else 1


# -- one group, in whatever process ------------------------------------------------------------------------------


def work(task: Mapping[str, Any], watch: Callable[[int], None] | None = None) -> Outcome:
    """Claim a group and train it; never raises for what a run does wrong."""
    group = Group.from_dict(task["group"])
    out = Path(task["out"])
    claim = claims.take(group.lock, out / WORK / "guard")
    if claim is None:
        return Outcome("busy", group.title)
    begin = time.monotonic()
    with claim:
        try:
            runs = _train(group, task, claim, watch)
        except Exception as error:
            if not isinstance(error, VibayesError | RuntimeError | MemoryError | OSError | ArithmeticError):
                logger.exception("%s failed unexpectedly.", group.title)  # a mistake in code, such as a user's builder
            return Outcome("failed", group.title, 0, time.monotonic() - begin, _explain(error))
    return Outcome("done", group.title, runs, time.monotonic() - begin)


def _explain(error: BaseException) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "out of memory" in text.lower():
        return f"out of memory ({text}). Use a smaller --chunk, --dtype float32 or another --device."
    if isinstance(error, getattr(torch, "AcceleratorError", ())):  # torch 2.8 or newer
        return f"the GPU failed ({text}) and is lost to this process. Run the command again, which goes on."
    return text if isinstance(error, VibayesError) else f"{type(error).__name__}: {text}"


def _train(group: Group, task: Mapping[str, Any], claim: claims.Claim, watch: Callable[[int], None] | None) -> int:
    out = Path(task["out"])
    todo = [unit for unit in group.units if finished(out, unit) is None]
    if not todo:  # somebody finished it between the plan and the claim
        shutil.rmtree(group.folder, ignore_errors=True)
        return 0
    device = check_device(task["device"])
    splits = [load_split(unit) for unit in group.units]
    group.folder.mkdir(parents=True, exist_ok=True)
    arguments: dict[str, Any] = {
        "device": device,
        "checkpoint": group.folder / "checkpoint",
        "checkpoint_seconds": task["checkpoint_seconds"],
        "chunk": group.how.get("chunk"),  # when None, `fit_many` chooses, and a resumed group keeps to its choice
        "compile": bool(group.how.get("compile")),
        "watch": ProgressFile(group, watch),
    }
    try:
        models, histories = train_group(group.units, splits, **arguments)
    except DataError as error:
        if "checkpoint" not in str(error):
            raise
        logger.warning("%s: %s Starting over.", group.title, error)
        shutil.rmtree(group.folder, ignore_errors=True)
        group.folder.mkdir(parents=True)
        models, histories = train_group(group.units, splits, **arguments)
    about = _about(group, task, device)
    written = 0
    for unit, model, split, history in zip(group.units, models, splits, histories, strict=True):
        if unit not in todo:
            continue
        if not claim.held:
            raise DataError("Another process took this group over while this one was suspended; its result counts.")
        write_result(out / unit.path, _result(unit, measure(model, split, unit), history, about))
        written += 1
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    arguments["watch"].clear()
    shutil.rmtree(group.folder, ignore_errors=True)
    return written


def _chunk_of(group: Group) -> int | None:
    """How many models of a group trained at once, as `fit_many` noted it beside its checkpoints.

    There is a checkpoint for each batch size that was tried; on a GPU the largest of them allows the fewest models.
    """
    noted = [int(path.read_text().split()[0]) for path in group.folder.glob("checkpoint*.chunk")]
    return min(*noted, len(group.units)) if noted else None


def _about(group: Group, task: Mapping[str, Any], device: str) -> dict[str, Any]:
    """What all results of a group share: where they come from."""
    made = provenance()
    hardware = {**made["hardware"], "device": device}
    if device == "cpu":
        hardware["gpu"] = None
    code = {"version": made["version"], "commit": made["commit"], "sources": code_digest()}
    if group.how.get("code") != code["sources"]:
        code["begun_with"] = group.how.get("code")
    return {
        "code": code,
        "command": task["command"],
        "hardware": hardware,
        "software": made["software"],
        "group": {
            "splits": [unit.split for unit in group.units],
            "chunk": _chunk_of(group),
            "executor": group.how.get("executor"),
            "compile": bool(group.how.get("compile")),
        },
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _result(unit: Unit, metrics: Mapping[str, Any], history: History, about: Mapping[str, Any]) -> dict[str, Any]:
    seconds = history.seconds[-1] if history.seconds else 0.0
    tables = {name: value for name, value in metrics.items() if isinstance(value, Mapping)}
    return {
        "experiment": unit.experiment,
        "dataset": unit.dataset,
        "model": unit.model,
        "builder": unit.builder,
        "split": unit.split,
        "options": unit.options,
        "status": "diverged" if history.stopped.startswith("gave up") else "finished",
        "metrics": {name: value for name, value in metrics.items() if name not in tables},
        **tables,
        "steps": history.step[-1] if history.step else 0,
        "n_train": history.n_data,
        "seconds": round(seconds, 3),
        "curve": {
            "step": thin(history.step),
            "elbo_per_datapoint": [_short(v) for v in thin(history.per_datapoint)],
            "noise": [_short(v) for v in thin(history.noise)],
            "seconds": [round(v, 2) for v in thin(history.seconds)],
        },
        "stopped": history.stopped,
        "events": list(history.events),
        **about,
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")
