"""Random tensors, drawn from the streams of `generators.py`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from operator import index
from typing import Any

import numpy as np

from calque.autograd.host import for_all_slices
from calque.autograd.superinstruction import computed
from calque.base import dtypes as dt
from calque.base.device import META, InUse
from calque.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError, UnsupportedTypeError
from calque.base.native import hot
from calque.base.shapes import Shape, broadcast_shapes, whole
from calque.base.text import described
from calque.functional.checks import check_probabilities
from calque.functional.common import Operand, cast, is_number, is_tensor, linked, method, number, prim, require_operands, require_real
from calque.functional.declared import NAMES, public
from calque.functional.formats import like
from calque.functional.generators import Generator, default_generator
from calque.functional.options import dtype_for, marked, resolve_device, resolve_dtype, size_of, written
from calque.functional.placing import beside_input, host_values, made_on, placed, placed_like
from calque.functional.views import expand
from calque.functional.writing import write_over
from calque.observe.source import warn_user
from calque.ops.opdef import no_complex
from calque.ops.random import random_bits_ref
from calque.tensor import Tensor, read

_Word = tuple[int, dt.DType]  # a number of 64 bits as an operand

# ------------------------------------------------------------------------------------------------------- distributions


def _drawn(law: Callable[..., Tensor], generator: Generator | None, shape: Shape, *given: Any) -> Tensor:
    """`law(seed, offset, shape, *given)` of the generator's next numbers, one for each element."""
    seed_, offset = (generator or default_generator).take(math.prod(shape))
    return computed(law, (seed_, dt.int64), (offset, dt.int64), shape, *given)  # type: ignore[no-any-return]


def _uniform_of(seed_: _Word, offset: _Word, shape: Shape, dtype: dt.DType) -> Tensor:
    digits = dtype.digits
    work = dt.float64 if dtype is dt.float64 else dt.float32
    word = prim("random_bits", seed_, offset, shape)
    top = prim("bitwise_and", prim("shift_right", word, (64 - digits, dt.int64)), ((1 << digits) - 1, dt.int64))
    return cast(prim("mul", cast(top, work), (2.0**-digits, work)), dtype)


def uniform(shape: Shape, dtype: dt.DType, generator: Generator | None) -> Tensor:
    """Uniform in [0, 1): 24 random bits for float32, 53 for float64, 11 and 8 for the 16-bit types (their full precision)."""
    if dtype.category == 3:
        return prim("complex", *[uniform(shape, dtype.to_real(), generator) for _ in range(2)])
    if dtype.stored:
        raise DTypeError(f"[uniform] expected a dtype to compute with, got {dtype!r}; draw float32 and convert with .to(...)")
    return _drawn(_uniform_of, generator, shape, dtype)


def _gaussian_of(seed_: _Word, offset: _Word, shape: Shape, dtype: dt.DType) -> Tensor:
    work = dt.float64 if dtype is dt.float64 else dt.float32
    word = prim("random_bits", seed_, offset, shape)
    digits = 32 if work is dt.float64 else 24
    mask = ((1 << digits) - 1, dt.int64)
    high = cast(prim("bitwise_and", prim("shift_right", word, (64 - digits, dt.int64)), mask), work)
    low = cast(prim("bitwise_and", word, mask), work)
    scale = (2.0**-digits, work)
    radius = prim("sqrt", prim("mul", prim("log", prim("mul", prim("add", high, (1.0, work)), scale)), (-2.0, work)))
    angle = prim("mul", low, (2.0 * math.pi * 2.0**-digits, work))
    return cast(prim("mul", radius, prim("cos", angle)), dtype)


def gaussian(shape: Shape, dtype: dt.DType, generator: Generator | None) -> Tensor:
    """Standard normal by Box and Muller (1958): sqrt(-2 log u) cos(2 pi v), u and v from the two halves of one 64-bit word."""
    if dtype.category == 3:  # of variance 1 in all
        half = (math.sqrt(0.5), dtype.to_real())
        return prim("complex", *[prim("mul", gaussian(shape, dtype.to_real(), generator), half) for _ in range(2)])
    return _drawn(_gaussian_of, generator, shape, dtype)


def _scaled_of(law: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A law whose numbers are multiplied by the third and moved by the fourth operand."""

    def scaled(seed_: _Word, offset: _Word, scale: Any, shift: Any, shape: Shape, dtype: dt.DType) -> Tensor:
        return prim("add", prim("mul", law(seed_, offset, shape, dtype), scale), shift)

    return scaled


_SCALED = {law: _scaled_of(law) for law in (_uniform_of, _gaussian_of)}


def _scaled(law: Callable[..., Tensor], generator: Generator | None, shape: Shape, dtype: dt.DType, scale: float, shift: float) -> Tensor:
    """Numbers of a law times `scale`, plus `shift`."""
    if dtype.stored:
        return _affine(uniform(shape, dtype, generator), scale, shift)  # which says what is wrong
    seed_, offset = (generator or default_generator).take(math.prod(shape))
    words = (seed_, dt.int64), (offset, dt.int64), (float(scale), dtype), (float(shift), dtype)
    return computed(_SCALED[law], *words, shape, dtype)  # type: ignore[no-any-return]


COMPLEX = ("rand", "randn", "rand_like", "randn_like", "uniform_", "normal_", "normal")  # whose parts are drawn one after the other


def _floating(op: str, dtype: Any, default: dt.DType | None = None) -> dt.DType:
    found = resolve_dtype(dtype, default or dt.get_default_dtype(), op)
    if found.category == 3 and op in COMPLEX:
        return found
    if found.category != 2:
        raise UnsupportedTypeError(f"[{op}] expected a floating dtype, got {found}: not implemented for integers; use randint()")
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
    if high <= low:
        raise ArgumentError(f"[{op}] expects 'from' to be less than 'to', but got from={low} >= to={high}")
    return _drawn(_integers_of, generator, shape, dtype, low, high - low)


def _integers_of(seed_: _Word, offset: _Word, shape: Shape, dtype: dt.DType, low: int, span: int) -> Tensor:
    word = prim("random_bits", seed_, offset, shape)
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


@cache
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
    low: int | None = None, high: Any = None, size: Any = None, *, generator: Generator | None = None, dtype: Any = None, device: Any = None,
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
    return host_values(shape, dt.int64, lambda: _picked(read(input, "multinomial").reshape(rows, classes), *given).reshape(shape), random=True)


def _picked_of_one(weights: np.ndarray[Any, Any], count: int, generator: Generator | None) -> np.ndarray[Any, Any] | None:
    """Those of one row without the calls that several need; None, and nothing is drawn, where something is wrong or unusual."""
    edges = weights.cumsum()
    total = float(edges[-1]) if edges.size else 0.0
    if not 0 < total < math.inf or min(weights.tolist() if edges.size < 32 else [weights.min()]) < 0 or not weights[-1]:
        return None
    draws = (_host_bits(count, generator) >> 11 & (1 << 53) - 1) * 2.0**-53
    return np.minimum(edges.searchsorted(draws * total, "right"), len(edges) - 1)[None]


def _picked(given: np.ndarray[Any, Any], num_samples: int, replacement: bool, generator: Generator | None) -> np.ndarray[Any, Any]:
    """Indices (rows, num_samples) drawn with probabilities proportional to the rows."""
    weights = given.astype(np.float64)
    rows, classes = weights.shape
    if rows == 1 and (num_samples == 1 or replacement) and (found := _picked_of_one(weights[0], num_samples, generator)) is not None:
        return found
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
        return write_over(name, input, value)

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
    parts = [_scaled(_uniform_of, generator, shape, kind, high - low, low) for _ in range(1 + dtype.is_complex)]
    return prim("complex", *parts) if dtype.is_complex else parts[0]


def _normal(shape: Shape, dtype: dt.DType, generator: Any, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal numbers, written into the tensor."""
    if std < 0:
        raise ArgumentError(f"[normal_] expects std >= 0.0, but found std {std}")
    kind = _floating("normal_", None, dtype).to_real()
    if dtype.is_complex:
        return prim("complex", *[_scaled(_gaussian_of, generator, shape, kind, std * math.sqrt(0.5), mean) for _ in range(2)])
    return _scaled(_gaussian_of, generator, shape, kind, std, mean)


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
__all__ = [*(name for name, f in list(globals().items()) if f is not None and NAMES.get(name) is f and f.__module__ == __name__)]
