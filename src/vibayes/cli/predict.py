"""`vibayes predict`: predictions of a saved model for the rows of a table."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from vibayes.cli.compare import DEVICE, TABLE

__all__ = ["predict"]


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a model, as fit or compare wrote it.", show_default=False)],
    table: Annotated[Path, TABLE],
    out: Annotated[Path | None, typer.Option(help="CSV file for the predictions; stdout when left out.")] = None,
    device: Annotated[str | None, DEVICE] = None,
    json: Annotated[bool, typer.Option("--json", help="Rows as JSON in place of CSV.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Put the table's own columns in front.")] = False,
) -> None:
    """Predict the rows of a table: mean, std and 95% interval, or the class and all probabilities.

    Columns are found by name, whatever their order; others are not looked at. A missing column is an error, an empty
    cell is an unknown value, and a category that training did not see is said. Where the table has the target, too,
    scores are printed on stderr.

    Example: vibayes predict comparison/model new-houses.csv --out predictions.csv
    """
    from vibayes.compare import TableModel, prediction_csv, prediction_frame
    from vibayes.errors import ConfigurationError
    from vibayes.tables import read_table
    from vibayes.tables.reading import unique_names

    if out is not None and out.is_dir():
        raise ConfigurationError(f"{out} is a folder; give a file for the predictions, such as {out / 'new.csv'}.")
    errors = Console(stderr=True, emoji=False)
    loaded = TableModel.load(model, device)
    read = read_table(table, loaded.texts)
    predicted, notes = loaded.predict(read.frame)
    frame = prediction_frame(loaded.target, predicted)
    if keep:
        import pandas

        frame = pandas.concat([_own_columns(table, read.frame, json), frame], axis=1)
        names, _, renamed = unique_names(list(frame.columns))
        frame.columns, notes = names, notes + renamed
    for note in (*read.notes, *notes):
        errors.print(note, markup=False, highlight=False, soft_wrap=True)
    if json:
        text = frame.to_json(orient="records", indent=1, double_precision=15) + "\n"
    else:
        text = prediction_csv(frame, predicted)
    if out is None:
        sys.stdout.write(text)
    else:
        from vibayes.experiments.results import write_file

        try:
            write_file(out, text)
        except OSError as error:
            raise ConfigurationError(
                f"{out} cannot be written ({error.strerror}). Choose another file with --out."
            ) from error
        errors.print(f"{len(frame):,} predictions in {out}", markup=False, highlight=False, soft_wrap=True)
    _score(errors, loaded, read.frame)


def _own_columns(path: Path, frame: Any, typed: bool) -> Any:
    """The table's columns with their cells as the file has them; typed, numbers are numbers, but for codes as 01."""
    from vibayes.tables import read_table

    as_text = read_table(path, [str(name) for name in frame.columns]).frame
    own = frame.reset_index(drop=True).astype(object)
    for name in frame.columns:
        if frame[name].dtype.kind not in "biuf" or as_text[name].dtype == frame[name].dtype:
            continue  # text, or a file that has types of its own
        cells = as_text[name].dropna().astype(str)
        local = cells.str.contains(",").any()  # elsewhere, 1,5 is no number
        if cells.str.match(r"0\d").any() or not (typed or local):
            own[name] = as_text[name]
    return own


def _score(console: Console, loaded: Any, frame: Any) -> None:
    """How good the predictions are, where the table knows the truth."""
    import torch

    from vibayes.compare.scores import scores

    if not all(name in frame.columns for name in loaded.target.names):
        return
    y, known = loaded.target.encode(frame)
    if known.sum() < 2:
        return
    x = loaded.encoder.encode(frame[known]).x
    found = scores(loaded.model, torch.as_tensor(x), torch.as_tensor(y[known]))
    told = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in found.items())
    console.print(
        f"Against the {int(known.sum()):,} known targets{loaded.target.odd(frame)}: {told}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
