import numpy as np
import pytest
import torch
from torch.func import vmap

import vibayes as vb
from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.means import ConstantMean, IdentityMean, LinearMean, Mean, ZeroMean
from vibayes.parameters import Real

MEANS = {  # name -> (constructor, in_features, out_features)
    "zero": (ZeroMean, 3, 4),
    "constant": (lambda: ConstantMean(0.7), 3, 4),
    "constant_per_output": (lambda: ConstantMean(torch.tensor([1.0, 2.0]), out_features=2), 3, 2),
    "identity": (IdentityMean, 3, 3),
    "linear_down": (lambda: LinearMean(3, 2), 3, 2),
    "linear_up": (lambda: LinearMean(3, 5, learn=True), 3, 5),
}


@pytest.fixture(params=MEANS)
def case(request: pytest.FixtureRequest) -> tuple[Mean, int, int]:
    make, n_in, n_out = MEANS[request.param]
    return make(), n_in, n_out


def test_broadcasts_checks_and_round_trips(case: tuple[Mean, int, int]) -> None:
    mean, n_in, n_out = case
    mean.check(n_in, n_out)
    x = torch.randn(6, n_in)
    value = mean(x)
    assert value.dtype == x.dtype
    assert value.shape in ((6, n_out), (6, 1))
    assert mean(x[:0]).shape[0] == 0
    mean.load_state_dict(mean.state_dict())
    mean.initialize(x)
    assert mean(x).shape == value.shape


def test_vmap_equals_loop(case: tuple[Mean, int, int]) -> None:
    mean, n_in, _ = case
    x = torch.randn(4, 6, n_in)
    torch.testing.assert_close(vmap(mean)(x), torch.stack([mean(a) for a in x]))


def test_zero() -> None:
    assert torch.equal(ZeroMean()(torch.ones(3, 2)), torch.zeros(3, 1))
    assert not list(ZeroMean().parameters())


def test_constant() -> None:
    mean = ConstantMean(0.7)
    assert torch.equal(mean(torch.ones(3, 2)), torch.full((3, 1), 0.7))
    mean(torch.ones(3, 2)).sum().backward()
    assert mean.value.raw.grad is not None
    assert mean.value.raw.grad.sum() == 3.0
    assert not ConstantMean(0.7, learn=False).value.raw.requires_grad
    per_output = ConstantMean(torch.tensor([1.0, 2.0]), out_features=2)
    assert per_output(torch.ones(3, 5)).tolist() == [[1.0, 2.0]] * 3
    assert ConstantMean(0.5, out_features=2).value.raw.shape == (2,)
    shared = Real(0.3)
    assert ConstantMean(shared).value is shared
    per_output.check(5, 2)
    with pytest.raises(ConfigurationError, match="2 constants for 3 outputs"):
        per_output.check(5, 3)
    with pytest.raises(ShapeError, match="out_features=3"):
        ConstantMean(torch.ones(2), out_features=3)
    with pytest.raises(ConfigurationError, match="out_features"):
        ConstantMean(out_features=0)


def test_identity() -> None:
    x = torch.randn(3, 2)
    assert torch.equal(IdentityMean()(x), x)
    IdentityMean().check(2, 2)
    with pytest.raises(ConfigurationError, match=r"Use LinearMean\(3, 2\)"):
        IdentityMean().check(3, 2)


def test_linear_starts_orthonormal() -> None:
    down, up = LinearMean(4, 2).weight.value, LinearMean(2, 4).weight.value
    assert torch.equal(down.mT @ down, torch.eye(2))
    assert torch.equal(up @ up.mT, torch.eye(2))
    assert not LinearMean(4, 2).weight.raw.requires_grad
    assert LinearMean(4, 2, learn=True).weight.raw.requires_grad


@pytest.mark.parametrize("seed", range(4))  # eigenvectors come in either sign
def test_linear_finds_principal_directions(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(50, 4) * torch.tensor([0.1, 3.0, 1.0, 0.2]) @ torch.linalg.qr(torch.randn(4, 4))[0] + 7.0
    mean = LinearMean(4, 2)
    mean.initialize(x)
    centred = x.numpy() - x.numpy().mean(0)
    expected = np.linalg.svd(centred)[2][:2].T
    W = mean.weight.value.numpy()
    np.testing.assert_allclose(np.abs(W.T @ expected), np.eye(2), atol=1e-10)
    np.testing.assert_allclose(W.T @ W, np.eye(2), atol=1e-12)
    assert (W[np.abs(W).argmax(0), [0, 1]] > 0).all()  # the sign is fixed
    assert not mean.weight.raw.requires_grad
    torch.testing.assert_close(mean(x), x @ mean.weight.value)


def test_linear_keeps_the_identity_when_nothing_is_lost() -> None:
    mean = LinearMean(2, 3)
    mean.initialize(torch.randn(5, 2))
    assert torch.equal(mean.weight.value, torch.eye(2, 3))


def test_linear_with_few_rows() -> None:
    mean = LinearMean(4, 3)
    mean.initialize(torch.randn(1, 4))
    W = mean.weight.value
    torch.testing.assert_close(W.mT @ W, torch.eye(3))


def test_linear_refuses() -> None:
    mean = LinearMean(3, 2)
    with pytest.raises(ConfigurationError, match=r"Use LinearMean\(4, 2\)"):
        mean.check(4, 2)
    with pytest.raises(ShapeError, match=r"\[N, 3\]"):
        mean.initialize(torch.zeros(4, 2))
    with pytest.raises(DataError, match="NaN"):
        mean.initialize(torch.full((4, 3), torch.nan))
    with pytest.raises(ConfigurationError, match="in_features"):
        LinearMean(0, 2)


def test_a_given_projection_stays() -> None:
    weight = torch.tensor([[0.0], [0.0], [1.0]])
    mean = LinearMean(3, 1, weight=weight)
    mean.initialize(torch.randn(20, 3))
    torch.testing.assert_close(mean.weight.value, weight)
    with pytest.raises(ShapeError, match=r"weight must have shape \[3, 1\], got \[1, 3\]"):
        LinearMean(3, 1, weight=weight.T)


class Own(Mean):
    """A mean function of one's own, which gives its trend in some shape."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        trend = 2.0 * rows[:, 0]
        return {"rows": trend, "column": trend[:, None], "three": trend[:, None].expand(-1, 3)}[self.shape]


@pytest.mark.parametrize("shape", ["rows", "three"])
def test_means_of_another_shape_are_refused_where_they_would_broadcast(shape: str) -> None:
    x, y = torch.randn(6, 2), torch.randn(6)

    def layer(shape: str, outputs: int = 1) -> vb.GP:
        posterior = vb.LocalInducing(3)
        return vb.GP(outputs, kernel=vb.SquaredExponential(2), mean=Own(shape), posterior=posterior)

    def models(shape: str) -> list[vb.ExactGP | vb.SGPR | vb.Model]:
        kernel, noise = vb.SquaredExponential(2), vb.Gaussian(0.1)
        deep = torch.nn.Sequential(layer(shape, 6), vb.GP(1, kernel=vb.SquaredExponential(6), posterior=vb.FromPrior()))
        return [
            vb.ExactGP(kernel, noise, mean=Own(shape)),
            vb.SGPR(kernel, noise, x[:3], mean=Own(shape)),
            vb.Model(layer(shape), noise),
            vb.Model(deep, noise),
        ]

    for wrong, right in zip(models(shape), models("column"), strict=True):
        with pytest.raises(ShapeError, match=r"Own must give \[6, (1|6)\].* for 6 rows and (1|6) output\(s\), got \["):
            wrong.elbo(x, y)
        assert torch.isfinite(right.elbo(x, y).value)
