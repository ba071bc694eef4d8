"""Images: layout, range, labels, the decoder against its own encoder and against known sums, the cache."""

import errno
import hashlib
import io
import logging
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vibayes import datasets
from vibayes.datasets import files
from vibayes.datasets.coded import decode
from vibayes.datasets.files import Store
from vibayes.datasets.manifest import FILES, File
from vibayes.errors import ConfigurationError, DataError

# SHA-256 of all decoded pixels, as published with the files.
CIFAR_TRAIN = "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a"
CIFAR_TEST = "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"
CIFAR_TEST_LABELS = "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5"
UTKFACE = "787dc8f8a29ee37b963b359c6f794cf4831c874dee21788da01dadf49fa5597b"
THRESHOLDS = np.tile(np.round(1.5 ** np.arange(15)).astype(np.int16) * 3, (3, 1))


def encode(images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The coder of the format, one image and one pixel at a time, from its description."""
    code, sizes, counts = b"", [], np.zeros((3, 48), np.int64)
    for c, channel in enumerate((1, 0, 2)):
        streams: list[list[list[int]]] = [[[] for _ in range(48)] for _ in range(1024)]
        for image in images.astype(int):
            base = image[..., 1] if c else np.zeros((32, 32), int)
            plane = image[..., channel] - base
            E = np.zeros((33, 34), int)
            for i in range(32):
                for j in range(32):

                    def at(di: int, dj: int, i: int = i, j: int = j, plane: Any = plane, c: int = c) -> int:
                        """A neighbour, with the borders of the format."""
                        k, l = i + di, j + dj
                        if i == 0:
                            left = plane[0, j - 1] if j else (0 if c else 128)
                            before = plane[0, j - 2] if j > 1 else (0 if c else 128) if j else 0
                            return int({(0, -1): left, (-1, 0): left, (-1, 1): left}.get((di, dj), before))
                        if l < 0:  # the border of a row is the first pixel above; of the first row, 128 or 0
                            return int(plane[k - 1, 0]) if k else (0 if c else 128)
                        return int(plane[k, min(l, 31)])

                    W, N, NW, NE = at(0, -1), at(-1, 0), at(-1, -1), at(-1, 1)
                    p = sorted((W, N, W + N - NW))[1]
                    busy = abs(W - NW) + abs(N - NW) + abs(N - NE) + 2 * abs(E[i + 1, j]) + 2 * abs(E[i, j + 1])
                    busy += abs(E[i, j]) + abs(E[i, j + 2])
                    e = (plane[i, j] - p + 128) % 256 - 128
                    stream = 3 * int((THRESHOLDS[c] <= busy).sum()) + int(np.sign(E[i + 1, j])) + 1
                    streams[32 * i + j][stream].append(int(e))
                    E[i + 1, j + 1] = e
        ordered = [[e for pixel in streams for e in pixel[s]] for s in range(48)]
        counts[c] = [len(o) for o in ordered]
        packed = zlib.compress(np.array([e for o in ordered for e in o], np.int8).tobytes())
        code, sizes = code + packed, [*sizes, len(packed)]
    return {
        "code": np.frombuffer(code, np.uint8),
        "sizes": np.array(sizes),
        "counts": counts,
        "thresholds": THRESHOLDS,
        "y": labels,
    }


@pytest.fixture(scope="module")
def coded() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Six images, rough and smooth, with black and white corners, and their code."""
    random = np.random.default_rng(0)
    ramp = np.add.outer(np.arange(32), np.arange(32))[..., None] * np.array([4, 3, 2])
    images = random.integers(0, 256, (6, 32, 32, 3))
    images[2] = ramp + random.integers(0, 8, (32, 32, 3))
    images[3] = 255 - ramp
    images[4], images[5] = 0, 255
    images[4, 8:, 8:] = (255, 0, 255)
    images = np.clip(images, 0, 255).astype(np.uint8)
    return images, encode(images, np.arange(6, dtype=np.uint8))


def test_decoder_inverts_the_coder(coded: Any) -> None:
    images, arrays = coded
    np.testing.assert_array_equal(decode(arrays), images)
    assert (arrays["counts"] > 0).sum() > 60  # many streams are in use


def as_file(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.fixture
def coded_file(coded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Store, Path]:
    """A small coded file that the manifest takes for UTKFace, a store with it, and its cached pixels."""
    images, arrays = coded
    path, content = "images/utkface32.npz", as_file(arrays)
    entry = File(path, len(content), hashlib.sha256(content).hexdigest(), hashlib.sha256(images).hexdigest())
    monkeypatch.setitem(FILES, path, entry)
    (tmp_path / "images").mkdir()
    (tmp_path / path).write_bytes(content)
    kept = tmp_path / "cache" / "decoded" / f"utkface32-{entry.sha256[:12]}.npy"
    return images, Store(root=tmp_path, cache=tmp_path / "cache"), kept


def test_decoded_pixels_are_kept(coded_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images, store, kept = coded_file
    pixels, labels = store.pixels("images/utkface32.npz")
    np.testing.assert_array_equal(pixels, images)
    np.testing.assert_array_equal(labels, np.arange(6))
    assert [p.name for p in kept.parent.iterdir()] == [kept.name]  # nothing left beside it
    monkeypatch.setattr(files, "decode", lambda arrays: pytest.fail("decoded again"))
    np.testing.assert_array_equal(store.pixels("images/utkface32.npz")[0], images)


@pytest.mark.parametrize("damage", [b"", b"junk", "short", "changed"])
def test_damaged_cache_is_replaced(damage: Any, coded_file: Any, caplog: pytest.LogCaptureFixture) -> None:
    images, store, kept = coded_file
    store.pixels("images/utkface32.npz")
    good = kept.read_bytes()
    kept.write_bytes({"short": good[:5000], "changed": good[:-1] + b"\x07"}.get(damage, damage))
    with caplog.at_level(logging.WARNING, logger="vibayes.datasets"):
        np.testing.assert_array_equal(store.pixels("images/utkface32.npz")[0], images)
    assert "damaged" in caplog.text
    assert kept.read_bytes() == good


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("step", ["mkdir", "open", "fsync", "replace"])
def test_cache_that_cannot_be_written(
    number: int, step: str, coded_file: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, store, kept = coded_file

    owner: Any = os if step == "fsync" else Path
    original = getattr(owner, step)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if step == "open" and "xb" not in args:  # reading stays possible
            return original(*args, **kwargs)
        raise OSError(number, "no writing today")

    monkeypatch.setattr(owner, step, refuse)
    with caplog.at_level(logging.WARNING, logger="vibayes.datasets"):
        for _ in range(2):
            np.testing.assert_array_equal(store.pixels("images/utkface32.npz")[0], images)
    assert caplog.text.count("no writing today") == 1
    assert "VIBAYES_CACHE" in caplog.text
    monkeypatch.undo()
    assert not kept.exists()
    assert not kept.parent.exists() or list(kept.parent.iterdir()) == []


def test_code_that_cannot_be_decoded(coded: Any, coded_file: Any, tmp_path: Path) -> None:
    _, arrays = coded
    _, store, _ = coded_file
    place, loose = tmp_path / "images" / "utkface32.npz", Store(root=tmp_path, verify=False)
    counts = arrays["counts"].copy()
    counts[0, 0] += 1
    flipped = arrays["code"].copy()
    flipped[50] ^= 255
    for change in ({"counts": counts}, {"code": flipped}, {"sizes": arrays["sizes"][:2]}):
        place.write_bytes(as_file(arrays | change))
        with pytest.raises(DataError, match=r"utkface32.npz cannot be decoded .* fresh copy"):
            loose.pixels("images/utkface32.npz")
    place.write_bytes(as_file({k: v for k, v in arrays.items() if k != "sizes"}))
    with pytest.raises(DataError, match="cannot be decoded"):
        loose.pixels("images/utkface32.npz")
    with pytest.raises(DataError, match="SHA-256"):
        store.pixels("images/utkface32.npz")


def test_cifar10_test_images(data_root: Path, tmp_path: Path) -> None:
    store = Store(cache=tmp_path)
    pixels, labels = store.pixels("images/cifar10_test.npz")
    assert pixels.shape == (10000, 32, 32, 3)
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == CIFAR_TEST
    assert hashlib.sha256(labels.tobytes()).hexdigest() == CIFAR_TEST_LABELS
    data = datasets.load("cifar10", n_train=0, n_test=50, cache=tmp_path)
    assert sorted(p.name[:12] for p in (tmp_path / "decoded").iterdir()) == ["cifar10_test"]
    assert data.x_train.shape == (0, 3, 32, 32)
    assert data.x_test.dtype == torch.float32
    np.testing.assert_array_equal((data.x_test * 255).round().permute(0, 2, 3, 1).numpy(), pixels[:50])
    assert data.y_test.dtype == torch.long
    assert torch.bincount(torch.from_numpy(labels)).tolist() == [1000] * 10


@pytest.mark.skipif(not os.environ.get("VIBAYES_SLOW"), reason="4 s: set VIBAYES_SLOW=1")
def test_cifar10_training_images(data_root: Path, tmp_path: Path) -> None:
    data = datasets.load("cifar10", n_test=0, cache=tmp_path, standardize="inputs")
    assert data.x_train.shape == (50000, 3, 32, 32)
    torch.testing.assert_close(
        data.x_mean.flatten(), torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4, rtol=0, check_dtype=False
    )
    torch.testing.assert_close(
        data.x_std.flatten(), torch.tensor([0.2470, 0.2435, 0.2616]), atol=1e-4, rtol=0, check_dtype=False
    )
    total = hashlib.sha256()
    for i in range(5):
        total.update(Store(cache=tmp_path).pixels(f"images/cifar10_train_{i}.npz")[0].tobytes())
    assert total.hexdigest() == CIFAR_TRAIN


def test_cifar10_decodes_only_what_is_needed(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def pixels(self: Store, path: str, source: str = "") -> tuple[np.ndarray, np.ndarray]:
        read.append(path)
        return np.full((10000, 32, 32, 3), len(read), np.uint8), np.full(10000, len(read), np.uint8)

    monkeypatch.setattr(Store, "pixels", pixels)
    data = datasets.load("cifar10", n_train=10001, n_test=0, cache=tmp_path)
    assert read == ["images/cifar10_train_0.npz", "images/cifar10_train_1.npz"]
    assert data.y_train[[0, 9999, 10000]].tolist() == [1, 1, 2]
    with pytest.raises(ConfigurationError, match="n_train must be 0 to 50000"):
        datasets.load("cifar10", n_train=50001, n_test=0, cache=tmp_path)


def test_utkface(data_root: Path, tmp_path: Path) -> None:
    levels, age = Store(cache=tmp_path).pixels("images/utkface32.npz")
    assert hashlib.sha256(levels.tobytes()).hexdigest() == UTKFACE
    data = datasets.load("utkface", cache=tmp_path, standardize="targets")
    assert data.x_train.shape == (20000, 3, 32, 32)
    assert data.x_test.shape == (3707, 3, 32, 32)
    expected = torch.from_numpy(4 * levels[20000:20003].transpose(0, 3, 1, 2) + 2).to(torch.float32) / 255
    torch.testing.assert_close(data.x_test[:3], expected)
    assert data.x_train.min() >= 2 / 255
    assert data.x_train.max() <= 254 / 255
    assert data.y_train.dtype == torch.float32
    torch.testing.assert_close(data.original_targets(data.y_test[:3]), torch.tensor(age[20000:20003]).float())
    np.testing.assert_allclose(float(data.y_mean), age[:20000].mean(), rtol=1e-6)


def test_mnist(data_root: Path) -> None:
    data = datasets.load("mnist", n_train=500, n_test=20, standardize="inputs", full_statistics=True)
    assert data.x_train.shape == (500, 1, 28, 28)
    assert data.x_mean.shape == (1, 1, 1)
    with np.load(data_root / "images" / "mnist.npz") as archive:
        x, y = archive["x_train"], archive["y_train"]
    np.testing.assert_allclose(float(data.x_mean), x.mean() / 255, rtol=1e-6)
    np.testing.assert_allclose(float(data.x_std), x.std() / 255, rtol=1e-6)
    np.testing.assert_array_equal(data.y_train.numpy(), y[:500])
    back = (data.x_train * data.x_std + data.x_mean) * 255
    np.testing.assert_allclose(back[:, 0].numpy(), x[:500], atol=1e-3)
    own = datasets.load("mnist", n_train=500, n_test=0, standardize="inputs")
    np.testing.assert_allclose(float(own.x_mean), x[:500].mean() / 255, rtol=1e-6)


def test_sets_for_out_of_distribution_inputs(data_root: Path) -> None:
    fashion = datasets.load("fashion_mnist")
    assert fashion.x_train.shape == (0, 1, 28, 28)
    assert fashion.x_test.shape == (10000, 1, 28, 28)
    assert torch.bincount(fashion.y_test).tolist() == [1000] * 10
    assert float(fashion.x_test.max()) == 1.0
    with pytest.raises(ConfigurationError, match=r"0 training rows.*like="):
        datasets.load("fashion_mnist", standardize="inputs")
    svhn = datasets.load("svhn", dtype=torch.float64)
    assert svhn.x_train.shape == svhn.x_test.shape == (949, 3, 32, 32)
    assert svhn.x_test.dtype == torch.float64
    assert not svhn.has_train_targets
    assert not svhn.has_test_targets
    with pytest.raises(ConfigurationError, match="missing"):
        svhn.standardized("targets")
    mnist = datasets.load("mnist", n_train=100, n_test=1, standardize="inputs")
    moved = fashion.standardized("inputs", like=mnist)
    torch.testing.assert_close(moved.x_test, (fashion.x_test - mnist.x_mean) / mnist.x_std)
