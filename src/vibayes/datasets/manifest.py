"""The files that the loaders know: where they lie under the data folder, their sizes and SHA-256 sums."""

from dataclasses import dataclass

__all__ = ["FILES", "File"]


@dataclass(frozen=True)
class File:
    """One known file.

    Attributes:
        path: relative to the data folder, with forward slashes.
        size: in bytes.
        sha256: of the file.
        decoded: SHA-256 of the pixels [N, 32, 32, 3] that a coded file decodes to; empty for plain files.
    """

    path: str
    size: int
    sha256: str
    decoded: str = ""


_ALL = (
    File(
        "uci/boston.npz",
        42869,
        "d326d07c1eb4633e99ac348a4b16ce7504d8bb37d64a48e9598f803c58617cc0",
    ),
    File(
        "uci/concrete.npz",
        61807,
        "669ff26bb9bc8bdd0dc9bfb87578a5f738bf6ca6f8cf69d18755b3abe7f22afe",
    ),
    File(
        "uci/energy.npz",
        41936,
        "1c5c97fccc0b4a4c0212ad2d50c6131e80fa5c744b6967ffca41f4e395117df5",
    ),
    File(
        "uci/kin8nm.npz",
        962374,
        "ce55ecd99e48f6cce5ddb9dbcc51fb255db6847432374d4a23fd6a0afaa6e252",
    ),
    File(
        "uci/naval.npz",
        958880,
        "dc3fce2e26db737820bd2c75f161c647123606c10ac3e525989229a06090a4b2",
    ),
    File(
        "uci/power.npz",
        594906,
        "49d83fb290a43a776e667bb4115c22e30037a2f5dd138ca55478dbde389045fb",
    ),
    File(
        "uci/protein.npz",
        2269255,
        "7313664d0588c941be50c422bff0d60e72f2e8b6a111a61515ea2084ea3976f3",
    ),
    File(
        "uci/wine.npz",
        106365,
        "178ee117eb56e87048bd12d6927fd186b54f30cebd18a6bf8c3c3eedcbaa5268",
    ),
    File(
        "uci/yacht.npz",
        21855,
        "b82805103332fe148be0d5ab3079b8bd8c4e4fd75dc5b32ef0a851c29a1541f7",
    ),
    File(
        "uci/kin40k.npz",
        2051667,
        "e1ea889e209504c10b18c28a2e567d8d10a6393673e5850045867da4804b3a76",
    ),
    File(
        "toy/snelson.npz",
        5585,
        "ea2406c91a31bce58ed79c383b06564154c737fef8d38464b302813c2958c86f",
    ),
    File(
        "images/mnist.npz",
        11490519,
        "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
    ),
    File(
        "images/cifar10_train_0.npz",
        15267975,
        "1a3648eca9c92a09559869366c4950311efe66c37be0e4e1d9f29de13e5263ad",
        "fc115a3de050d667b88cbd5b0b9612ebf996c54230fe7758f3a14bb5af9a1c27",
    ),
    File(
        "images/cifar10_train_1.npz",
        15310787,
        "b1082d9ded747a4820e2914b6738a6d125bf0883d5bae2cd48cb062633f7309a",
        "89e609b642f687bc796fa3bfa4211005582a0e8131d463d996d11ddb297d312e",
    ),
    File(
        "images/cifar10_train_2.npz",
        15311067,
        "d65e1effff996a8555b66697e329241202eb3e7c840b4f9c68079aec3c2a52d2",
        "93a365823e61729490a8801d80864ccd0ab1e8c98f19d71af65644d1c5f1486e",
    ),
    File(
        "images/cifar10_train_3.npz",
        15288953,
        "d35317696177b9fc3c2e8510ba4408c5bb8ca707386266ac0ab084ad9a137e58",
        "809eb95ecd057a36516318f5023ea619009dd70dd38193db9da43125a928e6fa",
    ),
    File(
        "images/cifar10_train_4.npz",
        15256207,
        "b52840dc668bb2495da9f65a0ef579b5adab7bf5100ede41182e402b9fb4830e",
        "d05b7d66d216d6df882cc760cdc0ff2f1f0437abf699ed16005c021ef0add9cb",
    ),
    File(
        "images/cifar10_test.npz",
        15291086,
        "f6220dcb858eb14a24aa45821b4c8798c7c5d30f72f743af00ee5d8acc1b34f8",
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    ),
    File(
        "images/svhn_first949.npz",
        4907813,
        "bff9772feef24a90c10689ade76be40c72183c26855e1370c3ac77d9d5ead69b",
    ),
    File(
        "images/fashion_mnist_test.npz",
        4425408,
        "40cc5f7c7185a3f578d2e072deede39bcb9b9eedb4b716e70d55777fd0a88138",
    ),
    File(
        "images/utkface32.npz",
        23592157,
        "ed4e28c2195a7685bdc0c424f009c65d80a4916e15f530f971bf1a899fcde2f7",
        "787dc8f8a29ee37b963b359c6f794cf4831c874dee21788da01dadf49fa5597b",
    ),
)

FILES: dict[str, File] = {file.path: file for file in _ALL}
