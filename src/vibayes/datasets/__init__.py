"""Data sets by name, with published or random splits, and generated toys.

Files are looked for in the folder `$VIBAYES_DATA` and in a cache folder; see docs/datasets.md.
"""

from vibayes.datasets.catalogue import info, names
from vibayes.datasets.entries import Info
from vibayes.datasets.files import cache_folder
from vibayes.datasets.loading import load, random_indices
from vibayes.datasets.remote import Remote
from vibayes.datasets.split import Split
from vibayes.datasets.toys import cubic, deep_gp, deep_linear, deep_linear_log_evidence, gaussian_bumps

__all__ = [
    "Info",
    "Remote",
    "Split",
    "cache_folder",
    "cubic",
    "deep_gp",
    "deep_linear",
    "deep_linear_log_evidence",
    "gaussian_bumps",
    "info",
    "load",
    "names",
    "random_indices",
]
