"""Where inducing points start: rows chosen from the data."""

import difflib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from vibayes.data import as_rows, check_count
from vibayes.errors import ConfigurationError, DataError, ShapeError

__all__ = ["METHODS", "choose_inducing"]

METHODS = ("kmeans", "random", "first", "greedy")

_MAX_ROWS = 20_000  # rows that k-means looks at ...
_MAX_NUMBERS = 10_000_000  # ... fewer when they are wide, as images are ...
_ROWS_PER_CENTRE = 10  # ... but enough of them for every centre to be a mean
_BLOCK = 4_000_000  # numbers in one block of distances: bounds memory
_LLOYD_STEPS = 50


class _Kernel(Protocol):
    def __call__(self, x: Tensor, z: Tensor, /) -> Tensor: ...

    def diag(self, x: Tensor, /) -> Tensor: ...


@torch.no_grad()
def choose_inducing(x: Tensor, n: int, method: str = "kmeans", kernel: _Kernel | None = None, seed: int = 0) -> Tensor:
    """Choose `n` inducing inputs for the rows of `x`.

    - `"kmeans"`: centres of k-means clusters (k-means++ start, then Lloyd's iterations), in the units of `x`:
      standardise columns of very different scales first. Looks at no more than 20,000 random rows, or fewer
      if they are wide (10 per centre at least).
    - `"random"`: `n` different rows, by index, in random order.
    - `"first"`: the first `n` rows.
    - `"greedy"`: the row of largest variance given those chosen before, and so on, which is the pivoted
      Cholesky factorization of the kernel matrix (Burt, Rasmussen and van der Wilk 2020), in `O(N n^2)` time
      and `O(N n)` memory. Once the chosen rows explain all others to rounding, the rest are random rows.

    With more inducing points than rows (for k-means: than distinct rows), all of these rows come first, and
    the others are drawn from a Gaussian with their mean and standard deviation per dimension (standard
    deviation 1 if all rows are the same, so that the points differ).

    The same seed gives the same points. Nothing is differentiated.

    Args:
        x: data rows, `[N, D]` or any `[N, ...]` such as images (k-means then sees flattened rows).
        n: how many inducing points.
        method: one of `METHODS`.
        kernel: for `"greedy"`: a callable with `kernel(x, z)` and `kernel.diag(x)`, such as a `Kernel`. White
            noise (variance in `diag` that `kernel(x, z)` lacks) is not variance to explain.
        seed: for whatever is random.

    Returns:
        New rows `[n, ...]`, of the dtype and on the device of `x` (integers become the default dtype).

    >>> x = torch.tensor([[0.0], [0.1], [5.0], [5.2]])
    >>> choose_inducing(x, 2).sort(0).values.allclose(torch.tensor([[0.05], [5.1]]))
    True
    """
    _check_options(n, method, kernel)
    dtype = x.dtype if isinstance(x, Tensor) and x.is_floating_point() else None
    x = as_rows(x, dtype=dtype)
    if method == "greedy" and x.ndim != 2:
        raise ShapeError(f"Greedy choice needs rows [N, D] for its kernel, got shape {list(x.shape)}.")
    # A generator on the CPU, whatever the device of x, gives the same points everywhere.
    generator = torch.Generator().manual_seed(seed)
    if n >= len(x):
        return _extend(_distinct(x) if method == "kmeans" else x, n, generator)
    if method == "first":
        return x[:n].clone()
    if method == "random":
        return x[_random_indices(len(x), n, generator).to(x.device)]
    if method == "greedy":
        assert kernel is not None  # checked above
        return x[_greedy(x, n, kernel, generator)]
    return _kmeans(x.flatten(1), n, generator).reshape(n, *x.shape[1:])


def _check_options(n: Any, method: Any, kernel: Any) -> None:
    check_count(n, "n, the number of inducing points,")
    if method not in METHODS:
        close = difflib.get_close_matches(str(method).lower(), METHODS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigurationError(f"Unknown method {method!r}; expected one of {', '.join(METHODS)}.{hint}")
    if method == "greedy" and not (callable(kernel) and hasattr(kernel, "diag")):
        raise ConfigurationError(
            f"method='greedy' needs kernel(x, z) and kernel.diag(x), got {type(kernel).__name__}."
            " Give the model's kernel, or use method='kmeans'."
        )


def _random_indices(total: int, n: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(total, generator=generator)[:n]


def _distinct(rows: Tensor) -> Tensor:
    """The rows without repetitions, in their order."""
    which = torch.unique(rows.flatten(1), dim=0, return_inverse=True)[1].tolist()
    first = {number: row for row, number in reversed(list(enumerate(which)))}
    return rows[sorted(first.values())]


def _extend(rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """All rows, then Gaussian ones, `[n, ...]`."""
    mean, std = rows.mean(0), rows.std(0, correction=0)
    if bool((rows == rows[0]).all()):
        std = torch.ones_like(std)
    noise = torch.randn((n - len(rows), *rows.shape[1:]), generator=generator, dtype=rows.dtype)
    return torch.cat([rows, mean + std * noise.to(rows.device)])


# -------------------------------------------------------------------------------------------------- greedy


def _greedy(x: Tensor, n: int, kernel: _Kernel, generator: torch.Generator) -> Tensor:
    """Indices of the pivots of a pivoted Cholesky factorization, `[n]`."""
    N = len(x)
    residual = kernel.diag(x).clone()  # variance of each row given the pivots so far, plus its white noise
    if not bool(torch.isfinite(residual).all()):
        raise DataError("The kernel gives NaN or infinite variances on these rows; check its parameters.")
    # Below this share of the largest variance, what is left is rounding.
    exhausted = torch.finfo(residual.dtype).eps ** (2 / 3) * residual.max()
    C = residual.new_zeros(n, N)  # rows of the transposed factor
    pivots: list[int] = []
    taken = torch.zeros(N, dtype=torch.bool, device=x.device)
    while len(pivots) < n:
        m = len(pivots)
        j = int(residual.masked_fill(taken, -torch.inf).argmax())
        row = kernel(x[j : j + 1], x)[0] - C[:m, j] @ C[:m]  # covariances with row j given the pivots
        if not bool(row[j] > exhausted):
            break
        C[m] = row / row[j].sqrt()
        residual -= C[m].square()
        taken[j] = True
        pivots.append(j)
    remaining = (~taken).nonzero().flatten().cpu()
    fill = remaining[_random_indices(len(remaining), n - len(pivots), generator)]
    return torch.cat([torch.tensor(pivots, dtype=torch.long), fill]).to(x.device)


# ------------------------------------------------------------------------------------------------- k-means


def _kmeans(x: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Centres `[n, D]` of rows `[N, D]`, n < N."""
    limit = max(min(_MAX_ROWS, _MAX_NUMBERS // x.shape[1]), _ROWS_PER_CENTRE * n)
    if len(x) > limit:
        x = x[_random_indices(len(x), limit, generator).to(x.device)]
    offset = x.mean(0)
    scale = (x - offset).abs().max()
    # Around the mean, distances by inner products lose least; at scale 1 squares neither overflow nor vanish.
    rows = (x - offset) / torch.where(scale > 0, scale, 1.0)
    starts = _spread_rows(rows, n, generator)
    if len(starts) < n:  # fewer distinct rows than centres
        return _extend(x[starts], n, generator)
    return _lloyd(rows, rows[starts]) * scale + offset


def _spread_rows(rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """k-means++: rows drawn with probability proportional to the squared distance to those drawn before.

    Returns fewer than `n` indices when all rows coincide with one drawn.
    """
    chosen = [int(torch.randint(len(rows), (), generator=generator))]
    distance = torch.full((len(rows),), torch.inf, dtype=torch.float64, device=rows.device)
    while len(chosen) < n:
        # differences, not inner products: copies of a chosen row must have distance exactly zero
        last = torch.cdist(rows, rows[chosen[-1:]], compute_mode="donot_use_mm_for_euclid_dist")[:, 0]
        distance = torch.minimum(distance, last.double().square())
        mass = distance.cumsum(0)
        if not bool(mass[-1] > 0):
            break
        threshold = torch.rand((), generator=generator, dtype=torch.float64).to(rows.device) * mass[-1]
        chosen.append(min(int(torch.searchsorted(mass, threshold, right=True)), len(rows) - 1))
    return torch.tensor(chosen, device=rows.device)


def _blocks(total: int, n: int) -> Iterator[slice]:
    size = max(1, _BLOCK // n)
    return (slice(start, start + size) for start in range(0, total, size))


def _lloyd(rows: Tensor, centres: Tensor) -> Tensor:
    """Lloyd's iterations until no row changes its centre, or a fixed number of them."""
    n = len(centres)
    before = None
    for _ in range(_LLOYD_STEPS):
        half_norms = 0.5 * centres.square().sum(-1)
        nearest = torch.cat(
            [torch.addmm(half_norms, rows[b], centres.T, alpha=-1).argmin(-1) for b in _blocks(len(rows), n)]
        )
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
        sums, counts = _sums(rows, nearest, n)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], centres)
        centres = _fill_empty(rows, centres, nearest, counts)
    return centres


def _sums(rows: Tensor, nearest: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Sums `[n, D]` and numbers `[n]` of the rows of each cluster, the same in every run on every device."""
    sums, counts = rows.new_zeros(n, rows.shape[1]), rows.new_zeros(n)
    if rows.device.type == "cpu":
        return sums.index_add_(0, nearest, rows), torch.bincount(nearest, minlength=n).to(rows.dtype)
    for block in _blocks(len(rows), n):  # elsewhere index_add_ adds in no fixed order, and products do
        members = torch.nn.functional.one_hot(nearest[block], n).to(rows.dtype)  # [block, n]
        sums += members.T @ rows[block]
        counts += members.sum(0)
    return sums, counts


def _fill_empty(rows: Tensor, centres: Tensor, nearest: Tensor, counts: Tensor) -> Tensor:
    """Move centres without rows to the rows farthest from any centre."""
    distance: Tensor | None = None
    for k in (counts == 0).nonzero().flatten().tolist():
        if distance is None:
            distance = (rows - centres[nearest]).square().sum(-1)
        centres[k] = rows[distance.argmax()]
        distance = torch.minimum(distance, (rows - centres[k]).square().sum(-1))
    return centres
