"""Missing, damaged and foreign files, the mirror, and the folders. None of it needs real data."""

import errno
import hashlib
import http.server
import io
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vibayes import datasets
from vibayes.datasets import files, remote
from vibayes.datasets.files import Store
from vibayes.datasets.manifest import FILES, File
from vibayes.errors import ConfigurationError, DataError

PATH = "uci/yacht.npz"


def fake_yacht() -> bytes:
    """A file of the right shape with other numbers."""
    random = np.random.default_rng(0)
    order = random.permutation(308).astype(np.int32)
    buffer = io.BytesIO()
    X, y = random.normal(size=(308, 6)), random.normal(size=308)
    np.savez(buffer, X=X, y=y, train_0=order[:277], test_0=order[277:])
    return buffer.getvalue()


@pytest.fixture
def yacht(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """`fake_yacht`, known to the manifest."""
    content = fake_yacht()
    entry = File(PATH, len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(FILES, PATH, entry)
    monkeypatch.delenv("VIBAYES_DATA", raising=False)
    return content


def put(root: Path, content: bytes) -> Path:
    place = root / PATH
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return place


def test_manifest_is_complete() -> None:
    listed = [file for name in datasets.names() for file in datasets.info(name).files]
    assert sorted(listed) == sorted(FILES)
    for path, file in FILES.items():
        assert path == file.path
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.size > 0
        coded = "cifar10" in path or "utkface" in path
        assert bool(re.fullmatch("[0-9a-f]{64}", file.decoded)) is coded


def test_order_of_folders(tmp_path: Path, yacht: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(put(tmp_path / "env", yacht).read_bytes()) == len(yacht)
    monkeypatch.setenv("VIBAYES_DATA", str(tmp_path / "env"))
    assert len(datasets.load("yacht").x_train) == 277
    with pytest.raises(DataError, match="is missing"):
        datasets.load("yacht", root=tmp_path / "elsewhere")
    put(tmp_path / "cache" / "data", yacht)
    assert len(datasets.load("yacht", root=tmp_path / "elsewhere", cache=tmp_path / "cache").x_test) == 31


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBAYES_CACHE", "/somewhere/own")
    assert datasets.cache_folder() == Path("/somewhere/own")
    monkeypatch.delenv("VIBAYES_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/xdg")
    assert datasets.cache_folder() == Path("/somewhere/xdg/vibayes")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(files.sys, "platform", "linux")
    assert datasets.cache_folder() == Path("~/.cache/vibayes").expanduser()
    monkeypatch.setattr(files.sys, "platform", "darwin")
    assert datasets.cache_folder() == Path("~/Library/Caches/vibayes").expanduser()


def test_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBAYES_DATA", str(tmp_path / "d"))
    with pytest.raises(DataError) as caught:
        datasets.load("yacht", cache=tmp_path / "c")
    message = str(caught.value)
    places = (tmp_path / "d" / PATH, tmp_path / "c" / "data" / PATH)
    for part in (PATH, *places, "Gerritsma", "VIBAYES_DATA", "uci/, toy/ and images/", "VIBAYES_DATA_URL"):
        assert str(part) in message
    assert "is not set" not in message
    monkeypatch.delenv("VIBAYES_DATA")
    with pytest.raises(DataError, match="VIBAYES_DATA is not set"):
        datasets.load("yacht", cache=tmp_path / "c")


def test_wrong_hash_and_truncation(tmp_path: Path, yacht: bytes) -> None:
    damaged = bytearray(yacht)
    damaged[len(damaged) // 2] ^= 1
    place = put(tmp_path, bytes(damaged))
    with pytest.raises(DataError) as caught:
        datasets.load("yacht", root=tmp_path)
    expected, actual = hashlib.sha256(yacht).hexdigest(), hashlib.sha256(damaged).hexdigest()
    for part in (str(place), expected, actual, "fresh copy", "verify=False"):
        assert part in str(caught.value)
    assert "bytes in place of" not in str(caught.value)
    put(tmp_path, yacht[:1000])
    with pytest.raises(DataError, match=f"1000 bytes in place of {len(yacht)}"):
        datasets.load("yacht", root=tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a zip", fake_yacht()[:2000], b"\x93NUMPY junk"])
def test_not_an_npz(content: bytes, tmp_path: Path, yacht: bytes) -> None:
    place = put(tmp_path, content)
    with pytest.raises(DataError, match="damaged or not an npz") as caught:
        datasets.load("yacht", root=tmp_path, verify=False)
    assert str(place) in str(caught.value)


def test_other_arrays(tmp_path: Path, yacht: bytes) -> None:
    def save(**arrays: Any) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        put(tmp_path, buffer.getvalue())

    X, y, train, test = np.zeros((308, 6)), np.zeros(308), np.arange(277), np.arange(277, 308)
    save(X=X, y=y, train_0=train)
    with pytest.raises(DataError, match=r"lacks an array: .*test_0"):
        datasets.load("yacht", root=tmp_path, verify=False)
    save(X=X[:5], y=y, train_0=train, test_0=test)
    with pytest.raises(DataError, match=r"should hold X \(308, 6\)"):
        datasets.load("yacht", root=tmp_path, verify=False)
    save(X=X, y=y * np.nan, train_0=train, test_0=test)
    with pytest.raises(DataError, match="NaN"):
        datasets.load("yacht", root=tmp_path, verify=False)
    # Pickled objects are never loaded, whatever the file says.
    save(X=np.array([{"a": 1}], dtype=object), y=y, train_0=train, test_0=test)
    with pytest.raises(DataError, match="damaged or not an npz"):
        datasets.load("yacht", root=tmp_path, verify=False)


def test_unreadable_file(tmp_path: Path, yacht: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, yacht)

    def refuse(self: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"cannot be read: .*Permission denied"):
        datasets.load("yacht", root=tmp_path)


class Server(http.server.BaseHTTPRequestHandler):
    """Answers from `answers`, path to list of (status, content); the last answer repeats."""

    answers: dict[str, list[tuple[int, bytes]]]
    asked: list[str]

    def do_GET(self) -> None:  # the name is the standard library's
        self.asked.append(self.path)
        queue = self.answers.get(self.path, [(404, b"nothing here")])
        status, content = queue.pop(0) if len(queue) > 1 else queue[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Server]]]:
    pytest.importorskip("pooch")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    handler = type("Handler", (Server,), {"answers": {}, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/base", handler
        server.shutdown()
        thread.join()


def test_download(tmp_path: Path, yacht: bytes, mirror: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url, handler = mirror
    handler.answers[f"/base/{PATH}"] = [(200, yacht)]
    monkeypatch.setenv("VIBAYES_DATA_URL", url + "/")
    data = datasets.load("yacht", cache=tmp_path)
    assert len(data.x_train) == 277
    assert (tmp_path / "data" / PATH).read_bytes() == yacht
    datasets.load("yacht", cache=tmp_path)
    assert handler.asked == [f"/base/{PATH}"]
    # Where the file lies already, the mirror is not asked.
    put(tmp_path / "root", yacht)
    datasets.load("yacht", root=tmp_path / "root", cache=tmp_path / "empty", mirror="http://127.0.0.1:1")
    assert not (tmp_path / "empty").exists()


def test_download_is_tried_again(tmp_path: Path, yacht: bytes, mirror: Any, caplog: pytest.LogCaptureFixture) -> None:
    url, handler = mirror
    handler.answers[f"/base/{PATH}"] = [(503, b""), (200, b"cut sho"), (200, yacht)]
    with caplog.at_level(logging.WARNING, logger="vibayes.datasets"):
        datasets.load("yacht", cache=tmp_path, mirror=url)
    assert len(handler.asked) == 3
    assert [m for r in caplog.records if "Trying again" in (m := r.getMessage())]


def test_download_of_wrong_content(tmp_path: Path, yacht: bytes, mirror: Any) -> None:
    url, handler = mirror
    handler.answers[f"/base/{PATH}"] = [(200, b"something else")]
    with pytest.raises(DataError, match="not the expected file") as caught:
        datasets.load("yacht", cache=tmp_path, mirror=url)
    assert hashlib.sha256(yacht).hexdigest() in str(caught.value)
    assert hashlib.sha256(b"something else").hexdigest() in str(caught.value)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_download_of_missing_file(tmp_path: Path, yacht: bytes, mirror: Any) -> None:
    url, handler = mirror
    with pytest.raises(DataError, match=r"yacht.npz: the server answered 404. Check the address"):
        datasets.load("yacht", cache=tmp_path, mirror=url)
    assert len(handler.asked) == 1  # another attempt would not help


def test_no_connection(tmp_path: Path, yacht: bytes, mirror: Any) -> None:
    with pytest.raises(DataError, match=r"no connection .*\(after 3 attempts\)") as caught:
        datasets.load("yacht", cache=tmp_path, mirror="http://user:secret@127.0.0.1:1")
    assert "secret" not in str(caught.value)
    assert "127.0.0.1:1/uci/yacht.npz" in str(caught.value)


@pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "Free some space"), (errno.EROFS, "Make it writable")])
def test_cache_that_cannot_be_written(
    number: int, hint: str, tmp_path: Path, yacht: bytes, mirror: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooch = pytest.importorskip("pooch")
    url, handler = mirror
    handler.answers[f"/base/{PATH}"] = [(200, yacht)]

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(number, "no writing today")

    monkeypatch.setattr(pooch.core, "temporary_file", refuse)
    with pytest.raises(DataError, match="no writing today") as caught:
        datasets.load("yacht", cache=tmp_path, mirror=url)
    for part in (hint, str(tmp_path), "VIBAYES_CACHE"):
        assert part in str(caught.value)


def test_remote_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="http or https"):
        datasets.Remote("file:///etc/hosts", "0" * 64)
    with pytest.raises(ConfigurationError, match="64 lower-case"):
        datasets.Remote("http://example.org/x", "abc")
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    with pytest.raises(ConfigurationError, match=r"vibayes\[data\]"):
        datasets.Remote("http://example.org/x", "0" * 64).fetch(tmp_path / "x")


def test_sklearn_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    with pytest.raises(ConfigurationError, match=r"vibayes\[data\]"):
        datasets.load("iris")


def test_store_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBAYES_DATA", "")
    assert Store(cache=tmp_path).candidates("a/b") == [tmp_path / "data" / "a" / "b"]
    monkeypatch.setenv("VIBAYES_DATA", "~/d")
    assert Store(cache=tmp_path).candidates("a/b")[0] == Path("~/d/a/b").expanduser()
