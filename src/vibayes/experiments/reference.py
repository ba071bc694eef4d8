"""The thesis's own numbers, one CSV file per table."""

import csv
import functools
import io
from importlib import resources

from vibayes.experiments.names import check_name

__all__ = ["COLUMNS", "direction", "is_error_wrong", "is_quoted", "is_time", "is_wrong", "load_table", "table_names"]

COLUMNS = (
    "table", "chapter", "dataset", "model", "prior", "depth", "batch_size", "augmentation", "feature_dim", "metric",
    "value", "stderr", "normalised", "note",
)  # fmt: skip

_HIGHER = ("elbo", "lml", "_ll", "accuracy")
_LOWER = ("rmse", "loss", "ece", "entropy_ratio", "seconds")


def table_names() -> list[str]:
    """The reference tables there are."""
    folder = resources.files("vibayes.experiments").joinpath("reference")
    return sorted(file.name[: -len(".csv")] for file in folder.iterdir() if file.name.endswith(".csv"))


@functools.cache
def load_table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a table, as printed.

    >>> row = load_table("tab_dkl_uci_elbos")[0]
    >>> row["dataset"], row["model"], row["value"], row["stderr"]
    ('boston', 'SVGP', '-1.66', '0.06')
    """
    name = check_name(name, table_names(), "reference table")
    file = resources.files("vibayes.experiments").joinpath("reference", f"{name}.csv")
    return tuple(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"), newline="")))


def direction(metric: str) -> int:
    """1 when more is better, -1 when less is, 0 for a number that is neither.

    >>> direction("test_ll"), direction("test_rmse"), direction("lengthscale")
    (1, -1, 0)
    """
    if any(part in metric for part in _LOWER):
        return -1
    return 1 if any(part in metric for part in _HIGHER) else 0


def is_time(metric: str) -> bool:
    """Whether a number is one of the machine that it was measured on."""
    return "seconds" in metric


def is_quoted(row: dict[str, str]) -> bool:
    """Whether the thesis only quotes the number from elsewhere."""
    return row.get("note", "").startswith("quoted")


def is_wrong(row: dict[str, str]) -> bool:
    """Whether the number is known to be a misprint."""
    return row.get("note", "").startswith("misprint")


def is_error_wrong(row: dict[str, str]) -> bool:
    """Whether the number is right and its standard error is known to be a misprint."""
    return row.get("note", "").startswith("stderr printed")
