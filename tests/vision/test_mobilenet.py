"""MobileNet V2 has torchvision's parameters under its names."""

from __future__ import annotations

import pytest

import calque
from calque.vision.models import MobileNetV2, mobilenet_v2


def test_names_and_sizes_are_those_of_torchvision() -> None:
    state = mobilenet_v2().state_dict()
    assert len(state) == 314 and sum(v.numel() for k, v in state.items() if k.endswith(("weight", "bias"))) == 3504872
    shapes = {name: tuple(state[name].shape) for name in ("features.1.conv.1.weight", "features.2.conv.0.0.weight", "features.17.conv.1.0.weight")}
    assert list(shapes.values()) == [(16, 32, 1, 1), (96, 16, 1, 1), (960, 1, 3, 3)]
    assert tuple(state["features.18.0.weight"].shape) == (1280, 320, 1, 1) and "classifier.1.bias" in state


def test_it_learns_and_refuses() -> None:
    calque.manual_seed(0)
    net = MobileNetV2(num_classes=3, width_mult=0.25, inverted_residual_setting=[[1, 16, 1, 1], [4, 24, 2, 2]])
    assert net.features[2].use_res_connect is False and net.features[3].use_res_connect is True
    out = net(calque.randn(2, 3, 16, 16))
    assert tuple(out.shape) == (2, 3)
    out.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    for wrong in ({"weights": 3}, {"inverted_residual_setting": [[1, 2]]}):
        with pytest.raises(ValueError, match=r"expected weights=|4-element list"):
            mobilenet_v2(**wrong)
