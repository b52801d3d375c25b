"""Wrong files, names and sizes are refused with what was expected, and nothing that was there is lost."""

from __future__ import annotations

import copy
import io
import os
from pathlib import Path
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError, CheckpointError, ExportError
from calque.base.extras import there

with_onnx = pytest.mark.skipif(not there("onnx"), reason="needs onnx")


def exported() -> Any:
    return calque.export(nn.Linear(3, 2), calque.ones(2, 3), {"input": {0: "b"}})


@with_onnx
def test_onnx_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    one, path = exported(), tmp_path / "model.onnx"
    path.write_bytes(b"before")
    for f, error, text in (
        (None, TypeError, "expected a path or a file opened for writing bytes, got NoneType"), (tmp_path, CheckpointError, "got the folder"),
        (tmp_path / "no" / "x.onnx", CheckpointError, "does not exist; create it"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            one.onnx(f)
    with pytest.raises(ArgumentError, match="expected another name for every input and output, got"):
        one.onnx(path, input_names=["a"], output_names=["a"])
    with pytest.raises(ExportError, match="has no counterpart there"):
        calque.export(lambda x: x.lgamma(), calque.ones(3)).onnx(path)
    assert path.read_bytes() == b"before"
    one.onnx(path)
    assert calque.load_onnx(path)(calque.zeros(1, 3)).shape == (1, 2)
    with pytest.raises(CheckpointError, match=r"\[load_onnx\] expected an ONNX file, got the folder"):
        calque.load_onnx(tmp_path)


def test_libraries_go_into_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match=r"\[compile\] expected a folder that can be written, got .*file': File exists; choose another"):
        exported().compile(tmp_path / "file", sizes={"b": 1}, linker=False)
    with pytest.raises(ArgumentError, match="expected linker as a command that is there, got 'no-such-linker'"):
        exported().compile(tmp_path / "out", sizes={"b": 1}, linker="no-such-linker")


def test_a_fixed_size_is_that_of_the_example() -> None:
    with pytest.raises(ArgumentError, match=r"expected dynamic\['input'\]\[0\] as a name, a Dim, or the size that input has there, 2, got 3"):
        calque.export(nn.Linear(3, 2), calque.ones(2, 3), {"input": {0: 3}})
    assert calque.export(nn.Linear(3, 2), calque.ones(2, 3), {"input": {0: 2, 1: 3}})(calque.ones(2, 3)).shape == (2, 2)


def test_parameters_of_other_shapes_are_refused() -> None:
    """What was put in the place of a weight was read as if it had its shape."""
    one = exported()
    for shape in ((5, 3), (6,), (3, 2), (1, 3)):
        other = copy.deepcopy(one)
        other.weight = nn.Parameter(calque.ones(*shape))
        with pytest.raises(ExportError, match=r"\[forward\] expected weight of shape \(2, 3\) and dtype float32, as it was exported, got shape"):
            other(calque.ones(2, 3))
    del other.weight
    with pytest.raises(ExportError, match=r"expected weight of shape \(2, 3\) and dtype float32, as it was exported, got none"):
        other(calque.ones(2, 3))
    one.weight = nn.Parameter(calque.arange(6.0).view(3, 2).T)
    assert calque.allclose(one(calque.ones(1, 3)), one.weight.sum(1) + one.bias)


@pytest.mark.parametrize("change", [lambda m: m.double(), lambda m: m.half(), lambda m: setattr(m.weight, "data", calque.ones(1, 3))])
def test_parameters_of_other_types_are_neither_run_nor_saved_nor_built(change: Any, tmp_path: Path) -> None:
    """The library was built of bytes that its program took for others, and the file could not be read."""
    one = exported()
    change(one)
    steps: list[Any] = [lambda: one(calque.ones(2, 3)), lambda: one.save(io.BytesIO()), lambda: one.compile(tmp_path, linker=False, sizes={"b": 1})]
    if there("onnx"):
        steps.append(lambda: one.onnx(io.BytesIO()))
    for step in steps:
        with pytest.raises(ExportError, match=r"expected weight of shape \(2, 3\) and dtype float32, as it was exported, got shape .* and dtype"):
            step()


@with_onnx
def test_pipes_and_devices_are_neither_waited_for_nor_read_for_ever(tmp_path: Path) -> None:
    """`load_onnx` waited for ever for a pipe, and read /dev/zero until memory ran out; what is named beside a model, too, is a file."""
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "x.safetensors.index.json")
    for load, path in (
        (calque.load_onnx, tmp_path / "pipe"), (calque.load_onnx, Path("/dev/zero")), (calque.load_exported, tmp_path / "pipe"),
        (calque.jit.load, tmp_path / "pipe"), (calque.load, tmp_path / "x.safetensors.index.json"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match="expected a regular file, got .*, which is a device, pipe or socket"):
            load(path)


class _Box:
    """Holds something that no function reaches by name."""

    def __init__(self, held: Any) -> None:
        self.held = held


@pytest.mark.parametrize("layer", [nn.LazyLinear, lambda n: nn.Sequential(nn.LazyLinear(n), nn.LazyBatchNorm1d())])
def test_lazy_layers_are_called_before_they_are_exported(layer: Any) -> None:
    """The export blamed a tensor that Python keeps, and the layer was lost: its weights stayed without a shape."""
    x = calque.ones(2, 3)
    model, box = layer(4), _Box(_Box(layer(4)))
    with pytest.raises(ExportError, match=r"\[export\] expected parameters and buffers that have shapes, but (0.)?weight gets its shape in"):
        calque.export(model, x)
    hidden = box.held.held
    with pytest.raises(ExportError, match=r"but the function makes the parameters of a lazy layer, as the first call of a model does \(.*\.py:\d+\)"):
        calque.export(lambda x: box.held.held(x), x)
    for one in (model, hidden):
        assert any(nn.parameter.is_lazy(p) for p in one.parameters())
        wanted = one(x)
        assert wanted.shape == (2, 4)
        one.eval()
        assert calque.equal(calque.export(one, x)(x), one(x))
    loaded = nn.Sequential(nn.LazyLinear(4))
    loaded.load_state_dict(nn.Sequential(nn.Linear(3, 4)).state_dict())
    assert calque.equal(calque.export(loaded, x)(x), loaded(x))


@pytest.mark.parametrize("window", [
    "strides=(2000000, 1), offset=0", "strides=(2, 1), offset=90000000", "strides=(2, 1), offset=-9", "strides=(-2, 1), offset=0",
    "strides=(2, 1), offset=1", "strides=(2,), offset=0",
    "strides=(9223372036854775807, 1), offset=0",
])  # fmt: skip
def test_views_of_bytes_stay_inside(tmp_path: Path, window: str) -> None:
    """A file could name memory behind a value, which was read."""
    calque.export(lambda x: x.view(calque.int32) & 7, calque.ones(3, 2)).save(tmp_path / "m.calque")
    data = calque.load(tmp_path / "m.calque")
    variant = data["entries"][0]["variants"][0]
    was = "strides=(2, 1), offset=0, dtype=int32"
    assert was in variant["program"]
    variant["program"] = variant["program"].replace(was, f"{window}, dtype=int32")
    calque.save(data, tmp_path / "m.calque")
    with pytest.raises(CheckpointError, match="something is wrong"):
        calque.load_exported(tmp_path / "m.calque")


def test_views_of_bytes_with_free_sizes(tmp_path: Path) -> None:
    one = calque.export(lambda x: x.view(calque.int32) & 7, calque.ones(3, 2), {"x": {0: "n"}})
    one.save(tmp_path / "m.calque")
    x = calque.randn(7, 2)
    assert calque.equal(calque.load_exported(tmp_path / "m.calque")(x), x.view(calque.int32) & 7)
    data = calque.load(tmp_path / "m.calque")
    variant = data["entries"][0]["variants"][0]
    was = "offset=0, dtype=int32"
    assert was in variant["program"]
    variant["program"] = variant["program"].replace(was, f"offset=(2 * (n - {variant['sizes'][0]})), dtype=int32")
    calque.save(data, tmp_path / "m.calque")
    try:
        loaded = calque.load_exported(tmp_path / "m.calque")
    except CheckpointError:
        return
    with pytest.raises(ExportError):
        loaded(x)


def test_strides_that_are_never_taken_are_numbers_too(tmp_path: Path) -> None:
    """One of 2**63 - 1 along a dim of one element was an OverflowError when the export was called."""
    calque.export(lambda x: x[:, :1].t().sqrt(), calque.ones(3, 2)).save(tmp_path / "m.calque")
    data = calque.load(tmp_path / "m.calque")
    variant = data["entries"][0]["variants"][0]
    was = "shape=(1, 3), strides=(1, 2)"
    assert was in variant["program"]
    variant["program"] = variant["program"].replace(was, "shape=(1, 3), strides=(9223372036854775807, 2)")
    calque.save(data, tmp_path / "m.calque")
    with pytest.raises(CheckpointError, match="something is wrong"):
        calque.load_exported(tmp_path / "m.calque")


@with_onnx
def test_complex_functions_without_real_ones_are_refused_by_name(tmp_path: Path) -> None:
    """They were a KeyError."""
    turns = calque.polar(calque.ones(4), calque.arange(4.0))
    exported = calque.export(lambda x: calque.view_as_real((calque.view_as_complex(x) * turns).tanh()), calque.ones(3, 4, 2))
    with pytest.raises(ExportError, match=r"\[onnx\] expected .* but tanh .*test_wrong_files\.py:\d+"):
        exported.onnx(tmp_path / "m.onnx")
    with pytest.raises(ExportError, match=r"\[compile\] expected operations with native code, got tanh.*test_wrong_files\.py:\d+"):
        exported.compile(tmp_path / "out", linker=False)
    assert not list(tmp_path.iterdir())
