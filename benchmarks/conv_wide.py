"""A wide convolution with global inducing points: matrices of patches by patches against weights by weights.

Draws the weights of one layer, reports the log ratio and differentiates both, in float32, as a training step does.
`Conv2d` takes patches where there are less than three quarters as many as weights. Processor time of one thread, the
least of some repeats.

    python benchmarks/conv_wide.py
"""

import argparse
import dataclasses
import time

import torch

import vibayes as vb
from vibayes.convolution import patches
from vibayes.draw import Draw
from vibayes.posteriors.base import Site

# inducing images, channels that come in and go out, pixels down and across
CASES = ((20, 512, 4), (50, 512, 4), (9, 256, 8), (18, 256, 8), (27, 256, 8), (36, 256, 8), (18, 128, 8))


def least(layer: vb.Conv2d, images: torch.Tensor, by_patches: bool, repeats: int) -> float:
    """Seconds of a draw with its gradients."""
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        root = layer.prior.root(layer, Draw())
        site: Site = layer.site("layer", root, images, images)
        design = layer._design(patches(images, layer.geometry, circular=True), root) if by_patches else None
        draw = Draw()
        v = layer.posterior.sample(dataclasses.replace(site, design=design), draw)
        (v.square().sum() + draw.log_ratios["layer"]).backward()
        found.append(time.process_time() - begin)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, one thread, float32")
    print("| images | pixels | patches | weights | by weights | by patches | times as fast |")
    print("| --- " * 7 + "|")
    for n, channels, size in CASES:
        layer = vb.Conv2d(channels, channels, 3, padding=1, bias=False)
        images = torch.randn(n, channels, size, size, requires_grad=True)
        layer.bind("layer", n_inducing=n)
        layer.complete(layer.value_shape(images))
        weights, rows = (least(layer, images, by_patches, given.repeats) for by_patches in (False, True))
        sizes = f"{n} | {size} x {size} | {n * size**2} | {layer.fan_in}"
        print(f"| {sizes} | {weights:.2f} s | {rows:.2f} s | {weights / rows:.1f} |", flush=True)


if __name__ == "__main__":
    main()
