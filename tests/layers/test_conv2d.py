"""Conv2d: what it computes, and its posteriors against explicit patches (identity 8)."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.convolution import Geometry, patches
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.layers.weights import with_ones

POSTERIORS = {
    "global": lambda: vb.GlobalInducing(),
    "per output": lambda: vb.GlobalInducing("per_output"),
    "local": lambda: vb.LocalInducing(30),
    "few local": lambda: vb.LocalInducing(5),
    "mean field": lambda: vb.MeanField(),
    "prior": lambda: vb.FromPrior(),
    "point": lambda: vb.Point(),
}
PRIORS = {"neal": vb.NealPrior, "scale": vb.ScalePrior, "spatial": vb.SpatialIWPrior}
CONVOLUTIONS = {
    "same": {"kernel_size": 3, "padding": 1},
    "valid": {"kernel_size": 3},
    "even": {"kernel_size": 2, "padding": 1},
    "strided": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "bias": False},
}


def images(n: int = 12, channels: int = 2, size: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, channels, size, size, generator=generator)
    return x, torch.randint(0, 3, (n,), generator=generator)


def network(posterior: str, prior: str = "neal", **convolution: object) -> nn.Sequential:
    options = {"prior": PRIORS[prior](), "posterior": POSTERIORS[posterior]()}
    return nn.Sequential(
        vb.Conv2d(2, 3, **(convolution or {"kernel_size": 3, "padding": 1}), **options),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        vb.Linear(3, 3, **options),
    )


def build(posterior: str, prior: str = "neal", **convolution: object) -> vb.Model:
    inducing = images()[0][:6] if posterior in ("global", "per output") else None
    return vb.Model(network(posterior, prior, **convolution), vb.Categorical(), inducing=inducing)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_point_weights_give_torchs_convolution(kind: str) -> None:
    options = CONVOLUTIONS[kind]
    plain = nn.Conv2d(2, 3, **options)
    layer = vb.Conv2d(2, 3, posterior=vb.Point(), **options)
    rows = plain.weight.detach().flatten(1).mT
    layer.start = rows if plain.bias is None else torch.cat([rows, plain.bias.detach()[None]])
    layer.bind("layer")
    x, _ = images()
    with Draw():
        found = layer(x)
    torch.testing.assert_close(found, plain(x))


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_global_inducing_is_regression_on_explicit_patches(kind: str, prior: str) -> None:
    """The draw and its log ratio, from the design written out."""
    options = CONVOLUTIONS[kind]
    layer = vb.Conv2d(2, 3, prior=PRIORS[prior](), posterior=vb.GlobalInducing(log_precision=-1.0), **options)
    x, _ = images(6)
    layer.bind("layer", n_inducing=6)
    layer.complete(layer.value_shape(x))
    torch.nn.init.normal_(layer.posterior.precision.raw, std=0.2)
    draw = Draw(n_inducing=6)
    draw.n_rows = 6
    torch.manual_seed(3)
    with draw:
        found = layer(x)
    torch.manual_seed(3)
    again = Draw(n_inducing=6)
    root = layer.prior.root(layer, again)
    eps = again.randn("layer.inducing", layer.fan_in, 3, like=x)
    geometry = layer.geometry
    D = with_ones(patches(x, geometry, circular=geometry.circular).flatten(0, 1), layer.bias)
    D = D @ root.apply(torch.eye(layer.fan_in))  # whitened
    locations = math.prod(geometry.output_size(5, 5))
    weights = layer.posterior.precision.value.repeat_interleave(locations)[:, None]
    y = layer.posterior.pseudo_outputs.permute(0, 2, 3, 1).flatten(0, 2)
    B = torch.eye(layer.fan_in) + D.mT @ (weights * D)
    C = torch.linalg.cholesky(B)
    v = torch.cholesky_solve(D.mT @ (weights * y), C) + torch.linalg.solve_triangular(C.mT, eps, upper=True)
    w = root.apply(v)
    kernel = (w[:-1] if layer.bias else w).mT.reshape(3, 2, *geometry.kernel)
    expected = nn.functional.conv2d(
        x, kernel, w[-1] if layer.bias else None, stride=geometry.stride, padding=geometry.padding
    )
    torch.testing.assert_close(found, expected)
    q = torch.distributions.MultivariateNormal(
        (v - torch.linalg.solve_triangular(C.mT, eps, upper=True)).mT, precision_matrix=B
    )
    ratio = -0.5 * (v.square() + math.log(2 * math.pi)).sum() - q.log_prob(v.mT).sum()
    torch.testing.assert_close(draw.log_ratios["layer"], ratio)


@pytest.mark.parametrize("prior", ["neal", "spatial"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_outputs_with_precisions_of_their_own_have_equations_of_their_own(kind: str, prior: str) -> None:
    layer = vb.Conv2d(2, 3, prior=PRIORS[prior](), posterior=vb.MeanField(), **CONVOLUTIONS[kind])
    layer.bind("layer")
    x, _ = images(6)
    at = layer.site("layer", layer.prior.root(layer, Draw()), x, x)
    assert at.narrow
    y, precision = torch.randn(6, *layer.value_shape(x)), torch.rand(3, 6) + 0.1
    A, b = at.moments(precision, y)
    for p in range(3):
        of_one = at.moments(precision[p], y[:, p : p + 1])
        torch.testing.assert_close((A[p], b[:, p : p + 1]), of_one)


@pytest.mark.parametrize("form", ["diagonal", "per_output"])
@pytest.mark.parametrize("prior", ["neal", "spatial"])
@pytest.mark.parametrize("kind", ["same", "strided"])
def test_fewer_patches_than_weights_give_the_same_posterior(kind: str, prior: str, form: str) -> None:
    """Draws by Matheron's rule have the moments and log ratios of the dense regression on explicit patches."""
    layer = vb.Conv2d(
        8, 2, prior=PRIORS[prior](), posterior=vb.GlobalInducing(form, log_precision=1.0), **CONVOLUTIONS[kind]
    )
    x = torch.randn(2, 8, 3, 4)
    layer.bind("layer", n_inducing=2)
    layer.complete(layer.value_shape(x))
    torch.nn.init.normal_(layer.posterior.precision.raw, std=0.3)
    geometry, K = layer.geometry, layer.fan_in
    places = math.prod(layer.out_shape[1:])
    assert 2 * places < K
    with torch.no_grad():
        root = layer.prior.root(layer, Draw())
        at = layer.site("layer", root, x, x)

    def drawn(noise: Tensor) -> tuple[Tensor, Tensor]:
        draw = Draw(noise={"layer.inducing": noise})
        return layer.posterior.sample(at, draw), draw.log_ratios["layer"]

    noise = torch.randn(K + 2 * places, 2)
    (v, log_ratio), (middle, _) = drawn(noise), drawn(torch.zeros_like(noise))
    slopes = torch.autograd.functional.jacobian(lambda noise: drawn(noise)[0], noise)  # [K, P, noise, P]
    D = with_ones(patches(x, geometry, circular=geometry.circular).flatten(0, 1), layer.bias)
    D = D @ root.apply(torch.eye(K))
    y = layer.posterior.pseudo_outputs.permute(0, 2, 3, 1).flatten(0, 2)
    weights = layer.posterior.precision.value.expand(2, 2).repeat_interleave(places, -1)
    expected = torch.zeros(())
    for p in range(2):
        B = torch.eye(K) + D.mT @ (weights[p][:, None] * D)
        mean = torch.linalg.solve(B, D.mT @ (weights[p] * y[:, p]))
        torch.testing.assert_close(middle[:, p], mean)
        torch.testing.assert_close(slopes[:, p].flatten(1) @ slopes[:, p].flatten(1).mT, torch.linalg.inv(B))
        torch.testing.assert_close(slopes[:, p].flatten(1) @ slopes[:, 1 - p].flatten(1).mT, torch.zeros(K, K))
        q = torch.distributions.MultivariateNormal(mean, precision_matrix=B)
        expected = expected - 0.5 * (v[:, p].square() + math.log(2 * math.pi)).sum() - q.log_prob(v[:, p])
    torch.testing.assert_close(log_ratio, expected)


@pytest.mark.parametrize("kind", ["same", "strided"])
def test_a_precision_per_output_with_equal_values_is_the_shared_one(kind: str) -> None:
    x, y = images()
    found = []
    for form in ("global", "per output"):
        torch.manual_seed(0)
        model = build(form, **CONVOLUTIONS[kind])
        torch.manual_seed(2)
        found.append(model.elbo(x, y, n_samples=3))
    torch.testing.assert_close(found[0].value, found[1].value)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_every_posterior_trains(posterior: str, prior: str) -> None:
    x, y = images()
    model = build(posterior, prior)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    bound = model.elbo(x, y, n_samples=4)
    assert torch.isfinite(bound.value)
    if posterior != "prior":  # which has nothing to train
        vb.fit(model, (x, y), steps=3, batch_size=6, n_samples=2, progress=False)
        for name, p in model.named_parameters():
            assert not torch.equal(p, before[name]), name
    assert model.predict(x, n_samples=3).probs.shape == (12, 3)
    assert model.sample_functions(x, 2).shape == (2, 12, 3)
    again = build(posterior, prior)
    again.load_state_dict(model.state_dict())
    torch.manual_seed(5)
    first = model.elbo(x, y, n_samples=2).value
    torch.manual_seed(5)
    torch.testing.assert_close(again.elbo(x, y, n_samples=2).value, first)


@pytest.mark.parametrize("posterior", ["global", "local", "mean field", "prior"])
def test_draws_under_vmap_equal_draws_one_by_one(posterior: str) -> None:
    x, y = images()
    model = build(posterior, "spatial")
    batch = model.prepare(x, y)
    draw = Draw(n_inducing=0 if model.inducing is None else 6, jitter=model.jitter)
    model._pass(batch.x, draw)
    shapes = {**draw.requests, "likelihood": (model.likelihood.n_latent_noise, 12, 3)}
    noise = {site: torch.randn(3, *shape) for site, shape in shapes.items()}
    together = model(batch.x, batch.y, n_samples=3, noise=noise)
    for s in range(3):
        alone = model(batch.x, batch.y, n_samples=1, noise={site: value[s : s + 1] for site, value in noise.items()})
        torch.testing.assert_close(together.log_likelihood[s], alone.log_likelihood[0])
        torch.testing.assert_close(together.log_ratio[s], alone.log_ratio[0])


def test_replicas_train_as_each_alone() -> None:
    """Identity 17, for a strided and a size-keeping convolution with inducing images."""
    x, y = images()

    def make() -> vb.Model:
        options = {"prior": vb.SpatialIWPrior()}
        layers = [vb.Conv2d(2, 3, 3, padding=1, **options), nn.ReLU(), vb.Conv2d(3, 2, 3, 2, 1, **options)]
        net = nn.Sequential(*layers, vb.BatchNorm(2), nn.Flatten(), vb.Linear(18, 3, **options))
        return vb.Model(net, vb.Categorical(), inducing=x[:4])

    models = [make() for _ in range(2)]
    alone = copy.deepcopy(models)
    draw = Draw(n_inducing=4, jitter=models[0].jitter)
    models[0]._pass(x, draw)

    def noise(step: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(step)
        return {site: torch.randn(2, 2, *shape, generator=generator) for site, shape in draw.requests.items()}

    options = {"steps": 4, "n_samples": 2, "batch_size": 5, "progress": False}
    vb.fit_many(models, [(x, y), (x.flip(0), y.flip(0))], seed=[0, 1], noise=noise, **options)
    for r, (model, data) in enumerate(zip(alone, [(x, y), (x.flip(0), y.flip(0))], strict=True)):
        own = {"noise": lambda step, r=r: {site: value[r] for site, value in noise(step).items()}}
        vb.fit(model, data, seed=r, **own, **options)
        for (name, a), b in zip(models[r].named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-6, msg=name)


def test_noise_of_its_own_in_every_row_has_the_right_joint_moments() -> None:
    """Flipout: for each image alone, mean and covariance over all places and channels are those of drawn weights."""
    layer = vb.Conv2d(2, 2, 3, padding=1, posterior=vb.MeanField())
    layer.bind("layer")
    with torch.no_grad():
        for parameter in layer.posterior.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x, _ = images(2, size=2)
    n = 60_000

    def values(zero: Tensor) -> Tensor:
        draw = Draw(zero=zero)
        draw.n_rows = 2
        with draw:
            return layer(x).flatten()

    with torch.no_grad():
        drawn = torch.func.vmap(values, randomness="different")(torch.zeros(n))
        q = layer.posterior.marginal(layer.site("layer", layer.prior.root(layer, Draw()), x, None))
        D = with_ones(patches(x, Geometry((3, 3), padding=(1, 1))).flatten(0, 1), True).unflatten(0, (2, -1))
        mean = (D @ q.mean).mT.flatten()  # image, channel, place
        covariance = torch.zeros(16, 16)
        for i in range(2):
            for p in range(2):
                at = slice(8 * i + 4 * p, 8 * i + 4 * p + 4)
                covariance[at, at] = (D[i] * q.std[:, p].square()) @ D[i].mT
    scale = covariance.diagonal().sqrt()
    torch.testing.assert_close(drawn.mean(0), mean, atol=5 * scale.max().item() / math.sqrt(n), rtol=0)
    found = torch.cov(drawn.mT)
    torch.testing.assert_close(found, covariance, atol=6 * scale.max().item() ** 2 / math.sqrt(n), rtol=0)


# -- bad input --------------------------------------------------------------------------------------------------


def test_bad_images() -> None:
    model = build("global")
    x, y = images()
    with pytest.raises(ShapeError, match=r"\[2, 5, 5\]"):
        model.elbo(x[:, :1], y)
    with pytest.raises(ShapeError, match=r"\[2, 5, 5\]"):
        model.predict(x[..., :4])
    with pytest.raises(ShapeError, match="expects images of shape"):
        vb.Model(network("global"), vb.Categorical(), inducing=torch.randn(4, 1, 5, 5))
    with pytest.raises(ShapeError, match="expects images of shape"):
        vb.Model(network("global"), vb.Categorical(), inducing=torch.randn(4, 50))
    with pytest.raises(ShapeError, match="does not fit"):
        vb.Model(network("global", kernel_size=7), vb.Categorical(), inducing=x[:3])
    model = build("mean field")
    with pytest.raises(ShapeError, match="expects images of shape"):
        vb.fit(model, (x[:, :1], y), steps=1, progress=False)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, (1, 2, 3), "same"])
def test_bad_sizes(bad: object) -> None:
    with pytest.raises(ConfigurationError, match="kernel_size"):
        vb.Conv2d(2, 3, bad)
    if bad != 0:
        with pytest.raises(ConfigurationError, match="padding"):
            vb.Conv2d(2, 3, 3, padding=bad)
    with pytest.raises(ConfigurationError, match="stride"):
        vb.Conv2d(2, 3, 3, stride=bad)


def test_sizes_may_be_numpy_numbers() -> None:
    two, three = np.int64(2), np.int64(3)
    conv = vb.Conv2d(two, three, (three, two), stride=two, padding=two, posterior=vb.LocalInducing(three))
    plain = vb.Conv2d(2, 3, (3, 2), stride=2, padding=2)
    assert conv.extra_repr() == plain.extra_repr()
    layer = vb.Linear(three, two, posterior=vb.MeanField())
    assert vb.Model(layer, vb.Gaussian()).predict(torch.zeros(4, 3)).mean.shape == (4, 2)


def test_bad_channels_and_options() -> None:
    with pytest.raises(ConfigurationError, match="in_channels"):
        vb.Conv2d(0, 3, 3)
    with pytest.raises(ConfigurationError, match="out_features"):
        vb.Conv2d(2, 0, 3)
    for option in ("groups", "dilation"):  # refused by Python, as arguments that there are not
        with pytest.raises(TypeError, match=option):
            vb.Conv2d(2, 2, 3, **{option: 2})
    with pytest.raises(ConfigurationError, match=r"bias must be True or False, got 2\. .* neither dilation nor groups"):
        vb.Conv2d(2, 2, 3, 1, 1, 2)  # torch's sixth argument is the dilation
    with pytest.raises(ConfigurationError, match="outside a Model"):
        vb.Conv2d(2, 3, 3)(torch.randn(1, 2, 5, 5))


def test_given_patches_are_in_the_units_of_their_channels() -> None:
    images = 3.0 + 2.0 * torch.randn(6, 2, 4, 4) * torch.tensor([1.0, 5.0])[:, None, None]
    patches = images[:, :, :3, :3].flatten(1)
    first = vb.Conv2d(2, 1, 3, posterior=vb.LocalInducing(6, inputs=patches))
    model = vb.Model(nn.Sequential(first, nn.Flatten()), vb.Gaussian(), standardize="inputs")
    model.initialize(images, torch.randn(6, 4))
    torch.testing.assert_close(first.posterior.inputs, model.units.inputs(images)[:, :, :3, :3].flatten(1))
