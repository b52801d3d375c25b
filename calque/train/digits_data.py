"""The 1,797 handwritten digits that scikit-learn ships (8x8 pixels, 0..16), split and augmented reproducibly.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository (1998).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import calque
from calque.base.extras import need
from calque.data import Dataset

CLASSES = 10
PIXEL_MEAN, PIXEL_STD = 0.3053, 0.3760  # of the training pixels scaled to 0..1

Images = np.ndarray[Any, np.dtype[np.float32]]
Labels = np.ndarray[Any, np.dtype[np.int64]]


def load_digits() -> tuple[Images, Labels]:
    """All images (1797, 8, 8) in 0..1 and labels (1797,)."""
    bunch = need("sklearn.datasets", "scikit-learn", "demo", "train digits").load_digits()
    return (bunch.images / 16.0).astype(np.float32), bunch.target.astype(np.int64)


def split(labels: Labels, seed: int) -> tuple[Labels, Labels, Labels]:
    """Indices of the training, validation and test images: 70 %, 10 % and 20 % of every class, by a seeded shuffle."""
    generator = np.random.default_rng(seed)
    parts: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for label in range(CLASSES):
        rows = generator.permutation(np.flatnonzero(labels == label))
        first, second = round(0.7 * len(rows)), round(0.8 * len(rows))
        for part, piece in zip(parts, np.split(rows, [first, second]), strict=True):
            part.append(piece)
    train, validation, test = (np.sort(np.concatenate(p)) for p in parts)
    return train, validation, test


class Digits(Dataset):  # type: ignore[type-arg]
    """Samples (image (1, 8, 8) float32 normalised, label). With `augment` an image is moved and scaled a little; a DataLoader makes the change a
    function of the seed, the pass and the index alone, so it does not matter who loads the sample or when."""

    def __init__(self, images: Images, labels: Labels, augment: bool = False) -> None:
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.images[index]
        if self.augment:
            image = distort(image, np.random.default_rng(calque.initial_seed()))
        normal = (image - PIXEL_MEAN) / PIXEL_STD
        return calque.tensor(normal[None].astype(np.float32)), int(self.labels[index])


def distort(image: Images, generator: np.random.Generator) -> Images:
    """A small random rotation (up to 10 degrees), scaling (10 %) and shift (0.8 pixel), bilinear, zeros outside."""
    size = image.shape[0]
    angle = generator.uniform(-0.175, 0.175)
    scale = generator.uniform(0.9, 1.1)
    shift = generator.uniform(-0.8, 0.8, 2)
    centre = (size - 1) / 2
    rows, columns = np.mgrid[0:size, 0:size] - centre
    cosine, sine = np.cos(angle) * scale, np.sin(angle) * scale
    y = np.clip(cosine * rows - sine * columns + centre + shift[0], -1, size) + 1
    x = np.clip(sine * rows + cosine * columns + centre + shift[1], -1, size) + 1
    padded = np.pad(image, ((1, 2), (1, 2)))
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    dy, dx = y - top, x - left
    upper = padded[top, left] * (1 - dx) + padded[top, left + 1] * dx
    lower = padded[top + 1, left] * (1 - dx) + padded[top + 1, left + 1] * dx
    return (upper * (1 - dy) + lower * dy).astype(np.float32)
