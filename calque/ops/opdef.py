"""`OpDef`: one record holds everything that is true of a primitive. Adding a primitive is adding one record.

`kind` supplies defaults. Lists such as "elementwise" or "has no gradient" are queries over records, never kept by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Literal

from calque.base.dataclass import dataclass
from calque.base.dtypes import DType
from calque.base.errors import UnsupportedTypeError
from calque.base.native import acyclic
from calque.base.shapes import Shape, broadcast_shapes

Kind = Literal["leaf", "elementwise", "reduce", "movement", "contract", "index", "random", "opaque"]
Attrs = tuple[Any, ...]
ShapeRule = Callable[[Sequence[Shape], Attrs], Shape]
DTypeRule = Callable[[Sequence[DType], Attrs], DType]
Complex = Literal["", "direct", "holomorphic"]
Stored = Literal["", "unsigned", "tensors", "every"]
Narrow = Literal["", "always", "asked"]
Role = Literal[
    "", "input", "scalar", "constant", "fill", "view", "view_at", "update", "update_at", "join", "lookup", "accumulate"
]  # fmt: skip
BatchRule = Callable[..., Any]  # see `ops.batching`
JvpRule = Callable[..., Any]  # see `ops.forward`
Reference = Callable[..., Any]  # ref(*arrays, *attrs) -> ndarray; the caller casts to the inferred dtype and checks the shape


@dataclass(frozen=True, slots=True)
class Vjp:
    """Gradient of one operand.

    `rule(F, g, c)` returns the operand's gradient as a Tensor. `F` is the functional namespace (PyTorch names) plus
    `F.prim(op_name, *operands, *attrs)`; `g` the output's gradient. `c` is the saved context: `c.x(i)` operand i, `c.out` (only
    those declared in `saves`; a Python number operand comes back as that number), `c.attrs`, `c.shape(i)`, `c.dtype(i)`,
    `c.out_shape`, `c.start(i, dim)` (where operand i of several joined ones begins); `c.link(g, i)` is g as a function of operand i
    with derivative zero. Elementwise rules may return the broadcast
    shape: the engine sums it down to the operand's. Rules use differentiable functions, so higher orders follow.
    `saves` lists operand positions to keep; -1 is the output.
    """

    rule: Callable[..., Any]
    saves: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs for the generated tests: operand shapes, attrs, and the range values are drawn from. Operand positions in `integers`
    map to the exclusive upper bound of their values; those in `bytes` are int8 with any value."""

    shapes: tuple[Shape, ...]
    attrs: Attrs = ()
    low: float = -2.0
    high: float = 2.0
    integers: tuple[tuple[int, int], ...] = ()
    bytes: tuple[int, ...] = ()
    differentiable: bool = True


@dataclass(frozen=True, slots=True)
class Routine:
    """How a primitive is computed by one routine instead of loops, on operands that may be views.

    `spec(shapes, strides, attrs, shape)` makes the parameters (see `ops.routines`) of operands and result; `flops(shapes, attrs, shape)` counts the
    multiplications and additions of a call. `rows`: operands whose elements along the last dim have to lie side by side. `beside`: its results
    may be written side by side into the rows of one value.
    """

    spec: Callable[..., Any]
    flops: Callable[..., int]
    rows: tuple[int, ...] = ()
    beside: bool = False


@dataclass(frozen=True, slots=True, eq=False)  # identity hash: an OpDef is part of every recording key
class OpDef:
    """A primitive.

    name: unique. kind: default rules and how it is lowered. doc: one sentence. arity: operand count, -1 for any.
    attrs: names of the static attributes, in the order of `Node.attrs`. shape/dtype: inference; they raise the user's errors.
    body: `body(s, *values, *attrs)` in the closed scalar set (elementwise, random); it sees 16-bit floats as float32, its
    result is rounded once. combine: the monoid of kind reduce
    ("sum", "prod", "max", "min", "argmax", "argmin"), and of an "accumulate" that joins what it writes to
    what is there. vjp: one `Vjp` (or None) per operand; empty means not differentiable.
    ref: NumPy definition. samples: inputs for generated tests. dtypes: names of operand dtypes to test. parts: results of one computation
    of which the first attribute names one; nodes that differ in it alone become one launch. complex: what becomes of complex operands: "" refuses
    them; "direct" takes them as they are, and so do the gradient rules; "holomorphic" is the same analytic function, with the conjugates of its
    rules. stored: which types that are stored rather than computed with (`DType.stored`) it takes: "" none, "unsigned" integers, "tensors" those and
    tensors of float8, "every" also with a number as float8. Moves of data take every. batch: how it runs on many operands at
    once (`ops.batching`); jvp: its forward-mode rule (`ops.forward`). Where these two are missing, both follow from the kind and from `vjp`.

    role: what a primitive does to the structure of a program, for those that are more than arithmetic: leaves ("input", "scalar", "constant");
    "fill" with one number; a window on operand 0 ("view"), a value written through one ("update"), and both with the offset as their last operand
    ("view_at", "update_at"); "join" of operands side by side; reading at indices ("lookup"), writing or adding there ("accumulate").
    routine: how a backend computes it by a routine instead of loops (`Routine`).

    Laws that rewriting relies on. commutative: f(x, y) = f(y, x). exact: correctly rounded everywhere, so constants may be folded.
    idempotent: f(f(x)) = f(x). involution: f(f(x)) = x where x has the type of the result. identity: f(x) = x. joins: of a reduction, the
    primitive that makes one of two partial results.

    Numbers. widens: a sum, which floats of 16 bits accumulate in float32 and round once. narrow: "always" if the routine does so for bfloat16
    by itself, "asked" if the backend says for which sizes. wraps: integers may leave the range of their type. ordering: it compares sizes, which
    complex numbers do not have. aligned: index and operand have one rank, position by position. ordered: the
    result lies in memory as its operands do; by default that of every elementwise primitive. creates: an attribute is its size, not an operand's.
    wide: the operands for which a number beside 16-bit floats is one of float32, in which they are computed; others round it first, as PyTorch does.

    node: PyTorch's name for the graph's node, where it is not made of this one: "Clone" for "CloneBackward0"; or a rule that tells it by the number
    of dims of every operand (None: a number) and of the result.
    """

    name: str
    kind: Kind
    doc: str
    arity: int = 1
    attrs: tuple[str, ...] = ()
    shape: ShapeRule = field(default=lambda shapes, attrs: broadcast_shapes(*shapes))
    dtype: DTypeRule = field(default=lambda dtypes, attrs: dtypes[0])
    body: Callable[..., Any] | None = None
    combine: str = ""
    vjp: tuple[Vjp | None, ...] = ()
    ref: Reference | None = None
    samples: tuple[Sample, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float64")
    parts: tuple[str, ...] = ()
    complex: Complex = ""
    stored: Stored = ""
    batch: BatchRule | None = None
    jvp: JvpRule | None = None
    role: Role = ""
    routine: Routine | None = None
    commutative: bool = False
    exact: bool = False
    idempotent: bool = False
    involution: bool = False
    identity: bool = False
    joins: str = ""
    widens: bool = False
    narrow: Narrow = ""
    wraps: bool = False
    ordering: bool = False
    aligned: bool = False
    wide: tuple[int, ...] = ()
    ordered: bool | None = None
    node: str | Callable[[tuple[int | None, ...]], str] = ""
    creates: bool = field(init=False, default=False)
    save_table: tuple[tuple[int, ...], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if self.ordered is None:
            object.__setattr__(self, "ordered", self.kind == "elementwise")
        object.__setattr__(self, "creates", self.kind in ("elementwise", "random") and "shape" in self.attrs)
        object.__setattr__(self, "save_table", tuple(self._saves(mask) for mask in range(1 << min(len(self.vjp), 6))))

    def _saves(self, mask: int) -> tuple[int, ...]:
        wanted: set[int] = set()
        for i, v in enumerate(self.vjp):
            if v is not None and mask >> i & 1:
                wanted.update(v.saves)
        return tuple(sorted(wanted))

    def saves(self, mask: int) -> tuple[int, ...]:
        """Operand positions (-1: output) to keep when the operands in the bit mask need gradients."""
        return self.save_table[mask] if mask < len(self.save_table) else self._saves(mask)

    def __repr__(self) -> str:
        return f"OpDef({self.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (get, (self.name,))


REGISTRY: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    """Add a record to the registry; names are unique."""
    if op.name in REGISTRY:
        raise ValueError(f"primitive {op.name!r} is already registered")
    REGISTRY[op.name] = op
    return acyclic(op)


def unregister(name: str) -> None:
    """Remove a record (tests that register a toy primitive)."""
    del REGISTRY[name]


def no_complex(name: str, dtypes: Sequence[DType]) -> UnsupportedTypeError:
    """The error of complex operands that a function is not defined for."""
    found = next(d for d in dtypes if d.is_complex)
    why = "complex numbers have no order" if name in REGISTRY and REGISTRY[name].ordering else "it is for real numbers"
    return UnsupportedTypeError(
        f"[{name}] expected a real dtype, got {found!r}: not implemented for complex numbers, as {why}; use .abs(), .real or calque.view_as_real(...)"
    )


def refuse_hosted(op: OpDef, dtypes: Sequence[DType], numbers: bool) -> None:
    """Raise for operands of types that kernels do not know and `op` is not defined for. `numbers`: whether Python numbers are among them."""
    for dtype in dtypes:
        if dtype.is_complex and not op.complex:
            raise no_complex(op.name, dtypes)
        taken = op.stored == "every" or op.stored == "tensors" and not numbers or dtype.stored != "float8" and op.stored
        if dtype.stored and not taken:
            raise UnsupportedTypeError(
                f"[{op.name}] expected a dtype to compute with, got {dtype!r}: not implemented for it, as for PyTorch; convert with .to(...) first"
            )


def get(name: str) -> OpDef:
    """The record called `name`."""
    return REGISTRY[name]


def of_kind(*kinds: str) -> list[OpDef]:
    """All records of the given kinds, in registration order."""
    return [op for op in REGISTRY.values() if op.kind in kinds]
