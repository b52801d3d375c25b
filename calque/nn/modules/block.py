"""Gluon's names for modules whose calls can be replayed. Every module can be hybridized; these classes add only the old interface."""

from __future__ import annotations

from typing import Any

from calque.nn import functional
from calque.nn.module import Module
from calque.nn.modules.container import Sequential

__all__ = ["HybridBlock", "HybridSequential"]


class HybridSequential(Sequential):
    """`Sequential` under Gluon's name.

    >>> import calque
    >>> net = calque.nn.HybridSequential()
    >>> net = net.add(calque.nn.Dense(256, activation="relu"), calque.nn.Dense(10)).hybridize()
    >>> [tuple(net(calque.ones(2, 20)).shape) for _ in range(4)][-1]
    (2, 10)
    """


class HybridBlock(Module):
    """A module that may define `hybrid_forward(self, F, x, **params)` instead of `forward`: `F` is `calque.nn.functional`, and its own
    parameters (not those of its children) are handed over by name.

    >>> import calque
    >>> class Scaled(calque.nn.HybridBlock):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.gain = calque.nn.Parameter(calque.full((3,), 2.0))
    ...     def hybrid_forward(self, F, x, gain):
    ...         return F.relu(x * gain)
    >>> Scaled().hybridize()(calque.tensor([1.0, -1.0, 0.5])).tolist()
    [2.0, 0.0, 1.0]
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own = {name: value for name, value in self._parameters.items() if name not in kwargs}
        return self.hybrid_forward(functional, *args, **kwargs, **own)

    def hybrid_forward(self, F: Any, *args: Any, **params: Any) -> Any:
        """The computation of a call; subclasses define it (or `forward`)."""
        name = type(self).__name__
        raise NotImplementedError(f'[{name}] Module [{name}] is missing the required "hybrid_forward" function (or "forward"); define one')
