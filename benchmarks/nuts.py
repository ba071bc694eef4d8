"""NUTS on the cubic-toy network (1-50-50-1, ReLU, NealPrior, fixed noise): effective draws per second.

Ours beside NumPyro's on the same model, data, priors, starts and depth, in one run on the CPU, where NumPyro is
installed. The number that counts is the smallest bulk effective sample size of the function over 50 inputs, divided by
the seconds of sampling. Warm-up is timed apart, and with it compilation: NumPyro samples twice, and the second time
counts. Both get the same `--threads` processors.

    python benchmarks/nuts.py --compile --warmup 300 --samples 300 --out nuts.json
"""

import argparse
import importlib.util
import itertools
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

import vibayes as vb
from vibayes.mcmc import NUTS, ess_bulk, rhat
from vibayes.mcmc.target import can_compile

GRID = torch.linspace(-6.0, 6.0, 50, dtype=torch.float64)[:, None]


def data() -> tuple[torch.Tensor, torch.Tensor, float]:
    """The cubic, standardised, and its noise variance on that scale."""
    split = vb.datasets.cubic(0)
    x, y = split.x_train, split.y_train
    noise = split.metadata["noise_variance"] / float(y.var(correction=0))
    return (x - x.mean(0)) / x.std(0, correction=0), (y - y.mean()) / y.std(correction=0), noise


def report(name: str, f: torch.Tensor, log_density: torch.Tensor, warmup: float, sampling: float, leaps: float) -> dict:
    ess, worst = float(ess_bulk(f).min()), float(rhat(f).max())
    found = {
        "warmup_seconds": warmup,
        "sampling_seconds": sampling,
        "leapfrog_per_draw": leaps,
        "rhat_function": worst,
        "rhat_log_density": float(rhat(log_density)),
        "ess_function": ess,
        "ess_per_second": ess / sampling,
    }
    print(
        f"{name}: warm-up {warmup:.1f} s, sampling {sampling:.1f} s, {leaps:.0f} leapfrog steps per draw, R-hat "
        f"{worst:.3f}, ESS {ess:.0f}, {ess / sampling:.2f} per second",
        flush=True,
    )
    return found


def ours(arguments: argparse.Namespace) -> dict:
    x, y, noise = data()
    x, y = x.to(torch.get_default_dtype()), y.to(torch.get_default_dtype())
    widths = (1, 50, 50, 1)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [vb.Linear(a, b, posterior=vb.Point()), nn.ReLU()]
    model = vb.Model(nn.Sequential(*layers[:-1]), vb.Gaussian(noise, learn=False))
    seconds: list[float] = []

    class Timed(NUTS):
        """Notes when each transition ended."""

        def transition(self, *args: object) -> object:  # type: ignore[override]
            found = super().transition(*args)  # type: ignore[arg-type]
            seconds.append(time.perf_counter())
            return found

    begin = time.perf_counter()
    chains = vb.sample_posterior(
        model,
        (x, y),
        sampler=Timed(arguments.depth),
        n_chains=arguments.chains,
        n_warmup=arguments.warmup,
        n_samples=arguments.samples,
        compile=arguments.compile,
        progress=False,
    )
    warmed = seconds[arguments.warmup - 1]
    split = vb.datasets.cubic(0)
    scale, centre = split.x_train.std(0, correction=0), split.x_train.mean(0)
    f = chains.functions(((GRID - centre) / scale).to(x)).reshape(chains.n_chains, chains.n_samples, -1)
    leaps = float(chains.n_leapfrog.double().mean())
    name = f"vibayes, {x.dtype}{', compiled' if arguments.compile else ''}"
    return report(name, f, chains.log_density, warmed - begin, seconds[-1] - warmed, leaps)


def numpyros(arguments: argparse.Namespace) -> dict:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", not arguments.float32)
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, init_to_sample
    from numpyro.infer import NUTS as THEIRS

    x, y, noise = data()
    kind = jnp.float32 if arguments.float32 else jnp.float64
    inputs, targets = jnp.asarray(x.numpy(), kind), jnp.asarray(y.numpy(), kind)
    widths = (1, 50, 50, 1)

    def network(weights: list, rows: object) -> object:
        for i, w in enumerate(weights):
            rows = jnp.concatenate([rows, jnp.ones((rows.shape[0], 1), kind)], 1) @ w
            rows = jnp.maximum(rows, 0.0) if i < len(weights) - 1 else rows
        return rows[:, 0]

    def model() -> None:
        weights = []
        for i, (a, b) in enumerate(itertools.pairwise(widths)):
            w = numpyro.sample(f"w{i}", dist.Normal(0.0, (a + 1) ** -0.5).expand([a + 1, b]).to_event(2))
            weights.append(w)
        numpyro.sample("y", dist.Normal(network(weights, inputs), noise**0.5).to_event(1), obs=targets)

    kernel = THEIRS(model, init_strategy=init_to_sample, max_tree_depth=arguments.depth, target_accept_prob=0.8)
    mcmc = MCMC(
        kernel,
        num_warmup=arguments.warmup,
        num_samples=arguments.samples,
        num_chains=arguments.chains,
        chain_method=arguments.chain_method,
        progress_bar=False,
    )
    fields = ("num_steps", "potential_energy")
    begin = time.perf_counter()
    mcmc.warmup(jax.random.PRNGKey(0), extra_fields=fields)  # compilation included
    jax.block_until_ready(mcmc.last_state)
    warmed = time.perf_counter()
    mcmc.run(mcmc.last_state.rng_key, extra_fields=fields)  # compiles what the next line needs
    jax.block_until_ready(mcmc.get_samples())
    mcmc.post_warmup_state = mcmc.last_state
    again = time.perf_counter()
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=fields)
    samples = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
    end = time.perf_counter()
    split = vb.datasets.cubic(0)
    grid = jnp.asarray(((GRID - split.x_train.mean(0)) / split.x_train.std(0, correction=0)).numpy(), kind)
    flat = [samples[f"w{i}"] for i in range(3)]
    f = jax.vmap(jax.vmap(lambda *weights: network(list(weights), grid)))(*flat)
    extra = mcmc.get_extra_fields(group_by_chain=True)
    as_torch = [torch.tensor(jax.device_get(v)).double() for v in (f, extra["potential_energy"], extra["num_steps"])]
    name = f"NumPyro {numpyro.__version__}, {kind.__name__}, {arguments.chain_method}"
    return report(name, as_torch[0], -as_torch[1], warmed - begin, end - again, float(as_torch[2].mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--chain-method", default="vectorized", choices=["vectorized", "sequential", "parallel"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float32 if arguments.float32 else torch.float64)
    torch.set_num_threads(arguments.threads)
    if hasattr(os, "sched_setaffinity"):  # XLA takes all processors that it may use
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    if arguments.compile and not can_compile():
        print("There is no C++ compiler here: ours runs without --compile.")
        arguments.compile = False
    os.environ.setdefault(
        "XLA_FLAGS",
        f"--xla_cpu_multi_thread_eigen={str(arguments.threads > 1).lower()} "
        f"--xla_force_host_platform_device_count={arguments.chains if arguments.chain_method == 'parallel' else 1}",
    )
    rows = {"vibayes": ours(arguments)}
    if importlib.util.find_spec("numpyro") is not None:
        try:
            rows["numpyro"] = numpyros(arguments)
        except Exception as error:  # what was measured of ours is kept
            rows["numpyro"] = {"failed": f"{type(error).__name__}: {error}"}
            print(f"NumPyro failed: {type(error).__name__}: {error}")
        else:
            ratio = rows["vibayes"]["ess_per_second"] / rows["numpyro"]["ess_per_second"]
            print(f"effective samples per second, ours over NumPyro's: {ratio:.2f}")
    else:
        print("NumPyro is not installed here (pip install numpyro); only ours was timed.")
    if arguments.out is not None:
        options = {k: str(v) for k, v in vars(arguments).items() if k != "out"}
        arguments.out.write_text(json.dumps({"options": options, **rows}, indent=2))


if __name__ == "__main__":
    main()
