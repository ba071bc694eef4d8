"""The reference leaves no public name out."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

API = Path(__file__).parents[2] / "docs" / "api"
MODULES = (
    "vibayes", "vibayes.augment", "vibayes.baselines", "vibayes.conjugate", "vibayes.datasets", "vibayes.diagnostics",
    "vibayes.distributions", "vibayes.evidence", "vibayes.kernels", "vibayes.mcmc", "vibayes.means", "vibayes.metrics",
    "vibayes.plotting", "vibayes.posteriors", "vibayes.stages", "vibayes.training.schedules",
)  # fmt: skip
# What only the package itself needs, or only an annotation.
INSIDE = {"Remote", "Schedule", "as_schedule", "cache_folder", "random_indices"}
# What needs a package that is not always there, or only other functions call.
WITHOUT_EXAMPLE = {"anneal", "fit_ivon"}


def resolve(name: str) -> Any:
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_of_a_module_stands_in_the_reference(module: str) -> None:
    if module == "vibayes.plotting":
        pytest.importorskip("matplotlib")
    listed = re.findall(r"^::: (\S+)", "".join(page.read_text(encoding="utf-8") for page in API.glob("*.md")), re.M)
    there = {id(resolve(name)) for name in listed if not name.startswith(("vibayes.sklearn", "vibayes.botorch"))}
    found = importlib.import_module(module)
    missing = [name for name in set(found.__all__) - INSIDE if callable(getattr(found, name))]
    assert [name for name in sorted(missing) if id(getattr(found, name)) not in there] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_public_function_has_an_example(module: str) -> None:
    if module == "vibayes.plotting":
        pytest.importorskip("matplotlib")
    found = importlib.import_module(module)
    functions = {name: getattr(found, name) for name in set(found.__all__) - INSIDE - WITHOUT_EXAMPLE}
    assert [n for n, f in sorted(functions.items()) if inspect.isfunction(f) and ">>> " not in (f.__doc__ or "")] == []
