"""Local inducing points: both parameterisations against torch's multivariate normals."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import vibayes as vb
from vibayes import linalg
from vibayes.draw import Draw
from vibayes.posteriors.base import Site

FORMS = ("whitened", "pseudo")


def layer(form: str, *, outputs: int = 2, m: int = 4) -> vb.GP:
    """A GP layer in a model, with variational parameters away from their start."""
    gp = vb.GP(
        outputs,
        kernel=vb.SquaredExponential(2, lengthscale=0.8, variance=1.7),
        posterior=vb.LocalInducing(m, form=form),
    )
    vb.Model(gp, vb.Gaussian())
    with torch.no_grad():
        for parameter in gp.posterior.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return gp


def inducing_values(gp: vb.GP) -> tuple[list[MultivariateNormal], MultivariateNormal]:
    """`q(u)` of each output and `p(u)`, built from the definitions in the docstring."""
    posterior = gp.posterior
    K = gp.kernel(posterior.inputs)
    prior = MultivariateNormal(torch.zeros(len(K)), K)
    if posterior.form == "whitened":
        L, R = torch.linalg.cholesky(K), linalg.lower_factor(posterior.raw_factor)
        found = [
            MultivariateNormal(L @ posterior.mean[:, p], L @ R[p] @ R[p].mT @ L.mT) for p in range(gp.out_features)
        ]
        return found, prior
    Lambda = torch.diag(posterior.precision.value)
    covariance = torch.linalg.inv(torch.linalg.inv(K) + Lambda)
    means = covariance @ Lambda @ posterior.pseudo_outputs
    return [MultivariateNormal(means[:, p], covariance) for p in range(gp.out_features)], prior


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outputs", [1, 3])
def test_kl_and_moments_are_those_of_the_definition(form: str, outputs: int) -> None:
    gp = layer(form, outputs=outputs)
    q, prior = inducing_values(gp)
    L = linalg.cholesky(gp.kernel(gp.posterior.inputs))[0]
    found = gp.posterior.marginal(Site("gp", L, outputs))
    expected = sum(kl_divergence(one, prior) for one in q)
    torch.testing.assert_close(linalg.gaussian_kl(found.mean, found.factor, found.log_det), expected, rtol=1e-8, atol=0)
    for p in range(outputs):
        R = found.factor[p if len(found.factor) > 1 else 0]
        torch.testing.assert_close(L @ found.mean[:, p], q[p].mean, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(L @ R @ R.mT @ L.mT, q[p].covariance_matrix, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.log_det, torch.logdet(found.factor @ found.factor.mT))


@pytest.mark.parametrize("form", FORMS)
def test_the_bounds_kl_is_that_of_the_definition(form: str) -> None:
    gp = vb.GP(1, kernel=vb.Matern32(1), posterior=vb.LocalInducing(3, form=form))
    model = vb.Model(gp, vb.Gaussian())
    model.jitter.fill_(0.0)
    q, prior = inducing_values(gp)
    x = torch.randn(5, 1)
    torch.testing.assert_close(model.elbo(x, x[:, 0]).kl, kl_divergence(q[0], prior))


@pytest.mark.parametrize("form", FORMS)
def test_samples_report_their_log_ratio(form: str) -> None:
    gp = layer(form)
    q, prior = inducing_values(gp)
    L = linalg.cholesky(gp.kernel(gp.posterior.inputs))[0]

    def one(zero: Tensor) -> tuple[Tensor, Tensor]:
        draw = Draw(zero=zero)
        v = gp.posterior.sample(Site("gp", L, 2), draw)
        return L @ v, draw.log_ratios["gp"]

    n = 20_000
    with torch.no_grad():
        u, ratio = torch.func.vmap(one, randomness="different")(torch.zeros(n))  # [S, M, P]
        exact = sum(prior.log_prob(u[..., p]) - q[p].log_prob(u[..., p]) for p in range(2))
        torch.testing.assert_close(ratio, exact, rtol=1e-7, atol=1e-7)
        for p in range(2):
            error = u[..., p].std(0) / n**0.5
            assert ((u[..., p].mean(0) - q[p].mean).abs() < 4.5 * error).all()
            centred = u[..., p] - q[p].mean
            products = centred[:, :, None] * centred[:, None, :]
            assert ((products.mean(0) - q[p].covariance_matrix).abs() < 4.5 * products.std(0) / n**0.5).all()
        kl = float(sum(kl_divergence(one, prior) for one in q))
    assert abs(float(-ratio.mean()) - kl) < 4 * float(ratio.std()) / n**0.5


def test_whitened_starts_at_the_prior() -> None:
    gp = vb.GP(2, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5))
    model = vb.Model(gp, vb.Gaussian())
    x = torch.linspace(-1, 1, 4)[:, None]
    assert float(model.elbo(x, x.expand(4, 2)).kl.detach()) == 0.0
    torch.testing.assert_close(model.predict(x).epistemic, torch.ones(4, 2))


def test_a_specification_serves_many_layers() -> None:
    posterior = vb.LocalInducing(3)
    kernel = vb.SquaredExponential(2)
    first, second = (vb.GP(2, kernel=kernel, posterior=posterior) for _ in range(2))
    model = vb.Model(torch.nn.Sequential(first, second), vb.Gaussian())
    assert first.posterior.inputs is not second.posterior.inputs
    assert first.kernel is second.kernel
    assert not hasattr(posterior, "inputs")
    names = [name for name, _ in model.named_parameters()]
    assert sum("lengthscale" in name for name in names) == 1
    assert sum("inputs" in name for name in names) == 2


def test_inducing_inputs_start_on_the_data() -> None:
    x = torch.randn(30, 2) + 100
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(5))
    vb.Model(gp, vb.Gaussian()).initialize(x, x[:, 0])
    assert (gp.posterior.inputs > x.amin(0) - 1e-9).all()
    assert (gp.posterior.inputs < x.amax(0) + 1e-9).all()
    assert len(torch.unique(gp.posterior.inputs, dim=0)) == 5


def test_rows_that_are_sorted_are_seen_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vibayes.starts._START_ROWS", 50)
    x = torch.linspace(0, 1, 1000)[:, None]
    gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5))
    vb.Model(gp, vb.Gaussian()).initialize(x, x[:, 0])
    assert gp.posterior.inputs.max() > 0.7


@pytest.mark.parametrize("standardize", [None, "inputs"])
@pytest.mark.parametrize("times", [1, 2])
def test_given_inputs_are_in_user_units(standardize: str | None, times: int) -> None:
    z = torch.tensor([[10.0], [20.0], [30.0]], requires_grad=True) * 1.0  # not a leaf
    gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(3, inputs=z))
    model = vb.Model(gp, vb.Gaussian(), standardize=standardize)
    x = torch.linspace(5, 35, 12)[:, None]
    for _ in range(times):
        model.initialize(x, x[:, 0])
    torch.testing.assert_close(gp.posterior.inputs.detach(), model.units.inputs(z.detach()))
    assert gp.posterior.inputs.requires_grad


@pytest.mark.parametrize("inputs", [[[0.0], [1.0]], torch.tensor([[0], [1]]), torch.tensor([[0.0], [1.0]]).numpy()])
def test_given_inputs_of_any_kind(inputs: object) -> None:
    for posterior in (vb.LocalInducing(2, inputs=inputs), vb.LocalInducing(inputs=inputs)):
        gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=posterior)
        vb.Model(gp, vb.Gaussian())
        assert gp.posterior.inputs.tolist() == [[0.0], [1.0]]
        assert gp.posterior.n_inducing == 2


@pytest.mark.parametrize("precision", ["diagonal", "per_output", "full", "full_per_output"])
def test_pseudo_outputs_and_their_precision_start_where_told(precision: str) -> None:
    outputs = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    told = vb.LocalInducing(3, form="pseudo", precision=precision, pseudo_outputs=outputs, log_precision=3.0)
    gp = vb.GP(2, kernel=vb.SquaredExponential(1), posterior=told)
    vb.Model(gp, vb.Gaussian())
    assert torch.equal(gp.posterior.pseudo_outputs, outputs)
    assert gp.posterior.pseudo_outputs is not outputs
    if precision.startswith("full"):
        T = linalg.lower_factor(gp.posterior.raw_factor)
        found = (T @ T.mT).log().diagonal(dim1=-2, dim2=-1)
    else:
        found = gp.posterior.precision.value.log()
    torch.testing.assert_close(found, torch.full_like(found, 3.0))


def test_log_precisions_start_as_in_the_thesis() -> None:
    """At -4 in hidden layers and 0 in the last one; at 0 in all layers of GPs with inducing inputs of their own."""

    def local() -> vb.LocalInducing:
        return vb.LocalInducing(3, form="pseudo")

    starts = {}
    for name, posterior in (("local", local), ("global", vb.GlobalInducing)):
        inducing = torch.randn(3, 2) if name == "global" else None
        gps = [vb.GP(2, kernel=vb.SquaredExponential(2), posterior=posterior()) for _ in range(2)]
        for kind, layers in (("GP", gps), ("weights", [vb.Linear(2, 2, posterior=posterior()) for _ in range(2)])):
            vb.Model(nn.Sequential(*layers), vb.Gaussian(), inducing=inducing)
            starts[name, kind] = [layer.posterior.precision.value.log().mean().item() for layer in layers]
            scales = [layer.posterior.precision.scale for layer in layers]  # three times as fast, likewise
            assert scales == [1.0 if (name, kind) == ("local", "GP") else 3.0] * 2
    assert starts.pop(("local", "GP")) == pytest.approx([0.0, 0.0])
    assert all(found == pytest.approx([-4.0, 0.0]) for found in starts.values())


def test_a_natural_last_layer_starts_where_told() -> None:
    outputs = torch.tensor([[1.0], [3.0]])
    told = vb.LocalInducing(2, form="pseudo", precision="natural", pseudo_outputs=outputs, log_precision=3.0)
    gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=told)
    vb.Model(gp, vb.Gaussian())
    sites = gp.posterior.sites
    torch.testing.assert_close(sites.precision, torch.eye(2).double()[None] * math.exp(3.0))
    torch.testing.assert_close(sites.shift, outputs.double() * math.exp(3.0))


def test_refusals() -> None:
    with pytest.raises(vb.ConfigurationError, match=r'"whitened" or "pseudo".*\'full\''):
        vb.LocalInducing(3, form="full")
    for n in (0, -1, 2.0, True):
        with pytest.raises(vb.ConfigurationError, match="n_inducing must be at least 1"):
            vb.LocalInducing(n)
    with pytest.raises(vb.ConfigurationError, match=r"n_inducing is a number.* LocalInducing\(inputs=\.\.\.\)"):
        vb.LocalInducing(torch.ones(3, 1))  # type: ignore[arg-type]
    with pytest.raises(vb.ShapeError, match=r"n_inducing=5 rows, \[5, D\]; got \[3, 1\]"):
        vb.LocalInducing(5, inputs=torch.ones(3, 1))
    with pytest.raises(vb.ShapeError, match=r"inputs\[:, None\]"):
        vb.LocalInducing(3, inputs=torch.ones(3))
    with pytest.raises(vb.DataError, match="inputs has 1 value"):
        vb.LocalInducing(1, inputs=torch.tensor([[torch.nan]]))
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3, inputs=torch.ones(3, 1)))
    with pytest.raises(vb.ShapeError, match="must have width 2"):
        vb.Model(gp, vb.Gaussian())
    for told in ({"pseudo_outputs": torch.zeros(3, 1)}, {"log_precision": 2.0}, {"precision": "natural"}):
        gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3, form="whitened", **told))
        with pytest.raises(vb.ConfigurationError, match='one of pseudo-outputs: set form="pseudo"'):
            vb.Model(gp, vb.Gaussian())
    wrong = vb.LocalInducing(3, form="pseudo", pseudo_outputs=torch.zeros(2, 1))
    with pytest.raises(vb.ShapeError, match=r"must be \[3, 1\] \(inducing rows, outputs\); got \[2, 1\]"):
        vb.Model(vb.GP(1, kernel=vb.SquaredExponential(2), posterior=wrong), vb.Gaussian())


@pytest.mark.parametrize("precision", ["diagonal", "per_output", "full", "full_per_output", "natural"])
def test_pseudo_outputs_and_precisions_that_are_not_finite_are_refused(precision: str) -> None:
    z = torch.randn(3, 2)
    for told, message in (
        ({"pseudo_outputs": torch.full((3, 1), torch.nan)}, "pseudo_outputs of layer 'network' must be finite"),
        ({"log_precision": torch.tensor([0.0, torch.nan, 0.0])}, "log_precision of layer 'network' must be finite"),
        ({"log_precision": torch.inf}, "log_precision of layer 'network' must be finite"),
    ):
        local = vb.LocalInducing(3, form="pseudo", precision=precision, **told)
        for posterior, inducing in ((local, None), (vb.GlobalInducing(precision, **told), z)):
            gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=posterior)
            with pytest.raises(vb.ConfigurationError, match=message):
                vb.Model(gp, vb.Gaussian(), inducing=inducing)
