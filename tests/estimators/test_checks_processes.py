"""scikit-learn's own checks of the Gaussian process estimators."""

import pytest
from common import check

pytestmark = pytest.mark.filterwarnings("ignore")  # of the checks: deliberately odd data


@pytest.mark.parametrize("name", ["GPRegressor", "GPClassifier", "DeepGPRegressor"])
def test_passes_the_checks(name: str) -> None:
    check(name)
