"""Transfer learning: what is frozen stays bit for bit, what is copied is reported, and fine-tuning beats training from nothing."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.data import DataLoader, TensorDataset
from calque.text.models import GPT
from calque.train import (
    cached_features,
    finetune,
    freeze,
    load_partial,
    lora,
    lora_state_dict,
    merge_lora,
    parameter_groups,
    replace_head,
    reuse_classifier,
    unfreeze,
)
from calque.vision.models import resnet18, vgg11


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.layer2 = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer2(self.layer1(x)))


def values(model: Any) -> dict[str, Any]:
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def train(model: Any, steps: int = 4) -> None:
    optimizer = calque.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(calque.randn(16, 6) + 3), calque.randint(0, 3, (16,))).backward()
        optimizer.step()


@pytest.mark.parametrize(("until", "moving"), [("layer2", ("layer2", "head")), ("layer2.1", ("layer2.1", "head")), ("head", ("head",)), (None, ())])
def test_frozen_parts_stay_bit_for_bit(until: str | None, moving: tuple[str, ...]) -> None:
    """Also with gradients from before, weight decay, batch norms and `train()`, and in copies."""
    model = Net()
    train(model)
    frozen = freeze(model, until)
    model = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    before = values(model)
    if moving:
        train(model)
    else:
        model.train()
        model(calque.randn(16, 6))
    after = values(model)
    for name in before:
        assert np.array_equal(before[name], after[name]) != name.startswith(moving or ("nothing",)), name
    assert all(not p.requires_grad for n, p in model.named_parameters() if n in frozen)
    x = calque.randn(4, 6)
    assert (model.layer1(x) == model.layer1(x)).all()  # no dropout
    unfreeze(model)
    before = values(model)
    train(model)
    assert not any(np.array_equal(a, b) for a, b in zip(before.values(), values(model).values()))
    assert model.layer1[1].training and not model.eval().layer1[1].training


def test_heads() -> None:
    for make, path in ((lambda: resnet18(num_classes=7), "fc"), (lambda: vgg11(num_classes=7), "classifier.6")):
        model: Any = make()
        new = replace_head(model, 4)
        assert dict(model.named_modules())[path] is new and new.out_features == 4
    model = Net()
    old = copy.deepcopy(model.head)
    new = replace_head(model, ["Cat", "fox", "police_dog", "owl"], source_classes=["dog", "police dog", "cat "])
    assert new.weight[0].tolist() == old.weight[2].tolist() and new.weight[2].tolist() == old.weight[1].tolist() and new.bias[0] == old.bias[2]
    assert new.weight[1].tolist() not in old.weight.tolist() and model(calque.randn(2, 6)).shape == (2, 4)
    assert reuse_classifier(old, new, ["a", "b", "owl"], ["owl", "x", "y", "a"]) == ["owl", "a"]
    for call, words in (
        (lambda: replace_head(nn.Sequential(nn.ReLU()), 3), "expected a model with a linear layer"),
        (lambda: replace_head(model, 0), "at least one class, got 0"),
        (lambda: replace_head(model, 3, name="heat"), "got 'heat'; did you mean 'head'"),
        (lambda: replace_head(model, 3, source_classes=["a"]), "expected the names of the new classes"),
        (lambda: reuse_classifier(old, new, ["a"], ["b"] * 4), "expected 3 names as source_classes"),
        (lambda: freeze(model, "layer3"), "got 'layer3'; did you mean 'layer"),
        (lambda: freeze([]), "expected a Module as model, got list"),
        (lambda: parameter_groups(nn.ReLU(), 0.1), "expected parameters that learn"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            call()


def test_partial_loading() -> None:
    source, model = Net(), Net()
    state = {f"module.{name}": value for name, value in source.state_dict().items()}
    state["module.head.weight"] = calque.ones(5, 8)
    state["module.extra"] = calque.ones(2)
    del state["module.layer2.0.bias"]
    before = values(model)
    report = load_partial(model, state)
    assert report.skipped == {"module.head.weight": "shape (5, 8), but the model has (3, 8)", "module.extra": "the model has no such tensor"}
    assert report.missing == ["layer2.0.bias", "head.weight"] and len(report.copied) == len(before) - 2
    after = values(model)
    assert all(np.array_equal(after[n], source.state_dict()[n].numpy()) for n in report.copied)
    assert all(np.array_equal(after[n], before[n]) for n in report.missing)
    report = load_partial(model, state, resize=True)
    assert report.resized == {"head.weight": "(5, 8) -> (3, 8)"} and (model.head.weight == 1).all() and "1 resized" in str(report)
    with pytest.raises(ValueError, match="expected names of Net, such as 'layer1.0.weight', got .*; nothing fits"):
        load_partial(model, {"other": calque.ones(1)})
    with pytest.raises(TypeError, match="expected a dict of tensors"):
        load_partial(model, [1])  # type: ignore[arg-type]


def test_low_rank_adapters() -> None:
    calque.manual_seed(0)
    model = Net()
    twin = copy.deepcopy(model)
    x = calque.randn(16, 6)
    model.eval()
    before, frozen = model(x), values(model)
    assert lora(model, rank=2, targets=["head", "layer2.0"]) == ["layer2.0", "head"]
    assert calque.allclose(model(x), before)  # nothing has changed yet
    optimizer = calque.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), calque.arange(16) % 3).backward()
        optimizer.step()
    learned = model(x)
    assert not calque.allclose(learned, before)
    small = lora_state_dict(model)
    assert sum(value.numel() for value in small.values()) == 2 * (8 + 8) + 2 * (8 + 3)
    lora(twin, rank=2, targets=["head", "layer2.0"])
    twin.load_state_dict(small, strict=False)
    assert calque.allclose(twin.eval()(x), learned, rtol=1e-5, atol=1e-6)
    merge_lora(model)
    assert sorted(model.state_dict()) == sorted(frozen) and calque.allclose(model(x), learned, rtol=1e-5, atol=1e-6)
    changed = {name for name, value in values(model).items() if not np.array_equal(value, frozen[name])}
    assert changed == {"layer2.0.weight", "head.weight"}
    with pytest.raises(ValueError, match=r"expected targets that name linear layers, got \['q'\]; there are \['layer1.0', 'layer2.0', 'head'\]"):
        lora(model, targets=["q"])
    with pytest.raises(ValueError, match="rank to be an integer >= 1, got 0"):
        lora(model, rank=0)


def test_low_rank_adapters_of_a_language_model_leave_tied_weights_alone() -> None:
    model = GPT(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2).eval()
    words = calque.tensor([[3, 1, 4, 1, 5]])
    layers = lora(model, rank=2)
    assert layers == [f"transformer.h.0.{name}" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")]
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.1)
    learned = model(words)
    merge_lora(model)
    assert calque.allclose(model(words), learned, rtol=1e-4, atol=1e-5) and model.lm_head.weight is model.transformer.wte.weight
    with pytest.raises(ValueError, match=r"expected layers with weights of their own, got \['lm_head'\], whose weight another module has too"):
        lora(GPT(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2), targets=["lm_head", "c_attn"])


def test_rates_fall_towards_the_input_and_features_are_cached() -> None:
    model = Net()
    freeze(model, "layer2")
    groups = parameter_groups(model, 0.1, layer_decay=0.5, weight_decay=0.2)
    assert sum(len(group["params"]) for group in groups) == 6
    assert groups[-1]["lr"] == 0.1 and groups[0]["lr"] == 0.025 and {g["weight_decay"] for g in groups if g["params"][0].dim() == 1} == {0.0}
    data = TensorDataset(calque.randn(20, 6), calque.arange(20) % 3)
    features = cached_features(model.layer1, DataLoader(data, 8))
    assert features.tensors[0].shape == (20, 8) and calque.equal(features.tensors[1], data.tensors[1])
    history = finetune(nn.Sequential(model.layer2, model.head), features, features, epochs=30, lr=0.02)
    assert len(history) == 30 and history[-1]["loss"] < history[0]["loss"] and 0 <= history[-1]["accuracy"] <= 1
    with pytest.raises(ValueError, match="epochs to be an integer >= 1, got 0"):
        finetune(model, data, epochs=0)


def test_the_head_of_a_model_of_convolutions_is_its_last_one() -> None:
    body = [nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 3)]
    model = nn.Sequential(*body, nn.Conv2d(8, 10, 1), nn.AdaptiveAvgPool2d(1))
    replace_head(model, 5)
    assert model[1].out_channels == 4 and model(calque.randn(1, 3, 9, 9)).shape == (1, 5, 1, 1)
