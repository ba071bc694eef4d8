"""What only a GPU can show: captured steps equal eager ones, and every replay draws fresh noise."""

import gc
import types
from collections.abc import Iterator

import pytest
import torch
from test_replicas import assert_alike, data, deep_model, regression_model

import vibayes as vb
from vibayes.draw import Draw
from vibayes.training.graph import Step

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("batch_size", [None, 8])
def test_graph_equals_eager_and_cpu(batch_size: int | None) -> None:
    sets = [data(r) for r in range(3)]
    results = {}
    for device, graph in (("cpu", False), ("cuda", False), ("cuda", True)):
        models = [regression_model(r) for r in range(3)]
        vb.fit_many(models, sets, steps=40, batch_size=batch_size, chunk=3, device=device, graph=graph, progress=False)
        results[device, graph] = [m.cpu() for m in models]
    for r in range(3):
        assert_alike(results["cuda", True][r], results["cuda", False][r], rtol=1e-7)
        assert_alike(results["cuda", True][r], results["cpu", False][r], rtol=1e-6)


@pytest.fixture
def eager_garbage_collection() -> Iterator[None]:
    """Collects at every turn: what an earlier graph held would be freed while the next one is captured."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("eager_garbage_collection")
def test_every_replay_draws_anew() -> None:
    model = deep_model(0)
    vb.fit(model, data(0), steps=30, log_every=1, n_samples=1, lr=1e-12, device="cuda", graph=True, progress=False)
    elbos = vb.fit(
        model, data(0), steps=30, log_every=1, n_samples=1, lr=1e-12, device="cuda", graph=True, progress=False
    ).elbo
    assert len(set(elbos)) == 30  # parameters stand still, so only the draws differ


def test_what_cannot_be_captured_goes_on_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    drawn = []

    def function() -> None:
        drawn.append(torch.randn(3, device="cuda").sum().item())  # waits for the device, which no graph can

    problem = types.SimpleNamespace(device=torch.device("cuda"), can_be_captured=True)
    step = Step(problem, types.SimpleNamespace(graph=True, world_size=1))  # type: ignore[arg-type]
    for _ in range(8):
        step(function)
    assert step.kind == "eager"
    assert len(set(drawn)) == len(drawn) == 8
    assert sum("could not be captured" in record.message for record in caplog.records) == 1


def test_gammas_in_a_graph() -> None:
    alpha = torch.full((1000,), 2.5, device="cuda", requires_grad=True)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.func.vmap(lambda _: Draw().gamma("g", alpha), randomness="different")(torch.zeros(4, device="cuda"))
        return x.detach(), torch.autograd.grad(x.sum(), alpha)[0]

    for _ in range(3):
        step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x, gradient = step()
    graph.replay()
    first = x.clone()
    graph.replay()
    assert not torch.equal(first, x)
    assert abs(float(x.mean()) - 2.5) < 0.15
    assert abs(float(gradient.mean()) / 4 - 1.0) < 0.1
