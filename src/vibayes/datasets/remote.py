"""Files from the network: one address with a known SHA-256, or a mirror of the whole data folder.

No public address with a certain checksum is known for the files of the manifest, so none is built in. A
mirror is a web server that holds the folders `uci/`, `toy/`, `images/` as they are; name its address in
`VIBAYES_DATA_URL` (or `mirror=`), and missing files are fetched from it. A file counts only if its SHA-256 is
the one of the manifest, whoever runs the mirror.
"""

import errno
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from vibayes.datasets._log import logger
from vibayes.errors import ConfigurationError, DataError

__all__ = ["Remote"]


@dataclass(frozen=True)
class Remote:
    """A file on the network whose content is known in advance.

    Args:
        url: an http or https address.
        sha256: SHA-256 of the content, 64 hexadecimal digits.

    Example:
        >>> Remote("https://example.org/data.npz", "0" * 64).safe_url
        'https://example.org/data.npz'
        >>> Remote("ftp://example.org/data.npz", "0" * 64)
        Traceback (most recent call last):
        ...
        vibayes.errors.ConfigurationError: An http or https address is needed; got 'ftp://example.org/data.npz'.
    """

    url: str
    sha256: str

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigurationError(f"An http or https address is needed; got {self.safe_url!r}.")
        if len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef"):
            raise ConfigurationError(f"sha256 must be 64 lower-case hexadecimal digits; got {self.sha256!r}.")

    @property
    def safe_url(self) -> str:
        """The address without a user name and password, for messages."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def fetch(self, target: Path, *, retries: int = 2, wait: float = 1.0, timeout: float = 30.0) -> Path:
        """Download to `target`, check the content, and return `target`.

        The file appears under its name only when complete and right. If it is there already and right,
        nothing is downloaded. Lost connections, server errors (5xx) and wrong content are tried again.

        Args:
            target: the file to write.
            retries: how often to try again.
            wait: seconds before the first retry; doubled for each further one.
            timeout: seconds without an answer after which a connection counts as lost.

        Raises:
            DataError: if the file could not be had; the message says why and what to do.
        """
        for attempt in range(retries + 1):
            try:
                self._retrieve(target, timeout)
                return target
            except _PassingError as failure:
                if attempt == retries:
                    raise DataError(f"{failure} (after {retries + 1} attempts)") from failure.__cause__
                logger.warning("%s Trying again.", failure)
                time.sleep(wait * 2**attempt)
        raise ConfigurationError(f"retries must not be negative; got {retries}.")

    def _retrieve(self, target: Path, timeout: float) -> None:
        try:
            import pooch
            import requests
        except ImportError as error:
            raise ConfigurationError(
                'Downloading needs the package pooch: pip install "vibayes[data]", or put the file at '
                f"{target} yourself."
            ) from error
        problem = f"Could not download {self.safe_url}:"
        try:
            pooch.retrieve(
                self.url,
                known_hash=f"sha256:{self.sha256}",
                fname=target.name,
                path=target.parent,
                downloader=pooch.HTTPDownloader(timeout=timeout, progressbar=False),
            )
        # requests' errors are OSErrors, so they come first.
        except requests.exceptions.HTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            if status >= 500:
                raise _PassingError(f"{problem} the server answered {status}.") from error
            raise DataError(
                f"{problem} the server answered {status}. Check the address; a mirror must hold the folders "
                "uci/, toy/ and images/ directly under it."
            ) from error
        except requests.exceptions.RequestException as error:
            reason = type(error).__name__
            raise _PassingError(
                f"{problem} no connection ({reason}). Check the network and the address, or copy the file to {target}."
            ) from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
            raise DataError(
                f"{problem} {target.parent} cannot be written ({error}). "
                + ("Free some space" if full else "Make it writable")
                + ", or choose another cache folder with VIBAYES_CACHE or cache=."
            ) from error
        except ValueError as error:
            # pooch names the expected and the actual sum, and removes what it had downloaded.
            raise _PassingError(f"{problem} the content is not the expected file. {error}") from error


class _PassingError(Exception):
    """A failure that another attempt may cure."""
