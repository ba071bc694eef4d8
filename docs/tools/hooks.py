"""What mkdocs does on top of rendering pages: the results tables, and the list of decisions."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from vibayes.experiments.__main__ import main as bench
from vibayes.experiments.catalogue import EXPERIMENTS
from vibayes.experiments.experiment import Experiment

DOCS = Path(__file__).parents[1]
RESULTS = DOCS.parent / "results"


def on_config(config: Any) -> Any:
    """Put the decisions into the navigation, in the order of their index; a page that it lacks is a warning."""
    index = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    pages = [{title: f"decisions/{name}"} for title, name in re.findall(r"^- \[(.+)\]\((.+\.md)\)", index, re.M)]
    for section in config.nav:
        if "Inside" in section:
            section["Inside"] = [
                {"Architecture": "architecture.md"},
                {"Decisions": ["decisions/index.md", *pages]},
            ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Let pages show the figures of the results."""
    for picture in sorted(RESULTS.glob("*/*.png")):
        name = f"results/{picture.parent.name}/{picture.name}"
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put tables and figures of all experiments that have results in place of the marker on the results page."""
    if page.file.src_uri != "results.md":
        return markdown
    with_results = [e for e in EXPERIMENTS.values() if (RESULTS / (e.runs_of or e.name)).is_dir()]
    parts = [f"## {e.name}\n\n{e.title}. {e.note}\n\n{_figures(RESULTS / e.name)}{_tables(e)}" for e in with_results]
    return markdown.replace("<!-- tables -->", "\n\n".join(parts) or "There are no results yet.")


def _tables(experiment: Experiment) -> str:
    """What `python -m vibayes.experiments table` prints of an experiment and its presets, where there are tables."""
    if experiment.script and not experiment.tables:
        return ""
    parts = []
    for preset in (None, *experiment.presets):
        words = ["table", experiment.name, *(["--preset", preset] if preset else [])]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if bench([*words, "--out", str(RESULTS)]):
                raise RuntimeError(f"`vibayes bench {' '.join(words)}` failed.")
        text = _only_ours(printed.getvalue()).replace(experiment.note, "")  # which stands above
        if "| --- |" in text or not preset:
            if preset:
                parts.append(f"## {experiment.name} --preset {preset}\n\nWith {experiment.presets[preset]}")
                text = text.partition("\nThere are results with other options too")[0]  # as said above
            parts.append(f"`vibayes bench {' '.join(words)}`\n\n{text}")
    return "\n\n".join(parts)


def _figures(folder: Path) -> str:
    """The figures of an experiment that draws some, with their numbers and whether the thesis's statements hold."""
    record = folder / f"{folder.name}.json"
    if not record.exists():
        return ""
    parts = []
    for name, figure in json.loads(record.read_text(encoding="utf-8"))["figures"].items():
        parts.append(f"### `{figure['label']}`, {name}")
        if figure["file"] is not None:
            parts.append(f"![{figure['label']}](results/{folder.name}/{figure['file']})")
        parts.append("\n".join(f"- {'Yes' if s['holds'] else '**No**'}: {s['text']}." for s in figure["statements"]))
        parts.append(_numbers(figure["numbers"]))
    return "\n\n".join(part for part in parts if part) + "\n\n"


def _numbers(numbers: list[dict[str, Any]]) -> str:
    """A table of numbers, beside the thesis's where it has some."""
    columns = ["ours", "thesis"] if any(n["thesis"] is not None for n in numbers) else ["ours"]
    rows = [[n["name"], *("" if n[c] is None else f"{n[c]:.4g}" for c in columns)] for n in numbers]
    lines = [["", *columns], ["---"] * (len(columns) + 1), *rows] if rows else []
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _only_ours(text: str) -> str:
    """Leave out tables without a number of ours; the others say how many have none."""
    parts = re.split(r"(?m)^(?=### )", text.replace("; --all shows them.", "."))
    kept = [part for part in parts if "\n| --- |" in part or not part.startswith("### ")]
    named = re.sub(r"(?m)^### (.+)$", r"### `\1`", "\n\n".join(kept))
    return named.replace(" ± ", "\u00a0±\u00a0")  # a number stays on one line
