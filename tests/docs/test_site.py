"""The site builds without warnings, and fetches nothing."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("material")
pytest.importorskip("mkdocstrings_handlers.python")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # not --quiet, which hides warnings from --strict, too
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text(encoding="utf-8")):
            assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), f"{page}: {tag}"


def test_the_reference_shows_functions_with_their_examples(site: Path) -> None:
    for page in (site / "api").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "doc-symbol-module" not in text, f"{page.name} shows a module in place of a function of the same name"
        assert "<blockquote>" not in text, f"{page.name} shows a doctest as a quotation"
        assert "\\frac" not in text, f"{page.name} shows a formula that is no code"
    models = (site / "api" / "models.html").read_text(encoding="utf-8")
    assert 'id="vibayes.Model.predict"' in models
    extending = (site / "api" / "extending.html").read_text(encoding="utf-8")
    assert all(f'id="vibayes.{name}"' in extending for name in ("Kernel._matrix", "Likelihood._predictive"))
    assert re.search(r'<pre><span></span><code><span class="gp">&gt;&gt;&gt;', models)  # a session, highlighted
    returned = [found.split("</ul>")[0] for found in models.split("Returns:")[1:]]
    assert returned
    assert all(found.count("<li") == 1 for found in returned), "one thing that is returned, a line each"


def test_results_are_in_the_results_page(site: Path) -> None:
    text = (site / "results.html").read_text(encoding="utf-8")
    assert "<!-- tables -->" not in text
    for folder in (ROOT / "results").iterdir():
        if folder.is_dir() and not folder.name.startswith("."):
            assert f'id="{folder.name}"' in text
            assert all(f"results/{folder.name}/{picture.name}" in text for picture in folder.glob("*.png"))
            assert all((site / "results" / folder.name / picture.name).exists() for picture in folder.glob("*.png"))
    assert "vibayes bench table dkl-uci" in text
    assert "<td>largest |f| on the plotted range, W=3</td>" in text
    assert 'id="gi-uci-preset-minutes"' in text
    assert re.search(r"<code>tab:dkl:batch</code>, utkface-short<", text)  # and not as if it were the thesis's table
    assert "ELBO per data point on standardised targets" in text  # what the numbers' units are
    assert text.count("the log evidence of the infinitely wide network is near -60 nats") == 1


def test_examples_of_docstrings_are_fenced() -> None:
    found = importlib.util.spec_from_file_location("docs_doctests", ROOT / "docs" / "tools" / "doctests.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    text = "What.\n\n>>> f(1)\n2\n\nMore.\n\n>>> g()\n... x\n3\n\nExample:\n    >>> h()\n    4\n"
    expected = "What.\n\n```pycon\n>>> f(1)\n2\n```\n\nMore.\n\n```pycon\n>>> g()\n... x\n3\n```\n\n"
    expected += "Example:\n    ```pycon\n    >>> h()\n    4\n    ```\n"
    assert module.fenced(text) == expected
