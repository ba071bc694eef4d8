"""A model with the table's rules around it: from rows of a file to predictions, saved and loaded without pickle."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vibayes.compare.scores import Predicted, predict_all
from vibayes.errors import DataError
from vibayes.saving.files import DESCRIPTION, load, load_beside, save
from vibayes.tables import Encoder, Target
from vibayes.tables.reading import needs_pandas
from vibayes.trainable import TrainableModel

__all__ = ["TableModel", "prediction_csv", "prediction_frame"]

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
        """Write the model, and what belongs to it, into one folder; they cannot be taken apart by mistake."""
        content = {
            "schema": SCHEMA,
            "encoder": self.encoder.to_dict(),
            "target": self.target.to_dict(),
            "about": self.about,
        }
        save(self.model, folder, beside={"table": content})

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> "TableModel":
        """Read what `save` wrote, or the model in the folder that `vibayes compare` wrote."""
        folder = Path(folder)
        if not (folder / DESCRIPTION).exists() and (folder / "model" / DESCRIPTION).exists():
            folder = folder / "model"
        content = load_beside(folder).get("table") if (folder / DESCRIPTION).exists() else None
        if content is None:
            raise DataError(
                f"{folder} holds no model of a table. Give the folder that vibayes fit or vibayes compare wrote."
            )
        if content["schema"] != SCHEMA:
            raise DataError(
                f"The table of the model in {folder} is of the format {content['schema']!r}; this version of vibayes "
                f"reads {SCHEMA!r}."
            )
        encoder, target = Encoder.from_dict(content["encoder"]), Target.from_dict(content["target"])
        return cls(load(folder, device=device), encoder, target, content["about"])


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
