"""A model with the table's rules around it: from rows of a file to predictions, saved and loaded without pickle."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vibayes.compare.scores import Predicted, predict_all
from vibayes.errors import DataError
from vibayes.experiments.results import write_file
from vibayes.saving import load, save
from vibayes.tables import Encoder, Target
from vibayes.tables.reading import needs_pandas
from vibayes.trainable import TrainableModel

__all__ = ["TableModel", "prediction_csv", "prediction_frame"]

FILE = "table.json"
SCHEMA = "vibayes-table-1"


@dataclass
class TableModel:
    """A trained model, how columns become its inputs, and what it predicts.

    Attributes:
        model: the model.
        encoder: of the inputs.
        target: what comes out.
        about: how it was made: family, rows, scores, version; plain values.
    """

    model: TrainableModel
    encoder: Encoder
    target: Target
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that `read_table` must read as text, for the model to find its categories and classes."""
        return (*self.encoder.texts, *self.target.texts)

    def predict(self, frame: Any) -> tuple[Predicted, list[str]]:
        """Predict the rows of a table, its columns found by name; and what is worth saying about them."""
        encoded = self.encoder.encode(frame)
        return predict_all(self.model, torch.as_tensor(encoded.x)), encoded.notes

    def save(self, folder: str | Path) -> None:
        """Write the model and, beside it, `table.json`."""
        folder = Path(folder)
        save(self.model, folder)
        content = {
            "schema": SCHEMA,
            "encoder": self.encoder.to_dict(),
            "target": self.target.to_dict(),
            "about": self.about,
        }
        write_file(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> "TableModel":
        """Read what `save` wrote, or the model in the folder that `vibayes compare` wrote."""
        folder = Path(folder)
        if not (folder / FILE).exists() and (folder / "model" / FILE).exists():
            folder = folder / "model"
        file = folder / FILE
        if not file.exists():
            raise DataError(
                f"{folder} holds no model of a table: there is no {FILE} in it. Give the folder that vibayes fit or "
                "vibayes compare wrote."
            )
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise DataError(f"{file} cannot be read ({error}).") from error
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema != SCHEMA:
            raise DataError(f"{file} is of the format {schema!r}; this version of vibayes reads {SCHEMA!r}.")
        missing = [key for key in ("encoder", "target", "about") if not isinstance(content.get(key), dict)]
        if missing:
            raise DataError(f"{file} is incomplete: it lacks {', '.join(missing)}.")
        try:
            encoder, target = Encoder.from_dict(content["encoder"]), Target.from_dict(content["target"])
            _check_about(content["about"])
        except DataError as error:
            raise DataError(f"{file} was damaged or edited. {error} Save the model again.") from error
        return cls(load(folder, device=device), encoder, target, content["about"])


def _check_about(about: dict[str, Any]) -> None:
    """Refuse text where numbers are shown."""
    scores = about.get("scores") or {}
    if not isinstance(scores, dict):
        raise DataError(f"Scores by name are expected, found {scores!r}.")
    shown = {"elbo_per_datapoint": about.get("elbo_per_datapoint"), "seconds": about.get("seconds"), **scores}
    for name, value in shown.items():
        if not isinstance(value, int | float | None):
            raise DataError(f"A number is expected as {name}, found {value!r}.")


def prediction_frame(target: Target, predicted: Predicted) -> Any:
    """Predictions as a table: mean, std and 95% interval of every number, or the class and all probabilities.

    With several targets, names come in front: `y mean`, `z mean`.
    """
    pandas = needs_pandas()
    columns: dict[str, Any] = {}
    if target.kind == "regression":
        for place, name in enumerate(target.names):
            front = f"{name} " if len(target.names) > 1 else ""
            columns[f"{front}mean"] = predicted.mean[:, place]
            columns[f"{front}std"] = predicted.std[:, place]
            columns[f"{front}lower 95%"] = predicted.lower[:, place]
            columns[f"{front}upper 95%"] = predicted.upper[:, place]
            columns[f"{front}epistemic std"] = np.sqrt(predicted.epistemic[:, place])
            columns[f"{front}aleatoric std"] = np.sqrt(predicted.aleatoric[:, place])
        return pandas.DataFrame(columns)
    labels = np.array(target.labels, dtype=object)
    columns["predicted"] = labels[predicted.probs.argmax(1)]
    for place, label in enumerate(target.labels):
        columns[f"P({label})"] = predicted.probs[:, place]
    columns["entropy"] = predicted.entropy
    columns["mutual information"] = predicted.mutual_information
    return pandas.DataFrame(columns)


def prediction_csv(frame: Any, predicted: Predicted) -> str:
    """A table of predictions as CSV; other columns must be of type object, which keeps them as they are.

    Numbers have seven digits, or as many as it takes to tell the ends of an interval apart.
    """
    digits = 7
    if predicted.kind == "regression":
        ratio = np.abs(predicted.mean).max(0) / np.maximum(predicted.std.min(0), np.finfo(float).tiny)
        digits = int(np.clip(np.ceil(np.log10(np.maximum(ratio, 1.0))).max() + 4, 7, 15))
    text: str = frame.to_csv(index=False, float_format=f"%.{digits}g")
    return text
