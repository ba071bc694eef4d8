"""Deep ensembles, MC dropout, last-layer Laplace and IVON: the same predictions, and oracles for each."""

import builtins
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.baselines import Dropout, Ensemble, LastLayerLaplace, deep_ensemble, fit_ivon
from vibayes.errors import ConfigurationError, ShapeError


def data(n: int = 40) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2, 2, n)[:, None]
    return x, torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(n)


def plain(out: int = 1, likelihood: vb.Likelihood | None = None, standardize: str | None = None) -> vb.Model:
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), vb.Linear(20, out, posterior=vb.Point(prior=False)))
    return vb.Model(net, likelihood or vb.Gaussian(0.1), standardize=standardize)


# -- ensembles ------------------------------------------------------------------------------------------------------


def test_an_ensemble_is_the_mixture_of_its_members() -> None:
    x, y = data()
    ensemble = deep_ensemble(plain, (x, y), 3, steps=30, progress=False)
    assert len(ensemble.histories) == 3
    prediction = ensemble.predict(x)
    members = [m.predict(x) for m in ensemble.members]
    assert prediction.n_draws == 3
    assert not torch.equal(members[0].mean, members[1].mean)
    assert len({float(m.likelihood.noise.value.detach()) for m in ensemble.members}) == 3
    density = torch.stack([m.log_prob(y) for m in members]).logsumexp(0) - math.log(3)
    assert torch.allclose(prediction.log_prob(y), density)
    mean = torch.stack([m.mean for m in members])
    assert torch.allclose(prediction.mean, mean.mean(0))
    assert torch.allclose(prediction.epistemic, mean.var(0, correction=0))
    assert torch.allclose(prediction.aleatoric, torch.stack([m.aleatoric for m in members]).mean(0))
    half = len(x) // 2
    assert torch.allclose(
        prediction[:half].interval(0.9)[0], vb.Prediction.mixture_of([m[:half] for m in members]).interval(0.9)[0]
    )


@pytest.mark.parametrize(
    ("likelihood", "out", "targets"),
    [
        (vb.Categorical, 3, lambda y: torch.bucketize(y, torch.tensor([-0.5, 0.5]))),
        (vb.Bernoulli, 1, lambda y: (y > 0).double()),
        (vb.Poisson, 1, lambda y: (2 * y.abs()).round()),
        (vb.StudentT, 1, lambda y: y),
        (vb.HeteroscedasticGaussian, 2, lambda y: y),
    ],
)
def test_ensembles_of_every_likelihood(likelihood: Any, out: int, targets: Any) -> None:
    x, y = data()
    y = targets(y)
    ensemble = deep_ensemble(lambda: plain(out, likelihood()), (x, y), 2, steps=10, progress=False)
    expected = torch.stack([m.predict(x).log_prob(y) for m in ensemble.members]).logsumexp(0) - math.log(2)
    assert torch.allclose(ensemble.predict(x).log_prob(y), expected, atol=1e-8)


def test_members_are_weighted_alike_whatever_their_draws() -> None:
    x, _ = data(5)
    model = vb.Model(vb.Linear(1, 1, posterior=vb.FromPrior()), vb.Gaussian(0.1))
    few, many = model.predict(x, n_samples=2), model.predict(x, n_samples=6)
    assert torch.allclose(vb.Prediction.mixture_of([few, many]).mean, 0.5 * (few.mean + many.mean))


def test_bad_mixtures() -> None:
    x, y = data()
    with pytest.raises(ConfigurationError, match="at least one"):
        Ensemble([])
    with pytest.raises(ConfigurationError, match="at least one"):
        vb.Prediction.mixture_of([])
    with pytest.raises(ConfigurationError, match="Cannot mix"):
        vb.Prediction.mixture_of([plain().predict(x), plain().predict(x[:3])])
    a = deep_ensemble(lambda: plain(standardize="both"), (x, y), 1, steps=1, progress=False).predict(x)
    with pytest.raises(ConfigurationError, match="Cannot mix"):
        vb.Prediction.mixture_of([a, plain().predict(x)])


# -- dropout --------------------------------------------------------------------------------------------------------


def dropped(p: float = 0.3, width: int = 200) -> vb.Model:
    net = nn.Sequential(
        nn.Linear(1, width), nn.ReLU(), Dropout(width, p), vb.Linear(width, 1, posterior=vb.Point(False))
    )
    return vb.Model(net, vb.Gaussian(0.1))


def test_moments_of_dropout() -> None:
    model = dropped()
    x = torch.ones(1, 1)
    h = model.network[1](model.network[0](x)).detach()[0]
    w = model.network[3].posterior.weight.detach()[:-1, 0]
    prediction = model.predict(x, n_samples=40_000)
    variance = 0.3 / 0.7 * (h * w).square().sum()
    centre = float(model.network[3].posterior.weight.detach()[-1, 0] + (h * w).sum())
    assert float(prediction.mean) == pytest.approx(centre, abs=4 * float((variance / 40_000).sqrt()))
    assert float(prediction.epistemic) == pytest.approx(float(variance), rel=0.05)
    assert float(model.elbo(x, torch.zeros(1)).kl.detach()) == 0.0


def test_masks_are_shared_by_rows_of_a_joint_draw_only() -> None:
    model = dropped()
    x = torch.ones(2, 1)
    same = model.sample_functions(x, 5)
    assert torch.allclose(same[:, 0], same[:, 1])
    assert not torch.allclose(same[0], same[1])
    apart = model.predict(x, n_samples=5).mixture.mean[..., 0]
    assert not torch.allclose(apart[:, 0], apart[:, 1])


def test_dropout_trains_and_takes_prepared_noise() -> None:
    x, y = data()
    model = dropped(0.1, 50)
    history = vb.fit(model, (x, y), steps=200, lr=1e-2, weight_decay=1e-4, n_samples=2, progress=False)
    assert history.elbo[-1] > history.elbo[0]
    batch = model.prepare(x, y)
    noise = {"2.mask": torch.randn(2, 40, 50)}
    a, b = (model(batch.x, batch.y, n_samples=2, noise=noise).log_likelihood for _ in range(2))
    assert torch.equal(a, b)
    with pytest.raises(ConfigurationError, match="less than 1"):
        Dropout(3, 1.0)
    with pytest.raises(ShapeError, match=r"Dropout.*features=4"):
        vb.Model(
            nn.Sequential(nn.Linear(1, 4), Dropout(3), vb.Linear(4, 1, posterior=vb.Point())), vb.Gaussian()
        ).predict(x)


def test_dropout_of_images_is_given_their_channels() -> None:
    def model(features: int) -> vb.Model:
        head = vb.Linear(4 * 36, 3, posterior=vb.Point())
        return vb.Model(nn.Sequential(nn.Conv2d(1, 4, 3), Dropout(features, 0.5), nn.Flatten(), head), vb.Categorical())

    images = torch.randn(2, 1, 8, 8)
    draws = model(4).predict(images, n_samples=3).mixture.log_probs
    assert not torch.allclose(draws[0], draws[1])
    with pytest.raises(ShapeError, match="features=4"):
        model(6).predict(images)


# -- Laplace --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_laplace_of_a_gaussian_model_is_bayesian_linear_regression() -> None:
    x, y = data()
    model = plain()
    net = model.network[:2]
    features = torch.cat([net(x), torch.ones(len(x), 1)], 1)
    tau, noise = 2.0, 0.1
    precision = features.T @ features / noise + tau * torch.eye(21)
    covariance = torch.linalg.inv(precision)
    mean = covariance @ features.T @ y / noise
    model.network[2].posterior.weight.copy_(mean[:, None])  # the maximum of the posterior
    laplace = LastLayerLaplace(model, (x, y), prior_precision=tau)
    new = torch.linspace(-3, 3, 11)[:, None]
    h = torch.cat([net(new), torch.ones(11, 1)], 1)
    prediction = laplace.predict(new, batch_size=4)
    assert torch.allclose(prediction.mean, h @ mean)
    assert torch.allclose(prediction.epistemic, (h @ covariance * h).sum(1))
    # with Gaussian noise Laplace's evidence is the evidence
    K = features @ features.T / tau + noise * torch.eye(len(x))
    exact = torch.distributions.MultivariateNormal(torch.zeros(len(x)), K).log_prob(y)
    assert laplace.log_evidence == pytest.approx(float(exact), abs=1e-6)


@torch.no_grad()
def test_the_prior_precision_maximises_the_evidence() -> None:
    x, y = data()
    model = plain()
    best = LastLayerLaplace(model, (x, y))
    around = [LastLayerLaplace(model, (x, y), best.prior_precision * f).log_evidence for f in (0.9, 1.1)]
    assert max(around) < best.log_evidence


def test_laplace_of_a_classifier() -> None:
    x, y = data(60)
    labels = torch.bucketize(y, torch.tensor([-0.5, 0.5]))
    model = plain(3, vb.Categorical())
    vb.fit(model, (x, labels), steps=300, lr=1e-2, progress=False)
    laplace = LastLayerLaplace(model, (x, labels), prior_precision=1.0)
    # the curvature is the Hessian of the log likelihood in the weights
    h = torch.cat([model.network[:2](x), torch.ones(60, 1)], 1).detach()

    def loss(w: Tensor) -> Tensor:
        return nn.functional.cross_entropy(h @ w.reshape(3, 21).T, labels, reduction="sum")

    hessian = torch.autograd.functional.hessian(loss, laplace.weight.T.reshape(-1))
    expected = torch.linalg.inv(hessian + torch.eye(63))
    assert torch.allclose(laplace.factor @ laplace.factor.T, expected, atol=1e-8)
    far = laplace.predict(torch.tensor([[30.0]]), n_samples=2000)
    assert float(far.mutual_information) > 0.0
    near = laplace.predict(x, n_samples=500)
    assert vb.metrics.accuracy(near, labels) > 0.8
    assert near.probs.shape == (60, 3)


def test_laplace_against_laplace_torch() -> None:
    try:
        from laplace import Laplace
    except Exception as error:  # it imports torchmetrics and torchvision, whose builds may not fit torch's
        pytest.skip(f"laplace-torch cannot be imported: {type(error).__name__}")
    x, y = data()
    model = plain()
    ours = LastLayerLaplace(model, (x, y), prior_precision=1.5)
    head = nn.Linear(20, 1)
    weight = model.network[2].posterior.weight.detach()
    head.weight.data.copy_(weight[:-1].T)
    head.bias.data.copy_(weight[-1])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y[:, None]), batch_size=40)
    theirs = Laplace(nn.Sequential(*model.network[:2], head), "regression", "last_layer", "full",
                     sigma_noise=math.sqrt(0.1), prior_precision=1.5)  # fmt: skip
    theirs.fit(loader)
    mean, variance = theirs(x)
    prediction = ours.predict(x)
    assert torch.allclose(prediction.mean, mean[:, 0])
    assert torch.allclose(prediction.epistemic, variance[:, 0, 0], rtol=1e-6)


def test_laplace_refuses_other_models() -> None:
    x, y = data()
    with pytest.raises(ConfigurationError, match="ends in"):
        LastLayerLaplace(
            vb.Model(nn.Sequential(vb.Linear(1, 1, posterior=vb.Point()), nn.Tanh()), vb.Gaussian()), (x, y)
        )
    with pytest.raises(ConfigurationError, match="other random layers"):
        LastLayerLaplace(dropped(), (x, y))
    with pytest.raises(ConfigurationError, match="StudentT"):
        LastLayerLaplace(plain(1, vb.StudentT()), (x, y))
    with pytest.raises(ConfigurationError, match="positive"):
        LastLayerLaplace(plain(), (x, y), prior_precision=0.0)


# -- IVON -----------------------------------------------------------------------------------------------------------


def test_ivon_recovers_the_best_diagonal_gaussian() -> None:
    pytest.importorskip("ivon")
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.5 * torch.randn(200)
    model = vb.Model(vb.Linear(3, 1, bias=False, posterior=vb.Point(prior=False)), vb.Gaussian(0.25, learn=False))
    found = fit_ivon(model, (x, y), steps=1200, beta2=0.99)
    precision = x.T @ x / 0.25 + torch.eye(3)
    mean = torch.linalg.solve(precision, x.T @ y / 0.25)
    assert torch.allclose(model.network.posterior.weight[:, 0], mean, atol=0.02)
    # the variance of mean-field VI is one over the diagonal of the precision
    prediction = found.predict(torch.eye(3), n_samples=4000)
    assert torch.allclose(prediction.epistemic, 1 / precision.diagonal(), rtol=0.3)
    assert found.losses[-1] < found.losses[0]


def test_ivon_trains_a_network_with_minibatches_and_noise() -> None:
    pytest.importorskip("ivon")
    x, y = data()
    model = plain(standardize="both")
    found = fit_ivon(model, (10 * x, 5 * y), steps=400, batch_size=20)
    prediction = found.predict(10 * x, n_samples=30, batch_size=16)
    assert prediction.n_draws == 30
    assert float(prediction.epistemic.mean()) > 0
    assert vb.metrics.rmse(prediction, 5 * y) < 0.7 * float(y.std()) * 5
    assert not math.isclose(float(model.likelihood.noise.value.detach()), 0.1)


def test_what_is_no_model_is_refused() -> None:
    x, y = data()
    with pytest.raises(ConfigurationError, match="Model of a plain network, got Linear"):
        fit_ivon(nn.Linear(1, 1), (x, y), steps=1)
    with pytest.raises(ConfigurationError, match="trained models, got str"):
        Ensemble(["member"])
    with pytest.raises(ConfigurationError, match="function that makes a new model, got Model"):
        deep_ensemble(plain(), (x, y), 2, steps=1)


def test_ivon_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data()
    mean_field = vb.Model(vb.Linear(1, 1, posterior=vb.MeanField()), vb.Gaussian())
    with_prior = vb.Model(vb.Linear(1, 1, posterior=vb.Point(prior=True)), vb.Gaussian())
    for model in (mean_field, with_prior):
        with pytest.raises(ConfigurationError, match="its own posterior"):
            fit_ivon(model, (x, y), steps=1)
    with pytest.raises(ConfigurationError, match="positive"):
        fit_ivon(plain(), (x, y), steps=1, lr=0.0)
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "ivon":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigurationError, match="baselines"):
        fit_ivon(plain(), (x, y), steps=1)


def test_laplace_counts_weights_as_rows() -> None:
    x = torch.randn(20, 2)
    y = x[:, 0].sin()
    model = vb.Model(nn.Sequential(nn.Tanh(), vb.Linear(2, 1, posterior=vb.Point())), vb.Gaussian(0.1))
    vb.fit(model, (x, y), steps=20, progress=False)
    weighted = LastLayerLaplace(model, (x, y, torch.full((20,), 2.0)), 1.0)
    twice = LastLayerLaplace(model, (torch.cat([x, x]), torch.cat([y, y])), 1.0)
    torch.testing.assert_close(weighted.predict(x).epistemic, twice.predict(x).epistemic)
    assert weighted.log_evidence == pytest.approx(twice.log_evidence)


@pytest.mark.parametrize("kind", ["laplace", "ivon"])
def test_predictions_depend_on_no_other_row(kind: str) -> None:
    x = torch.randn(30, 2)
    y = x[:, 0].sin()
    last = vb.Linear(6, 1, posterior=vb.Point(prior=kind == "laplace"))
    model = vb.Model(nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), last), vb.Gaussian(0.1))
    if kind == "laplace":
        vb.fit(model, (x, y), steps=20, progress=False)
        posterior: Any = LastLayerLaplace(model, (x, y))
    else:
        pytest.importorskip("ivon")
        posterior = fit_ivon(model, (x, y), steps=20)
    before = model.network[1].running_mean.clone()
    found = []
    for rows in (x, x[:3]):
        torch.manual_seed(0)
        found.append(posterior.predict(rows, n_samples=3).mean[:3])
    torch.testing.assert_close(*found)
    torch.testing.assert_close(model.network[1].running_mean, before)


def test_ivon_leaves_fixed_weights() -> None:
    pytest.importorskip("ivon")
    x = torch.randn(30, 2)
    model = vb.Model(
        nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1), vb.Linear(1, 1, posterior=vb.Point(prior=False))),
        vb.Gaussian(0.1),
    )
    model.network[0].requires_grad_(False)
    before = model.network[0].weight.clone()
    fit_ivon(model, (x, x[:, 0]), steps=10)
    torch.testing.assert_close(model.network[0].weight, before)
    model.requires_grad_(False)
    with pytest.raises(ConfigurationError, match="nothing to train"):
        fit_ivon(model, (x, x[:, 0]), steps=10)


def test_counts_and_data_are_checked() -> None:
    x = torch.linspace(-1, 1, 12)[:, None]
    labels = (x[:, 0] > 0).long()
    model = vb.Model(nn.Sequential(nn.Linear(1, 3), vb.Linear(3, 2, posterior=vb.Point())), vb.Categorical())
    vb.fit(model, (x, labels), steps=2, progress=False)
    laplace = LastLayerLaplace(model, (x, labels))
    for wrong in (0, -1, 2.5):
        with pytest.raises(ConfigurationError, match="n_samples must be at least 1"):
            laplace.predict(x, n_samples=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="batch_size must be at least 1"):
            laplace.predict(x, batch_size=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="n_members must be at least 1"):
            deep_ensemble(lambda: model, (x, labels), wrong, steps=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="positive and finite, got inf"):
        LastLayerLaplace(model, (x, labels), prior_precision=math.inf)
    with pytest.raises(ConfigurationError, match=r"data must be \(x, y\)"):
        LastLayerLaplace(model, x)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="takes a trained Model, got Linear"):
        LastLayerLaplace(nn.Linear(1, 1), (x, labels))  # type: ignore[arg-type]
