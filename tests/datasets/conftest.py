"""The folder with real data, where there is one."""

import os
from pathlib import Path

import pytest

from vibayes.datasets import _log


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = os.environ.get("VIBAYES_DATA")
    if not root:
        pytest.skip("VIBAYES_DATA is not set: no data files")
    folder = Path(root)
    if not (folder / "uci" / "boston.npz").is_file():
        pytest.skip(f"no data files in VIBAYES_DATA={root}")
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache, and none asks a real mirror."""
    monkeypatch.setenv("VIBAYES_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("VIBAYES_DATA_URL", raising=False)
    monkeypatch.setattr(_log, "_said", set())
