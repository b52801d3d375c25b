"""Models by their names, and models that give what others compute on their way."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError, ShapeError
from calque.vision import models, ops
from calque.vision.models import resnet
from calque.vision.models.feature_extraction import create_feature_extractor, get_graph_node_names


class Two(nn.Module):
    """Computes one thing when it trains, another when it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.scale = nn.Parameter(calque.ones(1))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.second(x) * self.scale if self.training else x.relu()


def test_names_are_those_of_the_modules_and_of_operations_in_them() -> None:
    train, evaluating = get_graph_node_names(models.resnet18(num_classes=2))
    assert train == evaluating
    assert train[:7] == ["x", "conv1", "bn1", "relu", "maxpool", "layer1.0.conv1", "layer1.0.bn1"]
    assert "layer1.0.add" in train and "layer1.0.relu_1" in train and train[-2:] == ["flatten", "fc"]
    assert get_graph_node_names(Two()) == (["x", "first", "second", "scale", "mul"], ["x", "first", "relu"])


def test_features_are_what_hooks_see() -> None:
    model = models.resnet18(num_classes=2).eval()
    seen: dict[str, Any] = {}
    hooks = [model.get_submodule(name).register_forward_hook(lambda m, i, o, name=name: seen.update({name: o})) for name in ("layer2", "layer4")]
    x = calque.randn(2, 3, 64, 64)
    model(x)
    for hook in hooks:
        hook.remove()
    extract = create_feature_extractor(model, {"layer2": "a", "layer4": "b"})
    found = extract(x)
    assert list(found) == ["a", "b"] and not hasattr(extract, "fc")
    assert calque.equal(found["a"], seen["layer2"]) and calque.equal(found["b"], seen["layer4"])
    assert extract.get_submodule("layer1.0.conv1") is model.layer1[0].conv1


def test_gradients_reach_the_weights_of_the_model() -> None:
    model = models.squeezenet1_1(num_classes=2)
    create_feature_extractor(model, ["features.3"])(calque.randn(1, 3, 64, 64))["features.3"].sum().backward()
    assert model.features[0].weight.grad is not None and model.classifier[1].weight.grad is None


def test_a_model_of_two_graphs_changes_with_its_mode() -> None:
    model = Two().eval()
    extract = create_feature_extractor(model, train_return_nodes={"mul": "trained"}, eval_return_nodes={"relu": "found"})
    assert not extract.training and list(extract(calque.ones(1, 2))) == ["found"]
    assert set(extract.state_dict()) == set(model.state_dict())
    for one in (extract, copy.deepcopy(extract)):
        assert list(one.train()(calque.ones(1, 2))) == ["trained"]
        assert list(one.eval()(calque.ones(1, 2))) == ["found"]
    assert not model.training


def test_a_class_of_modules_is_one_node() -> None:
    model = models.resnet18(num_classes=2)
    names = get_graph_node_names(model, tracer_kwargs={"leaf_modules": [resnet.BasicBlock]})[0]
    assert "layer1.0" in names and "layer1.0.add" not in names


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small", "convnext_tiny", "vit_b_32", "unet", "densenet121"])
def test_models_can_be_traced(name: str) -> None:
    assert len(get_graph_node_names(models.get_model(name))[0]) > 10


def test_traced_models_say_what_images_they_take() -> None:
    extract = create_feature_extractor(models.UNet(init_features=2), ["conv"])
    assert list(extract(calque.ones(2, 3, 16, 16))) == ["conv"]
    with pytest.raises(ShapeError, match="multiples of 16"):
        models.UNet(init_features=2)(calque.ones(1, 3, 17, 16))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: create_feature_extractor(Two(), ["third"]), "node: 'third' is not present"),
        (lambda: create_feature_extractor(Two()), "expected return_nodes, or train_return_nodes and eval_return_nodes"),
        (lambda: create_feature_extractor(Two(), ["x"], ["x"], ["x"]), "and not both"),
        (lambda: create_feature_extractor(Two(), train_return_nodes=["x"]), "and not both"),
        (lambda: create_feature_extractor(Two(), [3]), "expected return_nodes as names"),
        (lambda: create_feature_extractor(Two(), []), "expected return_nodes as names"),
        (lambda: create_feature_extractor(3, ["x"]), "expected a Module"),
        (lambda: models.get_model("resnet19"), "Unknown model"),
        (lambda: models.get_model(3), "Unknown model"),
        (lambda: models.get_weight("ResNet50_Weights.IMAGENET1K_V3"), "expected one of IMAGENET1K_V1, IMAGENET1K_V2"),
        (lambda: models.get_weight("ResNet50"), "expected a name like"),
        (lambda: models.get_model_weights("unet"), "expected a model with trained weights"),
        (lambda: models.list_models(include=[3]), "expected include"),
        (lambda: models.resnet50(replace_stride_with_dilation=[True]), "3-element"),
    ],
)
def test_wrong_calls_say_what_is_wrong(call: Any, text: str) -> None:
    with pytest.raises((ArgumentError, TypeError), match=text):
        call()


def test_models_and_weights_by_name() -> None:
    assert models.list_models(include=["resnet*", "vgg1?"], exclude="*1*") == ["resnet34", "resnet50"]
    assert models.list_models(resnet)[:2] == ["resnet101", "resnet152"]
    assert models.get_model_builder("ResNet18") is models.get_model_builder("resnet18")
    assert models.get_model_weights("resnet50") is models.ResNet50_Weights is resnet.ResNet50_Weights
    assert models.get_model_weights(models.vgg16) is models.VGG16_Weights
    assert models.get_weight("ResNet18_Weights.DEFAULT") is models.ResNet18_Weights.IMAGENET1K_V1


def test_residual_networks_with_dilation_and_another_norm() -> None:
    """A stride that becomes a dilation keeps the image large, and the weights fit."""
    model = models.resnet50(num_classes=2, replace_stride_with_dilation=[False, True, True], norm_layer=ops.FrozenBatchNorm2d).eval()
    assert model.layer3[0].conv2.dilation == (1, 1) and model.layer3[1].conv2.dilation == (2, 2) and model.layer4[0].conv2.dilation == (2, 2)
    assert tuple(create_feature_extractor(model, ["layer4"])(calque.randn(1, 3, 64, 64))["layer4"].shape) == (1, 2048, 8, 8)
    plain = models.resnet50(num_classes=2)
    assert {k: v.shape for k, v in model.state_dict().items()} == {
        k: v.shape for k, v in plain.state_dict().items() if not k.endswith("num_batches_tracked")
    }
    with pytest.raises(NotImplementedError, match="Dilation > 1 not supported in BasicBlock"):
        models.resnet18(replace_stride_with_dilation=[True, False, False])
