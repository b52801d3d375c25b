"""Detectors and what they are made of: torchvision's numbers, names and shapes; learning; what is said when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.vision import ops, utils
from calque.vision.models import detection
from tests.vision import detection_cases as cases
from tests.vision.cases import summary
from tests.vision.model_cases import layout

EXPECTED = json.loads(cases.FILE.read_text())


def same(found: Any, wanted: Any, where: str, tolerance: float = 2e-3) -> None:
    """Structures of equal numbers, but for rounding."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted), where
        for key, value in wanted.items():
            same(found[key], value, f"{where} {key}", tolerance)
    else:
        np.testing.assert_allclose(np.array(found, np.float64), np.array(wanted, np.float64), tolerance, tolerance, err_msg=where)


def same_results(found: Any, wanted: Any, where: str) -> None:
    same(found["losses"], wanted["losses"], where)
    for k, (one, other) in enumerate(zip(found["found"], wanted["found"], strict=True)):
        same(one, other, f"{where} {k}", 1e-2)


FUNCTIONS: dict[str, Callable[[], Any]] = dict(cases.functions(calque, ops, utils))


def test_every_function_is_compared() -> None:
    assert {f"ops {name}" for name in FUNCTIONS} == {name for name in EXPECTED if name.startswith("ops ")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_the_numbers_of_torchvision(name: str) -> None:
    found, wanted = summary(FUNCTIONS[name]()), EXPECTED[f"ops {name}"]
    assert found[0] == wanted[0]
    np.testing.assert_allclose(found[1:], wanted[1:], rtol=1e-4, atol=2e-3)


SMALL = dict(cases.small(calque, detection))


@pytest.mark.parametrize("name", SMALL)
def test_small_detectors_give_the_numbers_of_torchvision(name: str) -> None:
    wanted = EXPECTED[f"small {name}"]
    same_results(cases.results(calque, cases.filled(calque, SMALL[name]())), wanted, name)
    same(cases.trained(calque, cases.filled(calque, SMALL[name]())), wanted["after"], name)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.NAMED)
def test_detectors_are_those_of_torchvision(name: str) -> None:
    count, digest, wanted = EXPECTED[f"model {name}"]
    model = cases.named(detection, name)
    assert layout(model) == [count, digest]
    same_results(cases.results(calque, cases.filled(calque, model)), wanted, name)


def found_pair() -> tuple[Any, Any]:
    images, targets = cases.scene(calque)
    return images, [{key: target[key] for key in ("boxes", "labels", "masks")} for target in targets]


@pytest.mark.slow
def test_a_detector_with_new_predictors_learns_to_find_a_box() -> None:
    calque.manual_seed(0)
    model = SMALL["MaskRCNN"]()
    heads = model.roi_heads
    heads.box_predictor = detection.faster_rcnn.FastRCNNPredictor(heads.box_predictor.cls_score.in_features, 2)
    heads.mask_predictor = detection.mask_rcnn.MaskRCNNPredictor(heads.mask_predictor.conv5_mask.in_channels, 8, 2)
    image, mask = calque.zeros(3, 64, 64), calque.zeros(1, 64, 64, dtype=calque.uint8)
    image[:, 20:44, 12:40], mask[:, 20:44, 12:40] = 1.0, 1
    target = {"boxes": calque.tensor([[12.0, 20.0, 40.0, 44.0]]), "labels": calque.tensor([1]), "masks": mask}
    optimizer = calque.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    model.train()
    before: dict[str, float] = {}
    for step in range(60):
        optimizer.zero_grad()
        losses = model([image], [target])
        sum(losses.values()).backward()
        optimizer.step()
        before = {name: loss.item() for name, loss in losses.items()} if step == 0 else before
    assert losses["loss_mask"].item() < 0.5 * before["loss_mask"] and losses["loss_objectness"].item() < 0.1 * before["loss_objectness"]
    with calque.no_grad():
        found = model.eval()([image])[0]
    assert found["labels"][0].item() == 1 and found["masks"].shape[1:] == (1, 64, 64)
    assert ops.box_iou(found["boxes"][:1], target["boxes"]).item() > 0.5
    assert set(target) == {"boxes", "labels", "masks"} and target["boxes"].tolist() == [[12.0, 20.0, 40.0, 44.0]]


@pytest.mark.parametrize("name", ["MaskRCNN", "KeypointRCNN", "RetinaNet l1", "FCOS", "SSD"])
def test_images_without_objects(name: str) -> None:
    model = cases.filled(calque, SMALL[name]())
    images, targets = cases.scene(calque)
    empty = {key: value[:0] for key, value in targets[0].items()}
    for given in ([empty, targets[1]], [empty, empty]):
        if name == "KeypointRCNN":
            given = [{**one, "labels": one["labels"].clamp(max=1)} for one in given]
        losses = model.train()(images, given)
        sum(losses.values()).backward()
        assert all(np.isfinite(float(loss)) for loss in losses.values())
    (model.roi_heads if hasattr(model, "roi_heads") else model).score_thresh = 2.0
    for found in model.eval()(images):
        assert {len(value) for value in found.values()} == {0} and found["boxes"].shape == (0, 4)


def test_targets_that_cannot_be_learnt_are_refused() -> None:
    images, targets = found_pair()
    flat = [{**targets[0], "boxes": calque.tensor([[3.0, 3.0, 9.0, 9.0], [5.0, 5.0, 5.0, 8.0]])}, targets[1]]
    for name in ("FasterRCNN", "RetinaNet l1", "FCOS", "SSD"):
        model = SMALL[name]().train()
        for given, words in (
            (None, "targets should not be none"), ([{**targets[0], "boxes": [[1, 2, 3, 4]]}, targets[1]], "to be of type Tensor"),
            ([{**targets[0], "boxes": calque.zeros(4)}, targets[1]], r"shape \[N, 4\], got \(4,\) for target at index 0"),
            (flat, "positive height and width. Found invalid box .* for target at index 0"),
        ):  # fmt: skip
            with pytest.raises(AssertionError, match=words):
                model(images, given)
            with pytest.raises(ValueError, match=words):
                model(images, given)
        with pytest.raises(ValueError, match=r"shape \[C, H, W\]"):
            model.eval()([calque.zeros(1, 3, 8, 8)])
        with pytest.raises(TypeError, match="of floating type"):
            model([calque.zeros(3, 8, 8, dtype=calque.uint8)])
    model = SMALL["MaskRCNN"]().train()
    with pytest.raises(ValueError, match="should have a masks key"):
        model(images, [{key: one[key] for key in ("boxes", "labels")} for one in targets])
    with pytest.raises(TypeError, match="target labels must of int64 type"):
        model(images, [{**one, "labels": one["labels"].int()} for one in targets])


def test_parts_that_do_not_fit_are_refused() -> None:
    body, two = cases.body(calque, 2), detection.rpn.AnchorGenerator(((8, 9),), ((1.0,),))
    backbone = detection.backbone_utils.resnet_fpn_backbone
    for build, error, words in (
        (lambda: detection.FasterRCNN(calque.nn.ReLU(), 2), ValueError, "contain an attribute out_channels"),
        (lambda: detection.FasterRCNN(body), ValueError, "should be not None when box_predictor is not specified"),
        (lambda: detection.FasterRCNN(body, 2, rpn_anchor_generator=3), TypeError, "should be of type AnchorGenerator or None instead of int"),
        (lambda: detection.FasterRCNN(body, 2, box_roi_pool=3), TypeError, "should be of type MultiScaleRoIAlign or None"),
        (lambda: detection.MaskRCNN(body, 2, mask_predictor=body), ValueError, "should be None when mask_predictor is specified"),
        (lambda: detection.KeypointRCNN(body, 2, keypoint_predictor=body, num_keypoints=3), ValueError, "num_keypoints should be None"),
        (lambda: detection.RetinaNet(body, 2, size=3), TypeError, "got size; remove them"),
        (lambda: detection.FCOS(body, 2, anchor_generator=two), ValueError, "should be 1 instead of 2"),
        (lambda: detection.fasterrcnn_resnet50_fpn(weights="DEFAULT", num_classes=5), ValueError, "'num_classes' expected value 91"),
        (lambda: backbone(backbone_name="resnet18", weights=None, trainable_layers=6), ValueError, r"in the range \[0,5\], got 6"),
        (lambda: ops.FeaturePyramidNetwork([3, 0], 4), ValueError, "in_channels=0"),
        (lambda: ops.FeaturePyramidNetwork([3], 4, calque.nn.ReLU()), TypeError, "should be of type ExtraFPNBlock"),
        (lambda: ops.MultiScaleRoIAlign(["0"], 2, 2)({"0": calque.zeros(1, 1, 2, 2)}, [], []), ValueError, "images list should not be empty"),
        (lambda: ops.generalized_box_iou_loss(calque.ones(2, 4), calque.ones(2, 4), "all"), ValueError, "Invalid Value for arg 'reduction'"),
        (lambda: ops.generalized_box_iou_loss(calque.ones(2, 4), calque.ones(3, 4)), ValueError, "of one shape"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            build()
    anchors = detection.rpn.AnchorGenerator(((8,), (16,)), ((1.0,),) * 2)
    with pytest.raises(AssertionError, match="match between the number of feature maps"):
        anchors(detection.image_list.ImageList(calque.zeros(1, 3, 8, 8), [(8, 8)]), [calque.zeros(1, 1, 2, 2)])


def test_files_of_before_have_other_names() -> None:
    model = SMALL["MaskRCNN"]()
    state = dict(model.state_dict())
    for new, old in (("rpn.head.conv.0.0", "rpn.head.conv"), ("roi_heads.mask_head.0.0", "roi_heads.mask_head.mask_fcn1"),
                     ("roi_heads.mask_head.1.0", "roi_heads.mask_head.mask_fcn2")):  # fmt: skip
        for kind in ("weight", "bias"):
            state[f"{old}.{kind}"] = state.pop(f"{new}.{kind}") + 1
    model.load_state_dict(state)
    assert calque.equal(model.rpn.head.conv[0][0].bias, state["rpn.head.conv.bias"])
    frozen = ops.FrozenBatchNorm2d(3)
    frozen.load_state_dict(calque.nn.BatchNorm2d(3).state_dict())


def test_weights_are_found_and_freeze_stages(tmp_path: Any) -> None:
    assert calque.vision.models.get_weight("MaskRCNN_ResNet50_FPN_Weights.DEFAULT").url.endswith("maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth")
    assert "ssd300_vgg16" in calque.vision.models.list_models(detection) and detection.SSD300_VGG16_Weights.COCO_V1
    assert detection.SSD300_VGG16_Weights.DEFAULT.transforms()(calque.full((3, 4, 4), 255, dtype=calque.uint8)).max() == 1
    calque.save(calque.vision.models.mobilenet_v3_large().state_dict(), tmp_path / "body.safetensors")
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    model = getattr(detection, name)(weights_backbone=tmp_path / "body.safetensors", num_classes=3)
    frozen = [part for part, parameter in model.backbone.named_parameters() if not parameter.requires_grad]
    assert frozen and all(part.startswith("body.") for part in frozen) and isinstance(model.backbone.body["0"][1], ops.FrozenBatchNorm2d)
    with pytest.warns(UserWarning, match="trainable_backbone_layers has no effect"):
        getattr(detection, name)(weights_backbone=None, trainable_backbone_layers=2)


def test_pictures_of_what_cannot_be_drawn() -> None:
    image, box = calque.zeros(3, 8, 8, dtype=calque.uint8), calque.tensor([[1, 1, 5, 5]])
    for draw, error, words in (
        (lambda: utils.draw_bounding_boxes([1], box), TypeError, "the image as a Tensor, got list"),
        (lambda: utils.draw_bounding_boxes(image.int(), box), ValueError, "must be uint8 or float"),
        (lambda: utils.draw_bounding_boxes(image[None], box), ValueError, "not batches"),
        (lambda: utils.draw_bounding_boxes(image[:2], box), ValueError, "1 or 3 channels, got 2"),
        (lambda: utils.draw_bounding_boxes(image, box[:, :3]), ValueError, r"\(N, 4\), got \(1, 3\)"),
        (lambda: utils.draw_bounding_boxes(image, box.flip(1)), ValueError, "xmin, ymin, xmax, ymax"),
        (lambda: utils.draw_bounding_boxes(image, box, ["a", "b"]), ValueError, r"boxes \(1\) and labels \(2\) mismatch"),
        (lambda: utils.draw_bounding_boxes(image, box, colors=[]), ValueError, "Number of colors"),
        (lambda: utils.draw_bounding_boxes(image, box, colors=3), ValueError, "colors as a name, an RGB triplet"),
        (lambda: utils.draw_segmentation_masks(image, calque.ones(8, 8)), ValueError, "masks of bool"),
        (lambda: utils.draw_keypoints(image, calque.ones(3, 2)), ValueError, "num_instances, K, 2"),
        (lambda: utils.draw_keypoints(image, calque.ones(1, 3, 2), visibility=calque.ones(1, 2)), ValueError, "expected visibility"),
        (lambda: utils.flow_to_image(calque.ones(2, 3, 3, dtype=calque.float64)), ValueError, "dtype float32"),
        (lambda: utils.flow_to_image(calque.ones(3, 3, 3)), ValueError, r"shape \(2, H, W\)"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            draw()
    with pytest.warns(UserWarning, match="any box"):
        assert utils.draw_bounding_boxes(image, box[:0]) is image
    with pytest.warns(UserWarning, match="any mask"):
        assert utils.draw_segmentation_masks(image, calque.zeros(0, 8, 8, dtype=calque.bool)) is image
    labelled = utils.draw_bounding_boxes(image, box, ["a"], colors="red", fill_labels=True, label_colors="blue")
    assert labelled[2].max() > 99 and image.max() == 0


def test_areas_and_common_areas_of_boxes_in_other_words(rng: np.random.Generator) -> None:
    low, size = rng.uniform(0, 9, (2, 5, 2)), rng.uniform(1, 9, (2, 5, 2))
    a, b = (calque.tensor(np.concatenate([corner, corner + sides], 1)) for corner, sides in zip(low, size, strict=True))
    for fmt in ("xyxy", "xywh", "cxcywh"):
        given = [ops.box_convert(one, "xyxy", fmt) for one in (a, b)]
        np.testing.assert_allclose(ops.box_area(given[0], fmt=fmt).numpy(), size[0].prod(1))
        np.testing.assert_allclose(ops.box_iou(*given, fmt=fmt).numpy(), ops.box_iou(a, b).numpy())
    with pytest.raises(ValueError, match="Unsupported Bounding Box format"):
        ops.box_area(a, fmt="xywhr")


def test_detectors_stay_on_their_device(two_devices: None) -> None:
    images, targets = found_pair()
    images, targets = [one.to("cpu:1") for one in images], [{key: value.to("cpu:1") for key, value in one.items()} for one in targets]
    model = cases.filled(calque, SMALL["MaskRCNN"]()).to("cpu:1")
    losses = model.train()(images, targets)
    sum(losses.values()).backward()
    same({name: float(loss) for name, loss in losses.items()}, EXPECTED["small MaskRCNN"]["losses"], "on another device")
    assert {str(value.device) for one in model.eval()(images) for value in one.values()} == {"cpu:1"}
    for layer in (ops.RoIPool(2, 0.5), ops.PSRoIPool(2, 0.5), ops.PSRoIAlign(2, 0.5, -1), ops.DropBlock2d(0.5, 1)):
        given = (calque.ones(1, 8, 9, 9).to("cpu:1"), calque.tensor([[0.0, 1, 1, 9, 9]]).to("cpu:1"))
        assert str(layer(*given[: 1 if isinstance(layer, ops.DropBlock2d) else 2]).device) == "cpu:1"


PROGRAM = """
import torch
import torchvision
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5, extra_blocks=LastLevelMaxPool())
model = torchvision.models.detection.MaskRCNN(backbone, num_classes=91, min_size=64)
model.roi_heads.box_predictor = FastRCNNPredictor(model.roi_heads.box_predictor.cls_score.in_features, 2)
model.roi_heads.mask_predictor = MaskRCNNPredictor(model.roi_heads.mask_predictor.conv5_mask.in_channels, 256, 2)
mask = torch.zeros(1, 64, 64, dtype=torch.uint8)
mask[:, 10:40, 10:40] = 1
target = {"boxes": torchvision.ops.masks_to_boxes(mask), "labels": torch.ones(1, dtype=torch.int64), "masks": mask}
print(sorted(model([torch.rand(3, 64, 64)], [target])))
"""


@pytest.mark.slow
def test_a_program_for_torchvision_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "-m", "calque", "run", "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == str(["loss_box_reg", "loss_classifier", "loss_mask", "loss_objectness", "loss_rpn_box_reg"]), done.stderr
