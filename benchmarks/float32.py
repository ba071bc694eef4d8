"""What float32 costs in accuracy: a model trained in float64, its bound in both dtypes, by jitter.

    python benchmarks/float32.py dwp-uci DGP boston --steps 1000

The same draws of the posterior are used for both, up to rounding, so what differs is rounding: where it exceeds the
standard error, float32 has lost digits that count.
"""

import argparse
import copy
import statistics

import torch

import vibayes as vb
from vibayes.experiments import catalogue, commands
from vibayes.experiments.models import build
from vibayes.experiments.sweep import expand
from vibayes.experiments.training import load_split

DRAWS, TIMES = 20, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("model")
    parser.add_argument("dataset")
    parser.add_argument("--depth", default="5")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=3, help="in training")
    parser.add_argument("--jitter", type=float, nargs="+", default=[1e-5, 1e-6, 1e-7, 1e-8])
    chosen = parser.parse_args()

    changes = [f"kl_warmup={chosen.steps // 2}", f"n_samples={chosen.draws}", "jitter=1e-6"]
    selection = commands.select(
        datasets=[chosen.dataset],
        models=[chosen.model],
        depths=chosen.depth,
        splits="0",
        steps=chosen.steps,
        changes=changes,
    )
    (unit,) = expand(catalogue.get(chosen.experiment), selection)
    split = load_split(unit)
    model, how = build(unit.builder, split, unit.options, 0)
    assert isinstance(model, vb.Model)
    vb.fit(model, (split.x_train, split.y_train), progress=False, **how)
    print(f"{unit.title}, split 0, {chosen.steps} steps with jitter 1e-6: bound per row in float64, float32")
    for jitter in chosen.jitter:
        shown = []
        for dtype in (torch.float64, torch.float32):
            one = copy.deepcopy(model).to(dtype)
            one.jitter.fill_(jitter)
            x, y = split.x_train.to(dtype), split.y_train.to(dtype)
            bounds = []
            for seed in range(TIMES):
                torch.manual_seed(seed)
                bounds.append(one.elbo(x, y, n_samples=DRAWS).value.item() / len(x))
            error = statistics.stdev(bounds) / TIMES**0.5
            shown.append(f"{statistics.fmean(bounds):8.4f} +- {error:.4f}")
        print(f"  jitter {jitter:.0e}  {'   '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
