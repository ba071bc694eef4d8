"""Where batches come from: every row once an epoch, by seed and step alone."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import vibayes as vb
from vibayes.trainable import Batch
from vibayes.training.batches import Batches, as_batches

N = 13
X = torch.arange(N, dtype=torch.float64)[:, None]
Y = 10 * torch.arange(N, dtype=torch.float64)
W = torch.linspace(0, 1, N, dtype=torch.float64)


def model() -> vb.Model:
    return vb.Model(vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(3)), vb.Gaussian())


SOURCES = {
    "memory": lambda size: as_batches((X, Y, W), size, 0),
    "dataset": lambda size: as_batches(TensorDataset(X, Y, W), size, 0),
    "loader": lambda size: as_batches(DataLoader(TensorDataset(X, Y, W), batch_size=size, shuffle=True), None, 0),
}


def begun(source: Batches) -> Batches:
    source.begin(model())
    return source


def rows(batch: Batch) -> list[int]:
    indices = batch.x[:, 0].long()
    assert torch.equal(batch.y[:, 0], Y[indices])  # targets and weights go with their rows
    if batch.weights is not None:
        assert torch.equal(batch.weights, W[indices])
    return indices.tolist()


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("size", [1, 5, N])
def test_every_row_once_an_epoch(name: str, size: int) -> None:
    source = begun(SOURCES[name](size))
    assert source.n_data == N
    assert source.batch_size == size
    if name == "loader":  # its last batch is smaller
        for epoch in range(2):
            per_epoch = -(-N // size)
            seen = [r for step in range(per_epoch) for r in rows(source.at(epoch * per_epoch + step))]
            assert sorted(seen) == list(range(N))
        return
    seen = [r for step in range(N) for r in rows(source.at(step))]  # `size` epochs laid end to end
    assert len(seen) == N * size
    for epoch in range(size):
        assert sorted(seen[epoch * N : (epoch + 1) * N]) == list(range(N))
    if 1 < size < N:
        assert seen[:N] != seen[N : 2 * N]
        assert seen[:N] != list(range(N))


@pytest.mark.parametrize("name", SOURCES)
def test_a_batch_is_a_function_of_seed_and_step(name: str) -> None:
    forward = begun(SOURCES[name](5))
    expected = [rows(forward.at(step)) for step in range(8)]
    torch.manual_seed(99)
    again = begun(SOURCES[name](5))
    for step in (6, 2, 7, 0, 0, 5):
        assert rows(again.at(step)) == expected[step]


def test_the_seed_matters() -> None:
    first, second = (begun(as_batches((X, Y), 5, seed)) for seed in (0, 1))
    assert [rows(first.at(k)) for k in range(3)] != [rows(second.at(k)) for k in range(3)]


@pytest.mark.parametrize("name", SOURCES)
def test_the_global_generator_is_left_alone(name: str) -> None:
    source = begun(SOURCES[name](5))
    state = torch.get_rng_state()
    source.start()
    for step in range(6):
        source.at(step)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", SOURCES)
def test_starts_see_rows_with_their_targets(name: str) -> None:
    x, y, *_ = SOURCES[name](5).start()
    assert torch.equal(y, 10 * x[:, 0])
    assert sorted(x[:, 0].tolist()) == X[:, 0].tolist()


def test_batch_sizes() -> None:
    assert begun(as_batches((X, Y), None, 0)).batch_size == N
    assert begun(as_batches((X, Y), 1000, 0)).batch_size == N
    assert begun(as_batches(TensorDataset(X, Y), None, 0)).batch_size == N
    whole = begun(as_batches((X, Y), None, 0)).at(3)
    assert rows(whole) == list(range(N))
    for size in (0, -1, 2.5, True):
        with pytest.raises(vb.ConfigurationError, match="batch_size must be at least 1"):
            as_batches((X, Y), size, 0)


def test_data_decide_the_digest() -> None:
    first, same, other = (begun(as_batches(d, 5, 0)) for d in ((X, Y), (X.clone(), Y.clone()), (X, Y + 1)))
    assert first.digest() == same.digest() != other.digest()
    assert begun(as_batches((X, Y, W), 5, 0)).digest() != first.digest()


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield X[0], Y[0]


class Named(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": X[index], "y": Y[index]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (X, r"data must be \(x, y\).*got Tensor"),
        ((X,), r"data must be \(x, y\)"),
        ((X, Y, W, W), r"data must be \(x, y\)"),
        ({"x": X}, "got dict"),
        (Endless(), "must have a length"),
        (TensorDataset(torch.empty(0, 1), torch.empty(0)), "at least one item"),
        (DataLoader(Endless(), batch_size=2), r"must have a length.*__len__"),
    ],
)
def test_what_is_no_data(data: object, message: str) -> None:
    with pytest.raises(vb.DataError, match=message):
        as_batches(data, None, 0)


@pytest.mark.parametrize(
    "data",
    [TensorDataset(X), Named(), DataLoader(TensorDataset(X), batch_size=4), DataLoader(Named(), batch_size=2)],
)
def test_items_must_be_pairs(data: object) -> None:
    with pytest.raises(vb.DataError, match=r"must give \(x, y\) or \(x, y, weight\) items; got"):
        vb.fit(model(), data, steps=1, progress=False)


def test_a_loader_keeps_its_own_batch_size() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=4)
    with pytest.raises(vb.ConfigurationError, match=r"its own batch size \(4\); leave batch_size out"):
        as_batches(loader, 5, 0)
    assert as_batches(loader, 4, 0).batch_size == 4
    with pytest.raises(vb.ConfigurationError, match="must have a batch_size"):
        as_batches(DataLoader(TensorDataset(X, Y), batch_size=None), None, 0)


def test_a_loader_without_batches_says_why() -> None:
    loader = DataLoader(TensorDataset(torch.randn(5, 2), torch.randn(5)), batch_size=10, drop_last=True)
    with pytest.raises(vb.DataError, match=r"no batch: 5 rows, batch_size=10, drop_last=True"):
        as_batches(loader, None, 0)
