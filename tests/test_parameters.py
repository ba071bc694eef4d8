"""Hyperparameters: values, bounds, fixing, sharing and priors."""

import math
from pathlib import Path

import pytest
import torch
from torch.distributions import Beta, Gamma, HalfNormal, Independent, LogNormal, Normal, Uniform

import vibayes as vb
from vibayes.parameters import Hyperparameter, hyperparameters, log_prior, positive


@pytest.mark.parametrize("scale", [1.0, 10.0, 0.1])
def test_positive_round_trip(scale: float) -> None:
    value = torch.tensor([1e-6, 0.3, 1.0, 1e5])
    hyperparameter = vb.Positive(value, scale=scale)
    torch.testing.assert_close(hyperparameter.value, value)
    torch.testing.assert_close(hyperparameter(), value)
    torch.testing.assert_close(hyperparameter.raw.detach(), value.log() / scale)
    hyperparameter.raw.data.fill_(-300.0)
    assert (hyperparameter.value >= 0).all()


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_least_is_a_part_that_is_not_learned(scale: float, tmp_path: Path) -> None:
    value = torch.tensor([0.3, 2.0])
    hyperparameter = vb.Positive(value, scale=scale, least=0.25)
    torch.testing.assert_close(hyperparameter.value, value)
    torch.testing.assert_close(hyperparameter.log, value.log())
    jacobian = torch.autograd.functional.jacobian(hyperparameter.from_raw, hyperparameter.raw.detach())
    torch.testing.assert_close(hyperparameter.log_jacobian(hyperparameter.raw), jacobian.diagonal().log().sum())
    hyperparameter.raw.data.fill_(-300.0)
    torch.testing.assert_close(hyperparameter.value, torch.full((2,), 0.25))
    with pytest.raises(vb.ConfigurationError, match=r"larger than 0\.25"):
        hyperparameter.set(0.2)
    with pytest.raises(vb.ConfigurationError, match="least must be zero or"):
        vb.Positive(1.0, least=-1.0)
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(vb.Positive(0.5, scale=scale, least=0.25)))
    gp.condition(torch.zeros(2, 1), torch.zeros(2))
    gp.save(tmp_path / "model")
    loaded = vb.load(tmp_path / "model").likelihood.noise
    assert float(loaded.value.detach()) == pytest.approx(0.5)
    assert loaded.least == 0.25


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_scale_must_be_positive(scale: float) -> None:
    with pytest.raises(vb.ConfigurationError, match="scale must be a positive"):
        vb.Positive(1.0, scale=scale)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_positive_refuses_the_rest(value: float) -> None:
    with pytest.raises(vb.ConfigurationError, match="must be positive"):
        vb.Positive(value)
    with pytest.raises(vb.ConfigurationError, match="must be positive"):
        vb.Positive(1.0).set(value)
    assert vb.Real(value).value.item() == value


@pytest.mark.parametrize("kind", [vb.Positive, vb.Real])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_only_finite_values(kind: type[Hyperparameter], value: float) -> None:
    with pytest.raises(vb.ConfigurationError, match="finite value"):
        kind(value)
    hyperparameter = kind(1.0)
    with pytest.raises(vb.ConfigurationError, match="finite value"):
        hyperparameter.set(value)
    with pytest.raises(vb.ConfigurationError, match="finite value"):
        hyperparameter.fix(value)
    assert hyperparameter.value.item() == 1.0
    assert hyperparameter.raw.requires_grad


def test_set_fills_and_checks_shapes() -> None:
    vector = vb.Positive(torch.ones(3))
    torch.testing.assert_close(vector.set(2.0).value.detach(), torch.full((3,), 2.0))
    torch.testing.assert_close(vector.set(torch.tensor([3.0])).value.detach(), torch.full((3,), 3.0))
    torch.testing.assert_close(vector.set(torch.tensor([1, 2, 3])).value.detach(), torch.tensor([1.0, 2.0, 3.0]))
    assert vb.Positive(1.0).set(torch.tensor([[5.0]])).value.shape == ()
    with pytest.raises(vb.ShapeError, match=r"\(3,\).*\(2,\)"):
        vector.set(torch.ones(2))


def test_set_keeps_the_same_parameter() -> None:
    """An optimizer or another kernel may hold it."""
    hyperparameter = vb.Positive(1.0)
    raw = hyperparameter.raw
    hyperparameter.set(2.0)
    assert hyperparameter.raw is raw


def test_fix_and_free() -> None:
    hyperparameter = vb.Positive(1.0).fix(2.0)
    assert not hyperparameter.raw.requires_grad
    assert hyperparameter.value.item() == pytest.approx(2.0)
    assert hyperparameter.free().raw.requires_grad
    assert not vb.Real(1.0, learn=False).raw.requires_grad
    assert "fixed" in repr(vb.Real(1.0, learn=False))


def test_the_given_tensor_stays_untouched() -> None:
    start = torch.ones(2, requires_grad=True) * 2  # not even a leaf
    hyperparameter = vb.Real(start)
    hyperparameter.set(5.0)
    assert start.tolist() == [2.0, 2.0]
    assert hyperparameter.raw.is_leaf


def test_positive_helper_shares_or_builds() -> None:
    mine = vb.Positive(1.0)
    assert positive(mine, (3,)) is mine
    assert positive(0.5, (3,)).raw.shape == (3,)
    assert positive(torch.tensor([0.5])).raw.shape == ()
    with pytest.raises(vb.ShapeError, match="ard=True"):
        positive(torch.ones(2))
    with pytest.raises(vb.ShapeError, match="ard=True"):
        positive(vb.Positive(torch.ones(2)), (3,))


@pytest.mark.parametrize(
    "prior",
    [Gamma(2.0, 3.0), LogNormal(0.2, 0.7), HalfNormal(2.0), Independent(LogNormal(torch.zeros(2), 1.0), 1)],
    ids=lambda prior: type(prior).__name__,
)
def test_log_prior_is_the_density_at_the_value(prior: torch.distributions.Distribution) -> None:
    value = torch.tensor([0.5, 1.5])
    hyperparameter = vb.Positive(value, prior=prior, scale=3.0)
    torch.testing.assert_close(hyperparameter.log_prior(), prior.log_prob(value).sum())
    (gradient,) = torch.autograd.grad(hyperparameter.log_prior(), hyperparameter.raw)
    assert (gradient != 0).all()


@pytest.mark.parametrize(
    "prior",
    [  # explicitly, since compiling anything switches torch's default off for the whole process
        LogNormal(0.0, 1.0, validate_args=True),
        Uniform(0.5, 2.0, validate_args=True),
        Gamma(2.0, 1.0, validate_args=True),
        Beta(2.0, 2.0, validate_args=True),  # asks a Dirichlet distribution, which checks values itself
    ],
)
def test_a_prior_never_raises_in_training(prior: torch.distributions.Distribution) -> None:
    """Torch would refuse values outside the support; training goes back from NaN and -inf instead."""
    assert prior._validate_args
    hyperparameter = vb.Positive(1.0, prior=prior)
    hyperparameter.raw.data.fill_(torch.nan)
    assert not torch.isfinite(hyperparameter.log_prior())
    values = torch.func.vmap(lambda raw: hyperparameter.prior.log_prob(raw.exp()))(torch.zeros(3))
    assert values.shape == (3,)
    assert prior._validate_args  # the user's object is as it was


def test_outside_the_support_is_minus_infinity() -> None:
    assert vb.Positive(3.0, prior=Uniform(0.5, 2.0)).log_prior().item() == -math.inf


def test_a_prior_is_a_distribution() -> None:
    with pytest.raises(vb.ConfigurationError, match=r"torch distribution.*got float"):
        vb.Positive(1.0, prior=1.0)


def test_a_prior_has_the_shape_of_the_value() -> None:
    three = torch.ones(3)
    for value, prior in ((three, Gamma(2.0, 1.0)), (three, Gamma(three, three)), (1.0, Gamma(three[:1], 1.0))):
        assert vb.Positive(value, prior=prior).log_prior().isfinite()
    assert vb.Real(three, prior=Independent(Normal(three, three), 1)).log_prior().isfinite()
    for value, prior in ((1.0, Gamma(three, three)), (three, Gamma(three[:2], 1.0))):
        with pytest.raises(vb.ShapeError, match="The prior has shape"):
            vb.Positive(value, prior=prior)


def test_values_are_numbers() -> None:
    for wrong in ("a", None, [[1.0], [2.0, 3.0]]):
        with pytest.raises(vb.ConfigurationError, match="must be a number"):
            vb.SquaredExponential(2, lengthscale=wrong)
        with pytest.raises(vb.ConfigurationError, match="must be a number"):
            vb.Gaussian(wrong)
    for wrong in (0, 2.0):
        with pytest.raises(vb.ConfigurationError, match="out_features"):
            vb.Gaussian(0.1, out_features=wrong)


def test_sum_of_log_priors_counts_shared_ones_once() -> None:
    shared = vb.Positive(2.0, prior=Gamma(2.0, 1.0))
    kernel = vb.SquaredExponential(1, lengthscale=shared) + vb.Matern32(1, lengthscale=shared)
    own = vb.Positive(3.0, prior=Normal(0.0, 1.0))
    likelihood = vb.Gaussian(own)
    module = torch.nn.ModuleList([kernel, likelihood])
    expected = Gamma(2.0, 1.0).log_prob(torch.tensor(2.0)) + Normal(0.0, 1.0).log_prob(torch.tensor(3.0))
    torch.testing.assert_close(log_prior(module), expected)
    assert log_prior(vb.SquaredExponential(1)) == 0.0
    assert vb.SquaredExponential(1).lengthscale.log_prior().item() == 0.0


def test_names_of_hyperparameters() -> None:
    kernel = vb.SquaredExponential(2, ard=True)
    assert {name for name, _ in hyperparameters(kernel)} == {"lengthscale", "variance"}


def test_dtype_follows_torch() -> None:
    torch.set_default_dtype(torch.float32)
    assert vb.Positive(torch.ones(2, dtype=torch.float64)).raw.dtype == torch.float32
    hyperparameter = vb.Positive(1.0).double()
    assert hyperparameter.set(0.1).value.item() == pytest.approx(0.1, rel=1e-15)
