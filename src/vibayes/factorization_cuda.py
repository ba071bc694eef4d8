"""Cholesky factors of many small matrices and their inverses by one CUDA kernel, `factorization.cu`.

cuSOLVER and cuBLAS need several times longer at the sizes of deep models, n around 100 and hundreds of matrices: see
`benchmarks/factorization.py`. The kernel is compiled by NVRTC, which comes with torch, once per size and dtype.
"""

import functools
from collections.abc import Callable
from importlib import resources
from typing import Any

import torch
from torch import Tensor

__all__ = ["LARGEST", "available", "factorize"]

LARGEST = 128  # the largest matrix that fits a block's registers


def available() -> bool:
    """Whether this torch can compile the kernel."""
    return hasattr(torch.cuda, "_compile_kernel")


def factorize(K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`L`, `L^-1` and `info` of a batch `[b, n, n]`, n up to `LARGEST`; NaN, and info 1, where a pivot fails."""
    b, n, _ = K.shape
    K = K.contiguous()
    L, inverse = torch.empty_like(K), torch.empty_like(K)
    info = torch.zeros(b, dtype=torch.int32, device=K.device)
    if b and n:
        launch, shared = _kernel(n, K.dtype, K.device)
        launch((b, 1, 1), (256, 1, 1), (K, L, inverse, info), shared_mem=shared)
    return L, inverse, info


@functools.cache
def _kernel(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Callable[..., Any], int]:
    """The compiled kernel and how many bytes of shared memory it asks for."""
    tiles = -(-n // 16)
    number = {torch.float32: "float", torch.float64: "double"}[dtype]
    source = resources.files("vibayes").joinpath("factorization.cu").read_text()
    head = f"#define N {n}\n#define T {tiles}\n#define NUMBER {number}\n"
    shared = 8 * (16 * tiles) * (16 * tiles + 1)
    with torch.cuda.device(device):
        kernel = torch.cuda._compile_kernel(head + source, "factorize")
        kernel.set_shared_memory_config(shared)
    return kernel, shared
