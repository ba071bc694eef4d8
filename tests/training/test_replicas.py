"""`fit_many`: identity 17, padding, minibatches, roll-back of single replicas."""

import collections
import copy
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes.training import plan
from vibayes.training.batches import InMemory
from vibayes.training.problem import Single
from vibayes.training.stacked import Stacked


def data(r: int, n: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(r)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] * (1 + r)).sin() + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)


def classes(r: int, n: int = 30) -> tuple[Tensor, Tensor]:
    x, y = data(r, n)
    return x, (y > 0).long() + (y > 0.5).long()


def regression_model(r: int) -> vb.Model:
    torch.manual_seed(100 + r)
    gp = vb.GP(1, kernel=vb.SquaredExponential(2, ard=True), posterior=vb.LocalInducing(6))
    return vb.Model(gp, vb.Gaussian(0.2), standardize="both")


def class_model(r: int) -> vb.Model:
    torch.manual_seed(100 + r)
    gp = vb.GP(3, kernel=vb.Matern52(2), posterior=vb.LocalInducing(5))
    return vb.Model(gp, vb.Categorical(n_latent_noise=4), standardize="inputs")


def deep_model(r: int) -> vb.Model:
    torch.manual_seed(100 + r)
    first = vb.GP(2, kernel=vb.SquaredExponential(2), mean=vb.IdentityMean(), noise=1e-2, posterior=vb.LocalInducing(5))
    last = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(5, form="pseudo"))
    return vb.Model(torch.nn.Sequential(first, last), vb.Gaussian(0.2), standardize="both")


def global_model(r: int, log_precision: float = 1.0) -> vb.Model:
    torch.manual_seed(100 + r)
    layers = [
        vb.GP(p, kernel=vb.SquaredExponential(2), posterior=vb.GlobalInducing("full", log_precision=log_precision))
        for p in (2, 1)
    ]
    return vb.Model(torch.nn.Sequential(*layers), vb.Gaussian(0.2), inducing=torch.randn(4, 2), standardize="both")


def natural_model(r: int) -> vb.Model:
    torch.manual_seed(100 + r)
    layers = [
        vb.GP(p, kernel=vb.SquaredExponential(2), posterior=vb.GlobalInducing(precision))
        for p, precision in ((2, "full_per_output"), (1, "natural"))
    ]
    return vb.Model(torch.nn.Sequential(*layers), vb.Gaussian(0.2), inducing=torch.randn(4, 2), standardize="both")


def wishart_model(r: int) -> vb.Model:
    torch.manual_seed(100 + r)
    hidden = vb.GP(2, kernel=vb.SquaredExponential(2), posterior=vb.GeneralizedWishart("AB"))
    last = vb.GP(1, kernel=vb.SquaredExponential(2))
    return vb.Model(torch.nn.Sequential(hidden, last), vb.Gaussian(0.2), inducing=torch.randn(4, 2), standardize="both")


def network_model(r: int) -> vb.Model:
    torch.manual_seed(100 + r)
    layers = [
        vb.Linear(a, b, prior=vb.ScalePrior(), posterior=vb.GlobalInducing("per_output")) for a, b in ((2, 3), (3, 1))
    ]
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    return vb.Model(network, vb.Gaussian(0.2), inducing=torch.randn(6, 2), standardize="both")


def image_model(r: int, posterior: vb.posteriors.Posterior | None = None, stride: int = 1) -> vb.Model:
    """Rows as images of 4 x 4 pixels."""
    torch.manual_seed(100 + r)
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 16).requires_grad_(False),
        torch.nn.Unflatten(1, (1, 4, 4)),
        vb.Conv2d(1, 2, 3, stride, padding=1, prior=vb.SpatialIWPrior(), posterior=posterior),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        vb.Linear(32 // stride**2, 1, posterior=posterior),
    )
    inducing = torch.randn(6, 2) if posterior is None else None
    return vb.Model(network, vb.Gaussian(0.2), inducing=inducing, standardize="both")


def strided_image_model(r: int) -> vb.Model:
    """With image patches in place of correlations."""
    return image_model(r, stride=2)


def factorised_image_model(r: int) -> vb.Model:
    """The same without inducing points."""
    return image_model(r, vb.MeanField())


def assert_alike(ours: vb.Model, theirs: vb.Model, rtol: float = 1e-9) -> None:
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=rtol, atol=1e-11), name


def test_parameters_have_rates_of_their_own() -> None:
    sets, factors = [data(r) for r in range(2)], {"*kernel*": 5.0, "likelihood.noise": 0.2}
    together, plain = ([regression_model(r) for r in range(2)] for _ in range(2))
    options = {"steps": 5, "lr": 0.02, "progress": False}
    vb.fit_many(together, sets, seed=0, chunk=2, lr_factors=factors, **options)
    vb.fit_many(plain, sets, seed=0, chunk=2, **options)
    for r in range(2):
        alone = regression_model(r)
        vb.fit(alone, sets[r], seed=r, lr_factors=factors, **options)
        assert_alike(together[r], alone)
        assert not torch.allclose(plain[r].likelihood.noise.value, alone.likelihood.noise.value)


@pytest.mark.parametrize("batch_size", [None, 8])
@pytest.mark.parametrize("sizes", [(30, 30, 30), (30, 27, 22)])
def test_regression_follows_separate_fits(batch_size: int | None, sizes: tuple[int, ...]) -> None:
    sets = [data(r, n) for r, n in enumerate(sizes)]
    options = {"steps": 60, "batch_size": batch_size, "log_every": 20, "progress": False}
    together = [regression_model(r) for r in range(3)]
    histories = vb.fit_many(together, sets, seed=[3, 4, 5], lr=[0.01, 0.02, 0.005], chunk=3, **options)
    for r in range(3):
        alone = regression_model(r)
        history = vb.fit(alone, sets[r], seed=3 + r, lr=[0.01, 0.02, 0.005][r], **options)
        assert_alike(together[r], alone)
        assert histories[r].step == history.step == [20, 40, 60]
        assert histories[r].elbo == pytest.approx(history.elbo, rel=1e-9)
        assert histories[r].noise == pytest.approx(history.noise, rel=1e-9)
        x = sets[r][0]
        assert torch.allclose(together[r].predict(x).mean, alone.predict(x).mean, rtol=1e-8)
        assert float(together[r].elbo(*sets[r]).value.detach()) == pytest.approx(
            float(alone.elbo(*sets[r]).value.detach()), rel=1e-9
        )


@pytest.mark.parametrize(
    ("build", "make", "shapes"),
    [
        (class_model, classes, {"likelihood": (4, 10, 3)}),
        (deep_model, data, {"0.rows": (10, 2)}),
    ],
)
def test_draws_with_the_same_noise_follow_separate_fits(build, make, shapes) -> None:  # type: ignore[no-untyped-def]
    """Identity 17: the same noise in joint and separate training."""
    R, S, steps = 3, 2, 25
    sets = [make(r) for r in range(R)]

    def noise(step: int) -> Mapping[str, Tensor]:
        generator = torch.Generator().manual_seed(step)
        return {
            site: torch.randn(R, S, *shape, generator=generator, dtype=torch.float64) for site, shape in shapes.items()
        }

    options = {"steps": steps, "batch_size": 10, "n_samples": S, "log_every": 5, "progress": False}
    together = [build(r) for r in range(R)]
    chunked = copy.deepcopy(together)
    vb.fit_many(together, sets, chunk=R, noise=noise, seed=[0, 1, 2], **options)
    vb.fit_many(chunked, sets, chunk=2, noise=noise, seed=[0, 1, 2], **options)
    for joint, apart in zip(together, chunked, strict=True):
        for a, b in zip(joint.parameters(), apart.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    for r in range(R):
        alone = build(r)
        mine = lambda step, r=r: {site: value[r] for site, value in noise(step).items()}  # noqa: E731
        vb.fit(alone, sets[r], noise=mine, seed=r, **options)
        assert_alike(together[r], alone, rtol=1e-8)


def test_replicas_have_their_own_draws() -> None:
    """The same model and data twice, one seed: with fresh noise the replicas must part."""
    models = [deep_model(0), deep_model(0)]
    vb.fit_many(models, [data(0), data(0)], steps=5, seed=[0, 0], chunk=2, n_samples=2, progress=False)
    a, b = (m.network[0].posterior.mean for m in models)
    assert not torch.allclose(a, b)


@pytest.mark.parametrize("seed", [np.int64(4), np.array([4, 5]), torch.tensor([4, 5])])
def test_seeds_and_rates_of_numpy_and_torch(seed: object) -> None:
    plain, theirs = ([regression_model(0), regression_model(0)] for _ in range(2))
    options = {"steps": 4, "batch_size": 5, "chunk": 2, "progress": False}
    vb.fit_many(plain, [data(0), data(0)], seed=[4, 5], lr=[0.1, 0.2], **options)
    vb.fit_many(theirs, [data(0), data(0)], seed=seed, lr=np.array([0.1, 0.2]), **options)  # type: ignore[arg-type]
    for mine, other in zip(plain, theirs, strict=True):
        assert_alike(mine, other)
    assert not torch.equal(next(plain[0].parameters()), next(plain[1].parameters()))


def test_chunks_give_the_same_models() -> None:
    sets = [data(r) for r in range(5)]
    results = []
    for chunk in (1, 2, 5):
        models = [regression_model(r) for r in range(5)]
        vb.fit_many(models, sets, steps=30, chunk=chunk, progress=False)
        results.append(models)
    for models in results[1:]:
        for ours, theirs in zip(models, results[0], strict=True):
            assert_alike(ours, theirs)


def test_a_diverging_replica_disturbs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    sets = [data(r) for r in range(3)]
    healthy = [regression_model(r) for r in range(3)]
    vb.fit_many(healthy, sets, steps=60, chunk=3, log_every=5, progress=False)
    models = [regression_model(r) for r in range(3)]
    with torch.no_grad():
        models[1].network.posterior.raw_factor.fill_(1000.0)  # exp overflows: never finite
    histories = vb.fit_many(models, sets, steps=60, chunk=3, log_every=5, progress=False)
    assert_alike(models[0], healthy[0])
    assert_alike(models[2], healthy[2])
    assert histories[1].stopped.startswith("gave up")
    assert len(histories[1].events) == 6
    assert "Replica 1" in caplog.text
    assert float(models[1].jitter) == pytest.approx(1e-6)  # more did not help, so it keeps what it had
    assert float(models[0].jitter) == pytest.approx(1e-6)


@pytest.mark.parametrize("chunk", [1, 2, None])
def test_a_model_that_fails_for_good_leaves_the_others_to_be_trained(chunk: int | None) -> None:
    x = torch.randn(20, 2)
    models = [vb.Model(vb.GP(1, kernel=vb.SquaredExponential(2)), vb.Gaussian(0.1), inducing=x[:5]) for _ in range(2)]
    for model in models:
        model.initialize(x, x[:, 0])
    with torch.no_grad():
        models[0].likelihood.noise.raw.fill_(float("nan"))
    histories = vb.fit_many(models, [(x, x[:, 0])] * 2, steps=400, log_every=20, chunk=chunk, progress=False)
    assert histories[0].stopped.startswith("gave up")
    assert histories[1].stopped == "ran the 400 steps asked for"
    assert histories[1].elbo[-1] > histories[1].elbo[0]


def test_replicas_stop_by_themselves() -> None:
    sets = [data(0, 20), data(1, 20)]
    models = [regression_model(0), regression_model(1)]
    histories = vb.fit_many(models, sets, chunk=2, log_every=5, tolerance=5e-2, progress=False, lr=0.05)
    assert all(h.stopped == "the smoothed bound no longer rose" for h in histories)
    first, second = sorted(h.step[-1] for h in histories)
    assert first < 2000
    assert first <= second


def test_resume(tmp_path: Path) -> None:
    sets = [data(r) for r in range(3)]
    whole = [regression_model(r) for r in range(3)]
    vb.fit_many(whole, sets, steps=60, batch_size=8, chunk=3, log_every=10, progress=False)

    def stop(step: int) -> float:
        if step == 37:
            raise KeyboardInterrupt
        return 1.0

    options = {"steps": 60, "batch_size": 8, "chunk": 3, "log_every": 10, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        vb.fit_many([regression_model(r) for r in range(3)], sets, checkpoint=tmp_path / "c", kl_weight=stop, **options)
    again = [regression_model(r) for r in range(3)]
    histories = vb.fit_many(again, sets, checkpoint=tmp_path / "c", **options)
    for ours, theirs in zip(again, whole, strict=True):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)
    assert histories[0].step == list(range(10, 61, 10))


def test_starts_may_differ() -> None:
    models = [global_model(0), global_model(1, log_precision=-2.0)]
    vb.fit_many(models, [data(0), data(1)], steps=1, lr=1e-9, progress=False)
    starts = [m.layers["1"].posterior.raw_factor.diagonal().mean().item() for m in models]
    assert starts == pytest.approx([0.5, -1.0], abs=1e-6)


def test_out_of_memory_halves_the_chunk_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    replicas = sys.modules["vibayes.training.replicas"]
    real, limit = replicas.as_problem, 2

    def tight(models, *arguments):  # type: ignore[no-untyped-def]
        if len(models) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(models, *arguments)

    monkeypatch.setattr(replicas, "as_problem", tight)
    sets = [data(r) for r in range(4)]
    models = [regression_model(r) for r in range(4)]
    histories = vb.fit_many(models, sets, steps=10, chunk=4, log_every=10, progress=False)
    assert [h.step for h in histories] == [[10]] * 4
    assert "going on with 2 models at a time" in caplog.text
    limit = 1
    with pytest.raises(vb.TrainingError, match="ran out of memory with 2"):
        vb.fit_many([regression_model(r) for r in range(4)], sets, steps=10, chunk=4, progress=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile itself
@pytest.mark.parametrize(
    ("build", "n"),
    [(regression_model, 5)]  # few rows take another way
    + [
        (build, 30)
        for build in (
            regression_model,
            class_model,
            deep_model,
            global_model,
            natural_model,
            wishart_model,
            network_model,
            image_model,
            strided_image_model,
            factorised_image_model,
        )
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_compiling_changes_no_gradient(build, n: int, alone: bool) -> None:  # type: ignore[no-untyped-def]
    """`torch.compile` traces custom functions in its own way; it makes one graph, with the same gradients."""
    sets = [classes(r, n) if build is class_model else data(r, n) for r in range(2)]
    models, sources = [build(r) for r in range(2)], []
    for model, (x, y) in zip(models, sets, strict=True):
        model.initialize(x, y)
        sources.append(InMemory(x, y, None, None, 0))
        sources[-1].begin(model)
    problem = Single(models[0], sources[0], 2) if alone else Stacked(models, sources, 2)
    problem.load(0)

    def gradients(bound) -> list[Tensor]:  # type: ignore[no-untyped-def]
        torch.manual_seed(0)
        found = bound()
        total = (found.log_likelihood + found.log_ratio).sum() + found.log_prior.sum()
        return [*torch.autograd.grad(total, problem.parameters), *found.targets.values()]

    torch._dynamo.reset()
    for eager, compiled in zip(
        gradients(problem.bound),
        gradients(torch.compile(problem.bound, backend="aot_eager", fullgraph=True)),
        strict=True,
    ):
        assert torch.allclose(eager, compiled, rtol=1e-9, atol=1e-11)


def test_sizes_are_compared_by_equal_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the shortest of three measurements is a matter of luck, which the short ones have."""
    evaluated: collections.Counter[int] = collections.Counter()
    monkeypatch.setattr(plan, "_evaluate", lambda models, *_: evaluated.update({len(models): len(models)}))
    options: Any = types.SimpleNamespace(n_samples=1)
    found = plan._times([regression_model(0)] * 20, [], options, {1, 5, 20})
    assert set(found) == {1, 5, 20}
    assert len(set(evaluated.values())) == 1
