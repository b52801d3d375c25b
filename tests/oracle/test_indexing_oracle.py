"""Random index expressions: reading, writing and their gradients equal PyTorch's, and both refuse the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle


def random_index(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Any]:
    """Items as plain data: ("slice", ...), ("int", i), ("array", values), ("mask", values), None or Ellipsis."""
    items: list[Any] = []
    d = 0
    common = tuple(int(n) for n in rng.integers(1, 4, size=int(rng.integers(0, 3))))
    while d < len(shape):
        kind = rng.choice(["slice", "int", "array", "mask", "none", "stop", "ellipsis"])
        n = shape[d]
        if kind == "stop":
            break
        if kind == "none":
            items.append(None)
        elif kind == "ellipsis":
            if not any(item is Ellipsis for item in items):
                items.append(Ellipsis)
                d += int(rng.integers(0, 2))
        elif kind == "slice":
            a, b = (None if rng.random() < 0.3 else int(rng.integers(-n - 1, n + 2)) for _ in range(2))
            items.append(slice(a, b, None if rng.random() < 0.5 else int(rng.integers(1, 3))))
            d += 1
        elif kind == "int":
            items.append(int(rng.integers(-n - (rng.random() < 0.05), max(n, 1))))
            d += 1
        elif kind == "array":
            bound = max(n, 1)
            items.append(
                np.asarray(rng.integers(-bound, bound + (rng.random() < 0.05), size=common[int(rng.integers(len(common) + 1)) :]))
            )
            d += 1
        elif kind == "mask":
            k = int(rng.integers(1, 3))
            items.append(rng.random(size=shape[d : d + k]) < 0.5)
            d += k
    return items


def build(items: list[Any], module: Any, single: bool) -> Any:
    made = [module.tensor(item) if isinstance(item, np.ndarray) else item for item in items]
    return made[0] if single and len(made) == 1 else tuple(made)


def read(x: Any, index: Any) -> Any:
    return x[index]


def write(target: Any, value: Any, index: Any) -> Any:
    target[index] = value
    return target


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (IndexError, RuntimeError, ValueError, TypeError) as error:
        return type(error)


@given(st.integers(0, 2**32 - 1))
def test_reading_and_writing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(10):
        shape = tuple(int(n) for n in rng.integers(0 if rng.random() < 0.1 else 1, 5, size=int(rng.integers(1, 5))))
        values = rng.normal(size=shape)
        items = random_index(rng, shape)
        single = bool(rng.random() < 0.5)
        a, b = torch.tensor(values, requires_grad=True), calque.tensor(values, requires_grad=True)
        where = (shape, items)
        for_a, for_b = build(items, torch, single), build(items, calque, single)
        got_a, got_b = outcome(read, a, for_a), outcome(read, b, for_b)
        if isinstance(got_a, type):
            assert isinstance(got_b, type), where
            continue
        if got_a.numel() == 0 and got_b is calque.base.errors.OutOfRangeError:
            continue  # PyTorch does not check the bounds of an index that selects nothing
        assert not isinstance(got_b, type), (where, got_b)
        assert tuple(got_a.shape) == tuple(got_b.shape), where
        assert np.array_equal(got_a.detach().numpy(), got_b.detach().numpy()), where
        weights = rng.normal(size=tuple(got_a.shape))
        (got_a * torch.tensor(weights)).sum().backward()
        (got_b * calque.tensor(weights)).sum().backward()
        assert np.allclose(a.grad.numpy(), b.grad.numpy()), where
        source = rng.normal(size=tuple(got_a.shape)[int(rng.integers(0, got_a.dim() + 1)) :])
        number = bool(rng.random() < 0.3)
        x, y = torch.tensor(values), calque.tensor(values)
        s, t = torch.tensor(source, requires_grad=True), calque.tensor(source, requires_grad=True)
        put_a, put_b = outcome(write, x, 2.5 if number else s, for_a), outcome(write, y, 2.5 if number else t, for_b)
        if isinstance(put_a, type):
            continue
        assert not isinstance(put_b, type), where
        if not any(
            isinstance(i, np.ndarray) and i.dtype == np.int64 and i.size > 1 for i in items
        ):  # which of equal positions wins is open
            assert np.array_equal(x.detach().numpy(), y.detach().numpy()), where
            if not number:
                x.sum().backward()
                y.sum().backward()
                assert np.allclose(s.grad.numpy(), t.grad.numpy()), where


CASES = {
    "gather": lambda m, x, i: x.gather(1, i),
    "gather 0": lambda m, x, i: x.gather(0, i[:3] % 3),
    "scatter": lambda m, x, i: x.scatter(1, i[:, :1], 9.0),
    "scatter_ src": lambda m, x, i: x.clone().scatter_(1, i[:, :2] * 0 + m.arange(2), x[:, :2] * 2),
    "scatter_add": lambda m, x, i: x.scatter_add(1, i, x),
    "scatter_reduce sum": lambda m, x, i: x.scatter_reduce(1, i, x, "sum"),
    "scatter_reduce mean": lambda m, x, i: x.scatter_reduce(1, i, x, "mean", include_self=False),
    **{
        f"scatter_reduce {how} {own}": lambda m, x, i, how=how, own=own: x.scatter_reduce(1, i, x * 1.5, how, include_self=own)
        for how in ("prod", "amax", "amin") for own in (True, False)
    },
    "index_select": lambda m, x, i: x.index_select(1, i[0]),
    "index_add": lambda m, x, i: x.index_add(1, i[0], x, alpha=2),
    "index_copy": lambda m, x, i: x.index_copy(0, m.tensor([2, 0]), x[:2]),
    "index_fill": lambda m, x, i: x.index_fill(1, m.tensor([0, 2]), 4.0),
    "index_put": lambda m, x, i: x.index_put((m.tensor([0, 1]), m.tensor([2, 1])), m.tensor([5.0, 6.0], dtype=m.float64)),
    "index_put acc": lambda m, x, i: x.index_put((m.tensor([0, 0]),), x[:2], accumulate=True),
    "masked_fill": lambda m, x, i: x.masked_fill(x > 0, -1),
    "masked_select": lambda m, x, i: x.masked_select(x > 0),
    "masked_scatter": lambda m, x, i: x.masked_scatter(x > 0, x * 3),
    "take": lambda m, x, i: x.take(i),
    "take_along_dim": lambda m, x, i: m.take_along_dim(x, i[:1], 1),
    "take_along_dim flat": lambda m, x, i: m.take_along_dim(x, i),
    "put": lambda m, x, i: x.put(m.tensor([1, 3]), m.tensor([7.0, 8.0], dtype=m.float64)),
    "tril": lambda m, x, i: x.tril(-1) + x.triu(1),
    "diag": lambda m, x, i: m.diag(x[0], 1),
    "diag matrix": lambda m, x, i: m.diag(x, -1),
    "diag_embed": lambda m, x, i: m.diag_embed(x, -1, 0, 2),
    "diagflat": lambda m, x, i: m.diagflat(x[:2, :2], 1),
    "select_scatter": lambda m, x, i: m.select_scatter(x, x[0], 0, 1),
    "slice_scatter": lambda m, x, i: m.slice_scatter(x, x[:, :2] * 2, 1, 0, 4, 2),
    "cat": lambda m, x, i: m.cat([x, x[:1], x[:0]], 0),
    "stack": lambda m, x, i: m.stack([x, x * 2], -1),
    "hstack": lambda m, x, i: m.hstack([x, x]) + 0 * m.vstack([x[0], x[1], x[2]]).sum(),
    "dstack": lambda m, x, i: m.dstack([x, x]) + m.column_stack([x[0], x[1]]).sum(),
    "split": lambda m, x, i: x.split([1, 2], 0)[1] * x.split(2, 1)[0].sum(),
    "chunk": lambda m, x, i: x.chunk(3, 1)[-1],
    "tensor_split": lambda m, x, i: x.tensor_split(3, 1)[0] * x.tensor_split([1, 3], 1)[1].sum(),
    "unbind": lambda m, x, i: x.unbind(1)[2] * x.unbind(0)[0].sum(),
    "repeat": lambda m, x, i: x.repeat(2, 1, 2),
    "tile": lambda m, x, i: x.tile(2),
    "repeat_interleave": lambda m, x, i: x.repeat_interleave(2, 1) + x.repeat_interleave(2).sum(),
    "repeat_interleave list": lambda m, x, i: m.repeat_interleave(x, m.tensor([1, 0, 2]), 0),
    "flip": lambda m, x, i: x.flip(0, 1) + x.fliplr() + x.flipud(),
    "roll": lambda m, x, i: x.roll(1, 0) + x.roll((1, 2), (0, 1)) + x.roll(5),
    "rot90": lambda m, x, i: m.rot90(x, 1) * m.rot90(x, 3) + m.rot90(x, 2).sum(),
    "unfold": lambda m, x, i: x.unfold(1, 3, 1),
    "as_strided": lambda m, x, i: x.as_strided((2, 3), (1, 2), 1),
    "as_strided of view": lambda m, x, i: x.t().as_strided((2, 2), (2, 1), 1),
    "movedim": lambda m, x, i: m.movedim(x.unsqueeze(0), (0, 1), (2, 0)),
    "meshgrid": lambda m, x, i: m.meshgrid(x[0], x[1, :2], indexing="xy")[0] * m.meshgrid(x[0], x[1, :2], indexing="ij")[1].sum(),
    "broadcast_tensors": lambda m, x, i: m.broadcast_tensors(x, x[0])[1],
    "unflatten": lambda m, x, i: x.flatten().unflatten(0, (4, -1)),
    "atleast": lambda m, x, i: m.atleast_3d(x) + m.atleast_2d(x[0, 0]) + m.atleast_1d(x[0, 0]),
}


@pytest.mark.parametrize("name", CASES)
def test_named_functions(name: str, rng: np.random.Generator) -> None:
    values, index = rng.normal(size=(3, 4)), rng.integers(0, 4, size=(3, 4))
    results = []
    for module in (torch, calque):
        x = module.tensor(values, requires_grad=True)
        out = CASES[name](module, x, module.tensor(index))
        weights = module.tensor(np.arange(out.numel(), dtype=np.float64).reshape(tuple(out.shape)))
        (out * weights).sum().backward()
        results.append((out.detach().numpy(), x.grad.numpy()))
    assert results[0][0].shape == results[1][0].shape
    assert np.allclose(results[0][0], results[1][0])
    assert np.allclose(results[0][1], results[1][1])


def listed(lib: Any) -> dict[str, Any]:
    """Lists as an index: of some PyTorch makes a tuple, of others an array."""
    t = lib.tensor
    return {
        "tensors": [t([0, 1]), t([1, 2])],
        "numbers in tensors": [t(0), t(2)],
        "one tensor": [t([1, 0])],
        "masks": [t([True, False]), t([True, False, True])],
        "lists": [[0, 1], [1, 0]],
        "a number and a list": [0, [1, 2]],
        "one list": [[0, 1]],
        "two levels": [[[0, 1], [1, 0]]],
        "arrays": [np.array([0, 1]), np.array([1, 0])],
        "ranges": [range(2), range(2)],
        "numbers": [1, 0, 1],
        "truth values": [True, False],
        "a slice": [slice(None), 1],
        "a new dim": [None, 0],
        "long": [[0]] * 32,
    }


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
@pytest.mark.parametrize("name", listed(calque))
def test_lists_are_tuples_where_they_are_in_pytorch(name: str) -> None:
    base = np.arange(24.0).reshape(2, 3, 4)
    read, written = {}, {}
    for lib in (calque, torch):
        x = lib.tensor(base)
        read[lib] = x[listed(lib)[name]].numpy().copy()
        x[listed(lib)[name]] = -1.0
        written[lib] = x.numpy()
    np.testing.assert_array_equal(read[calque], read[torch], strict=True)
    np.testing.assert_array_equal(written[calque], written[torch], strict=True)
