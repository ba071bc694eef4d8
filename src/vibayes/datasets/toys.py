"""Small sets that are generated on the spot, with the truth behind them in `metadata`.

All numbers come from `numpy.random.RandomState(seed)`, whose stream numpy has frozen: a seed means the same
data with every version of numpy and torch.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vibayes.datasets._random import random_state
from vibayes.datasets.split import Split
from vibayes.errors import ConfigurationError, ShapeError

__all__ = ["cubic", "deep_gp", "deep_linear", "deep_linear_log_evidence", "gaussian_bumps"]

F64 = NDArray[np.float64]


def _tensor(values: F64, dtype: torch.dtype | None) -> Tensor:
    return torch.as_tensor(values, dtype=dtype or torch.float64)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ConfigurationError(f"{name} must be positive; got {value}.")


def _around(interval: tuple[float, float]) -> F64:
    """An even grid over the interval, widened by half its length on both sides."""
    margin = 0.5 * (interval[1] - interval[0])
    return np.linspace(interval[0] - margin, interval[1] + margin, 200)


def _one_input(
    name: str, seed: int, x: F64, y: F64, grid: F64, truth: dict[str, Any], dtype: torch.dtype | None
) -> Split:
    """A set with one input; the test inputs are a grid without targets."""
    return Split(
        x_train=_tensor(x[:, None], dtype),
        y_train=_tensor(y, dtype),
        x_test=_tensor(grid[:, None], dtype),
        y_test=_tensor(np.empty(0), dtype),
        name=name,
        seed=seed,
        metadata=truth,
    )


def cubic(seed: int = 0, *, n: int = 40, noise_variance: float = 9.0, dtype: torch.dtype | None = None) -> Split:
    """The cubic with a gap: `y = x^3 + N(0, 9)`, x uniform on [-4, -2] and [2, 4].

    Half of the points lie on each side. The set of thesis fig. gi:toy. The test inputs are an even grid of
    241 points on [-6, 6], without targets. `metadata["noise_variance"]` is the true noise; on standardised
    targets it becomes `noise_variance / y_std**2`.

    Args:
        seed: of the generator.
        n: number of points.
        noise_variance: variance of the noise.
        dtype: of the tensors; float64 if not given.

    Example:
        >>> cubic(seed=1)
        Split('cubic', seed=1, train=40, test=241, inputs=(1,))
    """
    _positive(n=n, noise_variance=noise_variance)
    random = random_state(seed)
    x = random.uniform(2.0, 4.0, n)
    x[: n // 2] *= -1
    y = x**3 + np.sqrt(noise_variance) * random.standard_normal(n)
    return _one_input("cubic", seed, x, y, np.linspace(-6.0, 6.0, 241), {"noise_variance": noise_variance}, dtype)


def deep_linear(
    seed: int = 0,
    *,
    n_train: int = 1000,
    n_test: int = 100,
    n_inputs: int = 5,
    noise_variance: float = 0.1,
    dtype: torch.dtype | None = None,
) -> Split:
    """Linear data: `x ~ N(0, I)`, `w ~ N(0, I / D)`, `y = x w + N(0, 0.1)`.

    The set of thesis fig. gi:linear, for deep linear networks. `deep_linear_log_evidence` is the evidence
    under the process that made the data, the reference line of the figure. The weights are in
    `metadata["weights"]`.

    Args:
        seed: of the generator.
        n_train: number of training rows.
        n_test: number of test rows.
        n_inputs: D.
        noise_variance: variance of the noise.
        dtype: of the tensors; float64 if not given.

    Example:
        >>> deep_linear(seed=0)
        Split('deep_linear', seed=0, train=1000, test=100, inputs=(5,))
    """
    _positive(n_train=n_train, n_inputs=n_inputs, noise_variance=noise_variance)
    random = random_state(seed)
    w = random.standard_normal(n_inputs) / np.sqrt(n_inputs)
    x = random.standard_normal((n_train + n_test, n_inputs))
    y = x @ w + np.sqrt(noise_variance) * random.standard_normal(n_train + n_test)
    return Split(
        x_train=_tensor(x[:n_train], dtype),
        y_train=_tensor(y[:n_train], dtype),
        x_test=_tensor(x[n_train:], dtype),
        y_test=_tensor(y[n_train:], dtype),
        name="deep_linear",
        seed=seed,
        metadata={"noise_variance": noise_variance, "weights": _tensor(w, dtype)},
    )


def deep_linear_log_evidence(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], noise_variance: float = 0.1
) -> Float[Tensor, ""]:
    """The true log evidence of `deep_linear` data, `log N(y; 0, x x^T / D + noise I)`, in nats.

    Computed through the D x D matrix `B = I + x^T x / (D noise)`:

        log det = N log noise + log det B,   quadratic form = (y^T y - v^T v) / noise,

    with `v = chol(B)^-1 x^T y / sqrt(D noise)`.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(2, 1), torch.zeros(2)
        >>> round(float(deep_linear_log_evidence(x, y, 1.0)), 4)  # -log(2 pi)
        -1.8379
    """
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ShapeError(f"Expected x [N, D] and y [N]; got {tuple(x.shape)} and {tuple(y.shape)}.")
    n, d = x.shape
    design = x / (d * noise_variance) ** 0.5  # [N, D]
    L = torch.linalg.cholesky_ex(torch.eye(d, dtype=x.dtype, device=x.device) + design.T @ design)[0]
    v = torch.linalg.solve_triangular(L, (design.T @ y)[:, None], upper=False)
    quadratic = (y.square().sum() - v.square().sum()) / noise_variance
    log_det = n * math.log(noise_variance) + 2 * L.diagonal().log().sum()
    evidence: Tensor = -0.5 * (quadratic + log_det + n * math.log(2 * math.pi))
    return evidence


def deep_gp(
    seed: int = 0,
    *,
    n: int = 100,
    lengthscales: Sequence[float] = (1.0, 1.0),
    variances: Sequence[float] = (1.0, 1.0),
    noise_variance: float = 0.01,
    interval: tuple[float, float] = (-3.0, 3.0),
    dtype: torch.dtype | None = None,
) -> Split:
    """A sample of a deep Gaussian process of width 1: `y = f_L(... f_1(x)) + noise`.

    Layer l has `f_l ~ GP(0, v_l exp(-(a - b)^2 / (2 l_l^2)))`.
    The set of thesis fig. gi:dgp-uncertainty, which has two layers and 100 points and leaves the rest open;
    the values here are our choice. Inputs are sorted uniform draws. `metadata["layers"]` holds the value of
    every layer at the training inputs, [N, L]. The test inputs are an even grid of 200 points over the
    interval, widened by half its length on both sides, without targets.

    Args:
        seed: of the generator.
        n: number of points.
        lengthscales: one per layer, first layer first.
        variances: signal variances, one per layer.
        noise_variance: variance of the noise.
        interval: where the inputs lie.
        dtype: of the tensors; float64 if not given.

    Example:
        >>> deep_gp(seed=0)
        Split('deep_gp', seed=0, train=100, test=200, inputs=(1,))
    """
    if len(lengthscales) != len(variances) or not lengthscales:
        raise ConfigurationError(
            f"One lengthscale and one variance per layer are needed; got {len(lengthscales)} and {len(variances)}."
        )
    _positive(n=n, noise_variance=noise_variance, interval=interval[1] - interval[0])
    _positive(**{f"lengthscales[{i}]": l for i, l in enumerate(lengthscales)})
    _positive(**{f"variances[{i}]": v for i, v in enumerate(variances)})
    random = random_state(seed)
    x = np.sort(random.uniform(*interval, n))
    layers: list[F64] = []
    h = x
    for l, v in zip(lengthscales, variances, strict=True):
        K = v * np.exp(-0.5 * ((h[:, None] - h[None, :]) / l) ** 2)
        # Close inputs make K singular to rounding; 1e-10 of its diagonal is far below any noise.
        h = np.linalg.cholesky(K + 1e-10 * v * np.eye(n)) @ random.standard_normal(n)
        layers.append(h)
    y = h + np.sqrt(noise_variance) * random.standard_normal(n)
    truth = {"noise_variance": noise_variance, "layers": _tensor(np.stack(layers, 1), dtype)}
    return _one_input("deep_gp", seed, x, y, _around(interval), truth, dtype)


def gaussian_bumps(
    seed: int = 0,
    *,
    n: int = 20,
    n_bumps: int = 5,
    lengthscale: float | None = None,
    noise_variance: float = 0.01,
    interval: tuple[float, float] = (-1.0, 1.0),
    dtype: torch.dtype | None = None,
) -> Split:
    """A weighted sum of Gaussian bumps: `y = sum_i w_i exp(-(x - c_i)^2 / l^2) + noise`, one-dimensional.

    The data of thesis figs. intro:max_likelihood and intro:exact_blr, which leave N, noise, centres and l
    open; the values here are our choice. The centres are evenly spaced over the interval, l is by default the
    distance between them, `w ~ N(0, I)`, x is uniform on the interval. The truth ("centres", "weights",
    "lengthscale", "noise_variance") is in `metadata`. The test inputs are an even grid of 200 points over the
    interval, widened by half its length on both sides, without targets.

    Args:
        seed: of the generator.
        n: number of points.
        n_bumps: number of bumps, W.
        lengthscale: l in the formula.
        noise_variance: variance of the noise.
        interval: the domain.
        dtype: of the tensors; float64 if not given.

    Example:
        >>> gaussian_bumps(seed=0)
        Split('gaussian_bumps', seed=0, train=20, test=200, inputs=(1,))
    """
    _positive(n=n, n_bumps=n_bumps, noise_variance=noise_variance, interval=interval[1] - interval[0])
    centres = np.linspace(*interval, n_bumps) if n_bumps > 1 else np.array([0.5 * sum(interval)])
    l = lengthscale if lengthscale is not None else (interval[1] - interval[0]) / max(1, n_bumps - 1)
    _positive(lengthscale=l)
    random = random_state(seed)
    w = random.standard_normal(n_bumps)
    x = np.sort(random.uniform(*interval, n))
    f = np.exp(-(((x[:, None] - centres) / l) ** 2)) @ w
    y = f + np.sqrt(noise_variance) * random.standard_normal(n)
    truth = {
        "noise_variance": noise_variance,
        "lengthscale": l,
        "centres": _tensor(centres, dtype),
        "weights": _tensor(w, dtype),
    }
    return _one_input("gaussian_bumps", seed, x, y, _around(interval), truth, dtype)
