"""The same programs traced by PyTorch and by Calque give the same nodes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from calque import fx  # noqa: E402


def make(lib: Any) -> Any:
    nn, F = lib.nn, lib.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)
            self.bn = nn.BatchNorm2d(4)
            self.weight = nn.Parameter(lib.ones(4, 1, 1))
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 16, 2))

        def forward(self, x: Any, mask: Any = None, alpha: float = 0.5) -> Any:
            y = F.relu(self.bn(self.conv(x)), inplace=False)
            y = y * self.weight + alpha * y.mean(dim=(2, 3), keepdim=True)
            y = lib.cat([y[:, :2], y[:, 2:].neg()], dim=1)
            b, c = y.shape[0], y.size(1)
            y = lib.where(y > 0, y, -y).reshape(b, c, 4, 4).contiguous()
            first, second = lib.split(y, 2, dim=1)
            y = lib.cat((first + 1, second // 2, abs(first)), 1)[:, : 4]
            return self.head(y), {"low": lib.sigmoid(y).amax(), "pair": (b, c)}

    return Block()


def lines(graph: Any, lib: Any) -> list[tuple[Any, ...]]:
    def shown(target: Any) -> str:
        return target if isinstance(target, str) else target.__name__

    return [(n.op, n.name, shown(n.target), str(n.args), str(n.kwargs), sorted(u.name for u in n.users)) for n in graph.nodes]


def test_nodes_are_the_same() -> None:
    theirs = torch.fx.symbolic_trace(make(torch))
    ours = fx.symbolic_trace(make(calque))
    assert lines(ours.graph, calque) == lines(theirs.graph, torch)


def test_code_is_the_same_but_for_what_is_freed() -> None:
    import re

    theirs = torch.fx.symbolic_trace(lambda x, y=2: torch.tanh(x) * y - x.sum(0, keepdim=True))
    ours = fx.symbolic_trace(lambda x, y=2: calque.tanh(x) * y - x.sum(0, keepdim=True))
    assert ours.code.strip() == re.sub(r";  \w+ = .*", "", theirs.code).strip()
