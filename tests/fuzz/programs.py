"""Random user programs: the same calls on any module with PyTorch's interface, decided by (seed, step) and by shapes and dtypes alone.

A `Machine` holds a pool of tensors and does one random thing per step: a view, an in-place write, arithmetic, a reduction, a product, indexing, a
cast, a backward pass, a read, or a flush. In `track` mode it also carries an a-priori bound of the rounding error of every value.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.pool import DTYPES, EPS, Pool, Root, Value, overlapping


class Machine(Pool):
    """Runs a random program; `flush` is called at random points."""

    def run(self, steps: int, skip: frozenset[int] = frozenset()) -> "Machine":
        """Do `steps` steps; those in `skip` are left out without changing the random choices of the others."""
        names = [n for n, weight in OPERATIONS for _ in range(weight)]
        for step in range(steps):
            if step in skip:
                continue
            self.rng = np.random.default_rng([self.seed, step])
            before = len(self.log)
            name = ""
            try:
                for _ in range(6):  # what finds no suitable tensor is drawn again
                    name = names[self.draw(len(names))]
                    getattr(self, f"op_{name}")()
                    if len(self.log) > before:
                        break
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                kind = next(c.__name__ for c in (RuntimeError, IndexError, ValueError, TypeError) if isinstance(error, c))
                self.events.append(f"step {step} {name}: {kind}")
                self.log[before:] = [f"# step {step} {name}: {type(error).__name__}: {str(error)[:300]}"]
            if self.eager:
                self.flush()
        return self

    # --------------------------------------------------------------------------------------------------------- views

    def view_of(self, v: Value) -> tuple[Any, str]:
        t, shape, n = v.tensor, v.shape, len(v.shape)
        kind = self.draw(12)
        d = self.draw(n) if n else 0
        if n == 0:
            return (t.unsqueeze(0), "unsqueeze(0)") if kind % 2 else (t.expand(3), "expand(3)")
        size = shape[d]
        if kind == 0:
            e = self.draw(n)
            return t.transpose(d, e), f"transpose({d}, {e})"
        if kind == 1:
            order = [int(i) for i in self.rng.permutation(n)]
            return t.permute(order), f"permute({order})"
        if kind == 2 and size:
            start = self.draw(size)
            length = 1 + self.draw(size - start)
            return t.narrow(d, start, length), f"narrow({d}, {start}, {length})"
        if kind == 3 and size:
            index = self.draw(size) - (size if self.chance(0.3) else 0)
            return t.select(d, index), f"select({d}, {index})"
        if kind == 4:
            step = 1 + self.draw(3)
            where = (slice(None),) * d + (slice(self.draw(2), None, step),)
            return t[where], f"[{where}]"
        if kind == 5:
            return t.unsqueeze(d), f"unsqueeze({d})"
        if kind == 6:
            return t.squeeze(), "squeeze()"
        if kind == 7:
            return t.reshape(-1), "reshape(-1)"  # a copy where it cannot be a view
        if kind == 8 and n >= 2:
            return t.diagonal(0, 0, 1), "diagonal()"
        if kind == 9 and size >= 2:
            return t.unfold(d, 2, 1 + self.draw(2)), f"unfold({d}, 2)"
        if kind == 10 and prod(shape) * 2 <= 200:
            return t.expand(2, *shape), "expand(2, ...)"
        other = [s for s in self.shapes if prod(s) == prod(shape)]
        new = self.choose([(prod(shape),), *other])
        if not self.overlap:  # results are dense here, but PyTorch's keep the strides of their operands
            t = t.contiguous()
        return t.view(new), f"view({new})"  # raises for a layout that cannot be viewed

    def op_view(self) -> None:
        v = self.pick()
        if v is not None:
            t, text = self.view_of(v)
            same = t is v.tensor or t._base is not None
            root = v.root if same else Root(v.root.err, v.root.exact)
            self.keep(t, f"{v.name}.{text}", root)

    # -------------------------------------------------------------------------------------------------- in-place

    def target(self, among: Callable[[Value], bool] | None = None) -> Value | None:
        """Something to write to: mostly a view; no memory that overlaps itself."""
        v = self.pick(lambda x: x.numel > 0 and (not x.tensor.is_leaf or not x.tensor.requires_grad) and (among is None or among(x)))
        if v is None or overlapping(v.tensor):
            return None
        return v

    def wrote(self, v: Value, text: str, err: float, exact: bool) -> None:
        v.root.exact = v.root.exact and (exact or not v.floating)
        v.root.err = 0.0 if v.root.exact else max(v.root.err, err)
        if v.floating and v.tensor.requires_grad:  # also a value that had no history before
            self.coarsest = max(self.coarsest, EPS[v.dtype])
        self.log.append(f"{v.name}.{text}")

    def op_inplace_number(self) -> None:
        v = self.target()
        if v is None:
            return
        kind, t = self.draw(6), v.tensor
        before = Value(t.detach().clone(), v.root, "") if self.track else v
        if kind == 0:
            t.zero_()
            self.wrote(v, "zero_()", 0.0, True)
        elif kind == 1:
            number = self.draw(5)
            t.fill_(number)
            self.wrote(v, f"fill_({number})", 0.0, True)
        elif kind == 2 and v.dtype != "bool":
            number = self.draw(3) if not v.floating else self.rng.uniform(-1, 1)
            t.mul_(number)
            self.wrote(v, f"mul_({number})", self.bound(t, [before], [2.0]), False)
        elif kind == 3 and v.dtype != "bool":
            number = 1 + self.draw(3)
            t.add_(number)
            self.wrote(v, f"add_({number})", self.bound(t, [before], [1.0]), False)
        elif kind == 4 and v.floating:
            t.tanh_()
            self.wrote(v, "tanh_()", self.bound(t, [before], [1.0]), False)
        elif kind == 5 and v.dtype not in ("bool", "uint8"):
            t.clamp_(-1, 2) if self.chance(0.5) else t.neg_()
            self.wrote(v, "clamp_(-1, 2) or neg_()", v.root.err, v.root.exact)

    def op_inplace_tensor(self) -> None:
        v = self.target(lambda x: x.dtype != "bool")
        if v is None:
            return
        other = self.partner(v, grow=False)
        if other is None or not self.may_mix(v, other) or (not self.overlap and other.root is v.root):
            other = self.fresh(v.shape, v.dtype)
        before = Value(v.tensor.detach().clone(), v.root, "") if self.track else v
        kind = self.draw(4)
        if kind == 0:
            v.tensor.copy_(other.tensor)
            self.wrote(v, f"copy_({other.name})", other.root.err, other.root.exact)
        elif kind == 1:
            v.tensor.add_(other.tensor)
            self.wrote(v, f"add_({other.name})", self.bound(v.tensor, [before, other], [1.0, 1.0]), False)
        elif kind == 2:
            v.tensor.sub_(other.tensor, alpha=2)
            self.wrote(v, f"sub_({other.name}, alpha=2)", self.bound(v.tensor, [before, other], [1.0, 2.0]), False)
        else:
            squashed = other.tensor.tanh() if other.floating else other.tensor
            v.tensor.mul_(squashed)
            gain = self.magnitude(before.tensor) if self.track else 0.0
            self.wrote(v, f"mul_({other.name})", self.bound(v.tensor, [before, other], [1.0, gain]), False)

    def op_setitem(self) -> None:
        v = self.target(lambda x: len(x.shape) > 0)
        if v is None:
            return
        n = len(v.shape)
        kind = self.draw(4)
        if kind == 0:
            d = self.draw(n)
            where: Any = (slice(None),) * d + (self.draw(v.shape[d]),)
        elif kind == 1:
            where = (slice(self.draw(2), None, 1 + self.draw(2)),)
        elif kind == 2:
            rows = self.rng.permutation(v.shape[0])[: 1 + self.draw(3)].tolist()
            where = (self.T.tensor(rows),)
        else:
            mask = self.values(v.shape, "bool")
            v.tensor[self.T.tensor(mask.tolist()).reshape(v.shape)] = 2
            self.wrote(v, "[mask] = 2", 0.0, True)
            return
        part = v.tensor[where]
        if 0 in tuple(part.shape) or self.chance(0.3):
            v.tensor[where] = 1
            self.wrote(v, f"[{where}] = 1", 0.0, True)
            return
        source = self.fresh(tuple(part.shape), v.dtype)
        v.tensor[where] = source.tensor
        self.wrote(v, f"[{where}] = {source.name}", 0.0, True)

    def op_inplace_index(self) -> None:
        v = self.target(lambda x: len(x.shape) > 0 and x.dtype != "bool")
        if v is None:
            return
        d = self.draw(len(v.shape))
        size = v.shape[d]
        rows = self.rng.permutation(size)[: min(size, 3)]
        source = self.fresh((*v.shape[:d], len(rows), *v.shape[d + 1 :]), v.dtype)
        before = Value(v.tensor.detach().clone(), v.root, "") if self.track else v
        index = self.T.tensor(rows.tolist())
        kind = self.draw(3)
        if kind == 0:
            v.tensor.index_copy_(d, index, source.tensor)
            self.wrote(v, f"index_copy_({d}, {rows}, {source.name})", 0.0, True)
        elif kind == 1:
            v.tensor.index_add_(d, index, source.tensor)
            self.wrote(v, f"index_add_({d}, {rows}, {source.name})", self.bound(v.tensor, [before, source], [1.0, 1.0]), False)
        else:
            mask = self.T.tensor(self.values(v.shape, "bool").tolist()).reshape(v.shape)
            v.tensor.masked_fill_(mask, 3)
            self.wrote(v, "masked_fill_(mask, 3)", 0.0, True)

    # ------------------------------------------------------------------------------------------------- elementwise

    def partner(self, v: Value, grow: bool = True) -> Value | None:
        """A value that broadcasts with `v` (into its shape unless `grow`)."""

        def fits(o: Value) -> bool:
            try:
                shape = np.broadcast_shapes(v.shape, o.shape)
            except ValueError:
                return False
            return prod(shape) <= self.limit and (grow or shape == v.shape)

        return self.pick(fits)

    def may_mix(self, v: Value, other: Value) -> bool:
        """Whether `other` can be written into `v`: conversions to narrower kinds depend on exact values."""
        if v.dtype == other.dtype:
            return True
        if v.floating:
            return True
        return not other.floating and other.dtype == "bool"

    def op_unary(self) -> None:
        v = self.pick(lambda x: x.floating)
        if v is None:
            return
        kind, t = self.draw(9), v.tensor
        if kind == 0:
            self.new(t.tanh(), f"{v.name}.tanh()", [v])
        elif kind == 1:
            self.new(t.sigmoid(), f"{v.name}.sigmoid()", [v])
        elif kind == 2:
            self.new(t.tanh().exp(), f"{v.name}.tanh().exp()", [v], [3.0])
        elif kind == 3:
            self.new((t * t + 1).sqrt(), f"({v.name}**2 + 1).sqrt()", [v], [1.0 + 2 * self.size_of(v)])
        elif kind == 4:
            self.new((t * t + 1).log(), f"({v.name}**2 + 1).log()", [v], [1.0 + 2 * self.size_of(v)])
        elif kind == 5:
            self.new(self.T.sin(t), f"sin({v.name})", [v])
        elif kind == 6:
            self.moved(-t, f"-{v.name}", v)
        elif kind == 7 and v.root.exact:
            self.new(self.T.relu(t), f"relu({v.name})", [v], exact=True)
        elif v.root.exact:
            self.new(t.abs(), f"{v.name}.abs()", [v], exact=True)

    def size_of(self, v: Value) -> float:
        return self.magnitude(v.tensor) + v.root.err if self.track else 0.0

    def op_binary(self) -> None:
        v = self.pick(lambda x: x.dtype != "bool")
        other = None if v is None else self.partner(v)
        if v is None or other is None:
            return
        kind, a, b = self.draw(6), v.tensor, other.tensor
        if kind == 0:
            self.new(a + b, f"{v.name} + {other.name}", [v, other])
        elif kind == 1 and other.dtype != "bool":
            self.new(a - b, f"{v.name} - {other.name}", [v, other])
        elif kind == 2:
            left, gains = (a.tanh(), [self.size_of(other), 1.0]) if v.floating else (a, [self.size_of(other), self.size_of(v)])
            self.new(left * b, f"tanh({v.name}) * {other.name}", [v, other], gains)
        elif kind == 3 and other.dtype != "bool":
            gains = [1.0, self.size_of(v)]
            self.new(a / (b.abs() + 1) if other.root.exact else a / (b * b + 1), f"{v.name} / (1 + |{other.name}|)", [v, other], gains)
        elif kind in (4, 5) and v.root.exact and other.root.exact and v.dtype == other.dtype:
            f = self.T.maximum if kind == 4 else self.T.minimum
            self.new(f(a, b), f"{'max' if kind == 4 else 'min'}imum({v.name}, {other.name})", [v, other], exact=True)

    def op_number(self) -> None:
        v = self.pick(lambda x: x.dtype != "bool")
        if v is None:
            return
        kind, t, number = self.draw(5), v.tensor, round(float(self.rng.uniform(0.2, 2)), 2)
        if kind == 0:
            self.new(t * number, f"{v.name} * {number}", [v], [2.0])
        elif kind == 1:
            self.new(2 - t, f"2 - {v.name}", [v])
        elif kind == 2:
            self.new(t / 3, f"{v.name} / 3", [v])
        elif kind == 3:
            self.new(t + 1, f"{v.name} + 1", [v])
        elif v.floating:
            self.new(t.tanh() ** 2, f"tanh({v.name})**2", [v], [2.0])
        else:
            self.new(t // 3 + t % 4, f"{v.name} // 3 + {v.name} % 4", [v])

    def op_compare(self) -> None:
        v = self.pick(lambda x: x.root.exact)
        other = None if v is None else self.partner(v)
        if v is None or other is None or not other.root.exact or other.dtype != v.dtype:
            return
        kind, a, b = self.draw(4), v.tensor, other.tensor
        result = (a < b, a == b, a >= b, self.T.logical_or(a != b, a > b))[kind]
        self.new(result, f"compare{kind}({v.name}, {other.name})", [v, other])

    def op_where(self) -> None:
        v = self.pick()
        other = None if v is None else self.partner(v)
        if v is None or other is None or v.dtype != other.dtype:
            return
        shape = np.broadcast_shapes(v.shape, other.shape)
        mask = self.T.tensor(self.values(shape, "bool").tolist()).reshape(shape)
        self.moved(self.T.where(mask, v.tensor, other.tensor), f"where(mask, {v.name}, {other.name})", v, other)

    def op_cast(self) -> None:
        v = self.pick()
        dtype = self.choose(DTYPES)
        if v is None or (v.floating and dtype not in EPS and (not v.root.exact or dtype == "uint8")):
            return
        t = v.tensor.to(getattr(self.T, dtype))
        if t is not v.tensor:
            self.new(t, f"{v.name}.to({dtype})", [v], exact=True)

    # -------------------------------------------------------------------------------------- reductions and products

    def op_reduce(self) -> None:
        v = self.pick(lambda x: len(x.shape) > 0)
        if v is None:
            return
        dims = [d for d in range(len(v.shape)) if self.chance(0.5)] or [self.draw(len(v.shape))]
        keep, kind, t = self.chance(0.5), self.draw(9), v.tensor
        n = prod(v.shape[d] for d in dims)
        label = f"({v.name}, {dims}, {keep})"
        if kind in (0, 1):
            self.new(t.sum(dims, keepdim=keep), "sum" + label, [v], [n], n)
        elif kind == 2 and v.floating:
            self.new(t.mean(dims, keepdim=keep), "mean" + label, [v], [1.0], n)
        elif kind == 3 and v.root.exact and v.dtype != "bool":
            self.new(t.amax(dims, keepdim=keep), "amax" + label, [v], exact=True)
        elif kind == 4 and v.root.exact and v.dtype != "bool":
            best, where = t.min(dims[0])
            self.new(best, f"{v.name}.min({dims[0]})", [v], exact=True)
            if v.floating and v.dtype in ("float64", "float32"):  # ties are likely in narrow types, and PyTorch leaves them open
                self.new(where, f"{v.name}.argmin({dims[0]})", [v])
        elif kind == 5 and v.floating:
            self.new(t.tanh().logsumexp(dims, keepdim=keep), "logsumexp" + label, [v], [2.0], n)
        elif kind == 6 and v.floating:
            self.new(self.F.softmax(t, dims[0]), f"{v.name}.softmax({dims[0]})", [v], [2.0], n)
        elif kind == 7 and v.dtype != "bool":
            size = v.shape[dims[0]]
            self.new(t.cumsum(dims[0]), f"{v.name}.cumsum({dims[0]})", [v], [size], size)
        elif kind == 8 and v.floating and n > 1:
            gain = 4 * (self.size_of(v) + 1)
            self.new(t.var(dims, keepdim=keep), "var" + label, [v], [gain], n)

    def op_any(self) -> None:
        v = self.pick(lambda x: x.dtype == "bool")
        if v is not None:
            self.new(v.tensor.any() if self.chance(0.5) else v.tensor.all(), f"{v.name}.any() or all()", [v])

    def op_matmul(self) -> None:
        v = self.pick(lambda x: len(x.shape) >= 1 and x.dtype in ("float64", "float32", "bfloat16", "int64"))
        if v is None:
            return
        k = v.shape[-1]
        other = self.pick(lambda o: o.dtype == v.dtype and len(o.shape) == 2 and o.shape[0] == k and o.numel <= 200 and o is not v)
        if other is None:
            other = self.fresh((3, k), v.dtype)
            other = self.keep(other.tensor.t(), f"{other.name}.t()", other.root)
        gains = [k * self.size_of(other), k * self.size_of(v)]
        self.new(v.tensor @ other.tensor, f"{v.name} @ {other.name}", [v, other], gains, k)

    def op_bmm(self) -> None:
        v = self.pick(lambda x: len(x.shape) == 3 and x.dtype in ("float64", "float32"))
        if v is None:
            return
        k = v.shape[1]
        gains = [2 * k * self.size_of(v)]
        self.new(v.tensor.transpose(1, 2) @ v.tensor, f"{v.name}.mT @ {v.name}", [v], gains, k)

    def op_conv(self) -> None:
        v = self.pick(lambda x: len(x.shape) == 4 and x.dtype in ("float64", "float32") and min(x.shape[2:]) >= 3 and x.shape[1] > 0)
        if v is None:
            return
        weight = self.fresh((2, v.shape[1], 3, 3), v.dtype)
        stride, padding = 1 + self.draw(2), self.draw(2)
        result = self.F.conv2d(v.tensor, weight.tensor, stride=stride, padding=padding)
        k = 9 * v.shape[1]
        gains = [k * self.size_of(weight), k * self.size_of(v)]
        self.new(result, f"conv2d({v.name}, {weight.name}, {stride=}, {padding=})", [v, weight], gains, k)

    def op_pool(self) -> None:
        v = self.pick(lambda x: len(x.shape) == 4 and x.dtype in ("float64", "float32") and min(x.shape[2:]) >= 2)
        if v is None:
            return
        if v.root.exact and self.chance(0.5):
            self.new(self.F.max_pool2d(v.tensor, 2), f"max_pool2d({v.name}, 2)", [v], exact=True)
        else:
            self.new(self.F.avg_pool2d(v.tensor, 2), f"avg_pool2d({v.name}, 2)", [v], [1.0], 4)

    # ---------------------------------------------------------------------------------------------------- indexing

    def op_index(self) -> None:
        v = self.pick(lambda x: len(x.shape) > 0 and 0 not in x.shape)
        if v is None:
            return
        d = self.draw(len(v.shape))
        size, kind, t = v.shape[d], self.draw(5), v.tensor
        rows = self.rng.integers(0, size, 3)
        index = self.T.tensor(rows.tolist())
        if kind == 0:
            self.moved(t.index_select(d, index), f"{v.name}.index_select({d}, {rows})", v)
        elif kind == 1:
            where = (slice(None),) * d + (self.T.tensor((rows - size).tolist()),)
            self.moved(t[where], f"{v.name}[.., {rows - size}] at {d}", v)
        elif kind == 2:
            shape = (*v.shape[:d], 2, *v.shape[d + 1 :])
            chosen = self.T.tensor(self.rng.integers(0, size, shape).tolist()).reshape(shape)
            self.moved(t.gather(d, chosen), f"{v.name}.gather({d})", v)
        elif kind == 3:
            self.moved(t.flip(d), f"{v.name}.flip({d})", v)
        else:
            self.moved(t.roll(1, d), f"{v.name}.roll(1, {d})", v)

    def op_scatter(self) -> None:
        v = self.pick(lambda x: len(x.shape) > 0 and 0 not in x.shape and x.dtype in ("float64", "float32", "int64", "int32"))
        if v is None:
            return
        d = self.draw(len(v.shape))
        shape = (*v.shape[:d], 4, *v.shape[d + 1 :])
        index = self.T.tensor(self.rng.integers(0, v.shape[d], shape).tolist()).reshape(shape)
        source = self.fresh(shape, v.dtype)
        self.new(v.tensor.scatter_add(d, index, source.tensor), f"{v.name}.scatter_add({d}, {source.name})", [v, source], [1.0, 4.0], 4)

    def op_join(self) -> None:
        v = self.pick(lambda x: len(x.shape) > 0 and x.numel * 2 <= self.limit)
        if v is None:
            return
        other = self.pick(lambda o: o.shape == v.shape and o.dtype == v.dtype)
        assert other is not None
        d = self.draw(len(v.shape))
        kind = self.draw(3)
        if kind == 0:
            self.moved(self.T.cat([v.tensor, other.tensor], d), f"cat([{v.name}, {other.name}], {d})", v, other)
        elif kind == 1:
            self.moved(self.T.stack([v.tensor, other.tensor], d), f"stack([{v.name}, {other.name}], {d})", v, other)
        else:
            self.moved(v.tensor.clone(), f"{v.name}.clone()", v)

    # ---------------------------------------------------------------------------------- autograd, reading, flushing

    def op_backward(self) -> None:
        v = self.pick(lambda x: x.tensor.requires_grad and x.dtype in ("float64", "float32") and x.numel > 0)
        if v is None:
            return
        self.vague |= self.size_of(v) > 1e4  # only the twin knows bounds, and both have to do the same
        weight = self.tensor(v.shape, v.dtype)
        retain = self.chance(0.5)
        self.log.append(f"({v.name} * w).sum().backward(retain_graph={retain})")
        (v.tensor * weight).sum().backward(retain_graph=retain)

    def op_smooth(self) -> None:
        """A longer differentiable chain."""
        v = self.pick(lambda x: x.tensor.requires_grad and len(x.shape) >= 1 and x.dtype in ("float64", "float32") and x.numel > 0)
        if v is None:
            return
        d = self.draw(len(v.shape))
        t = v.tensor.tanh()
        centred = t - t.mean(d, keepdim=True)
        result = centred / (centred * centred).mean(d, keepdim=True).add(0.1).sqrt()
        self.new(result, f"normalised({v.name}, {d})", [v], [40.0], v.shape[d])

    def op_detach(self) -> None:
        v = self.pick()
        if v is not None:
            self.keep(v.tensor.detach(), f"{v.name}.detach()", v.root)

    def op_nograd(self) -> None:
        v = self.pick(lambda x: x.floating)
        if v is not None:
            with self.T.no_grad():
                self.new(v.tensor.tanh() * 2, f"no_grad: {v.name}.tanh() * 2", [v], [2.0])

    def op_read(self) -> None:
        v = self.pick()
        if v is not None:
            self.log.append(f"{v.name}.tolist()")
            v.tensor.tolist()

    def op_flush(self) -> None:
        self.log.append("flush()")
        self.flush()

    def op_drop(self) -> None:
        if len(self.pool) > 4:
            gone = self.pool.pop(self.draw(len(self.pool) - 1))
            self.log.append(f"del {gone.name}")


OPERATIONS = (
    ("input", 1), ("leaf", 1), ("create", 1), ("view", 8), ("inplace_number", 4), ("inplace_tensor", 4), ("setitem", 3), ("inplace_index", 2),
    ("unary", 4), ("binary", 6), ("number", 3), ("compare", 2), ("where", 2), ("cast", 2), ("reduce", 6), ("any", 1), ("matmul", 3), ("bmm", 1),
    ("conv", 2), ("pool", 2), ("index", 3), ("scatter", 1), ("join", 2), ("backward", 4), ("smooth", 2), ("detach", 1), ("nograd", 1),
    ("read", 1), ("flush", 2), ("drop", 2),
)  # fmt: skip
