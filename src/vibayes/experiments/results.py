"""Result files: one run each, complete or not there, and telling by themselves where they come from."""

import functools
import hashlib
import json
import logging
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import vibayes
from vibayes.errors import ConfigurationError, DataError
from vibayes.experiments.experiment import Unit
from vibayes.writing import written_whole

__all__ = [
    "SCHEMA",
    "code_digest",
    "finished",
    "plain",
    "read_result",
    "thin",
    "writable_folder",
    "write_file",
    "write_result",
]

logger = logging.getLogger("vibayes")

SCHEMA = "vibayes-result-1"
MAX_BYTES = 10_000
CURVE_POINTS = 40
_REQUIRED = ("experiment", "dataset", "model", "options", "split", "metrics", "seconds")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_curve(value: Any) -> bool:
    """Whether there are as many bounds (null for NaN) as steps; a run that ended at once has none."""
    if not isinstance(value, dict):
        return False
    parts = [value.get(key, []) for key in ("step", "elbo_per_datapoint")]
    right = all(isinstance(part, list) and all(v is None or _is_number(v) for v in part) for part in parts)
    return right and len(parts[0]) == len(parts[1])


def _is_calibration(value: Any) -> bool:
    """Whether there are bins with a confidence, an accuracy and a count each."""
    if not isinstance(value, dict):
        return False
    parts = [value.get(key) for key in ("confidence", "accuracy", "count")]
    lists = [part for part in parts if isinstance(part, list) and all(map(_is_number, part))]
    return len(lists) == 3 and len(set(map(len, lists))) == 1


# What tables and the report compute with.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "options": lambda value: isinstance(value, dict),
    "metrics": lambda value: isinstance(value, dict) and all(_is_number(v) or v is None for v in value.values()),
    "seconds": _is_number,
    "steps": _is_number,
    "curve": _is_curve,
    "calibration": _is_calibration,
}
_told: set[str] = set()


def writable_folder(path: str | os.PathLike[str]) -> Path:
    """Make the folder for results, and find out before any training whether it can be written to."""
    folder = Path(path)
    probe = folder / f".{uuid.uuid4().hex}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"The result folder {folder} cannot be written ({error.strerror}). Choose another one with --out."
        ) from error
    return folder


def write_file(path: Path, text: str) -> None:
    """Write a text file so that it is there completely or not at all."""
    with written_whole(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result of one run."""
    content = dict(result, schema=SCHEMA)
    text = _text(content)
    while len(text.encode()) > MAX_BYTES:  # long stories are cut, numbers never
        if content.get("events"):
            kept = [event for event in content["events"] if event != "..."]
            content["events"] = [*kept[: len(kept) // 2], "..."] if len(kept) > 1 else []
        elif len(content.get("curve", {}).get("step", ())) > 5:
            keep = len(content["curve"]["step"]) // 2
            content["curve"] = {key: thin(values, keep) for key, values in content["curve"].items()}
        else:
            raise DataError(f"The result for {path} takes {len(text)} bytes, more than {MAX_BYTES}.")
        text = _text(content)
    write_file(path, text)


def _text(content: Mapping[str, Any]) -> str:
    ordered = {"schema": content["schema"], **{k: v for k, v in content.items() if k != "schema"}}
    lines = [f" {json.dumps(key)}: {json.dumps(plain(value), allow_nan=False)}" for key, value in ordered.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def read_result(path: Path, unit: Unit | None = None) -> dict[str, Any]:
    """Read a result file; `DataError` names one that is damaged, of another format, or another run's."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"The result file {path} cannot be read ({error}).") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise DataError(f"The result file {path} is not of the format {SCHEMA}; it says {found!r}.")
    missing = [key for key in _REQUIRED if key not in content]
    if missing:
        raise DataError(f"The result file {path} is incomplete: it lacks {', '.join(missing)}.")
    wrong = [key for key, right in _KINDS.items() if key in content and not right(content[key])]
    if wrong:
        raise DataError(f"The result file {path} is damaged: {', '.join(wrong)} cannot be read.")
    if unit is not None:
        expected = json.loads(json.dumps({"options": unit.options, "split": unit.split, "dataset": unit.dataset}))
        differs = [key for key, value in expected.items() if content[key] != value]
        if differs:
            raise DataError(f"The result file {path} belongs to another run: it differs in {', '.join(differs)}.")
    return content


def finished(out: Path, unit: Unit) -> dict[str, Any] | None:
    """The result of a run, or None when there is none; a damaged file is named, and counts as none."""
    path = out / unit.path
    if not path.exists():
        return None
    try:
        return read_result(path, unit)
    except DataError as error:
        if str(path) not in _told:  # once, not at every look
            _told.add(str(path))
            logger.warning("%s It is skipped; `bench run` replaces it.", error)
        return None


def thin(values: Sequence[Any], keep: int = CURVE_POINTS) -> list[Any]:
    """At most `keep` of the values, evenly spaced, the first and last among them.

    >>> thin(list(range(11)), 3)
    [0, 5, 10]
    """
    if len(values) <= keep:
        return list(values)
    last = len(values) - 1
    return [values[round(i * last / (keep - 1))] for i in range(keep)]


@functools.cache
def code_digest() -> str:
    """Twelve letters that stand for the package's source code, also where there is no git."""
    folder = Path(vibayes.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
