"""`calque.vision`: what torchvision computes, and what chance and files do."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

import calque
from calque.data import DataLoader
from calque.vision import datasets, ops, transforms, utils
from calque.vision.transforms import functional as F
from calque.vision.transforms import v2
from tests.vision.cases import BOXES, FILE, functions, others, summary, warps

EXPECTED = json.loads(FILE.read_text())


def test_results_are_those_of_torchvision() -> None:
    wrong = []
    for name, function in [*functions(calque, F), *warps(calque, F), *others(calque, F, ops, utils)]:
        shape, *sums = EXPECTED[name]
        found_shape, *found = summary(function())
        count = float(np.prod(shape))
        whole = "uint8" in name or "pillow" in name  # a value that is rounded may fall to the other side
        allowed = 0.02 * count + 1 if whole else 2e-5 * count + 1e-5 * max(map(abs, sums))
        if found_shape != shape or any(abs(a - b) > allowed for a, b in zip(sums, found)):
            wrong.append((name, EXPECTED[name], found_shape, found))
    assert not wrong and len(EXPECTED) > 250


def test_boxes_that_cover_better_ones_go() -> None:
    boxes, scores = calque.tensor(BOXES), calque.tensor([0.5, 0.9, 0.8, 0.3, 0.6])
    assert ops.nms(boxes, scores, 0.1).tolist() == [1, 4, 3] and ops.nms(boxes, scores, 0.5).tolist() == [1, 2, 4, 3]
    assert ops.batched_nms(boxes, scores, calque.tensor([0, 1, 0, 1, 0]), 0.1).tolist() == [1, 2, 4, 3]
    assert ops.nms(boxes[:0], scores[:0], 0.5).tolist() == []


def test_texts_are_those_of_torchvision() -> None:
    both = transforms.Compose([transforms.Resize(4), transforms.RandomCrop(3, padding=2), transforms.Normalize([0.5], [0.5])])
    assert repr(both).splitlines() == [
        "Compose(", "    Resize(size=4, interpolation=bilinear, max_size=None, antialias=True)", "    RandomCrop(size=(3, 3), padding=2)",
        "    Normalize(mean=[0.5], std=[0.5])", ")",
    ]  # fmt: skip


def test_chance_follows_the_seed() -> None:
    chance = transforms.Compose([
        transforms.RandomResizedCrop(8), transforms.RandomHorizontalFlip(), transforms.RandomVerticalFlip(), transforms.RandomRotation(20),
        transforms.ColorJitter(0.4, 0.4, 0.4, 0.1), transforms.RandomGrayscale(), transforms.ToTensor(),
        transforms.RandomErasing(p=1.0, value="random"),
    ])  # fmt: skip
    img = Image.fromarray(np.arange(20 * 16 * 3, dtype=np.uint8).reshape(20, 16, 3))
    drawn = []
    for seed in (0, 0, 1):
        calque.manual_seed(seed)
        drawn.append(chance(img))
    assert drawn[0].shape == (3, 8, 8) and calque.equal(drawn[0], drawn[1]) and not calque.equal(drawn[0], drawn[2])


def test_a_part_comes_from_inside() -> None:
    img = calque.arange(100.0).view(1, 10, 10)
    for _ in range(20):
        part = transforms.RandomCrop(4)(img)
        top, left = divmod(int(part[0, 0, 0].item()), 10)
        assert calque.equal(part, img[:, top : top + 4, left : left + 4])
    with pytest.raises(ValueError, match="larger than input image size"):
        transforms.RandomCrop(11)(img)
    assert transforms.RandomCrop(12, pad_if_needed=True)(img).shape == (1, 12, 12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: F.normalize(calque.zeros(3, 2, 2, dtype=calque.uint8), [0.5], [0.5]), "expected a floating Tensor"),
        (lambda: F.normalize(calque.zeros(3, 2, 2), [0.5], [0.0]), "std evaluated to zero"),
        (lambda: F.affine(calque.zeros(3, 8, 8), 0.0, [1], 1.0, 0.0), "translate as 2 finite numbers"),
        (lambda: F.affine(calque.zeros(3, 8, 8), 0.0, [0, 0], 0.0, 0.0), "scale should be positive"),
        (lambda: F.rotate(calque.zeros(3, 8, 8), float("nan")), "finite"),
        (lambda: F.rotate(calque.zeros(3, 8, 8), 10, fill=[1, 2]), "one for each channel"),
        (lambda: F.perspective(calque.zeros(3, 8, 8), [[0, 0]] * 4, [[0, 0]] * 4), "no three lie on a line"),
        (lambda: F.posterize(calque.zeros(3, 8, 8), 9), "bits from 0 to 8"),
        (lambda: F.equalize(calque.zeros(3, 8, 8, dtype=calque.int32)), "uint8"),
        (lambda: F.solarize(calque.zeros(3, 8, 8), 2), "less than bound"),
        (lambda: transforms.RandAugment(magnitude=31), "magnitude from 0 to 30"),
        (lambda: transforms.AutoAugment("imagenet"), "not recognized"),  # type: ignore[arg-type]
        (lambda: transforms.AugMix(severity=11), "between"),
        (lambda: transforms.AugMix(alpha=0), "alpha above 0"),
        (lambda: transforms.RandomAffine(-1), "must be positive"),
        (lambda: transforms.RandomLighting(temperature=(9000, 3000)), "the lowest first"),
        (lambda: transforms.RandomReflection(strength=1.5), "strength between 0 and 1"),
        (lambda: transforms.RandomLighting(p=1.0)(calque.zeros(3, 8, 8, dtype=calque.int32)), "uint8 or floating"),
        (lambda: transforms.RandomReflection(p=1.0)(calque.zeros(2, 8, 8)), "channels are grey"),
        (lambda: F.hflip([1]), "expected an image of Pillow's or a Tensor"),
        (lambda: F.gaussian_blur(calque.zeros(3, 8, 8), 4), "odd and positive"),
        (lambda: F.adjust_hue(calque.zeros(3, 8, 8), 0.7), "is not in"),
        (lambda: transforms.ColorJitter(brightness=-1), "at least 0"),
        (lambda: ops.box_convert(calque.zeros(1, 4), "xyxy", "yxyx"), "Unsupported Bounding Box"),
        (lambda: datasets.MNIST("/nowhere"), "Dataset not found"),
        (lambda: datasets.CIFAR10("/nowhere"), "Dataset not found"),
    ],
)
def test_mistakes_are_named(call: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
        call()


def test_mnist_reads_its_files(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    values = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    (raw / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 3, 28, 28) + values.tobytes())
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 3) + bytes([5, 0, 9])))
    found = datasets.MNIST(tmp_path, transform=transforms.ToTensor())
    images, labels = next(iter(DataLoader(found, batch_size=3)))
    assert labels.tolist() == [5, 0, 9] and np.array_equal((images * 255).round().numpy()[:, 0], values)
    (raw / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 3, 28, 28))
    with pytest.raises(ValueError, match="expected .* values, got 0"):
        datasets.MNIST(tmp_path)


def test_cifar_reads_its_files_without_executing_them(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    data = np.arange(4 * 3072, dtype=np.uint8).reshape(4, 3072)
    for name in ("test_batch", *(f"data_batch_{k}" for k in range(1, 6))):
        (folder / name).write_bytes(pickle.dumps({"data": data, "labels": [3, 1, 0, 2]}, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a", "b", "c", "d"]}, protocol=2))
    found = datasets.CIFAR10(tmp_path)
    assert len(found) == 20 and found.classes == ["a", "b", "c", "d"] and found[4][1] == 3
    assert np.array_equal(np.array(found[1][0]), data[1].reshape(3, 32, 32).transpose(1, 2, 0))
    (folder / "test_batch").write_bytes(b"cos\nsystem\n(S'echo executed > /tmp/executed'\ntR.")
    with pytest.raises(Exception, match="system"):
        datasets.CIFAR10(tmp_path, train=False)
    assert not Path("/tmp/executed").exists()


def test_folders_are_classes(tmp_path: Path) -> None:
    for name, count in (("dog", 2), ("cat", 1)):
        (tmp_path / name).mkdir()
        for k in range(count):
            Image.new("RGB", (4, 3), (k, 0, 0)).save(tmp_path / name / f"{k}.png")
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    found = datasets.ImageFolder(str(tmp_path), transform=transforms.PILToTensor())
    assert found.classes == ["cat", "dog"] and found.targets == [0, 1, 1] and found[2][0].shape == (3, 3, 4)


def test_images_are_written(tmp_path: Path) -> None:
    utils.save_image(calque.ones(4, 3, 5, 5) * 0.5, tmp_path / "grid.png", nrow=2)
    values = np.array(Image.open(tmp_path / "grid.png"))
    assert values.shape == (16, 16, 3) and values[3, 3, 0] == 128 and values[0, 0, 0] == 0


def test_layers() -> None:
    norm = ops.FrozenBatchNorm2d(3)
    norm.running_mean.copy_(calque.tensor([1.0, 2.0, 3.0]))
    assert list(dict(norm.named_parameters())) == []
    assert calque.allclose(norm(calque.ones(1, 3, 1, 1)).flatten(), calque.tensor([0.0, -1, -2]), atol=1e-4)
    block = ops.Conv2dNormActivation(3, 8, stride=2)
    assert block(calque.ones(1, 3, 8, 8)).shape == (1, 8, 4, 4) and [type(m).__name__ for m in block] == ["Conv2d", "BatchNorm2d", "ReLU"]
    depth = ops.StochasticDepth(0.5, "row")
    kept = depth(calque.ones(200, 3))
    assert set(kept.flatten().tolist()) == {0.0, 2.0} and calque.equal(depth.eval()(kept), kept)


def test_densenet() -> None:
    """The names and sizes of torchvision's; a memory-efficient one computes the same, with the same gradients."""
    assert sum(p.numel() for p in calque.vision.models.densenet121().parameters()) == 7_978_856
    plain = calque.vision.models.DenseNet(8, (2, 3), 16, num_classes=3)
    thrifty = calque.vision.models.DenseNet(8, (2, 3), 16, num_classes=3, memory_efficient=True)
    thrifty.load_state_dict(plain.state_dict())
    assert "features.denseblock2.denselayer3.conv2.weight" in plain.state_dict() and "features.transition1.norm.weight" in plain.state_dict()
    x, found = calque.rand(2, 3, 32, 32), []
    for model in (plain, thrifty):
        y = model(x)
        y.square().sum().backward()
        found.append((y.tolist(), model.features.conv0.weight.grad.tolist()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match="expected weights="):
        calque.vision.models.densenet121(weights=3)


def test_boxes_compared_by_distance_and_proportion() -> None:
    a, b = calque.tensor([[0.0, 0, 2, 3]]), calque.tensor([[0.0, 1, 2, 2], [5, 5, 6, 7]])
    iou, apart = np.array([1 / 3, 0.0]), np.array([0.0, 20.25 + 20.25 - 0.0])
    apart[1] = 4.5**2 + 4.5**2
    want = iou - apart / np.array([13.0, 85.0])
    np.testing.assert_allclose(calque.vision.ops.distance_box_iou(a, b)[0].tolist(), want, rtol=1e-5)
    v = 4 / np.pi**2 * (np.arctan(2 / 3) - np.arctan([2.0, 0.5])) ** 2
    np.testing.assert_allclose(calque.vision.ops.complete_box_iou(a, b)[0].tolist(), want - v * v / (1 - iou + v), rtol=1e-5)
    masks = calque.zeros(3, 5, 6)
    masks[0, 1:3, 2:5] = 1
    masks[1, 4, 0] = 1
    assert calque.vision.ops.masks_to_boxes(masks).tolist() == [[2, 1, 4, 2], [0, 4, 0, 4], [0, 0, 0, 0]]


@pytest.mark.parametrize("kind", [v2.MixUp, v2.CutMix])
def test_mixed_batches_have_the_labels_of_their_pixels(kind: Any) -> None:
    """Images of one colour each: the mean of a mixed one is its labels' mean, over many draws with every share; the same seed mixes the same."""
    colours = calque.tensor([0.0, 1.0, 5.0, -2.0])
    images, labels = colours.reshape(4, 1, 1, 1).expand(4, 2, 9, 14).contiguous(), calque.arange(4)
    shares = []
    for _ in range(40):
        mixed, found = kind(alpha=1.0, num_classes=4)(images, labels)
        assert (mixed.mean((1, 2, 3)) - found @ colours).abs().max().item() < 1e-5 and (found.sum(1) - 1).abs().max().item() < 1e-6
        assert ((found > 0) <= (calque.eye(4) + calque.eye(4).roll(1, 0) > 0)).all() or kind is v2.CutMix
        shares.append(found[0, 0].item())
    assert min(shares) < (0.3 if kind is v2.MixUp else 0.6) and max(shares) > 0.7  # a rectangle at the border is smaller
    calque.manual_seed(3)
    once = kind(num_classes=4)(images, labels)[0]
    calque.manual_seed(3)
    assert calque.equal(once, kind(num_classes=4)(images, calque.eye(4))[0])  # shares of classes as they are
    for arguments, words in (
        ((images[0], labels), "expected a batch of images"), ((images, labels[:2]), "expected labels"), ((images, calque.eye(4).long()), "floating"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=words):
            kind(num_classes=4)(*arguments)
    with pytest.raises(ValueError, match="expected num_classes"):
        kind()(images, labels)
    with pytest.raises(ValueError, match="expected alpha above 0"):
        kind(alpha=0.0)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "I;16", "I", "F"])
@pytest.mark.parametrize("kind", ["constant", "edge", "reflect"])
def test_padded_images_of_pillow_stay_what_they_are(mode: str, kind: str) -> None:
    Image = pytest.importorskip("PIL.Image")
    values = np.random.default_rng(3).integers(0, 256, (6, 5, 3)).astype(np.uint8)
    image = Image.fromarray(values[..., 0].astype(np.uint16) * 200) if mode == "I;16" else Image.fromarray(values).convert(mode)
    padded = transforms.functional.pad(image, [2, 1, 0, 1], padding_mode=kind)
    assert (padded.mode, padded.size) == (mode, (7, 8))
    back = padded.crop((2, 1, 7, 7))
    assert back.tobytes() == image.tobytes() and back.getpalette() == image.getpalette()
    assert transforms.CenterCrop(9)(image).mode == mode


@pytest.mark.parametrize("mode", ["I", "F", "I;16", "RGBA", "LA"])
def test_light_of_images_that_would_lose_something_is_refused(mode: str) -> None:
    Image = pytest.importorskip("PIL.Image")
    image = Image.fromarray(np.zeros((4, 4), np.uint16)) if mode == "I;16" else Image.new(mode, (4, 4))
    for change in (transforms.RandomLighting(p=1.0), transforms.RandomReflection(p=1.0)):
        with pytest.raises(TypeError, match=f"colours of 8 bits and nothing transparent, got mode {mode}; use to_tensor"):
            change(image)


@pytest.mark.parametrize("change", ["brightness", "contrast", "saturation", "sharpness"])
def test_whole_factors_do_not_wrap(change: str, rng: np.random.Generator) -> None:
    """3 times a value of uint8 was that product modulo 256."""
    image = calque.tensor(rng.integers(0, 256, (3, 6, 7)).astype(np.uint8))
    function = getattr(F, f"adjust_{change}")
    for kind in (image, image.to(calque.int16), image.to(calque.int8)):
        assert calque.equal(function(kind, 3), function(kind, 3.0))
    assert F.adjust_brightness(image, 3).tolist() == image.int().mul(3).clamp(0, 255).tolist()


def test_values_below_zero_are_resized() -> None:
    """The numbers are torchvision's; they were 0."""
    for dtype in (calque.int16, calque.int32, calque.int64):
        image = calque.tensor([[[-100, 50], [-30, 20]]], dtype=dtype)
        found = F.resize(image, (3, 3))
        assert found.dtype is dtype and found.tolist() == [[[-100, -25, 50], [-65, -15, 35], [-30, -5, 20]]]


def test_masks_of_bool_are_moved_and_images_of_bool_are_images() -> None:
    Mask = calque.vision.tv_tensors.Mask
    mask = calque.arange(30).view(5, 6) % 4 == 1
    seen_from, seen_at = [[0, 0], [5, 0], [5, 4], [0, 4]], [[1, 0], [5, 1], [4, 4], [0, 3]]
    move: Any
    for move in (
        lambda x: v2.functional.resize(x, (9, 4)), lambda x: v2.functional.rotate(x, 30), lambda x: v2.functional.affine(x, 9, [1, 2], 1.1, 3),
        lambda x: v2.functional.perspective(x, seen_from, seen_at),
    ):  # fmt: skip
        found = move(Mask(mask))
        assert found.dtype is calque.bool and calque.equal(found.long(), move(Mask(mask.long())).long())
    assert F.convert_image_dtype(mask[None], calque.float32).tolist() == mask[None].float().tolist()
    assert F.convert_image_dtype(calque.tensor([[[0.2, 1.0]]]), calque.bool).tolist() == [[[True, True]]]
    assert calque.equal(F.invert(mask[None]), ~mask[None]) and F.adjust_brightness(mask[None], 2).dtype is calque.bool


def test_numbers_of_pillow_keep_their_range() -> None:
    """16 bits became int32, of which float32 between 0 and 1 is a black image."""
    values = np.array([[0, 65535], [32768, 257]], np.uint16)
    found = F.pil_to_tensor(Image.fromarray(values))
    assert found.dtype is calque.uint16 and np.array_equal(found.numpy()[0], values)
    scaled = v2.Compose([v2.ToImage(), v2.ToDtype(calque.float32, scale=True)])(Image.fromarray(values))
    np.testing.assert_allclose(scaled.numpy()[0], values / np.float32(65535), rtol=1e-6)
    two = Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1")
    assert F.pil_to_tensor(two).tolist() == [[[False, True]]] and calque.vision.tv_tensors.Mask(two).dtype is calque.bool


@pytest.mark.parametrize("mode", ["YCbCr", "HSV", "CMYK"])
def test_channels_are_what_the_mode_says(mode: str, rng: np.random.Generator) -> None:
    """They were taken for red, green and blue, and converted."""
    values = rng.integers(0, 256, (4, 5, len(mode) if mode == "CMYK" else 3)).astype(np.uint8)
    image = F.to_pil_image(calque.tensor(values.transpose(2, 0, 1).copy()), mode)
    assert (image.mode, image.size) == (mode, (5, 4)) and np.array_equal(np.array(image), values)
    assert calque.equal(F.pil_to_tensor(F.to_pil_image(F.pil_to_tensor(image), mode)), F.pil_to_tensor(image))
    if mode != "CMYK":
        assert F.gaussian_blur(image, 1, 1.0).tobytes() == image.tobytes()


def test_edges_of_turned_and_sheared_images() -> None:
    """The numbers are torchvision's: fill=0 is not no fill, a shear of one number in a list is one for both sides."""
    image, mode = calque.arange(12.0).view(1, 3, 4), F.InterpolationMode.BILINEAR
    assert F.rotate(image, 30, mode, fill=0).flatten()[[0, 1, 3, 11]].tolist() == pytest.approx([0.1033, 1.2245, 3.2114, 1.5185], abs=1e-4)
    assert F.rotate(image, 30, mode).flatten()[[0, 1, 3, 11]].tolist() == pytest.approx([0.2692, 1.3852, 4.5814, 3.9546], abs=1e-4)
    assert F.affine(image, 0, [0, 0], 1.0, [20.0]).flatten().tolist() == [0, 1, 2, 7, 0, 5, 6, 11, 4, 9, 10, 0]
    assert F.rotate(image, 33, expand=True, center=[0, 1]).shape == (1, 5, 6)
    assert F.pad(image, 1, None).tolist() == F.pad(image, 1, 0).tolist()
    assert not np.isnan(np.array(F.pad(Image.new("F", (2, 2)), 1, None))).any()


@pytest.mark.parametrize("size", [(4, 3), (7, 4), (5, 5)])
def test_quarters_of_a_circle_move_each_pixel(size: tuple[int, int]) -> None:
    """As Pillow and torchvision's v2 turn them: there was a frame around them, and nothing was at its place."""
    values = np.arange(size[0] * size[1], dtype=np.float32).reshape(size)
    boxes = calque.vision.tv_tensors.BoundingBoxes([[1.0, 1, 2, 3]], format="XYXY", canvas_size=size)
    for quarters in range(-1, 6):
        for mode in (F.InterpolationMode.NEAREST, F.InterpolationMode.BILINEAR):
            wanted = np.rot90(values, quarters)
            found = F.rotate(calque.tensor(values)[None], 90 * quarters, mode, expand=True)
            assert np.array_equal(found.numpy()[0], wanted), (quarters, mode)
            assert np.array_equal(np.array(F.rotate(Image.fromarray(values), 90 * quarters, mode, expand=True)), wanted)
        moved = v2.functional.rotate(boxes, 90 * quarters, expand=True)
        left, top, right, bottom = (round(x) for x in moved[0].tolist())
        assert moved.canvas_size == wanted.shape and wanted[top:bottom, left:right].sum() == values[1:3, 1:2].sum()
