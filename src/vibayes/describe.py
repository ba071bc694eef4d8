"""What a model is, in words: its layers, kernels, hyperparameters and sizes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.distributions import Distribution

from vibayes.kernels.base import Kernel
from vibayes.kernels.combinations import ActiveDimensions
from vibayes.kernels.white import White
from vibayes.layers.base import Layer
from vibayes.means import ZeroMean
from vibayes.parameters import Hyperparameter, hyperparameters
from vibayes.posteriors.natural import NaturalSites

if TYPE_CHECKING:
    from vibayes.conjugate.base import ConjugateModel
    from vibayes.model import Model
    from vibayes.trainable import TrainableModel

__all__ = ["describe_closed_form", "describe_layer", "describe_model", "describe_part", "describe_values"]


def _numbers(value: Tensor) -> str:
    flat = value.detach().flatten()
    if flat.numel() <= 4:
        return ", ".join(f"{v:.4g}" for v in flat.tolist())
    return f"{flat.min():.4g} to {flat.max():.4g}, median {flat.median():.4g} ({flat.numel()} values)"


def _trained(module: nn.Module) -> int:
    """How many numbers training moves, be it by Adam or by natural gradients."""
    natural = (b.numel() for m in module.modules() if isinstance(m, NaturalSites) and m.learn for b in m.buffers())
    return sum(p.numel() for p in module.parameters() if p.requires_grad) + sum(natural)


def describe_values(module: nn.Module, but: tuple[str, ...] = ()) -> list[str]:
    """A line for every hyperparameter inside a module, but for those whose names begin as in `but`.

    >>> from vibayes.kernels import SquaredExponential
    >>> describe_values(SquaredExponential(2, lengthscale=0.5))
    ['lengthscale 0.5', 'variance 1']
    """
    return [
        f"{name} {_numbers(parameter.value)}{_notes(parameter)}".strip()
        for name, parameter in hyperparameters(module)
        if not name.startswith(but)
    ]


def _notes(parameter: Hyperparameter) -> str:
    notes = [] if parameter.raw.requires_grad else ["fixed"]
    if parameter.prior is not None:
        notes.append(f"prior {_distribution(parameter.prior)}")
    return f" ({', '.join(notes)})" if notes else ""


def _distribution(prior: Distribution) -> str:
    """Its name and parameters; torch's own text leaves those of transformed distributions out."""
    values = ", ".join(f"{name} {_numbers(getattr(prior, name))}" for name in prior.arg_constraints)
    return f"{type(prior).__name__}({values})" if values else str(prior)


def describe_part(module: nn.Module) -> str:
    """A kernel, mean, prior or network in one line: its kind, its hyperparameters, and the kernels it is made of.

    >>> from vibayes.kernels import LinearKernel, SquaredExponential
    >>> describe_part(SquaredExponential(2) + LinearKernel(2))
    'Sum of (SquaredExponential, lengthscale 1; variance 1) and (LinearKernel, variance 1)'
    """
    if isinstance(module, Hyperparameter):
        return "; ".join(describe_values(module))
    inner: dict[str, Kernel] = {}
    for path, part in module.named_modules():
        if path and isinstance(part, Kernel) and not path.startswith(tuple(f"{other}." for other in inner)):
            inner[path] = part
    values = describe_values(module, tuple(f"{path}." for path in inner))
    kind = type(module).__name__
    if isinstance(module, ActiveDimensions):
        kind += f" {list(module.dimensions)}"
    text = ", ".join([kind, "; ".join(values)] if values else [kind])
    parts = " and ".join(f"({describe_part(part)})" for part in inner.values())
    return f"{text}{',' if values else ''} of {parts}" if parts else text


def describe_layer(layer: Layer, users: Mapping[nn.Module, list[str]]) -> list[str]:
    """Lines about one Bayesian layer: what it is, what it approximates, and its hyperparameters.

    Args:
        layer: the layer.
        users: names of the layers that have a kernel or a mean as a part.
    """
    trained = _trained(layer)
    options = layer.posterior.extra_repr()
    inputs = getattr(layer, "in_channels", layer.in_features)  # features of a convolution are those of a patch
    lines = [
        f"{type(layer).__name__} {inputs} -> {layer.out_features}, "
        f"posterior {type(layer.posterior).__name__}{f'({options})' if options else ''}, "
        f"{trained:,} parameters to train"
    ]
    for name, child in layer.named_children():
        if isinstance(child, White):
            lines.append(f"  noise: {'; '.join(describe_values(child))}")
        elif child is not layer.posterior and not isinstance(child, ZeroMean):
            others = ", ".join(repr(user) for user in users[child] if user != layer.name)
            lines.append(f"  {name}: {describe_part(child)}{f'; shared with layer {others}' if others else ''}")
    return lines


def describe_model(model: "Model") -> str:
    """The text of `Model.describe`."""
    layers = model.layers
    lines = [_heading(model, f"Model with {len(layers)} Bayesian layer{'s' if len(layers) > 1 else ''}")]
    if model.inducing is not None:
        lines.append(f"{len(model.inducing)} inducing inputs of shape {list(model.inducing.shape[1:])}")
    users: dict[nn.Module, list[str]] = {}
    for name, layer in layers.items():
        for child in layer.children():
            users.setdefault(child, []).append(name)
    for name, layer in layers.items():
        first, *rest = describe_layer(layer, users)
        lines += [f"{name}: {first}", *rest]
    return "\n".join([*lines, *_ending(model)])


def describe_closed_form(model: "ConjugateModel") -> str:
    """The text of `describe` of models whose inference is closed-form."""
    lines = [_heading(model, type(model).__name__)]
    for name, parameter in model.named_parameters(recurse=False):
        if name == "inducing":
            lines.append(f"{len(parameter)} inducing inputs of shape {list(parameter.shape[1:])}")
    for name, child in model.named_children():
        if child not in (model.likelihood, model.units, model.observations) and not isinstance(child, ZeroMean):
            lines.append(f"{name.replace('_', ' ')}: {describe_part(child)}")
    seen = len(model.observations.x)
    return "\n".join([*lines, *_ending(model), *([f"has seen {seen:,} rows"] if seen else [])])


def _heading(model: "TrainableModel", what: str) -> str:
    return f"{what}, {_trained(model):,} parameters to train, {str(model.dtype).removeprefix('torch.')}"


def _ending(model: "TrainableModel") -> list[str]:
    """Lines about the likelihood and the units."""
    lines = [f"likelihood: {describe_part(model.likelihood)}"]
    if model.units.standardize is not None:
        what = {"inputs": "inputs", "targets": "targets", "both": "inputs and targets"}[model.units.standardize]
        lines.append(f"standardises {what}")
    return lines
