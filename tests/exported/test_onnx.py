"""ONNX models of exports, run by ONNX Runtime: every primitive of the table on the samples of its record, and the models."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.dtypes import dtype_by_name
from calque.base.errors import ExportError
from calque.exported.onnx.table import TABLE
from calque.functional.common import prim
from calque.nn import functional as F
from calque.ops import BUILTIN
from tests.exported.models import CASES, Case, tensors

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
ort.set_default_logger_severity(3)

LEAVES = {"constant", "full", "iota"}
UNSTABLE = {"outside", "lstm"}  # a check, and a primitive of which `Lstm` looks at the right parts
NO_DOUBLE = {"acosh", "asinh", "atanh", "acos", "asin", "atan", "cosh", "sinh", "tan", "erf"}  # ONNX Runtime has them in single precision alone


def run(exported: Any, inputs: Any, **options: Any) -> list[Any]:
    file = io.BytesIO()
    exported.onnx(file, **options)
    session = ort.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    arrays = [np.array(t.detach().numpy()) for t in inputs]
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})  # type: ignore[no-any-return]


def close(found: list[Any], wanted: Any) -> None:
    assert len(found) == len(tensors(wanted))
    for a, t in zip(found, tensors(wanted), strict=True):
        b = t.detach().numpy()
        assert a.shape == b.shape and a.dtype == b.dtype
        assert np.allclose(a, b, 1e-5, 2e-6 * (1 + np.abs(np.where(np.isfinite(b), b, 0)).max(initial=0)), equal_nan=True)


OPS = sorted((op for op in BUILTIN if op.name in TABLE and op.name not in LEAVES | UNSTABLE), key=lambda op: op.name)


@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_primitives_are_what_their_records_say(op: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert op.samples
    for name in ("float32", "int64", "bool"):
        if name not in op.dtypes or (name == "int64" and op.name in ("matmul", "prod", "pow")):
            continue
        for sample in op.samples:
            if any(0 in shape for shape in sample.shapes) or calque.bfloat16 in sample.attrs or (op.parts and sample.attrs[0] != op.parts[0]):
                continue
            given = []
            bounds = dict(sample.integers)
            for k, shape in enumerate(sample.shapes):
                kind = "bool" if op.name == "where" and k == 0 else "int64" if k in bounds else "int8" if k in sample.bytes else name
                low, high = (0, bounds[k]) if k in bounds else (-128, 128) if k in sample.bytes else (sample.low, sample.high)
                values = rng.integers(int(low), int(high), shape) if kind != "float32" else rng.uniform(low, high, shape)
                given.append(calque.tensor(values.tolist(), dtype=dtype_by_name(kind)))
            if name == "int64" and op.name in ("div", "floor_divide", "remainder", "fmod"):
                given[1] = given[1] + (given[1] == 0)
            exported = calque.export(lambda *xs, attrs=sample.attrs: prim(op.name, *xs, *attrs), tuple(given))
            close(run(exported, given), prim(op.name, *given, *sample.attrs))


LOOKS_AT_BITS = ("view_as", "update_as")


@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_primitives_have_operators_that_take_their_types(op: Any, rng: Any) -> None:
    sample = next(s for s in op.samples if not op.parts or s.attrs[0] == op.parts[0])
    for name in ("float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64"):
        if name not in op.dtypes:
            continue
        given = []
        for k, shape in enumerate(sample.shapes):
            kind = "bool" if op.name == "where" and k == 0 else "int64" if k in dict(sample.integers) else "int8" if k in sample.bytes else name
            given.append(calque.tensor(rng.integers(1, 3, shape).tolist()).to(dtype_by_name(kind)))
        file = io.BytesIO()
        exported = calque.export(lambda *xs, attrs=sample.attrs: prim(op.name, *xs, *attrs), tuple(given))
        exported.onnx(file, opset=26 if op.name in LOOKS_AT_BITS else 18)
        try:
            ort.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
        except Exception as error:  # of ONNX Runtime, which has not all that the standard has
            assert "NOT_IMPLEMENTED" in str(error)


def test_narrow_integers_and_bfloat16_are_what_they_are_here() -> None:
    i, u, x = calque.tensor([3, -100, 100], dtype=calque.int8), calque.tensor([3, 100, 200], dtype=calque.uint8), calque.tensor([1.5, -2.0, 2.5])

    def integers(i: Any, u: Any) -> Any:
        sums = [i.sum(dtype=calque.int8), u.sum(dtype=calque.uint8), i.cumsum(0, dtype=calque.int8), i @ i]
        return [-u, -i, u**2, u.relu(), i.amax(0), *sums]

    def floats(x: Any) -> Any:
        b = x.bfloat16()
        return [y.float() for y in (b.sin(), b.atan(), b.round(), b.sort()[0], b.topk(2)[0], b.sum(), F.conv1d(b.view(1, 1, 3), b.view(1, 1, 3)))]

    close(run(calque.export(integers, (i, u)), [i, u]), integers(i, u))
    close(run(calque.export(floats, x), [x]), floats(x))


def test_remainders_of_floats_are_exact() -> None:
    a = calque.tensor([1.0, 0.3, 6.0, -6.0, float("inf"), 5.0, -5.0, 0.0, -1e-20, 7.5, -7.5, float("nan")])
    b = calque.tensor([0.1, 0.1, 0.1, 0.1, 2.0, 0.0, 0.0, 0.0, 2.0, float("inf"), 2.0, 1.0])
    for dtype in (calque.float32, calque.float64, calque.float16):
        given = [a.to(dtype), b.to(dtype)]
        exported = calque.export(lambda a, b: (a // b, a % b, a.fmod(b), (2 * a) // b), tuple(given))
        close(run(exported, given), exported(*given))
        file = io.BytesIO()
        exported.onnx(file)
        close([t.numpy() for t in calque.load_onnx(file.getvalue())(*given)], exported(*given))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_numbers_beside_16_bit_floats_keep_their_digits(name: str) -> None:
    x = calque.tensor([0.1, -0.3, 5.0, 1e-4, 1e-5, 0.7]).to(dtype_by_name(name))

    def scaled(x: Any) -> Any:
        return x * 0.1, x * 1e5, x / 1e5, x * 1e-9 * 1e9, x // 0.1, F.leaky_relu(x, 0.1), x * x.shape[0] / 7e4, x.mean(0)

    exported = calque.export(scaled, x, {"x": {0: "n"}})
    file = io.BytesIO()
    exported.onnx(file)
    for given in (x, x.repeat(12_000)):  # 72,000 is beyond the numbers of float16, as 1e5 is
        for found in (exported(given), calque.load_onnx(file.getvalue())(given)):
            for a, b in zip(found, scaled(given), strict=True):
                assert a.dtype is b.dtype and a.tolist() == b.tolist()
        if name == "float16":
            runtime = ort.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
            for a, b in zip(runtime.run(None, {"x": given.numpy()}), scaled(given), strict=True):
                assert np.allclose(a, b.numpy(), 2e-3, 1e-7)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_one_program_is_right_for_all_sizes_whatever_goes_in(dtype: str) -> None:
    x = calque.ones(3, 4).to(dtype_by_name(dtype))

    def changing(x: Any) -> Any:
        return x + x if x.shape[0] > 4 else ~x if dtype == "bool" else x * 3

    def looked_up(x: Any) -> Any:
        found = calque.arange(6).view(3, 2)[x]
        return found if x.shape[0] == 1 else found + 0

    other = calque.export(changing, x, {"x": {0: calque.Dim("n", 1, 9)}})
    with pytest.raises(ExportError, match=r"has one program, but for n=\d forward does something else"):
        run(other, [x])
    table = calque.export(looked_up, x.long(), {"x": {0: "n"}})
    close(run(table, [x.long()]), table(x.long()))


def test_nothing_stays_nothing() -> None:
    def empty(x: Any, y: Any) -> Any:
        written = y + 1
        written[1:] = y
        several = [y.expand(0), x.expand(2, *x.shape), y.expand(x.shape[0]), calque.full((x.shape[0], 2), 3.0)]
        return [written, x.any(0), x.all(0), x.bool().any(), *several]

    for rows in (0, 1, 3):
        x, y = calque.randn(rows, 3), calque.ones(1)
        for dynamic in (None, {"x": {0: calque.Dim("n", 0, 9)}}):
            close(run(calque.export(empty, (x, y), dynamic), [x, y]), empty(x, y))
    free = calque.export(lambda x: calque.cat([x[1:], x[1:]]).unsqueeze(0).expand(2, -1, -1) + calque.zeros(x.shape[0] * 2 - 2, 1), calque.ones(5, 2),
                         {"x": {0: calque.Dim("n", 1, 9)}})  # fmt: skip
    for rows in (1, 4):
        close(run(free, [calque.ones(rows, 2)]), free(calque.ones(rows, 2)))


@pytest.mark.parametrize("case", [c for c in CASES if not c.train], ids=[c.name for c in CASES if not c.train])
def test_models_for_all_sizes(case: Case, tmp_path: Path) -> None:
    calque.manual_seed(0)
    model = case.make().eval()
    exported = calque.export(model, case.inputs(*case.example), case.dynamic)
    exported.onnx(tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for sizes in [case.example, *case.sizes]:
        given = case.inputs(*sizes)
        close(session.run(None, {i.name: np.array(t.numpy()) for i, t in zip(session.get_inputs(), given, strict=True)}), model(*given))


def test_views_of_every_kind() -> None:
    functions = [
        lambda x: x[:, ::2], lambda x: x[1:, 1], lambda x: x.t()[::3], lambda x: x.unfold(1, 3, 2), lambda x: x.flip(1),
        lambda x: x.expand(2, *x.shape),
        lambda x: x[:, 2:4].t().reshape(-1), lambda x: x.unsqueeze(1).expand(-1, 3, -1).flatten(), lambda x: x.clone()[1:].fill_(2.0),
        lambda x: calque.cat([x, x[:, 1:]], 1), lambda x: x.diagonal(), lambda x: x.repeat(1, 2).permute(1, 0)[1:-1:2], lambda x: x.roll(1, 0),
        lambda x: x.as_strided((2, 2), (3, 1), 1), lambda x: nn.functional.pad(x, (1, 2)),
        lambda x: x.clone().index_fill_(0, calque.tensor([1]), 3.0),
    ]  # fmt: skip
    for f in functions:
        x = calque.randn(8, 6)
        exported = calque.export(f, x, {"x": {0: calque.Dim("n", 7, 20)}})
        for n in (7, 9):
            x = calque.randn(n, 6)
            close(run(exported, [x]), f(x))


def test_state_goes_in_and_comes_out() -> None:
    model = nn.BatchNorm1d(4)
    x = calque.randn(6, 4)
    exported = calque.export(model, x)
    file = io.BytesIO()
    exported.onnx(file)
    session = ort.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    assert names[0] == "input" and set(names[1:]) == {"running_mean", "running_var", "num_batches_tracked"}
    state = {name: buffer.numpy().copy() for name, buffer in model.named_buffers()}
    outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"input": x.numpy(), **state}), strict=True))
    close([outputs["output"]], model(x))
    for name, buffer in model.named_buffers():
        close([outputs[f"{name}_out"]], buffer)


def test_what_onnx_cannot_say_is_refused() -> None:
    x = calque.randn(3, 4)
    with pytest.raises(ExportError, match=r"expected operations that ONNX has, but random_bits \(.*test_onnx.py:\d+\) has no counterpart there"):
        run(calque.export(lambda x: x + calque.rand(3, 4), x), [x])
    branch = calque.export(lambda x: x * 2 if x.shape[0] > 100 else x, x, {"x": {0: "n"}})
    with pytest.raises(ExportError, match=r"has one program, but for n=\d+ forward does something else: n > 100 is False \(.*:\d+\)"):
        run(branch, [x])
    exported = calque.export(nn.Linear(4, 2), x)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"opset": 9}, "expected an opset from 18 to 26, got 9"), ({"entry": "b"}, "expected the name of an entry, one of forward"),
        ({"input_names": ["a", "b"]}, "expected as many input names as there are inputs, 1, got 2"),
    ]  # fmt: skip
    for options, text in wrong:
        with pytest.raises(ValueError, match=text):
            exported.onnx(io.BytesIO(), **options)
    close(run(exported, [x], opset=21), exported(x))


def test_torch_onnx_export_leads_here(tmp_path: Path) -> None:
    from calque.compat.torch.onnx import export

    model = nn.Linear(4, 2)
    export(model, (calque.ones(3, 4),), tmp_path / "m.onnx", input_names=["x"], output_names=["y"],
           dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, opset_version=14, do_constant_folding=True)  # fmt: skip
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    x = calque.randn(9, 4)
    close(session.run(["y"], {"x": x.numpy()}), model(x))
