"""Small tables, ready for models."""

import pytest
from tests_tables import class_frame, regression_frame, table

from vibayes.compare import Data, prepare


@pytest.fixture
def regression() -> Data:
    return prepare(table(regression_frame()), ["y"])


@pytest.fixture
def classes() -> Data:
    return prepare(table(class_frame()), ["label"])
