"""DLPack in both directions, and NumPy's protocol for functions."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import calque
from calque.base import dtypes as dt
from calque.functional.dlpack import _pointer
from calque.utils.dlpack import DLDeviceType

EVERY = [d for d in dt.EVERY if d is not dt.bool_]


@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1)], ids=str)
def test_every_type_shares_its_memory(dtype: Any, version: Any) -> None:
    x = calque.tensor([[1.0, 2.0], [4.0, 8.0]]).to(dtype)
    capsule = x.__dlpack__(max_version=version)
    assert _pointer(capsule)[1] == (b"dltensor_versioned" if version and version[0] else b"dltensor")
    y = calque.from_dlpack(capsule)
    assert y.dtype is x.dtype and y.data_ptr() == x.data_ptr() and bool((y == x).all())
    y[0, 0] = 2
    assert x.float()[0, 0].item() == 2 if not dtype.is_complex else x.real[0, 0].item() == 2
    with pytest.raises(ValueError, match="a capsule can be read once"):
        calque.from_dlpack(capsule)


def test_arguments_of_an_export() -> None:
    x = calque.arange(3.0)
    for wish in ({"dl_device": (1, 0)}, {"stream": -1}, {"copy": False}, {"dl_device": (DLDeviceType.kDLCPU, 0), "max_version": (1, 1)}):
        assert calque.from_dlpack(x.__dlpack__(**wish)).data_ptr() == x.data_ptr()  # type: ignore[arg-type]
    copied = x.__dlpack__(copy=True, max_version=(1, 0))
    assert ctypes.c_uint64.from_address(_pointer(copied)[0] + 24).value & 2  # it says that it is a copy
    made = calque.from_dlpack(copied)
    made[0] = 5.0
    assert x[0].item() == 0 and made.data_ptr() != x.data_ptr()
    with pytest.raises(BufferError, match=r"expected dl_device=\(1, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="expected no stream"):
        x.__dlpack__(stream=1)
    with pytest.raises(TypeError, match="stream as an int or None"):
        x.__dlpack__(stream="default")
    with pytest.raises(BufferError, match="got one on meta"):
        calque.ones(1, device="meta").__dlpack__()
    with pytest.raises(ValueError, match="Unknown device type meta"):
        calque.ones(1, device="meta").__dlpack_device__()
    assert x.__dlpack_device__() == (1, 0) and DLDeviceType.kDLCPU == 1


def test_numpy_at_the_other_end() -> None:
    x = calque.arange(6.0).reshape(2, 3)
    seen = np.from_dlpack(x.t())
    assert seen.tolist() == x.t().tolist() and seen.ctypes.data == x.data_ptr()
    if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1):
        assert np.from_dlpack(x, copy=True, device="cpu").ctypes.data != x.data_ptr()
    a = np.arange(4.0)
    assert calque.from_dlpack(a).data_ptr() == a.ctypes.data and calque.from_dlpack(a, copy=False).data_ptr() == a.ctypes.data
    assert calque.from_dlpack(a, copy=True).data_ptr() != a.ctypes.data and calque.from_dlpack(a, device="cpu").dtype is calque.float64
    assert calque.from_dlpack(a[::-1]).tolist() == [3, 2, 1, 0] and calque.from_dlpack(np.zeros(2, np.uint16)).dtype is calque.uint16
    own = calque.ones(2)
    assert calque.from_dlpack(own).data_ptr() == own.data_ptr() and calque.from_dlpack(own, copy=True).data_ptr() != own.data_ptr()
    with pytest.raises(BufferError, match="got meta"):
        calque.from_dlpack(a, device="meta")


@pytest.mark.skipif(tuple(map(int, np.__version__.split(".")[:2])) < (2, 1), reason="NumPy says what is read-only since 2.1")
def test_what_is_read_only_is_copied() -> None:
    a = np.arange(3.0)
    a.flags.writeable = False
    made = calque.from_dlpack(a)
    made[0] = 7.0
    assert a[0] == 0.0 and made.tolist() == [7, 1, 2]
    with pytest.raises(BufferError, match="read-only"):
        calque.from_dlpack(a, copy=False)


class Old:
    """An object of a framework that knows DLPack 0."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_older_frameworks() -> None:
    a = np.arange(3.0)
    made = calque.from_dlpack(Old(a))
    made[1] = 9.0
    assert a[1] == 9.0 and calque.from_dlpack(Old(a), copy=True).data_ptr() != a.ctypes.data


def test_numpy_functions_give_tensors() -> None:
    t, i, s = calque.tensor([1.0, 4.0]), calque.tensor([1, 2]), calque.tensor(4.0)
    for found, dtype, expected in (
        (np.add(t, t), "float32", [2, 8]), (np.sqrt(t), "float32", [1, 2]), (np.sqrt(s), "float32", 2),
        (np.multiply(np.ones(2), t), "float64", [1, 4]),
        (np.add(i, 1), "int64", [2, 3]), (np.less(t, 2), "uint8", [1, 0]), (np.add.reduce(t), "float32", 5), (np.modf(t)[1], "float32", [1, 4]),
        (np.argmax(t), "int64", 1), (np.clip(t, 0, 2), "float32", [1, 2]), (np.cumsum(t), "float32", [1, 5]), (np.transpose(t), "float32", [1, 4]),
    ):  # fmt: skip
        assert type(found) is calque.Tensor and found.dtype is getattr(calque, dtype) and found.tolist() == expected
    assert type(np.array([1.0, 2.0]) * t) is calque.Tensor and type(np.stack([t, t])) is np.ndarray
    out = np.zeros(2, np.float32)
    np.add(t, t, out=out)
    assert out.tolist() == [2, 8]
    with pytest.raises(RuntimeError, match="requires grad"):
        np.sin(calque.ones(2, requires_grad=True))
