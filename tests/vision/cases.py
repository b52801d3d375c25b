"""Images, boxes and grids through `torchvision`'s functions, by name: `python -m tests.vision.cases` writes expected.json from an installed
torchvision. Kept are the shape of a result and two sums of its values.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("expected.json")
MOVED = Path(__file__).with_name("moved.json")
BOXES = [[0.0, 0, 4, 4], [1, 1, 5, 5], [0, 0, 4.2, 3.9], [8, 8, 9, 9], [3, 3, 9, 9]]


def summary(value: Any) -> Any:
    """[shape, sum, sum with weights]."""
    values = np.asarray(value.detach().double().numpy() if hasattr(value, "detach") else np.array(value), np.float64)
    weights = np.cos(np.arange(values.size) * 0.7).reshape(values.shape)
    return [list(values.shape), float(values.sum()), float((values * weights).sum())]


def images(torch: Any) -> dict[str, Any]:
    image = importlib.import_module("PIL.Image")
    x = (torch.arange(2 * 3 * 9 * 11).float() * 0.37).sin().view(2, 3, 9, 11) * 0.5 + 0.5
    u = (x * 255).to(torch.uint8)
    return {"float": x, "uint8": u, "pillow": image.fromarray(u[0].permute(1, 2, 0).contiguous().numpy())}


def functions(torch: Any, F: Any) -> Iterator[tuple[str, Any]]:
    """(name, function) of what is done with images."""
    modes = [F.InterpolationMode.BILINEAR, F.InterpolationMode.BICUBIC, F.InterpolationMode.NEAREST]
    for name, img in images(torch).items():
        for size in ((5, 6), (14, 20), 5, 17):
            for smooth in (True, False) if name != "pillow" else (True,):
                for mode in modes:
                    yield f"resize {name} {size} {smooth} {mode.value}", lambda i=img, s=size, m=mode, a=smooth: F.resize(i, s, m, antialias=a)
        for size in ((4, 5), (9, 11), (12, 15), 7, (20, 3)):
            yield f"center_crop {name} {size}", lambda i=img, s=size: F.center_crop(i, s)
        yield f"crop {name}", lambda i=img: F.crop(i, -2, 3, 6, 12)
        yield f"resized_crop {name}", lambda i=img: F.resized_crop(i, 1, 2, 5, 6, (8, 8))
        for mode in ("constant", "edge", "reflect", "symmetric"):
            yield f"pad {name} {mode}", lambda i=img, m=mode: F.pad(i, [1, 2, 3, 4], padding_mode=m)
        for one in ("hflip", "vflip", "invert"):
            yield f"{one} {name}", lambda i=img, f=one: getattr(F, f)(i)
        for count in (1, 3):
            yield f"rgb_to_grayscale {name} {count}", lambda i=img, n=count: F.rgb_to_grayscale(i, n)
        for kind in ("brightness", "contrast", "saturation"):
            for factor in (0, 0.5, 1.7):
                yield f"{kind} {name} {factor}", lambda i=img, k=kind, v=factor: getattr(F, f"adjust_{k}")(i, v)
        for factor in (-0.3, 0.0, 0.2, 0.5):
            yield f"hue {name} {factor}", lambda i=img, v=factor: F.adjust_hue(i, v)
        for angle in (30, -90, 45.5):
            yield f"rotate {name} {angle}", lambda i=img, a=angle: F.rotate(i, a, F.InterpolationMode.BILINEAR)
        yield f"gaussian_blur {name}", lambda i=img: F.gaussian_blur(i, [3, 5], [0.8, 1.2])


def warps(torch: Any, F: Any) -> Iterator[tuple[str, Any]]:
    """(name, function) of what moves pixels and changes tones."""
    modes = [F.InterpolationMode.BILINEAR, F.InterpolationMode.NEAREST]
    start, end = [[0, 0], [10, 0], [10, 8], [0, 8]], [[1, 2], [9, 1], [8, 7], [2, 8]]
    for name, img in images(torch).items():
        colour = [0.1, 0.2, 0.3] if name == "float" else [10, 20, 30]
        for mode in modes:
            for fill in (None, 7, colour):
                where = f"{name} {mode.value} {fill}"
                yield f"rotate wide {where}", lambda i=img, m=mode, f=fill: F.rotate(i, 33.3, m, True, None, f)
                yield f"rotate about {where}", lambda i=img, m=mode, f=fill: F.rotate(i, -71.7, m, False, [2, 3], f)
                yield f"affine {where}", lambda i=img, m=mode, f=fill: F.affine(i, 21.3, [1, -2], 0.83, [11.1, -7.3], m, f)
                yield f"affine about {where}", lambda i=img, m=mode, f=fill: F.affine(i, 0.0, [0, 0], 1.0, [17.7, 0.0], m, f, [0, 0])
                yield f"perspective {where}", lambda i=img, m=mode, f=fill: F.perspective(i, start, end, m, f)
        yield f"autocontrast {name}", lambda i=img: F.autocontrast(i)
        for factor in (0.0, 0.4, 1.9):
            yield f"sharpness {name} {factor}", lambda i=img, f=factor: F.adjust_sharpness(i, f)
        if name != "float":
            yield f"equalize {name}", lambda i=img: F.equalize(i)
            for k in (2, 5):
                yield f"posterize {name} {k}", lambda i=img, k=k: F.posterize(i, k)
            yield f"solarize {name}", lambda i=img: F.solarize(i, 100)


def others(torch: Any, F: Any, ops: Any, utils: Any) -> Iterator[tuple[str, Any]]:
    """(name, function) of conversions, boxes and grids."""
    found = images(torch)
    x, u, p = found.values()
    yield "to_tensor", lambda: F.to_tensor(p)
    yield "pil_to_tensor", lambda: F.pil_to_tensor(p)
    yield "to_pil_image", lambda: F.to_pil_image(x[0])
    for dtype in ("float32", "uint8", "int32", "float64"):
        for img in (u, x.double(), u.to(torch.int32)):
            yield f"convert {dtype} {img.dtype}", lambda d=dtype, i=img: F.convert_image_dtype(i, getattr(torch, d))
    yield "normalize", lambda: F.normalize(x, [0.1, 0.2, 0.3], [0.5, 0.6, 0.7])
    yield "erase", lambda: F.erase(x, 1, 2, 3, 4, torch.tensor(5.0))
    b = torch.tensor(BOXES)
    yield "box_iou", lambda: ops.box_iou(b, b)
    yield "generalized_box_iou", lambda: ops.generalized_box_iou(b, b)
    yield "clip_boxes_to_image", lambda: ops.clip_boxes_to_image(b, (4, 6))
    yield "remove_small_boxes", lambda: ops.remove_small_boxes(b, 2.0)
    for before in ("xyxy", "xywh", "cxcywh"):
        for after in ("xyxy", "xywh", "cxcywh"):
            yield f"box_convert {before} {after}", lambda i=before, o=after: ops.box_convert(b, i, o)
    yield "sigmoid_focal_loss", lambda: ops.sigmoid_focal_loss(x, (x > 0.5).float(), reduction="mean")
    yield "make_grid", lambda: utils.make_grid(x, nrow=1)
    yield "make_grid normalize", lambda: utils.make_grid(x, normalize=True, padding=1, pad_value=0.3)
    yield "make_grid each", lambda: utils.make_grid(x, normalize=True, scale_each=True)


def moved(torch: Any, F: Any, tv_tensors: Any) -> Iterator[tuple[str, Any]]:
    """(name, function) of boxes and masks that are moved with their image; `F` is `transforms.v2.functional`."""
    start, end = [[0, 0], [19, 0], [19, 15], [0, 15]], [[2, 1], [17, 3], [18, 14], [1, 12]]
    moves: dict[str, Any] = {
        "hflip": F.horizontal_flip, "vflip": F.vertical_flip, "crop": lambda x: F.crop(x, 2, 3, 9, 11),
        "crop outside": lambda x: F.crop(x, -3, 5, 12, 30),
        "pad": lambda x: F.pad(x, [1, 2, 3, 4]), "pad sides": lambda x: F.pad(x, [2, 5]), "resize": lambda x: F.resize(x, [9, 31]),
        "resize short": lambda x: F.resize(x, [24]), "resize longest": lambda x: F.resize(x, [24], max_size=27),
        "center_crop": lambda x: F.center_crop(x, [7, 9]), "center_crop large": lambda x: F.center_crop(x, [21, 12]),
        "resized_crop": lambda x: F.resized_crop(x, 1, 2, 10, 12, [20, 20]), "rotate": lambda x: F.rotate(x, 33.3),
        "rotate about": lambda x: F.rotate(x, -71.7, center=[2, 3]), "affine": lambda x: F.affine(x, 21.3, [1, -2], 0.83, [11.1, -7.3]),
        "affine about": lambda x: F.affine(x, 0.0, [0, 0], 1.3, [17.7, 0.0], center=[0, 0]),
        "perspective": lambda x: F.perspective(x, start, end),
    }  # fmt: skip
    corners = torch.tensor([[1.0, 2, 7, 9], [0, 0, 20, 16], [10.5, 3.25, 12.75, 15], [4, 4, 4, 4], [17, 12, 20, 16]])
    sides = corners[:, 2:] - corners[:, :2]
    forms = {
        "XYXY": corners, "XYWH": torch.cat([corners[:, :2], sides], 1), "CXCYWH": torch.cat([corners[:, :2] + sides / 2, sides], 1),
    }  # fmt: skip
    for form, values in forms.items():
        for clamp in ("soft", None):
            boxes = tv_tensors.BoundingBoxes(values, format=form, canvas_size=(16, 20), clamping_mode=clamp)
            whole = tv_tensors.BoundingBoxes(values.floor().long(), format=form, canvas_size=(16, 20), clamping_mode=clamp)
            for name, move in moves.items():
                yield f"{name} {form} {clamp}", lambda b=boxes, m=move: m(b)
                yield f"{name} {form} {clamp} int64", lambda b=whole, m=move: m(b)
        for other in forms:
            new = tv_tensors.BoundingBoxFormat[other]
            yield f"convert {form} {other}", lambda b=boxes, n=new: F.convert_bounding_box_format(b, new_format=n)
            yield f"convert {form} {other} int64", lambda b=whole, n=new: F.convert_bounding_box_format(b, new_format=n)
    mask = (torch.arange(16 * 20) * 7 % 5).view(16, 20)
    for name, move in moves.items():
        yield f"{name} mask", lambda m=move: m(tv_tensors.Mask(mask))
        yield f"{name} masks", lambda m=move: m(tv_tensors.Mask(torch.stack([mask, mask == 3]).to(torch.uint8)))


def facts(value: Any) -> Any:
    """[class, facts, shape, values] of a tensor of `tv_tensors`."""
    canvas = list(value.canvas_size) if hasattr(value, "canvas_size") else []
    return [type(value).__name__, [value.format.value, *canvas] if canvas else [], list(value.shape), [round(v, 4) for v in value.flatten().tolist()]]


def main() -> None:
    torch, tv = importlib.import_module("torch"), importlib.import_module("torchvision")
    F = importlib.import_module("torchvision.transforms.functional")
    cases = [*functions(torch, F), *warps(torch, F), *others(torch, F, tv.ops, tv.utils)]
    v2 = importlib.import_module("torchvision.transforms.v2.functional")
    parts = moved(torch, v2, importlib.import_module("torchvision.tv_tensors"))
    MOVED.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(facts(f()))}" for name, f in parts) + "\n}\n")
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(summary(f()))}" for name, f in cases) + "\n}\n")


if __name__ == "__main__":
    main()
