"""An ordinary torch network, made Bayesian."""

import copy
import fnmatch
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from vibayes.errors import ConfigurationError, kind_of
from vibayes.layers.batch_norm import BatchNorm
from vibayes.layers.conv2d import Conv2d
from vibayes.layers.linear import Linear
from vibayes.layers.weights import WeightLayer
from vibayes.posteriors import FromPrior, GlobalInducing, MeanField, Point
from vibayes.posteriors.base import Posterior
from vibayes.priors import Prior

__all__ = ["bayesianize"]

_MADE_BAYESIAN = (nn.Linear, nn.Conv2d)
_NORMALISATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# these use the weights of layers inside them without calling the layers
_READERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def bayesianize(
    module: nn.Module,
    *,
    prior: Prior | None = None,
    posterior: Posterior | None = None,
    last: Posterior | None = None,
    skip: str | Iterable[str] | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """A copy of a network in which every `nn.Linear` and `nn.Conv2d` is a Bayesian layer.

    Everything else stays as it is: activations, pooling, residual connections, the code of `forward`. Where that does
    to rows what `torch.func.vmap` cannot batch (masks of booleans, branches on values, an LSTM), draws go through one
    after another, which takes longer. Normalisation by batch statistics (`nn.BatchNorm1d`, `2d`, `3d`) would depend on
    the draw; where layers have global inducing points it becomes `vibayes.BatchNorm`, which uses the inducing rows, and
    otherwise it is refused. In front of the last layer it stays as it is where all others are `Point`. Modules that
    read `layer.weight` of their layers themselves, as torch's attention and transformer layers do, must be in `skip`:
    Bayesian layers have no such attribute. `Model` makes the parameters of the new layers, in torch's default dtype, to
    which the network's must fit; a network on a GPU needs `model.to(device)` then.

    Args:
        module: the network. It is not changed.
        prior: of all weights; `NealPrior()` by default.
        posterior: of all layers; `GlobalInducing()` by default.
        last: of the last layer, if another one: `posterior=MeanField(), last=GlobalInducing()` is the thesis's
            "fac -> gi". The last layer is the one registered last, as in `named_modules`.
        skip: names of modules to leave as they are, such as `"features.0"`, with `*` and `?` as wildcards; a name
            stands for all that is inside; nothing by default.
        pretrained: start means (`MeanField`) or weights (`Point`) at the network's own. Other posteriors have no
            weights to start from; where all are such, there is a warning.

    >>> import vibayes as vb
    >>> plain = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> network = bayesianize(plain, posterior=vb.MeanField(), last=vb.GlobalInducing())
    >>> model = vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(10, 2))
    >>> list(model.layers)
    ['0', '2']
    """
    if not isinstance(module, nn.Module):
        raise ConfigurationError(f"bayesianize takes a torch module, got {type(module).__name__}.")
    for option, given in (("posterior", posterior), ("last", last)):
        if given is not None and not isinstance(given, Posterior):
            raise ConfigurationError(f"{option} must be a posterior such as MeanField(), got {kind_of(given)}.")
    named = dict(module.named_modules(remove_duplicate=False))
    skipped = _skipped(list(named), skip)
    chosen = [name for name, m in named.items() if isinstance(m, _MADE_BAYESIAN) and name not in skipped]
    if not chosen:
        raise ConfigurationError(
            "The network has no nn.Linear or nn.Conv2d to make Bayesian"
            f"{', other than those in skip' if skipped else ''}."
        )
    usual = GlobalInducing() if posterior is None else posterior
    posteriors = {name: usual if last is None or name != chosen[-1] else last for name in chosen}
    norms = {n: m for n, m in named.items() if isinstance(m, _BatchNorm) and n not in skipped}
    hidden = [p for name, p in posteriors.items() if name != chosen[-1]]
    if all(p.deterministic for p in hidden) and not posteriors[chosen[-1]].takes_inducing:
        norms = {}  # in front of the last layer batch statistics are the same in every draw; Model looks at the others
    for name in (*chosen, *norms):
        _check_replaceable(name, named)
    _check_sharing(module, {*chosen, *norms})
    network = copy.deepcopy(module)
    copied = dict(network.named_modules(remove_duplicate=False))
    found: dict[str, nn.Module] = {n: _converted(n, copied[n], prior, p, pretrained) for n, p in posteriors.items()}
    found |= {name: _normalised(name, m, list(posteriors.values()), pretrained) for name, m in norms.items()}
    if pretrained and not any(isinstance(p, MeanField | Point) for p in posteriors.values()):
        warnings.warn(
            "pretrained=True leaves the network's weights unused: no layer has a posterior that can start from them "
            f"(got {type(usual).__name__}). Use MeanField() or Point().",
            stacklevel=2,
        )
    for name, new in found.items():
        if name == "":
            return new
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, new)
    return network


def _skipped(names: list[str], skip: str | Iterable[str] | None) -> set[str]:
    """The names that patterns stand for, and all that is inside these modules."""
    found: set[str] = set()
    if skip is None:
        return found
    for pattern in skip if isinstance(skip, Iterable) and not isinstance(skip, str) else [skip]:
        if not isinstance(pattern, str):
            raise ConfigurationError(
                f'skip must be names of modules, such as "0" or ["head", "features.*"], got {kind_of(pattern)}.'
            )
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise ConfigurationError(
                f"skip={pattern!r} names no module of the network. It has {', '.join(n for n in names[1:9])}"
                f"{', ...' if len(names) > 9 else ''}."
            )
        found |= {name for name in names for top in matched if name == top or name.startswith(f"{top}.")}
    return found


def _check_replaceable(name: str, named: Mapping[str, nn.Module]) -> None:
    """Refuse a module that does more than what would take its place, or that is not ready."""
    module, around = named[name], name.rpartition(".")[0]
    this = f"{_called(name)} is a {type(module).__name__}"
    if isinstance(named[around], _READERS):
        raise ConfigurationError(
            f"{name!r} sits in {_called(around)}, a {type(named[around]).__name__}, which reads the weights of its "
            "layers itself, and Bayesian layers have none to read. Put that whole module into skip."
        )
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise ConfigurationError(
            f"{this} that has not seen data, so its size is not known. Run one batch through the network first: "
            "network(x)."
        )
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    if type(module) not in (*_MADE_BAYESIAN, *_NORMALISATIONS) or parametrize.is_parametrized(module) or any(hooks):
        raise ConfigurationError(
            f"{this} with something added (a subclass, a parametrization or hooks), which would be lost. Take it off, "
            "or put the layer, or the module around it, into skip."
        )
    default = torch.get_default_dtype()
    for parameter in module.parameters(recurse=False):
        if torch.promote_types(parameter.dtype, default) != default:
            raise ConfigurationError(
                f"{this} of {parameter.dtype}, but what takes its place is made in torch's default dtype, "
                f"{default}. Convert the network first, network.to({default}), or change the default by "
                "torch.set_default_dtype."
            )


def _check_sharing(network: nn.Module, replaced: set[str]) -> None:
    """A layer in two places, or one weight in two modules, would need one draw for both."""
    first: dict[int, str] = {}
    for path, parameter in network.named_parameters(remove_duplicate=False):
        name, _, kind = path.rpartition(".")
        other = first.setdefault(id(parameter), name)
        if other != name and (name in replaced or other in replaced):
            raise ConfigurationError(
                f"{_called(name)} and {_called(other)} share one {kind}, which Bayesian layers cannot. Give each place "
                "a layer of its own, or put both into skip."
            )


def _called(name: str) -> str:
    """A module's name in messages."""
    return repr(name) if name else "the network"


def _converted(
    name: str, module: nn.Module, prior: Prior | None, posterior: Posterior, pretrained: bool
) -> WeightLayer:
    """The Bayesian layer in place of one module."""
    layer: WeightLayer
    if isinstance(module, nn.Linear):
        layer = Linear(
            module.in_features, module.out_features, module.bias is not None, prior=prior, posterior=posterior
        )
    else:
        assert isinstance(module, nn.Conv2d)
        layer = Conv2d(
            module.in_channels,
            module.out_channels,
            _pair(module.kernel_size),
            _pair(module.stride),
            _padding(name, module),
            module.bias is not None,
            prior=prior,
            posterior=posterior,
        )
    if pretrained:
        assert isinstance(module.weight, Tensor)
        rows = [module.weight.detach().flatten(1).mT]
        if isinstance(module.bias, Tensor):
            rows.append(module.bias.detach()[None])
        layer.start = torch.cat(rows)  # [K, P]
    return layer


def _padding(name: str, module: nn.Conv2d) -> tuple[int, int]:
    """The padding of a convolution that Conv2d knows; others are refused."""
    this = _called(name)
    if module.groups != 1:
        raise ConfigurationError(
            f"{this} is a convolution with groups={module.groups}; Bayesian convolutions have one group. Put it into "
            "skip, or replace it."
        )
    if _pair(module.dilation) != (1, 1):
        raise ConfigurationError(
            f"{this} is a convolution with dilation={module.dilation}; Bayesian convolutions have dilation 1. Put it "
            "into skip, or replace it."
        )
    if module.padding_mode != "zeros":
        raise ConfigurationError(
            f"{this} pads with {module.padding_mode!r}; Bayesian convolutions pad with zeros. Put it into skip."
        )
    if module.padding == "valid":
        return 0, 0
    if module.padding == "same":
        kernel = _pair(module.kernel_size)
        if kernel[0] % 2 == 0 or kernel[1] % 2 == 0:
            raise ConfigurationError(
                f"{this} has padding='same' and a kernel of even size {kernel}, which pads unevenly. Pad before it "
                "with nn.ZeroPad2d and use padding=0."
            )
        return kernel[0] // 2, kernel[1] // 2
    return _pair(module.padding)


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


def _normalised(name: str, module: _BatchNorm, posteriors: list[Posterior], pretrained: bool) -> nn.Module:
    """What stands in place of normalisation by batch statistics."""
    if not any(p.takes_inducing and not isinstance(p, FromPrior) for p in posteriors):
        raise ConfigurationError(
            f"{name!r} is a {type(module).__name__}: its statistics would depend on the draw and on the other rows of "
            "the batch. Use a posterior with global inducing points, for which it becomes BatchNorm on the inducing "
            "rows; or take it out; or put it into skip and keep the network in eval mode."
        )
    found = BatchNorm(module.num_features, module.eps, affine=module.affine)
    if module.affine:
        found.to(module.weight.device)
    if pretrained and module.affine:
        with torch.no_grad():
            for ours, theirs in ((found.weight, module.weight), (found.bias, module.bias)):
                assert ours is not None
                ours.copy_(theirs)
    return found
