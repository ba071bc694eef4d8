"""Where batches come from: every row once an epoch, by seed and step alone."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SubsetRandomSampler, TensorDataset

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


class Counted(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, given: int) -> None:
        self.given = given

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(X[: self.given], Y[: self.given], strict=True)


def test_a_stream_with_a_length_goes_into_a_loader() -> None:
    with pytest.raises(vb.DataError, match="items by number; put an IterableDataset"):
        as_batches(Counted(N), None, 0)
    source = begun(as_batches(DataLoader(Counted(N), batch_size=4), None, 0))
    assert rows(source.at(1)) == [4, 5, 6, 7]
    short = begun(as_batches(DataLoader(Counted(7), batch_size=4), None, 0))
    with pytest.raises(vb.DataError, match="gave 2 of 4 batches"):
        short.at(3)


class Noisy(Dataset[tuple[Tensor, ...]]):
    """Rows that are changed at random whenever they are read."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return X[index] + torch.rand(1), Y[index]


@pytest.mark.parametrize("kind", ["changed rows", "loader's generator", "sampler's generator"])
def test_whatever_is_random_in_a_loader_comes_from_the_seed(kind: str) -> None:
    def loader(seed: int) -> Batches:
        dataset: Dataset[Any] = Noisy() if kind == "changed rows" else TensorDataset(X, Y)
        generator = torch.Generator().manual_seed(seed)
        if kind == "sampler's generator":
            sampler = RandomSampler(dataset, replacement=True, num_samples=N, generator=generator)
            return begun(as_batches(DataLoader(dataset, batch_size=5, sampler=sampler), None, 0))
        own = {} if kind == "changed rows" else {"generator": generator}
        return begun(as_batches(DataLoader(dataset, batch_size=5, shuffle=True, **own), None, 0))

    forward = loader(1)
    expected = [forward.at(step).x for step in range(8)]
    again = loader(2)
    for step in (6, 2, 7, 0):  # as after a resume, with other draws in between
        torch.rand(3)
        assert torch.equal(again.at(step).x, expected[step])


def test_a_sampler_of_some_rows_is_of_as_many() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=5, sampler=SubsetRandomSampler(range(6)))
    source = begun(as_batches(loader, None, 0))
    assert (source.n_data, source.batch_size) == (6, 5)


def test_a_shorter_batch_counts_less() -> None:
    source = begun(as_batches(DataLoader(TensorDataset(X, Y), batch_size=5), None, 0))
    shares = [source.share(source.at(step)) for step in range(-(-N // 5))]
    assert shares == [1.0] * (N // 5) + [N % 5 / 5]
    memory = begun(as_batches((X, Y), 5, 0))
    assert memory.share(memory.at(0)) == 1.0


def test_a_loader_without_batches_says_why() -> None:
    loader = DataLoader(TensorDataset(torch.randn(5, 2), torch.randn(5)), batch_size=10, drop_last=True)
    with pytest.raises(vb.DataError, match=r"no batch: 5 rows, batch_size=10, drop_last=True"):
        as_batches(loader, None, 0)
