"""Files that are there completely or not at all, whenever the process or the machine dies."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["written_whole"]


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
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield aside
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
