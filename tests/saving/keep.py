"""Write the files of `kept/` anew: only when the format has changed, with `VERSION` raised.

python tests/saving/keep.py
"""

import json
from pathlib import Path

import torch
from families import FAMILIES, rows, targets

import vibayes as vb

CHOSEN = {
    "exact_gp": "exact GP",
    "svgp": "SVGP, every kernel",
    "deep_wishart": "deep Wishart, AB",
    "bnn": "BNN, ScalePrior",
}


def main() -> None:
    """Train small models, save them, and note what they predict."""
    torch.set_default_dtype(torch.float64)
    for folder, family in CHOSEN.items():
        torch.manual_seed(0)
        x = rows()
        model = FAMILIES[family](x)
        vb.fit(model, (x, targets(model, x)), steps=20, n_samples=2, progress=False)
        place = Path(__file__).parent / "kept" / folder
        model.save(place)
        torch.manual_seed(0)
        prediction = model.predict(x[:4], n_samples=5)
        found = {"x": x[:4].tolist(), "mean": prediction.mean.tolist(), "std": prediction.std.tolist()}
        (place / "predictions.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
