"""What every data set is: sizes, task, where it comes from, how to cite it, under which terms."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["ENTRIES", "Info", "Kind", "Task"]

Kind = Literal["table", "image", "toy", "bundled", "generated"]
Task = Literal["regression", "classification", "unlabelled"]


@dataclass(frozen=True)
class Info:
    """The description of one data set.

    Attributes:
        name: what `load` takes.
        title: the full name.
        kind: "table", "image" or "toy" (from files), "bundled" (with scikit-learn), "generated".
        task: "regression", "classification" or "unlabelled".
        n_train: training rows of a published split (of all, where they differ by a row or less).
        n_test: test rows.
        input_shape: shape of one input.
        n_splits: number of published splits; 0 where splits are random or the set is generated.
        target: what is predicted, and its unit.
        citation: what to cite.
        licence: what is known of the terms of use.
        note: anything to know before using it.
        files: paths under the data folder.
    """

    name: str
    title: str
    kind: Kind
    task: Task
    n_train: int
    n_test: int
    input_shape: tuple[int, ...]
    n_splits: int = 0
    target: str = ""
    citation: str = ""
    licence: str = ""
    note: str = ""
    files: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """All rows, N."""
        return self.n_train + self.n_test


_UCI = "UCI Machine Learning Repository; CC BY 4.0 as hosted there today. Splits: CC BY-NC 4.0."
_UNSTATED = "No stated licence. Splits: CC BY-NC 4.0."
_PBP = "Splits of Hernandez-Lobato and Adams (2015), as published again with Gal and Ghahramani (2016)."


def _table(
    name: str,
    title: str,
    sizes: tuple[int, int, int],
    target: str,
    citation: str,
    *,
    licence: str = _UCI,
    n_splits: int = 20,
    note: str = "",
    splits: str = _PBP,
) -> Info:
    n_train, n_test, n_inputs = sizes
    note = f"{splits} {note}".strip()
    file = (f"uci/{name}.npz",)
    return Info(
        name,
        title,
        "table",
        "regression",
        n_train,
        n_test,
        (n_inputs,),
        n_splits,
        target,
        citation,
        licence,
        note,
        file,
    )


def _bundled(name: str, title: str, task: Task, rows: int, inputs: int, citation: str, target: str) -> Info:
    n_train = round(0.9 * rows)
    return Info(
        name,
        title,
        "bundled",
        task,
        n_train,
        rows - n_train,
        (inputs,),
        target=target,
        citation=citation,
        licence="Distributed with scikit-learn (BSD-3-Clause).",
        note="No published split; random splits by seed. Needs scikit-learn, no files.",
    )


_CIFAR_FILES = (*(f"images/cifar10_train_{i}.npz" for i in range(5)), "images/cifar10_test.npz")

ENTRIES = (
    _table(
        "boston",
        "Boston housing",
        (455, 51, 13),
        "median house value, 1000 USD",
        "D. Harrison and D. L. Rubinfeld. Hedonic housing prices and the demand for clean air. Journal of "
        "Environmental Economics and Management 5, 1978 (StatLib).",
        licence=_UNSTATED,
        note="Column 11 is a variable about the share of Black residents, for which the set is widely "
        "criticised; kept because the benchmark is defined with it.",
    ),
    _table(
        "concrete",
        "Concrete compressive strength",
        (927, 103, 8),
        "strength, MPa",
        "I.-C. Yeh. Modeling of strength of high-performance concrete using artificial neural networks. "
        "Cement and Concrete Research 28(12), 1998.",
    ),
    _table(
        "energy",
        "Energy efficiency of buildings",
        (691, 77, 8),
        "heating load",
        "A. Tsanas and A. Xifara. Accurate quantitative estimation of energy performance of residential "
        "buildings using statistical machine learning tools. Energy and Buildings 49, 2012.",
    ),
    _table(
        "kin8nm",
        "Forward kinematics of an 8-link robot arm",
        (7373, 819, 8),
        "distance of the arm's end from a target",
        "Z. Ghahramani. The kin datasets. DELVE, University of Toronto, 1996.",
        licence=_UNSTATED,
    ),
    _table(
        "naval",
        "Condition-based maintenance of naval propulsion plants",
        (10741, 1193, 16),
        "compressor decay coefficient",
        "A. Coraddu, L. Oneto, A. Ghio, S. Savio, D. Anguita and M. Figari. Machine learning approaches for "
        "improving condition-based maintenance of naval propulsion plants. Journal of Engineering for the "
        "Maritime Environment, 2014.",
        note="Columns 8 and 11 are constant. The second target of the source (turbine decay) is left out.",
    ),
    _table(
        "power",
        "Combined cycle power plant",
        (8611, 957, 4),
        "net energy output, MW",
        "P. Tufekci. Prediction of full load electrical power output of a base load operated combined cycle "
        "power plant using machine learning methods. International Journal of Electrical Power and Energy "
        "Systems 60, 2014. H. Kaya, P. Tufekci and S. F. Gurgen, 2012.",
    ),
    _table(
        "protein",
        "Physicochemical properties of protein tertiary structure",
        (41157, 4573, 9),
        "RMSD",
        "P. S. Rana. Physicochemical properties of protein tertiary structure. UCI Machine Learning Repository, 2013.",
        n_splits=5,
    ),
    _table(
        "wine",
        "Wine quality, red",
        (1439, 160, 11),
        "quality score",
        "P. Cortez, A. Cerdeira, F. Almeida, T. Matos and J. Reis. Modeling wine preferences by data mining "
        "from physicochemical properties. Decision Support Systems 47, 2009.",
    ),
    _table(
        "yacht",
        "Yacht hydrodynamics",
        (277, 31, 6),
        "residuary resistance",
        "J. Gerritsma, R. Onnink and A. Versluis. Geometry, resistance and stability of the Delft systematic "
        "yacht hull series. Delft University of Technology, 1981.",
    ),
    _table(
        "kin40k",
        "Forward kinematics of a robot arm, 40,000 rows",
        (36000, 4000, 8),
        "distance of the arm's end, standardised",
        "A. Schwaighofer and V. Tresp; from the kin family of DELVE. Copy: github.com/treforevans/uci_datasets.",
        licence="MIT (the copy).",
        n_splits=10,
        splits="Ten-fold cross validation of the copy, not the 10,000/30,000 splits of the older literature.",
        note="Inputs and target come standardised from the source.",
    ),
    Info(
        "snelson",
        "Snelson's one-dimensional toy",
        "toy",
        "regression",
        200,
        301,
        (1,),
        1,
        target="no unit",
        citation="E. Snelson and Z. Ghahramani. Sparse Gaussian processes using pseudo-inputs. NeurIPS, 2006.",
        licence="Copy of the GPflow documentation (Apache-2.0).",
        note="The test inputs are a grid from -3 to 10 without targets. every=10 gives the 20 points of the "
        "thesis's introduction; ddof=1 the standardisation of its chapter 3.",
        files=("toy/snelson.npz",),
    ),
    Info(
        "mnist",
        "MNIST handwritten digits",
        "image",
        "classification",
        60000,
        10000,
        (1, 28, 28),
        1,
        target="digit, 10 classes",
        citation="Y. LeCun, C. Cortes and C. J. C. Burges. The MNIST database of handwritten digits, 1998.",
        licence="Commonly given as CC BY-SA 3.0.",
        files=("images/mnist.npz",),
    ),
    Info(
        "fashion_mnist",
        "Fashion-MNIST, test set only",
        "image",
        "classification",
        0,
        10000,
        (1, 28, 28),
        1,
        target="kind of garment, 10 classes",
        citation="H. Xiao, K. Rasul and R. Vollgraf. Fashion-MNIST: a novel image dataset for benchmarking "
        "machine learning algorithms. arXiv:1708.07747, 2017.",
        licence="MIT.",
        note="There are no training rows here; the set serves as out-of-distribution inputs for MNIST models.",
        files=("images/fashion_mnist_test.npz",),
    ),
    Info(
        "cifar10",
        "CIFAR-10",
        "image",
        "classification",
        50000,
        10000,
        (3, 32, 32),
        1,
        target="airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck",
        citation="A. Krizhevsky. Learning multiple layers of features from tiny images. Technical report, "
        "University of Toronto, 2009.",
        licence="No explicit licence.",
        note="Files hold coded pixels; they are decoded once (seconds) and kept in the cache folder.",
        files=_CIFAR_FILES,
    ),
    Info(
        "svhn",
        "Street View House Numbers, first 949 images of each part",
        "image",
        "unlabelled",
        949,
        949,
        (3, 32, 32),
        1,
        citation="Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu and A. Y. Ng. Reading digits in natural "
        "images with unsupervised feature learning. NeurIPS workshop, 2011.",
        licence="For non-commercial use.",
        note="No labels: out-of-distribution inputs only. Consecutive images are often crops of one house "
        "number, so they are not independent.",
        files=("images/svhn_first949.npz",),
    ),
    Info(
        "utkface",
        "UTKFace, reduced to 32 x 32 pixels and 6 bits",
        "image",
        "regression",
        20000,
        3707,
        (3, 32, 32),
        1,
        target="age, years",
        citation="Z. Zhang, Y. Song and H. Qi. Age progression/regression by conditional adversarial "
        "autoencoder. CVPR, 2017.",
        licence="For non-commercial research only; rights in the photographs stay with their owners.",
        note="One fixed split, first 20,000 of the shuffled rows. 390 images repeat another one, so the "
        "same photograph may lie on both sides. One face fewer than the 23,708 usually quoted.",
        files=("images/utkface32.npz",),
    ),
    _bundled(
        "diabetes",
        "Diabetes progression, unscaled inputs",
        "regression",
        442,
        10,
        "B. Efron, T. Hastie, I. Johnstone and R. Tibshirani. Least angle regression. Annals of Statistics 32, 2004.",
        "progression after one year",
    ),
    _bundled(
        "linnerud",
        "Linnerud exercise data",
        "regression",
        20,
        3,
        "M. Tenenhaus. La regression PLS: theorie et pratique. Technip, 1998.",
        "weight, waist, pulse (three outputs)",
    ),
    _bundled(
        "digits",
        "Optical recognition of handwritten digits, 8 x 8",
        "classification",
        1797,
        64,
        "E. Alpaydin and C. Kaynak. Optical recognition of handwritten digits. UCI, 1998.",
        "digit, 10 classes",
    ),
    _bundled(
        "iris",
        "Iris",
        "classification",
        150,
        4,
        "R. A. Fisher. The use of multiple measurements in taxonomic problems. Annals of Eugenics 7, 1936.",
        "species, 3 classes",
    ),
    _bundled(
        "wine_recognition",
        "Wine recognition",
        "classification",
        178,
        13,
        "S. Aeberhard and M. Forina. Wine. UCI, 1991.",
        "cultivar, 3 classes",
    ),
    _bundled(
        "breast_cancer",
        "Breast cancer Wisconsin (diagnostic)",
        "classification",
        569,
        30,
        "W. H. Wolberg, O. L. Mangasarian and W. N. Street. Breast cancer Wisconsin (diagnostic). UCI, 1995.",
        "malignant or benign",
    ),
    Info("cubic", "Cubic with a gap", "generated", "regression", 40, 241, (1,), note="`datasets.cubic`."),
    Info(
        "deep_linear",
        "Linear data",
        "generated",
        "regression",
        1000,
        100,
        (5,),
        note="`datasets.deep_linear`.",
    ),
    Info(
        "deep_gp",
        "Sample of a deep GP",
        "generated",
        "regression",
        100,
        200,
        (1,),
        note="`datasets.deep_gp`.",
    ),
    Info(
        "gaussian_bumps",
        "Weighted sum of Gaussian bumps",
        "generated",
        "regression",
        20,
        200,
        (1,),
        note="`datasets.gaussian_bumps`.",
    ),
)
