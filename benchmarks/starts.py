"""Starting values that the thesis leaves open, tried side by side: one replica for each change of one option.

    python benchmarks/starts.py dwp-uci DGP boston --depth 5 --steps 4000 --set lr_drops=[0.5,0.85] \\
        --try lengthscale=1,5 --try jitter=1e-5,1e-8 --try lr=0.005,0.02 --device cuda

All replicas train together on one split, the experiment's own start in the first places (`--seeds` of them: their
spread says which differences mean something). Bounds per data point on the training rows, nothing else is looked at:
before each drop of the rate and at the end, means of the last entries of the history. `--try a=1+b=2` changes two at
once.
"""

import argparse
import json
import statistics
import time
from typing import Any

import vibayes as vb
from vibayes.experiments import catalogue, commands
from vibayes.experiments.experiment import Unit, override
from vibayes.experiments.models import build
from vibayes.experiments.sweep import expand
from vibayes.experiments.training import load_split


def changes(texts: list[str]) -> list[dict[str, Any]]:
    """`["a=1,2", "b=3+c=4"]` is three changes: a to 1, a to 2, and b to 3 with c to 4."""
    found: list[dict[str, Any]] = []
    for text in texts:
        pairs = [part.partition("=") for part in text.split("+")]
        if len(pairs) == 1:
            key, _, values = pairs[0]
            found += [{key: commands.typed_value(v)} for v in values.split(",")]
        else:
            found.append({key: commands.typed_value(v) for key, _, v in pairs})
    return found


def changed(unit: Unit, change: dict[str, Any]) -> dict[str, Any]:
    options = dict(unit.options)
    for key, value in change.items():
        options = override(options, key, value)
    return options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("model")
    parser.add_argument("dataset")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--depth")
    parser.add_argument("--prior")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for all of them")
    parser.add_argument(
        "--try", dest="tried", action="append", default=[], help="KEY=VALUE,VALUE or KEY=VALUE+KEY=VALUE"
    )
    parser.add_argument("--seeds", type=int, default=2, help="replicas of the experiment's own start")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--last", type=int, default=20, help="entries of the history that a bound is the mean of")
    chosen = parser.parse_args()

    selection = commands.select(
        datasets=[chosen.dataset],
        models=[chosen.model],
        depths=chosen.depth,
        priors=None if chosen.prior is None else [chosen.prior],
        splits=str(chosen.split),
        steps=chosen.steps,
        changes=chosen.set,
    )
    (unit,) = expand(catalogue.get(chosen.experiment), selection)
    split = load_split(unit)
    variants = [{"seed": seed} for seed in range(chosen.seeds)] + changes(chosen.tried)
    built = []
    for variant in variants:
        options = changed(unit, variant)
        built.append(build(unit.builder, split, options, int(options["seed"])))
    training = dict(built[0][1])
    training.pop("choices", None)
    training["lr"] = [how["lr"] for _, how in built]
    begin = time.monotonic()
    histories = vb.fit_many(
        [model for model, _ in built],
        [(split.x_train, split.y_train)] * len(built),
        device=chosen.device,
        progress=False,
        **training,
    )
    print(f"{unit.title}, split {chosen.split}, {chosen.steps} steps in {time.monotonic() - begin:.0f} s")
    fractions = [*unit.options["training"].get("lr_drops", ()), 1.0]
    for variant, history in sorted(zip(variants, histories, strict=True), key=lambda pair: -_bound(pair[1], 1, chosen)):
        bounds = "  ".join(f"{_bound(history, fraction, chosen):7.3f}" for fraction in fractions)
        noise = f"  noise {history.noise[-1]:.2e}" if history.noise else ""
        trouble = f"  ({history.events[-1]})" if history.events else ""
        print(f"  {bounds}{noise}  {json.dumps(variant)}{trouble}", flush=True)


def _bound(history: vb.History, fraction: float, chosen: argparse.Namespace) -> float:
    """Mean of the last bounds before a fraction of all steps."""
    end = round(fraction * len(history.per_datapoint))
    return statistics.fmean(history.per_datapoint[max(0, end - chosen.last) : end])


if __name__ == "__main__":
    main()
