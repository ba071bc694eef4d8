"""Finding, checking and reading data files, and the cache of decoded images.

Files are looked for under `root` (or the folder in `VIBAYES_DATA`), then in the cache folder's `data/`; what
is found nowhere is fetched from a mirror, if one is named. The cache folder is `cache`, or the one in
`VIBAYES_CACHE`, or `vibayes` in the platform's cache folder.
"""

import hashlib
import io
import os
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vibayes.datasets._log import logger, warn_once
from vibayes.datasets.coded import decode
from vibayes.datasets.manifest import FILES, File
from vibayes.datasets.remote import Remote
from vibayes.errors import DataError
from vibayes.writing import written_whole

__all__ = ["Store", "cache_folder"]

Array = NDArray[Any]


def cache_folder() -> Path:
    """The folder for downloads and decoded images.

    `$VIBAYES_CACHE`, else `vibayes` in `$XDG_CACHE_HOME` or the platform's place (`~/.cache` on Linux).
    """
    if own := os.environ.get("VIBAYES_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "vibayes"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/vibayes").expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local")).expanduser() / "vibayes"
    return Path("~/.cache/vibayes").expanduser()


@dataclass(frozen=True)
class Store:
    """Where files come from. See the module's description; None means the environment's choice.

    Attributes:
        root: folder with `uci/`, `toy/`, `images/`.
        cache: folder for downloads and decoded images.
        mirror: base address of a mirror.
        verify: whether files must have the SHA-256 of the manifest. (Downloads always must.)
    """

    root: str | os.PathLike[str] | None = None
    cache: str | os.PathLike[str] | None = None
    mirror: str | None = None
    verify: bool = True

    @property
    def cache_path(self) -> Path:
        """The cache folder."""
        return Path(self.cache).expanduser() if self.cache is not None else cache_folder()

    def candidates(self, path: str) -> list[Path]:
        """All places where a file may lie, in the order in which they are tried."""
        root = self.root if self.root is not None else os.environ.get("VIBAYES_DATA") or None
        folders = [Path(root).expanduser()] if root is not None else []
        return [folder / path for folder in (*folders, self.cache_path / "data")]

    def locate(self, path: str, source: str = "") -> Path:
        """The first place where the file lies; downloaded if it lies nowhere and a mirror is named.

        Args:
            path: relative path, such as "uci/boston.npz".
            source: who publishes the data, for the message when the file is missing.
        """
        places = self.candidates(path)
        for place in places:
            if place.is_file():
                return place
        mirror = self.mirror or os.environ.get("VIBAYES_DATA_URL")
        if mirror:
            remote = Remote(f"{mirror.rstrip('/')}/{path}", FILES[path].sha256)
            logger.info("Fetching %s into %s", remote.safe_url, places[-1])
            return remote.fetch(places[-1])
        unset = "" if self.root is not None or os.environ.get("VIBAYES_DATA") else " VIBAYES_DATA is not set."
        raise DataError(
            f"The file {path} is missing. Looked for: {', '.join(str(p) for p in places)}.{unset} "
            "Set VIBAYES_DATA (or root=) to a folder with the subfolders uci/, toy/ and images/, so that "
            f"{path} lies in it (layout: docs/datasets.md), or VIBAYES_DATA_URL (or mirror=) to the address "
            "of a mirror." + (f" The data are published by: {source}" if source else "")
        )

    def arrays(self, path: str, keys: tuple[str, ...] = (), source: str = "") -> dict[str, Array]:
        """The arrays of an npz file, checked against the manifest: those in `keys`, or all."""
        place = self.locate(path, source)
        try:
            content = place.read_bytes()
        except OSError as error:
            raise DataError(f"{place} cannot be read: {error}.") from error
        if self.verify:
            _check(place, content, FILES[path])
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                return {key: archive[key] for key in keys or archive.files}
        except KeyError as error:
            raise DataError(f"{place} lacks an array: {error.args[0]}. {_REMEDY}") from error
        except (
            zipfile.BadZipFile,
            zlib.error,
            ValueError,
            EOFError,
            OSError,
            TypeError,
            AttributeError,
        ) as error:
            raise DataError(f"{place} is damaged or not an npz file ({error}). {_REMEDY}") from error

    def pixels(self, path: str, source: str = "") -> tuple[Array, Array]:
        """Images [N, 32, 32, 3] (uint8) and labels [N] of a coded file; decoded once, then cached."""
        arrays = self.arrays(path, source=source)
        file = FILES[path]
        kept = self.cache_path / "decoded" / f"{Path(path).stem}-{file.sha256[:12]}.npy"
        expected = file.decoded if self.verify else ""
        # With verify=False the file may be another one than the manifest's, so the cache has nothing to say.
        images = _read_kept(kept, expected) if expected else None
        if images is None:
            try:
                images = decode(arrays)
            except (KeyError, ValueError, IndexError, zlib.error) as error:
                raise DataError(f"{path} cannot be decoded ({error}). {_REMEDY}") from error
            if expected:
                if _sha256(images) != expected:
                    raise DataError(f"{path} decodes to pixels with a wrong SHA-256 ({expected} expected). {_REMEDY}")
                _keep(kept, images)
        return images, arrays["y"]


_REMEDY = "Replace it with a fresh copy."


def _sha256(content: bytes | Array) -> str:
    return hashlib.sha256(content if isinstance(content, bytes) else np.ascontiguousarray(content).data).hexdigest()


def _check(place: Path, content: bytes, file: File) -> None:
    actual = _sha256(content)
    if actual != file.sha256:
        sizes = "" if len(content) == file.size else f" It has {len(content)} bytes in place of {file.size}."
        raise DataError(
            f"{place} is not the known file {file.path}: SHA-256 {file.sha256} expected, {actual} "
            f"found.{sizes} It may be damaged, cut short or another version. {_REMEDY} "
            "(To use it as it is: verify=False.)"
        )


def _read_kept(path: Path, expected: str) -> Array | None:
    """A decoded array from the cache, or None if there is none or it is damaged."""
    if not path.is_file():
        return None
    try:
        array: Array = np.load(path, allow_pickle=False)
        if _sha256(array) == expected:
            return array
        problem = "wrong SHA-256"
    except (ValueError, EOFError, OSError) as error:
        problem = str(error)
    logger.warning("The cached file %s is damaged (%s); decoding again.", path, problem)
    return None


def _keep(path: Path, array: Array) -> None:
    """Write to the cache, all or nothing; a cache that cannot be written costs time, not the result."""
    try:
        with written_whole(path) as aside, aside.open("xb") as handle:
            np.save(handle, array, allow_pickle=False)
    except OSError as error:
        warn_once(
            f"cache {path.parent}",
            f"Decoded images cannot be kept in {path.parent} ({error}); they are decoded anew every time. "
            "Set VIBAYES_CACHE to a folder that can be written.",
        )
