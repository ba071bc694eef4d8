"""Our Adam is Adam."""

import torch

from vibayes.training.optim import Adam


def test_it_moves_as_torchs_adam_with_a_rate_for_every_replica() -> None:
    torch.manual_seed(0)
    start = torch.randn(3, 4)
    rates = torch.tensor([0.1, 0.01, 0.001])
    ours = start.clone()
    optimizer = Adam([ours])
    theirs = [row.clone().requires_grad_() for row in start]
    references = [torch.optim.Adam([row], lr=float(rate)) for row, rate in zip(theirs, rates, strict=True)]
    for step in range(7):
        gradient = torch.randn(3, 4) * 10.0 ** (step - 4)  # from below `eps` to far above
        gradient[:, 0] = 1e-9 if step == 0 else 0.0
        optimizer.step([gradient], [rates[:, None]])
        for row, reference, g in zip(theirs, references, gradient, strict=True):
            row.grad = g
            reference.step()
        torch.testing.assert_close(ours, torch.stack([row.detach() for row in theirs]), rtol=1e-12, atol=1e-14)


def test_a_restored_state_moves_alike() -> None:
    torch.manual_seed(0)
    parameter, gradients = torch.randn(4), torch.randn(4, 4)
    optimizer = Adam([parameter])
    optimizer.step([gradients[0]], [torch.tensor(0.1)])
    state, kept = optimizer.state(), parameter.clone()
    for g in gradients[1:]:
        optimizer.step([g], [torch.tensor(0.1)])
    after = parameter.clone()
    parameter.copy_(kept)
    optimizer.restore(state)
    for g in gradients[1:]:
        optimizer.step([g], [torch.tensor(0.1)])
    assert torch.equal(parameter, after)
