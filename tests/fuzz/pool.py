"""What a random program works on: a pool of tensors, the random choices, and the a-priori bound of the rounding error of every value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

FLOATS = ("float64", "float32", "float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = (*FLOATS, "float64", *INTEGERS, "bool")
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
SHAPES = ((4, 6), (6,), (2, 3, 4), (1, 6), (4, 1), (), (24,), (3, 1, 2), (8, 3), (2, 2, 4, 5), (1, 3, 6, 4), (5, 4))
BIG_SHAPES = ((40, 60), (60,), (6, 20, 20), (1, 60), (40, 1), (2400,), (80, 30), (4, 3, 16, 18), (130, 70))


class Root:
    """What handles on the same memory share: whether the values are exact, and the bound of their error."""

    __slots__ = ("err", "exact")

    def __init__(self, err: float = 0.0, exact: bool = True) -> None:
        self.err = err
        self.exact = exact


class Value:
    """One tensor of the pool."""

    __slots__ = ("tensor", "root", "name")

    def __init__(self, tensor: Any, root: Root, name: str) -> None:
        self.tensor, self.root, self.name = tensor, root, name

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def floating(self) -> bool:
        return self.dtype in EPS

    @property
    def numel(self) -> int:
        return prod(self.shape)


class Pool:
    """Tensors of `module` (Calque or PyTorch; `functional` is its functional), what they are called, and how they are made."""

    def __init__(
        self, seed: int, module: Any, functional: Any, flush: Callable[[], None], track: bool = False, eager: bool = False,
        big: bool = False, overlap: bool = True,
    ) -> None:  # fmt: skip
        self.T, self.F, self.flush, self.seed = module, functional, flush, seed
        self.track, self.eager = track, eager  # carry error bounds; flush after every step
        self.vague = False  # whether some gradient depends on a value that rounding leaves little of
        self.overlap = overlap  # False: only what PyTorch does in the same way
        self.shapes = BIG_SHAPES if big else SHAPES
        self.limit = 20_000 if big else 600
        self.pool: list[Value] = []
        self.leaves: list[Value] = []
        self.log: list[str] = []
        self.events: list[str] = []
        self.scale = 1.0
        self.coarsest = EPS["float64"]  # of the types that gradients pass through or are multiplied with
        self.count = 0
        self.rng = np.random.default_rng(seed)
        for _ in range(3):
            self.op_input()
        self.op_leaf()

    def draw(self, bound: int) -> int:
        return int(self.rng.integers(bound))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choose(self, items: Sequence[Any]) -> Any:
        return items[self.draw(len(items))]

    def pick(self, among: Callable[[Value], bool] | None = None) -> Value | None:
        found = [v for v in self.pool if v.numel <= self.limit and (among is None or among(v))]
        if not found:
            return None
        return self.choose(found[-6:] if self.chance(0.6) else found)

    def magnitude(self, t: Any) -> float:
        if t.numel() == 0:
            return 0.0
        found = float(np.abs(array_of(t.detach()).astype(np.float64)).max())
        self.scale = max(self.scale, found)
        return found

    def keep(self, t: Any, text: str, root: Root) -> Value:
        self.count += 1
        value = Value(t, root, f"v{self.count}")
        self.pool.append(value)
        if value.floating and (t.requires_grad or not root.exact):
            self.coarsest = max(self.coarsest, EPS[value.dtype])
        self.log.append(f"{value.name} = {text}  # {value.dtype} {value.shape}")
        if len(self.pool) > 24:
            del self.pool[self.draw(12)]
        return value

    def bound(self, t: Any, parents: Sequence[Value], gains: Sequence[float], terms: int = 1) -> float:
        """Error bound of a result whose derivative by parent i is at most gains[i] (infinity norm), with sums of `terms` terms."""
        if not self.track:
            return 0.0
        dtype = str(t.dtype).removeprefix("torch.")
        if dtype not in EPS:
            return 0.0
        total = 8 * EPS[dtype] * self.magnitude(t)
        for parent, gain in zip(parents, gains, strict=True):
            own = max(EPS[dtype], EPS.get(parent.dtype, 0.0))  # steps inside one call may round to the operand's type
            wide = own if own == EPS["float64"] else EPS["float32"]  # sums of narrow types are accumulated in float32
            total += gain * (2 * parent.root.err + 8 * (wide * terms + own) * self.magnitude(parent.tensor))
        return total

    def new(self, t: Any, text: str, parents: Sequence[Value], gains: Sequence[float] = (), terms: int = 1, exact: bool = False) -> Value:
        """A result in memory of its own."""
        exact = exact and all(p.root.exact for p in parents) or not t.dtype.is_floating_point
        if t.requires_grad:  # a gradient may be multiplied with what was computed on the way from any operand
            self.coarsest = max([self.coarsest, *(EPS[p.dtype] for p in parents if p.floating)])
        root = Root(0.0 if exact else self.bound(t, parents, gains or [1.0] * len(parents), terms), exact)
        return self.keep(t, text, root)

    def moved(self, t: Any, text: str, *parents: Value) -> Value:
        """A copy of parents' elements, in memory of its own."""
        return self.keep(t, text, Root(max((p.root.err for p in parents), default=0.0), all(p.root.exact for p in parents)))

    # ------------------------------------------------------------------------------------------------------ creation

    def values(self, shape: tuple[int, ...], dtype: str) -> Any:
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype in EPS:
            return np.asarray(self.rng.standard_normal(shape))
        return self.rng.integers(0 if dtype == "uint8" else -9, 10, shape)

    def tensor(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.T.tensor(self.values(shape, dtype).tolist(), dtype=getattr(self.T, dtype)).reshape(shape)

    def fresh(self, shape: tuple[int, ...], dtype: str) -> Value:
        return self.keep(self.tensor(shape, dtype), f"input({shape}, {dtype})", Root())

    def op_input(self) -> None:
        self.fresh(self.choose(self.shapes), self.choose(DTYPES))

    def op_leaf(self) -> None:
        shape, dtype = self.choose(self.shapes), self.choose(("float64", "float64", "float32"))
        leaf = self.keep(self.tensor(shape, dtype).requires_grad_(), "leaf", Root())
        self.leaves.append(leaf)

    def op_create(self) -> None:
        shape, dtype = self.choose(self.shapes), self.choose(DTYPES)
        kind, target = self.draw(4), getattr(self.T, dtype)
        if kind == 0:
            self.keep(self.T.full(shape, 1 if dtype == "bool" else 3, dtype=target), "full", Root())
        elif kind == 1 and dtype != "bool":
            self.keep(self.T.arange(0, 12, 2, dtype=target), "arange", Root())
        elif kind == 2:
            self.keep(self.T.zeros(shape, dtype=target), "zeros", Root())
        elif (v := self.pick()) is not None:
            self.keep(self.T.ones_like(v.tensor), f"ones_like({v.name})", Root())


def array_of(t: Any) -> Any:
    """A NumPy copy of the tensor's values (bfloat16 as float32)."""
    t = t.detach()
    if str(t.dtype) == "torch.bfloat16":
        t = t.float()
    return np.array(t.tolist(), dtype=str(t.dtype).removeprefix("torch.")).reshape(tuple(t.shape))


def overlapping(t: Any) -> bool:
    """Whether two indices of the tensor may name the same element."""
    spans = sorted((stride, size) for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1)
    reach = 0
    for stride, size in spans:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
