"""Models of vision: torchvision's numbers of parameters, names, shapes and scores; trained weights from files, addresses and hubs."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import calque
from calque.base.errors import CheckpointError, CheckpointNotFoundError, StateDictError
from calque.io import fetch
from calque.vision import models
from calque.vision.models.weights import CLASSES
from tests.vision.model_cases import FILE, SCORED, layout, made, scores, spaces

EXPECTED = json.loads(FILE.read_text())
QUICK = ("squeezenet1_1", "mobilenet_v3_small", "mobilenet_v2", "efficientnet_b0", "shufflenet_v2_x0_5", "mnasnet0_5", "raft_small")  # to make


def check(name: str, score: bool = True) -> None:
    count, digest, *wanted = EXPECTED[name]
    model = made(models, name)
    assert layout(model) == [count, digest], name
    if wanted and score:
        found = scores(calque, model, SCORED[name])
        scale = max(map(abs, wanted[0]))
        assert max(abs(a - b) for a, b in zip(found, wanted[0], strict=True)) < 1e-3 * scale, (name, found, wanted[0])


def test_layouts_are_those_of_torchvision() -> None:
    for name in QUICK:
        check(name, score=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_models_are_those_of_torchvision(name: str) -> None:
    check(name)


def test_every_name_of_weights_has_a_model_and_a_hash() -> None:
    kinds = [(space, name, kind) for space in spaces(models) for name, kind in vars(space).items() if name.endswith("_Weights")]
    assert len(kinds) > 80 and len(EXPECTED) > 80
    assert {kind for _, _, kind in kinds} == set(CLASSES.values())
    for space, name, kind in kinds:
        made = name[: -len("_Weights")].lower()
        assert callable(getattr(space, made)) and name in space.__all__ and models.get_model_weights(made) is kind, name
        assert getattr(sys.modules[models.get_model_builder(made).__module__], name) is kind
        for member in kind:
            assert re.fullmatch(r"https://download\.pytorch\.org/models/\S+-[0-9a-f]{8,10}\.pth", member.url) and callable(member.transforms())
            assert models.get_weight(f"{name}.{member.name}") is member
    seen = models.ResNet50_Weights.DEFAULT.transforms()(calque.zeros(3, 300, 260, dtype=calque.uint8))  # type: ignore[attr-defined]
    assert seen.shape == (3, 224, 224) and seen.dtype is calque.float32


def test_a_small_transformer_wants_its_size_and_learns() -> None:
    model = models.VisionTransformer(16, 4, 2, 2, 8, 16, num_classes=3)
    x = calque.randn(2, 3, 16, 16)
    calque.nn.functional.cross_entropy(model(x), calque.tensor([0, 2])).backward()
    assert model.heads[0].weight.grad is not None and model.seq_length == 17
    with pytest.raises(ValueError, match=r"expected \(N, 3, 16, 16\), got \(2, 3, 16, 12\)"):
        model(x[..., :12])
    with pytest.raises(ValueError, match="indivisible by patch size"):
        models.VisionTransformer(17, 4, 2, 2, 8, 16)


def test_u_net_gives_scores_for_each_pixel() -> None:
    model = models.unet(in_channels=2, out_channels=3, init_features=4)
    out = model(calque.randn(1, 2, 32, 48))
    assert out.shape == (1, 3, 32, 48)
    out.sum().backward()
    names = list(model.state_dict())
    assert names[0] == "encoder1.enc1conv1.weight" and "decoder4.dec4norm2.running_var" in names and "upconv1.weight" in names
    with pytest.raises(ValueError, match="multiples of 16"):
        model(calque.randn(1, 2, 30, 48))


def sure(state: dict[str, Any], folder: Path, stem: str) -> Path:
    """A file of weights whose name ends in its hash."""
    calque.save(state, folder / "w.pt", format="pt")
    digest = hashlib.sha256((folder / "w.pt").read_bytes()).hexdigest()
    return (folder / "w.pt").rename(folder / f"{stem}-{digest[:8]}.pt")


def test_weights_come_from_files_addresses_and_hubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(fetch._Chosen, "folder", str(tmp_path / "hub"))
    state = models.squeezenet1_1(num_classes=4).state_dict()
    key = "classifier.1.bias"
    state[key] = calque.arange(4.0)
    file = sure(state, tmp_path, "squeeze")

    def same(weights: Any) -> bool:
        return models.squeezenet1_1(weights=weights, num_classes=4).state_dict()[key].tolist() == [0, 1, 2, 3]

    assert same(file) and same(str(file)) and same(file.as_uri())
    kept = tmp_path / "hub" / "checkpoints" / file.name
    assert kept.exists() and same(file.as_uri())
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="SHA-256 begins with"):
        same(file.as_uri())
    calque.save({"state_dict": state, "epoch": 3}, tmp_path / "whole.safetensors")
    assert same(tmp_path / "whole.safetensors")

    blob = tmp_path / "home/.cache/huggingface/hub/models--me--net/blobs"
    place = blob.parent / "snapshots/abc"
    blob.mkdir(parents=True)
    place.mkdir(parents=True)
    calque.save(state, blob / "x")
    (blob / "x").rename(blob / hashlib.sha256((blob / "x").read_bytes()).hexdigest())
    (place / "model.safetensors").symlink_to(next(blob.iterdir()))
    assert same("me/net")
    next(blob.iterdir()).write_bytes(b"no")
    with pytest.raises(CheckpointError, match="SHA-256 begins with"):
        same("me/net")

    offline = "file:///nowhere/squeeze-0123abcd.pt"
    for weights, error, words in (
        (offline, CheckpointNotFoundError, "offline, put that file at .*squeeze-0123abcd.pt"),
        ("me/other", CheckpointNotFoundError, "hf download me/other"),
        ("../../no-such-place", CheckpointNotFoundError, "owner/name"),
        ("lost.pt", FileNotFoundError, "lost.pt"),
        ("BEST", ValueError, "IMAGENET1K_V1, DEFAULT, a file"),
        (models.ResNet18_Weights.DEFAULT, ValueError, "expected weights="),  # type: ignore[attr-defined]
        (3, ValueError, "expected weights="),
    ):
        with pytest.raises(error, match=words):
            models.squeezenet1_1(weights=weights)
    calque.save([1, 2], tmp_path / "list.safetensors")
    with pytest.raises(StateDictError, match="expected named tensors"):
        models.squeezenet1_1(weights=tmp_path / "list.safetensors")
    with pytest.raises(RuntimeError, match=r"classifier\.1"):  # for another number of classes
        models.squeezenet1_1(weights=file, num_classes=5)
