"""What the page on the architecture says of the source tree is so."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "vibayes"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def parts() -> set[str]:
    """The modules and packages of vibayes, by name."""
    found = [path for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return {path.stem for path in found} - {"__init__", "__main__"}


def imported(path: Path) -> set[str]:
    """The parts that a file imports at module level, annotations' imports left out."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vibayes"):
            names = node.module.split(".")[1:2] if "." in node.module else [alias.name for alias in node.names]
            found |= set(names) & parts()
    return found


def test_the_tree_names_every_module() -> None:
    tree = PAGE[PAGE.index("## The tree") : PAGE.index("**Dependencies**")]
    missing = [part for part in sorted(parts()) if not re.search(rf"\b{part}(\.py|/|\*)", tree)]
    assert not missing


def test_a_line_of_dependencies_imports_only_from_lines_above_it() -> None:
    section = PAGE[PAGE.index("**Dependencies**") :]
    lines = [line.strip().split(", ") for line in section.splitlines() if line.startswith("    ")]
    level = {name: number for number, line in enumerate(lines) for name in line}
    assert len(level) == sum(map(len, lines))
    beside = set(re.findall(r"`([a-z]+)`", section[section.index("`datasets`") : section.index("stand beside")]))
    assert set(level) | beside | {"_figures"} == parts()
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other in imported(path) - {part}:
            if part in level:
                assert other in beside | {"_figures"} or level[other] < level[part], (part, other)
            elif part in parts():
                assert other in beside | {"_figures", "data", "errors"}, (part, other)
