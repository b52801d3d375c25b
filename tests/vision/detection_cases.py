"""Detectors and what they are made of through torchvision, by name: `python -m tests.vision.detection_cases` writes detection.json from an installed
torchvision. Of functions a summary is kept; of detectors the number of parameters, a hash of the names and shapes of the state dict and, under
weights that numbers make, the losses of two images and what is found in them. All boxes are drawn for the losses, so that nothing depends on chance.
"""

from __future__ import annotations

import importlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.vision.cases import summary
from tests.vision.model_cases import layout

FILE = Path(__file__).with_name("detection.json")
ALL = {
    "rpn_batch_size_per_image": 20000, "box_batch_size_per_image": 20000, "box_positive_fraction": 0.5, "rpn_pre_nms_top_n_train": 60,
    "rpn_post_nms_top_n_train": 20, "rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 20,
}  # fmt: skip
# By name, with options that make them quick.
NAMED: dict[str, dict[str, Any]] = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": {"min_size": 96, **ALL}, "ssdlite320_mobilenet_v3_large": {"detections_per_img": 20},
    "fasterrcnn_mobilenet_v3_large_fpn": {"min_size": 96, **ALL}, "fasterrcnn_resnet50_fpn": {"min_size": 96, **ALL},
    "fasterrcnn_resnet50_fpn_v2": {"min_size": 96, **ALL}, "maskrcnn_resnet50_fpn": {"min_size": 96, **ALL},
    "maskrcnn_resnet50_fpn_v2": {"min_size": 96, **ALL}, "keypointrcnn_resnet50_fpn": {"min_size": 96, "num_keypoints": 4, **ALL},
    "retinanet_resnet50_fpn": {"min_size": 96, "detections_per_img": 20}, "retinanet_resnet50_fpn_v2": {"min_size": 96, "detections_per_img": 20},
    "fcos_resnet50_fpn": {"min_size": 96, "detections_per_img": 20}, "ssd300_vgg16": {"detections_per_img": 20},
}  # fmt: skip


def filled(torch: Any, model: Any) -> Any:
    """The model with weights that depend on their names."""
    state = {}
    for name, value in model.state_dict().items():
        count, shift = int(np.prod(value.shape)), zlib.crc32(name.encode()) % 1000
        found = np.random.default_rng(shift).standard_normal(count)
        if name.endswith("running_var"):
            found = 1.0 + 0.1 * np.abs(found)
        elif value.ndim > 1:
            found = found * (1.0 / max(count / max(value.shape[0], 1), 1)) ** 0.5
        else:
            found = (1.0 if name.endswith("weight") else 0.0) + 0.1 * found
        if name.endswith("tracked"):
            state[name] = torch.zeros((), dtype=value.dtype)
        else:
            state[name] = torch.tensor(found.reshape(tuple(value.shape)).astype(np.float32))
    model.load_state_dict(state)
    return model


def scene(torch: Any) -> tuple[list[Any], list[Any]]:
    """Two images of different sizes and their targets."""
    rng = np.random.default_rng(5)
    images = [torch.tensor(rng.uniform(size=(3, *size)).astype(np.float32)) for size in ((60, 76), (72, 64))]
    boxes = [[[5.3, 7.1, 31.7, 40.9], [30.2, 11.6, 70.3, 52.8]], [[9.7, 20.4, 55.1, 66.3]]]
    targets = []
    for image, rows in zip(images, boxes, strict=True):
        height, width = image.shape[1:]
        masks = np.zeros((len(rows), height, width), np.uint8)
        points = np.ones((len(rows), 4, 3), np.float32)
        for k, (left, top, right, bottom) in enumerate(rows):
            masks[k, int(top) : int(bottom), int(left) + 3 : int(right)] = 1
            points[k, :, 0], points[k, :, 1] = np.linspace(left, right, 4), np.linspace(bottom - 2.3, top + 1.1, 4)
        points[0, 1, 2] = 0
        labels = torch.tensor([1 + k % 2 for k in range(len(rows))])
        targets.append({"boxes": torch.tensor(rows), "labels": labels, "masks": torch.tensor(masks), "keypoints": torch.tensor(points)})
    return images, targets


def results(torch: Any, model: Any) -> dict[str, Any]:
    """Losses, and what is found: how much, and the best of it."""
    images, targets = scene(torch)
    wants = "keypoints" if "Keypoint" in type(model).__name__ else "masks"
    targets = [{key: value for key, value in target.items() if key in ("boxes", "labels", wants)} for target in targets]
    if wants == "keypoints":
        targets = [{**target, "labels": target["labels"].clamp(max=1)} for target in targets]
    model.train()
    with torch.no_grad():
        losses = {name: float(value) for name, value in model(images, targets).items()}
        filled(torch, model)  # the statistics of normalisations have moved
        found = model.eval()(images)
    rows = []
    for one in found:
        row = {"count": len(one["boxes"])}
        for key, value in sorted(one.items()):
            row[key] = value[:3].detach().tolist() if key != "masks" else [summary(mask)[1:] for mask in value[:3]]
        rows.append(row)
    return {"losses": losses, "found": rows}


def trained(torch: Any, model: Any) -> dict[str, float]:
    """Losses after two small steps of training: they say whether gradients are right."""
    images, targets = scene(torch)
    if "Keypoint" in type(model).__name__:
        targets = [{**target, "labels": target["labels"].clamp(max=1)} for target in targets]
    optimizer = torch.optim.SGD(model.train().parameters(), lr=2e-3)
    for _ in range(2):
        optimizer.zero_grad()
        sum(model(images, targets).values()).backward()
        optimizer.step()
    with torch.no_grad():
        return {name: float(value) for name, value in model(images, targets).items()}


def body(torch: Any, levels: int, widths: int = 16) -> Any:
    """A small giver of features, each half as large as the one before."""
    nn = torch.nn

    class Body(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, widths, 5, 4, 2)
            self.rest = nn.ModuleList([nn.Conv2d(widths, widths, 3, 2, 1) for _ in range(levels - 1)])
            self.out_channels = widths

        def forward(self, x: Any) -> Any:
            found = [self.stem(x).relu()]
            for layer in self.rest:
                found.append(layer(found[-1]).relu())
            return OrderedDict((str(k), one) for k, one in enumerate(found))

    return Body()


def small(torch: Any, root: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, function that makes it) of detectors with small parts; `root` is the package of detectors."""

    def part(name: str) -> Any:
        return importlib.import_module(f"{root.__name__}.{name}")

    faster, anchor = part("faster_rcnn"), part("anchor_utils").AnchorGenerator
    shared: dict[str, Any] = {"min_size": 64, "max_size": 90, **ALL}

    def stages(kind: str, **options: Any) -> Any:
        anchors = anchor(((16, 24), (40, 56)), ((0.5, 1.0, 2.0),) * 2)
        heads = {"box_head": faster.TwoMLPHead(16 * 49, 24), "box_predictor": faster.FastRCNNPredictor(24, 3), "rpn_anchor_generator": anchors}
        return getattr(root, kind)(body(torch, 2), None, **{**shared, **heads, **options})

    def with_masks() -> Any:
        mask = part("mask_rcnn")
        return stages("MaskRCNN", mask_head=mask.MaskRCNNHeads(16, (8, 8), 1), mask_predictor=mask.MaskRCNNPredictor(8, 8, 3))

    def with_points() -> Any:
        point = part("keypoint_rcnn")
        heads = {"keypoint_head": point.KeypointRCNNHeads(16, (8, 8)), "keypoint_predictor": point.KeypointRCNNPredictor(8, 4)}
        return stages("KeypointRCNN", box_predictor=faster.FastRCNNPredictor(24, 2), **heads)

    def ssd() -> Any:
        module = part("ssd")
        boxes = part("anchor_utils").DefaultBoxGenerator([[2], [2, 3], [2]], min_ratio=0.2, max_ratio=0.8)
        return module.SSD(body(torch, 3), boxes, (72, 64), 3, head=module.SSDHead([16] * 3, boxes.num_anchors_per_location(), 3))

    def retina(kind: str) -> Any:
        model = root.RetinaNet(body(torch, 2), 3, min_size=64, max_size=90, anchor_generator=anchor(((16, 24), (40, 56)), ((0.5, 1.0),) * 2))
        model.head.regression_head._loss_type = kind
        return model

    yield "FasterRCNN", lambda: stages("FasterRCNN")
    yield "MaskRCNN", with_masks
    yield "KeypointRCNN", with_points
    for kind in ("l1", "smooth_l1", "giou", "diou", "ciou"):
        yield f"RetinaNet {kind}", lambda k=kind: retina(k)  # type: ignore[misc]
    yield "FCOS", lambda: root.FCOS(body(torch, 2, 32), 3, min_size=64, max_size=90, anchor_generator=anchor(((8,), (16,)), ((1.0,),) * 2))
    yield "SSD", ssd


def functions(torch: Any, ops: Any, utils: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, function) of operations on regions and pairs of boxes."""
    x = (torch.arange(2 * 24 * 9 * 11).float() * 0.37).sin().reshape(2, 24, 9, 11)
    listed = [torch.tensor([[1.3, 2.1, 9.7, 8.2], [0.0, 0.0, 20.0, 17.0]]), torch.tensor([[4.2, 3.3, 5.1, 9.9]])]
    for scale in (0.5, 1.0):
        for size in ((2, 3), 2):
            yield f"roi_align {scale} {size}", lambda s=scale, o=size: ops.roi_align(x, listed, o, s, 2)  # type: ignore[misc]
    a = torch.tensor([[1.3, 2.1, 9.7, 8.2], [0.0, 0.0, 20.0, 17.0], [1.0, 1.0, 3.0, 3.0]])
    b = torch.tensor([[2.3, 1.1, 8.7, 9.2], [10.0, 3.0, 25.0, 19.0], [5.0, 6.0, 9.0, 7.0]])
    for name in ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"):
        for reduction in ("none", "mean", "sum"):
            yield f"{name} {reduction}", lambda n=name, r=reduction: getattr(ops, n)(a, b, reduction=r)  # type: ignore[misc]
    maps = OrderedDict([("0", x[:, :, :8, :8]), ("1", x[:, :, :4, :4]), ("2", x[:, :, :2, :2])])
    boxes = [torch.tensor([[1.3, 2.1, 30.7, 28.2], [4.0, 4.0, 9.0, 7.0]]), torch.tensor([[4.2, 3.3, 15.1, 19.9]])]
    pool = ops.MultiScaleRoIAlign(["0", "1", "2"], 3, 2, canonical_scale=16, canonical_level=3)
    yield "MultiScaleRoIAlign", lambda: pool(maps, boxes, [(32, 32), (30, 32)])
    for name, extra in (("none", None), ("pool", "LastLevelMaxPool"), ("p6p7", "LastLevelP6P7")):
        for key in ("0", "1", "p6", "p7", "pool"):
            yield f"FeaturePyramidNetwork {name} {key}", lambda e=extra, k=key: pyramid(torch, ops, x, e).get(k, torch.zeros(1))  # type: ignore[misc]
    yield "Conv3dNormActivation", lambda: filled(torch, ops.Conv3dNormActivation(4, 6, (3, 1, 3), 2))(x.reshape(2, 4, 6, 9, 11)).detach()
    yield from drawings(torch, utils)


def pyramid(torch: Any, ops: Any, x: Any, extra: str | None) -> Any:
    """The levels of a small pyramid."""
    kinds = ops.feature_pyramid_network
    block = None if extra is None else kinds.LastLevelMaxPool() if extra == "LastLevelMaxPool" else kinds.LastLevelP6P7(24, 8)
    model = filled(torch, ops.FeaturePyramidNetwork([24, 24], 8, block))
    with torch.no_grad():
        return model(OrderedDict([("0", x), ("1", x[:, :, :5, :6])]))


def drawings(torch: Any, utils: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, function) of pictures of what was found."""
    image = ((torch.arange(3 * 24 * 30).float() * 0.37).sin().reshape(3, 24, 30) * 127 + 128).to(torch.uint8)
    boxes = torch.tensor([[2.0, 3.0, 20.0, 15.0], [10.0, 8.0, 28.0, 22.0]])
    masks = torch.stack([image[0] > 100, image[1] > 180])
    points = torch.tensor([[[4.0, 5.0], [12.0, 9.0], [20.0, 18.0]]])
    for name, picture in (("uint8", image), ("float", image.float() / 255)):
        yield f"draw_bounding_boxes {name}", lambda p=picture: utils.draw_bounding_boxes(p, boxes)  # type: ignore[misc]
        yield f"draw_bounding_boxes wide {name}", lambda p=picture: utils.draw_bounding_boxes(p, boxes, colors=["red", (0, 9, 200)], width=2)  # type: ignore[misc]
        yield f"draw_segmentation_masks {name}", lambda p=picture: utils.draw_segmentation_masks(p, masks, 0.6)  # type: ignore[misc]
        yield f"draw_segmentation_masks one {name}", lambda p=picture: utils.draw_segmentation_masks(p, masks[0], colors="blue")  # type: ignore[misc]
        yield (
            f"draw_keypoints {name}",
            lambda p=picture: utils.draw_keypoints(p, points, [(0, 1), (1, 2)], "#ff00ff", visibility=torch.tensor([[True, True, False]])),  # type: ignore[misc]
        )
    yield "draw_bounding_boxes fill", lambda: utils.draw_bounding_boxes(image, boxes, fill=True)
    yield "draw_bounding_boxes gray", lambda: utils.draw_bounding_boxes(image[:1], boxes, colors="yellow")
    flow = (torch.arange(2 * 2 * 7 * 9).float() * 0.61).cos().reshape(2, 2, 7, 9) * 3
    yield "flow_to_image", lambda: utils.flow_to_image(flow)
    yield "flow_to_image one", lambda: utils.flow_to_image(flow[0])


def named(root: Any, name: str) -> Any:
    """A detector by name, without trained weights."""
    return getattr(root, name)(weights=None, weights_backbone=None, num_classes=2 if "keypoint" in name else 3, **NAMED[name])


def main() -> None:
    torch, tv = importlib.import_module("torch"), importlib.import_module("torchvision")
    root = tv.models.detection
    out: dict[str, Any] = {f"ops {name}": summary(f()) for name, f in functions(torch, tv.ops, tv.utils)}
    for name, make in small(torch, root):
        torch.manual_seed(0)
        out[f"small {name}"] = {**results(torch, filled(torch, make())), "after": trained(torch, filled(torch, make()))}
    for name in NAMED:
        model = named(root, name)
        out[f"model {name}"] = [*layout(model), results(torch, filled(torch, model))]
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in out.items()) + "\n}\n")


if __name__ == "__main__":
    main()
