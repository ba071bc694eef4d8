"""How batches reach our operators."""

from types import SimpleNamespace

import torch

from vibayes.operators import batch_first, flat


def test_batches_come_first_and_what_has_none_is_repeated() -> None:
    a, b = torch.arange(6.0).view(2, 3), torch.arange(2.0)
    moved = batch_first(SimpleNamespace(batch_size=3), (1, None, None), a, b, None)
    assert moved[0].tolist() == a.mT.tolist()
    assert moved[1].tolist() == [[0.0, 1.0]] * 3
    assert moved[2] is None


def test_a_batch_is_one_axis() -> None:
    assert [t.shape for t in flat(torch.zeros(2, 3, 4, 5), torch.zeros(4, 5))] == [(6, 4, 5), (1, 4, 5)]
    assert flat(torch.zeros(2, 3, 4), axes=1)[0].shape == (6, 4)
    assert flat(torch.zeros(0, 3, 4))[0].shape == (0, 3, 4)
