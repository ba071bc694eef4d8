"""KL divergences between distributions over matrices, for `torch.distributions.kl_divergence`."""

import math

import torch
from torch import Tensor
from torch.distributions import register_kl

from vibayes import linalg
from vibayes.distributions.bartlett import log_multigamma, multidigamma
from vibayes.distributions.base import MatrixDistribution
from vibayes.distributions.inverse_wishart import InverseWishart
from vibayes.distributions.matrix_normal import MatrixNormal
from vibayes.distributions.wishart import Wishart
from vibayes.errors import ShapeError

__all__: list[str] = []


def _check_sizes(p: MatrixDistribution, q: MatrixDistribution) -> None:
    if p.event_shape != q.event_shape:
        raise ShapeError(
            f"A KL divergence is of distributions over matrices of one size, got {type(p).__name__} over "
            f"{tuple(p.event_shape)} and over {tuple(q.event_shape)}."
        )


def _wisharts(p: Wishart, q: Wishart) -> Tensor:
    """Of singular ones, where both have the same rank; else no matrix is possible under both."""
    _check_sizes(p, q)
    n = p.event_shape[0]
    if p.rank != q.rank:
        shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)  # type: ignore[no-untyped-call]
        return p.scale_tril.new_full(shape, math.inf)
    log_dets = linalg.logdet_factor(q.scale_tril) - linalg.logdet_factor(p.scale_tril)
    trace = linalg.solve_lower(q.scale_tril, p.scale_tril).square().sum((-2, -1))
    return _by_scales(p.nu, q.nu, p.rank, log_dets, trace - n)


def _inverse_wisharts(p: InverseWishart, q: InverseWishart) -> Tensor:
    """That of the Wishart distributions of the inverses, whose scale matrices are the inverses."""
    _check_sizes(p, q)
    n = p.event_shape[0]
    log_dets = linalg.logdet_factor(p.scale_tril) - linalg.logdet_factor(q.scale_tril)
    trace = linalg.solve_lower(p.scale_tril, q.scale_tril).square().sum((-2, -1))
    return _by_scales(p.nu, q.nu, n, log_dets, trace - n)


def _by_scales(nu: float | Tensor, other: float | Tensor, rank: int, log_dets: Tensor, excess: Tensor) -> Tensor:
    """`nu_q/2 log |S_q| / |S_p| + nu_p/2 (tr(S_q^-1 S_p) - N) + log Gamma_q - log Gamma_p + (nu_p - nu_q)/2 psi_p`."""
    gammas = log_multigamma(other, rank) - log_multigamma(nu, rank)
    return 0.5 * (other * log_dets + nu * excess + (nu - other) * multidigamma(nu, rank, excess)) + gammas


def _matrix_normals(p: MatrixNormal, q: MatrixNormal) -> Tensor:
    """Each of covariance `R R^T` of rows and `C C^T` of columns."""
    _check_sizes(p, q)
    n, k = p.event_shape
    rows, columns = (
        linalg.solve_lower(theirs, mine).square().sum((-2, -1))
        for theirs, mine in ((q.row_factor, p.row_factor), (q.column_factor, p.column_factor))
    )
    shift = linalg.solve_lower(q.row_factor, p.loc - q.loc)
    shift = linalg.solve_lower(q.column_factor, shift.mT)
    row_dets = linalg.logdet_factor(q.row_factor) - linalg.logdet_factor(p.row_factor)
    column_dets = linalg.logdet_factor(q.column_factor) - linalg.logdet_factor(p.column_factor)
    return 0.5 * (rows * columns + shift.square().sum((-2, -1)) - n * k + k * row_dets + n * column_dets)


for _kind, _kl in ((Wishart, _wisharts), (InverseWishart, _inverse_wisharts), (MatrixNormal, _matrix_normals)):
    register_kl(_kind, _kind)(_kl)  # type: ignore[no-untyped-call]
