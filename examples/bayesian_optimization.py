"""Bayesian optimisation with a deep Wishart process against a Gaussian process.

The thesis suggests deep Wishart processes where uncertainty is what matters. Here each model chooses where to look next
on a test function of BoTorch, by expected improvement over joint draws of the function.

    python examples/bayesian_optimization.py --function branin --evaluations 20 --seeds 3

Needs BoTorch: `pip install "vibayes[botorch]"`.
"""

import argparse
import statistics
from collections.abc import Callable

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.test_functions import Ackley, Branin, Hartmann, Michalewicz
from torch import Tensor, nn

import vibayes as vb
from vibayes.botorch import BoTorchModel
from vibayes.trainable import TrainableModel

FUNCTIONS = {
    "branin": lambda: Branin(negate=True),
    "michalewicz": lambda: Michalewicz(dim=2, negate=True),  # flat with narrow valleys: not stationary
    "ackley": lambda: Ackley(dim=2, negate=True),
    "hartmann6": lambda: Hartmann(dim=6, negate=True),
}


def gaussian_process(x: Tensor, y: Tensor, steps: int) -> TrainableModel:
    """An exact GP with one lengthscale per input; hyperparameters by the evidence, from two starts."""
    kernel = vb.Matern52(x.shape[1], ard=True, lengthscale=x.shape[1] ** 0.5)
    noise = vb.Positive(1e-2, prior=torch.distributions.LogNormal(-6.0, 2.0))  # the functions have none
    model = vb.ExactGP(kernel, vb.Gaussian(noise), standardize="both")
    vb.fit(model, (x, y), restarts=2, progress=False)
    return model


def deep_wishart_process(x: Tensor, y: Tensor, steps: int) -> TrainableModel:
    """Two layers; the first is as wide as the inputs, and known only by its Gram matrix."""
    width = max(x.shape[1], 2)
    hidden = vb.GP(width, kernel=vb.Matern52(x.shape[1], ard=True), posterior=vb.GeneralizedWishart("AB"))
    trusted = vb.GlobalInducing("full", log_precision=4.0)  # its pseudo-outputs start at the values that were seen
    last = vb.GP(1, kernel=vb.Matern52(width, lengthscale=width**0.5), posterior=trusted)
    noise = vb.Positive(1e-2, scale=3.0, prior=torch.distributions.LogNormal(-6.0, 2.0))
    model = vb.Model(nn.Sequential(hidden, last), vb.Gaussian(noise), inducing=x[:50], standardize="both")
    vb.fit(model, (x, y), steps=steps, lr=0.02, n_samples=5, progress=False)
    return model


MODELS: dict[str, Callable[[Tensor, Tensor, int], TrainableModel]] = {
    "GP": gaussian_process,
    "DWP": deep_wishart_process,
}


def optimize(
    name: str, function: str, *, start: int, evaluations: int, steps: int, draws: int, seed: int
) -> list[float]:
    """The best value after each evaluation, beginning with that of the random start."""
    problem = FUNCTIONS[function]().to(torch.float64)
    unit = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, problem.dim)  # searched in the unit cube
    low, high = problem.bounds
    torch.manual_seed(seed)
    x = torch.rand(start, problem.dim, dtype=torch.float64)
    y = problem(low + (high - low) * x)
    best = [float(y.max())]
    for _ in range(evaluations):
        wrapped = BoTorchModel(MODELS[name](x, y, steps), n_draws=draws)
        acquisition = qLogExpectedImprovement(wrapped, best_f=y.max())
        point, _ = optimize_acqf(acquisition, bounds=unit, q=1, num_restarts=3, raw_samples=64)
        x, y = torch.cat([x, point]), torch.cat([y, problem(low + (high - low) * point)])
        best.append(float(y.max()))
    return best


def main(arguments: list[str] | None = None) -> dict[str, list[list[float]]]:
    """Run both models from the same starts and print how far each is from the optimum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--function", choices=sorted(FUNCTIONS), default="branin")
    parser.add_argument("--start", type=int, default=6, help="random evaluations to begin with")
    parser.add_argument("--evaluations", type=int, default=20, help="evaluations that the model chooses")
    parser.add_argument("--steps", type=int, default=400, help="training steps of the deep Wishart process")
    parser.add_argument("--draws", type=int, default=64, help="draws of the function in the acquisition")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    torch.set_default_dtype(torch.float64)
    optimum = FUNCTIONS[chosen.function]().optimal_value
    found: dict[str, list[list[float]]] = {}
    for name in MODELS:
        found[name] = [
            optimize(
                name,
                chosen.function,
                start=chosen.start,
                evaluations=chosen.evaluations,
                steps=chosen.steps,
                draws=chosen.draws,
                seed=seed,
            )
            for seed in range(chosen.seeds)
        ]
        print(f"{name}: gap to the optimum, median of {chosen.seeds} starts")
        for evaluation in sorted({0, chosen.evaluations // 2, chosen.evaluations}):
            gap = statistics.median(optimum - run[evaluation] for run in found[name])
            print(f"  after {evaluation:3d} evaluations  {gap:.4g}")
    return found


if __name__ == "__main__":
    main()
