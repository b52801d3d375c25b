"""Seeded bugs: one small change of one line each, of kinds that really happen, and the narrow tests that must notice.

`old` occurs exactly once in the file. When a line moves or changes, change its row with it: a row that no longer applies is an error of
the run, not a survivor.
"""

from __future__ import annotations

from dataclasses import dataclass

KERNEL = ("tests/kernel/test_fusion.py", "tests/kernel/test_memory.py", "tests/kernel/test_memo.py", "tests/kernel/test_random_programs.py")
INDEX = ("tests/kernel/test_index.py", *KERNEL)
CODE = (
    "tests/backend/test_cpu_tails.py",
    "tests/backend/test_cpu_kernels.py",
    "tests/backend/test_cpu_extremes.py",
    "tests/backend/test_cpu_runtime.py",
)
STORE = ("tests/backend/test_cpu_cache.py", "tests/backend/test_cpu_compile.py", "tests/backend/test_cpu_cache_attacks.py")
COMPILING = ("tests/backend/test_cpu_processes.py", "tests/backend/test_cpu_compile.py", "tests/backend/test_contract_ways.py")
RECORD = ("tests/record/test_recorder.py", "tests/run/test_memory.py", "tests/functional/test_indexing.py")
GRAD = ("tests/autograd", "tests/functional/test_gradients.py", "tests/ops/test_gradients.py")
OPS = ("tests/ops/test_ops.py", "tests/ops/test_definitions.py", "tests/ops/test_gradients.py")
GRAPH = ("tests/graph", "tests/kernel/test_random_programs.py")
DATA = ("tests/data",)
OPTIM = ("tests/optim",)
SHAPES = ("tests/functional/test_views.py", "tests/functional/test_indexing.py", "tests/kernel")


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replace `old` by `new` in `path`; `tests` must fail then."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


CPU, K = "calque/backend/cpu/", "calque/kernel/"

MUTANTS: tuple[Mutant, ...] = (
    # ------------------------------------------------------------------------------------------------------- index arithmetic
    Mutant("flatten forgets the shift", "calque/ir/index.py", "            offset += stride * shift\n", "", INDEX),
    Mutant(
        "unflatten accepts one row too many",
        "calque/ir/index.py",
        "if low[k] < 0 or high[k] >= shape[k]:",
        "if low[k] < 0 or high[k] > shape[k]:",
        INDEX,
    ),
    Mutant("a split swaps the strides", "calque/ir/index.py", "(dim, coef * inner), (fresh, coef)", "(dim, coef), (fresh, coef * inner)", INDEX),
    Mutant("broadcast keeps unit dims", "calque/ir/index.py", "return tuple(ZERO if e == 1 else f", "return tuple(ZERO if e == 0 else f", INDEX),
    # ------------------------------------------------------------------------------------------------------------------ fusion
    Mutant("a group reads what is computed later", K + "reader.py", "early = outside and fusion.available(src) < g.order", "early = outside", KERNEL),
    Mutant("the other place of a value is good enough", K + "reader.py", "if at is not None and at == g.place[src]:", "if at is not None:", KERNEL),
    Mutant("reductions of other dims join", K + "fuse.py", "return inner == g.reduced", "return True", KERNEL),
    Mutant(
        "an update overwrites what is read later",
        K + "memory.py",
        "if sum(1 for _, b in entry.bases if b == base) > 1 or max(self.readers[base]) > k:",
        "if sum(1 for _, b in entry.bases if b == base) > 1:",
        KERNEL,
    ),
    Mutant(
        "a moved group is not checked for readability",
        K + "fuse.py",
        "(g.sources.isdisjoint(moved) or self._still_readable(g, before, everything))",
        "True",
        KERNEL,
    ),
    Mutant(
        "pieces of cat start one early",
        K + "fuse.py",
        "offset += self.nodes[piece].shape[dim] * strides[dim]",
        "offset += (self.nodes[piece].shape[dim] - 1) * strides[dim]",
        KERNEL,
    ),
    # ---------------------------------------------------------------------------------------------------------------- lowering
    Mutant(
        "dims merge although strides disagree",
        K + "lower.py",
        "if c.get(d, 0) != c.get(inner, 0) * extent:",
        "if c.get(d, 0) < c.get(inner, 0) * extent:",
        KERNEL,
    ),
    Mutant("an index loses its multiplier", K + "lower.py", "            if c != 1:\n", "            if c > 1 << 40:\n", KERNEL),
    Mutant(
        "a dead store's operand stays out",
        K + "lower.py",
        "                    alive[k] = True\n                    for a in args:\n                        alive[a] = True",
        "                    alive[k] = True\n                    for a in args[:1]:\n                        alive[a] = True",
        KERNEL,
    ),
    Mutant(
        "the memo forgets offsets",
        K + "memo.py",
        "                positions.append((position, (number[node], self.offsets[node, launch.params[position]])))",
        "                pass",
        KERNEL,
    ),
    Mutant("the memo's key forgets constants", K + "memo.py", 'return "constant", repr(n.attrs[0]), n.dtype', 'return "constant", n.dtype', KERNEL),
    Mutant(
        "the memo's key forgets what is stored",
        K + "memo.py",
        "return tuple(rows), tuple(writes), stores, ",
        "return tuple(rows), tuple(writes), ",
        KERNEL,
    ),
    Mutant(
        "reduced results at the operand's place",
        K + "emit.py",
        "self.kept[m, self.g.place[m]] = builder.cast(v, node.dtype)",
        "self.kept[m, self.g.inner[m]] = builder.cast(v, node.dtype)",
        KERNEL,
    ),
    Mutant(
        "positions count the reduced dims in the wrong order",
        K + "emit.py",
        "position = flatten(tuple(coords[d] for d in dims), contiguous_strides(extent))",
        "position = flatten(tuple(coords[d] for d in dims), contiguous_strides(extent[::-1]))",
        KERNEL,
    ),
    # ------------------------------------------------------------------------------------------------------------------ memory
    Mutant(
        "an update overwrites a base that is an output",
        K + "memory.py",
        "if not self.reuse or base in self.kept or not self.nodes[base].numel:",
        "if not self.reuse or not self.nodes[base].numel:",
        KERNEL,
    ),
    Mutant(
        "memory is freed one step early",
        K + "memory.py",
        "dying.setdefault(block.last, []).append(block)",
        "dying.setdefault(max(block.first, block.last - 1), []).append(block)",
        KERNEL,
    ),
    Mutant(
        "two blocks in one range",
        K + "arena.py",
        "insort(self.free, (offset + size, room - size))",
        "insort(self.free, (offset + size // 2, room - size))",
        KERNEL,
    ),
    # --------------------------------------------------------------------------------------------------------- code generation
    Mutant("launches do not wait for each other", CPU + "text/runtime_text.py", "%must = or i1 %last, %ordered", "%must = or i1 %last, false", CODE),
    Mutant(
        "barriers only at the end",
        CPU + "program/link.py",
        "            flags[-1] |= 1\n",
        "            flags[-1] |= 0\n",
        ("tests/backend/test_cpu_runtime.py", "tests/backend/test_cpu_kernels.py"),
    ),
    Mutant(
        "parts of a result that begin at its first row",
        CPU + "contract/finish.py",
        "b.add(b.word(slot, ROW), row)",
        "b.add(0, row)",
        ("tests/backend/test_epilogue.py",),
    ),
    Mutant(
        "loops over results that lie elsewhere",
        K + "epilogue.py",
        "return same if same & written else set()",
        "return same",
        ("tests/kernel/test_epilogue.py",),
    ),
    Mutant(
        "conflicts only with the last launch",
        CPU + "program/link.py",
        "        recent += ranges\n",
        "        recent = ranges\n",
        CODE,
    ),
    Mutant(
        "addresses without the arena's offset",
        CPU + "program/link.py",
        "            byte_offset += b.index\n", "            byte_offset += 0\n",
        CODE,
    ),
    Mutant(
        "an index beyond the table",
        CPU + "loops/emit_memory.py",
        'self.limits.append(code.sub(self._word("i64"), 1) if access.indirect else "0")',
        'self.limits.append(self._word("i64") if access.indirect else "0")',
        CODE,
    ),
    Mutant(
        "masked lanes join a reduction",
        CPU + "loops/emit_reduce.py",
        "s.select(reduction.kind, mask, merged, old[0]) if mask else merged",
        "merged",
        CODE,
    ),
    Mutant("the largest of nothing is 0", CPU + "loops/emit_reduce.py", "return -math.inf if largest else math.inf", "return 0.0", CODE),
    Mutant(
        "equal values: the last wins",
        CPU + "loops/emit_reduce.py",
        'earlier = s.op("and", "i1", equal, s.compare("slt", index, new[1], old[1]))',
        'earlier = s.op("and", "i1", equal, s.compare("sgt", index, new[1], old[1]))',
        CODE,
    ),
    Mutant(
        "NaN loses in max",
        CPU + "loops/emit_reduce.py",
        'return s.select(self.kind, s.compare("uno", self.kind, new, new), new, old)',
        "return old",
        CODE,
    ),
    Mutant("half of the partial sums", CPU + "loops/emit.py", "            if parts and single:\n", "            if False:\n", CODE),
    # ------------------------------------------------------------------------------------------------------- cache and compiling
    Mutant(
        "the key forgets the target",
        CPU + "code/library.py",
        "parts = (kind, text, target.key, llvm.version(), _SOURCES)",
        "parts = (kind, text, llvm.version(), _SOURCES)",
        STORE,
    ),
    Mutant(
        "files of others are trusted",
        CPU + "compile/cache.py",
        "return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022",
        "return not stat.S_IMODE(status.st_mode) & 0o022",
        STORE,
    ),
    Mutant("links are followed", CPU + "compile/cache.py", "os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC", "os.O_RDONLY | os.O_CLOEXEC", STORE),
    Mutant(
        "the checksum forgets the key",
        CPU + "compile/cache.py",
        "hashlib.sha256(MAGIC + key.encode() + data)", "hashlib.sha256(MAGIC + data)",
        STORE,
    ),
    Mutant(
        "objects in the order of their end",
        CPU + "code/llvm.py",
        "self.objects[number] = compiler.object_code(",
        "self.objects[-1 - number] = compiler.object_code(",
        STORE,
    ),
    Mutant(
        "the modules of a lost process are forgotten",
        CPU + "compile/processes.py",
        "number for number in c.pending if number >= 0]))\n            self._fail(str",
        "number for number in c.pending if number > 99]))\n            self._fail(str",
        COMPILING,
    ),
    Mutant(
        "answers to a failed batch are believed",
        CPU + "compile/processes.py",
        "c.pending = deque([-1] * len(c.pending))",
        "c.pending = deque(c.pending)",
        COMPILING,
    ),
    Mutant(
        "compilers stay for ever",
        CPU + "compile/processes.py",
        "if time.monotonic() - self._used >= IDLE:",
        "if time.monotonic() - self._used >= 1e9:",
        COMPILING,
    ),
    Mutant("an embedding program is started", CPU + "compile/processes.py", 'r"python[\\d.]*[a-z]*$"', 'r".*"', COMPILING),
    Mutant(
        "strength reduction stays as it was",
        CPU + "compile/compiler.py",
        "if self.reducing is not reduces(level):",
        "if self.reducing is None:",
        COMPILING,
    ),
    Mutant(
        "direct convolutions count as those of patches",
        CPU + "contract/claims.py",
        'if way.pairs >= blocking.pairs and way.takes(b, p, w) == "1":',
        'if way.pairs >= blocking.pairs and way.takes(b, p, w) == "1" and way.name != "direct":',
        COMPILING,
    ),
    Mutant(
        "a choice of ways is never made anew",
        CPU + "code/library.py",
        "above = not choices.isdisjoint",
        "above = False and not choices.isdisjoint",
        COMPILING,
    ),
    # ---------------------------------------------------------------------------------------------------------------- recorder
    Mutant(
        "a baked number is found for another",
        "calque/record/numbers.py",
        '    if tag is None or (value == 0 and math.copysign(1.0, value) < 0):\n        return "s"',
        '    if tag is None:\n        return "s"',
        (*RECORD, "tests/functional"),
    ),
    Mutant(
        "shared buffers are overwritten",
        "calque/record/exclusive.py",
        "alone = few and ((home.owner is None and home.export is None) or not home.shared())",
        "alone = few",
        (*RECORD, "tests/functional", "tests/oracle/test_aliasing.py"),
    ),
    Mutant(
        "what is packed stays packed though somebody writes to the weights",
        "calque/record/exclusive.py",
        "few = getrefcount(home) <= 4 + home.pins or (let_go(home) and getrefcount(home) <= 4 + home.pins)",
        "few = getrefcount(home) <= 5 + home.pins",
        ("tests/run/test_prepacking.py",),
    ),
    Mutant("the version does not count writes", "calque/record/recorder.py", "    storage.version += 1\n", "", (*RECORD, "tests/autograd")),
    # ----------------------------------------------------------------------------------------------------------------- algebra
    Mutant(
        "x + 0 with the wrong zero",
        "calque/graph/algebra.py",
        'if n.dtype.category != 2 or str(float(value))[0] == "-":',
        'if n.dtype.category != 2 or str(float(value))[0] != "-":',
        GRAPH,
    ),
    Mutant(
        "subtraction commutes",
        "calque/ops/binary.py",
        '    dtype=numeric("sub"),\n    complex="direct",\n    exact=True,\n    wraps=True,\n)',
        '    dtype=numeric("sub"),\n    complex="direct",\n    exact=True,\n    wraps=True,\n    commutative=True,\n)',
        GRAPH,
    ),
    Mutant(
        "casts through a narrow type vanish",
        "calque/graph/algebra.py",
        "        if holds(first.dtype, source.dtype):\n",
        "        if True:\n",
        GRAPH,
    ),
    Mutant(
        "a long reduction loses its rest",
        "calque/graph/simplify.py",
        "    tail = shape[dim] - count * rows\n",
        "    tail = 0\n",
        ("tests/graph", "tests/backend/test_cpu_extremes.py", "tests/functional/test_reductions.py", "tests/oracle/test_reductions.py"),
    ),
    # ---------------------------------------------------------------------------------------------------------------- autograd
    Mutant(
        "sub: the sign of the second gradient",
        "calque/ops/binary.py",
        '(Vjp(lambda F, g, c: g), Vjp(lambda F, g, c: -g)),\n    dtype=numeric("sub"),',
        '(Vjp(lambda F, g, c: g), Vjp(lambda F, g, c: g)),\n    dtype=numeric("sub"),',
        GRAD,
    ),
    Mutant(
        "mul: operands swapped",
        "calque/ops/binary.py",
        "(Vjp(lambda F, g, c: g * c.x(1), (1,)), Vjp(lambda F, g, c: g * c.x(0), (0,)))",
        "(Vjp(lambda F, g, c: g * c.x(0), (0,)), Vjp(lambda F, g, c: g * c.x(1), (1,)))",
        GRAD,
    ),
    Mutant(
        "tanh: 1 + y^2",
        "calque/ops/elementwise.py",
        "np.tanh, Vjp(lambda F, g, c: g * (1 - c.out * c.out), (-1,))",
        "np.tanh, Vjp(lambda F, g, c: g * (1 + c.out * c.out), (-1,))",
        GRAD,
    ),
    Mutant(
        "cos: the sign",
        "calque/ops/elementwise.py",
        "Vjp(lambda F, g, c: -g * F.sin(c.x(0)), (0,))",
        "Vjp(lambda F, g, c: g * F.sin(c.x(0)), (0,))",
        GRAD,
    ),
    Mutant(
        "a second gradient replaces the first",
        "calque/autograd/engine.py",
        "            pending[key] = total(waiting, gradient)\n",
        "            pending[key] = gradient\n",
        GRAD,
    ),
    Mutant(
        "gradients of leaves do not accumulate",
        "calque/autograd/leaves.py",
        "    both = held + gradient\n",
        "    both = gradient + 0.0\n",
        GRAD,
    ),
    Mutant(
        "nodes in the order of their creation",
        "calque/autograd/engine.py",
        "                    heapq.heappush(self.heap, (-target.number, key, target))",
        "                    heapq.heappush(self.heap, (target.number, key, target))",
        GRAD,
    ),
    Mutant(
        "modified values go unnoticed",
        "calque/autograd/engine.py",
        "if isinstance(storage, Storage) and modified(storage, version):",
        "if isinstance(storage, Storage) and storage.version < version and modified(storage, version):",
        GRAD,
    ),
    Mutant(
        "broadcast gradients are not summed",
        "calque/autograd/engine.py",
        "            if tuple(g._layout.shape) != shape:\n",
        "            if len(g._layout.shape) != len(shape):\n",
        GRAD,
    ),
    # --------------------------------------------------------------------------------------------------------------- optimizers
    Mutant(
        "Adam: the bias of the second moment",
        "calque/optim/adam.py",
        "inverse, rate = t, 1.0 / root(1.0 - beta2**t)",
        "inverse, rate = t, 1.0 / root(1.0 - beta2 ** (t - 1))",
        OPTIM,
    ),
    Mutant(
        "Adam: beta1 for both moments",
        "calque/optim/adam.py",
        "square * beta2 + (g * g) * (1.0 - beta2)",
        "square * beta2 + (g * g) * (1.0 - beta1)",
        OPTIM,
    ),
    Mutant(
        "SGD: Nesterov without the gradient",
        "calque/optim/sgd.py",
        'g = g + velocity * momentum if group["nesterov"] else velocity',
        'g = velocity * momentum if group["nesterov"] else velocity',
        OPTIM,
    ),
    Mutant(
        "weight decay with the wrong sign",
        "calque/optim/optimizer.py",
        "        g = g + parameter * decay\n",
        "        g = g - parameter * decay\n",
        OPTIM,
    ),
    # ------------------------------------------------------------------------------------------------------------------- loader
    Mutant(
        "the last short batch is lost",
        "calque/data/sampler.py",
        "if len(batch) == self.batch_size or not self.drop_last:",
        "if len(batch) == self.batch_size:",
        DATA,
    ),
    Mutant(
        "len() of a sampler rounds down",
        "calque/data/sampler.py",
        "return size // self.batch_size if self.drop_last else -(-size // self.batch_size)",
        "return size // self.batch_size",
        DATA,
    ),
    Mutant(
        "the last index is never drawn",
        "calque/data/sampler.py",
        "generator.integers(0, size, min(_BLOCK, wanted - at))",
        "generator.integers(0, size - 1, min(_BLOCK, wanted - at))",
        DATA,
    ),
    Mutant(
        "weights from the left",
        "calque/data/sampler.py",
        'np.searchsorted(ends, draws, side="right")',
        'np.searchsorted(ends, draws, side="right") + 1',
        DATA,
    ),
    Mutant(
        "all workers have one seed",
        "calque/data/loader.py",
        "WorkerInfo(i, workers, seed + i, self.dataset)",
        "WorkerInfo(i, workers, seed, self.dataset)",
        DATA,
    ),
    Mutant(
        "batches in the order of their end",
        "calque/data/passes.py",
        "if not self.loader.in_order and not self.loader.streamed else",
        "if not self.loader.streamed else",
        DATA,
    ),
    Mutant(
        "memory of a batch is used again while it is held",
        "calque/data/transport.py",
        "        return not self.lent and self.unseen()\n",
        "        return self.unseen()\n",
        DATA,
    ),
    Mutant(
        "a worker shares what it still holds",
        "calque/data/transport.py",
        "(segment if segment.unseen() else self._copied(segment, size), start, size)",
        "(segment, start, size)",
        DATA,
    ),
    Mutant(
        "a batch of a dead worker is lost",
        "calque/data/processes.py",
        "        for job in jobs:\n            key = self.next_job",
        "        for job in jobs[1:]:\n            key = self.next_job",
        DATA,
    ),
    Mutant(
        "random numbers of a sample depend on the one before",
        "calque/data/fetch.py",
        "        begin(self.seed, index)\n",
        "",
        DATA,
    ),
    Mutant(
        "every pass has the same order",
        "calque/data/random_source.py",
        "    seed, offset = (generator or default_generator).take(1)\n",
        "    seed, offset = (generator or default_generator).take(0)\n",
        DATA,
    ),
)
