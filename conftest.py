"""For tests and examples in docstrings alike: each begins with the dtype of a fresh interpreter."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _float32() -> None:
    torch.set_default_dtype(torch.float32)
