"""The context of one pass: noise, log ratios, failures and the rows that leave a layer."""

import threading

import pytest
import torch

import vibayes as vb
from vibayes.draw import Draw, current_draw

LIKE = torch.zeros(1)


def test_noise_is_fresh_or_prepared_and_asked_for_once() -> None:
    draw = Draw()
    first = draw.randn("a", 3, 2, like=LIKE)
    assert first.shape == (3, 2)
    assert draw.requests == {"a": (3, 2)}
    assert not torch.equal(first, draw.randn("b", 3, 2, like=LIKE))
    with pytest.raises(vb.ConfigurationError, match=r"'a' was used twice.*its own layer"):
        draw.randn("a", 3, 2, like=LIKE)
    draw.randn("a.inducing", 1, like=LIKE)
    with pytest.raises(vb.ConfigurationError, match="Layer 'a' was used twice"):
        draw.randn("a.inducing", 1, like=LIKE)
    prepared = torch.randn(3, 2, dtype=LIKE.dtype)
    assert Draw(noise={"a": prepared}).randn("a", 3, 2, like=LIKE) is prepared
    assert draw.randn("c", 2, like=LIKE.float()).dtype == torch.float32


@pytest.mark.parametrize("coarse", [False, True])
def test_coarse_noise_has_the_resolution_of_float32(coarse: bool) -> None:
    drawn = Draw(coarse=coarse).randn("a", 100_000, like=LIKE.double())
    assert drawn.dtype == torch.float64
    assert torch.equal(drawn, drawn.float().double()) == coarse
    moments = torch.stack([drawn.pow(k).mean() for k in (1, 2, 3, 4)])
    errors = torch.tensor([1.0, 2.0, 15.0, 96.0]).sqrt() / 100_000**0.5
    assert ((moments - torch.tensor([0.0, 1.0, 0.0, 3.0])).abs() < 4 * errors).all()


def test_log_ratios_add_up() -> None:
    draw = Draw()
    assert draw.log_ratio() == 0.0
    draw.add("a", torch.tensor(1.0))
    draw.add("b", torch.tensor(-3.0))
    assert draw.log_ratio() == -2.0
    with pytest.raises(vb.ConfigurationError, match=r"'a' was used twice.*share the kernel"):
        draw.add("a", torch.tensor(1.0))


def test_failures_are_kept_by_name() -> None:
    draw = Draw(jitter=torch.tensor(1e-6))
    good = draw.cholesky("good", torch.ones(2, 2))  # singular without jitter
    assert torch.isfinite(good).all()
    assert torch.isnan(draw.cholesky("bad", -torch.eye(2))).all()
    assert torch.isnan(draw.cholesky("plain", torch.ones(2, 2), jitter=False)).all()
    assert {site: bool(info != 0) for site, info in draw.failures.items()} == {
        "good": False,
        "bad": True,
        "plain": True,
    }
    draw.cholesky("bad", torch.eye(2))  # a later success does not hide it
    assert bool(draw.failures["bad"] != 0)


def test_one_draw_at_a_time() -> None:
    with pytest.raises(vb.ConfigurationError, match=r"GP is a Bayesian layer.*outside a Model.*vibayes\.Model"):
        current_draw("GP")
    with Draw() as draw:
        assert current_draw("GP") is draw
        with pytest.raises(vb.ConfigurationError, match="Nest networks, not Models"), Draw():
            pass
        assert current_draw("GP") is draw
    with pytest.raises(RuntimeError, match="inside"), Draw():
        raise RuntimeError("inside")
    with pytest.raises(vb.ConfigurationError, match="outside a Model"):
        current_draw("GP")


def test_other_threads_have_their_own() -> None:
    seen: list[str] = []

    def look() -> None:
        try:
            current_draw("GP")
        except vb.ConfigurationError:
            seen.append("none")

    with Draw():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == ["none"]


def test_independent_rows() -> None:
    mean, variance = torch.randn(4, 2), torch.rand(4, 2)
    noise = torch.randn(4, 2)
    draw = Draw(noise={"gp.rows": noise})
    rows = draw.gaussian_rows("gp", mean, variance, None)
    torch.testing.assert_close(rows, mean + variance.sqrt() * noise)
    assert draw.output is None


def test_the_output_layer_is_left_at_its_mean_when_integrated() -> None:
    mean, variance = torch.randn(4, 2), torch.rand(4, 2)
    draw = Draw(output="gp")
    rows = draw.gaussian_rows("gp", mean, variance, None)
    assert torch.equal(rows, mean)
    assert draw.output is not None
    assert draw.output.rows is rows
    assert torch.equal(draw.output.variance, variance)
    drawn = Draw(output="gp", marginal=False).gaussian_rows("gp", mean, variance, None)
    assert not torch.equal(drawn, mean)


def test_inducing_rows_come_first_and_are_no_output() -> None:
    inducing, mean, variance = torch.randn(3, 2), torch.randn(4, 2), torch.rand(4, 2)
    draw = Draw(n_inducing=3, output="gp")
    rows = draw.gaussian_rows("gp", mean, variance, None, inducing)
    assert rows.shape == (7, 2)
    assert torch.equal(rows[:3], inducing)
    assert draw.output is not None
    assert draw.output.mean.shape == (4, 2)


def test_inducing_rows_that_went_through_like_data_are_no_output() -> None:
    mean, variance, covariance = torch.randn(7, 2), torch.rand(7, 2), torch.randn(2, 7, 7)
    draw = Draw(n_inducing=3, output="gp")
    rows = draw.gaussian_rows("gp", mean, variance, covariance)
    assert rows.shape == (7, 2)
    assert draw.output is not None
    assert torch.equal(draw.output.mean, mean[3:])
    assert torch.equal(draw.output.variance, variance[3:])
    assert draw.output.covariance is not None
    assert torch.equal(draw.output.covariance, covariance[:, 3:, 3:])


@pytest.mark.parametrize("shared", [False, True])
def test_joint_rows_have_the_covariance(shared: bool) -> None:
    root = torch.randn(1 if shared else 2, 3, 3)
    covariance = root @ root.mT
    mean = torch.randn(3, 2)

    def one(zero: torch.Tensor) -> torch.Tensor:
        draw = Draw(zero=zero, joint=True, marginal=False)
        return draw.gaussian_rows("gp", mean, covariance.diagonal(dim1=1, dim2=2).mT.expand(3, 2), covariance)

    n = 40_000
    rows = torch.func.vmap(one, randomness="different")(torch.zeros(n))
    for p in range(2):
        expected = covariance[0 if shared else p]
        centred = rows[..., p] - mean[:, p]
        products = centred[:, :, None] * centred[:, None, :]
        assert ((products.mean(0) - expected).abs() < 4.5 * products.std(0) / n**0.5).all()
        assert ((centred.mean(0)).abs() < 4.5 * centred.std(0) / n**0.5).all()


def test_joint_rows_of_a_singular_covariance() -> None:
    rows = Draw(joint=True, marginal=False).gaussian_rows(
        "gp", torch.zeros(3, 1), torch.ones(3, 1), torch.ones(1, 3, 3)
    )
    torch.testing.assert_close(rows, rows[:1].expand(3, 1), atol=1e-6, rtol=0)
