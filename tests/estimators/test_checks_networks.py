"""scikit-learn's own checks of the estimators with networks, and of the remaining deep processes."""

import pytest
from common import check

pytestmark = pytest.mark.filterwarnings("ignore")  # of the checks: deliberately odd data


@pytest.mark.parametrize("name", ["BNNRegressor", "BNNClassifier", "DKLRegressor", "DKLClassifier"])
def test_passes_the_checks(name: str) -> None:
    check(name)
