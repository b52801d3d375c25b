"""Families of models: they learn, say what is wrong, and their parts do what a plain reading of the papers says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.vision import models
from calque.vision.models import mnasnet, optical_flow, segmentation, video
from calque.vision.models._utils import IntermediateLayerGetter, relative_places
from calque.vision.models.maxvit import MaxVit, MaxVitBlock, PartitionAttentionLayer, RelativePositionalMultiHeadAttention
from calque.vision.models.optical_flow import raft
from calque.vision.models.optical_flow._utils import grid_sample, upsample_flow
from calque.vision.models.regnet import BlockParams, RegNet
from calque.vision.models.segmentation.deeplabv3 import DeepLabHead
from calque.vision.models.segmentation.fcn import FCNHead
from calque.vision.models.shufflenetv2 import InvertedResidual, ShuffleNetV2, channel_shuffle
from calque.vision.models.swin_transformer import PatchMergingV2, ShiftedWindowAttention, SwinTransformer, SwinTransformerBlockV2, shift_mask
from calque.vision.models.video import mvit, resnet
from calque.vision.models.video.swin_transformer import ShiftedWindowAttention3d, SwinTransformer3d
from calque.vision.transforms import _presets, functional


def body(**layers: str) -> IntermediateLayerGetter:
    return IntermediateLayerGetter(models.ResNet(models.BasicBlock, [1, 1, 1, 1]), {name: new for new, name in layers.items()})


def blocks(pooled: list[int]) -> list[mvit.MSBlockConfig]:
    return [mvit.MSBlockConfig(1, 8, 16, [], [3, 3, 3], [], [1, 2, 2]), mvit.MSBlockConfig(2, 16, 16, [3, 3, 3], [3, 3, 3], pooled, [1, 1, 1])]


SMALL: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "shufflenet": (lambda: ShuffleNetV2([1, 2, 1], [8, 16, 32, 64, 32], num_classes=5), (2, 3, 64, 64)),
    "mnasnet": (lambda: models.MNASNet(0.25, num_classes=5), (2, 3, 64, 64)),
    "regnet": (lambda: RegNet(BlockParams.from_init_params(4, 16, 8.0, 2.0, 8, se_ratio=0.25), num_classes=5), (2, 3, 64, 64)),
    "swin": (lambda: SwinTransformer([4, 4], 8, [2, 2], [2, 4], [4, 4], num_classes=5), (2, 3, 36, 44)),
    "swin v2": (
        lambda: SwinTransformer([4, 4], 8, [2, 2], [2, 4], [4, 4], num_classes=5, block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2),
        (2, 3, 36, 44),
    ),
    "maxvit": (lambda: MaxVit((64, 64), 8, 4, [8, 16], [1, 1], 4, 0.0, num_classes=5), (2, 3, 64, 64)),
    "fcn": (lambda: segmentation.FCN(body(out="layer4", aux="layer3"), FCNHead(512, 5), FCNHead(256, 5)), (2, 3, 64, 48)),
    "deeplab": (lambda: segmentation.DeepLabV3(body(out="layer4"), DeepLabHead(512, 5, [2, 4])), (2, 3, 64, 48)),
    "lraspp": (lambda: segmentation.LRASPP(body(low="layer2", high="layer4"), 128, 512, 5), (2, 3, 64, 48)),
    "r3d": (lambda: video.VideoResNet(resnet.Bottleneck, [resnet.Conv2Plus1D, resnet.Conv3DNoTemporal, resnet.Conv3DSimple, resnet.Conv3DSimple],
                                      [1, 1, 1, 1], resnet.R2Plus1dStem, num_classes=5), (2, 3, 8, 32, 32)),
    "mvit": (lambda: video.MViT((32, 40), 4, blocks([1, 2, 2]), False, False, False, False, num_classes=5), (2, 3, 4, 32, 40)),
    "mvit v2": (lambda: video.MViT((32, 32), 4, blocks([1, 2, 2]), True, False, True, True, num_classes=5), (2, 3, 4, 32, 32)),
    "swin3d": (lambda: SwinTransformer3d([2, 4, 4], 8, [2, 2], [2, 4], [4, 3, 3], num_classes=5), (2, 3, 10, 30, 26)),
}  # fmt: skip


QUICK = ("shufflenet", "swin", "mvit v2")  # to compile


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SMALL])
def test_a_small_model_learns(name: str, seed: int) -> None:
    calque.manual_seed(seed)
    model, x = SMALL[name][0](), calque.randn(*SMALL[name][1])
    found = model(x)
    outs = list(found.values()) if isinstance(found, dict) else [found]
    for out in outs:
        assert out.shape == ((2, 5, *x.shape[2:]) if isinstance(found, dict) else (2, 5))
    sum((out**2).sum() for out in outs).backward()
    without = [key for key, p in model.named_parameters() if p.grad is None]
    assert not without, without


@pytest.mark.slow
def test_raft_learns() -> None:
    model = optical_flow.raft_small(
        feature_encoder=raft.FeatureEncoder(block=raft.BottleneckBlock, layers=(8, 8, 8, 8, 16), norm_layer=nn.InstanceNorm2d)
    )
    flows = model(calque.randn(1, 3, 128, 136), calque.randn(1, 3, 128, 136), num_flow_updates=2)
    assert [tuple(flow.shape) for flow in flows] == [(1, 2, 128, 136)] * 2
    flows[-1].sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_flows_are_read_where_they_lead() -> None:
    image = calque.arange(12.0).reshape(1, 1, 3, 4)
    places = calque.tensor([[1.0, 2.0], [2.5, 0.0]]).reshape(1, 1, 2, 2)  # x and y
    assert grid_sample(image, places, align_corners=True).flatten().tolist() == pytest.approx([9.0, 2.5], abs=1e-5)
    even = upsample_flow(calque.ones(1, 2, 3, 3), calque.zeros(1, 9 * 64, 3, 3))  # nine neighbours weigh the same, zeros outside
    assert even.shape == (1, 2, 24, 24) and float(even[0, 0, 12, 12]) == pytest.approx(8.0) and float(even[0, 0, 0, 0]) == pytest.approx(8 * 4 / 9)


@pytest.mark.parametrize(("sides", "window", "shift"), [((6, 8), (3, 4), (1, 2)), ((6, 4), (3, 4), (1, 0)), ((4, 4, 6), (2, 4, 3), (1, 0, 1))])
def test_places_that_were_no_neighbours_before_a_shift_do_not_see_each_other(sides: Any, window: Any, shift: Any) -> None:
    mask = shift_mask(sides, window, shift, calque.float32)
    corners = itertools.product(*(range(0, side, size) for side, size in zip(sides, window)))
    for k, corner in enumerate(corners):
        places = [tuple(a + b for a, b in zip(corner, inner)) for inner in itertools.product(*map(range, window))]
        origins = [tuple((p + far) % side for p, far, side in zip(place, shift, sides)) for place in places]
        for i, j in itertools.product(range(len(places)), repeat=2):
            same = all(abs(a - b) < size and (a - b) == (c - d) for a, b, c, d, size in zip(origins[i], origins[j], places[i], places[j], window))
            assert float(mask[k, 0, i, j]) == (0.0 if same else -100.0)


def test_a_row_of_biases_belongs_to_each_way_of_lying_apart() -> None:
    places = list(itertools.product(range(2), range(3)))
    rows = {tuple(np.subtract(a, b)): int(relative_places(2, 3)[i, j]) for i, a in enumerate(places) for j, b in enumerate(places)}
    assert sorted(rows.values()) == list(range(3 * 5)) and rows[-1, -2] == 0 and rows[0, 1] == rows[0, 0] + 1


def test_windows_that_are_not_shifted_are_computed_by_themselves(seed: int) -> None:
    calque.manual_seed(seed)
    attention = ShiftedWindowAttention(8, [2, 3], [0, 0], num_heads=2).eval()
    x = calque.randn(1, 4, 6, 8)
    whole = attention(x)
    for row, column in itertools.product((0, 2), (0, 3)):
        calque.testing.assert_close(attention(x[:, row : row + 2, column : column + 3]), whole[:, row : row + 2, column : column + 3])


def test_a_grid_sees_what_lies_far_apart_and_a_window_what_lies_near(seed: int) -> None:
    calque.manual_seed(seed)
    for kind, seen in (("window", [(0, 0), (0, 1), (1, 0), (1, 1)]), ("grid", [(0, 0), (0, 2), (2, 0), (2, 2)])):
        layer = PartitionAttentionLayer(4, 2, 2, kind, (4, 4), 2, nn.GELU, nn.LayerNorm, 0.0, 0.0, 0.0).eval()
        x = calque.randn(1, 4, 4, 4, requires_grad=True)
        layer(x)[0, :, 0, 0].sum().backward()
        assert x.grad is not None and [tuple(p) for p in (x.grad[0].abs().sum(0) > 0).nonzero().tolist()] == seen


def test_channels_are_shuffled_and_stages_have_the_widths_of_the_paper() -> None:
    assert channel_shuffle(calque.arange(6.0).reshape(1, 6, 1, 1), 3).flatten().tolist() == [0, 2, 4, 1, 3, 5]
    stages = BlockParams.from_init_params(depth=16, w_0=48, w_a=27.89, w_m=2.09, group_width=8)  # RegNetY-400MF, table 9 of the paper
    assert (stages.depths, stages.widths) == ([1, 3, 6, 6], [48, 104, 208, 440])


def test_an_older_mnasnet_changes_its_first_layers() -> None:
    old = mnasnet.MNASNet(0.5, num_classes=3)
    for k, layer in enumerate([*mnasnet._stem(32, 16), mnasnet._stage(16, 16, mnasnet._STAGES[0])]):
        old.layers[k] = layer
    old._version = 1
    state = old.state_dict()
    new = mnasnet.MNASNet(0.5, num_classes=3)
    with pytest.warns(UserWarning, match="of the first version"):
        new.load_state_dict(state)
    assert new.layers[0].weight.shape[0] == 32
    calque.testing.assert_close(new.eval()(calque.ones(1, 3, 32, 32)), old.eval()(calque.ones(1, 3, 32, 32)))
    new._version = 3
    with pytest.raises(ValueError, match="version 1 or 2, got 3"):
        mnasnet.MNASNet(0.5, num_classes=3).load_state_dict(new.state_dict())


def test_trained_weights_decide_on_the_second_head(tmp_path: Path) -> None:
    maker = partial(segmentation.deeplabv3_mobilenet_v3_large, num_classes=3)
    calque.save(maker(weights_backbone=None, aux_loss=True).state_dict(), tmp_path / "two.safetensors")
    model = maker(weights=tmp_path / "two.safetensors")
    assert list(model.eval()(calque.zeros(1, 3, 32, 32))) == ["out", "aux"]
    with pytest.raises(ValueError, match="'aux_loss' expected value True for these weights but got False"):
        maker(weights=tmp_path / "two.safetensors", aux_loss=False)
    calque.save(maker(weights_backbone=None).state_dict(), tmp_path / "one.safetensors")
    assert maker(weights=tmp_path / "one.safetensors").aux_classifier is None
    with pytest.raises(NotImplementedError, match="does not use auxiliary loss"):
        segmentation.lraspp_mobilenet_v3_large(weights_backbone=None, aux_loss=True)


def test_a_backbone_is_trained_unless_nobody_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetched(url: str) -> Path:
        asked.append(url)
        return file

    file = tmp_path / "resnet.safetensors"
    calque.save(models.resnet50().state_dict(), file)
    monkeypatch.setattr("calque.vision.models.weights.cached_url", fetched)
    made = segmentation.fcn_resnet50(num_classes=2)
    assert asked == [models.get_weight("ResNet50_Weights.IMAGENET1K_V1").url]
    assert calque.equal(made.backbone.conv1.weight, calque.load(file)["conv1.weight"]) and made.classifier[4].weight.shape[0] == 2
    segmentation.fcn_resnet50(pretrained_backbone=False)
    segmentation.fcn_resnet50(weights_backbone=file)
    assert len(asked) == 1


def test_names_are_found_by_their_package() -> None:
    assert "fcn_resnet50" in models.list_models() and "fcn_resnet50" not in models.list_models(module=models)
    assert models.list_models(module=segmentation, include="fcn*") == ["fcn_resnet101", "fcn_resnet50"]
    assert models.list_models(module=optical_flow) == ["raft_large", "raft_small"] and len(models.list_models(module=video)) == 9
    assert models.get_weight("R3D_18_Weights.KINETICS400_V1") is models.get_model_weights("r3d_18").DEFAULT
    assert not hasattr(models, "R3D_18_Weights")
    assert models.get_model_builder("fcn_resnet50").__module__ == segmentation.fcn.__name__
    assert models.get_model_builder("resnet50").__module__ == models.resnet.__name__


def test_what_images_and_videos_become() -> None:
    frames = calque.randint(0, 256, (4, 3, 20, 30), dtype=calque.uint8)
    made = models.get_weight("MViT_V2_S_Weights.DEFAULT").transforms()(frames)
    assert made.shape == (3, 4, 224, 224)
    preset = _presets.VideoClassification(crop_size=(8, 10), resize_size=(12, 16), mean=(0.5,) * 3, std=(0.25,) * 3)
    small = functional.center_crop(functional.resize(frames[2], [12, 16], antialias=False), [8, 10])
    calque.testing.assert_close(preset(frames)[:, 2], (small / 255 - 0.5) / 0.25)
    assert preset(frames.unsqueeze(0)).shape == (1, 3, 4, 8, 10)
    with pytest.raises(ValueError, match=r"expected frames \(T, 3, H, W\) or videos"):
        preset(frames[0])
    image = _presets.SemanticSegmentation(resize_size=None, mean=(0.0,) * 3, std=(1.0,) * 3)(functional.to_pil_image(frames[0]))
    calque.testing.assert_close(image, frames[0] / 255)
    first, second = models.get_weight("Raft_Small_Weights.DEFAULT").transforms()(frames[0], frames[1])
    calque.testing.assert_close(first, frames[0] / 127.5 - 1) and calque.testing.assert_close(second, frames[1] / 127.5 - 1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: IntermediateLayerGetter(nn.Sequential(nn.ReLU()), {"1": "out"}), "return_layers are not present in model: expected some of 0"),
        (lambda: InvertedResidual(4, 4, 4), "illegal stride value"),
        (lambda: InvertedResidual(4, 6, 1), "expected inp and oup to be the same even number"),
        (lambda: ShuffleNetV2([1, 1], [8] * 5), "stages_repeats as list of 3"),
        (lambda: ShuffleNetV2([1, 1, 1], [8] * 4), "stages_out_channels as list of 5"),
        (lambda: models.MNASNet(0.0), "alpha should be greater than 0.0"),
        (lambda: BlockParams.from_init_params(4, 12, 8.0, 2.0, 8), "Invalid RegNet settings"),
        (lambda: ShiftedWindowAttention(8, [4], [2], 2), "must be of length 2"),
        (lambda: ShiftedWindowAttention3d(8, [4, 4], [2, 2], 2), "must be of length 3"),
        (lambda: MaxVit((60, 60), 8, 4, [8], [1], 4, 0.0), r"Input size \(15, 15\) of block 0 is not divisible by partition size 4"),
        (lambda: RelativePositionalMultiHeadAttention(6, 4, 4), "feat_dim: 6 must be divisible by head_dim: 4"),
        (lambda: PartitionAttentionLayer(4, 2, 2, "row", (4, 4), 2, nn.GELU, nn.LayerNorm, 0.0, 0.0, 0.0), "either 'grid' or 'window', got 'row'"),
        (lambda: PartitionAttentionLayer(4, 2, 3, "grid", (4, 4), 2, nn.GELU, nn.LayerNorm, 0.0, 0.0, 0.0), "multiples of 3"),
        (lambda: MaxVitBlock(4, 4, 0.25, 4, nn.BatchNorm2d, nn.GELU, 2, 2, 0.0, 0.0, 2, (8, 8), 2, [0.0]), "length n_layers=2"),
        (lambda: video.VideoResNet(resnet.BasicBlock, [resnet.Conv3DSimple], [1], resnet.BasicStem), "four stages, got 1 and 1"),
        (lambda: video.MViT((8, 8), 2, [], False, False, False, False), "can't be empty"),
        (lambda: video.MViT((32, 32), 4, blocks([1, 1, 1]), True, False, True, True)(calque.zeros(3, 32, 32)), "Unsupported input dimension"),
        (lambda: raft.FeatureEncoder(layers=(8,)), "expected number of layers is 5"),
        (lambda: raft.MotionEncoder(in_channels_corr=4, flow_layers=(8,)), "number of flow_layers is 2"),
        (lambda: raft.MotionEncoder(in_channels_corr=4, corr_layers=()), "corr_layers should be 1 or 2"),
        (lambda: raft.RecurrentBlock(input_size=4, hidden_size=4, kernel_size=(3,)), "same length as padding"),
        (lambda: raft.CorrBlock().build_pyramid(calque.zeros(1, 4, 16, 16), calque.zeros(1, 4, 16, 17)), "should have the same shape"),
        (lambda: raft.CorrBlock().build_pyramid(calque.zeros(1, 4, 8, 16), calque.zeros(1, 4, 8, 16)), "too small to be down-sampled"),
        (lambda: optical_flow.raft_small(update_block=nn.ReLU()), "should expose a 'hidden_state_size' attribute"),
        (lambda: optical_flow.raft_small()(calque.zeros(1, 3, 128, 128), calque.zeros(1, 3, 128, 136)), "images should have the same shape"),
        (lambda: optical_flow.raft_small()(calque.zeros(1, 3, 128, 132), calque.zeros(1, 3, 128, 132)), "divisible by 8"),
        (lambda: optical_flow.raft_small(feature_encoder=nn.Identity())(*[calque.zeros(1, 3, 128, 128)] * 2), "feature encoder should downsample"),
        (lambda: optical_flow.raft_small(context_encoder=raft.FeatureEncoder(layers=(8, 8, 8, 8, 96)))(*[calque.zeros(1, 3, 128, 128)] * 2),
         "outputs 96 channels"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(wrong: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wrong()
