"""An ordinary torch network, made Bayesian."""

import copy
import fnmatch
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from vibayes.errors import ConfigurationError
from vibayes.layers.batch_norm import BatchNorm
from vibayes.layers.conv2d import Conv2d
from vibayes.layers.linear import Linear
from vibayes.layers.weights import WeightLayer
from vibayes.posteriors import FromPrior, GlobalInducing
from vibayes.posteriors.base import Posterior
from vibayes.priors import Prior

__all__ = ["bayesianize"]

_MADE_BAYESIAN = (nn.Linear, nn.Conv2d)


def bayesianize(
    module: nn.Module,
    *,
    prior: Prior | None = None,
    posterior: Posterior | None = None,
    last: Posterior | None = None,
    skip: str | Iterable[str] = (),
    pretrained: bool = False,
) -> nn.Module:
    """A copy of a network in which every `nn.Linear` and `nn.Conv2d` is a Bayesian layer.

    Everything else stays as it is: activations, pooling, residual connections, the code of `forward`. Normalisation
    by batch statistics (`nn.BatchNorm1d`, `2d`, `3d`) would depend on the draw; where layers have global inducing
    points it becomes `vibayes.BatchNorm`, which uses the inducing rows, and otherwise it is refused.

    Args:
        module: the network. It is not changed.
        prior: of all weights; `NealPrior()` by default.
        posterior: of all layers; `GlobalInducing()` by default.
        last: of the last layer, if another one: `posterior=MeanField(), last=GlobalInducing()` is the thesis's
            "fac -> gi". The last layer is the one registered last, as in `named_modules`.
        skip: names of modules to leave as they are, such as `"features.0"`, with `*` and `?` as wildcards; a name
            stands for all that is inside.
        pretrained: start means (`MeanField`) or weights (`Point`) at the network's own. Other posteriors have no
            weights to start from.

    >>> import vibayes as vb
    >>> plain = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> network = bayesianize(plain, posterior=vb.MeanField(), last=vb.GlobalInducing())
    >>> model = vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(10, 2))
    >>> list(model.layers)
    ['0', '2']
    """
    if not isinstance(module, nn.Module):
        raise ConfigurationError(f"bayesianize takes a torch module, got {type(module).__name__}.")
    network = copy.deepcopy(module)
    named = dict(network.named_modules())
    skipped = _skipped(list(named), [skip] if isinstance(skip, str) else list(skip))
    chosen = [name for name, m in named.items() if isinstance(m, _MADE_BAYESIAN) and name not in skipped]
    if not chosen:
        raise ConfigurationError(
            "The network has no nn.Linear or nn.Conv2d to make Bayesian"
            f"{', other than those in skip' if skipped else ''}."
        )
    _check_sharing(network, skipped)
    usual = GlobalInducing() if posterior is None else posterior
    posteriors = {name: usual if last is None or name != chosen[-1] else last for name in chosen}
    found: dict[str, nn.Module] = {
        name: _converted(name, named[name], prior, posteriors[name], pretrained) for name in chosen
    }
    norms = {n: m for n, m in named.items() if isinstance(m, _BatchNorm) and n not in skipped}
    found |= {name: _normalised(name, m, list(posteriors.values()), pretrained) for name, m in norms.items()}
    for name, new in found.items():
        if name == "":
            return new
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, new)
    return network


def _skipped(names: list[str], patterns: list[str]) -> set[str]:
    """The names that patterns stand for, and all that is inside these modules."""
    found: set[str] = set()
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise ConfigurationError(
                f"skip={pattern!r} names no module of the network. It has {', '.join(n for n in names[1:9])}"
                f"{', ...' if len(names) > 9 else ''}."
            )
        found |= {name for name in names for top in matched if name == top or name.startswith(f"{top}.")}
    return found


def _check_sharing(network: nn.Module, skipped: set[str]) -> None:
    """A layer in two places, or two layers with one weight, would need one draw for both."""
    first: dict[int, str] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        if (
            not isinstance(module, _MADE_BAYESIAN)
            or name in skipped
            or isinstance(module.weight, nn.UninitializedParameter)
        ):
            continue
        other = first.setdefault(id(module.weight), name)
        if other != name:
            raise ConfigurationError(
                f"{name!r} and {other!r} share one weight, which Bayesian layers cannot. Give each place a layer of "
                "its own, or put both into skip."
            )


def _converted(
    name: str, module: nn.Module, prior: Prior | None, posterior: Posterior, pretrained: bool
) -> WeightLayer:
    """The Bayesian layer in place of one module."""
    if type(module) not in _MADE_BAYESIAN or parametrize.is_parametrized(module) or module._forward_pre_hooks:
        raise ConfigurationError(
            f"{name!r} is a {type(module).__name__} with something added (a subclass, a parametrization or hooks), so "
            "its weights are not used in the ordinary way. Put it, or the module around it, into skip."
        )
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
    if module.groups != 1:
        raise ConfigurationError(
            f"{name!r} is a convolution with groups={module.groups}; Bayesian convolutions have one group. Put it into "
            "skip, or replace it."
        )
    if _pair(module.dilation) != (1, 1):
        raise ConfigurationError(
            f"{name!r} is a convolution with dilation={module.dilation}; Bayesian convolutions have dilation 1. Put it "
            "into skip, or replace it."
        )
    if module.padding_mode != "zeros":
        raise ConfigurationError(
            f"{name!r} pads with {module.padding_mode!r}; Bayesian convolutions pad with zeros. Put it into skip."
        )
    if module.padding == "valid":
        return 0, 0
    if module.padding == "same":
        kernel = _pair(module.kernel_size)
        if kernel[0] % 2 == 0 or kernel[1] % 2 == 0:
            raise ConfigurationError(
                f"{name!r} has padding='same' and a kernel of even size {kernel}, which pads unevenly. Pad before it "
                "with nn.ZeroPad2d and use padding=0."
            )
        return kernel[0] // 2, kernel[1] // 2
    return _pair(module.padding)


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


def _normalised(name: str, module: _BatchNorm, posteriors: list[Posterior], pretrained: bool) -> nn.Module:
    """What stands in place of normalisation by batch statistics."""
    if all(posterior.deterministic for posterior in posteriors):
        return module
    if not any(p.takes_inducing and not isinstance(p, FromPrior) for p in posteriors):
        raise ConfigurationError(
            f"{name!r} is a {type(module).__name__}: its statistics would depend on the draw and on the other rows of "
            "the batch. Use a posterior with global inducing points, for which it becomes BatchNorm on the inducing "
            "rows; or take it out; or put it into skip and keep the network in eval mode."
        )
    found = BatchNorm(module.num_features, module.eps, affine=module.affine)
    if pretrained and module.affine:
        with torch.no_grad():
            for ours, theirs in ((found.weight, module.weight), (found.bias, module.bias)):
                assert ours is not None
                ours.copy_(theirs)
    return found
