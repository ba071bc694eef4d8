"""Files that are there completely or not at all, whenever the process or the machine dies."""

import glob
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["remove_left", "written_whole"]

# Beside a file to be written: what is written to it until it is complete has a name of this form.
_ASIDE = ".{name}.{own}.part"
# Seconds after which nobody is writing a file any more that nothing was added to.
_LEFT = 3600.0


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A new path beside `path` to write to: what is there in the end, flushed to disk, takes the place of `path`.

    After an error an older file is left as it was, and nothing beside it. The folder is made if it does not exist. A
    link stays one; a device or a pipe is written to as it is.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers"
    >>> with written_whole(path) as aside:
    ...     _ = aside.write_text("1 2 3")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('1 2 3', 1)
    """
    path = path.resolve()
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path  # in the place of /dev/null, say, a file would do harm
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # a name of its own, so that several writers do not meet, in the same folder, where renaming is atomic
    aside = path.with_name(_ASIDE.format(name=path.name, own=uuid.uuid4().hex))
    try:
        yield aside
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def remove_left(path: Path) -> None:
    """Remove what writers of this file left beside it when they were killed, an hour ago or longer."""
    for aside in path.parent.glob(_ASIDE.format(name=glob.escape(path.name), own="*")):
        with suppress(FileNotFoundError):  # somebody else removed it
            if time.time() - aside.stat().st_mtime > _LEFT:
                aside.unlink()
