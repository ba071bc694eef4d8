"""The folder that a comparison writes: model, predictions, numbers, report."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import vibayes
from vibayes.compare.comparison import Comparison
from vibayes.compare.data import Data
from vibayes.compare.insight import Sensitivity, least_sure, sensitivity
from vibayes.compare.ranking import Result
from vibayes.compare.report import page
from vibayes.compare.scores import Predicted, predict_all
from vibayes.compare.table_model import TableModel, prediction_csv, prediction_frame
from vibayes.experiments.record import provenance
from vibayes.experiments.results import plain, writable_folder, write_file

__all__ = ["about_model", "results", "table_model", "write", "write_predictions"]

SCHEMA = "vibayes-comparison-1"


def about_model(data: Data, result: Result) -> dict[str, Any]:
    """How the best model of a family was made, for JSON."""
    history = result.trained.histories[result.best]
    about = {
        "family": result.family,
        "title": result.about.title,
        "vibayes": vibayes.__version__,
        "table": data.table.path.name,
        "rows_trained": history.n_data,
        "rows_held_out": len(data.test),
        "seed": result.trained.seeds[result.best],
        "steps": history.step[-1],
        "stopped": history.stopped,
        "seconds": result.trained.seconds,
        "elbo_per_datapoint": result.bounds[result.best].value,
        "scores": result.scores[result.best],
    }
    made: dict[str, Any] = plain(about)
    return made


def table_model(comparison: Comparison) -> TableModel:
    """The best model with the table's rules around it."""
    data = comparison.data
    return TableModel(comparison.model, data.encoder, data.target, about_model(data, comparison.winner))


def results(comparison: Comparison, sensitivities: list[Sensitivity] | None = None) -> dict[str, Any]:
    """All numbers of a comparison, for JSON."""
    data = comparison.data
    found = {
        "schema": SCHEMA,
        "table": data.table.path.name,
        "targets": list(data.target.names),
        "task": data.target.task,
        "labels": list(data.target.labels),
        "rows": len(data.table),
        "rows_trained": len(data.train),
        "rows_held_out": len(data.test),
        "winner": comparison.winner.family,
        "verdict": comparison.verdict(),
        "interrupted": comparison.interrupted,
        "seconds": comparison.seconds,
        "budget_minutes": comparison.minutes,
        "units": "nats per row; evidence and *_standardized with targets in units of their standard deviation",
        "ranking": [
            {
                "family": result.family,
                "below_best": None if gap is None else {"mean": gap.mean, "stderr": gap.stderr, "clear": gap.clear},
            }
            for result, gap in comparison.ranking
        ],
        "validation": None if comparison.validation is None else vars(comparison.validation),
        "families": [result.to_dict() for result in comparison.results],
        "skipped": comparison.skipped,
        "sensitivity": {entry.column: entry.share for entry in sensitivities or ()},
        "columns": [{"name": name, "what_was_done": note} for name, note in data.encoder.summary()],
        "notes": [data.target.note, *data.notes],
        "provenance": provenance(),
    }
    made: dict[str, Any] = plain(found)
    return made


def write_predictions(path: Path, data: Data, predicted: Predicted) -> None:
    """Predictions of every row of the table beside what is true, as CSV."""
    frame = prediction_frame(data.target, predicted)
    part = np.full(len(frame), "no target", dtype=object)
    part[data.train], part[data.test] = "train", "test"
    frame.insert(0, "row", np.arange(1, len(frame) + 1))
    frame.insert(1, "part", part)
    for place, name in enumerate(data.target.names):
        truth = data.table.frame[name].astype(object).to_numpy()
        if any(data.target.forms):  # numbers with marks, beside which predictions are plain ones
            truth = data.target.numbers(data.table.frame)[place][0].astype(object)
        frame.insert(2 + place, f"true {name}", truth)
    write_file(path, prediction_csv(frame, predicted))


def write(comparison: Comparison, folder: Path) -> dict[str, Path]:
    """Write everything; returns the files by what they are."""
    folder = writable_folder(folder)
    data = comparison.data
    predicted = predict_all(comparison.model, data.x)
    sensitivities = sensitivity(comparison.model, data.encoder, data.part(data.train)[0])
    table_model(comparison).save(folder / "model")
    write_predictions(folder / "predictions.csv", data, predicted)
    found = results(comparison, sensitivities)
    found["least_sure_rows"] = [int(row) + 1 for row in least_sure(predicted)]
    write_file(folder / "results.json", json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_file(folder / "report.html", page(comparison, predicted, sensitivities))
    return {
        "report": folder / "report.html",
        "model": folder / "model",
        "predictions": folder / "predictions.csv",
        "results": folder / "results.json",
    }
