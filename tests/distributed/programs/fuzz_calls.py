"""Random collectives on random views of random dtypes in random groups, some of them not waited for, against NumPy on the values of all ranks; run by
test_collectives.py with a first seed, a count, and how many members of a group write to each other."""

import random
import sys

import ml_dtypes
import numpy as np

import calque
import calque.distributed as dist
import calque.distributed.mpi as mpi
from calque.distributed import ReduceOp

mpi.DIRECT = int(sys.argv[3])
dist.init_process_group("mpi", timeout=60)
rank, size = dist.get_rank(), dist.get_world_size()
DTYPES = {
    calque.float16: np.float16, calque.bfloat16: ml_dtypes.bfloat16, calque.float32: np.float32, calque.float64: np.float64, calque.uint8: np.uint8,
    calque.int8: np.int8, calque.int16: np.int16, calque.int32: np.int32, calque.int64: np.int64, calque.complex64: np.complex64,
    calque.bool: np.bool_,
}  # fmt: skip
FOLD = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor,
}  # fmt: skip
LENGTHS = [0, 1, 2, 5, 48, 700, 5000, 9000, 40_000]  # around what comes along, what is done at once, and more
KINDS = ["all_reduce", "all_reduce", "broadcast", "all_gather", "into", "reduce", "scatter", "gather", "reduce_scatter", "rs_list", "barrier"]
members = [list(range(size))] + [sorted(random.Random(k).sample(range(size), random.Random(k).randint(1, size))) for k in range(3)]
GROUPS = [(None, members[0])] + [(dist.new_group(chosen), chosen) for chosen in members[1:]]


class Tensors:
    """A tensor on every rank: `mine` as it is here, and `all`, what NumPy says that each rank has. They show parts of larger ones."""

    def __init__(self, rng, dtype, shape, way):
        self.dtype, self.way, self.shape = dtype, way, shape
        low, high = (0, 2) if dtype is calque.bool else (1, 4)
        whole = {"plain": shape, "part": (shape[0] + 3, *shape[1:]), "turned": shape[::-1], "steps": (2 * shape[0], *shape[1:])}[way]
        numbers = np.random.default_rng(rng.getrandbits(32))
        self.wholes = [numbers.integers(low, high, whole).astype(np.float64) for _ in range(size)]
        special = rng.choice([np.nan, np.inf, None, None]) if dtype.is_floating_point and self.wholes[0].size else None
        if special is not None:
            self.wholes[numbers.integers(size)].reshape(-1)[numbers.integers(self.wholes[0].size)] = special
        self.wholes = [w.astype(DTYPES[dtype]) for w in self.wholes]
        self.whole = calque.tensor(self.wholes[rank]).to(dtype)
        self.mine = self.shown(self.whole, lambda t: t.t() if t.ndim == 2 else t)

    def shown(self, t, turn):
        return {"plain": lambda: t, "part": lambda: t[2:-1], "turned": lambda: turn(t), "steps": lambda: t[::2]}[self.way]()

    def all(self, r):
        return self.shown(self.wholes[r], np.transpose)

    def put(self, r, value):
        self.all(r)[...] = value

    def check(self, what):
        got = np.asarray(self.whole.to(calque.complex128 if self.dtype.is_complex else calque.float64))
        wanted = self.wholes[rank].astype(got.dtype)
        assert np.array_equal(got, wanted, equal_nan=True), (what, self.dtype, self.way, self.shape, got, wanted)


def fold(op, values, dtype):
    """What a reduction gives."""
    wide = [v.astype(np.float32) if dtype in (calque.float16, calque.bfloat16) else v for v in values]
    with np.errstate(all="ignore"):
        found = wide[0]
        for v in wide[1:]:
            found = FOLD[op](found, v)
        return found / np.asarray(len(values), found.dtype) if op is ReduceOp.AVG else found


def one(rng, made, handles):
    """One call on all ranks."""
    group, chosen = rng.choice(GROUPS)
    kind = rng.choice(KINDS)
    later = rng.random() < 0.5
    n, dtype = len(chosen), rng.choice(list(DTYPES))
    reduces = "reduc" in kind or kind == "rs_list"
    if reduces and dtype is calque.bool:
        dtype = calque.uint8
    kinds = [op for op in ReduceOp if not (
        op.name in ("BAND", "BOR", "BXOR") and (dtype.is_floating_point or dtype.is_complex)
        or op is ReduceOp.AVG and not (dtype.is_floating_point or dtype.is_complex) or op in (ReduceOp.MIN, ReduceOp.MAX) and dtype.is_complex)]
    op, root = rng.choice(kinds), rng.choice(chosen)
    length = rng.choice(LENGTHS)
    shape = rng.choice([(length,), (length, 1), (max(length // 5, 1), 5)])

    def new(shape=shape):
        found = Tensors(rng, dtype, shape, rng.choice(["plain", "plain", "part", "turned", "steps"]))
        made.append(found)
        return found

    old = [t for t in made if t.dtype is dtype and t.shape == shape]
    x = rng.choice(old) if old and rng.random() < 0.5 else new()
    outs = [new() for _ in range(n)] if kind in ("all_gather", "gather", "scatter", "rs_list") else []
    wide = new((shape[0] * n, *shape[1:])) if kind in ("into", "reduce_scatter") else None
    if rng.random() < 0.3:  # what is only recorded, or was computed a moment ago
        k = rng.choice([1, 2])
        if dtype is not calque.bool:
            x.mine.mul_(k)
            for r in range(size):
                with np.errstate(all="ignore"):
                    x.put(r, x.all(r) * np.asarray(k, x.wholes[0].dtype))
    here, values, work = rank in chosen, [x.all(r).copy() for r in chosen], None
    parts = [[o.all(r).copy() for o in outs] for r in range(size)]
    if kind == "all_reduce":
        work = dist.all_reduce(x.mine, op, group, later)
        for r in chosen:
            x.put(r, fold(op, values, dtype))
    elif kind == "broadcast":
        work = dist.broadcast(x.mine, root, group, later)
        for r in chosen:
            x.put(r, values[chosen.index(root)])
    elif kind == "all_gather":
        work = dist.all_gather([o.mine for o in outs], x.mine, group, later)
        for r in chosen:
            for o, v in zip(outs, values, strict=True):
                o.put(r, v)
    elif kind == "into":
        work = dist.all_gather_into_tensor(wide.mine, x.mine, group, later)
        for r in chosen:
            wide.put(r, np.concatenate(values))
    elif kind == "reduce":
        work = dist.reduce(x.mine, root, op, group, later)
        x.put(root, fold(op, values, dtype))
    elif kind == "gather":
        work = dist.gather(x.mine, [o.mine for o in outs] if rank == root else None, root, group, later)
        for o, v in zip(outs, values, strict=True):
            o.put(root, v)
    elif kind == "scatter":
        work = dist.scatter(x.mine, [o.mine for o in outs] if rank == root else None, root, group, later)
        for k, r in enumerate(chosen):
            x.put(r, parts[root][k])
    elif kind == "reduce_scatter":
        whole = fold(op, [wide.all(r).copy() for r in chosen], dtype)
        work = dist.reduce_scatter_tensor(x.mine, wide.mine, op, group, later)
        for k, r in enumerate(chosen):
            x.put(r, whole[shape[0] * k : shape[0] * (k + 1)])
    elif kind == "rs_list":
        work = dist.reduce_scatter(x.mine, [o.mine for o in outs], op, group, later)
        for k, r in enumerate(chosen):
            x.put(r, fold(op, [parts[q][k] for q in chosen], dtype))
    else:
        work = dist.barrier(group, later)
    assert (work is not None) == (later and here), (kind, work)
    if work is not None:
        handles.append(work)
    return f"{kind} {op.name} {dtype} {shape} {chosen} from {root}{' later' if later else ''}"


first, count = int(sys.argv[1]), int(sys.argv[2])
for seed in range(first, first + count):
    rng, own = random.Random(seed), random.Random(seed * 31 + rank)
    made, handles, said = [], [], []
    for _ in range(rng.randint(3, 12)):
        said.append(one(rng, made, handles))
        if rng.random() < 0.3:  # ranks read at other times
            if handles and own.random() < 0.5:
                handles.pop(own.randrange(len(handles))).wait()
            if own.random() < 0.3:
                t = own.choice(made)
                t.check((seed, said))
    own.shuffle(handles)
    for work in handles:
        work.wait()
        assert work.is_success()
    for t in made:
        t.check((seed, said))
print("all is well", flush=True)
