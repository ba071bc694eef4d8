"""Chosen inducing inputs: the right rows, the same every time, and none of them NaN."""

import math

import pytest
import torch
from torch import Tensor, nn

from vibayes import inducing
from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.inducing import METHODS, choose_inducing


class SquaredExponential(nn.Module):
    """A kernel with a parameter, so that gradients would be noticed, and optional white noise."""

    def __init__(self, lengthscale: float = 1.0, noise: float = 0.0) -> None:
        super().__init__()
        self.lengthscale = nn.Parameter(torch.tensor(lengthscale))
        self.noise = noise

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return (-0.5 * (x[:, None] - z).square().sum(-1) / self.lengthscale**2).exp()

    def diag(self, x: Tensor) -> Tensor:
        return torch.ones(len(x), dtype=x.dtype) * (1.0 + self.noise) * self.lengthscale / self.lengthscale


def choose(x: Tensor, n: int, method: str, seed: int = 0) -> Tensor:
    return choose_inducing(x, n, method, SquaredExponential() if method == "greedy" else None, seed)


def indices(z: Tensor, x: Tensor) -> list[int]:
    """Which row of x each row of z is."""
    same = (z[:, None] == x).flatten(2).all(-1)
    assert same.any(1).all(), "not a row of x"
    return same.int().argmax(1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
class TestEveryMethod:
    @pytest.mark.parametrize("n", [1, 7, 30, 45])
    def test_shape_dtype_finite_and_different(self, method, dtype, n):
        x = torch.randn(30, 3, dtype=dtype)
        z = choose(x, n, method)
        assert z.shape == (n, 3)
        assert z.dtype == dtype
        assert torch.isfinite(z).all()
        assert len(z.unique(dim=0)) == n

    def test_same_seed_same_points_and_global_seed_untouched(self, method, dtype):
        x = torch.randn(50, 2, dtype=dtype)
        before = torch.get_rng_state()
        first = choose(x, 60, method, seed=3)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(99)
        assert torch.equal(first, choose(x, 60, method, seed=3))
        assert torch.equal(choose(x, 9, method, seed=3), choose(x, 9, method, seed=3))
        assert not torch.equal(first, choose(x, 60, method, seed=4))

    def test_more_points_than_rows(self, method, dtype):
        x = torch.tensor([3.0, -1.0], dtype=dtype) + torch.tensor([2.0, 0.0], dtype=dtype) * torch.randn(
            40, 2, dtype=dtype
        )
        z = choose(x, 4040, method)
        assert torch.equal(z[:40], x)
        extra = z[40:]
        assert torch.allclose(extra.mean(0), x.mean(0), atol=0.15)
        assert extra[:, 0].std().item() == pytest.approx(x[:, 0].std(correction=0).item(), rel=0.05)
        assert torch.allclose(extra[:, 1], x[:1, 1])  # a constant column stays constant

    def test_one_row_many_points(self, method, dtype):
        z = choose(torch.ones(1, 2, dtype=dtype), 500, method)
        assert len(z.unique(dim=0)) == 500
        assert z.std().item() == pytest.approx(1.0, rel=0.2)

    def test_duplicated_rows(self, method, dtype):
        distinct = torch.randn(5, 2, dtype=dtype)
        x = distinct.repeat(20, 1)
        for n in (3, 5, 8):
            z = choose(x, n, method)
            assert z.shape == (n, 2)
            assert torch.isfinite(z).all()

    def test_result_is_a_copy_without_gradient(self, method, dtype):
        x = torch.randn(10, 2, dtype=dtype, requires_grad=True)
        for n in (3, 10, 12):
            z = choose(x, n, method)
            assert not z.requires_grad
            z += 100.0
        assert x.max() < 50


def test_first_and_random_are_rows():
    x = torch.randn(100, 2)
    assert torch.equal(choose_inducing(x, 7, "first"), x[:7])
    chosen = indices(choose_inducing(x, 60, "random"), x)
    assert len(set(chosen)) == 60
    assert chosen != sorted(chosen)


@pytest.mark.parametrize("method", ["first", "random", "kmeans"])
@pytest.mark.parametrize("n", [4, 30])
def test_images(method, n):
    x = torch.rand(20, 3, 8, 8)
    assert choose_inducing(x, n, method).shape == (n, 3, 8, 8)
    if n == 4 and method != "kmeans":
        assert len(set(indices(choose_inducing(x, n, method), x))) == 4


def test_integer_images_become_floating():
    x = torch.randint(0, 256, (20, 1, 4, 4), dtype=torch.uint8)
    z = choose_inducing(x, 5, "first")
    assert z.dtype == torch.get_default_dtype()
    assert torch.equal(z, x[:5].double())


# ---- k-means


def test_kmeans_finds_separated_clusters():
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]]) + 1e4
    labels = torch.arange(200) % 4
    x = centres[labels] + 0.3 * torch.randn(200, 2)
    expected = torch.stack([x[labels == k].mean(0) for k in range(4)])
    z = choose_inducing(x, 4)
    nearest = torch.cdist(expected, z).min(1)
    assert sorted(nearest.indices.tolist()) == [0, 1, 2, 3]
    assert nearest.values.max() < 1e-6


def inertia(x: Tensor, z: Tensor) -> float:
    return float(torch.cdist(x, z).min(1).values.square().sum())


def test_kmeans_is_a_fixed_point_and_as_good_as_scikit_learns():
    from sklearn.cluster import KMeans

    x = torch.rand(400, 2)
    z = choose_inducing(x, 10)
    nearest = torch.cdist(x, z).argmin(1)
    assert torch.allclose(z, torch.stack([x[nearest == k].mean(0) for k in range(10)]), atol=1e-10)
    theirs = KMeans(10, n_init=1, random_state=0).fit(x.numpy()).inertia_
    assert inertia(x, z) < 1.15 * theirs
    assert inertia(x, z) < 0.7 * inertia(x, x[:10])


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_kmeans_at_extreme_scales(scale):
    x = torch.rand(100, 2, dtype=torch.float32)
    z = choose_inducing(x * scale, 5)
    assert torch.isfinite(z).all()
    assert len(z.unique(dim=0)) == 5
    assert inertia(x, z / scale) < 1.5 * inertia(x, choose_inducing(x, 5))


def test_kmeans_on_few_distinct_rows_returns_all_of_them():
    distinct = torch.randn(5, 2)
    z = choose_inducing(distinct.repeat(20, 1), 8)
    assert sorted(indices(z[:5], distinct)) == [0, 1, 2, 3, 4]
    assert len(z.unique(dim=0)) == 8
    nearly = torch.cat([distinct.repeat(20, 1), distinct + 1e-9])
    assert len(choose_inducing(nearly, 10).unique(dim=0)) == 10


def test_kmeans_fills_empty_clusters():
    rows = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    far = torch.tensor([[0.05], [1e3], [2e3]])  # two centres that no row is nearest to
    z = inducing._lloyd(rows, far)
    assert torch.isfinite(z).all()
    assert (torch.cdist(rows, z).argmin(1).bincount(minlength=3) > 0).all()


def test_kmeans_blocks_do_not_change_the_result(monkeypatch):
    x = torch.randn(300, 3)
    whole = choose_inducing(x, 20)
    monkeypatch.setattr(inducing, "_BLOCK", 20 * 7)
    assert torch.allclose(choose_inducing(x, 20), whole, atol=1e-12)


def test_kmeans_looks_at_a_subset_of_many_rows(monkeypatch):
    monkeypatch.setattr(inducing, "_MAX_ROWS", 50)
    seen = []
    lloyd = inducing._lloyd
    monkeypatch.setattr(inducing, "_lloyd", lambda rows, centres: (seen.append(len(rows)), lloyd(rows, centres))[1])
    choose_inducing(torch.randn(1000, 2), 3)
    choose_inducing(torch.randn(1000, 2), 20)
    assert seen == [50, 200]


# ---- greedy


@pytest.mark.parametrize("seed", range(4))  # with wrong variances, too, the first few rows are often the right ones
def test_greedy_takes_the_largest_conditional_variance(seed):
    torch.manual_seed(seed)
    x, kernel = torch.randn(40, 2), SquaredExponential(0.7)
    chosen = indices(choose_inducing(x, 14, "greedy", kernel), x)
    with torch.no_grad():
        K = kernel(x, x)
        for m in range(1, 14):
            p = chosen[:m]
            variance = K.diagonal() - (K[:, p] @ torch.linalg.solve(K[p][:, p], K[p])).diagonal()
            assert variance[chosen[m]].item() == pytest.approx(variance.max().item(), abs=1e-10)


def test_greedy_beats_first_rows_in_trace():
    x, kernel = torch.randn(200, 1), SquaredExponential(0.3)

    def residual(z: Tensor) -> float:
        with torch.no_grad():
            Kzz = kernel(z, z) + 1e-10 * torch.eye(len(z))
            return float(200 - (kernel(x, z) @ torch.linalg.solve(Kzz, kernel(z, x))).trace())

    assert residual(choose_inducing(x, 30, "greedy", kernel)) < 0.2 * residual(x[:30])


def test_greedy_with_nothing_left_takes_other_rows():
    asked = []

    class Linear:
        def __call__(self, x: Tensor, z: Tensor) -> Tensor:
            asked.append(torch.is_grad_enabled())
            return x @ z.T

        def diag(self, x: Tensor) -> Tensor:
            return x.square().sum(-1)

    x = torch.randn(50, 3)  # rank 3
    chosen = indices(choose_inducing(x, 10, "greedy", Linear()), x)
    assert asked == [False] * 4  # three pivots and the look that found nothing more, none with gradients
    assert len(set(chosen)) == 10
    assert torch.linalg.matrix_rank(x[chosen[:3]]) == 3
    other = indices(choose_inducing(x, 10, "greedy", Linear(), seed=1), x)
    assert other[:3] == chosen[:3]
    assert other[3:] != chosen[3:]
    assert len(set(indices(choose_inducing(x[:12], 11, "greedy", Linear()), x))) == 11


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_greedy_does_not_repeat_duplicated_rows(noise):
    distinct = torch.randn(6, 2)
    z = choose_inducing(distinct.repeat(5, 1), 6, "greedy", SquaredExponential(noise=noise))
    assert sorted(indices(z, distinct)) == list(range(6))


def test_greedy_white_noise_changes_nothing():
    x = torch.randn(60, 2)
    clean = choose_inducing(x, 20, "greedy", SquaredExponential())
    assert torch.equal(clean, choose_inducing(x, 20, "greedy", SquaredExponential(noise=0.3)))


# ---- refusals


@pytest.mark.parametrize("n", [0, -3, 2.5, True, "ten"])
def test_bad_numbers_are_refused(n):
    with pytest.raises(ConfigurationError, match="number of inducing points, must be at least 1"):
        choose_inducing(torch.randn(5, 2), n)


def test_unknown_method_names_the_nearest():
    with pytest.raises(ConfigurationError, match="Did you mean 'kmeans'"):
        choose_inducing(torch.randn(5, 2), 2, "k-means")
    with pytest.raises(ConfigurationError, match="kmeans, random, first, greedy"):
        choose_inducing(torch.randn(5, 2), 2, "zzz")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_rows_are_refused(method, value):
    x = torch.randn(5, 2)
    x[3, 1] = value
    with pytest.raises(DataError, match="row 3"):
        choose(x, 2, method)
    with pytest.raises(DataError, match="empty"):
        choose(x[:0], 2, method)
    with pytest.raises(ShapeError, match=r"\[N, D\]"):
        choose(x[:, 0], 2, method)


def test_greedy_needs_a_kernel_and_plain_rows():
    for kernel in (None, lambda x, z: x @ z.T):
        with pytest.raises(ConfigurationError, match="greedy"):
            choose_inducing(torch.randn(5, 2), 2, "greedy", kernel)
    with pytest.raises(ShapeError, match="Greedy"):
        choose_inducing(torch.rand(5, 1, 4, 4), 2, "greedy", SquaredExponential())
    with pytest.raises(DataError, match="variances"):
        choose_inducing(torch.randn(5, 2), 2, "greedy", SquaredExponential(math.nan))


def test_kmeans_has_no_repetitions_where_rows_do() -> None:
    x = torch.tensor([[2.0, 1.0], [0.0, 3.0], [2.0, 1.0], [0.0, 3.0]])
    for n in (3, 4, 6):
        points = choose_inducing(x, n)
        assert points.shape == (n, 2)
        assert len(points.unique(dim=0)) == n
    torch.testing.assert_close(choose_inducing(x, 4)[:2], x[:2], rtol=0, atol=0)
    torch.testing.assert_close(choose_inducing(x, 4, "first"), x, rtol=0, atol=0)
