"""Checkpoints: the whole state of a run in one file that is either complete or not there.

A checkpoint is a safetensors file. Tensors lie in its body; everything else, and the shape of the nest they came
from, is JSON in its header. Loading runs no code from the file.
"""

import json
import logging
import numbers
import os
import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vibayes.errors import ConfigurationError, DataError
from vibayes.training.run import as_number
from vibayes.writing import remove_left, written_whole

__all__ = ["Keeper", "chunk_path", "load_state", "save_state"]

logger = logging.getLogger("vibayes")

_FORMAT = "vibayes-state-1"


def save_state(path: str | os.PathLike[str], state: Any) -> None:
    """Write a nest of dicts, lists, tensors, numbers, strings and None, atomically.

    >>> import pathlib, tempfile, torch
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "state"
    >>> save_state(file, {"a": [torch.ones(2), 3], "b": None})
    >>> load_state(file)
    {'a': [tensor([1., 1.]), 3], 'b': None}
    """
    tensors: dict[str, Tensor] = {}
    nest = _pack(state, tensors)
    with written_whole(Path(path)) as aside:
        save_file(tensors, str(aside), metadata={"format": _FORMAT, "nest": json.dumps(nest)})


def load_state(path: str | os.PathLike[str]) -> Any:
    """Read what `save_state` wrote; a file that is damaged or something else raises `DataError`."""
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise DataError(
                    f"{path} is not a vibayes checkpoint of this format ({_FORMAT}); it says "
                    f"{metadata.get('format')!r}. Choose another path, or delete it to start over."
                )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            nest = json.loads(metadata["nest"])
        return _unpack(nest, tensors)
    except (SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
        raise DataError(
            f"The checkpoint {path} cannot be read ({error}). It is damaged or not a checkpoint; "
            "delete it to start over."
        ) from error


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        key = str(len(tensors))
        tensors[key] = value.detach().cpu().clone().contiguous()  # safetensors refuses shared memory
        return {"tensor": key}
    if isinstance(value, dict):
        return {"dict": [[_key(key), _pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_pack(item, tensors) for item in value], "tuple": isinstance(value, tuple)}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, numbers.Real):  # numpy's
        return {"value": int(value) if isinstance(value, numbers.Integral) else float(value)}
    raise TypeError(f"A checkpoint cannot hold a {type(value).__name__}.")


def _key(key: Any) -> Any:
    if not isinstance(key, str | int):
        raise TypeError(f"A checkpoint's dict keys must be text or whole numbers, got {key!r}.")
    return key


def _unpack(nest: Any, tensors: dict[str, Tensor]) -> Any:
    if "tensor" in nest:
        return tensors[nest["tensor"]]
    if "dict" in nest:
        return {key: _unpack(item, tensors) for key, item in nest["dict"]}
    if "list" in nest:
        items = [_unpack(item, tensors) for item in nest["list"]]
        return tuple(items) if nest["tuple"] else items
    return nest["value"]


def _few(changes: list[str]) -> str:
    """The first of them, as text."""
    more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
    return "; ".join(changes[:3]) + more


def chunk_path(checkpoint: str | os.PathLike[str], first: int, R: int, size: int) -> Path:
    """Where the state of the models from number `first` on is kept, where not all of them train at once."""
    path = Path(checkpoint)
    return path if size >= R else path.with_name(f"{path.name}-{first}-{size}")


class Keeper:
    """Writes the checkpoint now and then, and reads one that fits."""

    def __init__(self, path: str | os.PathLike[str] | None, every: float, fingerprint: dict[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        if not as_number(every) >= 0:
            raise ConfigurationError(f"checkpoint_seconds must be a number, 0 or more, got {every!r}.")
        self.every, self.fingerprint = every, fingerprint
        self._last = time.monotonic()
        self.writes = True
        if self.path is not None:
            if self.path.is_dir():
                raise ConfigurationError(f"checkpoint={str(self.path)!r} is a folder; name a file in it.")
            try:  # find out now, not after an hour, that nothing can be written there
                self.path.parent.mkdir(parents=True, exist_ok=True)
                probe = self.path.with_name(f"{self.path.name}.{os.getpid()}.probe")
                probe.touch()
                probe.unlink(missing_ok=True)
                remove_left(self.path)
            except OSError as error:
                raise ConfigurationError(
                    f"The checkpoint {self.path} cannot be written ({error.strerror}). Choose a writable folder."
                ) from error

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return self.path is not None and time.monotonic() - self._last >= self.every

    def save(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Write the state when it is time to, or at once when forced."""
        if self.path is None or not self.writes or not (force or self.due):
            return
        try:
            save_state(self.path, {"fingerprint": self.fingerprint, "run": state})
        except (OSError, SafetensorError) as error:  # a full disk must not cost the run
            logger.warning("The checkpoint %s could not be written (%s); training goes on.", self.path, error)
        self._last = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """The state of this run that was kept earlier, if any; another run's is refused."""
        if self.path is None or not self.path.exists():
            return None
        kept = load_state(self.path)
        if not isinstance(kept, dict) or not {"fingerprint", "run"} <= kept.keys():
            raise DataError(
                f"{self.path} is not the checkpoint of a run. Choose another path, or delete it to start over."
            )
        before = kept["fingerprint"]
        changed = [
            f"{key} was {before.get(key)} and is {self.fingerprint.get(key)}"
            for key in before | self.fingerprint
            if before.get(key) != self.fingerprint.get(key)
        ]
        if changed:
            raise ConfigurationError(
                f"The checkpoint {self.path} belongs to another run: {_few(changed)}. "
                "Use another file, or delete it to start over."
            )
        run: dict[str, Any] = kept["run"]
        logger.info("Resuming at step %d from %s.", run["step"], self.path)
        return run
