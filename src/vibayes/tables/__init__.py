"""Tables as people have them: CSV and Parquet files, turned into numbers by rules that are written down and kept.

Needs pandas: `pip install "vibayes[tables]"`.
"""

from vibayes.tables.columns import Column
from vibayes.tables.encoder import Encoded, Encoder
from vibayes.tables.reading import Table, read_table
from vibayes.tables.targets import Target

__all__ = ["Column", "Encoded", "Encoder", "Table", "Target", "read_table"]
