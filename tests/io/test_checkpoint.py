"""calque.save and calque.load: tensors, arguments, and the training checkpoint of every tutorial."""

from __future__ import annotations

import io
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import calque
from calque.base.errors import CheckpointError
from calque.io import load, save

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3, 2)])
def test_every_dtype_and_shape(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    tensor = calque.tensor(np.arange(math.prod(shape)).reshape(shape) % 2).to(getattr(calque, name))
    save(tensor, tmp_path / "a")
    found = load(tmp_path / "a")
    assert found.dtype is tensor.dtype and found.shape == tensor.shape and calque.equal(found, tensor) and not found.requires_grad


def test_special_values_keep_their_bits(tmp_path: Path) -> None:
    bits = np.array([0, 0x80000000, 0x7FC00001, 0xFF800000, 0x00000001, 0x7F7FFFFF], np.uint32)
    save({"w": calque.from_numpy(bits.view(np.float32))}, tmp_path / "a")
    assert np.array_equal(load(tmp_path / "a")["w"].numpy().view(np.uint32), bits)


def test_views_and_recorded_values(tmp_path: Path) -> None:
    x = calque.arange(12).reshape(3, 4)
    value = {"t": x.T, "row": x[1], "step": x[::2, 1::2], "sum": (x * 2).sum(), "expanded": calque.ones(1).expand(3)}
    save(value, tmp_path / "a")
    found = load(tmp_path / "a")
    assert all(calque.equal(found[name], value[name]) for name in value)
    assert found["t"].is_contiguous()


def test_requires_grad_comes_back_and_history_does_not(tmp_path: Path) -> None:
    weight = calque.ones(2, requires_grad=True)
    save({"leaf": weight, "result": weight * 2}, tmp_path / "a")
    found = load(tmp_path / "a")
    assert found["leaf"].requires_grad and found["leaf"].is_leaf and found["result"].is_leaf
    (found["leaf"] * 3).sum().backward()
    assert found["leaf"].grad.tolist() == [3.0, 3.0]


def test_one_tensor_under_two_names_stays_one(tmp_path: Path) -> None:
    weight = calque.arange(1000)
    save({"embed": weight, "head": weight}, tmp_path / "tied")
    save({"embed": weight}, tmp_path / "single")
    assert (tmp_path / "tied").stat().st_size < (tmp_path / "single").stat().st_size + 500
    found = load(tmp_path / "tied")
    found["embed"][0] = 7
    assert found["head"][0].item() == 7


def test_loaded_tensors_can_be_changed_and_used(tmp_path: Path) -> None:
    save({"w": calque.ones(4, 4)}, tmp_path / "a")
    weight = load(tmp_path / "a")["w"]
    weight.add_(1)
    assert (weight @ weight).tolist() == [[16.0] * 4] * 4
    assert load(tmp_path / "a")["w"].sum().item() == 16  # the file is as it was


def test_a_training_checkpoint(tmp_path: Path) -> None:
    checkpoint: dict[str, Any] = {
        "epoch": 7,
        "model_state_dict": OrderedDict([("fc.weight", calque.rand(3, 2)), ("bn.num_batches_tracked", calque.tensor(9))]),
        "optimizer_state_dict": {
            "state": {0: {"step": calque.tensor(3.0), "exp_avg": calque.zeros(3, 2), "momentum_buffer": None}},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "amsgrad": False, "params": [0, 1]}],
        },
        "loss": float("nan"),
        "history": [[1, 0.5], [2, -float("inf")]],
    }
    save(checkpoint, tmp_path / "checkpoint_model_7.pt")
    found = load(tmp_path / "checkpoint_model_7.pt")
    assert list(found) == list(checkpoint) and type(found["model_state_dict"]) is OrderedDict
    assert list(found["model_state_dict"]) == ["fc.weight", "bn.num_batches_tracked"]
    assert calque.equal(found["model_state_dict"]["fc.weight"], checkpoint["model_state_dict"]["fc.weight"])
    assert found["optimizer_state_dict"]["param_groups"] == checkpoint["optimizer_state_dict"]["param_groups"]
    assert found["optimizer_state_dict"]["state"][0]["momentum_buffer"] is None
    assert math.isnan(found["loss"]) and found["history"] == checkpoint["history"]


def test_a_state_dict_has_natural_names_for_others(tmp_path: Path) -> None:
    save({"conv1.weight": calque.ones(2), "conv1.bias": calque.zeros(1, dtype=calque.float64)}, tmp_path / "a.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert found.keys() == {"conv1.weight", "conv1.bias"} and found["conv1.weight"].tolist() == [1, 1]


@pytest.mark.oracle
def test_torch_reads_our_files_and_we_read_theirs(tmp_path: Path) -> None:
    import safetensors.torch
    import torch

    ours = {"w": calque.rand(3, 2), "h": calque.ones(2, dtype=calque.bfloat16), "n": calque.tensor([1, 2])}
    save(ours, tmp_path / "ours")
    theirs = safetensors.torch.load_file(tmp_path / "ours")
    assert theirs["h"].dtype is torch.bfloat16 and theirs["w"].tolist() == ours["w"].tolist()
    safetensors.torch.save_file(theirs, tmp_path / "theirs")
    back = load(tmp_path / "theirs")
    assert all(calque.equal(back[name], ours[name]) for name in ours)


def test_streams_and_paths(tmp_path: Path) -> None:
    stream = io.BytesIO()
    save({"a": calque.ones(2), "n": 1}, stream)
    stream.seek(0)
    assert load(stream)["n"] == 1
    with open(tmp_path / "f", "wb") as file:
        save([calque.ones(2)], file)
    assert load(str(tmp_path / "f"))[0].tolist() == [1.0, 1.0]
    assert load(tmp_path / "f", map_location="cpu")[0].device.type == "cpu"


def test_arrays_of_unusual_types_stay_arrays(tmp_path: Path) -> None:
    save({"u": np.arange(3, dtype=np.uint16), "f8": np.ones(2, ml_dtypes.float8_e5m2)}, tmp_path / "a")
    found = load(tmp_path / "a")
    assert found["u"].dtype == np.uint16 and found["f8"].dtype == ml_dtypes.float8_e5m2
    safetensors.numpy.save_file({"layer.u": np.arange(3, dtype=np.uint16)}, tmp_path / "foreign")
    assert load(tmp_path / "foreign")["layer.u"].dtype is calque.uint16


class Model:
    def state_dict(self) -> dict[str, Any]:
        return {}


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"got .*Model at obj; save its state_dict\(\) instead"):
        save(Model(), tmp_path / "a")
    with pytest.raises(TypeError, match="expected a path or a binary file as second argument, got int"):
        save({}, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a path or a binary file, got NoneType"):
        load(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected format='safetensors' or 'pt', got 'pickle'"):
        save({}, tmp_path / "a", format="pickle")
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_saving_leaves_the_tensors_usable(tmp_path: Path) -> None:
    weight = calque.ones(3) * 2
    with pytest.raises(CheckpointError, match="does not exist; create it"):
        save({"w": weight}, tmp_path / "absent" / "a")
    assert weight.tolist() == [2.0, 2.0, 2.0]
