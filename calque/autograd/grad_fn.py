"""The graph of a backward pass as programs see it: `tensor.grad_fn`, what is behind it, and hooks of its nodes.

What a program holds is an object of its own, of a class with the operation's name: tools that draw graphs ask for `type(node).__name__`. The nodes
that autograd works with have no such classes, since one is made at every operation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from calque.base.errors import DTypeError
from calque.base.text import described, function_name
from calque.record.nodes import GradNode, OutputNode
from calque.tensor import Tensor


class PostHook:
    """A hook of a node that runs behind its rule: `function(gradients of its inputs, gradients of its outputs)`."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Any:
        return self.function(inputs, outputs)


class GradFn:
    """A node of the graph, or the place where a leaf's gradient is added up (`AccumulateGrad`, with the leaf as `variable`).

    >>> import calque
    >>> x = calque.ones(2, requires_grad=True)
    >>> y = (x * 3).sum()
    >>> type(y.grad_fn).__name__, y.grad_fn.next_functions[0][0].name()
    ('SumBackward0', 'MulBackward0')
    >>> y.grad_fn.next_functions[0][0].next_functions[0][0].variable is x
    True
    """

    __slots__ = ("__weakref__", "_metadata", "_target")

    def __init__(self, target: Tensor | GradNode) -> None:
        self._target: Any = target  # both have `register_hook` from `api.py`, which stands above
        self._metadata: dict[Any, Any] | None = None

    def name(self) -> str:
        """PyTorch's name of the operation."""
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """For each operand the node that its gradient goes to, or None, and which of that node's outputs it is."""
        target = self._target
        return () if isinstance(target, Tensor) else tuple((grad_fn_of(t), t.index if isinstance(t, OutputNode) else 0) for t in target.next)

    @property
    def variable(self) -> Any:
        """The leaf, of an `AccumulateGrad`."""
        if not isinstance(self._target, Tensor):
            raise AttributeError(f"[{self.name()}] expected an AccumulateGrad node to have a variable, got another; it has next_functions")
        return self._target

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dict for whoever looks at the graph, as long as somebody holds this node."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    def register_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(grad_inputs, grad_outputs)`, tuples, when the gradients of the node's inputs are computed; it may return other ones. At a leaf
        there are no inputs, and its gradient has been added."""
        target = self._target
        if isinstance(target, Tensor):

            def after(t: Tensor) -> None:
                hook((), (t.grad,))

            leaf: Any = target
            return leaf.register_post_accumulate_grad_hook(after)
        return target.register_hook(PostHook(hook))

    def register_prehook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(grad_outputs)`, a tuple, before the gradients of the node's inputs are computed; it may return other ones, or None among them,
        where a gradient shall stop."""

        def before(gradient: Any) -> Any:
            several = gradient.__class__ is list
            found = hook(tuple(gradient) if several else (gradient,))
            return None if found is None else list(found) if several else STOPPED if found[0] is None else found[0]

        return self._target.register_hook(before)

    def __getattr__(self, name: str) -> Any:
        """What `forward` of a function written by hand has left on its context."""
        context = None if name.startswith("__") or isinstance(self._target, Tensor) else getattr(self._target, "context", None)
        if not getattr(type(context), "of_a_function", False) or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(context, name)

    def __repr__(self) -> str:
        return f"<{self.name()}>"


STOPPED = object()
"""What a hook before a node returns for a gradient that it stops: None would leave it as it is."""
_KINDS: dict[str, type[GradFn]] = {}
_SHOWN: weakref.WeakValueDictionary[int, GradFn] = weakref.WeakValueDictionary()  # by the id of the target, which lives as long as they do


def grad_fn_of(target: GradNode | Tensor | None) -> GradFn | None:
    """The object of a node, the same one as long as somebody holds it. `target`: a node, a leaf, or None."""
    if target is None:
        return None
    if isinstance(target, OutputNode):
        target = target.next[0]
    found = _SHOWN.get(id(target))
    if found is None:
        name = "AccumulateGrad" if isinstance(target, Tensor) else target.name()
        kind = _KINDS.get(name) or _KINDS.setdefault(name, type(name, (GradFn,), {"__slots__": (), "__module__": "calque.autograd.grad_fn"}))
        found = _SHOWN[id(target)] = kind(target)
    return found


def run_post_hooks(node: GradNode, gradients: Sequence[Any], gradient: Any) -> Sequence[Any]:
    """The gradients of a node's inputs, or what a hook makes of them."""
    for hook in list((node.hooks or {}).values()):
        if hook.__class__ is PostHook:
            changed = hook(tuple(gradients), tuple(gradient) if gradient.__class__ is list else (gradient,))
            if changed is None:
                continue
            found = changed if isinstance(changed, tuple) else (changed,)
            if len(found) != len(gradients) or not all(g is None or isinstance(g, Tensor) for g in found):
                raise DTypeError(
                    f"[register_hook] expected None or {len(gradients)} gradients (Tensors or None) from the hook {function_name(hook.function)} of "
                    f"{node.name()}, got {described(changed)}; return one for each input of the node"
                )
            gradients = found
    return gradients
