"""Wide unsigned integers and float8 compared with PyTorch: conversions of every bit pattern, promotion, what is there and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

UNSIGNED = ["uint16", "uint32", "uint64"]
FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
OTHERS = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def bits(t: Any) -> bytes:
    """The memory of a tensor of either."""
    return bytes(np.asarray(t.contiguous().view((torch if isinstance(t, torch.Tensor) else calque).uint8)).tobytes())


def outcome(f: Callable[[], Any]) -> Any:
    """What a call gives: dtype, shape and bits, another value, or the class of what it raises."""
    try:
        found = f()
    except Exception as error:
        return next(kind for kind in (NotImplementedError, IndexError, RuntimeError, TypeError, ValueError) if isinstance(error, kind)).__name__
    if hasattr(found, "contiguous"):
        return repr(found.dtype), tuple(found.shape), bits(found.contiguous().reshape(-1))
    return repr(found)


@pytest.mark.parametrize("name", FLOAT8)
def test_every_float8_and_a_million_floats(name: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    ours, theirs = calque.from_numpy(codes).view(getattr(calque, name)), torch.from_numpy(codes).view(getattr(torch, name))
    for wide in ("float32", "float64", "float16", "bfloat16"):
        a, b = ours.to(getattr(calque, wide)).double().numpy(), theirs.to(getattr(torch, wide)).double().numpy()
        assert np.array_equal(a, b, equal_nan=True)
    patterns = (np.arange(1 << 20, dtype=np.uint32) << 12) + np.random.default_rng(0).integers(0, 4096, 1 << 20, dtype=np.uint32)
    x = np.concatenate([patterns.view(np.float32), (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)])
    x = np.where(np.isnan(x), np.float32(np.nan), x)
    for kind in ("float32", "float64", "float16", "bfloat16"):
        a = calque.from_numpy(x).to(getattr(calque, kind)).to(getattr(calque, name)).float().numpy()
        b = torch.from_numpy(x).to(getattr(torch, kind)).to(getattr(torch, name)).float().numpy()
        assert np.array_equal(a, b, equal_nan=True), kind
    whole = np.arange(-600, 600)
    a, b = calque.from_numpy(whole).to(getattr(calque, name)), torch.from_numpy(whole).to(getattr(torch, name))
    assert np.array_equal(a.float().numpy(), b.float().numpy(), equal_nan=True)
    products = [t.reshape(-1, 1) * t.reshape(1, -1) for t in (ours, theirs)]
    assert np.array_equal(products[0].float().numpy(), products[1].float().numpy(), equal_nan=True)


@pytest.mark.parametrize("name", UNSIGNED)
def test_conversions_of_unsigned_integers(name: str) -> None:
    most = 2 ** int(name[4:]) - 1
    for values in ([0, 1, 255, 256, 65535], [-1, -2, 70000, 2**31, 2**32 + 5, -(2**40)], [most // 2, most // 2 - 5]):
        source = np.array(values, np.int64)
        a, b = calque.from_numpy(source).to(getattr(calque, name)), torch.from_numpy(source).to(getattr(torch, name))
        for other in (*OTHERS, *UNSIGNED):
            found = [outcome(lambda m=m, t=t, other=other: t.to(getattr(m, other))) for m, t in ((calque, a), (torch, b))]
            assert found[0] == found[1], other
    floats = np.array([0.0, 0.9, 1.5, 300.7, 65535.9, 70000.0, 4294967295.0], np.float64)[: {"uint16": 5, "uint32": 7, "uint64": 7}[name]]
    assert calque.from_numpy(floats).to(getattr(calque, name)).tolist() == torch.from_numpy(floats).to(getattr(torch, name)).tolist()


def test_promotion_table() -> None:
    for a in (*UNSIGNED, *FLOAT8):
        for b in (*UNSIGNED, *FLOAT8, *OTHERS, "complex64"):
            ours, theirs = (outcome(lambda m=m, a=a, b=b: m.promote_types(getattr(m, a), getattr(m, b))) for m in (calque, torch))
            assert ours == theirs, (a, b, ours, theirs)
        for number in (True, 1, 1.5):
            ours, theirs = (outcome(lambda m=m, a=a, n=number: m.result_type(m.zeros(2).to(getattr(m, a)), n)) for m in (calque, torch))
            assert ours == theirs, (a, number)


SAME: list[Callable[[Any, Any], Any]] = [
    lambda m, a: a + a, lambda m, a: a + 1, lambda m, a: a - a, lambda m, a: a * a, lambda m, a: a * 2.0, lambda m, a: a / a, lambda m, a: a // a,
    lambda m, a: a % 2, lambda m, a: -a, lambda m, a: a == a, lambda m, a: a != 1, lambda m, a: a < a, lambda m, a: a > 1, lambda m, a: a & a,
    lambda m, a: a ^ a, lambda m, a: a | a, lambda m, a: a << 1, lambda m, a: a + m.ones(4), lambda m, a: a * m.ones(4),
    lambda m, a: a + m.ones(4).long(),
    lambda m, a: a.sum(), lambda m, a: a.prod(), lambda m, a: a.max(), lambda m, a: a.argmax(), lambda m, a: a.any(), lambda m, a: a.all(),
    lambda m, a: a.cumsum(0), lambda m, a: a.sort()[0], lambda m, a: a.isnan(), lambda m, a: a.clamp(0, 1), lambda m, a: m.maximum(a, a),
    lambda m, a: a.relu(), lambda m, a: a.sign(), lambda m, a: a.floor(), lambda m, a: a.round(), lambda m, a: a.logical_not(), lambda m, a: a @ a,
    lambda m, a: m.cat([a, a]), lambda m, a: a[1:3], lambda m, a: a[m.tensor([0, 2])], lambda m, a: a[m.tensor([True, False, True, False])],
    lambda m, a: a.reshape(2, 2).t().contiguous(), lambda m, a: a.repeat(2), lambda m, a: a.roll(1), lambda m, a: m.zeros_like(a),
    lambda m, a: a.tolist(),
    lambda m, a: m.where(m.tensor([True, False, True, False]), a, a), lambda m, a: m.stack([a, a]), lambda m, a: a.clone().fill_(1),
    lambda m, a: a.item(),
    lambda m, a: m.finfo(a.dtype), lambda m, a: m.iinfo(a.dtype), lambda m, a: repr(a), lambda m, a: repr(a[:2]), lambda m, a: a.bool(),
    lambda m, a: a.int(),
    lambda m, a: m.rand(2, dtype=a.dtype).shape, lambda m, a: m.tensor([1, 2], dtype=a.dtype), lambda m, a: m.full((2,), 3, dtype=a.dtype),
]  # fmt: skip


@pytest.mark.parametrize("name", [*UNSIGNED, *FLOAT8])
def test_operations_and_refusals(name: str) -> None:
    wrong = []
    for number, f in enumerate(SAME):
        ours, theirs = (outcome(lambda m=m, f=f: f(m, m.tensor([1.0, 2.0, 4.0, 0.0]).to(getattr(m, name)))) for m in (calque, torch))
        refused = [isinstance(found, str) and found.endswith("Error") for found in (ours, theirs)]
        if ours != theirs and not (all(refused) and {ours, theirs} <= {"NotImplementedError", "RuntimeError", "TypeError"}):
            wrong.append((number, ours, theirs))
    assert not wrong


def test_names_of_types_without_tensors() -> None:
    for name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "int1", "int7", "uint1",
                 "uint7", "float4_e2m1fn_x2", "complex32"):  # fmt: skip
        ours, theirs = getattr(calque, name), getattr(torch, name)
        assert repr(ours) == repr(theirs) and ours.itemsize == theirs.itemsize
        assert (ours.is_floating_point, ours.is_complex) == (theirs.is_floating_point, theirs.is_complex)


@pytest.mark.parametrize("name", [*UNSIGNED, *FLOAT8])
def test_files_in_both_directions(name: str, tmp_path: Any) -> None:
    theirs, ours = torch.tensor([1.0, 2.0, 4.0]).to(getattr(torch, name)), calque.tensor([1.0, 2.0, 4.0]).to(getattr(calque, name))
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save([theirs, theirs[1:]], tmp_path / "t.pt", **options)
        found = calque.load(tmp_path / "t.pt")
        assert [outcome(lambda t=t: t) for t in found] == [outcome(lambda t=t: t) for t in (theirs, theirs[1:])]
    calque.save([ours, ours[1:]], tmp_path / "o.pt", format="pt")
    assert [outcome(lambda t=t: t) for t in torch.load(tmp_path / "o.pt", weights_only=True)] == [outcome(lambda t=t: t) for t in found]
