"""The data sets of `loader.py`: worker processes find their classes here, in a file that needs neither framework."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = 4
MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)


def write_images(folder: Path, count: int, side: int) -> None:
    """A folder for each class with smooth colour images, which compress about as well as photographs do."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for k in range(count):
        place = folder / f"class{k % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8))
        image = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.int16) + rng.integers(-6, 7, (side, side, 3), dtype=np.int16)
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(place / f"{k:05d}.jpg", quality=90)


class Folder:
    """Images of a folder: float32 (3, crop, crop) behind Pillow's decoder, a random resized crop, a flip and a normalisation; or with `raw` uint8
    (3, crop, crop), resized alone, for augmentation of whole batches where the model is."""

    def __init__(self, folder: str, crop: int, raw: bool = False) -> None:
        self.files = sorted(str(path) for path in Path(folder).rglob("*.jpg"))
        self.labels = [int(Path(path).parent.name.removeprefix("class")) for path in self.files]
        self.crop, self.raw = crop, raw

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(self.files[index]) as opened:
            image = opened.convert("RGB")
        size = (self.crop, self.crop)
        if self.raw:
            return np.asarray(image.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1).copy(), self.labels[index]
        width, height = image.size
        part = random.uniform(0.3, 1.0) ** 0.5
        left, top = random.uniform(0, width * (1 - part)), random.uniform(0, height * (1 - part))
        image = image.resize(size, Image.Resampling.BILINEAR, box=(left, top, left + width * part, top + height * part))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = (np.asarray(image, np.float32) / 255 - MEAN) / STD
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)), self.labels[index]


class Slow:
    """Samples that take so many rounds of a loop in Python, which holds the interpreter's lock."""

    def __init__(self, count: int, rounds: int) -> None:
        self.count, self.rounds = count, rounds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        total = index
        for k in range(self.rounds):
            total = (total * 31 + k) % 65_521
        return np.full((64,), total, np.float32), total % CLASSES
