"""Run the Python code of documentation pages.

    python docs/tools/pages.py                    # every page, at full size
    python docs/tools/pages.py tutorials/images   # one page

The blocks of a page run one after the other in one namespace, in a folder of their own. What they print replaces the
`text` block that follows them, and the pictures they save go to `docs/images`: nothing of either is typed or drawn by
hand. With `fast=True`, which the tests use, numbers such as `steps=2000` are cut down to those of `FAST`.

Set `VIBAYES_DATA` to the data files first: the pages as committed show MNIST.

A block after the comment `<!-- not run: reason -->` is left alone.
"""

import argparse
import ast
import contextlib
import io
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]

# The largest values of keyword arguments in fast mode.
FAST = {"steps": 20, "max_steps": 20, "n_samples": 10, "n_train": 120, "n_test": 60, "n": 20, "n_inducing": 10}

_BLOCK = re.compile(r"^```(?P<kind>python|text)\n(?P<body>.*?)^```$", re.M | re.S)
_NOT_RUN = re.compile(r"<!-- not run: [^>]+ -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A block of Python, and where in the page its output stands (None: nowhere)."""

    code: str
    line: int
    output: tuple[int, int] | None


def pages() -> list[str]:
    """The names of the pages that have code to run, such as `tutorials/images`."""
    found = [DOCS / "index.md", *sorted(DOCS.glob("tutorials/*.md")), *sorted(DOCS.glob("how-to/*.md"))]
    return [str(path.relative_to(DOCS).with_suffix("")) for path in found if blocks(path.read_text(encoding="utf-8"))]


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page that are to be run."""
    found: list[Block] = []
    matches = list(_BLOCK.finditer(text))
    for match, following in zip_longest(matches, matches[1:]):
        if match["kind"] != "python" or _NOT_RUN.search(text, 0, match.start()):
            continue
        output = None
        if following is not None and following["kind"] == "text" and not text[match.end() : following.start()].strip():
            output = following.span("body")
        found.append(Block(match["body"], text[: match.start("body")].count("\n"), output))
    return found


def run(name: str, folder: Path, *, fast: bool = False) -> list[str]:
    """Run a page's blocks in a folder; returns what each printed."""
    path = DOCS / f"{name}.md"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    with contextlib.chdir(folder), _untouched_defaults():
        for block in blocks(path.read_text(encoding="utf-8")):
            tree = ast.parse("\n" * block.line + block.code, filename=str(path))  # errors name the page's line
            if fast:
                tree = ast.fix_missing_locations(_Smaller().visit(tree))
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                exec(compile(tree, str(path), "exec"), namespace)
            printed.append(out.getvalue())
    return printed


def update(name: str) -> None:
    """Run a page at full size; put what it prints into the page and its pictures into `docs/images`."""
    path = DOCS / f"{name}.md"
    with tempfile.TemporaryDirectory() as folder:
        printed = run(name, Path(folder))
        for picture in sorted(Path(folder).glob("*.png")):
            _shrink(picture, DOCS / "images" / picture.name)
    text = path.read_text(encoding="utf-8")
    for block, output in reversed(list(zip(blocks(text), printed, strict=True))):
        if block.output is not None:
            text = text[: block.output[0]] + output.rstrip() + "\n" + text[block.output[1] :]
    path.write_text(text, encoding="utf-8")


def _shrink(source: Path, target: Path) -> None:
    """Copy a picture with a palette of 96 colours: a third of the size, and no difference to see."""
    from PIL import Image

    with Image.open(source) as picture:
        picture.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(target, optimize=True)


class _Smaller(ast.NodeTransformer):
    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        self.generic_visit(node)
        value = node.value
        if node.arg in FAST and isinstance(value, ast.Constant) and isinstance(value.value, int):
            node.value = ast.copy_location(ast.Constant(min(value.value, FAST[node.arg])), value)
        return node


@contextlib.contextmanager
def _untouched_defaults() -> Iterator[None]:
    import torch

    dtype, warn_always = torch.get_default_dtype(), torch.is_warn_always_enabled()
    torch.set_default_dtype(torch.float32)  # as in a fresh interpreter
    torch.set_warn_always(True)  # else a warning that another page caused before would not be seen here
    torch.manual_seed(0)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_warn_always(warn_always)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="such as tutorials/images; all when none is given")
    for name in parser.parse_args().pages or pages():
        start = time.perf_counter()
        update(name)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
