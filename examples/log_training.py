"""Send the course of training to a logger, and stop when time is up: one function is all it takes.

`fit(callback=f)` calls `f` with each new entry of the training log, a `Logged`: `.step`, `.elbo`, `.per_datapoint`,
`.kl`, `.noise`, `.lr`, `.seconds`, and `.numbers()`, all numbers by name. A true answer ends training. So TensorBoard
is

    writer = torch.utils.tensorboard.SummaryWriter()

    def to_tensorboard(logged):
        for name, value in logged.numbers().items():
            writer.add_scalar(name, value, logged.step)

and Weights & Biases is `lambda logged: wandb.log(logged.numbers(), step=logged.step)`, less its return value. Below, a
CSV file.

    python examples/log_training.py --file training.csv --seconds 5
"""

import argparse
import csv
from pathlib import Path

import torch

import vibayes as vb
from vibayes.training.history import Logged


def main(arguments: list[str] | None = None) -> Path:
    """Train a sparse GP with a time limit and write its log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=Path("training.csv"))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=5_000)
    chosen = parser.parse_args(arguments)

    torch.manual_seed(0)
    x = torch.rand(500, 1, dtype=torch.float64) * 6 - 3
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(500, dtype=torch.float64)
    layer = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(20))
    model = vb.Model(layer, vb.Gaussian(0.1), standardize="both").double()

    with chosen.file.open("w", newline="") as file:
        writer = csv.writer(file)

        def to_file(logged: Logged) -> bool:
            if file.tell() == 0:
                writer.writerow(["step", *logged.numbers()])
            writer.writerow([logged.step, *logged.numbers().values()])
            file.flush()
            return logged.seconds > chosen.seconds  # a true answer ends training

        history = vb.fit(model, (x, y), steps=chosen.steps, progress=False, callback=to_file)
    print(f"{history}; written to {chosen.file}")
    path: Path = chosen.file
    return path


if __name__ == "__main__":
    main()
