"""Training a network in stages: which parameters are its weights, freezing them, and taking over pretrained ones."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from vibayes.errors import ConfigurationError
from vibayes.kernels.base import Kernel
from vibayes.likelihoods.base import Likelihood
from vibayes.means import Mean
from vibayes.parameters import Hyperparameter
from vibayes.posteriors.base import Posterior
from vibayes.priors import Prior

__all__ = ["freeze", "network_weights", "take_over", "unfreeze"]

# Modules of a model whose own parameters are no weights of a network; what stands inside them may be.
_NOT_WEIGHTS = (Hyperparameter, Kernel, Likelihood, Mean)
# Modules that change what a network computes in training mode, without any gradient.
_KEEP_STATE = (nn.modules.batchnorm._BatchNorm, parametrizations._SpectralNorm)


def network_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of a model's plain torch modules and of its `Point` layers, by name.

    They are what a network without Bayesian layers would have: not the hyperparameters of kernels and likelihoods, not
    variational parameters, and not inducing inputs.

    >>> import vibayes as vb
    >>> layer = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(5))
    >>> model = vb.Model(nn.Sequential(nn.Linear(3, 2), layer), vb.Gaussian())
    >>> list(network_weights(model))
    ['network.0.weight', 'network.0.bias']
    """
    return dict(_weights(model, "", top=True))


def _weights(module: nn.Module, prefix: str, top: bool = False) -> Iterator[tuple[str, nn.Parameter]]:
    if isinstance(module, Posterior):
        if module.deterministic:  # the parameters of a `Point` are weights
            yield from module.named_parameters(prefix=prefix)
        return
    if isinstance(module, Prior):  # its parameters are of the distribution of weights
        return
    own = not (top or isinstance(module, _NOT_WEIGHTS) or isinstance(getattr(module, "posterior", None), Posterior))
    if own:
        for name, parameter in module.named_parameters(recurse=False):
            yield _join(prefix, name), parameter
    for name, child in module.named_children():
        yield from _weights(child, _join(prefix, name))


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def freeze(model: nn.Module) -> list[str]:
    """Keep the weights of a model's network out of training; kernels and posteriors go on learning.

    The stage "fSVDKL" of the thesis: a GP on the frozen features of a trained network. Batch and spectral normalisation
    are put into evaluation mode, so that their averages and norms stay as they are too.

    Returns:
        The names of the weights that were frozen.

    >>> import vibayes as vb
    >>> layer = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(5))
    >>> model = vb.Model(nn.Sequential(nn.Linear(3, 2), layer), vb.Gaussian())
    >>> freeze(model)
    ['network.0.weight', 'network.0.bias']
    """
    return _set_training(model, False)


def unfreeze(model: nn.Module) -> list[str]:
    """Let training change the network's weights again: the joint stage, "pSVDKL" of the thesis.

    Returns:
        The names of the weights that training changes again.

    >>> import vibayes as vb
    >>> layer = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(5))
    >>> model = vb.Model(nn.Sequential(nn.Linear(3, 2), layer), vb.Gaussian())
    >>> freeze(model) == unfreeze(model)
    True
    """
    return _set_training(model, True)


def _set_training(model: nn.Module, train: bool) -> list[str]:
    weights = network_weights(model)
    if not weights:
        raise ConfigurationError("The model has no network: none of its parameters are weights of torch modules.")
    for parameter in weights.values():
        parameter.requires_grad_(train)
    for module in model.modules():
        if isinstance(module, _KEEP_STATE):
            module.train(train)
    return list(weights)


@torch.no_grad()
def take_over(target: nn.Module, source: nn.Module | Mapping[str, Any]) -> list[str]:
    """Copy the weights (and running averages) of a trained network into another of the same architecture.

    Args:
        target: the network to fill, such as the features of a deep kernel.
        source: the network they come from, or its `state_dict`.

    Returns:
        The names that were copied, which are all of the target's.

    >>> a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    >>> take_over(b, a)
    ['weight', 'bias']
    >>> bool((a.weight == b.weight).all())
    True
    """
    given: Mapping[str, Tensor] = source.state_dict() if isinstance(source, nn.Module) else source
    wanted = target.state_dict()
    problems = [name for name in wanted if name not in given] + [name for name in given if name not in wanted]
    problems += [name for name in wanted if name in given and wanted[name].shape != given[name].shape]
    if problems:
        raise ConfigurationError(
            f"The two networks differ in {', '.join(problems[:5])}{' ...' if len(problems) > 5 else ''}; weights can "
            "be taken over between networks of the same architecture only."
        )
    for name, value in wanted.items():
        value.copy_(given[name])
    return list(wanted)
