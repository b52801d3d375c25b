"""`torch.fx.passes.infra.pass_base`: a change of a graph with checks before and after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from calque.fx import GraphModule

__all__ = ["PassBase", "PassResult"]


class PassResult(NamedTuple):
    """The module behind a pass, and whether that has changed it."""

    graph_module: Any
    modified: bool


class PassBase(ABC):
    """A pass is called with a module; subclasses say by `call` what it does."""

    def __call__(self, graph_module: GraphModule) -> PassResult | None:
        self.requires(graph_module)
        found = self.call(graph_module)
        self.ensures(graph_module)
        return found

    @abstractmethod
    def call(self, graph_module: GraphModule) -> PassResult | None:
        """What the pass does."""

    def requires(self, graph_module: GraphModule) -> None:  # noqa: B027 - nothing is required unless a subclass says so
        """Raise if the module is not as the pass needs it."""

    def ensures(self, graph_module: GraphModule) -> None:  # noqa: B027 - as above
        """Raise if the module is not as the pass leaves it."""
