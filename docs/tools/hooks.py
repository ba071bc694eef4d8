"""What mkdocs does on top of rendering pages: the results tables, and the list of decisions."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the tables of all experiments that have results in place of the marker on the results page."""
    if page.file.src_uri != "results.md":
        return markdown
    return markdown.replace("<!-- tables -->", tables())


def tables(results: Path = RESULTS) -> str:
    """What `python -m vibayes.experiments table NAME` prints for every experiment in the results folder."""
    parts = []
    for folder in sorted(path for path in results.iterdir() if path.is_dir() and not path.name.startswith(".")):
        command = [sys.executable, "-m", "vibayes.experiments", "table", folder.name, "--out", str(results)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"`vibayes bench table {folder.name}` failed:\n{done.stderr}")
        parts.append(f"## {folder.name}\n\n`vibayes bench table {folder.name}`\n\n{_only_ours(done.stdout)}")
    return "\n\n".join(parts) if parts else "There are no results yet."


def _only_ours(text: str) -> str:
    """Leave out lines of tables, and tables, without a number of ours; the text says how many there are."""
    kept = []
    for part in re.split(r"(?m)^(?=### )", text):
        lines = [line for line in part.splitlines() if not re.search(r"\| - \|[^|]*\| - \| - \| - \|$", line)]
        if any(re.match(r"\| (?!---|dataset|model|depth|metric)", line) for line in lines) or not part.startswith(
            "### "
        ):
            kept.append(re.sub(r"^### (.+)$", r"### `\1`", "\n".join(lines), flags=re.M))
    return "\n\n".join(kept).replace(" ± ", "\u00a0±\u00a0")  # a number stays on one line
