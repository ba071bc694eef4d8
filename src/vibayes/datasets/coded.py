"""The decoder of the compactly coded image files (CIFAR-10, UTKFace).

A file holds three planes, G, R-G and B-G. A pixel is predicted from its left (W), upper (N) and upper-left
(NW) neighbours by the median edge predictor

    p = median(W, N, W + N - NW),

and what is stored is the residual modulo 256. Residuals are sorted into 48 streams by 16 levels of how busy
the neighbourhood is times 3 signs of the residual to the left; the streams of a plane lie end to end in one
zlib stream. All images advance together, one pixel at a time: every line below works on a vector over images.
"""

import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["decode"]

Int16 = NDArray[np.int16]

_SIDE = 32
_LEVELS = 16
# The largest activity is 3 differences of up to 510 plus residuals of up to 128 with total weight 6: 2298.
_MAX_ACTIVITY = 2300


class _Streams:
    """The residuals of one plane, read from 48 streams at once."""

    def __init__(self, symbols: NDArray[np.int8], counts: NDArray[np.int64]) -> None:
        if symbols.size != counts.sum():
            raise ValueError(f"{symbols.size} residuals are stored where {counts.sum()} were announced")
        self.symbols = symbols
        self.next = np.cumsum(counts) - counts

    def read(self, stream: NDArray[np.uint8]) -> Int16:
        """The next residual of the given stream, for every image in order."""
        # Images of one stream take consecutive symbols: a stable sort turns reading into copying 48 slices.
        order = np.argsort(stream, kind="stable")
        amount = np.bincount(stream, minlength=self.next.size)
        slices = [self.symbols[a : a + m] for a, m in zip(self.next.tolist(), amount.tolist(), strict=True) if m]
        residual = np.empty(stream.size, np.int16)
        residual[order] = np.concatenate(slices)
        self.next += amount
        return residual


def _plane(streams: _Streams, thresholds: Int16, base: Int16 | None, n: int) -> Int16:
    """Decode one plane of all images; `base` is the G plane for the two difference planes. [32, 32, n]."""
    level = np.searchsorted(thresholds, np.arange(_MAX_ACTIVITY), side="right")
    first_stream = (3 * level + 1).astype(np.uint8)
    pixels = np.empty((_SIDE, _SIDE, n), np.int16)
    # Column j + 1 of a row buffer belongs to pixel j; columns 0 and 33 are borders.
    above, row = np.zeros((2, _SIDE + 2, n), np.int16)
    size = np.zeros((_SIDE + 2, n), np.int16)  # |residual| of the row above
    from_above = np.zeros((_SIDE, n), np.int16)  # the part of the activity that the row above fixes
    for i in range(_SIDE):
        if i == 0:
            row[0] = 128 if base is None else 0
        else:
            row[0] = above[1]
            step = np.abs(np.diff(above, axis=0))  # [33, n]: |N - NW| at j, |NE - N| at j + 1
            from_above = step[:-1] + step[1:] + 2 * size[1:-1] + size[:-2] + size[2:]
        residual_left = np.zeros(n, np.int16)
        size_left = np.zeros(n, np.int16)
        for j in range(_SIDE):
            west = row[j]
            if i == 0:
                # Nothing lies above: N and NE stand in as W, and NW is the pixel before W (0 at the corner).
                prediction = west
                edge = np.abs(west - row[j - 1]) if j else np.abs(west)
                activity = 2 * edge + 2 * size_left
            else:
                north, gradient = above[j + 1], west - above[j]
                prediction = np.maximum(np.minimum(north + gradient, np.maximum(west, north)), np.minimum(west, north))
                activity = from_above[j] + np.abs(gradient) + 2 * size_left
            # The sign -1 becomes 255, which adds as -1 modulo 256.
            stream = first_stream[activity] + np.sign(residual_left).astype(np.uint8)
            residual_left = streams.read(stream)
            size_left = np.abs(residual_left)
            size[j + 1] = size_left
            if base is None:
                pixels[i, j] = (prediction + residual_left) & 255
                row[j + 1] = pixels[i, j]
            else:
                pixels[i, j] = (prediction + base[i, j] + residual_left) & 255
                row[j + 1] = pixels[i, j] - base[i, j]
        row[-1] = row[-2]
        above, row = row, above
    return pixels


def decode(arrays: Mapping[str, NDArray[np.generic]]) -> NDArray[np.uint8]:
    """Decode the images of one coded file.

    Args:
        arrays: the arrays of the file: `code` (three zlib streams end to end), `sizes` (their lengths),
            `counts` [3, 48] (symbols per stream), `thresholds` [3, 15] (edges of the activity levels), `y`
            (labels, as many as images).

    Returns:
        Pixels [N, 32, 32, 3] in the order red, green, blue.

    Raises:
        ValueError or zlib.error: if the content is damaged.
    """
    n = len(arrays["y"])
    code, sizes = arrays["code"].tobytes(), arrays["sizes"].tolist()
    counts, thresholds = arrays["counts"].astype(np.int64), arrays["thresholds"].astype(np.int16)
    if counts.shape != (3, 3 * _LEVELS) or thresholds.shape != (3, _LEVELS - 1) or len(sizes) != 3:
        raise ValueError(f"counts {counts.shape}, thresholds {thresholds.shape}, {len(sizes)} planes")
    images = np.empty((n, _SIDE, _SIDE, 3), np.uint8)
    green: Int16 | None = None
    start = 0
    for c, channel in enumerate((1, 0, 2)):
        symbols = np.frombuffer(zlib.decompress(code[start : start + sizes[c]]), np.int8)
        start += sizes[c]
        plane = _plane(_Streams(symbols, counts[c]), thresholds[c], green, n)
        images[..., channel] = plane.transpose(2, 0, 1)
        if c == 0:
            green = plane
    return images
