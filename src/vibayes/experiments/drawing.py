"""Running the functions behind an experiment's figures, writing what they found, and drawing it."""

import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from vibayes import datasets, plotting
from vibayes.errors import ConfigurationError, DataError
from vibayes.experiments.names import pick
from vibayes.experiments.record import Result, one_thread, provenance
from vibayes.experiments.results import plain, writable_folder, write_file
from vibayes.experiments.sweep import WORK
from vibayes.modes import default_dtype

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Drawing", "Paint"]

Report = Callable[[str, dict[str, Any]], None]
Paint = Callable[[Mapping[str, Tensor]], "Figure"]


@dataclass(frozen=True)
class Drawing:
    """The figures of one experiment.

    Computing and drawing are apart for figures with a `paint`: their arrays are kept as `FIGURE.safetensors`, so that
    hours of computing on a machine without matplotlib, or a figure that should look different, need no second run.

    Attributes:
        experiment: its name.
        figures: by a short name, functions of a seed that give a figure, or its arrays, and its numbers.
        labels: the figures' labels in the thesis, by short name.
        files: the data set that a figure reads from a file, where it does.
        paint: functions that draw a figure from the arrays of its result.
        resumable: figures whose functions take `checkpoint=`, a file from which they go on when a run was killed, or
            the beginning of the names of several.
        on_request: figures that are drawn only when they are asked for by name.
        on_gpu: figures that need a GPU, and are skipped where there is none.
    """

    experiment: str
    figures: Mapping[str, Callable[..., Result]]
    labels: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    paint: Mapping[str, Paint] = field(default_factory=dict)
    resumable: Sequence[str] = ()
    on_request: Sequence[str] = ()
    on_gpu: Sequence[str] = ()

    def run(
        self,
        out: str | os.PathLike[str],
        *,
        figures: Sequence[str] | None = None,
        seed: int = 0,
        report: Report | None = None,
    ) -> dict[str, Any]:
        """Draw the figures into a folder and write their numbers to `EXPERIMENT.json` there.

        Figures whose data files or GPU are missing are skipped; the result file says so. It is written after every
        figure, and keeps what earlier runs wrote of others.

        Args:
            out: the folder.
            figures: names, or labels of the thesis, which may stand for several; all when None.
            seed: of what is drawn at random. Toy data have their own.
            report: called after every figure with its name and its entry of the result file.

        Returns:
            What the result file says, and its path as "file".
        """
        names = self._chosen(figures)
        folder = writable_folder(out)
        file = folder / f"{self.experiment}.json"
        with one_thread():
            origin = provenance()
        begin = time.monotonic()
        found: dict[str, Any] = {}
        for name in names:
            entry: dict[str, Any] = {"label": self.labels[name], "file": None, "skipped": self._missing(name)}
            start = time.monotonic()
            checkpoint = folder / WORK / f"{name}-{seed}.checkpoint"
            if entry["skipped"] is None:
                with one_thread(), _conditions(seed):
                    options = {"checkpoint": checkpoint} if name in self.resumable else {}
                    result = self.figures[name](seed, **options)
                    entry["file"] = self._picture(name, result, folder)
                entry.update(result.to_dict())
            made = {key: origin[key] for key in ("version", "commit", "command", "hardware")}  # others' may differ
            entry.update(seed=seed, seconds=round(time.monotonic() - start, 3), **made)
            found = {
                "experiment": self.experiment,
                **origin,
                "seed": seed,
                "seconds": round(time.monotonic() - begin, 3),
                "figures": self._beside(name, entry, file),
            }
            write_file(file, json.dumps(plain(found), indent=1, allow_nan=False) + "\n")
            if entry["skipped"] is None:
                _remove(checkpoint)
            if report is not None:
                report(name, entry)
        return {**found, "file": str(file)}

    def draw(self, out: str | os.PathLike[str]) -> list[Path]:
        """Draw figures from the arrays that `run` kept in a folder, and note them in the result file there.

        Returns:
            The pictures.
        """
        file = Path(out) / f"{self.experiment}.json"
        if not file.exists():
            raise ConfigurationError(f"There is no result file {file}; run the experiment first.")
        folder = writable_folder(out)
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigurationError(
                f"The result file {file} is damaged ({error}); run the experiment again."
            ) from error
        drawn = []
        for name in self.paint:
            kept = folder / f"{name}.safetensors"
            if name not in content["figures"] or not kept.exists():
                continue
            try:
                arrays = load_tensors(kept.read_bytes())
            except SafetensorError as error:
                raise ConfigurationError(
                    f"The arrays {kept} cannot be read ({error}); run the figure again."
                ) from error
            drawn.append(plotting.save(self.paint[name](arrays), folder / f"{name}.png"))
            content["figures"][name]["file"] = drawn[-1].name
        if not drawn:
            raise ConfigurationError(f"There are no arrays of figures in {folder} to draw; run the experiment first.")
        write_file(file, json.dumps(content, indent=1, allow_nan=False) + "\n")
        return drawn

    def _missing(self, name: str) -> str | None:
        """What a figure cannot be made without, and is not here."""
        if name in self.on_gpu and not _has_gpu():
            return "It needs a GPU, and there is none here."
        try:
            if name in self.files:
                datasets.load(self.files[name])
        except DataError as error:
            return str(error)
        return None

    def _chosen(self, figures: Sequence[str] | None) -> list[str]:
        usual = [name for name in self.figures if name not in self.on_request]
        if figures is None:
            return usual
        named = [[name for name in usual if self.labels[name] == figure] or [figure] for figure in figures]
        return pick([name for names in named for name in names], self.figures, "figure")

    def _picture(self, name: str, result: Result, folder: Path) -> str | None:
        """The name of the figure's file; None where it cannot be drawn here and its arrays are kept instead."""
        figure = result.figure
        if figure is None:
            arrays = {key: value.detach().cpu().contiguous().clone() for key, value in result.arrays.items()}
            (folder / f"{name}.safetensors").write_bytes(save_tensors(arrays))
            if importlib.util.find_spec("matplotlib") is None:
                return None
            figure = self.paint[name](arrays)
        return plotting.save(figure, folder / f"{name}.png").name

    def _beside(self, name: str, entry: dict[str, Any], file: Path) -> dict[str, Any]:
        """The entries of the result file with this one, in the order of the figures.

        A figure that was skipped leaves what an earlier run, perhaps on another machine, found of it.
        """
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))["figures"]
        except (OSError, ValueError, KeyError, TypeError):  # none, or one that cannot be read: it is replaced
            kept = {}
        entries = kept if entry["skipped"] and not kept.get(name, entry)["skipped"] else {**kept, name: entry}
        return {figure: entries[figure] for figure in self.figures if figure in entries}


def _remove(checkpoint: Path) -> None:
    """The files of a checkpoint, those that a killed run was writing, and their folder where nothing else is in it."""
    for prefix in (checkpoint.name, f".{checkpoint.name}"):
        for file in checkpoint.parent.glob(f"{prefix}*"):
            file.unlink()
    with suppress(OSError):  # not there, or not empty
        checkpoint.parent.rmdir()


def _has_gpu() -> bool:
    return torch.cuda.is_available()


@contextmanager
def _conditions(seed: int) -> Iterator[None]:
    """float64, and draws that depend on the seed alone."""
    with default_dtype(torch.float64), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
