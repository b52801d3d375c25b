"""Every collective on two ranks, compared with NumPy on the values of both; run by test_collectives.py."""

import re

import numpy as np

import calque
import calque.distributed as dist
from calque.distributed import ReduceOp

dist.init_process_group("gloo", timeout=60)
rank, size = dist.get_rank(), dist.get_world_size()
assert size == 2 and dist.get_backend() == "mpi" and dist.is_initialized()

FLOATS = [calque.float16, calque.bfloat16, calque.float32, calque.float64]
INTS = [calque.uint8, calque.int8, calque.int16, calque.int32, calque.int64]
SHAPES = [(), (1,), (0,), (3, 5), (7, 3000)]  # the last is queued, the others are combined at once
REDUCE = {
    ReduceOp.SUM: lambda v: v.sum(0), ReduceOp.PRODUCT: lambda v: v.prod(0), ReduceOp.MIN: lambda v: v.min(0), ReduceOp.MAX: lambda v: v.max(0),
    ReduceOp.AVG: lambda v: v.mean(0), ReduceOp.BAND: np.bitwise_and.reduce, ReduceOp.BOR: np.bitwise_or.reduce, ReduceOp.BXOR: np.bitwise_xor.reduce,
}  # fmt: skip


def values(shape, dtype, r, salt=0):
    """What rank r has: small integers, so that every sum is exact."""
    numbers = np.random.default_rng([r, salt, len(shape), *shape]).integers(1, 6, shape)
    return calque.tensor(numbers).to(dtype)


def both(shape, dtype, salt=0):
    return [values(shape, dtype, r, salt) for r in range(size)]


def equal(got, wanted):
    assert np.array_equal(np.asarray(got.to(calque.float64)), np.asarray(wanted, np.float64)), (got, wanted)


for dtype in FLOATS + INTS:
    for shape in SHAPES:
        stack = np.stack([np.asarray(t.to(calque.int64)) for t in both(shape, dtype)])
        for op, reference in REDUCE.items():
            if op.name[0] == "B" and op is not ReduceOp.SUM and dtype in FLOATS or (op is ReduceOp.AVG and dtype in INTS):
                continue
            t = values(shape, dtype, rank)
            alias = t.view(-1)
            assert dist.all_reduce(t, op) is None
            equal(t, reference(stack))
            assert np.array_equal(np.asarray(alias.to(calque.float64)), np.asarray(t.view(-1).to(calque.float64)))  # every view sees it
        for root in range(size):
            t = values(shape, dtype, rank)
            dist.broadcast(t, root)
            equal(t, stack[root])
            t = values(shape, dtype, rank)
            dist.reduce(t, root)
            equal(t, stack.sum(0) if rank == root else stack[rank])
            out = [calque.empty(shape, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(values(shape, dtype, rank), out, root)
            for r in range(size if rank == root else 0):
                equal(out[r], stack[r])
            t = calque.empty(shape, dtype=dtype)
            dist.scatter(t, [values(shape, dtype, root, s) for s in range(size)] if rank == root else None, root)
            equal(t, np.asarray(values(shape, dtype, root, rank).to(calque.int64)))
        out = [calque.empty(shape, dtype=dtype) for _ in range(size)]
        dist.all_gather(out, values(shape, dtype, rank))
        for r in range(size):
            equal(out[r], stack[r])
        into = calque.empty((size, *shape), dtype=dtype)
        work = dist.all_gather_into_tensor(into, values(shape, dtype, rank), async_op=True)
        assert work.wait() and work.is_completed() and work.is_success() and work.result()[0] is into
        equal(into, stack)
        part = calque.empty(shape, dtype=dtype)
        dist.reduce_scatter_tensor(part, values((size, *shape), dtype, rank))
        wholes = np.stack([np.asarray(t.to(calque.int64)) for t in both((size, *shape), dtype)])
        equal(part, wholes.sum(0)[rank])
        part = calque.empty(shape, dtype=dtype)
        dist.reduce_scatter(part, list(values((size, *shape), dtype, rank)), ReduceOp.MAX)
        equal(part, wholes.max(0)[rank])

# Bytes travel in any dtype, booleans and complex numbers too.
for dtype in (calque.bool, calque.complex64, calque.float8_e5m2):
    out = [calque.zeros(4).to(dtype) for _ in range(size)]
    dist.all_gather(out, calque.tensor([0.0, 1.0, rank, 1.0]).to(dtype))
    assert [t.to(calque.complex64).real.tolist() for t in out] == [[0.0, 1.0, r, 1.0] for r in range(size)]
z = calque.tensor([1 + 2j]) * (rank + 1)
dist.all_reduce(z)
assert z.tolist() == [3 + 6j]

# Lists of different shapes, and parts of one tensor.
mine = [calque.full((r + 1, rank + 2), float(10 * rank + r)) for r in range(size)]
theirs = [calque.empty(rank + 1, r + 2) for r in range(size)]
dist.all_to_all(theirs, mine)
assert [t.tolist() for t in theirs] == [[[10.0 * r + rank] * (r + 2)] * (rank + 1) for r in range(size)]
out = calque.empty(3 if rank == 0 else 5, 2)
dist.all_to_all_single(out, calque.arange(8.0).reshape(4, 2) + 100 * rank, [1, 2] if rank == 0 else [3, 2], [1, 3] if rank == 0 else [2, 2])
whole = [np.arange(8.0).reshape(4, 2) + 100 * r for r in range(size)]
equal(out, np.concatenate([whole[0][:1], whole[1][:2]] if rank == 0 else [whole[0][1:], whole[1][2:]]))
out = calque.empty(4)
dist.all_to_all_single(out, calque.arange(4.0) + 10 * rank)
assert out.tolist() == ([0.0, 1.0, 10.0, 11.0] if rank == 0 else [2.0, 3.0, 12.0, 13.0])

# What is written in place: a transposed view, a part, memory that NumPy sees, a value that others share, one that is only recorded.
base = calque.zeros(4, 6)
part = base[1:3, ::2].t()
part.copy_(calque.ones(3, 2) * (rank + 1))
dist.all_reduce(part)
assert base.sum().item() == 18 and part.tolist() == [[3.0, 3.0]] * 3
array = np.ones(5, np.float32) * (rank + 1)
shared = calque.from_numpy(array)
dist.all_reduce(shared)
assert array.tolist() == [3.0] * 5 == shared.tolist()
original = calque.ones(3) * (rank + 1)
twin = original.clone()
before = original * 10
dist.all_reduce(original)
after = original * 10
assert (twin.tolist(), before.tolist(), after.tolist()) == ([rank + 1.0] * 3, [10.0 * rank + 10] * 3, [30.0] * 3)
w = calque.ones(3, requires_grad=True)
y = (w * w).sum()
dist.all_reduce(w.data)
try:
    y.backward()
    raise SystemExit("a value that backward needs was overwritten, and nobody said so")
except RuntimeError as error:
    assert "modified" in str(error) or "in-place" in str(error) or "changed" in str(error), error

# The order of tasks is that of the calls, whatever is there first: a long computation, then a short one.
slow = calque.ones(600, 600)
for _ in range(6):
    slow = slow @ slow / 600
quick = calque.ones(20_000) * (rank + 1)
works = [dist.all_reduce(slow, async_op=True), dist.all_reduce(quick, async_op=True)]
assert quick[0].item() == 3 and slow[0, 0].item() == 2 and all(w.wait() for w in works)
many = [calque.full((20_000,), float(k + rank)) for k in range(100)]
for t in many:
    dist.all_reduce(t)
assert [t[7].item() for t in many] == [2.0 * k + 1 for k in range(100)]


@calque.compile
def hybrid(t):
    t = t * 2
    dist.all_reduce(t)
    return t + 1


for k in range(4):  # recorded calls run as they are written
    assert hybrid(calque.ones(3) * (rank + k)).tolist() == [2.0 * (2 * k + 1) + 1] * 3

# With gradients: what one rank has goes into the results of all.
from calque.distributed.functional import all_gather as gathered, all_reduce as summed  # noqa: E402, I001

w = (calque.ones(3) * (rank + 1)).requires_grad_()
total, mean = summed(w * w), summed(w, ReduceOp.AVG)
((total * (rank + 1)).sum() + mean.sum()).backward()
assert total.tolist() == [5.0] * 3 and mean.tolist() == [1.5] * 3 and w.grad.tolist() == [3.0 * 2 * (rank + 1) + 1] * 3
w.grad = None
parts = gathered(w * 2)
(parts[0].sum() * 10 + parts[1].sum() * (rank + 1)).backward()
assert [p.tolist() for p in parts] == [[2.0] * 3, [4.0] * 3] and w.grad.tolist() == ([40.0] * 3 if rank == 0 else [6.0] * 3)
try:
    summed(w, ReduceOp.MAX)
    raise SystemExit("MAX has no gradient")
except ValueError as error:
    assert "ReduceOp.SUM or AVG" in str(error)

# Objects.
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank, "t": calque.ones(2) * rank, 3: [None, True, 1.5, b"x", (1, "é" * rank)]})
assert [(o["rank"], o["t"].tolist(), o[3]) for o in objects] == [(r, [float(r)] * 2, [None, True, 1.5, b"x", (1, "é" * r)]) for r in range(size)]
gathered = [None] * size if rank == 1 else None
dist.gather_object(rank, gathered, dst=1)
assert gathered == ([0, 1] if rank == 1 else None)
listed = ["a", {"b": 2}] if rank == 0 else [None, None]
dist.broadcast_object_list(listed, src=0)
assert listed == ["a", {"b": 2}]
given = [None]
dist.scatter_object_list(given, ["zero", "one"] if rank == 0 else None, src=0)
assert given == [["zero", "one"][rank]]
try:
    dist.all_gather_object([None] * size, lambda: 0)
    raise SystemExit("a function was sent")
except TypeError:
    pass

# Messages: blocking, both directions at once (more than fits in any buffer), from anyone, in batches, and a pipeline of dependent ones.
if rank == 0:
    dist.send(calque.arange(5), 1, tag=3)
    got = calque.zeros(2)
    assert dist.recv(got) == 1 and got.tolist() == [7.0, 7.0]
else:
    got = calque.zeros(5, dtype=calque.int64)
    assert dist.recv(got, 0, tag=3) == 0 and got.tolist() == [0, 1, 2, 3, 4]
    dist.send(calque.full((2,), 7.0), 0)
other = 1 - rank
sent, got = calque.full((1_000_000,), float(rank)), calque.empty(1_000_000)
work = dist.isend(sent, other)
sent.add_(100)  # what was sent is what it was then
received = dist.irecv(got, other)
assert (got * 2).sum().item() == 2e6 * other and work.wait() and received.source_rank() == other
a, b = calque.empty(3), calque.empty(4)
for work in dist.batch_isend_irecv([
    dist.P2POp(dist.isend, calque.ones(3) * rank, other), dist.P2POp(dist.irecv, a, other),
    dist.P2POp(dist.isend, calque.ones(4) * rank, other), dist.P2POp(dist.irecv, b, other),
]):  # fmt: skip
    work.wait()
assert a.tolist() == [other] * 3 and b.tolist() == [other] * 4
first, second = calque.empty(2), calque.empty(2)
if rank == 0:  # the second message is waited for first
    one, two = dist.irecv(first, 1, tag=1), dist.irecv(second, 1, tag=2)
    two.wait()
    dist.send(second + 1, 1)
    assert one.wait() and first.tolist() == [6.0, 6.0]
else:
    dist.send(calque.full((2,), 4.0), 0, tag=2)
    dist.recv(first, 0)
    dist.send(first + 1, 0, tag=1)

# A message of another dtype, or size, is an error of who expects it; it would be read as other numbers.
if rank == 0:
    for shape, text in ((6, "expected a message of dtype torch.float32, got one of another dtype"), (7, "expected 28 bytes .* got a message of 24")):
        try:
            dist.recv(calque.zeros(shape), 1)
            raise SystemExit("another dtype was read")
        except (TypeError, RuntimeError, ValueError) as error:
            assert re.search(text, str(error)), error
else:
    for _ in range(2):
        dist.send(calque.zeros(3, dtype=calque.float64), 0)

# Groups.
pair, alone = dist.new_group(), dist.new_group([1], timeout=30)
assert dist.get_process_group_ranks(pair) == [0, 1] and dist.get_rank(alone) == (0 if rank == 1 else -1)
assert dist.get_world_size(alone) == (1 if rank == 1 else -1)
t = calque.ones(2) * (rank + 1)
dist.all_reduce(t, group=alone)
assert t.tolist() == [rank + 1.0] * 2
dist.all_reduce(t, group=pair)
assert t.tolist() == [3.0, 3.0]
if rank == 1:
    assert dist.get_global_rank(alone, 0) == 1 and dist.get_group_rank(alone, 1) == 0
    t = calque.ones(1)
    dist.broadcast(t, 1, group=alone)

# NaN goes into every minimum and maximum, on every rank, however much travels.
for length in (3, 100_000):
    for op in (ReduceOp.MIN, ReduceOp.MAX):
        for who in range(size):
            t = calque.full((length,), float(rank))
            if rank == who:
                t[1] = float("nan")
            dist.all_reduce(t, op)
            assert t.isnan().sum().item() == 1 and t[1].isnan() and t[2].item() == (0.0 if op is ReduceOp.MIN else 1.0), (length, op, who, t)

# An asynchronous call does not wait for the others: here they come to it when they have sent what is received behind it, under any tag.
for length in (2, 100_000):
    for tag in range(12):
        t, large = calque.ones(length), calque.full((300_000,), 5.0)
        if rank == 0:
            work = dist.all_reduce(t, async_op=True)
            assert not work.is_completed()
            assert dist.recv(large, 1, tag=tag) == 1 and large.sum().item() == 1.5e6
            assert work.wait() and work.is_success()
        else:
            dist.send(large, 0, tag=tag)
            dist.all_reduce(t)
        assert t.sum().item() == 2 * length

# Wrong arguments: said before anything is sent, so that everything works afterwards.
WRONG = [
    (lambda: dist.all_reduce([1.0]), TypeError, "expected tensor to be a Tensor, got list"),
    (lambda: dist.all_reduce(calque.ones(1, device="meta")), ValueError, "on device 'meta'"),
    (lambda: dist.all_reduce(calque.ones(1), op="sum"), ValueError, "ReduceOp.SUM"),
    (lambda: dist.all_reduce(calque.ones(1), op=ReduceOp.BAND), TypeError, "BAND"),
    (lambda: dist.all_reduce(calque.ones(1, dtype=calque.int32), op=ReduceOp.AVG), TypeError, "AVG"),
    (lambda: dist.all_reduce(calque.ones(1, dtype=calque.bool)), TypeError, "uint8"),
    (lambda: dist.all_reduce(calque.ones(1), group=[0, 1]), ValueError, "new_group() makes one"),
    (lambda: dist.broadcast(calque.ones(1), 2), ValueError, "one of [0, 1], got 2"),
    (lambda: dist.broadcast(calque.ones(1)), ValueError, "got None"),
    (lambda: dist.all_gather([calque.ones(1)], calque.ones(1)), ValueError, "a list of 2 tensors"),
    (lambda: dist.all_gather([calque.ones(2), calque.ones(1)], calque.ones(1)), ValueError, "(1,) and (2,)"),
    (lambda: dist.all_gather_into_tensor(calque.ones(3), calque.ones(1)), ValueError, "2 times 1 elements"),
    (lambda: dist.reduce_scatter_tensor(calque.ones(1), calque.ones(2, dtype=calque.int64)), TypeError, "one dtype"),
    (lambda: dist.all_to_all_single(calque.ones(3), calque.ones(3)), ValueError, "2 ranks divide"),
    (lambda: dist.send(calque.ones(1), rank), ValueError, "another process"),
    (lambda: dist.send(calque.ones(1), other, tag=-1), ValueError, "tag"),
    (lambda: dist.new_group([0, 5]), ValueError, "from 0 to 1"),
    (lambda: dist.new_group([0], timeout=-1), ValueError, "timeout"),
    (lambda: dist.init_process_group("gloo"), RuntimeError, "destroy_process_group"),
    (lambda: dist.all_gather_object([None], 1), ValueError, "a list of 2 items"),
]  # fmt: skip
for call, kind, text in WRONG:
    try:
        call()
        raise SystemExit(f"nothing was wrong with what should say {text}")
    except kind as error:
        assert text in str(error), (text, error)
dist.barrier()
dist.monitored_barrier()
dist.destroy_process_group()
assert not dist.is_initialized()
dist.init_process_group("mpi")  # once more, in the same processes
t = calque.ones(1)
dist.all_reduce(t)
assert t.item() == 2
print("all is well")
