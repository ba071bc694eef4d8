"""Ordinary networks made Bayesian."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb


class Residual(nn.Module):
    """A block as torchvision's ResNets have it."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + self.downsample(x))


def small_resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        Residual(3, 4, stride=2),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def multilayer() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def test_a_network_keeps_its_structure_and_is_not_changed() -> None:
    plain = multilayer()
    network = vb.bayesianize(plain, prior=vb.StandardPrior(), posterior=vb.MeanField(), last=vb.GlobalInducing())
    assert [type(m) for m in plain] == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.Tanh, nn.Linear]
    assert [type(m) for m in network] == [vb.Linear, nn.ReLU, nn.Dropout, vb.Linear, nn.Tanh, vb.Linear]
    assert [type(m.posterior).__name__ for m in network if isinstance(m, vb.Linear)] == [
        "MeanField",
        "MeanField",
        "GlobalInducing",
    ]
    assert all(isinstance(m.prior, vb.StandardPrior) for m in network if isinstance(m, vb.Linear))
    x = torch.randn(20, 3)
    model = vb.Model(network, vb.Gaussian(0.1), inducing=x[:6])
    history = vb.fit(model, (x, x[:, :2]), steps=5, progress=False)
    assert len(history.elbo) > 0


def test_a_point_posterior_at_pretrained_weights_is_the_plain_network() -> None:
    plain = multilayer().eval()
    model = vb.Model(vb.bayesianize(plain, posterior=vb.Point(), pretrained=True), vb.Gaussian(0.1)).eval()
    x = torch.randn(7, 3)
    torch.testing.assert_close(model.predict(x).mean, plain(x).detach())
    narrow = vb.bayesianize(plain, posterior=vb.MeanField(variance=1e-14), pretrained=True)
    torch.testing.assert_close(
        vb.Model(narrow, vb.Gaussian(0.1)).eval().predict(x).mean, plain(x).detach(), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("posterior", [vb.Point(), vb.MeanField()])
def test_pretrained_weights_that_are_no_numbers_are_refused(posterior: vb.posteriors.Posterior) -> None:
    plain = multilayer()
    plain[3].weight.data[0, 0] = torch.nan
    network = vb.bayesianize(plain, posterior=posterior, pretrained=True)
    with pytest.raises(vb.ConfigurationError, match=r"layer '3' is to start from have NaN.*pretrained=True"):
        vb.Model(network, vb.Gaussian(0.1))


def test_a_pretrained_convolution() -> None:
    plain = nn.Sequential(nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=1), nn.Flatten(), nn.LazyLinear(2)).eval()
    images = torch.randn(5, 2, 6, 6)
    expected = plain(images).detach()
    model = vb.Model(vb.bayesianize(plain, posterior=vb.Point(), pretrained=True), vb.Gaussian(0.1))
    torch.testing.assert_close(model.predict(images).mean, expected)


@pytest.mark.parametrize("posterior", [vb.GlobalInducing(), vb.MeanField()])
def test_a_resnet_trains(posterior: vb.posteriors.Posterior) -> None:
    network = vb.bayesianize(small_resnet(), posterior=posterior, last=vb.GlobalInducing())
    assert not any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    assert sum(isinstance(m, vb.BatchNorm) for m in network.modules()) == 4
    assert sum(isinstance(m, vb.Conv2d) for m in network.modules()) == 4
    images, labels = torch.randn(12, 2, 6, 6), torch.arange(12) % 3
    model = vb.Model(network, vb.Categorical(), inducing=images[:5])
    count = sum(p.numel() for p in model.parameters())
    history = vb.fit(model, (images, labels), steps=4, n_samples=2, log_every=2, progress=False)
    assert all(torch.isfinite(torch.as_tensor(history.elbo)))
    assert sum(p.numel() for p in model.parameters()) == count
    assert model.predict(images[:4], n_samples=3).probs.shape == (4, 3)


def test_pretrained_batch_norm_keeps_its_scale() -> None:
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    with torch.no_grad():
        plain[1].weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    posteriors = {"posterior": vb.MeanField(), "last": vb.GlobalInducing()}
    assert vb.bayesianize(plain, pretrained=True, **posteriors)[1].weight.tolist() == [1.0, 2.0, 3.0]
    assert vb.bayesianize(plain, **posteriors)[1].weight.tolist() == [1.0, 1.0, 1.0]
    elsewhere = vb.bayesianize(plain.to("meta"))[1]
    assert (elsewhere.weight.device.type, elsewhere.bias.device.type) == ("meta", "meta")


@pytest.mark.parametrize("posterior", [vb.GlobalInducing(), vb.LocalInducing(4), vb.FromPrior()])
def test_pretrained_weights_that_no_layer_takes_are_a_warning(posterior: vb.posteriors.Posterior) -> None:
    with pytest.warns(UserWarning, match=r"weights unused.*got \w+\)\. Use MeanField\(\) or Point\(\)"):
        vb.bayesianize(multilayer(), posterior=posterior, pretrained=True)
    vb.bayesianize(multilayer(), posterior=posterior, last=vb.Point(), pretrained=True)  # no warning
    vb.bayesianize(multilayer(), posterior=posterior)


def test_what_is_skipped() -> None:
    plain = small_resnet()
    network = vb.bayesianize(plain, skip=["0", "1", "3.downsample"])
    assert type(network[0]) is nn.Conv2d
    assert type(network[1]) is nn.BatchNorm2d
    assert type(network[3].downsample[0]) is nn.Conv2d
    assert type(network[3].conv1) is vb.Conv2d
    assert type(vb.bayesianize(plain, skip="3.conv*")[3].conv2) is nn.Conv2d
    assert isinstance(vb.bayesianize(nn.Linear(2, 1)), vb.Linear)
    assert type(vb.bayesianize(nn.Sequential(nn.Linear(2, 1)), skip=None)[0]) is vb.Linear


def test_what_cannot_be_converted_is_refused() -> None:
    with pytest.raises(vb.ConfigurationError, match=r"no nn\.Linear or nn\.Conv2d"):
        vb.bayesianize(nn.Sequential(nn.ReLU()))
    with pytest.raises(vb.ConfigurationError, match="other than those in skip"):
        vb.bayesianize(nn.Sequential(nn.Linear(2, 1)), skip="0")
    with pytest.raises(vb.ConfigurationError, match="skip='1' names no module"):
        vb.bayesianize(nn.Sequential(nn.Linear(2, 1)), skip="1")
    with pytest.raises(vb.ConfigurationError, match="groups=2"):
        vb.bayesianize(nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)))
    with pytest.raises(vb.ConfigurationError, match="the network is a convolution with groups=2"):
        vb.bayesianize(nn.Conv2d(2, 2, 3, groups=2))
    with pytest.raises(vb.ConfigurationError, match="dilation"):
        vb.bayesianize(nn.Sequential(nn.Conv2d(2, 2, 3, dilation=2)))
    with pytest.raises(vb.ConfigurationError, match="'circular'"):
        vb.bayesianize(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")))
    with pytest.raises(vb.ConfigurationError, match="pads unevenly"):
        vb.bayesianize(nn.Sequential(nn.Conv2d(2, 2, 2, padding="same")))
    with pytest.raises(vb.ConfigurationError, match="something added"):
        vb.bayesianize(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 1))))
    with pytest.raises(vb.ConfigurationError, match="depend on the draw"):
        vb.bayesianize(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), posterior=vb.MeanField())
    with pytest.raises(vb.ConfigurationError, match="takes a torch module"):
        vb.bayesianize("network")


@pytest.mark.parametrize("register", ["forward_pre", "forward", "full_backward_pre", "full_backward"])
@pytest.mark.parametrize("place", ["0", "1"])
def test_hooks_of_what_is_replaced_are_refused(register: str, place: str) -> None:
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    getattr(plain[2], f"register_{register}_hook")(lambda *_: None)  # stays, and so does its hook
    vb.bayesianize(plain)
    getattr(plain[int(place)], f"register_{register}_hook")(lambda *_: None)
    with pytest.raises(vb.ConfigurationError, match=f"'{place}' is a .* with something added .*hooks"):
        vb.bayesianize(plain)
    assert type(vb.bayesianize(plain, skip=place)[int(place)]) is type(plain[int(place)])


def test_a_batch_norm_is_replaced_after_training_in_a_model_and_not_where_it_does_more() -> None:
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    vb.Model(nn.Sequential(plain, vb.Linear(3, 1, posterior=vb.Point())), vb.Gaussian(0.1))  # gives it a hook
    assert type(vb.bayesianize(plain)[1]) is vb.BatchNorm

    class Activated(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    with pytest.raises(vb.ConfigurationError, match="'1' is a Activated with something added"):
        vb.bayesianize(nn.Sequential(nn.Linear(2, 3), Activated(3)))


@pytest.mark.parametrize("layer", [nn.LazyLinear(2), nn.LazyConv2d(2, 3), nn.LazyBatchNorm1d()])
def test_lazy_modules_need_a_batch_first(layer: nn.Module) -> None:
    plain = nn.Sequential(nn.Linear(2, 3), layer)
    with pytest.raises(vb.ConfigurationError, match=r"'1' is a Lazy.*Run one batch through the network first"):
        vb.bayesianize(plain)


@pytest.mark.parametrize("inside", [nn.Linear(2, 1), nn.Conv2d(1, 1, 3)])
def test_a_network_whose_weights_would_be_rounded_is_refused(inside: nn.Module) -> None:
    assert type(vb.bayesianize(nn.Sequential(inside).float())[0]) in (vb.Linear, vb.Conv2d)  # float64 takes all of them
    torch.set_default_dtype(torch.float32)
    plain = nn.Sequential(inside, nn.BatchNorm1d(1)).double()
    with pytest.raises(vb.ConfigurationError, match=r"float64.*default.*float32.*network\.to\(torch\.float32\)"):
        vb.bayesianize(plain, posterior=vb.Point(), pretrained=True)
    assert type(vb.bayesianize(plain.float())[0]) in (vb.Linear, vb.Conv2d)


@pytest.mark.parametrize("option", ["prior", "posterior", "last"])
def test_a_class_in_place_of_an_object(option: str) -> None:
    given: Any = vb.NealPrior if option == "prior" else vb.MeanField
    with pytest.raises(vb.ConfigurationError, match=f"{option} must be .*, got the class {given.__name__}; call it"):
        vb.bayesianize(multilayer(), **{option: given})
    with pytest.raises(vb.ConfigurationError, match=rf"{option} must be .*\(\), got str\."):
        vb.bayesianize(multilayer(), **{option: "mean field"})


@pytest.mark.parametrize("skip", [0, [0], ["0", None], nn.Linear(2, 1), multilayer()])
def test_what_skip_must_be(skip: Any) -> None:
    with pytest.raises(vb.ConfigurationError, match="skip must be names of modules, such as"):
        vb.bayesianize(multilayer(), skip=skip)


@pytest.mark.parametrize(
    ("make", "attention"),
    [
        (lambda: nn.TransformerEncoderLayer(4, 2, 8), ["self_attn"]),
        (lambda: nn.TransformerDecoderLayer(4, 2, 8), ["self_attn", "multihead_attn"]),
    ],
)
def test_layers_of_transformers_are_refused(make: Callable[[], nn.Module], attention: list[str]) -> None:
    kind = type(make()).__name__
    with pytest.raises(vb.ConfigurationError, match=r"'self_attn\.out_proj' sits in 'self_attn', a MultiheadAttention"):
        vb.bayesianize(make())
    with pytest.raises(vb.ConfigurationError, match=f"'linear1' sits in the network, a {kind}.*into skip"):
        vb.bayesianize(make(), skip=attention)
    plain = nn.Sequential(nn.Linear(3, 4), make(), nn.Linear(4, 1))
    with pytest.raises(vb.ConfigurationError, match=f"'1.linear1' sits in '1', a {kind}"):
        vb.bayesianize(plain, skip=[f"1.{name}" for name in attention])
    network = vb.bayesianize(plain, skip="1")
    assert [type(m) for m in network] == [vb.Linear, type(plain[1]), vb.Linear]


def test_shared_layers_are_refused() -> None:
    layer = nn.Linear(3, 3)
    with pytest.raises(vb.ConfigurationError, match="'1' and '0' share one weight"):
        vb.bayesianize(nn.Sequential(layer, layer))
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(vb.ConfigurationError, match="share one weight"):
        vb.bayesianize(tied)
    with pytest.raises(vb.ConfigurationError, match="share one weight"):  # also where one of them stays
        vb.bayesianize(tied, skip="0")
    three = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(3, 1))
    for skip in ("0", "2"):
        with pytest.raises(vb.ConfigurationError, match="'2' and '0' share one weight"):
            vb.bayesianize(three, skip=skip)
    network = vb.bayesianize(three, skip=["0", "2"])
    assert network[0] is network[2]
    assert type(network[0]) is nn.Linear
    norm = nn.BatchNorm1d(3)
    with pytest.raises(vb.ConfigurationError, match="'2' and '1' share one weight"):
        vb.bayesianize(nn.Sequential(nn.Linear(3, 3), norm, norm))

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    with pytest.raises(vb.ConfigurationError, match=r"Layer 'layer' was used twice.*its own layer"):
        vb.Model(vb.bayesianize(Twice()), vb.Gaussian(), inducing=torch.randn(4, 3))


def test_batch_norm_of_torch_behind_a_bayesian_layer() -> None:
    network = nn.Sequential(
        vb.Linear(2, 3, posterior=vb.MeanField()), nn.BatchNorm1d(3), vb.Linear(3, 1, posterior=vb.MeanField())
    )
    model = vb.Model(network, vb.Gaussian(0.1))
    x = torch.randn(6, 2)
    with pytest.raises(
        vb.ConfigurationError, match=r"BatchNorm1d.* stands behind a Bayesian layer.*vibayes\.BatchNorm"
    ):
        model.elbo(x, x[:, 0])
    assert model.eval().predict(x, n_samples=3).mean.shape == (6,)


class LanguageModel(nn.Module):
    """A network whose last weights are those of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embedding(x.long()[:, 0]))
        return out


def test_weights_shared_with_what_is_not_replaced_are_refused() -> None:
    with pytest.raises(vb.ConfigurationError, match="'head' and 'embedding' share one weight"):
        vb.bayesianize(LanguageModel())
    biases = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    biases[1].bias = biases[0].bias
    with pytest.raises(vb.ConfigurationError, match="'1' and '0' share one bias"):
        vb.bayesianize(biases)
    own = nn.Sequential(nn.Linear(3, 3))
    own.register_parameter("matrix", own[0].weight)
    with pytest.raises(vb.ConfigurationError, match="'0' and the network share one weight"):
        vb.bayesianize(own)
    apart = nn.Sequential(LanguageModel(), nn.Linear(5, 2))
    network = vb.bayesianize(apart, skip="0")  # what stays may share as it likes
    assert network[0].head.weight is network[0].embedding.weight
    assert type(network[1]) is vb.Linear


@pytest.mark.parametrize("training", [True, False])
def test_a_bayesian_last_layer_leaves_normalisation_in_front_of_it(training: bool) -> None:
    """As on a pretrained network: all that stands in front of the last layer is the same in every draw."""
    plain = nn.Sequential(Residual(3, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).train(training)
    network = vb.bayesianize(plain, posterior=vb.Point(), last=vb.MeanField(), pretrained=True)
    assert sum(type(m) is nn.BatchNorm2d for m in network.modules()) == 3
    x, y = torch.randn(12, 3, 8, 8), torch.arange(12) % 3
    model = vb.Model(network, vb.Categorical()).train()
    vb.fit(model, (x, y), steps=3, n_samples=2, progress=False)
    assert model.predict(x, n_samples=5).probs.shape == (12, 3)
    assert int(network[0].bn1.num_batches_tracked) == 3


def test_normalisation_behind_a_bayesian_last_layer_is_refused_by_the_model() -> None:
    plain = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3))
    network = vb.bayesianize(plain, posterior=vb.Point(), last=vb.MeanField())
    model = vb.Model(network, vb.Categorical())
    with pytest.raises(vb.ConfigurationError, match="BatchNorm1d '3' stands behind a Bayesian layer"):
        vb.fit(model, (torch.randn(6, 2), torch.arange(6) % 3), steps=2, progress=False)


class ByName(nn.Module):
    """A network that calls its layers as torch names their argument."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.last = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(input=self.norm(input=self.conv(input=x)).relu().flatten(1))


def test_layers_may_be_called_by_the_name_of_their_argument() -> None:
    x, y = torch.randn(12, 2, 4, 4), torch.randn(12)
    model = vb.Model(vb.bayesianize(ByName()), vb.Gaussian(0.1), inducing=x[:5])
    vb.fit(model, (x, y), steps=2, progress=False)
    nearest = y[:5, None]
    assert (model.layers["last"].posterior.pseudo_outputs - nearest).abs().max() < 0.05  # where they started
    inside = model.layer_functions(x, 3, grids={"last": torch.randn(4, 12)})
    assert inside["conv"].draws.shape == (3, 12, 3, 2, 2)
    assert inside["last"].draws.shape == (3, 4, 1)
