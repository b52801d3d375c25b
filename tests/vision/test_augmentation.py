"""Augmentations that draw: what they may change, that the seed decides, and that a picture and its tensor go through the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

import calque
from calque.vision import transforms
from calque.vision.transforms import policies, scenes, v2

ALL: dict[str, Any] = {
    **{f"auto {p.value}": lambda p=p: transforms.AutoAugment(p) for p in transforms.AutoAugmentPolicy},
    "rand": lambda: transforms.RandAugment(3, 20), "trivial": transforms.TrivialAugmentWide, "augmix": lambda: v2.__dict__["AugMix"](10),
    "affine": lambda: transforms.RandomAffine(30, (0.2, 0.2), (0.8, 1.2), 10), "perspective": lambda: transforms.RandomPerspective(p=1.0),
    "lighting": lambda: transforms.RandomLighting(p=1.0), "reflection": lambda: transforms.RandomReflection(p=1.0),
}  # fmt: skip


def picture() -> Any:
    y, x = np.mgrid[:24, :30]
    return np.stack([x * 8, y * 10, (x + y) * 4], 2).astype(np.uint8)


def drawn(make: Any, image: Any, seed: int) -> Any:
    calque.manual_seed(seed)
    return make()(image)


@pytest.mark.parametrize("name", ALL)
def test_seeds_decide_and_pictures_tensors_and_batches_change_alike(name: str) -> None:
    make, array = ALL[name], picture()
    picture_, tensor = Image.fromarray(array), calque.tensor(array.transpose(2, 0, 1).copy())
    different = 0
    for seed in range(6):
        found = drawn(make, picture_, seed)
        again, one = drawn(make, picture_, seed), drawn(make, tensor, seed).numpy()
        assert found.size == picture_.size and found.mode == "RGB" and np.array_equal(np.array(found), np.array(again))
        assert one.dtype == np.uint8 and one.shape == tensor.shape
        off = np.abs(np.array(found).transpose(2, 0, 1).astype(int) - one)
        # Pillow resamples in whole numbers, and what it blends in others: single pixels fall to the other side of an edge or a step.
        assert (off > 4).mean() < 0.08, (seed, off.max(), (off > 4).mean())
        floating = drawn(make, tensor / 255, seed)
        assert floating.dtype is calque.float32 and floating.min().item() >= 0 and floating.max().item() <= 1
        assert (np.abs(floating.numpy() * 255 - one) > 4).mean() < 0.08
        if name != "augmix":  # which draws shares for every sample
            whole = drawn(make, calque.stack([tensor, tensor.flip(0)]), seed)
            assert np.array_equal(whole[0].numpy(), one)
        different += not np.array_equal(one, drawn(make, tensor, seed + 100).numpy())
    assert different > 0


def test_every_row_of_the_tables_is_a_change_that_exists() -> None:
    image = calque.tensor(picture().transpose(2, 0, 1).copy())
    for policy in transforms.AutoAugmentPolicy:
        found = transforms.AutoAugment(policy)
        assert len(found.policies) == 25
        for name, share, step in {row for pair in found.policies for row in pair}:
            assert 0 <= share <= 1 and found._one(image, name, found.strength(name, step, 10, image), True).shape == image.shape
    # Strengths at both ends, from the papers' tables.
    rand, wide = transforms.RandAugment(), transforms.TrivialAugmentWide()
    ends = {name: (round(rand.strength(name, 0, 31, image), 4), round(rand.strength(name, 30, 31, image), 4)) for name in rand.names}
    assert ends["ShearX"] == (0, 0.3) and ends["Rotate"] == (0, 30) and ends["Posterize"] == (8, 4) and ends["Solarize"] == (255, 0)
    assert ends["TranslateX"] == (0, round(150 / 331 * 30, 4)) and ends["Color"] == (0, 0.9) and ends["Identity"] == (0, 0) and len(ends) == 14
    assert [round(wide.strength(n, 30, 31, image), 4) for n in ("ShearX", "Rotate", "Posterize", "TranslateY")] == [0.99, 135, 2, 32]


def test_grey_pictures_stay_grey() -> None:
    grey = Image.fromarray(picture()[..., 0])
    for name, make in ALL.items():
        found = drawn(make, grey, 3)
        assert found.mode == "L" and found.size == grey.size, name


def test_light_keeps_its_luminance_and_reflections_only_brighten() -> None:
    for kelvin, warm in ((1700, 1), (2700, 1), (5000, 1), (6500, 0), (10000, -1), (25000, -1)):
        gains = scenes._gains(kelvin)
        assert abs(gains @ np.array([0.2126, 0.7152, 0.0722]) - 1) < 1e-9 and np.sign(np.round(gains[0] - gains[2], 6)) == warm
    half = calque.full((3, 8, 8), 0.5)
    same = transforms.RandomLighting(temperature=6500, brightness=1.0, slope=0.0, p=1.0)(half)
    assert calque.allclose(same, half, atol=1e-5)
    darker = transforms.RandomLighting(temperature=6500, brightness=0.5, slope=0.0, p=1.0)(half)
    assert abs((darker[0, 0, 0].item() + 0.055) ** 2.4 / (0.5 + 0.055) ** 2.4 - 0.5) < 1e-3  # half the light, in linear values
    calque.manual_seed(0)
    for _ in range(10):
        shiny = transforms.RandomReflection(p=1.0)(half)
        assert bool((shiny >= half - 1e-6).all()) and shiny.max().item() > 0.6
    assert policies._SIGNED.isdisjoint(policies._PLAIN)
