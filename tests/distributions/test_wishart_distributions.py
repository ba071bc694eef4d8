"""Values, refusals and numerics of the Wishart family and the matrix normal, one by one."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.func import grad, vmap
from wishart_cases import build, parameters, scale, standard

from vibayes.distributions import GeneralizedSingularWishart, InverseWishart, LowerUpper, MatrixNormal, Wishart
from vibayes.distributions.lower_upper import log_abs_det
from vibayes.errors import ConfigurationError, DataError, NotPositiveDefiniteError, ShapeError


@pytest.mark.parametrize(("n", "nu"), [(1, 0.5), (2, 1.5), (3, 3), (3, 9.2), (5, 6.5)])
def test_inverse_wishart_is_scipys(n: int, nu: float) -> None:
    S = scale(n)
    inverse, reference = InverseWishart(S, nu), scipy.stats.invwishart(max(nu, n), S.numpy())
    F, _, log_det = inverse.rsample_factor((4,))
    G = F @ F.mT
    torch.testing.assert_close(F, torch.linalg.cholesky_ex(G).L)
    torch.testing.assert_close(log_det, torch.logdet(G))
    torch.testing.assert_close(inverse.log_prob_factor(F), inverse.log_prob(G))
    if nu >= n:
        for k in range(4):
            assert inverse.log_prob(G[k]).item() == pytest.approx(reference.logpdf(G[k].numpy()), rel=1e-10)
    else:  # by change of variables from the Wishart of the inverse, whose Jacobian is |G|^-(N+1)
        wishart = Wishart(torch.linalg.inv_ex(S).inverse, nu)
        expected = wishart.log_prob(torch.linalg.inv_ex(G).inverse) - (n + 1) * torch.logdet(G)
        torch.testing.assert_close(inverse.log_prob(G), expected)


def test_inverse_wishart_moments_exist_or_are_nan() -> None:
    S = scale(3)
    reference = scipy.stats.invwishart(9.5, S.numpy())
    np.testing.assert_allclose(InverseWishart(S, 9.5).mean.numpy(), reference.mean(), rtol=1e-12)
    np.testing.assert_allclose(InverseWishart(S, 9.5).variance.numpy(), reference.var(), rtol=1e-12)
    assert InverseWishart(S, 4.0).mean.isnan().all()
    assert InverseWishart(S, 6.0).variance.isnan().all()


@pytest.mark.parametrize("nu", [1, 2, 2.7, 6])
def test_wishart_marginals_are_chi_squared(nu: float) -> None:
    S = scale(3)
    G = Wishart(S, nu).sample((20_000,))
    for i in range(3):
        assert scipy.stats.kstest((G[:, i, i] / S[i, i]).numpy(), scipy.stats.chi2(nu).cdf).pvalue > 1e-3


@pytest.mark.parametrize("form", ["wishart", "plain", "dense", "AB"])
def test_singular_density_integrates_to_one(form: str) -> None:
    """N = 2, nu = 1 by quadrature over log G_11 and G_21 / sqrt(G_11)."""
    log_g = torch.linspace(-40.0, 8.0, 801)[:, None]
    ratio = torch.linspace(-25.0, 25.0, 1001)
    root = (0.5 * log_g).exp()
    g21 = ratio * root
    G = torch.stack([(log_g.exp()).expand_as(g21), g21, g21, (ratio**2).expand_as(g21)], -1).unflatten(-1, (2, 2))
    q = Wishart(scale(2), 1) if form == "wishart" else build(1, parameters(2, 1), form)
    density = (q.log_prob(G) + 1.5 * log_g).exp()  # dG_11 dG_21 = G_11^(3/2) dlogG_11 dratio
    total = torch.trapezoid(torch.trapezoid(density, ratio), log_g[:, 0])
    assert total.item() == pytest.approx(1.0, abs=2e-6)


@pytest.mark.parametrize(("n", "nu"), [(2, 1), (3, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("form", ["plain", "AB"])
def test_importance_weights_average_to_one(n: int, nu: int, form: str) -> None:
    """E_q[p / q] = 1 with densities evaluated on the factors alone."""
    p = parameters(n, nu)
    p |= {"alpha": 0.45 * (nu - torch.arange(min(n, nu))), "beta": torch.full((min(n, nu),), 0.3)}
    p |= {"mu": 0.2 * p["mu"], "sigma": torch.full((n, min(n, nu)), 1.5), "A": torch.eye(n) + 0.2 * p["A"].tril(-1)}
    p["A"][0, 0] = -1.1
    p["B"] = torch.eye(min(n, nu)) + 0.2 * p["B"].tril(-1)
    q = build(nu, p, form)
    F, T, log_det = q.rsample_factor((40_000,))
    prior = Wishart(None, nu, scale_tril=0.9 * p["scale_tril"])
    weights = (prior.log_prob_factor(F, log_det) - q.log_prob_bartlett(T, log_det)).exp()
    error = weights.std().item() / len(weights) ** 0.5
    assert error < 0.05
    assert abs(weights.mean().item() - 1.0) < 4.5 * error


def test_wishart_factor_of_any_width() -> None:
    for n, nu in ((3, 2), (3, 5)):
        wishart = Wishart(scale(3), nu)
        F = torch.randn(n, nu)
        torch.testing.assert_close(wishart.log_prob_factor(F), wishart.log_prob(F @ F.T))
        padded = torch.nn.functional.pad(F, (0, 2))
        torch.testing.assert_close(wishart.log_prob_factor(padded), wishart.log_prob(F @ F.T))
    drawn = Wishart(scale(3), 2).rsample_factor((4,))
    torch.testing.assert_close(drawn.log_det, torch.logdet((drawn.factor @ drawn.factor.mT)[:, :2, :2]))


@pytest.mark.parametrize(("n", "nu"), [(4, 2), (3, 3)])
@pytest.mark.parametrize("form", ["plain", "dense", "AB"])
@pytest.mark.parametrize("sticking", [False, True])
def test_gradients_by_matrix_and_by_bartlett_factor_agree(n: int, nu: int, form: str, sticking: bool) -> None:
    p = parameters(n, nu)
    noise = torch.randn(build(nu, p, form).noise_shape)

    def by_matrix(p: dict[str, Tensor]) -> Tensor:
        q = build(nu, p, form)
        return q.log_prob(q.rsample(noise=noise), sticking_the_landing=sticking)

    def by_factor(p: dict[str, Tensor]) -> Tensor:
        q = build(nu, p, form)
        return q.log_prob_factor(q.rsample_factor(noise=noise).factor, sticking_the_landing=sticking)

    def by_bartlett(p: dict[str, Tensor]) -> Tensor:
        q = build(nu, p, form)
        _, T, log_det = q.rsample_factor(noise=noise)
        return q.log_prob_bartlett(T, log_det, sticking_the_landing=sticking)

    def by_density(p: dict[str, Tensor]) -> Tensor:
        q = build(nu, p, form)
        T, density = q.rsample_with_density(noise=noise)
        return q.log_prob_bartlett(T, density=density)

    expected = grad(by_bartlett)(p)
    for other in (by_matrix, by_factor, *([by_density] if sticking else [])):
        for key, found in grad(other)(p).items():
            torch.testing.assert_close(found, expected[key], rtol=1e-6, atol=1e-7)


def test_sticking_the_landing_leaves_out_the_score() -> None:
    p = parameters(3, 2)
    noise = torch.randn(build(2, p).noise_shape)
    T, log_det = build(2, p).rsample_factor(noise=noise)[1:]

    def total(p: dict[str, Tensor], sticking: bool) -> Tensor:
        q = build(2, p)
        _, T, log_det = q.rsample_factor(noise=noise)
        return q.log_prob_bartlett(T, log_det, sticking_the_landing=sticking)

    full, stuck = grad(total)(p, False), grad(total)(p, True)
    score = grad(lambda p: build(2, p).log_prob_bartlett(T, log_det))(p)
    for key in ("alpha", "beta", "mu", "sigma"):
        assert score[key].abs().max() > 0.1
        torch.testing.assert_close(full[key] - stuck[key], score[key])
    for key in ("scale_tril", "A", "B"):
        torch.testing.assert_close(full[key], stuck[key])


@pytest.mark.parametrize("batch", [(), (2,)])
def test_draws_with_their_densities_in_batches(batch: tuple[int, ...]) -> None:
    p = {key: value.expand(*batch, *value.shape) for key, value in parameters(4, 2).items()}
    q = build(2, p)
    noise = torch.randn(3, *q.noise_shape)
    T, density = q.rsample_with_density((3,), noise)
    torch.testing.assert_close(T, q.rsample_bartlett((3,), noise))
    torch.testing.assert_close(q.log_prob_bartlett(T, density=density), q.log_prob_bartlett(T))


def test_no_gradient_noise_where_posterior_is_prior() -> None:
    """With q = p the log ratio is zero in every draw, and with sticking the landing so is its gradient."""
    S, p = scale(4), standard(4, 2)

    def ratio(p: dict[str, Tensor]) -> Tensor:
        q = GeneralizedSingularWishart(S, 2, **p)
        F, T, log_det = q.rsample_factor()
        return Wishart(S, 2).log_prob_factor(F, log_det) - q.log_prob_bartlett(T, log_det, sticking_the_landing=True)

    assert abs(ratio(p).item()) < 1e-10
    for value in grad(ratio)(p).values():
        assert value.abs().max() < 1e-10


def test_unused_entries_do_not_matter() -> None:
    p = parameters(4, 2)
    junk = p | {
        "mu": p["mu"].tril(-1) + torch.full((4, 2), math.nan).triu(),
        "sigma": torch.where(torch.ones(4, 2).tril(-1) > 0, p["sigma"], 0.0),
    }
    q, same = build(2, junk), build(2, p)
    noise = torch.randn(q.noise_shape)
    G = q.rsample(noise=noise)
    torch.testing.assert_close(G, same.rsample(noise=noise))
    torch.testing.assert_close(q.log_prob(G), same.log_prob(G))
    torch.testing.assert_close(q.mean, same.mean)
    scores = grad(lambda p: build(2, p).log_prob(build(2, p).rsample(noise=noise)))(junk)
    assert all(score.isfinite().all() for score in scores.values())


def test_the_factor_stands_ill_conditioned_scales_in_float32() -> None:
    L = torch.diag(torch.logspace(0, -5, 6, dtype=torch.float32))
    p = {key: value.float() for key, value in parameters(6, 4).items()}
    q = build(4, p | {"scale_tril": L})
    exact = build(4, {key: value.double() for key, value in (p | {"scale_tril": L}).items()})
    noise = torch.randn(50, *q.noise_shape)
    F, T, log_det = q.rsample_factor((50,), noise=noise.float())
    F64, T64, log_det64 = exact.rsample_factor((50,), noise=noise)
    expected = exact.log_prob_bartlett(T64)
    torch.testing.assert_close(q.log_prob_bartlett(T, log_det).double(), expected, rtol=1e-3, atol=1e-3)
    prior = Wishart(None, 4, scale_tril=L)
    expected = Wishart(None, 4, scale_tril=L.double()).log_prob_factor(F64, log_det64)
    torch.testing.assert_close(prior.log_prob_factor(F, log_det).double(), expected, rtol=1e-3, atol=1e-3)


def test_learnable_degrees_of_freedom() -> None:
    """E[log |G|] = log |S| + N log 2 + sum_j psi((nu - j + 1) / 2), and so is its gradient."""
    nu = torch.tensor(3.7)
    noise = torch.randn(20_000, *Wishart(scale(3), nu).noise_shape)
    L = torch.linalg.cholesky_ex(scale(3)).L
    slopes = vmap(
        grad(lambda nu, z: Wishart(None, nu, scale_tril=L).rsample_factor(noise=z).log_det), in_dims=(None, 0)
    )
    found = slopes(nu, noise)
    expected = 0.5 * torch.polygamma(1, 0.5 * (nu - torch.arange(3))).sum()
    assert abs(found.mean() - expected) < 5 * found.std() / len(noise) ** 0.5


def test_matrix_normal_is_the_normal_of_its_rows_in_a_row() -> None:
    R, C = torch.linalg.cholesky_ex(scale(3)).L, torch.linalg.cholesky_ex(scale(2, 3)).L
    mean = torch.randn(3, 2)
    matrix = MatrixNormal(mean, R, C)
    flat = MultivariateNormal(mean.flatten(), torch.kron(R @ R.T, C @ C.T))
    X = matrix.sample((50_000,))
    torch.testing.assert_close(matrix.log_prob(X), flat.log_prob(X.flatten(1)))
    torch.testing.assert_close(matrix.variance, flat.variance.reshape(3, 2))
    Z = (X - mean).flatten(1)
    products = Z[:, :, None] * Z[:, None, :]
    assert bool(((products.mean(0) - flat.covariance_matrix).abs() < 5 * products.std(0) / len(X) ** 0.5).all())


def test_log_abs_det_twice_differentiable() -> None:
    X = torch.randn(2, 3, 3)
    torch.testing.assert_close(log_abs_det(X), torch.linalg.slogdet(X).logabsdet)
    assert torch.autograd.gradcheck(log_abs_det, X.clone().requires_grad_())
    assert torch.autograd.gradgradcheck(log_abs_det, X.clone().requires_grad_())


@pytest.mark.parametrize("nu", [0, -1, 1.5, 2.0 - 1e-9, math.nan, math.inf, True, "2"])
def test_impossible_degrees_of_freedom(nu: float) -> None:
    for make in (
        lambda: Wishart(torch.eye(3), nu),
        lambda: InverseWishart(torch.eye(3), nu),
        lambda: GeneralizedSingularWishart(torch.eye(3), nu, **standard(3, 2)),
    ):
        with pytest.raises(ConfigurationError, match="nu must be"):
            make()


def test_bad_arguments() -> None:
    S, p = torch.eye(3), standard(3, 2)
    with pytest.raises(ConfigurationError, match=r"greater than N - 1 = 2.*Python integer"):
        Wishart(S, torch.tensor(2.0))
    for kind in (Wishart, InverseWishart):
        with pytest.raises(ConfigurationError, match="must be finite"):
            kind(S, torch.tensor(math.inf))
    q = GeneralizedSingularWishart(S, 2, **p)
    for wrong in (torch.ones(3, 1), torch.ones(3, 3), torch.ones(2, 2)):
        with pytest.raises(ShapeError, match=r"T must have shape \(3, 2\)"):
            q.log_prob_bartlett(wrong)
    with pytest.raises(ConfigurationError, match="floating"):
        Wishart(S, torch.tensor(2))
    with pytest.raises(ConfigurationError, match="singular matrix has no inverse"):
        InverseWishart(S, 2)
    with pytest.raises(NotPositiveDefiniteError, match="3 x 3"):
        Wishart(torch.ones(3, 3), 4)
    with pytest.raises(ConfigurationError, match="symmetric"):
        Wishart(torch.eye(3) + torch.ones(3, 3).triu(1), 4)
    with pytest.raises(ConfigurationError, match="scale must be finite"):
        Wishart(torch.full((3, 3), math.nan), 4)
    with pytest.raises(ConfigurationError, match="symmetric"):  # however large the other matrices of a batch are
        Wishart(torch.stack([torch.eye(3) + 1e-6 * torch.ones(3, 3).triu(1), 1e9 * torch.eye(3)]), 4)
    with pytest.raises(ConfigurationError, match="either scale or"):
        Wishart(None, 4)
    with pytest.raises(ConfigurationError, match="either scale or"):
        Wishart(S, 4, scale_tril=S)
    with pytest.raises(ConfigurationError, match="lower triangular"):
        Wishart(None, 4, scale_tril=torch.ones(3, 3))
    with pytest.raises(ShapeError, match="square"):
        Wishart(torch.ones(3, 2), 4)
    with pytest.raises(ConfigurationError, match="one floating dtype"):
        Wishart(S, torch.tensor(4.0, dtype=torch.float32))
    with pytest.raises(ConfigurationError, match="must be a number"):
        GeneralizedSingularWishart(S, torch.tensor(4.0), **p)
    with pytest.raises(ShapeError, match="at least 2 columns"):
        Wishart(S, 2).log_prob_factor(torch.ones(3, 1))
    with pytest.raises(ConfigurationError, match="diagonal of column_factor must be positive"):
        MatrixNormal(torch.zeros(3, 2), S, -torch.eye(2))
    with pytest.raises(ShapeError, match="a mean of shape"):
        MatrixNormal(torch.zeros(2, 3), S, torch.eye(2))
    with pytest.raises(ConfigurationError, match="mean must be a tensor"):
        MatrixNormal([[0.0]], torch.eye(1), torch.eye(1))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="mean must be finite"):
        MatrixNormal(torch.full((3, 2), math.nan), S, torch.eye(2))
    with pytest.raises(ConfigurationError, match="row_factor must be finite"):
        MatrixNormal(torch.zeros(3, 2), math.inf * torch.ones(3, 3).tril(), torch.eye(2))


def test_a_batch_may_be_empty() -> None:
    for one in (Wishart(torch.ones(0, 3, 3), 2), InverseWishart(torch.ones(0, 3, 3), 4.0)):
        assert one.log_prob(one.rsample((2,))).shape == (2, 0)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("alpha", torch.ones(3), ShapeError, r"alpha must have shape \(2,\)"),
        ("alpha", torch.tensor([1.0, 0.0]), ConfigurationError, "alpha must be positive"),
        ("beta", torch.tensor([1.0, -1.0]), ConfigurationError, "beta must be positive"),
        ("beta", [1.0, 1.0], ConfigurationError, "beta must be a tensor"),
        ("beta", torch.tensor([1.0, math.inf]), ConfigurationError, "beta must be finite"),
        ("mu", torch.full((3, 2), math.nan), ConfigurationError, "mu must be finite"),
        ("A", torch.ones(3, 3), ConfigurationError, "A must be invertible"),
        ("A", torch.full((3, 3), math.nan), ConfigurationError, "A must be finite"),
        ("A", LowerUpper(torch.full((3, 3), math.nan)), ConfigurationError, "A must be finite"),
        ("mu", torch.zeros(2, 2), ShapeError, r"mu must have shape \(3, 2\)"),
        ("sigma", -torch.ones(3, 2), ConfigurationError, "sigma below its diagonal must be positive"),
        ("sigma", torch.ones(3, 2, dtype=torch.float32), ConfigurationError, "one floating dtype"),
        ("A", torch.eye(2), ShapeError, r"A must have shape \(3, 3\)"),
        ("A", LowerUpper(torch.zeros(3, 3)), ConfigurationError, "A's diagonal must be positive"),
        ("B", torch.eye(3), ShapeError, r"B must have shape \(2, 2\)"),
        ("B", torch.ones(2, 2), ConfigurationError, "B must be lower triangular"),
        ("B", torch.zeros(2, 2), ConfigurationError, "B's diagonal must be positive"),
    ],
)
def test_bad_generalized_parameters(name: str, value: object, error: type[Exception], message: str) -> None:
    if isinstance(value, Tensor) and "dtype" not in message:
        value = value.double()
    if isinstance(value, LowerUpper):
        value = LowerUpper(value.packed.double())
    with pytest.raises(error, match=message):
        GeneralizedSingularWishart(torch.eye(3), 2, **(standard(3, 2) | {name: value}))  # type: ignore[arg-type]


def test_validation_can_be_switched_off() -> None:
    q = GeneralizedSingularWishart(torch.eye(3), 2, **(standard(3, 2) | {"alpha": -torch.ones(2)}), validate_args=False)
    assert q.batch_shape == ()
    with pytest.raises(ConfigurationError):
        GeneralizedSingularWishart(torch.eye(3), 2, **(standard(3, 2) | {"alpha": -torch.ones(2)}), validate_args=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: Wishart(torch.eye(3), 5, **options),
        lambda **options: InverseWishart(torch.eye(3), 5, **options),
        lambda **options: GeneralizedSingularWishart(torch.eye(3), 2, **standard(3, 2), **options),
    ],
)
def test_matrices_outside_the_support_are_refused(make: Callable[..., Any]) -> None:
    bad = torch.stack([torch.eye(3), -torch.eye(3)])
    with pytest.raises(DataError, match=r"log_prob expects matrices in its support.*1 of 2 are not"):
        make().log_prob(bad)
    with pytest.raises(DataError, match="1 of 1 are not"):
        make().expand((2,)).log_prob(torch.eye(3) + torch.ones(3, 3).triu(1))  # not symmetric
    unchecked = make(validate_args=False).log_prob(bad)
    assert unchecked[0].isfinite()
    assert unchecked[1].isnan()
    assert torch.func.vmap(make().log_prob)(bad)[1].isnan()  # values cannot be looked at


@pytest.mark.parametrize("nu", [4.7, [4.2, 9.0]])
def test_modes_are_where_densities_are_flat(nu: float | list[float]) -> None:
    S, degrees = scale(3), torch.tensor(nu) if isinstance(nu, list) else nu
    for distribution in (Wishart(S, degrees), InverseWishart(S, degrees)):
        mode = distribution.mode.requires_grad_()
        assert mode.shape == (*distribution.batch_shape, 3, 3)
        (slope,) = torch.autograd.grad(distribution.log_prob(mode).sum(), mode)
        torch.testing.assert_close(slope + slope.mT, torch.zeros_like(slope), atol=1e-9, rtol=0)
    assert Wishart(S, 4.0).mode.isnan().all()
    assert Wishart(S, 2).mode.isnan().all()


def test_a_matrix_normal_is_densest_at_its_mean() -> None:
    mean = torch.randn(3, 2)
    assert torch.equal(MatrixNormal(mean, torch.eye(3), torch.eye(2)).mode, mean)
