"""Files of exports: what is refused, what is in them, and that those of earlier versions are still read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import CheckpointError, UnsafeFileError
from calque.exported import archive
from tests.exported.models import apart

GOLDEN = Path(__file__).parent / "golden"


def stored(**changes: Any) -> Any:
    """The file of a small export, with other values in it."""
    calque.manual_seed(0)
    file = io.BytesIO()
    calque.export(nn.Linear(4, 2), calque.ones(3, 4), {"input": {0: calque.Dim("n", 2)}}).save(file)
    file.seek(0)
    data = calque.load(file) | {k: v for k, v in changes.items() if k not in ("program", "guards", "dims")}
    entry = data["entries"][0] if isinstance(data["entries"], list) and data["entries"] else {"variants": [{}]}
    if "program" in changes:
        entry["variants"][0]["program"] = entry["variants"][0]["program"].replace(*changes["program"])
    if "guards" in changes:
        entry["variants"][0]["guards"] = changes["guards"]
    if "dims" in changes:
        entry["dims"] = changes["dims"]
    file = io.BytesIO()
    calque.save(data, file)
    return file.getvalue()


def test_the_file_as_it_is_loads() -> None:
    exported = calque.load_exported(io.BytesIO(stored()))
    assert tuple(exported(calque.ones(7, 4)).shape) == (7, 2)
    assert b"test_archive.py:" in stored() and str(Path(__file__).parent).encode() not in stored()  # lines, but not where they are on this machine


def test_files_of_version_1_are_read() -> None:
    exported = calque.load_exported(GOLDEN / "version1.calque")
    wanted = calque.load(GOLDEN / "version1.safetensors")
    assert exported.entries == ("forward", "train_step")
    assert apart(exported(wanted["x"]), wanted["y"]) < 1e-5
    assert [abs(exported.train_step(wanted["x"], wanted["labels"]).item() - loss) < 1e-5 for loss in wanted["losses"]] == [True] * 3


def hostile() -> list[tuple[Any, str]]:
    program = [
        (("matmul(", "__import__('os').system("), "line 6"), (("matmul(", "nonsense("), "nonsense"), (("shape=(4, 2)", "shape=(5, 2)"), "view"),
        (("offset=0", "offset=3"), "view"), (("strides=(1, 4)", "strides=(1, 4611686018427387904)"), "view"), (("%0, %", "%7, %"), "%7"),
        (("strides=(1, 4)", "strides=(1, open('x'))"), "unknown value"), (("strides=(1, 4)", "strides=(1, " + "(" * 500), "line"),
        (("strides=(1, 4)", "strides=(1, '4')"), "strides"), (("float32[n, 2]", "float64[n, 2]"), "dtype"),
        (("return %", "return %9, %"), "outputs|%9"),
        (("(n, 4)", "(n // 0, 4)"), "line 2"), (("(n, 4)", "((n * n) + 0, 4)"), "input"),
        (("program exported(", "program exported(donated=[0]"), "overwrites"),
        (("view(", "hosted("), "hosted"), (("add(", "lstm("), "lstm"), (("input(index=1", "input(index=7"), "inputs"),
    ]  # fmt: skip
    found: list[tuple[Any, str]] = [(stored(program=change), text) for change, text in program]
    return [
        *found, (stored(guards=["n == 2 is True"]), "does not hold"), (stored(guards=["n ** 99999 == 2 is True"]), "guard|unknown"),
        (stored(guards=["x"]), "guard that is none"), (stored(dims=[["n", 2, 1, 1]]), "min <= max"), (stored(dims=[]), "free sizes"),
        (stored(entries=[]), "no entries"), (stored(mode=7), "mode"), (stored(entries=[{"name": "forward"}]), "dims"),
        (stored(entries=3), "list of dict"),
        (stored(values=[]), "weight"),
        (stored(values=[[["weight"], True, True, calque.ones(2, 4)], [["weight.x"], True, True, calque.ones(1)]]), "weight"),
    ]  # fmt: skip


def test_files_that_were_changed_are_refused() -> None:
    for raw, text in hostile():
        with pytest.raises(UnsafeFileError, match=rf"(?s)expected a sound export, got the file, in which something is wrong: .*({text})"):
            calque.load_exported(io.BytesIO(raw))


def test_other_files_are_refused(tmp_path: Path) -> None:
    raw = stored()
    with pytest.raises(CheckpointError, match="expected an export of version 1, got the file, which has version 2; update Calque"):
        calque.load_exported(io.BytesIO(stored(**{"calque.export": 2})))
    for damaged in (raw[:-5], raw[:100], raw[:200] + b"x" + raw[201:], b"", b"no export"):
        with pytest.raises(CheckpointError):
            calque.load_exported(io.BytesIO(damaged))
    calque.save(nn.Linear(2, 2).state_dict(), tmp_path / "weights")
    with pytest.raises(CheckpointError, match=r"expected an export, got '.*weights', which is something else; read checkpoints with calque.load"):
        calque.load_exported(tmp_path / "weights")
    with pytest.raises(FileNotFoundError):
        calque.load_exported(tmp_path / "missing")


def test_names_of_torchscript_lead_here(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    x = calque.randn(2, 3)
    calque.jit.save(calque.jit.trace(model, x), tmp_path / "a.pt")
    assert apart(calque.jit.load(tmp_path / "a.pt")(x), model(x)) < 1e-6
    calque.jit.save(calque.export(model, x), tmp_path / "b.pt")
    with open(tmp_path / "b.pt", "rb") as file:
        assert apart(calque.jit.load(file)(x), model(x)) < 1e-6
    with pytest.raises(ValueError, match=r"expected what trace\(\) gave with example inputs, an export, or a program made by compile\(\)"):
        calque.jit.save(calque.jit.trace(nn.Linear(2, 2)), tmp_path / "c.pt")


def test_names_of_torch_export_lead_here(tmp_path: Path) -> None:
    from calque.compat.torch import export as torch_export

    model, x = nn.Linear(3, 4), calque.randn(2, 3)
    free = torch_export.Dim("b", min=1, max=8)
    for dynamic in ({"input": {0: free}}, ({0: free},), {"input": (torch_export.Dim.AUTO, None)}):
        program = torch_export.export(model, (x,), dynamic_shapes=dynamic)
        torch_export.save(program, tmp_path / "p.pt2")
        loaded = torch_export.load(tmp_path / "p.pt2")
        y = calque.randn(5, 3)
        assert apart(loaded.module()(y), model(y)) < 1e-6 and list(loaded.state_dict) == ["weight", "bias"] and "matmul" in str(loaded)
    with pytest.raises(RuntimeError, match="Unable to call ExportedProgram directly"):
        program(x)
    with pytest.raises(ValueError, match="expected no extra_files"):
        torch_export.save(program, tmp_path / "p.pt2", extra_files={"a": "b"})


def test_attributes_of_every_primitive_can_be_read() -> None:
    """What is written must be read again: a primitive whose attributes nobody knows would make files that are refused."""
    for op in archive._OPS.values():
        for sample in op.samples:
            archive._check_attributes(op, sample.attrs)


@pytest.mark.parametrize("dtype", [calque.bfloat16, calque.float16, calque.float32])
def test_layers_with_a_bias_are_read_again_in_all_dtypes(dtype: calque.dtype) -> None:
    layers = (nn.Linear(7, 5), nn.Conv2d(7, 6, 3), nn.ConvTranspose2d(7, 6, 3, stride=2), nn.Conv1d(7, 6, 3))
    shapes = ((4, 7), (2, 7, 8, 8), (2, 7, 8, 8), (2, 7, 8))
    for layer, shape in zip(layers, shapes, strict=True):
        model, x = layer.to(dtype), calque.randn(*shape).to(dtype)
        file = io.BytesIO()
        calque.export(model, x).save(file)
        file.seek(0)
        assert calque.load_exported(file)(x).tolist() == model(x).tolist()
