"""Random programs of views, in-place writes and arithmetic: values, strides and aliasing equal PyTorch's after every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.base.shapes import overlaps

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle


class Program:
    """Pairs of a PyTorch and a Calque tensor, and random steps that apply to both."""

    def __init__(self, seed: int, grad: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.grad = grad
        self.log: list[str] = []
        self.arrays: list[tuple[Any, Any]] = []
        self.pairs: list[tuple[Any, Any]] = []
        self.leaves: list[tuple[Any, Any]] = []
        for _ in range(2):
            shape = tuple(int(n) for n in self.rng.integers(1, 5, size=int(self.rng.integers(1, 4))))
            values = self.rng.integers(-4, 5, size=shape).astype(np.float64)
            a, b = torch.tensor(values, requires_grad=grad), calque.tensor(values, requires_grad=grad)
            self.leaves.append((a, b))
            self.pairs.append((a * 1, b * 1) if grad else (a, b))

    def pick(self) -> tuple[Any, Any]:
        return self.pairs[int(self.rng.integers(len(self.pairs)))]

    def small(self, high: int) -> int:
        return int(self.rng.integers(high))

    def view_step(self, a: Any) -> Any:
        """A random view as a function of either framework's tensor."""
        rng, n = self.rng, a.dim()
        kinds = ["unsqueeze", "view", "reshape", "alias"]
        if n:
            kinds += [
                "transpose",
                "permute",
                "select",
                "slice",
                "narrow",
                "flatten",
                "squeeze",
                "expand",
                "unbind",
                "split",
                "chunk",
                "unfold",
                "index",
            ]
        if n > 1:
            kinds += ["diagonal", "t"]
        if self.grad:  # PyTorch forbids in-place writes to outputs of these while gradients are recorded
            kinds = [kind for kind in kinds if kind not in ("unbind", "split", "chunk")]
        kind = kinds[self.small(len(kinds))]
        d = self.small(max(n, 1))
        extent = a.shape[d] if n else 1
        other = self.small(max(n, 1))
        order = [int(i) for i in rng.permutation(n)]
        start = self.small(extent + 1)
        stop = start + self.small(extent - start + 1)
        step = 1 + self.small(2)
        i = self.small(extent) if extent else 0
        if kind in ("select", "unbind", "index", "expand") and not extent:
            kind = "alias"
        table = {
            "unsqueeze": lambda x: x.unsqueeze(d),
            "alias": lambda x: x[...],
            "view": lambda x: x.view(-1) if x.numel() else x[...],
            "reshape": lambda x: x.reshape(-1, 1) if x.numel() else x[...],
            "transpose": lambda x: x.transpose(d, other),
            "permute": lambda x: x.permute(order),
            "select": lambda x: x.select(d, i - extent),
            "slice": lambda x: x[(slice(None),) * d + (slice(start, stop, step),)],
            "narrow": lambda x: x.narrow(d, start, stop - start),
            "flatten": lambda x: x.flatten(min(d, other), max(d, other)),
            "squeeze": lambda x: x.squeeze(d),
            "expand": lambda x: x.select(d, i).unsqueeze(d).expand(*[3 if k == d else -1 for k in range(n)]),
            "unbind": lambda x: x.unbind(d)[i],
            "split": lambda x: x.split(2, d)[-1],
            "chunk": lambda x: x.chunk(2, d)[0],
            "unfold": lambda x: x.unfold(d, min(2, extent), 1),
            "index": lambda x: x[..., None, 0:1] if x.shape[-1] else x[...],
            "diagonal": lambda x: x.diagonal(0, d, (d + 1) % n),
            "t": lambda x: x.mT,
        }
        self.log.append(f"{kind} d={d} other={other} i={i} {start}:{stop}:{step} order={order}")
        return table[kind]

    def arithmetic_step(self, a: Any) -> Any:
        pool = [
            lambda x: x + 1.5,
            lambda x: x * 2,
            lambda x: x * x,
            lambda x: -x,
            lambda x: x.clone(),
            lambda x: x.sum(),
            lambda x: x.contiguous(),
        ]
        k = self.small(len(pool))
        self.log.append(f"arithmetic {k}")
        return pool[k]

    def write_step(self, a: Any, b: Any) -> Any:
        """A random in-place write of `a` as a function of (target, other)."""
        shape = tuple(a.shape)
        index = self.rng.integers(0, max(shape[0], 1), size=3) if shape else None
        mask = self.rng.integers(0, 2, size=shape).astype(bool)
        kinds = ["fill_", "add_", "mul_", "copy_", "zero_", "mask", "sub", "iadd"]
        there = int(a.untyped_storage().nbytes()) // a.element_size() - a.storage_offset()
        if not self.grad and there > 1:
            kinds.append("resize_")
        size = (2, self.small(there // 2) + 1) if there > 1 else ()
        if shape and shape[0]:
            kinds += ["index", "set_row", "index_add"]
        kind = kinds[self.small(len(kinds))]
        self.log.append(f"write {kind}")

        def tensor(x: Any, values: Any) -> Any:
            return torch.tensor(values) if isinstance(x, torch.Tensor) else calque.tensor(values)

        def with_index(x: Any, y: Any) -> None:
            x[tensor(x, index[:1])] = 3.0

        def with_row(x: Any, y: Any) -> None:
            x[-1] = 7.0

        def with_mask(x: Any, y: Any) -> None:
            x[tensor(x, mask)] = -2.0

        def iadd(x: Any, y: Any) -> None:
            x += y

        return {
            "fill_": lambda x, y: x.fill_(2.5),
            "zero_": lambda x, y: x.zero_(),
            "add_": lambda x, y: x.add_(1),
            "mul_": lambda x, y: x.mul_(y),
            "resize_": lambda x, y: x.resize_(size),
            "sub": lambda x, y: x.sub_(y, alpha=2),
            "copy_": lambda x, y: x.copy_(y),
            "iadd": iadd,
            "mask": with_mask,
            "index": with_index,
            "set_row": with_row,
            "index_add": lambda x, y: x.index_add_(0, tensor(x, index), x.detach().clone()[tensor(x, index)]),
        }[kind]

    def step(self) -> None:
        what = self.rng.random()
        a, b = self.pick()
        if what < 0.45:
            function = self.view_step(a)
            try:
                new_a = function(a)
            except (RuntimeError, IndexError):
                with pytest.raises((RuntimeError, IndexError)):
                    function(b)
                return
            self.pairs.append((new_a, function(b)))
        elif what < 0.6:
            function = self.arithmetic_step(a)
            self.pairs.append((function(a), function(b)))
        elif what < 0.92:
            if overlaps(tuple(a.shape), tuple(a.stride())):
                return
            other_a, other_b = self.pick()
            if other_a.untyped_storage().data_ptr() == a.untyped_storage().data_ptr() and other_a is not a:
                other_a, other_b = other_a.clone(), other_b.clone()  # PyTorch's result depends on the order of the writes
            function = self.write_step(a, b)
            try:
                function(a, other_a)
            except (RuntimeError, IndexError):
                self.log.append("  refused by PyTorch")
                return
            function(b, other_b)
        elif what < 0.96 or self.grad:
            self.log.append("read")
            b.detach().tolist()
        elif self.arrays and what < 0.98:
            self.log.append("write through NumPy")
            for array in self.arrays[-1]:
                array += 1.0
        else:
            self.log.append("numpy()")
            if not overlaps(tuple(a.shape), tuple(a.stride())):
                self.arrays = [*self.arrays[-1:], (a.numpy(), b.numpy())]
        if len(self.pairs) > 8:
            del self.pairs[int(self.rng.integers(len(self.pairs)))]

    def compare(self) -> None:
        for a, b in self.pairs:
            assert tuple(a.shape) == tuple(b.shape), self.log
            assert np.array_equal(a.detach().numpy(), b.detach().numpy(), equal_nan=True), self.log
            if a.numel() > 1:
                assert a.is_contiguous() == b.is_contiguous(), self.log
                steps = [(x, y) for s, x, y in zip(a.shape, a.stride(), b.stride(), strict=True) if s > 1]
                assert all(x == y for x, y in steps), (self.log, a.stride(), b.stride())
        for x, y in self.arrays:
            assert np.array_equal(x, y), self.log
        for i, (a, b) in enumerate(self.pairs):
            for a2, b2 in self.pairs[:i]:
                if not a.untyped_storage().nbytes() or not a2.untyped_storage().nbytes():
                    continue
                same = a.untyped_storage().data_ptr() == a2.untyped_storage().data_ptr()
                assert same == (b._storage is b2._storage), self.log


@given(st.integers(0, 2**32 - 1))
def test_random_programs_alias_as_pytorch(seed: int) -> None:
    program = Program(seed)
    for _ in range(25):
        program.step()
        if program.rng.random() < 0.1:
            program.compare()
    program.compare()


@given(st.integers(0, 2**32 - 1))
def test_random_programs_with_gradients(seed: int) -> None:
    program = Program(seed, grad=True)
    for _ in range(10):
        program.step()
    program.compare()
    total_a = sum((a.sum() * (k + 1) for k, (a, _) in enumerate(program.pairs)), torch.zeros(()))
    total_b = sum((b.sum() * (k + 1) for k, (_, b) in enumerate(program.pairs)), calque.zeros(()))
    if not total_a.requires_grad:
        return
    try:
        total_a.backward()
    except RuntimeError:
        return  # a saved value was overwritten: PyTorch has no gradient to compare with
    if total_b.requires_grad:
        total_b.backward()
    for a, b in program.leaves:
        expected = np.zeros(a.shape) if a.grad is None else a.grad.numpy()
        got = np.zeros(a.shape) if b.grad is None else b.grad.numpy()
        assert np.allclose(expected, got, equal_nan=True), program.log
