"""From a group to scalar instructions: pulls every stored value through the bodies of its primitives, stage by stage.

The result is a `Draft`: instructions whose addresses are still forms over the group's iteration dims. `lower.py` makes it a
`LoopKernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float
from dataclasses import field
from math import prod
from typing import Any

from calque.base.dataclass import dataclass
from calque.base.dtypes import DType, bool_, float32, int32, int64
from calque.base.shapes import Shape, contiguous_strides
from calque.ir import scalar
from calque.ir.index import ZERO, Coords, Form, broadcast, dense, flatten
from calque.ir.program import Node
from calque.kernel.facts import VIEWS, Class, op_cost
from calque.kernel.group import Group, Write
from calque.kernel.loops import AT
from calque.kernel.reader import Dynamic, Fusion, Reader, reduced_coords, static_offset

STASH_COST = 20  # weighted instructions from which a value is kept rather than evaluated in every stage ...
STASH_BYTES = 1 << 18  # ... if what one row keeps stays in the cache


@dataclass(frozen=True, slots=True)
class Address:
    """An access before lowering: `node`'s buffer at `form`, plus (if indirect) index_stride times an index below `limit`."""

    node: int
    form: Form
    dynamic: Dynamic = ()
    out: bool = False
    index_stride: int = 0
    limit: int = -1  # >= 0: indirect


@dataclass(slots=True)
class Draft:
    """Stages of (kind, instruction ids); an instruction is (op, dtype, args, imm) with `Address` or `Form` as imm where it has
    one."""

    instrs: list[tuple[str, DType, tuple[int, ...], Any]] = field(default_factory=list)
    stages: list[tuple[str, list[int]]] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)  # nodes whose whole value is stored
    ordered: Form | None = None  # R must run by decreasing coefficients of this form


def _number(value: bool | int | float, dtype: DType) -> str:
    """The text by which equal constants are known. Float64 numbers that are the same float32 are equal there."""
    return repr(c_float(value).value if dtype is float32 else value)


class BodyBuilder:
    """A `ScalarBuilder` that appends instructions to a draft, hoists what does not vary over R, and shares equal ones."""

    def __init__(self, reduced: frozenset[int], split: bool) -> None:
        self.draft = Draft()
        self.reduced = reduced
        self.split = split  # the kernel has inner dims: keep point and inner instructions apart
        self.outer: list[bool] = []  # per instruction: does not vary over R
        self.shared: dict[Any, int] = {}  # instructions of point stages, visible everywhere below
        self.local: dict[Any, int] = {}
        self.point: list[int] = []
        self.inner: list[int] = []
        self.coords: Coords = ()
        self.shape: Shape = ()

    def emit(self, op: str, dtype: DType, args: tuple[int, ...] = (), imm: Any = None, outer: bool = True) -> int:
        """Append (or find) an instruction; `outer` says that its own index does not vary over R."""
        key = (op, dtype, args, _number(imm, dtype) if op == "const" else imm)
        found = self.shared.get(key)
        if found is None:
            found = self.local.get(key)
        if found is not None:
            return found
        hoist = self.split and outer
        if hoist:
            for a in args:
                if not self.outer[a]:
                    hoist = False
                    break
        new = len(self.draft.instrs)
        self.draft.instrs.append((op, dtype, args, imm))
        self.outer.append(hoist)
        (self.shared if hoist else self.local)[key] = new
        (self.point if hoist else self.inner).append(new)
        return new

    def effect(self, op: str, dtype: DType, args: tuple[int, ...], imm: Any, point: bool) -> int:
        """Append a store or a reduction, never shared."""
        new = len(self.draft.instrs)
        self.draft.instrs.append((op, dtype, args, imm))
        self.outer.append(False)
        (self.point if point else self.inner).append(new)
        return new

    def finish(self, kind: str) -> None:
        """Close the current point and inner stages."""
        if self.point:
            self.draft.stages.append(("point", self.point))
        if self.inner:
            self.draft.stages.append((kind, self.inner))
        self.point, self.inner, self.local = [], [], {}

    def varies(self, form: Form) -> bool:
        """Whether a form depends on an inner dim."""
        reduced = self.reduced
        return any(d in reduced for d, _ in form[1])

    # ---------------------------------------------------------------- the scalar builder

    def dtype(self, x: int) -> DType:
        """Type of a value."""
        return self.draft.instrs[x][1]

    def const(self, value: bool | int | float, dtype: DType) -> int:
        """A number. -0.0 is written as -(0.0): structures compare with ==, which cannot tell the two zeros apart."""
        if dtype.category == 2:
            value = float(value)
            if value == 0 and str(value)[0] == "-":
                return self.emit("neg", dtype, (self.const(0.0, dtype),))
        elif dtype.category == 0:
            value = bool(value)
        else:
            value = int(value)
        return self.emit("const", dtype, (), value)

    def affine(self, form: Form) -> int:
        """An index expression as an int64 value."""
        return self.emit("affine", int64, (), form, not self.varies(form))

    def index(self, dim: int) -> int:
        """Coordinate of the current value along one of its dims."""
        return self.affine(self.coords[dim])

    def flat_index(self) -> int:
        """Row-major position in the current value."""
        return self.affine(dense(self.coords, self.shape))

    def cast(self, x: int, dtype: DType) -> int:
        """Conversion; a widened 16-bit float goes back without loss."""
        op, own, args, _ = self.draft.instrs[x]
        if own is dtype:
            return x
        if op == "cast" and self.dtype(args[0]) is dtype and dtype.compute is own:
            return args[0]
        return self.emit("cast", dtype, (x,))

    def bitcast(self, x: int, dtype: DType) -> int:
        """Same bits, other type."""
        return self.emit("bitcast", dtype, (x,))

    def select(self, condition: int, yes: int, no: int) -> int:
        """condition ? yes : no."""
        return self.emit("select", self.dtype(yes), (condition, yes, no))

    def fma(self, a: int, b: int, c: int) -> int:
        """a * b + c, rounded once."""
        return self.emit("fma", self.dtype(a), (a, b, c))

    def __getattr__(self, name: str) -> Any:  # tells type checkers that there are the methods below
        raise AttributeError(name)


def _instruction(name: str) -> Callable[..., int]:
    """The method of a builder for a scalar operation."""
    compare = name in scalar.COMPARE

    def instruction(self: BodyBuilder, *args: int) -> int:
        return self.emit(name, bool_ if compare else self.draft.instrs[args[0]][1], args)

    return instruction


for _name in scalar.CLOSED_SET:
    if not hasattr(BodyBuilder, _name):
        setattr(BodyBuilder, _name, _instruction(_name))


class Emitter:
    """Emits one group. `needed` are the nodes whose values somebody reads from memory."""

    def __init__(self, fusion: Fusion, g: Group, needed: set[int]) -> None:
        self.fusion = fusion
        self.reader = Reader(fusion)
        self.nodes = fusion.facts.nodes
        self.cls = fusion.facts.cls
        self.g = g
        self.members = sorted(g.members)
        self.stores = [m for m in self.members if m in needed and self.nodes[m].numel]
        self.writes = [w for w in g.writes if w.target in needed and self.nodes[w.value].numel]
        self.builder = BodyBuilder(g.reduced, bool(g.reduced))
        self.values: dict[Any, int] = {}  # (node, coords) -> instruction, valid in the current stage
        self.kept: dict[Any, int] = {}  # the same for values that do not vary over R
        self.levels: dict[int, int] = {}
        self.stage = 0
        self.computed: dict[Any, set[int]] = {}  # (node, coords) of an expensive value -> stages that evaluate it
        self.early: list[int] = []  # whole values that the first reduce stage stores
        self.stash: dict[Any, int] = {}  # such a value -> the output whose memory holds it from its first stage on
        self.stashed: set[Any] = set()

    def run(self) -> Draft:
        """The draft. Expensive values of several stages (the exponentials of a softmax) wait in the memory of an output. If nothing that is
        stored depends on a reduction (gradients of a product and of a broadcast operand), the first reduce stage stores it, and there is no
        other loop over R."""
        whole = [m for m in self.stores if self.g.coverage(self.g.place[m]) == "full"]
        if self.g.reduced and not self.writes and all(self.level(m) == 0 for m in whole):
            self.early = whole
        draft = self._stages()
        if not any(len(stages) > 1 for stages in self.computed.values()):
            return draft
        if self.early:  # their memory may be worth more to values of several stages
            self.early = []
            self._restart()
            self._stages()
        self.stash = self._choose_stash()
        self._restart()
        return self._stages()

    def _restart(self) -> None:
        self.builder = BodyBuilder(self.g.reduced, bool(self.g.reduced))
        self.values, self.kept, self.stage = {}, {}, 0

    def _choose_stash(self) -> dict[Any, int]:
        """Where values that several stages would evaluate are kept: outputs of their type that cover every iteration. A row must fit
        the cache, else memory is slower than the evaluation."""
        often = [key for key, stages in self.computed.items() if len(stages) > 1]
        if not often:
            return {}
        row = prod(self.g.extents[d] for d in self.g.reduced)
        free = [m for m in self.stores if self.g.coverage(self.g.place[m]) == "full"]
        found: dict[Any, int] = {}
        for key in sorted(often, key=lambda k: -self.fusion.facts.cost[k[0]]):
            dtype = self.nodes[key[0]].dtype
            target = next((m for m in reversed(free) if self.nodes[m].dtype is dtype and self.nodes[m].numel == self.g.size()), -1)
            if target >= 0 and row * dtype.itemsize <= STASH_BYTES and self.g.coverage(key[1]) == "full":
                free.remove(target)
                found[key] = target
        return found

    def _save(self) -> None:
        """Store the values of this stage that later ones want."""
        for key, target in self.stash.items():
            if key in self.values and key not in self.stashed:
                self.stashed.add(key)
                self.builder.effect("store", self.nodes[target].dtype, (self.values[key],), self._whole(target), False)

    def _whole(self, m: int) -> Address:
        return Address(m, dense(self.g.place[m], self.nodes[m].shape), out=True)

    def _stages(self) -> Draft:
        """All stages: one reduce stage per level of nested reductions, then the stores."""
        if self.g.reduced:
            wanted = self._closure([*self.stores, *(o for w in self.writes for o in (w.value, w.index) if o >= 0)], {})
            reductions = [m for m in self.members if self.cls[m] is Class.REDUCE and m in wanted]
            if self.stash:  # what is picked from a row (the score of a label) first: a saved value may take the row's memory
                for m in self.members:
                    if m in wanted and self.cls[m] is Class.MAP and self.level(m) == 0 and self.g.coverage(self.g.place[m]) == "row":
                        self.value(m, self.g.place[m])
            for level in range(1, 1 + max((self.level(m) for m in reductions), default=0)):
                self._reduce_stage([m for m in reductions if self.level(m) == level])
        if not self.stage:  # no reduction is left
            self.early = []
        late = [m for m in self.stores if m not in self.early]
        self._prepare([*late, *(w.value for w in self.writes), *(w.index for w in self.writes if w.index >= 0)])
        builder = self.builder
        ready = [(m, self.value(m, self.g.place[m])) for m in late]
        parts = [(w, self.value(w.value, w.coords), self.index_value(w)) for w in self.writes]
        for m, v in ready:
            point = bool(self.g.reduced) and self.g.coverage(self.g.place[m]) == "row"
            builder.effect("store", self.nodes[m].dtype, (v,), self._whole(m), point)
        for w, v, i in parts:
            self._write(w, v, i)
        builder.finish("map")
        builder.draft.stored = self.stores
        return builder.draft

    def _write(self, w: Write, value: int, index: int) -> None:
        dtype = self.nodes[w.target].dtype
        varies = self.builder.varies(w.form) or (w.index >= 0 and bool(self.g.reduced))
        point = bool(self.g.reduced) and not varies and self.g.coverage(w.coords) == "row"
        if w.index < 0 and not w.combine:
            self.builder.effect("store", dtype, (value,), Address(w.target, w.form, w.dynamic, True), point)
            return
        if index < 0:
            index = self.builder.const(0, int64)
        address = Address(w.target, w.form, w.dynamic, True, w.index_stride, w.limit)
        self.builder.effect(AT[w.combine], dtype, (value, index), address, point)
        self.builder.draft.ordered = self._order_of(w)

    def _order_of(self, w: Write) -> Form:
        return dense(w.coords, self.nodes[w.value].shape)

    def index_value(self, w: Write) -> int:
        """The run-time index of a write, -1 without one."""
        return self.value(w.index, w.index_coords) if w.index >= 0 else -1

    # ---------------------------------------------------------------- stages

    def _reduce_stage(self, reductions: list[int]) -> None:
        builder = self.builder
        early = self.early if self.stage == 0 else []
        self._prepare([*(self.nodes[m].inputs[0] for m in reductions), *early])
        results: list[tuple[int, int, Node]] = []
        for m in reductions:
            node = self.nodes[m]
            coords = self.g.inner[m]
            value = self.value(node.inputs[0], coords)
            combine = node.op.combine
            if combine in ("argmax", "argmin"):
                shape = self.nodes[node.inputs[0]].shape
                dims = node.attr("dims")
                extent = tuple(shape[d] for d in dims)
                position = flatten(tuple(coords[d] for d in dims), contiguous_strides(extent))
                builder.draft.ordered = position
                value = builder.cast(value, builder.dtype(value).compute)
                kind = int32 if prod(extent) < 1 << 31 else int64  # short indices: twice the lanes
                place = builder.cast(builder.affine(position), kind)
                results.append((m, builder.effect("reduce", kind, (value, place), combine, False), node))
                continue
            wide = node.dtype.compute
            value = builder.cast(value, wide)
            results.append((m, builder.effect("reduce", wide, (value,), combine, False), node))
        for m in early:
            builder.effect("store", self.nodes[m].dtype, (self.value(m, self.g.place[m]),), self._whole(m), False)
        self._save()
        builder.finish("reduce")
        self.stage += 1
        self.values = {}
        for m, v, node in results:
            builder.outer[v] = True
            self.kept[m, self.g.place[m]] = builder.cast(v, node.dtype)

    def level(self, node: int) -> int:
        """Number of nested reductions of this kernel below a value."""
        found = self.levels.get(node)
        if found is not None:
            return found
        result = 0
        if not (node not in self.g.place and self._loads(node)):
            for operand in self.nodes[node].inputs:
                source = self.reader.source(operand)
                if self.cls[source] in (Class.MAP, Class.REDUCE):
                    result = max(result, self.level(source))
            if self.cls[node] is Class.REDUCE:
                result += 1
        self.levels[node] = result
        return result

    def _loads(self, node: int) -> bool:
        """Whether a value from outside is read from memory here."""
        if self.cls[node] is Class.NUMBER:
            return False
        if self.cls[node] is Class.INPUT:
            return True
        stored = node in self.fusion.stored or self.cls[node] is not Class.MAP
        return stored and self.fusion.available(node) < self.g.order

    def _closure(self, roots: list[int], stop: dict[int, Any]) -> set[int]:
        """Members (and recomputed values) that the roots need, not looking through `stop`."""
        wanted: set[int] = set()
        stack = list(roots)
        while stack:
            node = self.reader.source(stack.pop())
            if node in wanted or node in stop or self.cls[node] is Class.NUMBER:
                continue
            if node not in self.g.place and self._loads(node):
                continue
            wanted.add(node)
            stack.extend(self.nodes[node].inputs)
        return wanted

    def _prepare(self, roots: list[int]) -> None:
        """Evaluate the members that the roots need in program order, so that evaluation never recurses deeply."""
        have = {node: True for node, _ in self.kept}
        wanted = self._closure(roots, have)
        place = self.g.place
        for m in self.members:
            if m in wanted and self.cls[m] is Class.MAP:
                self.value(m, place[m])

    # ---------------------------------------------------------------- values

    def value(self, operand: int, coords: Coords) -> int:
        """The instruction that holds `operand` at `coords`."""
        node = self.nodes[operand]
        if self.cls[operand] is Class.VIEW:
            return self._source(node.inputs[0], node, coords)
        return self._source(operand, None, coords)

    def address(self, src: int, view: Node | None, coords: Coords) -> Address:
        """Where `src` read through `view` at `coords` lies in memory."""
        if view is None:
            return Address(src, dense(coords, self.nodes[src].shape))
        if view.op.role == "view":
            return Address(src, flatten(coords, view.attr("strides"), view.attr("offset")))
        offset, dynamic = static_offset(self.nodes, view)
        return Address(src, flatten(coords, view.attr("strides"), offset), dynamic)

    def _number(self, node: Node) -> int:
        """A number, in the type that its own is computed in."""
        wide = node.dtype.compute
        if node.op.role == "constant":
            return self.builder.const(node.attrs[0], wide)
        return self.builder.emit("scalar", wide, (), node.attrs[0])

    def _source(self, src: int, view: Node | None, coords: Coords) -> int:
        builder = self.builder
        c = self.cls[src]
        node = self.nodes[src]
        if c is Class.NUMBER:
            return builder.cast(self._number(node), node.dtype)
        inside = src in self.g.place
        if not inside and self._loads(src):
            address = self.address(src, view, coords)
            return builder.emit("load", node.dtype, (), address, not builder.varies(address.form))
        at = self.reader.at(self.g, src, view, coords)
        assert at is not None, f"%{src} cannot be read at {coords}"
        key = (src, at)
        found = self.kept.get(key)
        if found is None:
            found = self.values.get(key)
        if found is None:
            if key in self.stashed:
                found = builder.emit("load", node.dtype, (), self._whole(self.stash[key]), False)
            else:
                found = self.compute(src, at)
                if self.g.reduced and not builder.outer[found] and node.dtype.compute is node.dtype and self._expensive(node):
                    self.computed.setdefault(key, set()).add(self.stage)
            (self.kept if builder.outer[found] else self.values)[key] = found
        return found

    def _expensive(self, node: Node) -> bool:
        return op_cost(node, tuple(self.nodes[s].dtype for s in node.inputs)) >= STASH_COST

    def compute(self, src: int, coords: Coords) -> int:
        """Evaluate a MAP node."""
        node = self.nodes[src]
        builder = self.builder
        role = node.op.role
        if role in VIEWS:
            return self._source(node.inputs[0], node, coords)
        if role == "lookup":
            return self._indexed(node, coords)
        if node.op.kind == "reduce":  # over dims of extent 1
            value = self.value(node.inputs[0], reduced_coords(node, self.nodes[node.inputs[0]].shape, coords))
            if node.op.combine == "sum" and node.dtype.category == 2:  # 0 + -0.0 = 0.0
                wide = node.dtype.compute
                return builder.cast(builder.add(builder.cast(value, wide), builder.const(0.0, wide)), node.dtype)
            return builder.const(0, int64) if node.op.combine.startswith("arg") else value
        assert node.op.body is not None, f"{node.op.name} has no body"
        args = []
        for position, operand in enumerate(node.inputs):
            if self.cls[operand] is Class.NUMBER and position in node.op.wide:
                args.append(self._number(self.nodes[operand]))
                continue
            shape = self.nodes[operand].shape
            v = self.value(operand, broadcast(coords, shape))
            args.append(builder.cast(v, builder.dtype(v).compute))
        builder.coords, builder.shape = coords, node.shape
        return builder.cast(node.op.body(builder, *args, *node.attrs), node.dtype)

    def _indexed(self, node: Node, coords: Coords) -> int:
        x, i = node.inputs
        view = self.nodes[x] if self.cls[x] is Class.VIEW else None
        src = self.reader.source(x)
        shape = self.nodes[x].shape
        dim = node.attr("dim")
        if node.op.aligned:
            index = self.value(i, coords)
            rest = coords[:dim] + (ZERO,) + coords[dim + 1 :]
        else:
            rank = len(self.nodes[i].shape)
            index = self.value(i, coords[dim : dim + rank])
            rest = coords[:dim] + (ZERO,) + coords[dim + rank :]
        base = self.address(src, view, rest)
        strides = contiguous_strides(shape) if view is None else view.attr("strides")
        address = Address(src, base.form, base.dynamic, False, strides[dim], shape[dim])
        return self.builder.emit("load_at", node.dtype, (index,), address, not self.builder.varies(base.form))
