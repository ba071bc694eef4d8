"""Our own CUDA kernels: the `.cu` files of this package, compiled by NVRTC, which comes with torch, at first use.

Each is compiled once per size and dtype, which it takes as constants, so that its loops are unrolled.
"""

import functools
from importlib import resources
from typing import Any

import torch
from torch import Tensor

__all__ = ["LARGEST", "MOST", "WIDEST", "available", "exponential", "factorize"]

LARGEST = 128  # the largest matrix that is factorized in a block's registers
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


@functools.cache
def _kernel(file: str, name: str, dtype: torch.dtype, device: torch.device, shared: int, **constants: int) -> Any:
    """A kernel, compiled with these constants, which may ask for so many bytes of shared memory."""
    source = resources.files("vibayes").joinpath(f"{file}.cu").read_text()
    given = {**constants, "NUMBER": {torch.float32: "float", torch.float64: "double"}[dtype]}
    head = "".join(f"#define {key} {value}\n" for key, value in given.items())
    with torch.cuda.device(device):
        kernel: Any = torch.cuda._compile_kernel(head + source, name)
        if shared:
            kernel.set_shared_memory_config(shared)
    return kernel
