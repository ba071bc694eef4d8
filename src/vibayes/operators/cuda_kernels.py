"""Our own CUDA kernels: the `.cu` files of this folder, compiled by NVRTC, which comes with torch, at first use.

Each is compiled once per size and dtype, which it takes as constants, so that its loops are unrolled.
"""

import functools
import re
from importlib import resources
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "LARGEST",
    "MOST",
    "WIDEST",
    "available",
    "bartlett",
    "bartlett_backward",
    "exponential",
    "factorize",
    "gamma_draws",
    "grams",
    "grams_available",
    "grams_backward",
    "rows",
    "rows_available",
    "rows_backward",
]

LARGEST = 128  # the largest matrix that is factorized in a block's registers, or multiplied with in rows.cu
WIDEST = 32  # as many columns has a row that stays in a thread's registers
MOST = 65_535 * 256  # as many columns of a matrix have blocks of their own in exponential.cu

_TILE = 256, 16  # columns and rows of a block in exponential.cu


def available() -> bool:
    """Whether this torch can compile them."""
    return hasattr(torch.cuda, "_compile_kernel")


def factorize(K: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`L`, `L^-1`, `log |K|` and `info` of a batch `[b, n, n]`, n <= `LARGEST`; NaN and info 1 where a pivot fails.

    cuSOLVER and cuBLAS need several times longer at the sizes of deep models, n around 100 and hundreds of matrices:
    see `benchmarks/factorization.py`.
    """
    b, n, _ = K.shape
    K = K.contiguous()
    L, inverse = torch.empty_like(K), torch.empty_like(K)
    if not (b and n):
        return L, inverse, K.new_zeros(b), K.new_zeros(b, dtype=torch.int32)
    log_det, info = K.new_empty(b), K.new_empty(b, dtype=torch.int32)
    tiles = -(-n // 16)
    shared = 8 * (16 * tiles) * (16 * tiles + 1)
    launch = _kernel("factorization", "factorize", K.dtype, K.device, shared, N=n, T=tiles)
    launch((b, 1, 1), (256, 1, 1), (K, L, inverse, log_det, info), shared_mem=shared)
    return L, inverse, log_det, info


def exponential(x: Tensor, z: Tensor, offset: Tensor) -> Tensor:
    """`exp(offset - |x_i - z_j|^2 / 2)` for batches `[b, n, d]`, `[b, m, d]`, `[b]`; d <= `WIDEST`, m <= `MOST`."""
    (b, n, d), m = x.shape, z.shape[1]
    found = x.new_empty(b, n, m)
    if b and n and m:
        launch = _kernel("exponential", "exponential", x.dtype, x.device, 0, D=d)
        columns, rows = _TILE
        grid = (b * -(-n // rows), -(-m // columns), 1)
        launch(grid, (columns // 2, 1, 1), (x.contiguous(), z.contiguous(), offset.contiguous(), found, n, m))
    return found


def gamma_draws(alpha: Tensor, normals: Tensor) -> Tensor:
    """Standard gamma draws of shapes `alpha`, zero where they underflow; `normals` are `[2 proposals + 1, *shape]`."""
    found, n = torch.empty_like(alpha, memory_format=torch.contiguous_format), alpha.numel()
    if n:
        launch = _kernel("gamma", "gamma_draws", alpha.dtype, alpha.device, 0, PROPOSALS=len(normals) // 2)
        launch((-(-n // 128), 1, 1), (128, 1, 1), (alpha.contiguous(), normals.contiguous(), found, n))
    return found


def bartlett(
    squares: Tensor, alpha: Tensor, beta: Tensor, mu: Tensor, sigma: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """What `operators.bartlett` says, for batches `[b, p]` of the first three and `[b, n, p]` of the others."""
    b, n, p = noise.shape
    T, density = noise.new_empty(b, n, p), noise.new_zeros(b)
    if T.numel():
        (alpha, beta, mu, sigma, noise), steps = _steps(alpha, beta, mu, sigma, noise)
        launch = _kernel("bartlett", "bartlett", noise.dtype, noise.device, 0, ROWS=n, COLUMNS=p)
        given = (squares.contiguous(), alpha, beta, mu, sigma, noise)
        launch((b, 1, 1), (128, 1, 1), (*given, T, density, *steps))
    return T, density


def bartlett_backward(
    squares: Tensor, alpha: Tensor, beta: Tensor, sigma: Tensor, noise: Tensor, g_T: Tensor, g_density: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of `squares`, `beta`, `mu` and `sigma` in `bartlett`, which do not depend on `mu`."""
    b, n, p = noise.shape
    d_squares, d_beta = (noise.new_empty(b, p) for _ in range(2))
    d_mu, d_sigma = (noise.new_empty(b, n, p) for _ in range(2))
    if d_mu.numel():
        (alpha, beta, sigma, noise), steps = _steps(alpha, beta, sigma, noise)
        launch = _kernel("bartlett", "bartlett_backward", noise.dtype, noise.device, 0, ROWS=n, COLUMNS=p)
        given = (squares.contiguous(), alpha, beta, sigma, noise, g_T.contiguous(), g_density.contiguous())
        blocks = -(-d_mu.numel() // 128)
        launch((blocks, 1, 1), (128, 1, 1), (*given, d_squares, d_beta, d_mu, d_sigma, *steps, b))
    return d_squares, d_beta, d_mu, d_sigma


def _steps(*given: Tensor) -> tuple[list[Tensor], list[int]]:
    """Batches whose items are contiguous each, and how far one item is from the next; 0 where they are the same."""
    taken = [t if t[0].is_contiguous() else t.contiguous() for t in given]
    return taken, [t.stride(0) for t in taken]


_OUTPUTS = 16  # as many columns of inducing values does rows.cu take


def rows_available(K: Tensor, v: Tensor) -> bool:
    """Whether `rows` takes these: covariances `[*batch, m, n]` and inducing values `[*batch, m, p]`."""
    m, p = v.shape[-2:]
    if not (K.is_cuda and available() and 0 < m <= LARGEST and 0 < p <= _OUTPUTS):
        return False
    return _has_tensor_cores(K.device, max(_rows_memory(K, p)))


def _has_tensor_cores(device: torch.device, shared: int) -> bool:
    """Whether a GPU has them for float64, and so many bytes of shared memory for a block."""
    about = torch.cuda.get_device_properties(device)
    most: int = getattr(about, "shared_memory_per_block_optin", about.shared_memory_per_block)
    return bool(about.major >= 8 and shared <= most)


def _rows_memory(K: Tensor, p: int) -> tuple[int, int]:
    """Bytes of shared memory that a block takes forwards and backwards: W, K, and backwards v."""
    m = K.shape[-2]
    tiles, steps = -(-m // 16), -(-m // 4)
    blocks = [(min(4, steps - 4 * b), b) for b in range(tiles)]
    lower, upper = sum(s * (tiles - b) for s, b in blocks), sum(s * (b + 1) for s, b in blocks)
    number = K.element_size()
    return 512 * lower + 256 * steps * number, 512 * upper + (256 * steps + m * p) * number


def rows(W: Tensor, K: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`A = W K`, `A^T v` and `diag(A^T A)` for batches `[b, m, m]`, `[b, m, n]`, `[b, m, p]`.

    `W = L^-1` is lower triangular and float64, and so are sums, whatever `K` is.
    """
    (b, m, n), p = K.shape, v.shape[-1]
    A, mean, loss = K.new_empty(b, m, n), K.new_empty(b, n, p), K.new_empty(b, n)
    _launch_rows("rows", _rows_memory(K, p)[0], (W, K, v), (A, mean, loss))
    return A, mean, loss


def rows_backward(W: Tensor, A: Tensor, v: Tensor, g_mean: Tensor, g_loss: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `A` and `K` in `rows`: `dA = v g_mean^T + 2 A diag(g_loss)` and `dK = W^T dA`."""
    d_A, d_K = A.new_empty(A.shape), A.new_empty(A.shape)
    _launch_rows("rows_backward", _rows_memory(A, v.shape[-1])[1], (W, A, v, g_mean, g_loss), (d_A, d_K))
    return d_A, d_K


def _launch_rows(name: str, shared: int, given: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> None:
    (b, m, n), p = given[1].shape, given[2].shape[-1]
    if b and n:
        launch = _kernel("rows", name, given[1].dtype, given[1].device, shared, M=m, P=p)
        inputs = (part.contiguous() for part in given)
        launch((b * -(-n // 64), 1, 1), (128, 1, 1), (*inputs, *found, n), shared_mem=shared)


_COLUMNS = 64  # as many does grams.cu take


def grams_available(D: Tensor) -> bool:
    """Whether `grams` takes this design, `[*batch, m, k]`."""
    m, k = D.shape[-2:]
    if not (D.is_cuda and available() and m > 0 and 0 < k <= _COLUMNS):
        return False
    return _has_tensor_cores(D.device, max(_grams_memory(D)))


def _grams_memory(D: Tensor) -> tuple[int, int]:
    """Bytes of shared memory that a block takes forwards (D, weights) and backwards (g + g^T, D, g, weights)."""
    k, number = D.shape[-1], D.element_size()
    columns, steps = 8 * -(-k // 8), 4 * -(-k // 4)
    return 64 * (columns + 4 + 4) * number, 8 * steps * (columns + 4) + (64 * columns + k * k + 128) * number


def grams(D: Tensor, w: Tensor) -> Tensor:
    """`D^T diag(w_p) D` for batches `[b, m, k]` and `[b, p, m]`; products in float64 whatever `D` is."""
    (b, _, k), p = D.shape, w.shape[1]
    G = D.new_empty(b, p, k, k)
    _launch_grams("grams", _grams_memory(D)[0], b * -(-p // 4), (D, w), (G,))
    return G


def grams_backward(D: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `D` and `w` in `grams`, from that of its matrices."""
    d_D, d_w = D.new_empty(D.shape), w.new_empty(w.shape)
    _launch_grams("grams_backward", _grams_memory(D)[1], D.shape[0] * -(-D.shape[1] // 64), (D, w, g), (d_D, d_w))
    return d_D, d_w


def _launch_grams(name: str, shared: int, blocks: int, given: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> None:
    (_, p, m), k = given[1].shape, given[0].shape[-1]
    if blocks:
        launch = _kernel("grams", name, given[0].dtype, given[0].device, shared, K=k)
        inputs = (part.contiguous() for part in given)
        launch((blocks, 1, 1), (128, 1, 1), (*inputs, *found, m, p), shared_mem=shared)


def _source(file: str) -> str:
    """The text of a `.cu` file, with what it includes."""
    files = resources.files("vibayes.operators")
    text = files.joinpath(f"{file}.cu").read_text()
    return re.sub(r'#include "(.+)"', lambda found: files.joinpath(found[1]).read_text(), text)


@functools.cache
def _kernel(file: str, name: str, dtype: torch.dtype, device: torch.device, shared: int, **constants: int) -> Any:
    """A kernel, compiled with these constants, which may ask for so many bytes of shared memory."""
    given = {**constants, "NUMBER": {torch.float32: "float", torch.float64: "double"}[dtype]}
    head = "".join(f"#define {key} {value}\n" for key, value in given.items())
    with torch.cuda.device(device):
        kernel: Any = torch.cuda._compile_kernel(head + _source(file), name)
        if shared:
            kernel.set_shared_memory_config(shared)

    def launch(*given: Any, **options: Any) -> None:
        with torch.cuda.device(device):  # it goes to a stream of the current GPU, which may be another
            kernel(*given, **options)

    return launch
