"""Claims: lock files by which several processes, on several machines, share one sweep.

A claim is a file created with `O_EXCL` that says who works. Its owner touches it every few seconds. It is stale when
its process is gone (seen on the same machine) or when it has not been touched for two minutes (another machine), and
then somebody else may take it over. An owner that lost its claim, because the machine slept, throws its work away.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Claim", "free", "guard", "take", "wait"]

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 120.0


class Claim:
    """A held claim, renewed by a thread until it is released."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    @property
    def held(self) -> bool:
        """Whether nobody has taken it over."""
        return _read(self.path).get("token") == self.token

    def release(self) -> None:
        """Give it up; harmless when it was lost."""
        self._stop.set()
        self._thread.join()
        if self.held:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def take(path: Path, guarded_by: Path) -> Claim | None:
    """Claim a piece of work, or None when somebody else is at it."""
    with guard(guarded_by):  # so that two processes do not both take over one stale claim
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _stale(path):
            return None
        path.unlink(missing_ok=True)
        token = uuid.uuid4().hex
        content = {**_identity(), "pid": os.getpid(), "started": _started(os.getpid()), "token": token}
        aside = path.with_name(f".{path.name}.{token}.part")
        aside.write_text(json.dumps({**content, "time": time.time()}))
        try:
            os.link(aside, path)  # fails when the file exists, and shows it complete to others
        except FileExistsError:
            return None
        except OSError:  # a file system without links
            try:
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                return None
            with os.fdopen(descriptor, "w") as file:
                file.write(aside.read_text())
        finally:
            aside.unlink(missing_ok=True)
    return Claim(path, token)


@contextlib.contextmanager
def guard(path: Path) -> Iterator[None]:
    """One process of this machine at a time; the system lifts the lock of a process that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("a") as file:
        with contextlib.suppress(OSError):  # a file system without locks: `O_EXCL` remains
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
        return content if isinstance(content, dict) else {}
    except (OSError, json.JSONDecodeError):
        return {}


def _stale(path: Path) -> bool:
    try:
        age = time.time() - path.stat().st_mtime
    except OSError:
        return True
    owner = _read(path)
    here = _identity()
    if owner and all(owner.get(key) == value for key, value in here.items()):
        return not _alive(int(owner.get("pid", 0)), owner.get("started"))
    return age > STALE_SECONDS


def _identity() -> dict[str, str]:
    """Where process numbers mean the same: host, its start, and the container."""
    found = {"host": socket.gethostname(), "boot": "", "container": ""}
    with contextlib.suppress(OSError):
        found["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        found["container"] = os.readlink("/proc/self/ns/pid")
    return found


def _started(pid: int) -> str:
    """When a process started, to tell it from a later one with the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _alive(pid: int, started: str | None) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError, IndexError):  # a killed process that nobody has waited for is gone, too
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return False
    return not started or _started(pid) in ("", started)


def free(path: Path) -> bool:
    """Whether nobody is at a piece of work."""
    return not path.exists() or _stale(path)


def wait(seconds: float = 0.02) -> None:
    """Let others get on."""
    time.sleep(seconds)
