"""Our CUDA kernels without a GPU: compiled for the CPU with a thread for every thread of a block.

What a device makes of them is tested where there is one (`test_factorization.py`, `kernels/test_distances.py`,
`test_data_rows.py`, `test_weighted_grams.py`); here it is seen on any machine that indices, sizes and barriers are
right.
"""

import ctypes
import re
import shutil
import subprocess
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vibayes.operators import bartlett, cuda_kernels
from vibayes.operators.gamma import NOISE_PER_GAMMA, _marsaglia_tsang
from vibayes.training.graph import Step

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")
HERE = Path(__file__).parent
MAKE_KERNEL = cuda_kernels._kernel


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels come from the CPU's compiler, and take tensors of the CPU."""

    def kernel(
        file: str, name: str, dtype: torch.dtype, device: torch.device, shared: int, **constants: int
    ) -> Callable[..., None]:
        number = {torch.float32: "float", torch.float64: "double"}[dtype]

        def launch(
            grid: tuple[int, int, int], block: tuple[int, int, int], given: tuple[Any, ...], shared_mem: int = 0
        ) -> None:
            assert grid[2] == block[1] == block[2] == 1
            assert shared_mem == shared
            kinds = {torch.float32: "(float*)given", torch.float64: "(double*)given", torch.int32: "(int*)given"}
            types = [kinds[a.dtype] if isinstance(a, Tensor) else "*(int*)given" for a in given]
            listed = ", ".join(f"{kind}[{i}]" for i, kind in enumerate(types))
            source = cuda_kernels._source(file)
            lines = [
                *(f"#define {key} {value}" for key, value in {**constants, "NUMBER": number}.items()),
                f'#include "{HERE / "cuda_emulation.h"}"',
                re.sub(r"extern __shared__ double (\w+)\[\];", r"double* \1 = dynamic_shared;", source),
                'extern "C" void run(int width, int height, int threads, void** given) {',
                f"  run_blocks(width, height, threads, [=] {{ {name}({listed}); }});",
                "}",
            ]
            made = tmp_path / name  # a library of its own: one that is loaded is not loaded again
            made.with_suffix(".cpp").write_text("\n".join(lines))
            assert COMPILER is not None
            command = [COMPILER, "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread"]
            subprocess.run([*command, "-o", f"{made}.so", f"{made}.cpp"], check=True, capture_output=True)
            numbers = {i: ctypes.c_int(a) for i, a in enumerate(given) if not isinstance(a, Tensor)}
            pointers = [ctypes.addressof(numbers[i]) if i in numbers else a.data_ptr() for i, a in enumerate(given)]
            array = (ctypes.c_void_p * len(given))(*pointers)
            ctypes.CDLL(f"{made}.so").run(grid[0], grid[1], block[0], array)

        return launch

    monkeypatch.setattr(cuda_kernels, "_kernel", kernel)


def test_kernels_run_on_the_gpu_that_their_tensors_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which need not be the current one, to whose stream torch gives a kernel."""
    entered: list[torch.device] = []
    seen: list[torch.device | None] = []

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield
        entered.pop()

    def compiled(source: str, name: str) -> Callable[..., None]:
        return lambda *_, **__: seen.append(entered[-1] if entered else None)

    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", compiled, raising=False)
    place = torch.device("cuda:1")
    launch = MAKE_KERNEL.__wrapped__("gamma", "gamma_draws", torch.float64, place, 0, PROPOSALS=8)
    launch((1, 1, 1), (128, 1, 1), ())
    problem = types.SimpleNamespace(device=place, can_be_captured=False)
    step = Step(problem, types.SimpleNamespace(graph=None, world_size=1))  # type: ignore[arg-type]
    step(lambda: seen.append(entered[-1] if entered else None))
    assert seen == [place, place]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (17, 257, 13), (40, 3, 32)])
def test_exponential(n: int, m: int, d: int, dtype: torch.dtype) -> None:
    x, z, offset = 0.3 * torch.randn(3, n, d), 0.3 * torch.randn(3, d, m).mT, torch.randn(3)
    found = cuda_kernels.exponential(x.to(dtype), z.to(dtype), offset.to(dtype))
    wanted = torch.exp(offset[:, None, None] - 0.5 * torch.cdist(x, z).square())
    torch.testing.assert_close(found, wanted.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 128, 300])
def test_gamma_draws(n: int, dtype: torch.dtype) -> None:
    """The same draws as those of the steps that it stands for, where all are rejected at first, too."""
    alpha = torch.linspace(0.05, 30.0, n, dtype=dtype)
    normals = torch.randn(NOISE_PER_GAMMA, n, dtype=dtype)
    normals[:5, ::3] = -20.0  # v below zero
    normals[:8, 1::7] = -20.0
    found = cuda_kernels.gamma_draws(alpha, normals)
    wanted = _marsaglia_tsang(alpha.double(), normals.double())
    torch.testing.assert_close(found, wanted.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("n", "p"), [(1, 1), (5, 3), (100, 13), (7, 7)])
def test_bartlett(n: int, p: int, shared: bool, dtype: torch.dtype) -> None:
    """Also with parameters that all draws share, and noise that is cut out of more."""
    squares, vectors = torch.rand(4, p) + 0.1, torch.rand(2, 1 if shared else 4, p) + 0.5
    mu, sigma = torch.randn(1 if shared else 4, n, p), torch.rand(1 if shared else 4, n, p) + 0.1
    alpha, beta, mu, sigma = (t.to(dtype).expand(4, *t.shape[1:]) for t in (*vectors, mu, sigma))
    given = (squares.to(dtype), alpha, beta, mu, sigma, torch.randn(4, n + 3, p).to(dtype)[:, :n])
    exact = [t.double() for t in given]
    near = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-11}
    wanted = tuple(t.to(dtype) for t in bartlett._run(*exact))
    torch.testing.assert_close(cuda_kernels.bartlett(*given), wanted, **near)
    g_T, g = torch.randn(4, p, n).mT.to(dtype), torch.randn(4).to(dtype)
    wanted = tuple(t.to(dtype) for t in bartlett._gradients(*exact, g_T.double(), g.double()))
    squares, alpha, beta, _, sigma, noise = given
    found = cuda_kernels.bartlett_backward(squares, alpha, beta, sigma, noise, g_T, g)
    torch.testing.assert_close(found, wanted, **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 20, 48])
def test_factorize(n: int, dtype: torch.dtype) -> None:
    root = torch.randn(3, n, n)
    K = (root @ root.mT / n + 0.1 * torch.eye(n)).to(dtype)
    K[1, n - 1, n - 1] = -1.0
    L, inverse, log_det, info = cuda_kernels.factorize(K)
    good = torch.tensor([0, 2])
    exact = torch.linalg.cholesky(K[good].double())
    torch.testing.assert_close(L[good], exact.to(dtype))
    torch.testing.assert_close(inverse[good], torch.linalg.inv(exact).to(dtype), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(log_det[good], torch.logdet(K[good].double()).to(dtype))
    assert info.tolist() == [0, 1, 0]
    assert bool(torch.isnan(L[1]).all() & torch.isnan(inverse[1]).all() & torch.isnan(log_det[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("m", "n", "p"), [(1, 1, 1), (8, 66, 3), (21, 40, 16), (100, 7, 13)])
def test_rows(m: int, n: int, p: int, dtype: torch.dtype) -> None:
    W = torch.randn(2, m, m).tril()
    K, v, g_mean = torch.randn(2, m, n).to(dtype), torch.randn(2, m, p).to(dtype), torch.randn(2, p, n).mT.to(dtype)
    g_loss = torch.randn(2, n).to(dtype)
    A, mean, loss = cuda_kernels.rows(W, K, v)
    exact = W @ K.double()
    near = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-11}
    torch.testing.assert_close(A, exact.to(dtype))
    torch.testing.assert_close(mean, (exact.mT @ v.double()).to(dtype), **near)
    torch.testing.assert_close(loss, exact.square().sum(-2).to(dtype))
    d_A, d_K = cuda_kernels.rows_backward(W, A.mT.contiguous().mT, v, g_mean, g_loss)
    wanted = v.double() @ g_mean.mT.double() + 2.0 * exact * g_loss[:, None, :]
    torch.testing.assert_close(d_A, wanted.to(dtype), **near)
    torch.testing.assert_close(d_K, W.mT @ d_A.double(), **near, check_dtype=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("m", "k", "p"), [(1, 1, 1), (70, 14, 5), (33, 51, 3), (64, 64, 4)])
def test_grams(m: int, k: int, p: int, dtype: torch.dtype) -> None:
    """All sums are made in float64, so that only results are rounded."""
    D, w, g = torch.randn(2, m, k).to(dtype), torch.rand(2, m, p).mT.to(dtype), torch.randn(2, p, k, k).to(dtype)
    exact = D.double()
    weighted = w.double()[..., None] * exact[:, None]  # [b, p, m, k]
    torch.testing.assert_close(cuda_kernels.grams(D, w), (exact.mT[:, None] @ weighted).to(dtype))
    d_D, d_w = cuda_kernels.grams_backward(D, w, g)
    H = exact[:, None] @ (g.double() + g.mT.double())
    near = {"rtol": 3e-7, "atol": 1e-7} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-11}
    torch.testing.assert_close(d_D, (w.double()[..., None] * H).sum(1).to(dtype), **near)
    torch.testing.assert_close(d_w, (0.5 * (H * exact[:, None]).sum(-1)).to(dtype), **near)
