"""`vibayes demo`: the main job on a table that comes with scikit-learn."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from vibayes.errors import ConfigurationError
from vibayes.experiments.results import writable_folder

__all__ = ["TARGET", "run", "write_table"]

TARGET = "progression"
MINUTES = 1.5

NAMES = {
    "bp": "blood_pressure", "s1": "cholesterol", "s2": "ldl", "s3": "hdl", "s4": "cholesterol_hdl_ratio",
    "s5": "log_triglycerides", "s6": "glucose",
}  # fmt: skip

NEXT = """\
import vibayes as vb
gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian()); vb.fit(gp, (x, y))
lower, upper = gp.predict(x_new).interval(0.95)
"""


def write_table(path: Path) -> Path:
    """Write 442 patients (Efron et al. 2004) as CSV: ten measurements, and how far diabetes went within a year."""
    try:
        from sklearn.datasets import load_diabetes
    except ImportError as error:
        raise ConfigurationError(
            'The demo uses a table that comes with scikit-learn: pip install "vibayes[tables]".'
        ) from error
    frame = load_diabetes(as_frame=True, scaled=False).frame.rename(columns=NAMES | {"target": TARGET})
    frame["sex"] = frame["sex"].map({1.0: "a", 2.0: "b"})  # the source does not say which is which
    frame.to_csv(path, index=False)
    return path


def run(console: Console, out: Path, *, quick: bool = False) -> int:
    """Compare models on the table; the exit code."""
    from vibayes.cli.compare import run_compare

    folder = writable_folder(out)
    table = write_table(folder / "diabetes.csv")
    console.print(
        f"A table of 442 patients, {escape(str(table))}: how far does diabetes progress within a year?\n"
        f"$ vibayes compare {escape(str(table))} --target {TARGET} --budget {MINUTES:g} --seeds 2\n",
        highlight=False,
        soft_wrap=True,
    )
    code = run_compare(
        table, [TARGET], budget=MINUTES, seeds=2, models=["gp", "gp-matern", "deep-gp"] if quick else None, task=None,
        ignore=None, test=None, seed=0, device=None, steps=12 if quick else None, out=folder, json=False, quiet=False,
    )  # fmt: skip
    console.print("\nIn Python, with your own x [N, 1] and y [N]:", highlight=False)
    console.print(NEXT.rstrip(), style="cyan", markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nOpen {escape(str(folder / 'report.html'))} in a browser.", highlight=False, soft_wrap=True)
    return code
