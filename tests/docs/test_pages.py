"""The code of the documentation runs, at reduced size, and prints and draws what the pages show."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

DOCS = Path(__file__).parents[2] / "docs"


def _load(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "tools" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


pages = _load("pages")


def _shape(text: str) -> list[str]:
    """The lines of a text without its numbers, how many stand in a list, and spaces: what fewer steps change."""
    text = re.sub(r"[-+]?\d[\d,]*\.?\d*(e[-+]?\d+)?|[-+]?\b(nan|inf)\b", "#", text)
    return [re.sub(r"#(,?#)+", "#", re.sub(r"[ \t]+", "", line)) for line in text.strip().splitlines()]


@pytest.mark.parametrize("name", pages.pages())
def test_a_page_runs_and_shows_what_it_prints_and_draws(name: str, tmp_path: Path) -> None:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    printed = pages.run(name, tmp_path, fast=True)
    for block, output in zip(pages.blocks(text), printed, strict=True):
        if block.output is None:
            assert not output, f"the page hides what it prints: {output}"
        else:
            assert _shape(output) == _shape(text[slice(*block.output)])
    shown = set(re.findall(r"images/([\w.-]+)", text))
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert shown == drawn
    for picture in shown:
        assert 0 < (DOCS / "images" / picture).stat().st_size < 60_000


def test_the_code_of_the_readme_runs(tmp_path: Path) -> None:
    printed = pages.run("../README", tmp_path, fast=True)
    assert re.fullmatch(r"History\(\d+ steps, elbo .*, L-BFGS converged\)\n", printed[0])
    assert printed[-1] == ""
    assert {path.name for path in tmp_path.iterdir()} == {"cubic.png", "digits.ckpt", "cubic-network"}


def test_there_are_the_pages_that_matter_and_no_stray_pictures() -> None:
    found = pages.pages()
    assert "index" in found
    assert sum(name.startswith("tutorials/") for name in found) == 5
    assert sum(name.startswith("how-to/") for name in found) >= 8
    texts = "".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in found)
    assert all(picture.name in texts for picture in (DOCS / "images").iterdir())


def test_blocks_are_found_with_their_output_and_skipped_on_request() -> None:
    text = "# T\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n<!-- not run: slow -->\n```python\nf()\n```\n"
    text += "\n```python\nx = 2\n```\n\nwords\n\n```text\nother\n```\n"
    first, second = pages.blocks(text)
    assert first.code == "print(1)\n"
    assert first.line == 3
    assert text[slice(*first.output)] == "1\n"
    assert (second.code, second.output) == ("x = 2\n", None)


def test_fast_mode_lowers_numbers_and_never_raises_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def f(**given):\n    print(given)\nf(steps=5000, n_samples=3, lr=7, batch_size=400)\n"
    (tmp_path / "page.md").write_text(f"```python\n{code}```\n")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    assert pages.run("page", tmp_path, fast=True) == [
        f"{ {'steps': pages.FAST['steps'], 'n_samples': 3, 'lr': 7, 'batch_size': 400} }\n"
    ]
    assert "5000" in pages.run("page", tmp_path)[0]


def test_an_update_writes_what_is_printed_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.md"
    path.write_text("```python\nprint(6 * 7)\n```\n\n```text\nold\n```\n\nEnd.\n")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    pages.update("page")
    assert path.read_text() == "```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n\nEnd.\n"


def test_an_error_names_the_line_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("One\n\n```python\nx = 1\nraise ValueError('no')\n```\n")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    with pytest.raises(ValueError, match="no") as caught:
        pages.run("page", tmp_path)
    assert caught.traceback[-1].lineno + 1 == 5
    assert "page.md" in str(caught.traceback[-1].path)


def test_the_results_page_has_our_numbers_only() -> None:
    hooks = _load("hooks")
    text = (
        "### tab:a\n\n| dataset | model | metric | ours | thesis | difference | splits | verdict |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| boston | SVGP | loss | 0.4 | 0.5 | -0.1 | 20 | better |\n"
        "\n1 of 2 numbers have no result of ours; --all shows them.\n\n"
        "### tab:b\n\n3 of 3 numbers have no result of ours; --all shows them.\n"
    )
    kept = hooks._only_ours(text)
    assert "| boston | SVGP | loss | 0.4 |" in kept
    assert "tab:b" not in kept
    assert "1 of 2 numbers have no result of ours." in kept
    assert "`tab:a`" in kept
