"""`torch.testing`: comparing tensors in tests, and making random ones.

>>> import calque
>>> calque.testing.assert_close(calque.tensor([1.0, 2.0]), calque.tensor([1.0, 2.0000001]))
>>> calque.testing.make_tensor((2, 3), dtype=calque.int64, device="cpu", low=0, high=5).shape
torch.Size([2, 3])
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.device import Device
from calque.base.errors import ArgumentError
from calque.base.text import type_name
from calque.functional.blame import publish as _publish
from calque.functional.common import is_tensor
from calque.tensor import Tensor

__all__ = ["assert_allclose", "assert_close", "make_tensor"]

# dtype -> (relative, absolute) tolerance. Source: PyTorch documentation, `torch.testing.assert_close`.
TOLERANCES = {"float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
              "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7)}  # fmt: skip


def assert_close(
    actual: Any, expected: Any, *, allow_subclasses: bool = True, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False,
    check_device: bool = True, check_dtype: bool = True, check_layout: bool = True, check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:  # fmt: skip
    """Raise `AssertionError` unless two tensors, numbers or nested containers of them are close: `|a - e| <= atol + rtol * |e|`.

    rtol, atol: both or none; by default they follow from the dtypes (float32: 1.3e-6, 1e-5; integers: 0, 0). equal_nan: NaNs are equal.
    check_device, check_dtype, check_stride: whether these have to be the same. msg: a text, or a function of the text, instead of it.

    >>> import calque
    >>> try:
    ...     calque.testing.assert_close(calque.tensor([1.0, 2.0]), calque.tensor([1.0, 2.5]))
    ... except AssertionError as error:
    ...     print(str(error).splitlines()[0])
    Tensor-likes are not close!
    """
    if (rtol is None) != (atol is None):
        raise ValueError(f"[assert_close] expected rtol and atol, or neither, got rtol={rtol} and atol={atol}; pass both")
    options = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan, "device": check_device, "dtype": check_dtype, "stride": check_stride}
    found = _difference(actual, expected, options, "")
    if found is not None:
        raise AssertionError(msg(found) if callable(msg) else msg if msg is not None else found)


def _difference(actual: Any, expected: Any, options: dict[str, Any], place: str) -> str | None:
    """What makes two values different, or None."""
    for kind, compare in ((Mapping, _mappings), (Sequence, _sequences)):
        if isinstance(expected, kind) and isinstance(actual, kind) and not isinstance(expected, str) and not is_tensor(expected):
            return compare(actual, expected, options, place)
    where = f"\n\nThe failure occurred for item {place}" if place else ""
    if actual is None or expected is None:
        return None if actual is expected else f"None mismatch: {actual} is not {expected}{where}"
    plain = isinstance(actual, Number) and isinstance(expected, Number)
    if isinstance(actual, bool | str) and isinstance(expected, bool | str):
        return None if actual == expected else f"{'Booleans' if isinstance(actual, bool) else 'Objects'} mismatch: {actual} is not {expected}{where}"
    found = _numbers(actual, expected, options) if plain else _tensors(_tensor_like(actual), _tensor_like(expected), options)
    return found + where if found is not None else None


def _mappings(actual: Any, expected: Any, options: dict[str, Any], place: str) -> str | None:
    if set(actual) != set(expected):
        missing, more = sorted(set(expected) - set(actual), key=str), sorted(set(actual) - set(expected), key=str)
        return f"The keys of the mappings do not match:\nMissing keys in the actual mapping: {missing}\nAdditional keys in the actual mapping: {more}"
    return next((d for key in expected if (d := _difference(actual[key], expected[key], options, f"{place}[{key!r}]")) is not None), None)


def _sequences(actual: Any, expected: Any, options: dict[str, Any], place: str) -> str | None:
    if len(actual) != len(expected):
        return f"The length of the sequences mismatch: {len(actual)} != {len(expected)}"
    return next((d for k in range(len(expected)) if (d := _difference(actual[k], expected[k], options, f"{place}[{k}]")) is not None), None)


def _tensor_like(value: Any) -> Tensor:
    if is_tensor(value):
        return value  # type: ignore[no-any-return]
    try:
        return T.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"[assert_close] expected tensors, numbers or containers of them, got {type_name(value)}; convert it") from None


def _tolerances(options: dict[str, Any], *types: dt.DType) -> tuple[float, float]:
    if options["rtol"] is not None:
        return options["rtol"], options["atol"]
    found = [TOLERANCES.get(dtype.name, (0.0, 0.0)) for dtype in types]
    return max(r for r, _ in found), max(a for _, a in found)


def _numbers(actual: Any, expected: Any, options: dict[str, Any]) -> str | None:
    if options["dtype"] and type(actual) is not type(expected):
        return f"The types do not match: {type(actual).__name__} is not {type(expected).__name__}."
    rtol, atol = _tolerances(options, *(dt.float64 if isinstance(v, float) else dt.int64 for v in (actual, expected)))
    if actual == expected or (options["equal_nan"] and actual != actual and expected != expected):
        return None
    difference = abs(actual - expected)
    if math.isfinite(difference) and difference <= atol + rtol * abs(expected):
        return None
    relative = difference / abs(expected) if expected else math.inf
    return (f"Scalars are not close!\n\nExpected {expected} but got {actual}.\nAbsolute difference: {difference} (up to {atol} allowed)\n"
            f"Relative difference: {relative} (up to {rtol} allowed)")  # fmt: skip


def _tensors(actual: Tensor, expected: Tensor, options: dict[str, Any]) -> str | None:
    if actual.shape != expected.shape:
        return f"The values for attribute 'shape' do not match: {actual.shape} != {expected.shape}."
    for name in ("device", "dtype"):
        if options[name] and getattr(actual, name) != getattr(expected, name):
            return f"The values for attribute {name!r} do not match: {getattr(actual, name)} != {getattr(expected, name)}."
    if options["stride"] and actual.stride() != expected.stride():
        return f"The values for attribute 'stride()' do not match: {actual.stride()} != {expected.stride()}."
    if str(actual.device) == "meta":
        return None
    rtol, atol = _tolerances(options, actual.dtype, expected.dtype)
    return _values(_wide(actual), _wide(expected), rtol, atol, options["equal_nan"])


def _wide(x: Tensor) -> Any:
    """The values in NumPy, in a type that holds them and their differences."""
    x = x.detach().cpu()
    if x.dtype.is_complex:
        return x.numpy().astype(np.complex128)
    return x.double().numpy() if x.dtype.is_floating_point else x.long().numpy()


def _values(actual: Any, expected: Any, rtol: float, atol: float, equal_nan: bool) -> str | None:
    kind = np.result_type(actual, expected)
    if kind.kind in "iu":
        exact = actual.astype(object) if actual.size and max(abs(int(actual.min())), abs(int(actual.max()))) > 1 << 62 else actual
        difference, limit = np.abs(exact - expected), atol + rtol * np.abs(expected.astype(np.float64))
        wrong = (actual != expected) & ~(difference <= limit)
    else:
        wrong = ~np.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.abs(actual - expected)
    count = int(wrong.sum())
    if not count:
        return None
    difference = np.where(wrong, difference.astype(np.float64), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(wrong, difference / np.abs(expected.astype(kind)), 0.0)
    shown_at = [tuple(int(i) for i in np.unravel_index(int(np.nanargmax(np.nan_to_num(d, nan=np.inf))), d.shape)) for d in (difference, relative)]
    head = "Scalars are not close!" if not wrong.ndim else "Tensor-likes are not close!" if rtol or atol else "Tensor-likes are not equal!"
    places = [f" at index {place}" if place else "" for place in shown_at]
    return (
        f"{head}\n\nMismatched elements: {count} / {wrong.size} ({count / wrong.size:.1%})\n"
        f"Greatest absolute difference: {difference[shown_at[0]]}{places[0]} (up to {atol} allowed)\n"
        f"Greatest relative difference: {relative[shown_at[1]]}{places[1]} (up to {rtol} allowed)"
    )


def assert_allclose(actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = True, msg: str = "") -> None:
    """The older form of `assert_close`, which compares neither dtypes nor devices."""
    assert_close(
        _tensor_like(actual), _tensor_like(expected), rtol=rtol, atol=atol, equal_nan=equal_nan, check_device=False, check_dtype=False,
        msg=msg or None,
    )  # fmt: skip


def make_tensor(
    *shape: Any, dtype: dt.DType, device: Device | str, low: float | None = None, high: float | None = None, requires_grad: bool = False,
    noncontiguous: bool = False, exclude_zero: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Random values in [low, high): by default -9 to 9 for floating types, -9 to 10 for signed integers, 0 to 10 for uint8, both values of bool.

    noncontiguous: with a gap between neighbours in memory. exclude_zero: zeros become the smallest positive value of the type.
    Raises `ValueError` if the interval is empty, and for requires_grad of other than floating and complex types.
    """
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    kind = dtype.is_floating_point or dtype.is_complex
    if requires_grad and not kind:
        raise ValueError(f"[make_tensor] expected a floating or complex dtype for requires_grad=True, got {dtype}; leave it out")
    if memory_format is not None and noncontiguous:
        raise ValueError("[make_tensor] expected memory_format or noncontiguous, got both; choose one")
    ends = (0, 2) if dtype is dt.bool_ else (-9, 9) if kind else (0, 10) if not dtype.is_signed else (-9, 10)
    first, last = ends[0] if low is None else low, ends[1] if high is None else high
    if first != first or last != last:
        raise ValueError(f"[make_tensor] `low` and `high` cannot be NaN, got low={low} and high={high}; give numbers")
    if first >= last and not (first == last and kind):
        raise ValueError(f"[make_tensor] `low` must be less than `high`, got {first} >= {last}; give an interval that holds a value")
    whole = (*sizes[:-1], 2 * sizes[-1]) if noncontiguous and sizes and math.prod(sizes) > 1 else sizes
    made = _random(whole, dtype, device, first, last)
    if exclude_zero:
        least = dt.FInfo(dtype).tiny if dtype.is_floating_point else 1
        made = T.where(made == 0, T.full_like(made, least), made)
    if whole is not sizes:
        made = made[..., ::2]
    if memory_format is not None:
        made = made.clone(memory_format=memory_format)
    return made.requires_grad_(requires_grad)


def _random(shape: Any, dtype: dt.DType, device: Any, low: float, high: float) -> Tensor:
    if dtype.is_complex:
        part = dt.float64 if dtype.itemsize == 16 else dt.float32
        pair = T.rand((*shape, 2), dtype=part, device=device) * (high - low) + low
        return pair.view(dtype).squeeze(-1)
    if dtype.is_floating_point:
        limit = dt.FInfo(dtype)
        first, last = max(low, limit.min), min(high, limit.max)
        values = T.rand(shape, dtype=dt.float64 if dtype is dt.float64 else dt.float32, device=device) * (last - first) + first
        return values.clamp(first, last).to(dtype)
    if dtype is dt.bool_:
        return T.randint(0, 2, shape, device=device).to(dtype)
    info = dt.IInfo(dtype)
    first, last = max(math.ceil(low), info.min), min(math.ceil(high), info.max)
    if first >= last:
        raise ArgumentError(f"[make_tensor] expected an interval with an integer of {dtype}, got {low} to {high}; give a wider one")
    return T.randint(first, last, shape, dtype=dtype, device=device)


_publish(sys.modules[__name__])
