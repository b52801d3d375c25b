"""Types that are stored rather than computed with: wide unsigned integers and float8; and types that have a name only."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

import calque
from calque.base import dtypes as dt

UNSIGNED = [calque.uint16, calque.uint32, calque.uint64]
FLOAT8 = [calque.float8_e4m3fn, calque.float8_e5m2, calque.float8_e4m3fnuz, calque.float8_e5m2fnuz, calque.float8_e8m0fnu]
STORED = UNSIGNED + FLOAT8


def four(dtype: Any) -> Any:
    return calque.tensor([1.0, 2.0, 4.0, 8.0]).to(dtype)


def values(t: Any) -> list[float]:
    return [float(v) for v in t.reshape(-1).tolist()]


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_moves_of_data(dtype: Any) -> None:
    a = four(dtype)
    pairs = a.reshape(2, 2)
    for found, expected in (
        (a[1:3], [2, 4]), (pairs.t().contiguous(), [1, 4, 2, 8]), (a[calque.tensor([3, 0])], [8, 1]), (a[::2], [1, 4]), (a.flip(0), [8, 4, 2, 1]),
        (a[calque.tensor([True, False, True, False])], [1, 4]), (calque.cat([a, a[:1]]), [1, 2, 4, 8, 1]), (calque.stack([a, a])[1], [1, 2, 4, 8]),
        (a[:1].expand(3), [1, 1, 1]), (a.repeat(2), [1, 2, 4, 8] * 2), (a.roll(1), [8, 1, 2, 4]), (a.clone(), [1, 2, 4, 8]), (pairs[:, 1], [2, 8]),
        (calque.where(calque.tensor([True, False, True, False]), a, a.flip(0)), [1, 4, 4, 1]), (a.index_select(0, calque.tensor([2])), [4]),
        (calque.full((2,), 4, dtype=dtype), [4, 4]), (calque.ones(2, dtype=dtype), [1, 1]), (copy.deepcopy(a), [1, 2, 4, 8]),
        (pickle.loads(pickle.dumps(a)), [1, 2, 4, 8]), (a.split(2)[1], [4, 8]), (a.to(calque.float64), [1, 2, 4, 8]), (a.long(), [1, 2, 4, 8]),
        (calque.zeros_like(a).copy_(a), [1, 2, 4, 8]), (calque.from_numpy(a.numpy()), [1, 2, 4, 8]), (calque.tensor([1, 2], dtype=dtype), [1, 2]),
        (calque.tensor(a), [1, 2, 4, 8]), (a.view(calque.int8 if a.itemsize == 1 else calque.uint8).view(dtype), [1, 2, 4, 8]),
    ):  # fmt: skip
        assert values(found) == expected, found
    b = four(dtype)
    b[1:3] = 8
    b[0].fill_(2)
    assert values(b) == [2, 8, 8, 8] and b.dtype is dtype and a.element_size() == dtype.itemsize
    assert a.is_floating_point() == (dtype in FLOAT8) and a[0].item() == 1 and bool((a == four(dtype)).all()) and not bool((a != a).any())


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_what_is_computed_with_the_compiled_program_and_on_the_host_is_the_same(dtype: Any) -> None:
    def f() -> Any:
        x = four(dtype)
        return (x * x).to(calque.float32) + x.to(calque.float32) * 3, calque.cat([x, x[2:]]) == 4

    first = f()
    expected = (four(dtype) * four(dtype)).float() + calque.tensor([1.0, 2.0, 4.0, 8.0]) * 3
    for _ in range(20):  # often enough to be compiled
        again = f()
        assert calque.equal(again[0], first[0]) and calque.equal(again[1], first[1])
    assert calque.equal(first[0], expected) and first[1].tolist() == [False, False, True, False, True, False]


def test_printing() -> None:
    assert repr(four(calque.uint16)) == "tensor([1, 2, 4, 8], dtype=torch.uint16)"
    assert repr(calque.tensor([0.5, 2.0]).to(calque.float8_e4m3fn)) == "tensor([0.5000, 2.0000], dtype=torch.float8_e4m3fn)"
    assert repr(calque.zeros(2, dtype=calque.float8_e8m0fnu)) == "tensor([0., 0.], dtype=torch.float8_e8m0fnu)"
    assert repr(calque.tensor([2**64 - 1], dtype=calque.uint64)) == "tensor([18446744073709551615], dtype=torch.uint64)"


def test_rounding() -> None:
    x = calque.tensor([1.06, 1.07, 1e6, -1e6, float("inf"), float("nan"), 0.0, 2.0**-10])
    found = x.to(calque.float8_e4m3fn).float().tolist()
    assert found[:5] == [1.0, 1.125, 448, -448, 448] and found[5] != found[5] and found[6:] == [0, 0]
    assert x.to(calque.float8_e5m2).float().tolist()[:5] == [1.0, 1.0, float("inf"), -float("inf"), float("inf")]
    assert x[:4].to(calque.float8_e8m0fnu).float().tolist() == [1, 1, 2.0**20, 2.0**20] and x[6:7].to(calque.float8_e8m0fnu).item() == 2.0**-127
    assert calque.tensor([-1.0, 70000.0]).to(calque.uint16).tolist() == [65535, 4464]
    assert calque.tensor([-1, 2**40 + 1]).to(calque.uint32).tolist() == [2**32 - 1, 1]
    assert calque.tensor([2**64 - 1, 2**63], dtype=calque.uint64).tolist() == [2**64 - 1, 2**63]
    assert calque.full((1,), 2**63, dtype=calque.uint64).tolist() == [2**63] and calque.tensor([-1]).to(calque.uint64).item() == 2**64 - 1


def test_promotion() -> None:
    for dtype in UNSIGNED:
        for other in (calque.float16, calque.bfloat16, calque.float32, calque.float64):
            assert calque.promote_types(dtype, other) is other is calque.promote_types(other, dtype)
        for other in (calque.bool, calque.uint8, calque.int64, calque.float8_e5m2, *[d for d in UNSIGNED if d is not dtype]):
            with pytest.raises(RuntimeError, match="Promotion for uint16, uint32, uint64 types is not supported"):
                calque.promote_types(dtype, other)
        assert calque.result_type(four(dtype), 1.5) is calque.float32 and calque.result_type(four(dtype), 1) is dtype
        assert (four(dtype) + calque.ones(4)).dtype is calque.float32 and (four(dtype) / four(dtype)).tolist() == [1, 1, 1, 1]
    for dtype in FLOAT8:
        assert calque.promote_types(dtype, dtype) is dtype and calque.result_type(four(dtype), 1.5) is dtype
        with pytest.raises(RuntimeError, match="Promotion for Float8 types is not supported"):
            four(dtype) * calque.ones(4)


def test_the_few_operations_there_are() -> None:
    for dtype in UNSIGNED:
        a = four(dtype)
        assert (a * a).tolist() == [1, 4, 16, 64] and (a & 6).tolist() == [0, 2, 4, 0] and (a ^ a).tolist() == [0] * 4
        assert (a | 1).tolist() == [1, 3, 5, 9]
        assert a.sum().item() == 15 and a.sum().dtype is calque.int64 and a.prod().item() == 64 and a.cumsum(0).tolist() == [1, 3, 7, 15]
        assert a.flip(0).sort()[0].tolist() == [1, 2, 4, 8] and a.floor().dtype is dtype and a.sqrt().dtype is calque.float32 and bool(a.all())
    assert calque.tensor([2**64 - 1, 3], dtype=calque.uint64).sort()[0].tolist() == [3, 2**64 - 1]
    for dtype in FLOAT8:
        a = four(dtype)
        assert (a * a).float().tolist() == [1, 4, 16, 64] and a.isfinite().tolist() == [True] * 4 and not a.isnan().any() and a.any()
    assert calque.ones(1, dtype=calque.float8_e5m2).requires_grad_().requires_grad
    assert calque.tensor([448.0]).to(calque.float8_e4m3fn).isinf().tolist() == [False]


REFUSED: list[tuple[str, Any]] = [
    ("add", lambda a: a + a), ("sub", lambda a: a - a), ("lt", lambda a: a < a), ("amax", lambda a: a.max()), ("neg", lambda a: -a),
    ("floor_divide", lambda a: a // a), ("remainder", lambda a: a % 2), ("argmax", lambda a: a.argmax()), ("maximum", lambda a: calque.maximum(a, a)),
    ("relu", lambda a: a.relu()), ("sign", lambda a: a.sign()), ("matmul", lambda a: a @ a), ("logical_not", lambda a: a.logical_not()),
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name, _ in REFUSED])
@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_what_pytorch_refuses_is_refused(dtype: Any, name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"\[{name}\] expected a dtype to compute with, got torch.{dtype.name}.*convert with") as caught:
        dict(REFUSED)[name](four(dtype))
    assert isinstance(caught.value, RuntimeError)


def test_float8_refuses_more() -> None:
    refused: Any = (lambda a: a * 2.0, lambda a: a.sum(), lambda a: a.exp(), lambda a: a.sort(), lambda a: a / a,
                    lambda a: calque.rand(2, dtype=a.dtype))  # fmt: skip
    for dtype in FLOAT8:
        for f in refused:
            with pytest.raises((RuntimeError, TypeError)):
                f(four(dtype))


def test_files(tmp_path: Any) -> None:
    state = {dtype.name: four(dtype) for dtype in STORED}
    for name, options in (("a.safetensors", {}), ("a.pt", {"format": "pt"})):
        calque.save(state, tmp_path / name, **options)  # type: ignore[arg-type]
        found = calque.load(tmp_path / name)
        assert all(found[key].dtype is item.dtype and values(found[key]) == values(item) for key, item in state.items())
    stream = io.BytesIO()
    shared = four(calque.uint16)
    calque.save([shared, shared[1:]], stream, format="pt")
    a, b = calque.load(io.BytesIO(stream.getvalue()))
    b[0] = 7
    assert a.tolist() == [1, 7, 4, 8]


def test_limits() -> None:
    assert calque.iinfo(calque.uint64).max == 2**64 - 1 and calque.iinfo(calque.uint16).min == 0
    info = calque.finfo(calque.float8_e4m3fn)
    assert (info.max, info.eps, info.tiny, info.bits) == (448.0, 0.125, 2.0**-6, 8)
    with pytest.raises(TypeError, match="use calque.iinfo"):
        calque.finfo(calque.uint16)
    with pytest.raises(TypeError, match="use calque.finfo"):
        calque.iinfo(calque.float8_e5m2)


def test_types_that_have_a_name_only() -> None:
    for dtype in dt.NAMED:
        assert getattr(calque, dtype.name) is dtype and repr(dtype) == f"torch.{dtype.name}" and isinstance(dtype, calque.dtype)
        assert dtype == dtype and dtype != calque.float32 and hash(dtype) == hash(pickle.loads(pickle.dumps(dtype)))
        for make in (lambda dtype=dtype: calque.zeros(2, dtype=dtype), lambda dtype=dtype: calque.ones(2).to(dtype),
                     lambda dtype=dtype: calque.tensor([1], dtype=dtype), lambda dtype=dtype: calque.empty(2, dtype=dtype)):  # fmt: skip
            with pytest.raises(TypeError, match=f"torch.{dtype.name}, which has a name here and no values"):
                make()
    assert calque.qint32.itemsize == 4 and calque.complex32.is_complex and calque.float4_e2m1fn_x2.is_floating_point
    assert calque.chalf is calque.complex32
    assert np.dtype(calque.uint16.np) == np.uint16
