"""Random parameters shared by the tests of the Wishart family."""

import torch
from torch import Tensor

from vibayes.distributions import GeneralizedSingularWishart, LowerUpper

PAIRS = [(2, 1), (3, 2), (2, 2), (3, 3), (2, 3), (3, 5), (4, 2)]  # (N, nu)


def scale(n: int, seed: int = 0) -> Tensor:
    X = torch.randn(n, n + 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return X @ X.T / n


def parameters(n: int, nu: int, seed: int = 1) -> dict[str, Tensor]:
    """Parameters far from the standard ones, with det A < 0 and a negative entry on B's diagonal."""
    g = torch.Generator().manual_seed(seed)
    nt = min(n, nu)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    packed = 0.4 * randn(n, n)
    packed.diagonal().copy_(torch.tensor([-1.0] + [1.0] * (n - 1)) * (0.3 * randn(n)).exp())
    B = (0.4 * randn(nt, nt)).tril(-1) + torch.diag((0.3 * randn(nt)).exp())
    B[0, 0] *= -1
    return {
        "scale_tril": torch.linalg.cholesky_ex(scale(n, seed)).L,
        "alpha": 1.0 + 2.0 * torch.rand(nt, generator=g, dtype=torch.float64),
        "beta": 0.4 + torch.rand(nt, generator=g, dtype=torch.float64),
        "mu": 0.7 * randn(n, nt),
        "sigma": (0.3 * randn(n, nt)).exp(),
        "A": packed,
        "B": B,
    }


def build(nu: int, p: dict[str, Tensor], form: str = "AB") -> GeneralizedSingularWishart:
    """The plain, A (dense or LU) or AB distribution of the parameters; `p["A"]` is the packed LU factorisation."""
    A = {"plain": None, "A": LowerUpper(p["A"]), "dense": LowerUpper(p["A"]).matrix, "AB": LowerUpper(p["A"])}[form]
    return GeneralizedSingularWishart(
        None,
        nu,
        p["alpha"],
        p["beta"],
        p["mu"],
        p["sigma"],
        A=A,
        B=p["B"].tril() if form in ("AB", "dense") else None,
        scale_tril=p["scale_tril"].tril(),
    )


def standard(n: int, nu: float) -> dict[str, Tensor]:
    """The Bartlett parameters of a Wishart."""
    nt = min(n, int(-(-nu // 1)))
    j = torch.arange(nt, dtype=torch.float64)
    return {
        "alpha": 0.5 * (nu - j),
        "beta": torch.full((nt,), 0.5, dtype=torch.float64),
        "mu": torch.zeros(n, nt, dtype=torch.float64),
        "sigma": torch.ones(n, nt, dtype=torch.float64),
    }


def free_elements(n: int, nt: int) -> Tensor:
    """Row and column indices of `G_ij`, `j <= min(i, nt)`."""
    indices = torch.tril_indices(n, n)
    return indices[:, indices[1] < nt]
