"""Small tables for the comparison."""

from pathlib import Path

import numpy as np
import pandas as pd

from vibayes.tables import Table


def regression_frame(n: int = 80, seed: int = 0) -> pd.DataFrame:
    """Numbers, a category and a date behind a smooth function; some cells are missing."""
    random = np.random.RandomState(seed)
    a, b = random.uniform(-2, 2, n), random.uniform(-2, 2, n)
    kind = random.choice(["left", "right"], n)
    y = np.sin(2 * a) + np.where(kind == "left", 0.5, -0.5) + 0.1 * random.standard_normal(n)
    frame = pd.DataFrame({"a": a, "b": b, "kind": kind, "y": 10 + 5 * y})
    frame.loc[3, "b"] = np.nan
    frame.loc[5, "y"] = np.nan
    return frame


def class_frame(n: int = 90, classes: int = 3, seed: int = 0) -> pd.DataFrame:
    """Points around as many centres."""
    random = np.random.RandomState(seed)
    label = random.randint(classes, size=n)
    angle = 2 * np.pi * label / classes
    x = np.column_stack([np.cos(angle), np.sin(angle)]) + 0.25 * random.standard_normal((n, 2))
    return pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "label": [f"class {i}" for i in label]})


def table(frame: pd.DataFrame, name: str = "table.csv") -> Table:
    return Table(frame, Path(name))
