"""scikit-learn's own checks of the deep processes: the rest."""

import pytest
from common import check

pytestmark = pytest.mark.filterwarnings("ignore")  # of the checks: deliberately odd data


@pytest.mark.parametrize("name", ["DeepGPClassifier", "DeepWishartRegressor", "DeepWishartClassifier"])
def test_passes_the_checks(name: str) -> None:
    check(name)
