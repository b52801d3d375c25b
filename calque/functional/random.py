"""Random tensors. A generator is a pair (seed, offset): every call takes the next range of offsets, and the bits of an element depend on
(seed, offset + position) alone, so values are the same on every backend and for every number of threads."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import threading
from collections.abc import Iterator
from operator import index
from typing import Any

import numpy as np

from calque.autograd.host import for_all_slices
from calque.base import dtypes as dt
from calque.base.device import META, InUse
from calque.base.errors import ArgumentError, DTypeError, OutOfMemoryError, OutOfRangeError, ShapeError
from calque.base.native import hot
from calque.base.shapes import Shape, broadcast_shapes, whole
from calque.base.text import described
from calque.functional.checks import check_probabilities
from calque.functional.common import Operand, cast, is_number, is_tensor, linked, method, number, prim, require_operands, require_real
from calque.functional.declared import NAMES, public
from calque.functional.formats import like
from calque.functional.options import dtype_for, marked, resolve_device, resolve_dtype, size_of, written
from calque.functional.placing import beside_input, host_values, made_on, placed, placed_like
from calque.functional.views import expand
from calque.functional.writing import write_back
from calque.observe.source import warn_user
from calque.ops.opdef import no_complex
from calque.ops.random import random_bits_ref
from calque.record.recorder import local
from calque.replay.capture import abort, numbers
from calque.tensor import Tensor, read, upload

_START = 8  # the first offset; small numbers could be baked into a recorded program
_MOST = 1 << 48  # random numbers in one call: more than any memory holds, few enough for offsets of 64 bits
_DEFAULT_SEED = 67280421310721  # PyTorch's


@public(method=False)
class Generator:
    """A stream of random numbers with a seed of its own.

    >>> import calque
    >>> g = calque.Generator().manual_seed(3)
    >>> a = calque.rand(2, generator=g)
    >>> calque.equal(a, calque.rand(2, generator=calque.Generator().manual_seed(3)))
    True
    """

    def __init__(self, device: Any = None) -> None:
        self.device = resolve_device(device, "Generator")
        self._seed = _DEFAULT_SEED
        self._offset = _START
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[str, int, int]:
        """What copies and other processes continue from: a lock cannot go there."""
        return str(self.device), self._seed, int(self._offset)

    def __setstate__(self, state: tuple[str, int, int]) -> None:
        device, self._seed, self._offset = state
        self.device, self._lock = resolve_device(device, "Generator"), threading.Lock()

    def manual_seed(self, seed: int) -> "Generator":
        """Start the stream of `seed`."""
        abort("sets the state of a random generator")
        value = int(seed)
        if not -(1 << 63) <= value < 1 << 64:
            raise OutOfRangeError(f"[manual_seed] expected a seed of at most 64 bits, got {value}: Overflow when unpacking long")
        self._seed = value - (1 << 64) if value >= 1 << 63 else value
        self._offset = _START
        return self

    def seed(self) -> int:
        """Start a stream nobody can predict; returns its seed."""
        value = int.from_bytes(os.urandom(8)) >> 12
        self.manual_seed(value)
        return value

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return self._seed % (1 << 64)

    def get_state(self) -> Tensor:
        """The state as a uint8 tensor of 16 bytes: seed and offset."""
        return upload(np.array([self._seed, self._offset], np.int64).view(np.uint8), dt.uint8)

    def set_state(self, new_state: Tensor) -> "Generator":
        """Continue from a state of `get_state`."""
        if not is_tensor(new_state) or new_state._layout.dtype is not dt.uint8 or new_state._layout.numel != 16:
            raise DTypeError("[set_rng_state] RNG state must be a torch.ByteTensor of 16 elements made by get_rng_state()")
        words = np.ascontiguousarray(read(new_state, "set_rng_state")).reshape(-1).view(np.int64)
        abort("sets the state of a random generator")
        self._seed, self._offset = int(words[0]), int(words[1])
        return self

    def take(self, count: int) -> tuple[int, int]:
        """(seed, first offset) of the next `count` numbers."""
        if count > _MOST:
            raise OutOfMemoryError(f"[random] expected a size that fits into memory, got {count} random numbers; ask for fewer")
        trace = local.state.trace
        if trace.transforms:
            return trace.take(self, count)  # type: ignore[no-any-return]
        seed_, start = numbers(lambda: self._advance(count))
        return seed_, start

    def _advance(self, count: int) -> list[int]:
        with self._lock:
            start = self._offset
            self._offset = start + (count + 7 & -8) & (1 << 62) - 1
            return [self._seed, start]

    def clone_state(self) -> "Generator":
        """A generator in the same state."""
        twin = Generator()
        twin._seed, twin._offset = self._seed, self._offset
        return twin


class _Streams(threading.local):
    """The default stream of a thread that has one of its own: a worker that loads data."""

    own: list[int] | None = None  # seed and offset


_streams = _Streams()


class _Default(Generator):
    """The default stream. In a worker that loads data it is the worker's, which nobody else draws from: where a stream stands is a pair of numbers,
    and whose pair that is depends on the thread."""

    def __init__(self) -> None:
        self._process = [0, 0]
        super().__init__()

    def _numbers(self) -> list[int]:
        own = _streams.own
        return self._process if own is None else own

    @property
    def _seed(self) -> int:  # type: ignore[override]
        return self._numbers()[0]

    @_seed.setter
    def _seed(self, value: int) -> None:
        self._numbers()[0] = value

    @property
    def _offset(self) -> int:  # type: ignore[override]
        return self._numbers()[1]

    @_offset.setter
    def _offset(self, value: int) -> None:
        self._numbers()[1] = value


default_generator: Generator = _Default()


def own_stream(start: list[int] | None) -> list[int] | None:
    """From here on the default stream is, in this thread alone, the one at `start` (seed, offset); None: the process's again. What it was."""
    before, _streams.own = _streams.own, start
    return before


def stream_of(seed: int) -> list[int]:
    """The beginning of the stream of a seed."""
    return [seed, _START]


@public(method=False)
def manual_seed(seed: int) -> Generator:
    """Start the default stream of `seed`.

    >>> import calque
    >>> calque.manual_seed(0).initial_seed()
    0
    """
    return default_generator.manual_seed(seed)


@public(method=False)
def seed() -> int:
    """Start the default stream from an unpredictable seed; returns it."""
    return default_generator.seed()


@public(method=False)
def initial_seed() -> int:
    """Seed of the default stream."""
    return default_generator.initial_seed()


@public(method=False)
def get_rng_state() -> Tensor:
    """State of the default stream."""
    return default_generator.get_state()


@public(method=False)
def set_rng_state(new_state: Tensor) -> None:
    """Continue the default stream from a state."""
    default_generator.set_state(new_state)


@public(method=False)
@contextlib.contextmanager
def fork_rng(devices: Any = None, enabled: bool = True) -> Iterator[None]:
    """Run a block without moving the default stream."""
    abort("forks the state of a random generator")
    before = default_generator.clone_state()
    try:
        yield
    finally:
        if enabled:
            default_generator._seed, default_generator._offset = before._seed, before._offset


# ------------------------------------------------------------------------------------------------------- distributions


def bits(shape: Shape, generator: Generator | None) -> Tensor:
    """64 random bits per element, int64."""
    seed_, offset = (generator or default_generator).take(math.prod(shape))
    return prim("random_bits", (seed_, dt.int64), (offset, dt.int64), shape)


def uniform(shape: Shape, dtype: dt.DType, generator: Generator | None) -> Tensor:
    """Uniform in [0, 1): 24 random bits for float32, 53 for float64, 11 and 8 for the 16-bit types (their full precision)."""
    if dtype.category == 3:
        return prim("complex", *[uniform(shape, dtype.to_real(), generator) for _ in range(2)])
    if dtype.stored:
        raise DTypeError(f"[uniform] expected a dtype to compute with, got {dtype!r}; draw float32 and convert with .to(...)")
    digits = dtype.digits
    work = dt.float64 if dtype is dt.float64 else dt.float32
    top = prim("bitwise_and", prim("shift_right", bits(shape, generator), (64 - digits, dt.int64)), ((1 << digits) - 1, dt.int64))
    return cast(prim("mul", cast(top, work), (2.0**-digits, work)), dtype)


def gaussian(shape: Shape, dtype: dt.DType, generator: Generator | None) -> Tensor:
    """Standard normal by Box and Muller (1958): sqrt(-2 log u) cos(2 pi v), u and v from the two halves of one 64-bit word."""
    if dtype.category == 3:  # of variance 1 in all
        half = (math.sqrt(0.5), dtype.to_real())
        return prim("complex", *[prim("mul", gaussian(shape, dtype.to_real(), generator), half) for _ in range(2)])
    work = dt.float64 if dtype is dt.float64 else dt.float32
    word = bits(shape, generator)
    digits = 32 if work is dt.float64 else 24
    mask = ((1 << digits) - 1, dt.int64)
    high = cast(prim("bitwise_and", prim("shift_right", word, (64 - digits, dt.int64)), mask), work)
    low = cast(prim("bitwise_and", word, mask), work)
    scale = (2.0**-digits, work)
    radius = prim("sqrt", prim("mul", prim("log", prim("mul", prim("add", high, (1.0, work)), scale)), (-2.0, work)))
    angle = prim("mul", low, (2.0 * math.pi * 2.0**-digits, work))
    return cast(prim("mul", radius, prim("cos", angle)), dtype)


COMPLEX = ("rand", "randn", "rand_like", "randn_like", "uniform_", "normal_", "normal")  # whose parts are drawn one after the other


def _floating(op: str, dtype: Any, default: dt.DType | None = None) -> dt.DType:
    found = resolve_dtype(dtype, default or dt.get_default_dtype(), op)
    if found.category == 3 and op in COMPLEX:
        return found
    if found.category != 2:
        raise DTypeError(f"[{op}] expected a floating dtype, got {found}: not implemented for integers; use randint()")
    return found


def _sized(op: str, draw: Any) -> Any:
    def create(
        *sizes: Any, size: Any = None, generator: Generator | None = None, out: Any = None, dtype: Any = None, device: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:  # fmt: skip
        shape = size_of(op, sizes, size)
        resolve_device(device, op)
        result = draw(shape, _floating(op, dtype if out is None else dtype_for(out, dtype)), generator)
        return marked(result, requires_grad, op) if out is None else written(op, result, out)

    create.__name__ = create.__qualname__ = op
    return public(method=False)(placed(create))


rand = _sized("rand", uniform)
rand.__doc__ = """Uniform numbers in [0, 1); sizes as ints, a tuple, a list or `size=`.

    >>> import calque
    >>> calque.rand(2, 3).shape
    torch.Size([2, 3])
    """
randn = _sized("randn", gaussian)
randn.__doc__ = "Standard normal numbers; sizes as ints, a tuple, a list or `size=`."


def _like(op: str, draw: Any) -> Any:
    def create(
        input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, generator: Any = None, memory_format: Any = None
    ) -> Tensor:
        resolve_device(device, op)
        made = draw(tuple(input._layout.shape), _floating(op, dtype, input._layout.dtype), generator)
        return marked(like(op, made, input, memory_format), requires_grad, op)

    create.__name__ = create.__qualname__ = op
    create.__doc__ = f"`{op.removesuffix('_like')}` with the shape and dtype of `input`."
    return public(method=False, out=True)(placed_like(create))


rand_like, randn_like = _like("rand_like", uniform), _like("randn_like", gaussian)


def integers(low: int, high: int, shape: Shape, dtype: dt.DType, generator: Generator | None, op: str) -> Tensor:
    """Uniform integers in [low, high): the high word of bits * range for ranges up to 2**32, else a remainder."""
    span = high - low
    if span <= 0:
        raise ArgumentError(f"[{op}] expects 'from' to be less than 'to', but got from={low} >= to={high}")
    word = bits(shape, generator)
    if span <= 1 << 31:
        upper = prim("bitwise_and", prim("shift_right", word, (32, dt.int64)), ((1 << 32) - 1, dt.int64))
        drawn = prim("shift_right", prim("mul", upper, (span, dt.int64)), (32, dt.int64))
    elif span < 1 << 63:
        positive = prim("bitwise_and", word, ((1 << 63) - 1, dt.int64))
        drawn = prim("remainder", positive, (span, dt.int64))
    elif span == 1 << 64:
        drawn, low = word, 0
    else:  # without their sign at most once too large, and int64 wraps around
        over = prim("ge", prim("bitwise_xor", word, (-(1 << 63), dt.int64)), (span - (1 << 63), dt.int64))
        drawn = prim("where", over, prim("add", word, ((1 << 64) - span, dt.int64)), word)
    return cast(prim("add", drawn, (low, dt.int64)) if low else drawn, dtype)


def _range_of(dtype: dt.DType) -> tuple[int, int]:
    """The least and the largest integer, of 64 bits, of a type that is not complex."""
    if dtype.category == 2:
        return max(int(dt.FInfo(dtype).min), -(1 << 63)), min(int(dt.FInfo(dtype).max), (1 << 63) - 1)
    return (int(np.iinfo(dtype.np).min), int(np.iinfo(dtype.np).max)) if dtype.category else (0, 1)


def _limits(op: str, low: Any, high: Any, dtype: dt.DType) -> tuple[int, int]:
    try:
        first, last = index(low), index(high)
    except TypeError:
        raise DTypeError(f"[{op}] expected the ends of the range as ints, got {described(low)} and {described(high)}; give two integers") from None
    least, most = _range_of(dtype)
    if first < least or last - 1 > most:
        raise OutOfRangeError(f"[{op}] from={first}, to={last} is out of bounds for {dtype}: expected numbers in {least}..{most}; take another dtype")
    exact = 1 << min(dtype.digits, 63)
    if dtype.category == 2 and (first < -exact or last - 1 > exact):
        warn_user(f"[{op}] from={first}, to={last} is out of bounds for {dtype}, which holds integers up to {exact} alone: others are rounded")
    return first, last


@public(method=False, out=True)
@placed
def randint(
    low: int | None = None, high: int | None = None, size: Any = None, *, generator: Generator | None = None, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Uniform integers in [low, high), int64 unless a dtype is given; `randint(high, size)` starts at 0."""
    if size is None and not is_number(high):  # by position: randint(high, size)
        high, size = None, high
    if high is None:
        low, high = None, low
    if size is None or high is None:
        raise TypeError("[randint] expected an upper bound and a size, e.g. randint(0, 10, (2, 3))")
    resolve_device(device, "randint")
    wanted = resolve_dtype(dtype, dt.int64, "randint")
    first, last = _limits("randint", 0 if low is None else low, high, wanted)
    return marked(integers(first, last, size_of("randint", (size,)), wanted, generator, "randint"), requires_grad, "randint")


@public(method=False, out=True)
@placed_like
def randint_like(
    input: Tensor, low: int | None = None, high: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False,
    generator: Generator | None = None, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """`randint` with the shape and dtype of `input`."""
    require_real("randint_like", input)
    made = randint(
        low, high, tuple(input._layout.shape), dtype=resolve_dtype(dtype, input._layout.dtype, "randint_like"), device=device,
        requires_grad=requires_grad, generator=generator,
    )  # fmt: skip
    return like("randint_like", made, input, memory_format)


def _host_bits(count: int, generator: Generator | None) -> np.ndarray[Any, Any]:
    """The same numbers as `bits`, made by NumPy at once."""
    seed_, offset = (generator or default_generator).take(count)
    if hot is None or offset.__class__ is not int:  # one that a recording watches: it must see what Python computes with it
        return random_bits_ref(seed_, offset, (count,))
    return hot.bits(seed_, offset, count)  # type: ignore[no-any-return]


@public(method=False, out=True)
@placed
def randperm(n: int, *, generator: Generator | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The numbers 0..n-1 in random order: (n,)."""
    n = int(n)
    if n < 0:
        raise ArgumentError(f"[randperm] n must be non-negative, got {n}")
    resolve_device(device, "randperm")
    wanted = resolve_dtype(dtype, dt.int64, "randperm")
    most = _range_of(wanted)[1] if wanted.category < 2 else 1 << wanted.digits
    if n - 1 > most and wanted is not dt.bfloat16:
        raise OutOfRangeError(f"[randperm] n is too large for result tensor type {wanted}: expected at most {most + 1}, got {n}; take another dtype")
    made = host_values((n,), dt.int64, lambda: np.argsort(_host_bits(n, generator), kind="stable"), random=True)
    return marked(cast(made, wanted), requires_grad, "randperm")


@public(method=False)
@placed_like
def normal(
    mean: Operand = 0.0, std: Operand = 1.0, size: Any = None, *, generator: Generator | None = None, out: Any = None, dtype: Any = None,
    device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Normal numbers with the given means and standard deviations (numbers or tensors, whose gradient is zero), or of a `size`."""
    if is_number(std) and number(std) < 0:
        raise ArgumentError(f"[normal] expects std >= 0.0, but found std {std}")
    if is_tensor(std) and std._layout.numel and std._layout.device is not META:
        if (least := for_all_slices(lambda x: float(read(x, "normal").min()), std)) < 0:
            raise ArgumentError(f"[normal] expects std >= 0.0, but found std {least}")
    require_real("normal", std)
    shapes = [tuple(x._layout.shape) for x in (mean, std) if is_tensor(x)]
    if size is None and not shapes:
        raise DTypeError("[normal] expected mean or std as a Tensor, or a size, got numbers alone; pass size=")
    shape = size_of("normal", (size,)) if size is not None else broadcast_shapes(*shapes, op="normal")
    given = [x._layout.dtype for x in (mean, std) if is_tensor(x)]
    resolve_device(device, "normal")
    noise = gaussian(shape, _floating("normal", dtype, given[0] if given else None), generator)
    result = linked(_affine(noise, std, mean), mean, std)
    return marked(result, requires_grad, "normal") if out is None else written("normal", result, out)


def _affine(noise: Tensor, scale: Any, shift: Any) -> Tensor:
    """noise * scale + shift, in the dtype of the noise."""
    require_operands("normal", shift, scale)
    dtype = noise._layout.dtype
    factor = cast(scale.detach(), dtype) if is_tensor(scale) else (float(scale), dtype)
    offset = cast(shift.detach(), dtype) if is_tensor(shift) else (float(shift), dtype)
    return prim("add", prim("mul", noise, factor), offset)


def _check_probability(op: str, p: Any) -> None:
    if is_number(p):
        if not 0 <= p <= 1:
            raise ArgumentError(f"[{op}] expects p to be in [0, 1], but got p={p}")
    elif is_tensor(p):
        check_probabilities(op, p)


@public()
def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None, out: Any = None) -> Tensor:
    """1 with probability `input` (element by element), else 0, in the dtype of `input`. The gradient is zero."""
    dtype = _floating("bernoulli", None, input._layout.dtype)
    _check_probability("bernoulli", input if p is None else p)
    shape = tuple(input._layout.shape)
    work = dt.float64 if dtype is dt.float64 else dt.float32
    chance = cast(input.detach(), work) if p is None else (float(p), work)
    found = cast(prim("lt", uniform(shape, work, generator), chance), dtype if out is None else out._layout.dtype)
    result = linked(found, input if p is None else None)
    return result if out is None else written("bernoulli", result, out)


@public(out="exact")
@beside_input
def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Tensor:
    """Indices drawn with probabilities proportional to `input`: (C,) -> (num_samples,), (N, C) -> (N, num_samples). Reads
    the weights."""
    if input._layout.ndim not in (1, 2):
        raise ShapeError(f"[multinomial] prob_dist must be 1 or 2 dim, got shape {tuple(input._layout.shape)}")
    _floating("multinomial", None, input._layout.dtype)
    num_samples = whole("multinomial", "num_samples", num_samples)
    if num_samples <= 0:
        raise ArgumentError(f"[multinomial] cannot sample n_sample <= 0 samples, got {num_samples}")
    classes = input._layout.shape[-1]
    if not replacement and num_samples > classes:
        raise ArgumentError(
            f"[multinomial] cannot sample n_sample > prob_dist.size(-1) samples without replacement: {num_samples} > {classes}"
        )
    shape, rows = (*input._layout.shape[:-1], num_samples), math.prod(input._layout.shape[:-1])
    given = (num_samples, replacement, generator)
    return host_values(shape, dt.int64, lambda: _drawn(read(input, "multinomial").reshape(rows, classes), *given).reshape(shape), random=True)


def _drawn(given: np.ndarray[Any, Any], num_samples: int, replacement: bool, generator: Generator | None) -> np.ndarray[Any, Any]:
    """Indices (rows, num_samples) drawn with probabilities proportional to the rows."""
    weights = given.astype(np.float64)
    rows, classes = weights.shape
    totals = (edges := weights.cumsum(1))[:, -1:]
    if not (weights.min(initial=0.0) >= 0 and np.isfinite(totals).all()) and (not np.isfinite(weights).all() or (weights < 0).any()):
        raise ArgumentError("[multinomial] probability tensor contains either `inf`, `nan` or element < 0")
    if not classes or (totals <= 0).any():
        raise ArgumentError("[multinomial] invalid multinomial distribution (sum of probabilities <= 0)")
    several = num_samples > 1 and not replacement
    count = classes if several else num_samples
    draws = ((_host_bits(rows * count, generator) >> 11) & ((1 << 53) - 1)).astype(np.float64).reshape(rows, count) * 2.0**-53
    if not several:
        found = np.array([edge.searchsorted(mark, "right") for edge, mark in zip(edges, draws * totals, strict=True)])
        if (found < classes).all():
            return found
        last = classes - 1 - (weights[:, ::-1] > 0).argmax(1)  # a mark that was rounded up to the total stands behind all
        return np.minimum(found, last[:, None])
    with np.errstate(divide="ignore"):
        keys = np.log(weights) - np.log(-np.log1p(-draws))  # the Gumbel trick: largest keys are a draw without replacement
    if ((weights > 0).sum(1) < num_samples).any():
        raise ArgumentError(
            "[multinomial] invalid multinomial distribution (with replacement=False, not enough non-negative category to sample)"
        )
    return np.argsort(-keys, axis=1, kind="stable")[:, :num_samples]


# ------------------------------------------------------------------------------------------------------------- in place


def _in_place(name: str, draw: Any) -> None:
    def fill(input: Tensor, *arguments: Any, generator: Generator | None = None, **keywords: Any) -> Tensor:
        if "from" in keywords:  # PyTorch's name, which Python keeps for itself
            keywords["from_"] = keywords.pop("from")
        given = (tuple(input._layout.shape), input._layout.dtype, generator, *arguments)
        value = made_on(input._layout.device, draw, given, keywords) if InUse.several else draw(*given, **keywords)
        return write_back(name, input, value)

    fill.__name__ = fill.__qualname__ = name
    fill.__doc__ = draw.__doc__
    own = inspect.signature(fill).parameters
    parameters = [own["input"], *list(inspect.signature(draw).parameters.values())[3:], own["generator"]]
    fill.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=Tensor)
    method(name)(fill)


def _uniform(shape: Shape, dtype: dt.DType, generator: Any, from_: float = 0.0, to: float = 1.0) -> Tensor:
    """Uniform numbers in [from, to), written into the tensor."""
    low, high = float(from_), float(to)
    if low > high:
        raise ArgumentError(f"[uniform_] expects to return a [from, to) range, but found from={low} > to={high}")
    kind = _floating("uniform_", None, dtype).to_real()
    most = dt.FInfo(kind).max
    if not (abs(low) <= most and abs(high) <= most and high - low <= most):
        raise OutOfRangeError(f"[uniform_] expects from and to, and the distance between them, up to {most} for {dtype}, got {low} and {high}")
    parts = [_affine(uniform(shape, kind, generator), high - low, low) for _ in range(1 + dtype.is_complex)]
    return prim("complex", *parts) if dtype.is_complex else parts[0]


def _normal(shape: Shape, dtype: dt.DType, generator: Any, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal numbers, written into the tensor."""
    if std < 0:
        raise ArgumentError(f"[normal_] expects std >= 0.0, but found std {std}")
    kind = _floating("normal_", None, dtype).to_real()
    if dtype.is_complex:
        return prim("complex", *[_affine(gaussian(shape, kind, generator), std * math.sqrt(0.5), mean) for _ in range(2)])
    return _affine(gaussian(shape, kind, generator), std, mean)


def _bernoulli(shape: Shape, dtype: dt.DType, generator: Any, p: Operand = 0.5) -> Tensor:
    """1 with probability p, else 0, written into the tensor."""
    _check_probability("bernoulli_", p)
    if dtype.is_complex:
        raise no_complex("bernoulli_", [dtype])
    work = dt.float64 if dtype is dt.float64 else dt.float32
    chance = expand(cast(p.detach(), work), shape) if is_tensor(p) else (float(p), work)
    return cast(prim("lt", uniform(shape, work, generator), chance), dtype)


def _random(shape: Shape, dtype: dt.DType, generator: Any, from_: int | None = None, to: Any = ...) -> Tensor:
    """Uniform integers in [from, to), with one number in [0, from), written into the tensor. `to` None: up to the largest integer of the dtype, and
    with no number from 0."""
    if dtype.is_complex:
        raise no_complex("random_", [dtype])
    low, high = from_, to
    if high is ... and low is not None:
        low, high = 0, low
    elif high is ... or high is None:
        high = (1 << dtype.digits) + (dtype.category == 2)
    return integers(*_limits("random_", low or 0, high, dtype), shape, dtype, generator, "random_")


def _exponential(shape: Shape, dtype: dt.DType, generator: Any, lambd: float = 1.0) -> Tensor:
    """Exponential numbers of rate lambd, written into the tensor."""
    if lambd <= 0:
        raise ArgumentError(f"[exponential_] expects lambda > 0.0, but found lambda={lambd}")
    draw = uniform(shape, _floating("exponential_", None, dtype), generator)
    return prim("mul", prim("log1p", prim("neg", draw)), (-1.0 / lambd, dtype))


for _name, _draw in (
    ("uniform_", _uniform),
    ("normal_", _normal),
    ("bernoulli_", _bernoulli),
    ("random_", _random),
    ("exponential_", _exponential),
):
    _in_place(_name, _draw)

# What users find here, too, and are told the mistakes of.
__all__ = ["default_generator", *(name for name, f in list(globals().items()) if f is not None and NAMES.get(name) is f and f.__module__ == __name__)]
