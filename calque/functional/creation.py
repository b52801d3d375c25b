"""Tensors made from nothing or from Python numbers, lists and NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.asked import ordinary, plainly
from calque.base.errors import ArgumentError, DTypeError, ShapeError, how_to_pass
from calque.base.layout import preserve_format
from calque.base.shapes import Shape, ordered_strides, whole
from calque.base.text import shown, type_name
from calque.functional.common import cast, is_number, is_scalar, is_tensor, method, number, prim
from calque.functional.declared import public
from calque.functional.formats import clone, format_of, like, reordered
from calque.functional.literals import refuse, simple_array, to_array
from calque.functional.memory import share_array
from calque.functional.options import dtype_for, fill_number, filled, marked, resolve_device, resolve_dtype, size_of, written
from calque.functional.placing import placed, placed_like, placed_like_or_third
from calque.functional.views import detach, expand, reshape
from calque.ir.symint import any_free
from calque.ops.opdef import no_complex
from calque.record.live import LiveFloat
from calque.record.recorder import local
from calque.run.memory import out_of_memory
from calque.tensor import Tensor, sub_layout, upload_known, wrap

# ---------------------------------------------------------------------------------------------------------- from values


@public(method=False)
@placed_like
def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False, copy: bool = True
) -> Tensor:
    """A new leaf with a copy of numbers, nested lists, a NumPy array or another tensor. Integers give int64, floats the
    default dtype.

    >>> import calque
    >>> calque.tensor([[3, 5], [10, 5]])
    tensor([[ 3,  5],
            [10,  5]])
    """
    try:
        if local.state.trace.transforms and _is_free(data):
            return marked(_of_free(data, dtype), requires_grad, "tensor")
        if device is None and (dtype is None or dtype.__class__ is dt.DType) and (found := simple_array(data, dtype)) is not None:
            return marked(_uploaded(*found, data), requires_grad, "tensor")
        return _looked_at(data, dtype, device, requires_grad)
    except MemoryError as error:
        raise out_of_memory(error, "tensor", f"a tensor of {shown(data)}") from None


def _is_free(data: Any) -> bool:
    """Whether this is a free size, or a row of numbers of which one is."""
    return any_free(data) or (data.__class__ in (list, tuple) and any_free(*data) and all(isinstance(x, (int, float)) for x in data))


def _of_free(data: Any, dtype: Any) -> Tensor:
    """The tensor of what `_is_free`: an operation, as a table would hold for one size alone."""
    row = data if data.__class__ in (list, tuple) else (data,)
    wanted = resolve_dtype(dtype, dt.get_default_dtype() if any(isinstance(x, float) for x in row) else dt.int64, "tensor")
    parts = [prim("full", (x, wanted), (1,)) for x in row]
    return prim("cat", *parts, 0) if row is data else reshape(parts[0], ())


def _looked_at(data: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    """`tensor`, of anything."""
    resolve_device(device, "tensor")
    if is_tensor(data):
        data = ordinary(data)
        result = detach(cast(detach(data), resolve_dtype(dtype, data._layout.dtype, "tensor")))
        return marked(clone(result), requires_grad, "tensor")
    if data.__class__ is LiveFloat and dtype is None:  # a replay has another number
        return marked(filled((), data, dt.get_default_dtype(), "tensor"), requires_grad, "tensor")
    with plainly():
        array, inferred = to_array(data, dtype if dtype.__class__ is dt.DType else None)
    wanted = resolve_dtype(dtype, inferred, "tensor")
    return marked(_uploaded(_converted(array, wanted, data), wanted, data), requires_grad, "tensor")


def _uploaded(values: np.ndarray[Any, Any], dtype: dt.DType, data: Any) -> Tensor:
    """`upload_known`, in the order in which an array (`data`) lies in memory."""
    if values.ndim < 2 or values.flags.c_contiguous or values.__class__ is not np.ndarray:
        return upload_known(values, dtype, data)
    source = data if data.__class__ is np.ndarray else values
    strides = ordered_strides(values.shape, tuple(map(abs, source.strides)))
    made = upload_known(values.transpose(sorted(range(values.ndim), key=lambda d: (-strides[d], d))), dtype, data)
    found: Tensor = wrap(made._storage, sub_layout(made._layout, values.shape, strides, 0))
    return found


def _converted(array: np.ndarray[Any, Any], dtype: dt.DType, data: Any) -> np.ndarray[Any, Any]:
    """Values ready to be stored as `dtype`; Python numbers that do not fit are refused, those of arrays wrap around."""
    from_python = not isinstance(data, (np.ndarray, np.generic))
    if from_python and dtype.category == 1 and array.size and array.dtype.kind in "iuf" and array.dtype != dtype.np:
        for extreme in (array.min(), array.max()):
            fill_number(extreme, dtype, "tensor")
    if dtype.category == 0:
        return array != 0
    if array.dtype.kind == "c" and not dtype.is_complex:
        if from_python and array.imag.any():
            raise ArgumentError(f"[tensor] value cannot be converted to type {dtype} without overflow: expected real numbers, got {shown(data)}")
        array = array.real
    with np.errstate(all="ignore"):
        return dtype.encode(array)


@public(method=False)
@placed
def scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A 0-d tensor of a number; of the default dtype unless one is given."""
    resolve_device(device, "scalar_tensor")
    return marked(
        filled((), s, resolve_dtype(dtype, dt.get_default_dtype(), "scalar_tensor"), "scalar_tensor"),
        requires_grad,
        "scalar_tensor",
    )


@public(method=False)
def from_numpy(ndarray: np.ndarray[Any, Any]) -> Tensor:
    """A tensor that shares the array's memory. Arrays that are read-only, have negative strides or foreign byte order are copied.

    >>> import calque, numpy as np
    >>> a = np.zeros(3)
    >>> t = calque.from_numpy(a)
    >>> a[1] = 5.0
    >>> t
    tensor([0., 5., 0.], dtype=torch.float64)
    """
    if not isinstance(ndarray, np.ndarray):
        raise DTypeError(
            f"[from_numpy] expected np.ndarray (got {type_name(ndarray)}); "
            + (how_to_pass(ndarray) if hasattr(ndarray, "__dlpack__") or hasattr(ndarray, "to_numpy") else "use calque.tensor(...) for other data")
        )
    dtype = dt.from_numpy_dtype(ndarray.dtype)
    if dtype is None:
        if ndarray.dtype.kind in "OSU":
            raise refuse(ndarray, ndarray)
        names = ", ".join(d.name for d in dt.EVERY)
        raise DTypeError(f"[from_numpy] can't convert np.ndarray of type {ndarray.dtype}; the supported types are {names}")
    item, flags = dtype.itemsize, ndarray.flags
    aligned = flags.aligned and (ndarray.dtype.alignment == item or ndarray.ctypes.data % item == 0)
    shareable = flags.writeable and ndarray.dtype.isnative and aligned
    if not shareable or any(s < 0 or s % item for s in ndarray.strides):
        return _uploaded(ndarray, dtype, ())
    return share_array(ndarray, dtype)


@public(method=False)
@placed_like_or_third
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """The data as a tensor, sharing memory where dtype and device allow it."""
    resolve_device(device, "as_tensor")
    if is_tensor(data):
        return cast(data, resolve_dtype(dtype, data._layout.dtype, "as_tensor"))
    if not isinstance(data, (np.ndarray, np.generic, list, tuple, int, float, complex)) and hasattr(data, "__array__"):
        data = np.asarray(data)
    if isinstance(data, np.ndarray):
        shared = from_numpy(data)
        return cast(shared, resolve_dtype(dtype, shared._layout.dtype, "as_tensor"))
    return tensor(data, dtype=dtype)


@public(method=False)
def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A 1-d tensor over the bytes of an object with the buffer interface; shares memory if the buffer is writable."""
    wanted = resolve_dtype(dtype, dt.float32, "frombuffer")
    length = memoryview(buffer).nbytes
    if not length or not count:
        raise ArgumentError(f"[frombuffer] both buffer length ({length}) and count ({count}) must not be 0: expected bytes; use empty(0)")
    if not 0 <= offset < length:
        raise ArgumentError(f"[frombuffer] offset ({offset} bytes) must be non-negative and no greater than buffer length ({length} bytes) minus 1")
    behind = length - offset
    if count * wanted.itemsize > behind:
        raise ArgumentError(f"[frombuffer] expected at least {count} elements of {wanted} behind the offset {offset}, got {behind} bytes")
    if count < 0 and behind % wanted.itemsize:
        raise ArgumentError(
            f"[frombuffer] expected a number of bytes that {wanted.itemsize}, the size of an element of {wanted}, divides, got {behind} behind the "
            f"offset {offset}; pass count"
        )
    return marked(from_numpy(np.frombuffer(buffer, wanted.np, count, offset)), requires_grad, "frombuffer")


# ------------------------------------------------------------------------------------------------------------- constant


def _constant(op: str, value: Any) -> Any:
    def create(
        *sizes: Any, size: Any = None, out: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False,
        memory_format: Any = None,
    ) -> Tensor:  # fmt: skip
        shape = size_of(op, sizes, size)
        if device is not None:
            resolve_device(device, op)
        result = prim("full", (value, _dtype(dtype if out is None else dtype_for(out, dtype), op)), shape)
        if memory_format is not None:
            if op != "empty":
                raise TypeError(f"[{op}] got an unexpected keyword argument 'memory_format'; use .to(memory_format=...)")
            wanted = format_of(op, memory_format, len(shape))
            if wanted is preserve_format:
                raise ArgumentError("[empty] unsupported memory format Preserve: expected an order; there is no tensor whose order could be kept")
            result = result if wanted is None else reordered(result, wanted.strides(shape))
        if out is not None:
            return written(op, result, out)
        return marked(result, requires_grad, op) if requires_grad else result

    create.__name__ = create.__qualname__ = op
    return public(method=False)(placed(create))


def _dtype(dtype: Any, op: str) -> dt.DType:
    return dtype if dtype.__class__ is dt.DType else resolve_dtype(dtype, dt.get_default_dtype(), op)


zeros = _constant("zeros", 0.0)
zeros.__doc__ = """A tensor of zeros; sizes as ints, a tuple, a list or `size=`.

    >>> import calque
    >>> calque.zeros(2, 3, dtype=calque.int64)
    tensor([[0, 0, 0],
            [0, 0, 0]])
    """
ones = _constant("ones", 1.0)
ones.__doc__ = "A tensor of ones; sizes as ints, a tuple, a list or `size=`."
empty = _constant("empty", 0.0)
empty.__doc__ = "A tensor whose values do not matter (zeros: the result of a program never depends on old memory)."


@public(method=False, out=True)
@placed
def full(
    size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of one value; its dtype follows the value unless given.

    >>> import calque
    >>> calque.full((2,), 7)
    tensor([7, 7])
    """
    resolve_device(device, "full")
    if not is_tensor(fill_value) and not is_scalar(fill_value):
        raise DTypeError(f"[full] expected fill_value as a number, got {type_name(fill_value)}; use calque.tensor(...) for other data")
    if is_tensor(fill_value):
        if fill_value._requires_grad:
            raise DTypeError("[full] expected fill_value as a number, got a Tensor that requires a gradient, which would stop here; use expand()")
        inferred = (dt.bool_, dt.int64, dt.get_default_dtype(), dt.default_complex())[fill_value._layout.dtype.category]
    else:
        inferred = dt.of_scalar(number(fill_value))
    shape = size_of("full", (size,))
    return marked(filled(shape, fill_value, resolve_dtype(dtype, inferred, "full"), "full"), requires_grad, "full")


def _like(op: str, input: Tensor, value: Any, dtype: Any, device: Any, requires_grad: bool, memory_format: Any) -> Tensor:
    """One value in the shape of `input`; the public function around it has chosen the place."""
    resolve_device(device, op)
    made = filled(tuple(input._layout.shape), value, resolve_dtype(dtype, input._layout.dtype, op), op)
    return marked(like(op, made, input, memory_format), requires_grad, op)


@public(method=False, out=True)
@placed_like
def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, memory_format: Any = None
) -> Tensor:
    """`full` with the shape and dtype of `input`."""
    return _like("full_like", input, fill_value, dtype, device, requires_grad, memory_format)


@public(method=False, out=True)
@placed_like
def zeros_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, memory_format: Any = None
) -> Tensor:
    """Zeros with the shape and dtype of `input`."""
    return _like("zeros_like", input, 0, dtype, device, requires_grad, memory_format)


@public(method=False, out=True)
@placed_like
def ones_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, memory_format: Any = None
) -> Tensor:
    """Ones with the shape and dtype of `input`."""
    return _like("ones_like", input, 1, dtype, device, requires_grad, memory_format)


@public(method=False, out=True)
@placed_like
def empty_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, memory_format: Any = None
) -> Tensor:
    """A tensor of the shape and dtype of `input` whose values do not matter."""
    return _like("empty_like", input, 0, dtype, device, requires_grad, memory_format)


@method("new_full")
@placed_like
def new_full(
    input: Tensor,
    size: Sequence[int],
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`full` with the dtype of `input`."""
    wanted = resolve_dtype(dtype, input._layout.dtype, "new_full")
    return marked(filled(size_of("new_full", (size,)), fill_value, wanted, "new_full"), requires_grad, "new_full")


def _new(op: str, value: int) -> None:
    @placed_like
    def create(
        input: Tensor, *sizes: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        shape = size_of(op, sizes, size)
        wanted = resolve_dtype(dtype, input._layout.dtype, op)
        return marked(filled(shape, value, wanted, op), requires_grad, op)

    create.__name__ = op
    create.__doc__ = f"A tensor with the dtype of `input`, filled with {value}."
    method(op)(create)


_new("new_zeros", 0)
_new("new_ones", 1)
_new("new_empty", 0)


@method("new_tensor")
@placed_like
def new_tensor(
    input: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`tensor(data)` with the dtype of `input`."""
    return tensor(data, dtype=resolve_dtype(dtype, input._layout.dtype, "new_tensor"), device=device, requires_grad=requires_grad)


# ------------------------------------------------------------------------------------------------------------ sequences


def _plain_number(op: str, name: str, value: Any) -> Any:
    value = value.item() if is_tensor(value) else value
    if not is_number(value):
        raise TypeError(f"[{op}] expected a number for {name}, got {type_name(value)}")
    return number(value)


@public(method=False)
@placed
def arange(
    start: Any = None,
    end: Any = None,
    step: Any = 1,
    *,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... below end: int64 if all three are integers, else the default dtype.

    >>> import calque
    >>> calque.arange(1, 2.5, 0.5)
    tensor([1.0000, 1.5000, 2.0000])
    """
    resolve_device(device, "arange")
    if start is None or end is None:
        start, end = 0, start if end is None else end
    first, last, stride = (_plain_number("arange", n, v) for n, v in (("start", start), ("end", end), ("step", step)))
    whole = not any(isinstance(v, float) for v in (first, last, stride))
    wanted = resolve_dtype(dtype_for(out, dtype), dt.int64 if whole else dt.get_default_dtype(), "arange")
    if wanted.is_complex:
        raise no_complex("arange", [wanted])
    if stride == 0 or not all(v.__class__ is int or math.isfinite(v) for v in (first, last, stride)):
        raise ArgumentError(f"[arange] step must be nonzero and all bounds finite, got start {first}, end {last}, step {stride}")
    if (last - first) * stride < 0:
        raise ArgumentError(
            f"[arange] upper bound and lower bound inconsistent with step sign: start {first}, end {last}, step {stride}"
        )
    if wanted.category == 1 and not whole:
        first, last, stride, whole = int(first), int(last), int(stride), True
    count = -((first - last) // stride) if whole else math.ceil((last - first) / stride)
    kind = dt.int64 if whole else dt.float64
    result = prim("iota", (count,), kind)
    if stride != 1:
        result = prim("mul", result, (stride, kind))
    if first != 0:
        result = prim("add", result, (first, kind))
    result = cast(result, wanted)
    if out is not None and out._layout.numel == count:  # its shape stays
        result = reshape(result, tuple(out._layout.shape))
    return marked(result, requires_grad, "arange") if out is None else written("arange", result, out)


@public(method=False, out="flat")
@placed
def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` values from start to end, both included: () -> (steps,)."""
    resolve_device(device, "linspace")
    first, last = _end("linspace", "start", start), _end("linspace", "end", end)
    wanted = resolve_dtype(dtype, _of_ends(first, last), "linspace")
    if any_free(steps):
        return marked(_spaced_freely(first, last, steps, wanted), requires_grad, "linspace")
    return marked(upload_known(_spaced("linspace", first, last, steps, wanted), wanted, (first, last)), requires_grad, "linspace")


def _end(op: str, name: str, value: Any) -> Any:
    """A number, which may be complex."""
    value = value.item() if is_tensor(value) else value
    return number(value) if is_scalar(value) else _plain_number(op, name, value)


def _of_ends(first: Any, last: Any) -> dt.DType:
    return dt.default_complex() if isinstance(first, complex) or isinstance(last, complex) else dt.get_default_dtype()


def _spaced(op: str, first: Any, last: Any, steps: int, dtype: dt.DType) -> np.ndarray[Any, Any]:
    """Values computed from the nearer end, so that the sequence is symmetric and ends exactly."""
    steps = whole(op, "steps", steps)
    if steps < 0:
        raise ArgumentError(f"[{op}] number of steps must be non-negative, got {steps}")
    if steps == 1:
        return np.array([first]).astype(dtype.np)
    kind: Any = np.float32 if dtype is dt.float32 else dtype.np.type if dtype.is_complex else np.float64
    i: Any = np.arange(steps).astype(kind)
    stride = (kind(last) - kind(first)) / kind(max(steps - 1, 1))
    low, high = kind(first) + stride * i, kind(last) - stride * (kind(steps - 1) - i)
    return np.where(i < steps // 2, low, high).astype(dtype.np)


def _spaced_freely(first: Any, last: Any, steps: int, wanted: dt.DType) -> Tensor:
    """The same for a free number of values, of which there are two or more."""
    kind = wanted if wanted is dt.float32 or wanted.is_complex else dt.float64
    if steps < 2:
        return cast(prim("full", (first, kind), (steps,)), wanted)
    i = prim("iota", (steps,), dt.int64)
    stride = prim("div", (last - first, kind), prim("full", (steps - 1, kind), ()))
    low = prim("add", (first, kind), prim("mul", stride, cast(i, kind)))
    high = prim("sub", (last, kind), prim("mul", stride, cast(steps - 1 - i, kind)))  # type: ignore[operator]
    return cast(prim("where", i < steps // 2, low, high), wanted)  # type: ignore[operator]


@public(method=False, out="flat")
@placed
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """base ** linspace(start, end, steps)."""
    resolve_device(device, "logspace")
    first, last = _end("logspace", "start", start), _end("logspace", "end", end)
    wanted = resolve_dtype(dtype, _of_ends(first, last), "logspace")
    values = np.power(float(base), _spaced("logspace", first, last, steps, dt.complex128 if wanted.is_complex else dt.float64))
    return marked(upload_known(values.astype(wanted.np), wanted, (first, last, base)), requires_grad, "logspace")


@public(method=False, out=True)
@placed
def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The identity matrix: (n, m), square unless m is given.

    >>> import calque
    >>> calque.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    resolve_device(device, "eye")
    rows, columns = size_of("eye", (n, n if m is None else m))
    wanted = resolve_dtype(dtype, dt.get_default_dtype(), "eye")
    same = prim("eq", prim("iota", (rows, 1), dt.int64), prim("iota", (1, columns), dt.int64))
    return marked(cast(same, wanted), requires_grad, "eye")


@public(method=False)
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinate grids of 1-d tensors: (A,), (B,) -> two of (A, B), or (B, A) for indexing="xy"."""
    given = tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f"[meshgrid] expected indexing 'ij' or 'xy', got {shown(indexing)}")
    if not given:
        raise ArgumentError("[meshgrid] expected one or more tensors, got none")
    if any(x._layout.dtype is not given[0]._layout.dtype for x in given):
        kinds = [x._layout.dtype for x in given]
        raise DTypeError(f"[meshgrid] meshgrid expects all tensors to have the same dtype, got {kinds}; convert with .to(dtype)")
    flat = [reshape(x, (-1,)) for x in given]
    for x in given:
        if x._layout.ndim > 1:
            raise ShapeError(f"[meshgrid] Expected 0D or 1D tensors, got shape {tuple(x._layout.shape)}")
    order = [k for k, _ in enumerate(flat)]
    if indexing == "xy" and len(flat) > 1:
        order[0], order[1] = 1, 0
    shape: Shape = tuple(flat[k]._layout.numel for k in order)
    grids = []
    for k, x in enumerate(flat):
        aligned = [1] * len(flat)
        aligned[order.index(k)] = x._layout.numel
        grids.append(expand(reshape(x, tuple(aligned)), shape))
    return tuple(grids)
