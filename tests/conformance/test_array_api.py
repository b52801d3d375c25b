"""The Array API standard 2024.12: every function of its lists with its signature; values, types and shapes as NumPy 2 gives them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
import calque.array_api as xp

# Source: https://data-apis.org/array-api/2024.12/API_specification/
SIGNATURES = """
x, / | abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite isinf isnan log log10 log1p log2
x, / | logical_not matrix_transpose negative nonzero positive real reciprocal round sign signbit sin sinh sqrt square tan tanh trunc unique_all
x, / | unique_counts unique_inverse unique_values linalg.det linalg.eigh linalg.eigvalsh linalg.inv linalg.matrix_transpose linalg.slogdet
x, / | linalg.svdvals
x1, x2, / | add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal floor_divide greater
x1, x2, / | greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor matmul maximum minimum multiply nextafter not_equal pow
x1, x2, / | remainder subtract linalg.matmul linalg.outer linalg.solve
x, /, *, axis=None, keepdims=False | all any argmax argmin count_nonzero max mean min
start, /, stop=None, step=1, *, dtype=None, device=None | arange
x, /, *, axis=-1, descending=False, stable=True | argsort sort
obj, /, *, dtype=None, device=None, copy=None | asarray
x, dtype, /, *, copy=True, device=None | astype
*arrays | broadcast_arrays
x, /, shape | broadcast_to
from_, to, / | can_cast
x, /, min=None, max=None | clip
arrays, /, *, axis=0 | concat stack
x, /, *, axis=None, dtype=None, include_initial=False | cumulative_prod cumulative_sum
x, /, *, axis=-1, n=1, prepend=None, append=None | diff
shape, *, dtype=None, device=None | empty ones zeros
x, /, *, dtype=None, device=None | empty_like ones_like zeros_like
x, /, axis=0 | expand_dims
x, /, axis | squeeze
n_rows, n_cols=None, /, *, k=0, dtype=None, device=None | eye
type, / | finfo iinfo
x, /, *, axis=None | flip
x, /, *, device=None, copy=None | from_dlpack
shape, fill_value, *, dtype=None, device=None | full
x, /, fill_value, *, dtype=None, device=None | full_like
dtype, kind | isdtype
start, stop, /, num, *, dtype=None, device=None, endpoint=True | linspace
*arrays, indexing='xy' | meshgrid
x, source, destination, / | moveaxis
x, /, axes | permute_dims
x, /, *, axis=None, dtype=None, keepdims=False | prod sum
x, repeats, /, *, axis=None | repeat
x, /, shape, *, copy=None | reshape
*arrays_and_dtypes | result_type
x, /, shift, *, axis=None | roll
x1, x2, /, *, side='left', sorter=None | searchsorted
x, /, *, axis=None, correction=0.0, keepdims=False | std var
x, indices, /, *, axis=None | take
x, indices, /, *, axis=-1 | take_along_axis
x1, x2, /, *, axes=2 | tensordot linalg.tensordot
x, repetitions, / | tile
x, /, *, k=0 | tril triu
x, /, *, axis=0 | unstack
x1, x2, /, *, axis=-1 | vecdot linalg.cross linalg.vecdot
condition, x1, x2, / | where
x, /, *, upper=False | linalg.cholesky
x, /, *, offset=0 | linalg.diagonal
x, /, *, keepdims=False, ord='fro' | linalg.matrix_norm
x, n, / | linalg.matrix_power
x, /, *, rtol=None | linalg.matrix_rank linalg.pinv
x, /, *, mode='reduced' | linalg.qr
x, /, *, full_matrices=True | linalg.svd
x, /, *, offset=0, dtype=None | linalg.trace
x, /, *, axis=None, keepdims=False, ord=2 | linalg.vector_norm
x, /, *, n=None, axis=-1, norm='backward' | fft.fft fft.hfft fft.ifft fft.ihfft fft.irfft fft.rfft
n, /, *, d=1.0, dtype=None, device=None | fft.fftfreq fft.rfftfreq
x, /, *, s=None, axes=None, norm='backward' | fft.fftn fft.ifftn fft.irfftn fft.rfftn
x, /, *, axes=None | fft.fftshift fft.ifftshift
"""
EXPECTED = {name: text for line in SIGNATURES.strip().splitlines() for text, names in [line.split(" | ")] for name in names.split()}
INTS = ["int8", "int16", "int32", "int64", "uint8"]
FLOATS = ["float32", "float64"]
COMPLEX = ["complex64", "complex128"]


def found(name: str) -> Any:
    """A function of the namespace."""
    value: Any = xp
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", EXPECTED)
def test_signatures(name: str) -> None:
    empty: dict[str, Any] = {}
    exec(f"def f({EXPECTED[name]}): pass", empty)  # noqa: S102
    ours, standard = [[(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()] for f in (found(name), empty["f"])]
    assert ours == standard and found(name).__doc__


def test_the_namespace_is_complete_and_says_what_it_is() -> None:
    for name in ("e", "inf", "nan", "newaxis", "pi", "bool", *INTS, "uint16", "uint32", "uint64", *FLOATS, *COMPLEX, "linalg", "fft"):
        assert hasattr(xp, name) and name in xp.__all__
    assert {name for name in EXPECTED if "." not in name} <= set(xp.__all__) and xp.__array_api_version__ == "2024.12"
    x = xp.ones(2)
    assert x.__array_namespace__() is xp is x.__array_namespace__(api_version="2022.12") is calque.array_api
    with pytest.raises(ValueError, match=r"expected api_version '2024.12'"):
        x.__array_namespace__(api_version="1999.1")
    info = xp.__array_namespace_info__()
    assert info.default_dtypes() == {"real floating": xp.float32, "complex floating": xp.complex64, "integral": xp.int64, "indexing": xp.int64}
    assert info.capabilities()["boolean indexing"] and info.devices() == [info.default_device()]
    assert set(info.dtypes(kind="integral")) == set(INTS) and set(info.dtypes(kind=("bool", "complex floating"))) == {"bool", *COMPLEX}
    assert xp.isdtype(xp.uint16, "unsigned integer") and not xp.isdtype(xp.bool, "numeric") and xp.isdtype(xp.int8, (xp.int16, "integral"))
    with pytest.raises(ValueError, match="expected a dtype or one of"):
        xp.isdtype(xp.int8, "number")
    assert xp.finfo(xp.complex128).dtype is xp.float64 and xp.iinfo(xp.uint8).max == 255 and xp.iinfo(xp.asarray([1])).dtype is xp.int64


def arrays(dtype: str, *shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    """NumPy arrays of small numbers away from 0."""
    rng = np.random.default_rng(seed)
    made = []
    for shape in shapes:
        values = rng.integers(1, 6, shape) if dtype not in ("bool",) else rng.integers(0, 2, shape)
        if dtype in FLOATS + COMPLEX:
            values = values + rng.uniform(-0.5, 0.5, shape) + (1j * rng.uniform(-1, 1, shape) if dtype in COMPLEX else 0)
        made.append(np.asarray(values, dtype=dtype))
    return made


def same(ours: Any, theirs: Any, name: str = "", loose: bool = False) -> None:
    """Equality of types, shapes and, up to rounding, of values."""
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, name, loose)
        return
    theirs = np.asarray(theirs)
    assert (str(ours.dtype), tuple(ours.shape)) == (f"torch.{theirs.dtype}", theirs.shape), name
    wide = theirs.dtype.itemsize > 4 * (1 + (theirs.dtype.kind == "c"))
    relative, absolute = (3e-4, 1e-5) if loose else (1e-10, 1e-6) if wide else (2e-5, 1e-6)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=relative, atol=absolute, err_msg=name)


def both(name: str, *values: Any, own: Callable[..., Any] | None = None, loose: bool = False, **keywords: Any) -> None:
    """A call here and the same one in NumPy."""
    theirs: Any = np
    for part in name.split("."):
        theirs = getattr(theirs, part)
    given = [xp.asarray(v, copy=True) if isinstance(v, np.ndarray) else v for v in values]
    wishes = {k: xp.asarray(v) if isinstance(v, np.ndarray) else getattr(xp, v.name) if isinstance(v, np.dtype) else v for k, v in keywords.items()}
    same((own or found(name))(*given, **wishes), theirs(*values, **keywords), name, loose)


def each(names: str, dtypes: list[str]) -> dict[str, list[str]]:
    """The types of several functions."""
    return dict.fromkeys(names.split(), dtypes)


UNARY: dict[str, list[str]] = {
    **each("abs negative positive square", INTS + FLOATS + COMPLEX),
    **each("exp expm1 log log10 log1p log2 sin cos tan sinh cosh tanh asinh atan sqrt reciprocal", FLOATS + COMPLEX),
    **each("isfinite isinf isnan", INTS + FLOATS + COMPLEX), **each("real imag conj", COMPLEX),
    **each("ceil floor trunc round", INTS + FLOATS), "sign": INTS + FLOATS + COMPLEX, "signbit": FLOATS,
    "bitwise_invert": [*INTS, "bool"], "logical_not": ["bool"],
}  # fmt: skip
BINARY: dict[str, list[str]] = {
    **each("add subtract multiply equal not_equal", INTS + FLOATS + COMPLEX), "divide": FLOATS + COMPLEX, "pow": INTS + FLOATS,
    **each("floor_divide remainder less less_equal greater greater_equal maximum minimum", INTS + FLOATS),
    **each("atan2 copysign hypot logaddexp nextafter", FLOATS),
    **each("bitwise_and bitwise_or bitwise_xor", [*INTS, "bool"]),
    **each("bitwise_left_shift bitwise_right_shift", ["int32", "int64", "uint8"]),
    **each("logical_and logical_or logical_xor", ["bool"]),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_elementwise_functions_of_one_array(name: str) -> None:
    for dtype in UNARY[name]:
        for shape in ((), (3,), (2, 3), (0, 2)):
            (x,) = arrays(dtype, shape)
            both(name, x / 8 if name in ("asin", "acos") else x)
    if "float64" in UNARY[name]:
        odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, -1.0])
        with np.errstate(all="ignore"):
            both(name, odd)


def test_inverse_functions() -> None:
    for dtype in FLOATS + COMPLEX:
        (x,) = arrays(dtype, (4,))
        for name in ("asin", "acos", "atanh"):
            both(name, x / 8)
        both("acosh", x + 1)


@pytest.mark.parametrize("name", BINARY)
def test_elementwise_functions_of_two_arrays(name: str) -> None:
    for dtype in BINARY[name]:
        for first, second in (((2, 3), (3,)), ((), (2,)), ((2, 1), (1, 3)), ((), ()), ((0, 2), (1, 2))):
            x, y = arrays(dtype, first, second, seed=1)
            both(name, x, np.asarray(y % 4, dtype) if "shift" in name or name == "pow" and dtype in INTS else y)
        if dtype != "bool" and "logical" not in name:
            (x,) = arrays(dtype, (3,))
            number: Any = 2 if dtype in INTS else 1.5
            same(found(name)(xp.asarray(x), number), getattr(np, name)(x, np.asarray(number, dtype)), name)
            same(found(name)(number, xp.asarray(x)), getattr(np, name)(np.asarray(number, dtype), x), name)
    with pytest.raises(TypeError, match="at least one array"):
        found(name)(1, 2)


def test_promotion_counts_zero_dimensional_arrays() -> None:
    for a in INTS + FLOATS + COMPLEX + ["bool"]:
        for b in INTS + FLOATS + COMPLEX + ["bool"]:
            kinds = [np.dtype(t).kind.replace("u", "i") for t in (a, b)]
            if kinds[0] != kinds[1] and not set(kinds) <= {"f", "c"}:
                continue  # the standard does not say
            expected = str(np.result_type(np.dtype(a), np.dtype(b)))
            assert repr(xp.result_type(getattr(xp, a), getattr(xp, b))) == f"torch.{expected}"
            zero, one = xp.zeros((), dtype=getattr(xp, a)), xp.zeros(2, dtype=getattr(xp, b))
            assert repr(xp.where(xp.asarray(True), zero, one).dtype) == f"torch.{expected}"
            assert repr(xp.concat([xp.zeros(1, dtype=getattr(xp, a)), one]).dtype) == f"torch.{expected}"
            assert xp.can_cast(getattr(xp, a), getattr(xp, b)) == (expected == b)
    assert xp.result_type(xp.float32, 1.5) is xp.float32 and xp.result_type(xp.int8, 3) is xp.int8 and xp.result_type(xp.float64, 1j) is xp.complex128


def test_special_values() -> None:
    same(xp.clip(xp.asarray([1.0, 5.0, xp.nan]), 2, xp.asarray([3.0, 4.0, 5.0])), np.array([2, 4, np.nan], np.float32))
    same(xp.clip(xp.asarray([1, 200], dtype=xp.uint8), max=100), np.array([1, 100], np.uint8))
    x = np.array([0.0, 1.0, -1.0, np.inf, 1e-45, np.nan, 0.0, 3.0], np.float32)
    y = np.array([1.0, 2.0, 0.0, 0.0, 0.0, 1.0, -1.0, np.nan], np.float32)
    assert np.array_equal(np.asarray(xp.nextafter(xp.asarray(x), xp.asarray(y))), np.nextafter(x, y), equal_nan=True)
    same(xp.round(xp.asarray([1.5 + 2.5j])), np.round(np.array([1.5 + 2.5j], np.complex64)))
    assert xp.equal(xp.asarray([1, 2]), 2).tolist() == [False, True]


def test_creation() -> None:
    for arguments in ((5,), (2, 5), (2, 9, 3), (5, 0), (5, 0, -2), (0.0, 1.0, 0.25)):
        theirs = np.arange(*arguments)
        same(xp.arange(*arguments), theirs.astype(np.float32) if theirs.dtype.kind == "f" else theirs)
    same(xp.linspace(0, 1, 5, endpoint=False, dtype=xp.float64), np.linspace(0, 1, 5, endpoint=False))
    same(xp.linspace(0, 1j, 3), np.linspace(0, 1j, 3).astype(np.complex64))
    for k in (-1, 0, 2):
        same(xp.eye(3, 4, k=k, dtype=xp.int16), np.eye(3, 4, k, dtype=np.int16))
        (x,) = arrays("int32", (2, 3, 4))
        both("tril", x, k=k)
        both("triu", x, k=k)
    assert xp.full((2,), True).dtype is xp.bool and xp.full((), 3).dtype is xp.int64 and xp.full(2, 1j).dtype is xp.complex64
    assert xp.zeros(3).shape == (3,) and xp.ones((2, 0), dtype=xp.int8).dtype is xp.int8 and xp.empty_like(xp.ones(2)).shape == (2,)
    assert xp.full_like(xp.ones(2), 7).tolist() == [7, 7] and xp.zeros_like(xp.ones(2), dtype=xp.int64).dtype is xp.int64
    same(xp.meshgrid(xp.arange(3), xp.arange(2)), np.meshgrid(np.arange(3), np.arange(2)))
    same(xp.meshgrid(xp.arange(3), xp.arange(2), indexing="ij"), np.meshgrid(np.arange(3), np.arange(2), indexing="ij"))


def test_asarray_and_copies() -> None:
    x = xp.asarray([[1, 2], [3, 4]])
    assert x.dtype is xp.int64 and xp.asarray(x) is x and xp.asarray(x, copy=False) is x and xp.asarray(x, copy=True) is not x
    a = np.arange(3.0)
    assert xp.asarray(a).data_ptr() == a.ctypes.data and xp.asarray(a, copy=True).data_ptr() != a.ctypes.data
    for source, dtype in (([1], None), (x, xp.int8), (a, xp.int8)):
        with pytest.raises(ValueError, match="copy=False"):
            xp.asarray(source, dtype=dtype, copy=False)
    assert xp.astype(x, xp.int64, copy=False) is x and xp.astype(x, xp.int64) is not x and xp.astype(x, xp.float32).dtype is xp.float32
    assert xp.reshape(x, (4,), copy=True).data_ptr() != x.data_ptr() and xp.reshape(x, (4,), copy=False).data_ptr() == x.data_ptr()
    with pytest.raises(ValueError, match="copy=False"):
        xp.reshape(xp.matrix_transpose(x), (4,), copy=False)
    assert xp.from_dlpack(a).data_ptr() == a.ctypes.data


SHAPES: list[tuple[Any, ...]] = [
    ("broadcast_to", (3, 2, 3)), ("expand_dims",), ("expand_dims", -1), ("moveaxis", 0, 1), ("permute_dims", (1, 0)), ("reshape", (3, 2)),
    ("reshape", (-1,)), ("tile", (2,)), ("tile", (2, 1, 3)), ("matrix_transpose",), ("roll", 1), ("roll", -2), ("flip",), ("nonzero",),
    ("unique_values",), ("unique_counts",), ("unique_inverse",), ("unique_all",), ("argsort",), ("sort",), ("diff",), ("repeat", 2),
]  # fmt: skip


@pytest.mark.parametrize("call", SHAPES, ids=str)
def test_manipulation(call: tuple[Any, ...]) -> None:
    for dtype in ("int64", "float32", "uint8"):
        (x,) = arrays(dtype, (2, 3))
        name, *rest = call
        values = [1] if name == "expand_dims" and not rest else rest
        theirs = getattr(np, name)(x, *values) if name != "expand_dims" or rest else np.expand_dims(x, 0)
        if name in ("argsort", "sort"):
            theirs = getattr(np, name)(x, axis=-1, stable=True)
        if name == "unique_values":  # in any order
            theirs = np.sort(theirs)
        same(found(name)(xp.asarray(x), *rest), tuple(theirs) if isinstance(theirs, tuple) else theirs, name)


def test_manipulation_along_axes() -> None:
    x, y = arrays("float64", (2, 3), (2, 3))
    for axis in (0, 1, -1):
        both("concat", [x, y], axis=axis, own=lambda given, axis: xp.concat([xp.asarray(v) for v in given], axis=axis))
        both("stack", [x, y], axis=axis, own=lambda given, axis: xp.stack([xp.asarray(v) for v in given], axis=axis))
        both("flip", x, axis=axis)
        both("roll", x, 1, axis=axis)
        both("repeat", x, 2, axis=axis)
        both("diff", x, axis=axis, n=2)
        both("take", x, np.array([1, 0, -1]), axis=axis)
        both("take_along_axis", x, np.argsort(x, axis=axis), axis=axis)
        same(xp.unstack(xp.asarray(x), axis=axis), [np.take(x, n, axis) for n in range(x.shape[axis])])
        same(xp.sort(xp.asarray(x), axis=axis, descending=True), -np.sort(-x, axis=axis))
    both("concat", [x, y], axis=None, own=lambda given, axis: xp.concat([xp.asarray(v) for v in given], axis=axis))
    both("roll", x, (1, 2), axis=(0, 1))
    both("flip", x, axis=(0, 1))
    both("repeat", x, np.array([2, 1]), axis=0)
    both("diff", x, prepend=y[:, :1], append=y)
    both("squeeze", x.reshape(1, 2, 1, 3), 0)
    both("squeeze", x.reshape(1, 2, 1, 3), (0, 2))
    same(xp.broadcast_arrays(xp.asarray(x), xp.asarray(y[:1])), np.broadcast_arrays(x, y[:1]))
    for side in ("left", "right"):
        both("searchsorted", np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.5, 9.0]), side=side)
    both("searchsorted", np.array([3.0, 1.0, 2.0]), np.array([2.0]), sorter=np.array([1, 2, 0]))
    for call, kind in (
        (lambda: xp.squeeze(xp.ones((2, 3)), 0), ValueError), (lambda: xp.expand_dims(xp.ones(2), 5), IndexError),
        (lambda: xp.nonzero(xp.ones(())), ValueError),
        (lambda: xp.take(xp.ones((2, 2)), xp.asarray([0])), ValueError), (lambda: xp.where(xp.ones(2), 1, xp.ones(2)), TypeError),
        (lambda: xp.sum(xp.ones((2, 2)), axis=(0, 0)), ValueError), (lambda: xp.sum([1]), TypeError), (lambda: xp.mean(xp.asarray([1])), TypeError),
    ):  # fmt: skip
        with pytest.raises(kind):  # type: ignore[arg-type]
            call()
    assert xp.unique_values(xp.asarray([xp.nan, 1.0, xp.nan])).shape == (3,) and xp.unique_all(xp.zeros(0)).counts.shape == (0,)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "std", "var", "all", "any", "count_nonzero"])
def test_reductions(name: str) -> None:
    kinds = FLOATS if name in ("mean", "std", "var") else ["int8", "int64", *FLOATS]
    kinds = ["bool", "int8", "float32"] if name in ("all", "any", "count_nonzero") else kinds
    for dtype in kinds:
        for shape in ((2, 3, 4), (3,), ()):
            (x,) = arrays(dtype, shape)
            for axis in (None, *([0, -1] if shape else []), *([(0, 2), (1,)] if len(shape) == 3 else []), ()):
                for keepdims in (False, True):
                    theirs = np.asarray(getattr(np, name)(x, axis=axis, keepdims=keepdims))
                    same(found(name)(xp.asarray(x), axis=axis, keepdims=keepdims), theirs, name)
    if name in ("std", "var"):
        (x,) = arrays("float64", (3, 4))
        both(name, x, axis=1, correction=1)
    if name in ("sum", "prod"):
        both(name, arrays("int8", (3,))[0], dtype=np.dtype("float64"))
        assert found(name)(xp.asarray([1, 2], dtype=xp.uint8)).dtype is xp.int64  # the standard wants uint64


def test_positions_and_running_sums() -> None:
    (x,) = arrays("float64", (3, 4))
    for name in ("argmax", "argmin"):
        for keywords in ({}, {"axis": 0}, {"axis": -1, "keepdims": True}, {"keepdims": True}):
            both(name, x, **keywords)
    for dtype in ("int32", "float32"):
        (x,) = arrays(dtype, (3, 4))
        for axis in (0, -1):
            same(xp.cumulative_sum(xp.asarray(x), axis=axis), np.cumsum(x, axis))
            same(xp.cumulative_prod(xp.asarray(x), axis=axis, dtype=xp.float64), np.cumprod(x, axis, dtype=np.float64))
    assert xp.cumulative_sum(xp.asarray([1, 2, 3]), include_initial=True).tolist() == [0, 1, 3, 6]
    assert xp.cumulative_prod(xp.asarray([1.0, 2.0]), include_initial=True).tolist() == [1, 1, 2]


def test_linear_algebra() -> None:
    a, b = arrays("float64", (2, 3, 3), (2, 3, 3))
    spd = a @ np.swapaxes(a, -1, -2) + 3 * np.eye(3)
    names = "det inv svdvals slogdet eigvalsh cholesky matrix_norm matrix_rank pinv matrix_transpose diagonal trace"
    for name in names.split():
        both(f"linalg.{name}", spd, loose=True)
    both("linalg.cholesky", spd, upper=True, loose=True)
    for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
        both("linalg.matrix_norm", a, ord=order, keepdims=True, loose=True)
    for order in (0, 1, 2, 3, np.inf, -np.inf):
        both("linalg.vector_norm", a, ord=order, axis=(0, 2), loose=True)
        both("linalg.vector_norm", a, ord=order, keepdims=True, loose=True)
    for power in (0, 3, -1):
        both("linalg.matrix_power", spd, power, loose=True)
    both("linalg.solve", spd, b, loose=True)
    both("linalg.solve", spd[0], b[0, 0], loose=True)
    both("linalg.cross", a, b)
    both("linalg.outer", a[0, 0], b[0, 0])
    both("linalg.trace", a, offset=1)
    both("linalg.diagonal", a, offset=-1)
    for u, s, vh in (xp.linalg.svd(xp.asarray(a)), xp.linalg.svd(xp.asarray(a), full_matrices=False)):
        same((u * s[..., None, :]) @ vh, a)
    q, r = xp.linalg.qr(xp.asarray(a))
    same(q @ r, a)
    values, vectors = xp.linalg.eigh(xp.asarray(spd))
    same(xp.asarray(spd) @ vectors, np.asarray(vectors * values[:, None, :]))
    both("matmul", a, b)
    both("tensordot", a, b[0], axes=1)
    both("tensordot", a, b, axes=((1, 2), (2, 1)))
    z, w = arrays("complex128", (2, 3), (3,))
    both("vecdot", z, w)
    assert xp.vecdot(xp.asarray([1, 2], dtype=xp.int8), xp.asarray([3, 4], dtype=xp.int8)).dtype is xp.int8
    x, v, zero = xp.ones((2, 2)), xp.ones(2), xp.ones(())
    for call in (lambda: xp.matmul(zero, v), lambda: xp.linalg.outer(x, v), lambda: xp.linalg.qr(x, mode="raw")):
        with pytest.raises(ValueError):
            call()


def test_fourier_transforms() -> None:
    for dtype in COMPLEX:
        (z,) = arrays(dtype, (4, 5))
        for name in ("fft", "ifft", "hfft"):
            for keywords in ({}, {"n": 7, "axis": 0, "norm": "ortho"}, {"n": 3, "norm": "forward"}):
                both(f"fft.{name}", z, loose=True, **keywords)
        for name in ("fftn", "ifftn", "irfftn"):
            both(f"fft.{name}", z, loose=True)
        both("fft.irfft", z, loose=True)
    for dtype in FLOATS:
        (x,) = arrays(dtype, (4, 6))
        for name in ("rfft", "ihfft", "rfftn"):
            both(f"fft.{name}", x, loose=True)
        both("fft.fftshift", x)
        both("fft.ifftshift", x, axes=(0,))
    same(xp.fft.fftfreq(5, d=0.5, dtype=xp.float64), np.fft.fftfreq(5, 0.5))
    same(xp.fft.rfftfreq(6, dtype=xp.float64), np.fft.rfftfreq(6))


def test_methods_of_arrays() -> None:
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert x.mT.tolist() == x.T.tolist() == [[1, 3], [2, 4]] and x.ndim == 2 and x.shape == (2, 2) and x.device == "cpu"
    assert x.to_device("cpu") is x and (x @ x).tolist() == xp.matmul(x, x).tolist() and x.__dlpack_device__() == (1, 0)
