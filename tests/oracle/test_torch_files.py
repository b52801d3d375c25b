"""`.pt` files in both directions, with PyTorch at the other end."""

from __future__ import annotations

import argparse
import io
import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.compat.torch import serialization

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
OPTIONS: list[dict[str, Any]] = [{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}, {"pickle_protocol": 5}]


def through(value: Any, **options: Any) -> Any:
    """A value of PyTorch, saved by it and loaded here."""
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return calque.load(io.BytesIO(stream.getvalue()))


def back(value: Any, **options: Any) -> Any:
    """A value of ours, saved here and loaded by PyTorch."""
    stream = io.BytesIO()
    calque.save(value, stream, format="pt")
    return torch.load(io.BytesIO(stream.getvalue()), **{"weights_only": True, **options})


def same(ours: Any, theirs: Any) -> None:
    """Equality of types, structure, dtype, shape, strides and values."""
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, calque.nn.Parameter) == isinstance(theirs, torch.nn.Parameter)
        assert repr(ours.dtype) == repr(theirs.dtype) and tuple(ours.shape) == tuple(theirs.shape) and ours.stride() == theirs.stride()
        assert ours.requires_grad == theirs.requires_grad and ours.storage_offset() == theirs.storage_offset()
        assert ours.detach().to(calque.float64).tolist() == theirs.detach().to(torch.float64).tolist()
    elif isinstance(theirs, dict):
        assert type(ours) is type(theirs) and list(ours) == list(theirs)
        for name in theirs:
            same(ours[name], theirs[name])
        assert getattr(ours, "_metadata", None) == getattr(theirs, "_metadata", None)
    elif type(theirs) in (list, tuple):
        assert type(ours) is type(theirs) and len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    else:
        assert repr(ours) == repr(theirs)


def training(lib: Any) -> dict[str, Any]:
    """A checkpoint as training loops write it."""
    lib.manual_seed(0)
    net = lib.nn.Sequential(lib.nn.Conv2d(1, 2, 3), lib.nn.BatchNorm2d(2), lib.nn.Flatten(), lib.nn.Linear(8, 2))
    optimizer = lib.optim.AdamW(net.parameters(), lr=0.01)
    schedule = lib.optim.lr_scheduler.StepLR(optimizer, 2)
    net(lib.randn(3, 1, 4, 4)).sum().backward()
    optimizer.step()
    schedule.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(), "epoch": 1,
            "args": argparse.Namespace(lr=0.1, layers=[1, 2])}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_checkpoints_of_torch(options: dict[str, Any]) -> None:
    theirs = training(torch)
    same(through(theirs, **options), theirs)
    whole = torch.arange(12.0).reshape(3, 4)
    shared = [whole, whole[1], whole.t(), whole[:, ::2], torch.zeros(1).expand(5), torch.nn.Parameter(whole[0]), torch.zeros(0, 3), torch.tensor(2.5)]
    found = through(shared, **options)
    same(found, shared)
    found[1].zero_()
    assert found[0][1].tolist() == [0] * 4 and found[2][:, 1].tolist() == [0] * 4
    values = {
        "set": {1, 2}, "size": torch.Size([2]), "dtype": torch.float16, "device": torch.device("cpu"), "big": 2**80, "bytes": b"\xff",
        "n": np.float64(2),
        "a": np.arange(6).reshape(2, 3), "odd": OrderedDict([((1, "a"), None)]), "complex": 1j, "meta": {"none": None, "flag": True},
    }  # fmt: skip
    same(through(values, **options), values)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", DTYPES)
def test_element_types_of_torch(name: str, options: dict[str, Any]) -> None:
    theirs = torch.tensor([0, 1, 1, 0]).to(getattr(torch, name))
    same(through([theirs, theirs[1:]], **options), [theirs, theirs[1:]])


def test_torch_loads_what_is_written_here() -> None:
    ours = training(calque)
    args = ours.pop("args")
    same(ours, back(ours))
    assert back({"args": args}, weights_only=False)["args"] == args
    whole = calque.arange(12.0).reshape(3, 4)
    shared = [whole, whole[1], whole.t(), calque.nn.Parameter(calque.ones(2)), calque.zeros(1).expand(5), calque.zeros(0, 3)]
    shared.append(calque.ones(2, requires_grad=True))
    found = back(shared)
    same(shared, found)
    found[1].zero_()
    assert found[0][1].tolist() == [0] * 4
    for name in DTYPES:
        value = calque.tensor([0, 1, 1]).to(getattr(calque, name))
        same(value, back(value))
    marked = calque.nn.Parameter(calque.ones(1))
    marked.tag = "x"  # type: ignore[attr-defined]
    tensor = calque.ones(1)
    tensor.tag = [1]  # type: ignore[attr-defined]
    assert back(marked).tag == "x" and back(tensor).tag == [1]
    values = {"a": np.arange(6).reshape(2, 3), "n": np.float32(1.5), "t": np.dtype("float64"), "u": np.array(["x", "yz"])}
    found = back(values, weights_only=False)
    assert all(np.array_equal(found[key], values[key]) and type(found[key]) is type(values[key]) for key in values)
    plain = {"size": calque.Size((2,)), "dtype": calque.float16, "device": calque.device("cpu"), "set": {1}, "bytes": b"\xff", "c": 1j}
    assert {name: repr(item) for name, item in back(plain).items()} == {name: repr(item) for name, item in plain.items()}


def test_files_with_and_without_checksums_and_by_memory_map(tmp_path: Any) -> None:
    value = {"w": torch.arange(1000.0), "b": torch.ones(3, dtype=torch.bfloat16)}
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(value, tmp_path / "plain.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    same(calque.load(tmp_path / "plain.pt"), value)
    calque.save({"w": calque.arange(1000.0)}, tmp_path / "ours.pt", format="pt")
    for mmap in (False, True):
        assert torch.load(tmp_path / "ours.pt", mmap=mmap)["w"].sum().item() == 499_500
        same(calque.load(tmp_path / "plain.pt", mmap=mmap), value)


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_numbers_in_both_directions(name: str) -> None:
    theirs = torch.tensor([1 + 2j, 3 - 4j], dtype=getattr(torch, name))
    found = through([theirs, theirs.conj(), theirs[1:]]) + through([theirs.real])
    assert [t.tolist() for t in found] == [theirs.tolist(), theirs.conj().tolist(), theirs[1:].tolist(), theirs.real.tolist()]
    ours = calque.tensor([1 + 2j, 3 - 4j], dtype=getattr(calque, name))
    assert [t.tolist() for t in back([ours, ours.real, ours[1:]])] == [theirs.tolist(), theirs.real.tolist(), theirs[1:].tolist()]


def test_whole_modules_are_refused_with_advice() -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"'torch.nn.modules.linear.Linear'.*save its state_dict\(\)"):
        through(torch.nn.Linear(1, 1))


def test_sparse_tensors_are_refused_by_name() -> None:
    with pytest.raises(OSError, match="_rebuild_sparse_tensor"):
        through(torch.eye(2).to_sparse())


def test_what_a_pytorch_program_saves_is_read_by_pytorch(tmp_path: Path) -> None:
    """Whatever the name of the file; what that format has no data for stays readable here."""
    model = calque.nn.Linear(2, 3)
    optimizer = calque.optim.Adam(model.parameters())
    model(calque.ones(1, 2)).sum().backward()
    optimizer.step()
    for name in ("last.pt", "last", "pytorch_model.bin"):
        serialization.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / name)
        theirs = torch.load(tmp_path / name, weights_only=True)
        assert theirs["epoch"] == 3 and theirs["optimizer"]["state"][0]["step"] == 1
        np.testing.assert_array_equal(theirs["model"]["weight"].numpy(), model.weight.detach().numpy())
        assert calque.load(tmp_path / name)["epoch"] == 3
    serialization.save({"folder": tmp_path, "counts": Counter("abb")}, tmp_path / "settings.pt")
    assert calque.load(tmp_path / "settings.pt") == {"folder": tmp_path, "counts": Counter("abb")}
