"""The files of a saved model: `model.json`, and a safetensors file that it names and whose hash it holds."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from vibayes.errors import ConfigurationError, DataError
from vibayes.saving.decode import Decoder
from vibayes.saving.encode import Encoder
from vibayes.saving.names import Given
from vibayes.writing import written_whole

__all__ = ["DESCRIPTION", "load", "load_beside", "save"]

FORMAT = "vibayes-model"
# Raised when older versions could not read, or would misread, what is written now.
VERSION = 1
DESCRIPTION = "model.json"


def save(model: Any, folder: str | os.PathLike[str], *, beside: dict[str, Any] | None = None) -> None:
    """Write a model or estimator into a folder: `model.json` and a safetensors file.

    Only numbers, text and tensors are written, no code. What stands in the folder under other names is left alone. A
    model saved there before is replaced in one moment: killed while writing, the folder still holds the old one.

    Training data are written only where the model *is* its data: the exact GP, SGPR and linear regression condition
    their predictions on the rows they have seen, which lie in the file as tensors.

    Args:
        model: a `Model`, `ExactGP`, `SGPR`, `LinearRegression`, or an estimator of `vibayes.sklearn`.
        folder: where to; created if it is not there.
        beside: plain values that belong to the model, for `load_beside`; they are replaced in the same moment.

    >>> import tempfile, torch, vibayes as vb
    >>> model = vb.Model(vb.GP(1, kernel=vb.Matern52(1), posterior=vb.LocalInducing(5)), vb.Gaussian(0.1))
    >>> folder = tempfile.mkdtemp()
    >>> save(model, folder)
    >>> x = torch.linspace(-1, 1, 4)[:, None]
    >>> torch.equal(vb.load(folder).predict(x).mean, model.predict(x).mean)
    True
    """
    from vibayes import __version__

    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{folder} is a file; a model is saved into a folder.")
    encoder = Encoder()
    root = encoder.value(model, "")
    body = save_tensors(encoder.tensors, metadata={"format": FORMAT})
    digest = hashlib.sha256(body).hexdigest()
    description = {
        "format": FORMAT,
        "version": VERSION,
        "vibayes": __version__,
        "tensors": {"file": f"tensors-{digest[:16]}.safetensors", "sha256": digest},
        "root": root,
        "modules": encoder.modules,
        "beside": beside or {},
    }
    description["checksum"] = _checksum(description)
    text = json.dumps(description, indent=1, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in ((description["tensors"]["file"], body), (DESCRIPTION, text.encode())):
            with written_whole(folder / name) as aside:
                aside.write_bytes(content)
        # from here on the folder holds the new model
        for old in folder.glob("tensors-*.safetensors"):
            if old.name != description["tensors"]["file"]:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"The model cannot be written into {folder}: {error}.") from error


def load(
    folder: str | os.PathLike[str],
    *,
    classes: Given | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """Read a model or estimator that `save` wrote; its predictions are those of the saved one.

    No code of the folder is executed: names in it stand for classes of vibayes and `torch.nn` only. A network of your
    own is recorded by the name of its class; pass that class in `classes`.

    Args:
        folder: where the model is.
        classes: classes (and functions) of your own that the model contains, by name: `{"MyNet": MyNet}`.
        device: where to put it; on the CPU by default.
        dtype: a floating dtype to convert it to; by default the saved one.

    Returns:
        An object of the class that was saved.

    >>> import tempfile, vibayes as vb
    >>> model = vb.Model(vb.Linear(2, 1, posterior=vb.MeanField()), vb.Gaussian(0.1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(folder)
    ...     again = vb.load(folder)
    >>> bool((again.network.posterior.mean == model.network.posterior.mean).all())
    True
    """
    folder = Path(folder)
    description = _read_description(folder)
    try:
        tensors = _read_tensors(folder, description)
        decoder = Decoder(description["modules"], tensors, {} if classes is None else classes)
        found = decoder.value(description["root"])
        for module in decoder.roots:
            _convert(module, device, dtype)
    except (KeyError, TypeError, AttributeError, IndexError, StopIteration, RecursionError) as error:
        raise DataError(
            f"The description of the model in {folder} is malformed ({type(error).__name__}: {error})."
        ) from error
    return found


def load_beside(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The plain values that were saved beside the model of a folder; none where there were none."""
    found: dict[str, Any] = _read_description(Path(folder)).get("beside", {})
    return found


def _convert(module: nn.Module, device: str | torch.device | None, dtype: torch.dtype | None) -> None:
    from vibayes.training.run import find_device

    if device is not None:
        module.to(find_device(device))
    if dtype is not None:
        if not dtype.is_floating_point:
            raise ConfigurationError(f"dtype must be a floating one such as torch.float32, got {dtype}.")
        module.to(dtype)


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"There is no saved model in {folder}: {DESCRIPTION} is missing.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); it is damaged or no saved model.") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise DataError(f"{path} is not the description of a vibayes model.")
    version = description.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise DataError(
            f"The model in {folder} was saved by vibayes {description.get('vibayes')} in format {version!r}; this "
            f"version reads formats up to {VERSION}. Upgrade vibayes to load it."
        )
    if description.get("checksum") != _checksum(description):
        raise DataError(f"{path} does not fit its checksum: it was damaged or edited. Save the model again.")
    return description


def _read_tensors(folder: Path, description: dict[str, Any]) -> dict[str, torch.Tensor]:
    stored = description["tensors"]
    path = folder / Path(stored["file"]).name
    try:
        body = path.read_bytes()
    except OSError as error:
        raise DataError(f"The tensors of the model, {path}, cannot be read: {error}.") from error
    if hashlib.sha256(body).hexdigest() != stored["sha256"]:
        raise DataError(f"{path} does not fit its hash: it is truncated, damaged or of another model.")
    try:
        return load_tensors(body)
    except SafetensorError as error:
        raise DataError(f"{path} cannot be read ({error}).") from error


def _checksum(description: dict[str, Any]) -> str:
    rest = {key: value for key, value in description.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode()).hexdigest()
