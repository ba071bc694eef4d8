"""Whether a network notices a rotation of features that are known only up to one.

Wishart layers know the Gram matrix of their rows, so whatever stands behind must see distances or inner products alone:
otherwise the log ratio, a density of Gram matrices, belongs to another model than the one that makes the predictions.
"""

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vibayes.draw import Draw
from vibayes.errors import ConfigurationError
from vibayes.layers.base import Layer
from vibayes.means import ZeroMean

__all__ = ["check_rotations"]

# Large enough for well-conditioned factorizations: two passes in float64 then differ by rounding, about 1e-10.
_JITTER = 1e-3
_TOLERANCE = 1e-6
_DATA_ROWS = 3
_SEEDS = 20


def check_rotations(network: nn.Module, inducing: Tensor | None, noisy: bool = False) -> None:
    """Refuse a network that notices a rotation of a layer's values which are known only up to a rotation.

    A copy of the network, in float64 and with its parameters moved a little (equal lengthscales of an ARD kernel would
    not notice), is run with and without a random orthogonal matrix behind the layer and with the same noise. Outputs,
    log ratios and gradients must agree. A plain `nn.Sequential` of GP layers with suitable kernels needs no such test.

    Args:
        network: a network whose layers belong to a model.
        inducing: the model's inducing inputs.
        noisy: whether modules draw random numbers of their own in training, which is then how the network runs, with
            many of them: a mask of Dropout may drop nothing.
    """
    names = [n for n, m in network.named_modules() if isinstance(m, Layer) and m.posterior.rotates]
    if not names or inducing is None or all(_follows(network, name) for name in names):
        return
    moved = copy.deepcopy(network).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator).to(parameter))
    if noisy and not moved.training:
        moved.train()
    for name in names:
        _check_layer(moved, name, inducing.detach().double(), _SEEDS if noisy else 1)


def _follows(network: nn.Module, name: str) -> bool:
    """Whether a layer stands in plain `nn.Sequential`s, directly before a layer that sees no rotations."""
    *path, last = name.split(".")
    for depth in range(len(path) + 1):
        if type(network.get_submodule(".".join(path[:depth]))) is not nn.Sequential:
            return False
    children = network.get_submodule(".".join(path)).named_children()
    after = next((behind for (child, _), (_, behind) in itertools.pairwise(children) if child == last), None)
    kernel, mean = getattr(after, "kernel", None), getattr(after, "mean", None)
    if not isinstance(after, Layer) or after.posterior.local or kernel is None:
        return False
    return bool(kernel.rotation_invariant) and _is_zero(mean)


def _is_zero(mean: object) -> bool:
    return mean is None or isinstance(mean, ZeroMean)


class _Fixed(Draw):
    """A draw that makes its noise once and gives it again to the next one."""

    def __init__(self, kept: dict[str, Tensor], **options: Any) -> None:
        super().__init__(**options)
        self.kept = kept

    def randn(self, site: str, *shape: int, like: Tensor) -> Tensor:
        fresh = super().randn(site, *shape, like=like)
        return self.kept.setdefault(site, fresh)


def _check_layer(network: nn.Module, name: str, inducing: Tensor, seeds: int) -> None:
    layer = network.get_submodule(name)
    spread = inducing.std(0, correction=0)
    centred = (inducing - inducing.mean(0)) / torch.where(spread > 0, spread, 1.0)
    for rows in (centred, inducing):  # a network may not bear standardised inputs, such as one that takes logarithms
        kept: dict[str, Tensor] = {}
        for seed in range(seeds):
            plain, values = _run(network, rows, kept, None, seed)
            if not bool(torch.isfinite(values).all()):
                break
            turned, others = _run(network, rows, kept, layer, seed)
            if not _close(values, others):
                raise ConfigurationError(_refusal(layer, name, _culprit(network, name, plain, turned)))
        else:
            return
    raise ConfigurationError(
        f"Whether the network notices a rotation of the features of layer {name!r} cannot be told: its output at the "
        "inducing inputs is not finite."
    )


@torch.enable_grad()
def _run(
    network: nn.Module, inducing: Tensor, kept: dict[str, Tensor], layer: nn.Module | None, seed: int
) -> tuple[dict[str, Tensor], Tensor]:
    """One pass: what every module returned, in order; and outputs, log ratios and their gradients in one vector."""
    seen: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(1)
    shape = (_DATA_ROWS, *inducing.shape[1:])
    data = inducing[torch.arange(_DATA_ROWS) % len(inducing)]
    data = data + 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64).to(inducing)
    draw = _Fixed(kept, n_inducing=len(inducing), jitter=_JITTER, marginal=False)
    parameters = [p for p in network.parameters() if p.requires_grad]
    with _hooks(network, layer, seen), _same_randomness(seed), draw:
        out = network(torch.cat([inducing, data]))
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    total = draw.log_ratio() + (weights * out).sum()
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    found = [out[len(inducing) :], torch.as_tensor(draw.log_ratio()), *(g for g in gradients if g is not None)]
    return seen, torch.cat([t.detach().flatten().to(out) for t in found])


@contextmanager
def _hooks(network: nn.Module, layer: nn.Module | None, seen: dict[str, Tensor]) -> Iterator[None]:
    """Rotate what the layer returns, and note what all modules return."""

    def rotate(module: nn.Module, arguments: Any, out: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(2)
        square = torch.randn(out.shape[-1], out.shape[-1], generator=generator, dtype=torch.float64)
        Q: Tensor = torch.linalg.qr(square).Q.to(out)
        return out @ (-Q if Q.shape[0] == 1 else Q)  # of one feature, only the sign can turn

    def note(name: str) -> Any:
        def keep(module: nn.Module, arguments: Any, out: Any) -> None:
            if isinstance(out, Tensor):
                seen[name] = out.detach()

        return keep

    handles = [] if layer is None else [layer.register_forward_hook(rotate)]
    steps = [(n, m) for n, m in network.named_modules() if isinstance(m, Layer) or not list(m.children())]
    handles += [m.register_forward_hook(note(n)) for n, m in steps]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _same_randomness(seed: int) -> Iterator[None]:
    """Modules with randomness of their own (dropout) draw alike in every pass."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _close(a: Tensor, b: Tensor) -> bool:
    scale = 1.0 + torch.maximum(a.abs(), b.abs())
    return a.shape == b.shape and bool(((a - b).abs() <= _TOLERANCE * scale).all())


def _culprit(network: nn.Module, name: str, plain: dict[str, Tensor], turned: dict[str, Tensor]) -> str:
    """The first module behind the layer whose rows are not just rotated, in words."""
    order = list(plain)
    for other in order[order.index(name) + 1 :]:
        a, b = (seen[other].flatten(1) for seen in (plain, turned))
        if not _close(a @ a.mT, b @ b.mT):
            module = network.get_submodule(other)
            kernel, mean = getattr(module, "kernel", None), getattr(module, "mean", None)
            what = type(module).__name__
            if isinstance(module, Layer) and kernel is not None:
                what += f" with {type(kernel).__name__}" + ("" if _is_zero(mean) else f" and {type(mean).__name__}")
            return f"{other!r} ({what}), or what is done before it,"
    return "the network's output"


def _refusal(layer: nn.Module, name: str, culprit: str) -> str:
    of = f" with a {type(layer.posterior).__name__} posterior" if type(layer).__name__ == "GP" else ""
    return (
        f"Layer {name!r} ({type(layer).__name__}{of}) gives features that are known only up to a rotation, but "
        f"{culprit} would notice one. Only GP layers with an isotropic, linear or arc-cosine kernel (no ard, zero "
        "mean, no inducing inputs of their own) may use them, with no activation, weights or skip connection between."
    )
