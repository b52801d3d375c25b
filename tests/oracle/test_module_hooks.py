"""Full backward hooks and pre-hooks on small modules, beside PyTorch's: what they are given, what becomes of what they return."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import calque

torch = pytest.importorskip("torch")

RETURNED: dict[str, Any] = {
    "nothing": lambda T, grads: None,
    "None": lambda T, grads: (None,) * len(grads),
    "doubled": lambda T, grads: tuple(None if g is None else g * 2 for g in grads),
    "a list": lambda T, grads: [None if g is None else g * 2 for g in grads],
    "zeros": lambda T, grads: tuple(None if g is None else T.zeros_like(g) for g in grads),
    "the first stopped": lambda T, grads: (None, *grads[1:]),
    "too few": lambda T, grads: (),
    "a number": lambda T, grads: (1.0,) * len(grads),
}
PAIRS = [
    (*a, *b)
    for a in itertools.product(("before", "after"), ("None", "doubled"))
    for b in itertools.product(("before", "after"), ("nothing", "None", "doubled"))
]


def modules(T: Any) -> dict[str, tuple[Any, int]]:
    """Modules by name, and how many inputs they take."""

    class Two(T.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = T.nn.Linear(2, 2), T.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.a(x), self.b(x)

    class First(T.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.w = T.nn.Parameter(T.ones(2))

        def forward(self, x: Any, y: Any) -> Any:
            return x * self.w

    class Sum(First):
        def forward(self, x: Any, y: Any) -> Any:
            return x * self.w + y

    return {"linear": (T.nn.Linear(2, 2), 1), "relu": (T.nn.ReLU(), 1), "two": (Two(), 1), "first": (First(), 2), "sum": (Sum(), 2)}


def plain(found: Any) -> Any:
    if isinstance(found, (tuple, list)):
        return [plain(one) for one in found]
    return None if found is None else pytest.approx(found.reshape(-1).tolist(), rel=1e-4)


def outcome(T: Any, name: str, hooks: tuple[str, ...], needs: tuple[bool, ...], used: slice) -> list[Any]:
    """What the hooks were given, and the gradients."""
    module, _ = modules(T)[name]
    with T.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(T.arange(p.numel()).reshape(p.shape) * 0.3 + 0.5 + i)
    log: list[Any] = []
    leaves = [T.tensor([[1.0, 2.0 + i]], requires_grad=need) for i, need in enumerate(needs)]
    for where, kind in zip(hooks[::2], hooks[1::2], strict=True):
        if where == "before":
            module.register_full_backward_pre_hook(lambda m, o, kind=kind: (log.append(plain(o)), RETURNED[kind](T, o))[1])
        else:
            module.register_full_backward_hook(lambda m, i, o, kind=kind: (log.append([plain(i), plain(o)]), RETURNED[kind](T, i))[1])
    found = module(*[x * 1.5 for x in leaves])
    results = (list(found) if isinstance(found, tuple) else [found])[used]
    loss = sum([(y * y).sum() for y in results], T.ones((), requires_grad=True) * 0)
    try:
        loss.backward()
    except Exception as error:  # either is refused
        return [*log, isinstance(error, (RuntimeError, TypeError))]
    return [*log, [plain(x.grad) for x in leaves], [plain(p.grad) for p in module.parameters()]]


def same(mine: Any, wanted: Any) -> bool:
    if isinstance(mine, list) and isinstance(wanted, list):
        return len(mine) == len(wanted) and all(map(same, mine, wanted))
    return bool(mine == getattr(wanted, "expected", wanted))


@pytest.mark.parametrize("name", ["linear", "relu", "two", "first", "sum"])
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_of_a_module(name: str) -> None:
    alone = list(itertools.product(("before", "after"), RETURNED))
    for needs in itertools.product((True, False), repeat=modules(calque)[name][1]):
        for used in (slice(None), slice(0, 1), slice(1, None)) if name == "two" else (slice(None),):
            for hooks in (*alone, *PAIRS):
                if name == "first" and not needs[0] and any(kind in ("None", "the first stopped") for kind in hooks):
                    continue  # the inputs that need a gradient are not used: PyTorch does not come to them
                found = [outcome(T, name, hooks, needs, used) for T in (calque, torch)]
                assert same(*found), (hooks, needs, used, *found)
