"""Augmentation of images: what it does, and that training with it can be resumed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.augment import Compose, RandomCrop, RandomFlip
from vibayes.errors import ConfigurationError, ShapeError, VibayesError


def images(n: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 2, 6, 5, generator=generator), torch.randint(0, 2, (n,), generator=generator)


def test_flips_mirror_some_images_whole() -> None:
    x, _ = images(400)
    found = RandomFlip()(x)
    mirrored = (found == x.flip(-1)).flatten(1).all(1)
    same = (found == x).flatten(1).all(1)
    assert bool((mirrored ^ same).all())
    assert 150 < int(mirrored.sum()) < 250
    assert torch.equal(RandomFlip(0.0)(x), x)
    assert torch.equal(RandomFlip(1.0)(x), x.flip(-1))


def test_crops_are_windows_of_the_padded_image() -> None:
    x, _ = images(300)
    found = RandomCrop(2)(x)
    padded = nn.functional.pad(x, (2, 2, 2, 2))
    seen = set()
    for i in range(len(x)):
        places = [
            (a, b) for a in range(5) for b in range(5) if torch.equal(padded[i, :, a : a + 6, b : b + 5], found[i])
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) == 25


def test_compose_applies_in_order() -> None:
    x, _ = images(3)
    assert torch.equal(Compose(lambda t: t + 1.0, lambda t: 2.0 * t)(x), 2.0 * (x + 1.0))
    assert repr(Compose(RandomCrop(4), RandomFlip())) == "Compose(RandomCrop(4), RandomFlip(0.5))"


def model() -> vb.Model:
    torch.manual_seed(0)
    x, _ = images()
    net = nn.Sequential(vb.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), vb.Linear(90, 2))
    return vb.Model(net, vb.Categorical(), inducing=x[:5])


OPTIONS = {"batch_size": 8, "n_samples": 1, "log_every": 2, "progress": False}
BOTH = Compose(RandomCrop(1), RandomFlip())


def test_training_with_augmentation_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, parts = model(), model()
    vb.fit(whole, images(), steps=8, augment=BOTH, **OPTIONS)
    path = tmp_path / "run"
    vb.fit(parts, images(), steps=4, augment=BOTH, checkpoint=path, **OPTIONS)
    parts = model()
    vb.fit(parts, images(), steps=8, augment=BOTH, checkpoint=path, **OPTIONS)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(VibayesError, match="augment"):
        vb.fit(model(), images(), steps=8, augment=RandomFlip(), checkpoint=path, **OPTIONS)


def test_augmentation_changes_training_and_reaches_replicas() -> None:
    plain, augmented = model(), model()
    vb.fit(plain, images(), steps=2, **OPTIONS)
    vb.fit(augmented, images(), steps=2, augment=BOTH, **OPTIONS)
    assert not torch.equal(next(plain.parameters()), next(augmented.parameters()))
    several = [model(), model()]
    seen = []

    def watched(x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return x

    vb.fit_many(several, [images(), images()], steps=2, chunk=2, augment=watched, **OPTIONS)
    assert seen == [(16, 2, 6, 5)] * 2


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_augmentation_in_place_leaves_the_data_alone(replicas: int) -> None:
    x, y = images()
    before, seen = x.clone(), []

    def darker(x: Tensor) -> Tensor:
        seen.append(x.mean().item())
        return x.sub_(1.0)

    options = {**OPTIONS, "batch_size": None, "steps": 3, "augment": darker}
    if replicas == 1:
        vb.fit(model(), (x, y), **options)
    else:
        vb.fit_many([model() for _ in range(replicas)], [(x, y)] * replicas, chunk=replicas, **options)
    assert torch.equal(x, before)
    assert len(set(seen)) == 1  # every step starts from the data


def test_bad_input() -> None:
    with pytest.raises(ConfigurationError, match="probability"):
        RandomFlip(1.5)
    with pytest.raises(ConfigurationError, match="padding"):
        RandomCrop(0)
    with pytest.raises(ConfigurationError, match="Compose"):
        Compose(3)
    with pytest.raises(ConfigurationError, match=r"Compose .* the class RandomFlip; call it"):
        Compose(RandomCrop(), RandomFlip)
    with pytest.raises(ConfigurationError, match=r"augment .* the class RandomFlip; call it"):
        vb.fit(model(), images(), steps=1, augment=RandomFlip, **OPTIONS)
    for part in (RandomFlip(), RandomCrop()):
        with pytest.raises(ShapeError, match="images"):
            part(torch.randn(3, 4))
    with pytest.raises(ConfigurationError, match="augment"):
        vb.fit(model(), images(), steps=1, augment=0.5, **OPTIONS)
    with pytest.raises(ShapeError, match="same shape"):
        vb.fit(model(), images(), steps=1, augment=lambda x: x[..., 1:], **OPTIONS)
    with pytest.raises(ConfigurationError, match=r"dtype, torch\.float64; it returned torch\.float32"):
        vb.fit(model(), images(), steps=1, augment=lambda x: x.float(), **OPTIONS)
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    with pytest.raises(ConfigurationError, match="L-BFGS"):
        vb.fit(gp, (torch.randn(5, 1), torch.randn(5)), augment=RandomFlip(), progress=False)
