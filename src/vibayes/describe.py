"""What a model is, in words: its layers, kernels, hyperparameters and sizes."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from vibayes.kernels.white import White
from vibayes.layers.base import Layer
from vibayes.means import ZeroMean
from vibayes.parameters import Hyperparameter, hyperparameters
from vibayes.posteriors.natural import NaturalSites

if TYPE_CHECKING:
    from vibayes.model import Model

__all__ = ["describe_layer", "describe_model", "describe_values"]


def _numbers(value: Tensor) -> str:
    flat = value.detach().flatten()
    if flat.numel() <= 4:
        return ", ".join(f"{v:.4g}" for v in flat.tolist())
    return f"{flat.min():.4g} to {flat.max():.4g}, median {flat.median():.4g} ({flat.numel()} values)"


def _trained(module: nn.Module) -> int:
    """How many numbers training moves, be it by Adam or by natural gradients."""
    natural = (b.numel() for m in module.modules() if isinstance(m, NaturalSites) and m.learn for b in m.buffers())
    return sum(p.numel() for p in module.parameters() if p.requires_grad) + sum(natural)


def describe_values(module: nn.Module) -> list[str]:
    """A line for every hyperparameter inside a module.

    >>> from vibayes.kernels import SquaredExponential
    >>> describe_values(SquaredExponential(2, lengthscale=0.5))
    ['lengthscale 0.5', 'variance 1']
    """
    return [
        f"{name} {_numbers(parameter.value)}{'' if parameter.raw.requires_grad else ' (fixed)'}".strip()
        for name, parameter in hyperparameters(module)
    ]


def describe_layer(layer: Layer) -> list[str]:
    """Lines about one Bayesian layer: what it is, what it approximates, and its hyperparameters."""
    trained = _trained(layer)
    options = layer.posterior.extra_repr()
    lines = [
        f"{type(layer).__name__} {layer.in_features} -> {layer.out_features}, "
        f"posterior {type(layer.posterior).__name__}{f'({options})' if options else ''}, "
        f"{trained:,} parameters to train"
    ]
    for name, child in layer.named_children():
        if child is layer.posterior or isinstance(child, ZeroMean):
            continue
        kind = [] if isinstance(child, Hyperparameter | White) else [type(child).__name__]
        values = "; ".join(describe_values(child))
        title = "noise" if isinstance(child, White) else name
        lines.append(f"  {title}: {', '.join([*kind, values] if values else kind)}")
    return lines


def describe_model(model: "Model") -> str:
    """The text of `Model.describe`."""
    layers = model.layers
    trained = _trained(model)
    lines = [
        f"Model with {len(layers)} Bayesian layer{'s' if len(layers) > 1 else ''}, {trained:,} parameters to train, "
        f"{str(model.dtype).removeprefix('torch.')}"
    ]
    if model.inducing is not None:
        lines.append(f"{len(model.inducing)} inducing inputs of shape {list(model.inducing.shape[1:])}")
    for name, layer in layers.items():
        first, *rest = describe_layer(layer)
        lines += [f"{name}: {first}", *rest]
    values = "; ".join(describe_values(model.likelihood))
    lines.append(f"likelihood: {type(model.likelihood).__name__}{', ' + values if values else ''}")
    if model.units.standardize is not None:
        what = {"inputs": "inputs", "targets": "targets", "both": "inputs and targets"}[model.units.standardize]
        lines.append(f"standardises {what}")
    return "\n".join(lines)
