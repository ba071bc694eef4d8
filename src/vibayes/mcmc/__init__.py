"""Markov chain Monte Carlo over the parameters of any model: HMC, NUTS, and SGLD and SGHMC with minibatches."""

from vibayes.mcmc.chains import Chains, Summary
from vibayes.mcmc.diagnostics import ess, ess_bulk, ess_tail, rhat
from vibayes.mcmc.hmc import HMC
from vibayes.mcmc.minibatch import sample_minibatch
from vibayes.mcmc.nuts import NUTS
from vibayes.mcmc.sample import sample_posterior
from vibayes.mcmc.sgld import SGHMC, SGLD, robbins_monro
from vibayes.mcmc.target import ModelTarget, Target

__all__ = [
    "HMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "Chains",
    "ModelTarget",
    "Summary",
    "Target",
    "ess",
    "ess_bulk",
    "ess_tail",
    "rhat",
    "robbins_monro",
    "sample_minibatch",
    "sample_posterior",
]
