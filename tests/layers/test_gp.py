"""The GP layer against dense Gaussian algebra."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import vibayes as vb
from vibayes.draw import Draw
from vibayes.posteriors.base import Site

X = torch.linspace(-2, 2, 7, dtype=torch.float64)[:, None] * torch.tensor([[1.0, -0.5]], dtype=torch.float64)


def randomized(gp: vb.GP) -> vb.GP:
    with torch.no_grad():
        for parameter in gp.posterior.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return gp


MEANS: dict[str, Callable[[], vb.ZeroMean | None]] = {
    "none": lambda: None,
    "constant": lambda: vb.ConstantMean(0.7),
    "identity": lambda: vb.IdentityMean(),
    "linear": lambda: vb.LinearMean(2, 2),
}


@pytest.mark.parametrize("form", ["whitened", "pseudo"])
@pytest.mark.parametrize("noise", [None, 0.3])
@pytest.mark.parametrize("mean", MEANS)
def test_marginals_are_those_of_the_dense_formula(form: str, noise: float | None, mean: str) -> None:
    gp = vb.GP(
        2,
        kernel=vb.Matern52(2, variance=1.4),
        mean=MEANS[mean](),
        noise=noise,
        posterior=vb.LocalInducing(3, form=form),
    )
    model = vb.Model(gp, vb.Gaussian(0.2))
    model.target_axes.fill_(2)
    model.jitter.fill_(0.0)
    randomized(gp)
    with torch.no_grad():
        z = gp.posterior.inputs
        extra = 0.0 if noise is None else noise
        Kzz, Kxz = gp.kernel(z) + extra * torch.eye(3), gp.kernel(X, z)
        L = torch.linalg.cholesky(Kzz)
        q = gp.posterior.marginal(Site("gp", L, 2))
        W = Kxz @ torch.linalg.inv(Kzz)  # [N, M]
        expected_mean = W @ L @ q.mean + gp.mean(X)
        expected = torch.stack(
            [
                gp.kernel(X) + extra * torch.eye(7) - W @ Kxz.mT + W @ L @ R @ R.mT @ L.mT @ W.mT
                for R in q.factor.expand(2, -1, -1)
            ]
        )
        prediction = model.predict(X, joint=True)
    torch.testing.assert_close(prediction.mean, expected_mean)
    torch.testing.assert_close(prediction.covariance, expected)
    torch.testing.assert_close(prediction.epistemic, expected.diagonal(dim1=1, dim2=2).mT)
    torch.testing.assert_close(model.predict(X).epistemic, prediction.epistemic)
    torch.testing.assert_close(prediction.aleatoric, torch.full((7, 2), 0.2))


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("noise", [None, 0.3])
@pytest.mark.parametrize("mean", MEANS)
def test_drawn_rows_are_those_of_the_dense_formula(mean: str, noise: float | None, joint: bool) -> None:
    """Inducing rows from the prior, data rows given them, both with the layer's noise and mean."""
    kernel = vb.Matern52(2, variance=1.4)
    hidden = vb.GP(2, kernel=kernel, mean=MEANS[mean](), noise=noise, posterior=vb.FromPrior())
    vb.Model(nn.Sequential(hidden, vb.GP(1, kernel=vb.SquaredExponential(2))), vb.Gaussian(0.2), inducing=X[:3])
    z, x = torch.randn(3, 2), X
    given = {"0.inducing": torch.randn(3, 2), "0.rows": torch.randn(7, 2)}
    with torch.no_grad():
        with Draw(n_inducing=3, joint=joint, noise=given):
            out = hidden(torch.cat([z, x]))
        extra = 0.0 if noise is None else noise
        Kzz, Kxz = kernel(z) + extra * torch.eye(3), kernel(x, z)
        u = torch.linalg.cholesky(Kzz) @ given["0.inducing"]
        W = Kxz @ torch.linalg.inv(Kzz)  # [N, M]
        covariance = kernel(x) + extra * torch.eye(7) - W @ Kxz.mT
        root = torch.linalg.cholesky(covariance) if joint else covariance.diagonal().sqrt().diag()
        expected = torch.cat([u + hidden.mean(z), W @ u + root @ given["0.rows"] + hidden.mean(x)])
    torch.testing.assert_close(out, expected)


def test_white_noise_of_the_layer_equals_a_white_kernel() -> None:
    torch.manual_seed(0)
    a = vb.GP(1, kernel=vb.SquaredExponential(2), noise=0.3, posterior=vb.LocalInducing(4))
    first = vb.Model(a, vb.Gaussian(0.1))
    kernel = vb.SquaredExponential(2) + vb.White(2, variance=0.3)
    second = vb.Model(vb.GP(1, kernel=kernel, posterior=vb.LocalInducing(4)), vb.Gaussian(0.1))
    second.network.posterior.load_state_dict(randomized(a).posterior.state_dict())
    first.jitter.fill_(0.0)
    second.jitter.fill_(0.0)
    torch.testing.assert_close(first.elbo(X, X[:, 0]).value, second.elbo(X, X[:, 0]).value)


def test_outputs_are_separate_processes_with_one_kernel() -> None:
    both = vb.GP(2, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3))
    model = vb.Model(both, vb.Gaussian(0.3))
    randomized(both)
    y = torch.randn(7, 2)
    total = model.elbo(X, y).value
    parts = []
    for p in range(2):
        one = vb.GP(1, kernel=both.kernel, posterior=vb.LocalInducing(3))
        single = vb.Model(one, vb.Gaussian(0.3))
        one.posterior.inputs.data.copy_(both.posterior.inputs)
        one.posterior.mean.data.copy_(both.posterior.mean[:, p : p + 1])
        one.posterior.raw_factor.data.copy_(both.posterior.raw_factor[p : p + 1])
        parts.append(single.elbo(X, y[:, p]).value)
    torch.testing.assert_close(total, parts[0] + parts[1])


def test_hidden_rows_are_drawn_from_their_marginals() -> None:
    hidden = vb.GP(2, kernel=vb.SquaredExponential(2), noise=0.1, posterior=vb.LocalInducing(3))
    model = vb.Model(nn.Sequential(hidden, nn.LeakyReLU(1.0)), vb.Gaussian(0.1))
    model.target_axes.fill_(2)
    randomized(hidden)
    alone = vb.Model(vb.GP(2, kernel=hidden.kernel, noise=0.1, posterior=vb.LocalInducing(3)), vb.Gaussian(0.1))
    alone.target_axes.fill_(2)
    alone.network.posterior.load_state_dict(hidden.posterior.state_dict())
    n = 20_000
    drawn, exact = model.predict(X, n_samples=n), alone.predict(X)
    assert ((drawn.mean - exact.mean).abs() < 4.5 * (exact.epistemic / n).sqrt()).all()
    assert ((drawn.epistemic / exact.epistemic - 1).abs() < 4.5 * (2 / n) ** 0.5).all()
    elbo = model.elbo(X, torch.zeros(7, 2), n_samples=n)
    assert abs(float(elbo.value.detach() - alone.elbo(X, torch.zeros(7, 2)).value.detach())) < 4.5 * float(elbo.stderr)
    assert elbo.stderr > 0


def test_rows_passed_on_unchanged_stay_integrated() -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3))
    model = vb.Model(nn.Sequential(gp, nn.Identity()), vb.Gaussian(0.1))
    assert model.elbo(X, X[:, 0], n_samples=5).stderr < 1e-10


def test_global_inducing_rows_flow_with_the_data() -> None:
    """With the prior as its posterior, a two-layer network has the prior's moments and no divergence."""
    z = torch.randn(4, 2)
    layers = [vb.GP(2, kernel=vb.SquaredExponential(2), posterior=vb.FromPrior()) for _ in range(2)]
    model = vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1), inducing=z, standardize="inputs")
    y = torch.randn(7, 2)
    for _ in range(2):  # starting over takes the given inputs again
        model.initialize(X, y)
        torch.testing.assert_close(model.inducing.detach(), model.units.inputs(z))
    assert model.inducing.requires_grad
    n = 4_000
    prediction = model.predict(X, n_samples=n)
    assert prediction.mean.shape == (7, 2)
    assert (prediction.mean.abs() < 4.5 / n**0.5).all()
    assert ((prediction.epistemic - 1).abs() < 4.5 * (2 / n) ** 0.5).all()
    assert float(model.elbo(X, y).kl.detach()) == 0.0
    assert model.sample_functions(X, 3).shape == (3, 7, 2)


def test_local_and_global_layers_mix() -> None:
    first = vb.GP(2, kernel=vb.SquaredExponential(2), posterior=vb.FromPrior())
    second = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3))
    model = vb.Model(nn.Sequential(first, second), vb.Gaussian(0.1), inducing=X[:3])
    model.initialize(X, X[:, 0])
    assert torch.isfinite(model.elbo(X, X[:, 0]).value)
    assert model.predict(X).mean.shape == (7,)
    assert model.predict(X, joint=True).covariance.shape[-2:] == (7, 7)
    assert model.sample_functions(X, 2).shape == (2, 7)


@pytest.mark.parametrize("form", ["whitened", "pseudo"])
@pytest.mark.parametrize("behind", ["global", "wishart"])
@pytest.mark.parametrize("noise", [None, 0.05])
def test_inducing_rows_behind_a_local_layer_are_values_of_the_same_function(
    form: str, behind: str, noise: float | None
) -> None:
    """The bound, whose data rows are independent, is the mean of importance weights, whose rows are drawn jointly."""
    x = torch.linspace(-2, 2, 6)[:, None]
    y = (2 * x[:, 0]).sin()
    first = vb.GP(2, kernel=vb.SquaredExponential(1), noise=noise, posterior=vb.LocalInducing(4, form=form))
    middle = vb.GP(2, kernel=vb.SquaredExponential(2), posterior=vb.GeneralizedWishart("plain"))
    last = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.GlobalInducing(log_precision=2.0))
    layers = [first, last] if behind == "global" else [first, middle, last]
    model = vb.Model(nn.Sequential(*layers), vb.Gaussian(0.3), inducing=x[::2])
    model.initialize(x, y)
    torch.manual_seed(0)
    with torch.no_grad():
        bound, weights = model.elbo(x, y, n_samples=3000), model.log_weights(x, y, 3000)
        drawn, predicted = model.sample_functions(x, 3000), model.predict(x, 3000)
    error = (weights.var() / len(weights) + bound.stderr**2).sqrt()
    assert abs(bound.value - weights.mean()) < 4 * error
    torch.testing.assert_close(predicted.epistemic.sqrt(), drawn.std(0), rtol=0.1, atol=0.0)


@pytest.mark.parametrize("marginal", [False, True])
def test_rows_of_a_local_layer_before_a_global_one_have_the_moments_of_its_posterior(marginal: bool) -> None:
    """Inducing rows and a data row together, some of them far from the layer's own inducing inputs."""
    posterior = vb.LocalInducing(2, inputs=torch.tensor([[-1.0], [0.5]]))
    layer = vb.GP(1, kernel=vb.SquaredExponential(1), noise=0.1, mean=vb.IdentityMean(), posterior=posterior)
    rows = torch.tensor([[-0.7], [2.0], [1.6]])
    vb.Model(nn.Sequential(layer, vb.GP(1, kernel=vb.SquaredExponential(1))), vb.Gaussian(), inducing=rows[:2])
    draws = 100_000

    def one(_: torch.Tensor) -> torch.Tensor:
        with Draw(n_inducing=2, marginal=marginal, jitter=1e-12):
            return layer(rows)[:, 0]

    with torch.no_grad():
        layer.posterior.mean.copy_(torch.tensor([[0.8], [-0.5]]))
        layer.posterior.raw_factor.copy_(torch.tensor([[[-1.0, 0.0], [0.6, -0.3]]]))
        f = torch.func.vmap(one, randomness="different")(torch.zeros(draws))
        q = layer.posterior.marginal(None)
        L = torch.linalg.cholesky(layer.covariance(layer.posterior.inputs))
        A = torch.linalg.solve_triangular(L, layer.kernel(layer.posterior.inputs, rows), upper=False)
        C = q.factor[0].mT @ A
        covariance = layer.covariance(rows) - A.mT @ A + C.mT @ C
    torch.testing.assert_close(f.mean(0), (A.mT @ q.mean + rows)[:, 0], rtol=0.0, atol=0.02)
    torch.testing.assert_close(torch.cov(f.mT), covariance, rtol=0.0, atol=0.03)


def test_a_projection_starts_along_the_principal_directions_of_the_rows_that_come_in() -> None:
    x = torch.randn(40, 3) @ torch.diag(torch.tensor([0.1, 1.0, 5.0])) @ torch.randn(3, 3)
    layers = [
        vb.GP(d, kernel=vb.SquaredExponential(d + 1), mean=vb.LinearMean(d + 1, d), posterior=vb.LocalInducing(4))
        for d in (2, 1)
    ]
    model = vb.Model(nn.Sequential(*layers), vb.Gaussian(), standardize="inputs")
    rows: list[torch.Tensor] = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, arguments: rows.extend(arguments))
    model.initialize(x, x[:, 0])
    for layer, came in zip(layers, rows[-2:], strict=True):
        expected = torch.linalg.svd(came - came.mean(0)).Vh[: layer.out_features].mT
        signs = (expected * layer.mean.weight.value).sum(0).sign()
        torch.testing.assert_close(layer.mean.weight.value, expected * signs)


def test_the_last_layer_starts_at_targets_less_its_mean() -> None:
    x = torch.linspace(-3, 3, 20)[:, None]
    y = 100.0 + x[:, 0].sin()
    for precision in ("full", "natural"):
        posterior = vb.GlobalInducing(precision, log_precision=6.0)
        gp = vb.GP(1, kernel=vb.SquaredExponential(1), mean=vb.ConstantMean(100.0), posterior=posterior)
        model = vb.Model(gp, vb.Gaussian(0.1), inducing=x[::2])
        model.initialize(x, y)
        torch.testing.assert_close(model.predict(x, 200).mean, y, rtol=0.0, atol=0.1)


def test_a_matrix_that_cannot_be_factorized_at_the_start_is_named() -> None:
    x = 1e6 * torch.randn(30, 2)
    close = torch.cat([x[:5], x[:5] + 1e-4, x[:5] + 2e-4])
    for posterior in (vb.GlobalInducing(), vb.GeneralizedWishart()):
        first = vb.GP(2, kernel=vb.SquaredExponential(2), posterior=posterior)
        network = nn.Sequential(first, vb.GP(1, kernel=vb.SquaredExponential(2)))
        model = vb.Model(network, vb.Gaussian(0.1), inducing=close)
        with pytest.raises(vb.NotPositiveDefiniteError, match="layer '0'"):
            vb.fit(model, (x, x[:, 0]), steps=5, progress=False)
        model.jitter.fill_(1e-2)
        vb.fit(model, (x, x[:, 0]), steps=5, progress=False)


@pytest.mark.parametrize("sequential", [True, False])
def test_inducing_inputs_of_their_own_among_imagined_features_are_refused(sequential: bool) -> None:
    class Custom(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                rows = layer(rows)
            return rows

    kernel = vb.SquaredExponential(2)
    for first in (
        vb.GP(2, kernel=kernel, posterior=vb.GeneralizedWishart()),
        vb.InverseWishartProcess(kernel=kernel, out_features=2),
    ):
        last = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(5))
        network = (nn.Sequential if sequential else Custom)(first, last)
        with pytest.raises(vb.ConfigurationError, match="inducing inputs of"):
            vb.Model(network, vb.Gaussian(), inducing=X[:6])


def test_rows_of_another_width_are_named() -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(3), posterior=vb.LocalInducing(3))
    model = vb.Model(nn.Sequential(nn.Identity(), gp), vb.Gaussian())
    with pytest.raises(vb.ShapeError, match=r"GP layer '1' expects rows of shape \[N, 3\].*got \[7, 2\].*width"):
        model.elbo(X, X[:, 0])


def test_starts_of_pseudo_outputs_may_be_arrays_and_must_fit() -> None:
    kernel = vb.SquaredExponential(2)
    given = vb.GlobalInducing(pseudo_outputs=np.ones((3, 1)), log_precision=torch.zeros(3))
    gp = vb.GP(1, kernel=kernel, posterior=given)
    vb.Model(gp, vb.Gaussian(), inducing=X[:3])
    assert gp.posterior.pseudo_outputs.tolist() == [[1.0]] * 3
    for precision in ("diagonal", "full", "natural", "per_output"):
        wrong = vb.GP(1, kernel=kernel, posterior=vb.GlobalInducing(precision, log_precision=torch.zeros(2)))
        with pytest.raises(vb.ShapeError, match=r"one per inducing row, \[3\].*got \[2\]"):
            vb.Model(wrong, vb.Gaussian(), inducing=X[:3])


def test_noise_of_zero_is_said_to_be_none() -> None:
    with pytest.raises(vb.ConfigurationError, match=r"noise must be a positive variance, got 0\.0.*leave it out"):
        vb.GP(1, kernel=vb.SquaredExponential(2), noise=0.0)


def test_refusals() -> None:
    kernel, posterior = vb.SquaredExponential(2), vb.LocalInducing(3)
    with pytest.raises(vb.ConfigurationError, match=r"kernel must be a kernel.*got Linear"):
        vb.GP(1, kernel=nn.Linear(1, 1), posterior=posterior)
    with pytest.raises(vb.ConfigurationError, match=r"posterior must be a posterior.*got int"):
        vb.GP(1, kernel=kernel, posterior=100)
    with pytest.raises(vb.ConfigurationError, match=r"mean must be a mean function.*got float"):
        vb.GP(1, kernel=kernel, mean=0.0, posterior=posterior)
    for width in (0, -1, 1.0, True):
        with pytest.raises(vb.ConfigurationError, match="out_features must be at least 1"):
            vb.GP(width, kernel=kernel, posterior=posterior)
    with pytest.raises(vb.ConfigurationError, match="IdentityMean needs as many outputs"):
        vb.GP(1, kernel=kernel, mean=vb.IdentityMean(), posterior=posterior)
    with pytest.raises(vb.ConfigurationError, match="positive"):
        vb.GP(1, kernel=kernel, noise=-1.0, posterior=posterior)


def test_outside_a_model() -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3))
    with pytest.raises(vb.ConfigurationError, match=r"GP is a Bayesian layer.*outside a Model.*vibayes\.Model\("):
        gp(X)
    model = vb.Model(gp, vb.Gaussian())
    with pytest.raises(vb.ConfigurationError, match="outside a Model"):
        gp(X)
    assert torch.isfinite(model.elbo(X, X[:, 0]).value)


def test_a_layer_that_joins_later_is_named() -> None:
    network = nn.Sequential(vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3)))
    model = vb.Model(network, vb.Gaussian())
    network.append(vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(3)))
    with pytest.raises(vb.ConfigurationError, match="GP is not part of the Model"):
        model.elbo(X, X[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_variances_never_fall_below_zero(dtype: torch.dtype) -> None:
    """At the inducing inputs themselves, with nothing left to explain."""
    torch.set_default_dtype(dtype)
    x = torch.linspace(-1, 1, 20)[:, None]
    gp = vb.GP(1, kernel=vb.SquaredExponential(1, lengthscale=3.0), posterior=vb.LocalInducing(20, inputs=x))
    model = vb.Model(gp, vb.Gaussian(0.1))
    gp.posterior.raw_factor.data.copy_(-20.0 * torch.eye(20))
    model.initialize(x, x[:, 0])
    assert (model.predict(x).epistemic > 0).all()
    model.elbo(x, x[:, 0]).value.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert torch.isfinite(model.sample_functions(x, 5)).all()


class Pieces(nn.Module):
    """Each number of a row through one process, and their sum."""

    def __init__(self, layer: vb.layers.Layer) -> None:
        super().__init__()
        self.each = layer

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.each(rows.reshape(-1, 1)).reshape(len(rows), -1)
        return values.sum(1, keepdim=True)


def test_pieces_of_one_row_are_not_drawn_as_rows_of_their_own() -> None:
    """Where rows are independent given the inducing ones, the sum would have the variance of independent pieces."""

    def process(posterior: vb.posteriors.Posterior) -> vb.GP:
        return vb.GP(1, kernel=vb.SquaredExponential(1), posterior=posterior)

    for layer in (process(vb.GlobalInducing()), vb.InverseWishartProcess(kernel=vb.SquaredExponential(1))):
        with pytest.raises(vb.ShapeError, match=r"where the pass has 3\. It cannot tell which of them are ind"):
            vb.Model(nn.Sequential(Pieces(layer), process(vb.GlobalInducing())), vb.Gaussian(), inducing=X[:2])
    local = vb.Model(Pieces(process(vb.LocalInducing(3))), vb.Gaussian())
    for work in (lambda: local.elbo(X, X[:, 0]), lambda: local.predict(X), lambda: vb.fit(local, (X, X[:, 0]))):
        with pytest.raises(vb.ShapeError, match=r"got 14 rows where the pass has 7\. Pieces of one"):
            work()


def test_joint_draws_have_the_covariance_between_pieces_of_one_row() -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.FromPrior())
    model = vb.Model(Pieces(gp), vb.Gaussian())
    drawn = model.sample_functions(X, 20_000)
    apart = X[:, :1] - X[:, 1:]
    expected = 2.0 + 2.0 * (-0.5 * apart[:, 0].square()).exp()
    torch.testing.assert_close(drawn.var(0), expected, rtol=0.05, atol=0.0)
