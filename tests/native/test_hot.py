"""The compiled module against its Python twins: kernels by themselves, whole programs with and without it, and what it leaves behind."""

from __future__ import annotations

import gc
import hashlib
import re
import subprocess
import sys
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import calque
from calque.autograd.routines import kernel, routine
from calque.backend.ref.interpret import run_node
from calque.backend.ref.small import longer_inside, nest
from calque.base import native as of_base
from calque.base.device import CPU
from calque.base.dtypes import DType, bool_, float32, float64, int32, int64, uint8
from calque.base.layout import dense_layout, layout
from calque.base.native import hot
from calque.ir.program import Node
from calque.ops.opdef import get
from calque.ops.random import random_bits_ref
from calque.record.inferred import result_of
from calque.tensor import from_array, record

pytestmark = pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler")

UNARY = ("neg", "abs", "exp", "log", "tanh", "sqrt", "sigmoid", "reciprocal", "sin", "cos", "relu", "copy", "floor", "round", "log1p", "logical_not")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "lt", "ge", "eq", "pow", "fmod")


@st.composite
def seen(draw: st.DrawFn, shape: tuple[int, ...], dtype: DType) -> tuple[object, np.ndarray]:
    """A layout of this shape in some memory, and that memory: dims in any order, gaps, an offset, some dims broadcast."""
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for d in order:
        if draw(st.integers(0, 5)) == 0:
            continue  # broadcast
        step *= draw(st.integers(1, 3))
        strides[d], step = step, step * shape[d]
    offset = draw(st.integers(0, 3))
    size = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    memory = rng.integers(0, 2, size).astype(bool) if dtype is bool_ else rng.uniform(0.1, 3.0, size).astype(dtype.np)
    return layout(shape, tuple(strides), offset, dtype), memory


def values(view: object, memory: np.ndarray) -> np.ndarray:
    size = memory.itemsize
    return np.lib.stride_tricks.as_strided(memory[view.offset :], view.shape, [s * size for s in view.strides])  # type: ignore[attr-defined]


SHAPES = st.one_of(
    st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple), st.tuples(st.integers(1, 3), st.integers(6, 40), st.integers(1, 4))
)  # fmt: skip


@given(st.data(), SHAPES, st.sampled_from([float32, float64]), st.sampled_from(UNARY + BINARY + ("where",)))
def test_elementwise_kernels_are_numpys(data: st.DataObject, shape: tuple[int, ...], dtype: DType, name: str) -> None:
    """Whatever the operands' strides are, the values are those of the twin on copies."""
    op = get(name)
    kinds = [bool_, dtype, dtype] if name == "where" else [dtype] * (2 if name in BINARY else 1)
    cut = data.draw(st.integers(0, len(shape)))
    shapes = [shape, *[shape[cut:] for _ in kinds[1:]]]
    operands = [data.draw(seen(s, kind)) for s, kind in zip(shapes, kinds, strict=True)]
    with calque.no_grad():
        tensors = [calque.as_strided(from_array(m, dense_layout((m.size,), k)), tuple(v.shape), v.strides, v.offset)  # type: ignore[attr-defined]
                   for (v, m), k in zip(operands, kinds, strict=True)]  # fmt: skip
        found = record(op, tuple(tensors), (), True)
        plain = [np.ascontiguousarray(values(*operand)) for operand in operands]
        views = tuple([dense_layout(x.shape, k) for x, k in zip(plain, kinds, strict=True)])
        wanted = routine(op, (), views, result_of(op, (), views, CPU)).function(*plain)
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_the_longest_loop_is_the_innermost_of_a_few_turns() -> None:
    """2,500 rows of 3 took ten times as long as 3 of 2,500. What one operand's loops write lies side by side, so they stay."""
    assert nest([((50, 50, 3), (150, 3, 1), float32)] * 2, (50, 50, 3), (150, 3, 1), float32)[0] == (7500,)
    dims, steps = nest([((50, 50, 3), (150, 3, 1), float32), ((50, 50, 1), (50, 1, 1), float32)], (50, 50, 3), (150, 3, 1), float32)
    assert dims == (2500, 3)
    assert longer_inside(dims, steps) == ((3, 2500), ((4, 0, 4), (12, 4, 12)))
    assert longer_inside((9, 10), ((40, 40), (4, 4)))[0] == (9, 10)


@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple), st.sampled_from([float32, float64]), st.booleans())
def test_sums_are_those_of_float64(data: st.DataObject, shape: tuple[int, ...], dtype: DType, keepdim: bool) -> None:
    view, memory = data.draw(seen(shape, dtype))
    dims = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    name = data.draw(st.sampled_from(["sum", "amax", "amin"]))
    t = calque.as_strided(from_array(memory, dense_layout((memory.size,), dtype)), shape, view.strides, view.offset)  # type: ignore[attr-defined]
    found = record(get(name), (t,), (dims, keepdim)).numpy()
    wanted = getattr(np, name)(values(view, memory).astype(np.float64), axis=dims, keepdims=keepdim).astype(dtype.np)
    np.testing.assert_allclose(found, wanted, rtol=1e-15 if dtype is float64 else 2e-7, strict=True)


@given(st.data(), *[st.integers(1, 9)] * 3, st.sampled_from([float32, float64]))
def test_products_take_rows_or_columns(data: st.DataObject, m: int, k: int, n: int, dtype: DType) -> None:
    (a, left), (b, right) = data.draw(seen((m, k), dtype)), data.draw(seen((k, n), dtype))
    x, y = (calque.as_strided(from_array(memory, dense_layout((memory.size,), dtype)), tuple(v.shape), v.strides, v.offset)  # type: ignore[attr-defined]
            for v, memory in ((a, left), (b, right)))  # fmt: skip
    wanted = values(a, left).astype(np.float64) @ values(b, right).astype(np.float64)
    np.testing.assert_allclose((x @ y).numpy(), wanted, rtol=1e-13 if dtype is float64 else 1e-5)


KINDS = (bool_, uint8, int32, int64, float32, float64)
SMALL = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


MOVED = ("cast", "cat", "index_select", "gather", "argmax", "argmin", "add", "eq", "bitwise_and")


@given(st.data(), SMALL, st.sampled_from(KINDS), st.sampled_from(MOVED))
def test_what_moves_and_counts_is_the_definition(data: st.DataObject, shape: tuple[int, ...], dtype: DType, name: str) -> None:
    """Operands anywhere in memory; the definition on copies."""
    op, dim = get(name), data.draw(st.integers(0, len(shape) - 1))
    assume(name != "bitwise_and" or dtype.category < 2)
    assume(not name.startswith("arg") or dtype is not bool_)
    kinds, shapes, attrs = [dtype], [shape], (dim,)
    if name == "cast":
        attrs = (data.draw(st.sampled_from(KINDS)),)
    elif name == "cat":
        others = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        shapes += [(*shape[:dim], n, *shape[dim + 1 :]) for n in others]
        kinds = [dtype] * len(shapes)
    elif name in ("index_select", "gather"):
        free = st.lists(st.integers(1, 3), max_size=2).map(tuple)
        shapes.append(data.draw(free if name == "index_select" else st.tuples(*[st.integers(1, n) for n in shape])))
        kinds.append(int64)
    elif name.startswith("arg"):
        attrs = (data.draw(st.sampled_from([(dim,), tuple(range(len(shape)))])), data.draw(st.booleans()))
    else:
        shapes, kinds, attrs = [shape, shape[data.draw(st.integers(0, len(shape))) :]], [dtype, dtype], ()
    operands = [data.draw(seen(s, kind)) for s, kind in zip(shapes, kinds, strict=True)]
    if kinds[1:] == [int64] and name in ("index_select", "gather"):
        operands[1][1][:] %= shape[dim]
    elif data.draw(st.booleans()) and dtype.category == 2:
        operands[0][1][data.draw(st.integers(0, operands[0][1].size - 1))] = np.nan
        attrs = attrs if name != "cast" or attrs[0].category == 2 or attrs[0] is bool_ else (float64,)
    tensors = [calque.as_strided(from_array(m, dense_layout((m.size,), k)), tuple(v.shape), v.strides, v.offset)  # type: ignore[attr-defined]
               for (v, m), k in zip(operands, kinds, strict=True)]  # fmt: skip
    plain = [np.ascontiguousarray(values(*operand)).reshape(s) for operand, s in zip(operands, shapes, strict=True)]
    out = result_of(op, attrs, tuple([dense_layout(s, k) for s, k in zip(shapes, kinds, strict=True)]), CPU)
    wanted = run_node(Node(op, tuple(range(len(plain))), attrs, tuple(out.shape), out.dtype), plain, (), ())
    for given_ in (tensors, [x.contiguous() for x in tensors]):
        np.testing.assert_array_equal(record(op, tuple(given_), attrs, True).numpy(), wanted, strict=True)


@given(SMALL, SMALL, st.booleans(), st.booleans(), st.sampled_from([float32, float64]))
def test_products_of_many_matrices(lead: tuple[int, ...], extents: tuple[int, ...], left: bool, right: bool, dtype: DType) -> None:
    """Broadcast dims before, transposed matrices."""
    m, k, n = (*extents, 2, 3)[:3]
    rng = np.random.default_rng(m * 16 + k * 4 + n)
    a, b = rng.normal(size=(*lead, m, k)).astype(dtype.np), rng.normal(size=(*lead[1:], k, n)).astype(dtype.np)
    x, y = (calque.tensor(v.swapaxes(-1, -2).copy()).mT if turn else calque.tensor(v) for v, turn in ((a, left), (b, right)))
    np.testing.assert_allclose((x @ y).numpy(), a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5 if dtype is float32 else 1e-12, atol=1e-5)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 62), SMALL)
def test_random_bits_are_those_of_the_definition(seed_: int, offset: int, shape: tuple[int, ...]) -> None:
    wanted = random_bits_ref(seed_, offset, shape)
    np.testing.assert_array_equal(record(get("random_bits"), ((seed_, int64), (offset, int64)), (shape,)).numpy(), wanted)
    np.testing.assert_array_equal(hot.bits(seed_, offset, wanted.size), wanted.reshape(-1))


def test_a_kernel_is_a_function_of_any_arrays() -> None:
    """Arrays that are not what the nest is for go to the twin."""
    view = dense_layout((3, 4), float32)
    op = get("exp")
    run = kernel(op, (), (view,), view, view, routine(op, (), (view,), view), False)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for given_ in (x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], x.astype(np.float64), x[:2], x[0, 0]):
        np.testing.assert_array_equal(run(given_), np.exp(given_))


PROGRAM = """
import calque, calque.nn as nn
calque.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 3))
optimizer = calque.optim.Adam(model.parameters(), lr=0.01)
x, y = calque.randn(5, 6), calque.tensor([0, 1, 2, 0, 1])
for k in range(30):
    h = x * 1.5 + k
    for _ in range(k % 3):
        h = h.relu() - h.t().t() * 0.25
    loss = nn.functional.cross_entropy(model(h[:, :6]), y) + h.mean() * 0.1
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(loss).hex())
print([float(p.abs().sum()).hex() for p in model.parameters()])
"""


@pytest.mark.parametrize("eager", ["0", "1"])
def test_programs_are_the_same_without_it(eager: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded programs are bit-equal, as they are the same; computed ones differ by how products and sums are rounded at most."""
    monkeypatch.setenv("CALQUE_EAGER", eager)
    outputs = []
    for native in ("1", "0"):
        monkeypatch.setenv("CALQUE_NATIVE", native)
        outputs.append(subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout)
    if eager == "0":
        assert outputs[0] == outputs[1]
    first, second = ([float.fromhex(w) for w in text.split("\n") if w.startswith(("0x", "-0x"))] for text in outputs)
    assert len(first) == 30
    np.testing.assert_allclose(first, second, rtol=1e-4)


def test_nothing_is_kept() -> None:
    """Values, nodes and views die with their last handle, and many operations leave no memory behind."""
    w = calque.ones(4, requires_grad=True)

    def chain() -> list[weakref.ref[object]]:
        y = (w * 2.0 + 1.0).tanh()
        rows = y.reshape(2, 2).t()
        total = (rows @ rows).sum()
        total.backward()
        return [weakref.ref(x) for x in (y, rows, y._storage, total)]

    gc.collect()
    gc.disable()
    try:
        for _ in range(4):  # rules are watched then
            chain()
        dead = [ref for _ in range(3) for ref in chain()]
        calque.synchronize()  # where several devices were used before, all this was recorded
        gc.collect()  # the last pass is remembered with what it began with
        assert all(ref() is None for ref in dead[:-4])
        blocks = []
        for _ in range(3):
            for _ in range(300):
                chain()
            blocks.append(sys.getallocatedblocks())
    finally:
        gc.enable()
    assert blocks[2] - blocks[1] < 200


def test_errors_come_from_the_users_line_and_change_nothing() -> None:
    a, b = calque.ones(3), calque.ones(4)
    before = a + 1.0
    with pytest.raises(RuntimeError, match=r"\[add\]"):
        a + b
    with pytest.raises(RuntimeError, match="matmul"):
        calque.ones(2, 3) @ calque.ones(2, 3)
    assert before.tolist() == [2.0, 2.0, 2.0] and (a + before).tolist() == [3.0, 3.0, 3.0]


def test_what_floats_is_copied_where_small_operations_are_computed() -> None:
    """It was recorded where nothing is, and its value was never there."""
    from calque.base.config import settings

    before = settings.logical_devices
    try:
        calque.set_logical_devices(2)
        x = calque.ones(3) * 2
        calque.synchronize()
        calque.set_logical_devices(1)
        assert (calque.ones(3) + 1).tolist() == [2.0] * 3  # from here on they are computed
        x._storage.buffer.floating = True
        calque.set_logical_devices(2)
        y = x.to("cpu:1")
        assert y.tolist() == [2.0] * 3 and (y + 1).device == calque.device("cpu:1")
    finally:
        calque.synchronize()
        settings.logical_devices = before


def test_a_compiled_module_of_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind an update of a checkout: the import went on with it, and failed."""
    monkeypatch.setattr(of_base, "import_module", lambda name: types.ModuleType(name))
    with pytest.warns(RuntimeWarning, match=r"expected the compiled module of this version, .* pip install -e"):
        assert of_base._load() is None


def test_each_interface_of_the_compiled_module_has_a_number() -> None:
    """Slots that it reads and what it is given. Who changes them raises INTERFACE in `native/module.c` and `calque/base/native.py`, and writes here
    what this test finds."""
    folder = Path(__file__).resolve().parents[2] / "native"
    names = ("handles.h", "module.c", "eager.c", "reading.c", "backward.c", "superinstruction.c", "unchanged.c", "growing.c", "source.c", "writing.c")
    texts = "".join((folder / name).read_text(encoding="utf-8") for name in names)
    facts = re.findall(r"^#define SLOTS_.*|PyArg_ParseTuple\(args, \"O[^;]*;|^    (?:FAST\(|\{)\"\w+\",", texts, re.MULTILINE)
    assert len(facts) > 30
    digest = hashlib.sha256("".join("".join(facts).split()).encode()).hexdigest()[:12]
    known = {
        1: "913a47481236", 2: "fb4636127955", 3: "de4c2340e032", 4: "fd6b6eeb7b3b", 5: "ac4c69e8a03b", 6: "ac4c69e8a03b", 7: "13a8e878a282",
        8: "abcfeea75490", 9: "11772d10812a",
    }  # fmt: skip
    assert known[of_base.INTERFACE] == digest
