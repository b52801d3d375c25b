"""Data sets of images on local files. Names, files and arguments as in `torchvision.datasets`; nothing is fetched.

A sample is (image of Pillow's, label), changed by `transform` and `target_transform`.
"""

from __future__ import annotations

import gzip
import os
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from calque import functional as T
from calque.base.errors import DataError
from calque.base.shapes import whole
from calque.base.text import shown
from calque.data import Dataset
from calque.data.remote import bare, files_below, local_copy
from calque.functional.blame import publish as _publish
from calque.io.allowed import find
from calque.io.bounds import Budget
from calque.io.source import Reader, of_bytes
from calque.io.unpickle import Unpickler
from calque.vision.transforms.functional import pillow

__all__ = ["CIFAR10", "CIFAR100", "DatasetFolder", "FakeData", "FashionMNIST", "ImageFolder", "KMNIST", "MNIST", "VisionDataset"]

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

_Folder = str | os.PathLike[str]


class VisionDataset(Dataset):
    """What the others have in common: a folder and transformations. `transforms` takes image and label together."""

    def __init__(self, root: _Folder | None = None, transforms: Any = None, transform: Any = None, target_transform: Any = None) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise ValueError("[VisionDataset] Only transforms or transform/target_transform can be passed as argument, got both; choose one")
        self.root: Any = os.path.expanduser(root) if isinstance(root, str) else root
        self.transforms, self.transform, self.target_transform = transforms, transform, target_transform

    def changed(self, image: Any, target: Any) -> tuple[Any, Any]:
        """A sample, transformed."""
        if self.transforms is not None:
            return self.transforms(image, target)  # type: ignore[no-any-return]
        return (
            self.transform(image) if self.transform is not None else image,
            self.target_transform(target) if self.target_transform is not None else target,
        )

    def __repr__(self) -> str:
        return f"Dataset {type(self).__name__}\n    Number of datapoints: {len(self)}\n    Root location: {self.root}"  # type: ignore[arg-type]


class DatasetFolder(VisionDataset):
    """A folder for each class: `root/dog/x.png`, or an address of such (`s3://bucket/train`), whose files are copied when they are read. loader:
    reads a file; extensions or is_valid_file: which files count."""

    def __init__(
        self, root: _Folder, loader: Callable[[str], Any], extensions: Any = None, transform: Any = None, target_transform: Any = None,
        is_valid_file: Callable[[str], bool] | None = None, allow_empty: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(root, transform=transform, target_transform=target_transform)
        if (extensions is None) == (is_valid_file is None):
            raise ValueError("[DatasetFolder] expected extensions or is_valid_file, got both or neither (they cannot both be given); pass one")
        ends = (extensions,) if isinstance(extensions, str) else tuple(extensions or ())
        valid = is_valid_file or (lambda path: path.lower().endswith(ends))
        self.loader, self.extensions = loader, extensions
        below = files_below(self.root, type(self).__name__)
        self.classes = list(below)
        if not self.classes:
            raise FileNotFoundError(f"[DatasetFolder] Couldn't find any class folder in {self.root}; make one for each class")
        self.class_to_idx = {name: k for k, name in enumerate(self.classes)}
        self.samples: list[tuple[str, int]] = []
        for name, index in self.class_to_idx.items():
            found = [(path, index) for path in below[name] if valid(bare(path))]
            if not found and not allow_empty:
                raise FileNotFoundError(f"[DatasetFolder] Found no valid file for the classes {name}; allow_empty=True accepts that")
            self.samples += found
        self.targets = [index for _, index in self.samples]

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self.samples[index]
        return self.changed(self.loader(local_copy(path)), target)

    def __len__(self) -> int:
        return len(self.samples)


def default_loader(path: str) -> Any:
    """An image of Pillow's in RGB."""
    with open(path, "rb") as file:
        return pillow("ImageFolder").open(file).convert("RGB")


class ImageFolder(DatasetFolder):
    """Images in a folder for each class."""

    def __init__(
        self, root: _Folder, transform: Any = None, target_transform: Any = None, loader: Callable[[str], Any] = default_loader,
        is_valid_file: Callable[[str], bool] | None = None, allow_empty: bool = False,
    ) -> None:  # fmt: skip
        extensions = IMG_EXTENSIONS if is_valid_file is None else None
        super().__init__(root, loader, extensions, transform, target_transform, is_valid_file, allow_empty)
        self.imgs = self.samples


def _indexed(path: Path) -> Any:
    """The array in a file of the IDX format, perhaps compressed. Source: LeCun, Cortes and Burges, "The MNIST database"."""
    whole = path.with_name(path.name + ".gz")
    content = path.read_bytes() if path.exists() else gzip.decompress(whole.read_bytes())
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != 8:
        raise DataError(f"[MNIST] expected bytes in the IDX format, got {shown(content[:4])} at the beginning of {path}; fetch the file again")
    sizes = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if values.size != np.prod(sizes, dtype=np.int64):
        raise DataError(f"[MNIST] expected {sizes} values, got {values.size} in {path}; fetch the file again")
    return values.reshape(sizes).copy()


class MNIST(VisionDataset):
    """28x28 grey images of ten classes in `root/<name of the class>/raw/train-images-idx3-ubyte` and so on, or compressed beside it."""

    classes = [f"{k} - {name}" for k, name in enumerate(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])]

    def __init__(self, root: _Folder, train: bool = True, transform: Any = None, target_transform: Any = None, download: bool = False) -> None:
        super().__init__(root, transform=transform, target_transform=target_transform)
        self.train = train
        folder, kind = Path(self.raw_folder), "train" if train else "t10k"
        paths = [folder / f"{kind}-{what}" for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        for path in paths:
            if not path.exists() and not path.with_name(path.name + ".gz").exists():
                raise RuntimeError(f"[{type(self).__name__}] Dataset not found: expected {path} (or .gz); nothing is fetched, put it there")
        self.data, self.targets = T.tensor(_indexed(paths[0])), T.tensor(_indexed(paths[1]).astype(np.int64))

    @property
    def raw_folder(self) -> str:
        """Where the files are."""
        return os.path.join(self.root, type(self).__name__, "raw")

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class -> label."""
        return {name: k for k, name in enumerate(self.classes)}

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.changed(pillow("MNIST").fromarray(self.data[index].numpy()), int(self.targets[index].item()))

    def __len__(self) -> int:
        return len(self.data)


class FashionMNIST(MNIST):
    """Clothes, in the form of `MNIST`."""

    classes = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


class KMNIST(MNIST):
    """Japanese characters, in the form of `MNIST`."""

    classes = ["o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"]


def _pickled(path: Path) -> dict[Any, Any]:
    """The dict in a file of CIFAR, read by our machine for pickles, which executes nothing."""
    content = path.read_bytes()
    budget = Budget(64 * len(content) + (64 << 20), f"{path} would take much more memory than it has bytes")

    def persistent(value: Any) -> Any:
        raise DataError(f"[CIFAR10] expected a batch of images, got a reference to something outside of {path}; fetch the file again")

    return Unpickler(Reader(of_bytes(content), 0, len(content)), partial(find, more={}), persistent, budget, "latin1").load()  # type: ignore[no-any-return]


class CIFAR10(VisionDataset):
    """32x32 colour images of ten classes in `root/cifar-10-batches-py`."""

    base_folder = "cifar-10-batches-py"
    files = (tuple(f"data_batch_{k}" for k in range(1, 6)), ("test_batch",))
    labels, names = "labels", ("batches.meta", "label_names")

    def __init__(self, root: _Folder, train: bool = True, transform: Any = None, target_transform: Any = None, download: bool = False) -> None:
        super().__init__(root, transform=transform, target_transform=target_transform)
        folder = Path(self.root) / self.base_folder
        wanted = self.files[0 if train else 1]
        missing = [name for name in (*wanted, self.names[0]) if not (folder / name).exists()]
        if missing:
            raise RuntimeError(
                f"[{type(self).__name__}] Dataset not found or corrupted: expected {missing[0]} in {folder}; nothing is fetched, put the files there"
            )
        self.train = train
        batches = [_pickled(folder / name) for name in wanted]
        data = np.concatenate([np.asarray(batch["data"]) for batch in batches])
        self.data = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        self.targets = [int(label) for batch in batches for label in batch[self.labels]]
        self.classes = list(_pickled(folder / self.names[0])[self.names[1]])
        self.class_to_idx = {name: k for k, name in enumerate(self.classes)}

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.changed(pillow("CIFAR10").fromarray(np.ascontiguousarray(self.data[index])), self.targets[index])

    def __len__(self) -> int:
        return len(self.data)


class CIFAR100(CIFAR10):
    """32x32 colour images of a hundred classes in `root/cifar-100-python`."""

    base_folder = "cifar-100-python"
    files = (("train",), ("test",))
    labels, names = "fine_labels", ("meta", "fine_label_names")


class FakeData(VisionDataset):
    """Random images, the same for the same index."""

    def __init__(
        self, size: int = 1000, image_size: Any = (3, 224, 224), num_classes: int = 10, transform: Any = None, target_transform: Any = None,
        random_offset: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(None, transform=transform, target_transform=target_transform)
        self.size, self.image_size, self.num_classes, self.random_offset = size, image_size, num_classes, random_offset

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not 0 <= whole("FakeData", "index", index) < self.size:
            raise IndexError(f"[FakeData] expected an index below {self.size}, got {index} (index out of range); count from 0")
        random = np.random.default_rng(index + self.random_offset)
        values = (random.random(tuple(self.image_size)) * 255).astype(np.uint8).transpose(1, 2, 0)
        image = pillow("FakeData").fromarray(values[:, :, 0] if values.shape[2] == 1 else values)
        return self.changed(image, int(random.integers(self.num_classes)))

    def __len__(self) -> int:
        return self.size


_publish(sys.modules[__name__])
