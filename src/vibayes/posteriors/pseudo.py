"""Regression onto pseudo-outputs: the posterior of whitened values that global and local inducing points share.

With `u = D v`, `v ~ N(0, I)`, and pseudo-outputs `y` of precision `Lambda = T T^T`, each output has the posterior
`q(v) = N(B^-1 D^T Lambda y, B^-1)`, `B = I + D^T Lambda D` (thesis, Eq. `eq:gi:Qw|v`).
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.data import as_tensor
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.operators.factor_products import gram
from vibayes.parameters import Positive
from vibayes.posteriors.base import Gaussian, Site
from vibayes.posteriors.natural import NaturalSites

if TYPE_CHECKING:
    from vibayes.layers.base import Layer
    from vibayes.posteriors.global_inducing import GlobalInducing
    from vibayes.posteriors.local_inducing import LocalInducing

__all__ = [
    "PRECISION_SCALE",
    "check_precision",
    "create_pseudo_outputs",
    "pseudo_gaussian",
    "pseudo_precision",
    "sample_given_pseudo",
]

# How much faster than other parameters the log precision moves (thesis, appendix "Parameter scaling for Adam").
PRECISION_SCALE = 3.0

PRECISIONS = ("diagonal", "per_output", "full", "full_per_output", "natural")


def check_precision(precision: str) -> None:
    """Refuse precisions of pseudo-outputs that do not exist."""
    if precision not in PRECISIONS:
        names = ", ".join(f'"{name}"' for name in PRECISIONS[:-1])
        raise ConfigurationError(f'precision must be {names} or "{PRECISIONS[-1]}", got {precision!r}.')


def create_pseudo_outputs(
    posterior: "GlobalInducing | LocalInducing",
    layer: "Layer",
    shape: tuple[int, ...],
    kind: str,
    outputs: Tensor | None,
    log_precision: float | Tensor,
    *,
    scale: float = PRECISION_SCALE,
) -> None:
    """Give a posterior the parameters `pseudo_outputs` and `precision` or `raw_factor`, or its `NaturalSites`.

    Args:
        posterior: that gets them.
        layer: it belongs to.
        shape: of the pseudo-outputs, `[M, P]`, or `[M, P, height, width]` of images.
        kind: of precision.
        outputs: what they start at; standard normal if None.
        log_precision: what the log precision starts at.
        scale: how much faster than other parameters a diagonal log precision moves.
    """
    if outputs is not None:
        outputs = as_tensor(outputs, "pseudo_outputs")
    if outputs is not None and tuple(outputs.shape) != shape:
        raise ShapeError(
            f"pseudo_outputs of layer {layer.name!r} must be {list(shape)} (inducing rows, outputs); "
            f"got {list(outputs.shape)}."
        )
    if kind.startswith("full") and len(shape) > 2:
        raise ConfigurationError(
            f"Layer {layer.name!r} gives images, and its precision cannot be full: it must not differ between the "
            'places of an image. Use precision="diagonal", one value per inducing image.'
        )
    M, P = shape[:2]
    dtype = torch.get_default_dtype()
    start = torch.randn(shape) if outputs is None else outputs.detach().to(dtype, copy=True)
    log_precision = as_tensor(log_precision, "log_precision").to(dtype)
    for name, given in (("pseudo_outputs", start), ("log_precision", log_precision)):
        if not bool(given.isfinite().all()):
            raise ConfigurationError(f"{name} of layer {layer.name!r} must be finite, but has NaN or infinite values.")
    fits = [(), (M,)] + ([(P, M)] if kind == "per_output" else [])
    if tuple(log_precision.shape) not in fits:
        more = f", or one per output and row, [{P}, {M}]" if kind == "per_output" else ""
        raise ShapeError(
            f"log_precision of layer {layer.name!r} must be one number or one per inducing row, [{M}]{more}; got "
            f"{list(log_precision.shape)}."
        )
    if kind == "natural":
        posterior.add_module("natural", NaturalSites(layer, start, log_precision))
        return
    posterior.pseudo_outputs = nn.Parameter(start)
    if kind.startswith("full"):
        factor = torch.diag_embed(0.5 * log_precision.expand(M))
        posterior.raw_factor = nn.Parameter(factor if kind == "full" else factor.repeat(P, 1, 1))
    else:
        of = (P, M) if kind == "per_output" else (M,)
        posterior.precision = Positive(log_precision.exp().expand(of).clone(), scale=scale)


def pseudo_precision(posterior: "GlobalInducing | LocalInducing", kind: str) -> tuple[Tensor | None, Tensor | None]:
    """The diagonal of the pseudo-outputs' precision, or the factor of a full one."""
    if kind.startswith("full"):
        return None, linalg.lower_factor(posterior.raw_factor)
    return posterior.precision.value, None


def sample_given_pseudo(
    site: Site, draw: Draw, y: Tensor, precision: Tensor | None, T: Tensor | None = None
) -> Float[Tensor, "k p"]:
    """Draw `v` from its posterior given pseudo-outputs, and report `log p(v) - log q(v)`.

    In weight space (K x K) where the design is narrow, else by Matheron's rule (M x M).

    Args:
        site: the layer's site.
        draw: the draw in progress.
        y: pseudo-outputs `[M, P]`.
        precision: the diagonal of `Lambda`, `[M]` or `[P, M]`; None where it is full.
        T: the factor of a full `Lambda`, `[M, M]`, or `[P, M, M]` for one per output.
    """
    if site.narrow:
        return _in_weights(site, draw, y, precision, T)
    return _matheron(site, draw, *site.observations(y, precision), T)


def _in_weights(site: Site, draw: Draw, y: Tensor, precision: Tensor | None, T: Tensor | None) -> Tensor:
    """With `B = C C^T`, `v = C^-T (C^-1 D^T Lambda y + eps)`; the densities of `eps` and `v` give the log ratio."""
    A, b = _moments(site, y, precision, T)
    eps = draw.randn(f"{site.name}.inducing", *b.shape, like=b)  # [K, P]
    B = _plus_identity(A)
    if A.ndim == 3:  # a precision for each output
        v, log_det = draw.by_precision(f"{site.name}.pseudo", B, b.mT[..., None], eps.mT[..., None])  # [P, K, 1]
        v, log_det = v[..., 0].mT, log_det.sum()
    else:
        v, log_det = draw.by_precision(f"{site.name}.pseudo", B, b, eps)
        log_det = b.shape[-1] * log_det
    draw.add(site.name, 0.5 * (eps.square().sum() - v.square().sum() - log_det))
    return v


def _matheron(site: Site, draw: Draw, y: Tensor, precision: Tensor | None, T: Tensor | None) -> Tensor:
    """A prior draw corrected by what it misses of the pseudo-outputs; the log ratio by Bayes' rule.

    `log p(u) - log q(u) = log N(y; 0, K + Lambda^-1) - log N(y; u, Lambda^-1)`. With `Lambda = T T^T` everything is
    written in `I + T^T K T`, which stays positive definite however small or large the precisions become.
    """
    if T is not None and T.ndim == 2:
        return _matheron_shared(site, draw, y, T)
    design = site.design
    assert design is not None
    M, P = y.shape
    noise = draw.randn(f"{site.name}.inducing", design.shape[-1] + M, P, like=y)
    v0, e0 = noise[: design.shape[-1]], noise[design.shape[-1] :]
    K = gram(design.mT) if site.gram is None else site.gram  # [M, M]
    if precision is None:
        assert T is not None
        exact = T.to(K.dtype)
        inner = exact.mT @ K @ exact  # [P, M, M]
    else:
        t = precision.sqrt()  # [M] or [P, M]
        inner = t[..., :, None] * K * t[..., None, :]  # [M, M] or [P, M, M]

    def transposed(rows: Tensor) -> Tensor:  # T^T rows
        if T is not None:
            return (rows.mT[:, None, :] @ T)[:, 0].mT
        return rows * (t.mT if t.ndim == 2 else t[:, None])

    C = draw.factor(f"{site.name}.pseudo", _plus_identity(inner), jitter=False).to(y.dtype)
    seen = transposed(y)  # [M, P]
    missed = transposed(y - design @ v0) - e0  # what the prior draw and noise miss of the pseudo-outputs
    if inner.ndim == 3:  # a precision per output
        both = C.solve(torch.stack([missed.mT, seen.mT], -1))  # [P, M, 2]
        solved, whitened = C.solve_transposed(both[..., :1])[..., 0].mT, both[..., 1]
        log_det = C.log_det.sum()
    else:
        both = C.solve(torch.cat([missed, seen], -1))  # [M, 2 P]
        solved, whitened = C.solve_transposed(both[..., :P]), both[..., P:]
        log_det = P * C.log_det
    # T rows
    correction = transposed(solved) if T is None else (T @ solved.mT[..., None])[..., 0].mT
    v = v0 + design.mT @ correction
    fit = (e0 + solved).square().sum()  # T^T (y - D v), since B solved = missed
    # constants and |Lambda| cancel
    draw.add(site.name, 0.5 * (fit - whitened.square().sum() - log_det))
    return v


def _matheron_shared(site: Site, draw: Draw, y: Tensor, T: Tensor) -> Tensor:
    """`_matheron` where the outputs share a full precision: all of it is made of `F = D^T T`."""
    F = site.design_transposed(T)  # float64  [K, M]
    (K, M), P = F.shape, y.shape[-1]
    noise = draw.randn(f"{site.name}.inducing", K + M, P, like=y)
    v0, e0 = noise[:K], noise[K:]
    C = draw.factor(f"{site.name}.pseudo", _plus_identity(gram(F)), jitter=False).to(y.dtype)
    F = F.to(y.dtype)
    seen = T.mT @ y  # [M, P]
    missed = seen - F.mT @ v0 - e0
    both = C.solve(torch.cat([missed, seen], -1))  # [M, 2 P]
    solved, whitened = C.solve_transposed(both[..., :P]), both[..., P:]
    fit = (e0 + solved).square().sum()
    draw.add(site.name, 0.5 * (fit - whitened.square().sum() - P * C.log_det))
    return v0 + F @ solved


def pseudo_gaussian(site: Site, y: Float[Tensor, "m p"], precision: Tensor | None, T: Tensor | None = None) -> Gaussian:
    """`q(v)` itself; arguments as in `sample_given_pseudo`."""
    A, b = _moments(site, y, precision, T)
    # B >= I, so its factorization cannot fail for lack of definiteness and needs no jitter
    C, _ = linalg.factor(_plus_identity(A))
    eye = torch.eye(len(b), dtype=b.dtype, device=b.device)
    R = C.solve_transposed(eye) if C.inverse is None else C.inverse.mT  # R R^T = B^-1
    if A.ndim == 3:
        mean = (R @ (R.mT @ b.mT[..., None]))[..., 0].mT
        return Gaussian(mean, R, -C.log_det)
    return Gaussian(R @ (R.mT @ b), R[None], -C.log_det[None])


def _moments(site: Site, y: Tensor, precision: Tensor | None, T: Tensor | None) -> tuple[Tensor, Tensor]:
    """`D^T Lambda D` and `D^T Lambda y`."""
    if precision is not None:
        return site.moments(precision, y)
    assert T is not None
    assert site.design is not None
    D = T.mT @ site.design  # [M, K] or [P, M, K]
    if T.ndim == 3:
        return D.mT @ D, (D.mT @ (T.mT @ y.mT[..., None]))[..., 0].mT
    return D.mT @ D, D.mT @ (T.mT @ y)


def _plus_identity(A: Tensor) -> Tensor:
    return A + torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
