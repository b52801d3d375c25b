"""Neither an error that was caught nor a call that is over keeps tensors until the next garbage collection: whoever has met an OutOfMemoryError and
goes on with less needs their memory now."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import calque
from calque import nn
from calque.data import DataLoader, TensorDataset

F = nn.functional


class Doubled(calque.autograd.Function):
    """Fails in its forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x @ calque.ones(9, 9)


def hooked(x: Any) -> None:
    y = x.requires_grad_() * 2
    y.register_hook(lambda g: 1 / 0)
    y.sum().backward()


WRONG: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: F.linear(x, calque.ones(2, 7)), "add": lambda x: x + calque.ones(7), "add_": lambda x: x.add_(calque.ones(7)),
    "matmul": lambda x: x @ calque.ones(9, 9), "sum": lambda x: x.sum(7), "getitem": lambda x: x[999], "setitem": lambda x: x.__setitem__(999, 1),
    "copy_": lambda x: x.copy_(calque.ones(77)), "reshape": lambda x: x.reshape(17), "cat": lambda x: calque.cat([x, calque.ones(2, 2, 2)]),
    "conv2d": lambda x: F.conv2d(x, calque.ones(2, 2, 3, 3)), "a word": lambda x: x.sum("a"), "another word": lambda x: x.sum(dimm=1),
    "module": lambda x: nn.Linear(9, 2)(x), "modules": lambda x: nn.Sequential(nn.ReLU(), nn.Linear(9, 2))(x),
    "hybridized": lambda x: nn.Linear(9, 2).hybridize()(x), "gather": lambda x: x.gather(0, calque.tensor([[999]])).sum().item(),
    "backward": lambda x: (x * 1).backward(), "to": lambda x: x.to("nowhere"),
    "zeros": lambda x: calque.zeros(-1), "item": lambda x: x.item(), "numpy": lambda x: x.requires_grad_().numpy(),
    "leaf": lambda x: x.requires_grad_().add_(1), "einsum": lambda x: calque.einsum("ij,jk->ik", x, calque.ones(9, 9)),
    "load_state_dict": lambda x: nn.Linear(2, 2).load_state_dict({"weight": x}), "memory": lambda x: calque.ones(1 << 45),
    "memory of a result": lambda x: (calque.zeros(1 << 44) + x.sum()).sum().item(), "Function": Doubled.apply, "hook": hooked,
    "out": lambda x: calque.add(x, calque.ones(7), out=calque.ones(3)), "arange": lambda x: calque.arange(0, 3, "a", out=x),
    "loader": lambda x: list(DataLoader(TensorDataset(x), batch_size=1, collate_fn=lambda b: 1 / 0)),
    "vmap": lambda x: calque.vmap(lambda y: y @ calque.ones(9))(x), "grad": lambda x: calque.func.grad(lambda y: y)(x),
    "export": lambda x: calque.export(nn.Linear(9, 2), x), "compile": lambda x: calque.compile(lambda y: y @ calque.ones(9, 9))(x),
}  # fmt: skip
RIGHT: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda x: calque.vmap(lambda y: y * 2)(x), "grad": lambda x: calque.func.grad(lambda y: (y * y).sum())(x),
    "jvp": lambda x: calque.func.jvp(lambda y: y * y, (x,), (x,)), "hessian": lambda x: calque.func.hessian(lambda y: (y * y).sum())(x[0, :3]),
    "functional_call": lambda x: calque.func.functional_call(nn.Linear(2, 2), {"weight": x[:2, :2]}, x[:, :2]),
    "chain_matmul": lambda x: calque.chain_matmul(x, x, x), "backward": lambda x: (x.requires_grad_() * 2).sum().backward(),
    "checkpoint": lambda x: calque.utils.checkpoint.checkpoint(lambda y: y * y, x.requires_grad_(), use_reentrant=False).sum().backward(),
    "plan": lambda x: calque.memory.plan(lambda y: (y * y).sum(), x), "snapshot": lambda x: calque.memory.snapshot(),
    "export": lambda x: calque.export(lambda y: y * 2, x), "gather": lambda x: nn.parallel.gather(nn.parallel.scatter(x, ["cpu"]), "cpu"),
}  # fmt: skip


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _failed(wrong: Callable[[Any], Any], x: Any) -> bool:
    try:
        wrong(x)
    except Exception:
        return True
    return False


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("size", [3, 300], ids=["small", "large"])
@pytest.mark.parametrize("name", WRONG)
def test_an_error_keeps_no_tensor(name: str, size: int) -> None:
    x = calque.ones(size, size)
    seen = weakref.ref(x)
    assert _failed(WRONG[name], x)
    del x
    assert seen() is None


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", RIGHT)
def test_a_call_keeps_no_tensor(name: str) -> None:
    for _ in range(3):
        x = calque.ones(4, 4)
        seen = weakref.ref(x)
        RIGHT[name](x)
        calque.synchronize()
        del x
        assert seen() is None
