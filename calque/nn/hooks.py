"""Module hooks: handles that remove themselves, and the graph nodes behind full backward hooks."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any

from calque.base.errors import AutogradError, DTypeError
from calque.base.layout import Layout
from calque.base.text import described, function_name, type_name
from calque.functional.common import is_tensor
from calque.functional.creation import zeros
from calque.observe.source import user_line
from calque.record.recorder import local
from calque.tensor import Tensor, function_node, output_nodes, wrap

_ids = count()


class WithoutModule:
    """A hook that is not given the module. As an object it can be pickled, and its copy holds the copy of the module whose method the hook is."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, module: Any, *args: Any) -> Any:
        return self.hook(*args)


class RemovableHandle:
    """Removes a hook; also a context manager."""

    def __init__(self, hooks: Any, *extra: Any) -> None:
        self.id = next(_ids)
        self._hooks = [weakref.ref(h) for h in (hooks, *extra)]

    def remove(self) -> None:
        """Forget the hook; does nothing the second time."""
        for reference in self._hooks:
            hooks = reference()
            if hooks is not None and self.id in hooks:
                del hooks[self.id]

    def __getstate__(self) -> tuple[Any, int]:  # weak references cannot be pickled; the dictionaries can, with the module that has them
        return [reference() for reference in self._hooks], self.id

    def __setstate__(self, state: tuple[Any, int]) -> None:
        hooks, self.id = state
        self._hooks = [weakref.ref(HookDict() if h is None else h) for h in hooks]

    def __enter__(self) -> "RemovableHandle":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class HookDict(OrderedDict[int, Any]):
    """Hooks by the ids of their handles, in the order in which they run. Programs look for their own hooks among the values, as in PyTorch's dicts.
    `wants`: what those were registered with that take more than others: "kwargs", "always"."""

    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        self.wants: dict[int, frozenset[str]] = {}

    def add(self, hook: Any, prepend: bool = False, wants: frozenset[str] = frozenset()) -> RemovableHandle:
        """Append (or prepend) a hook."""
        if not callable(hook):
            raise DTypeError(f"[register_hook] expected a function as hook, got {type_name(hook)}; pass the function itself, not its result")
        handle = RemovableHandle(self)
        self[handle.id] = hook
        if wants:
            self.wants[handle.id] = wants
        if prepend:
            self.move_to_end(handle.id, last=False)
        return handle

    def __delitem__(self, key: int) -> None:
        super().__delitem__(key)
        self.wants.pop(key, None)

    def calls(self, want: str = "") -> list[tuple[Any, frozenset[str]]]:
        """The hooks with what they want; only those that want something, if it is named."""
        return [(hook, wants) for key, hook in self.items() if want in (wants := self.wants.get(key, NOTHING_MORE)) or not want]


NOTHING_MORE: frozenset[str] = frozenset()


def _identity(label: str, tensors: list[Tensor], backward: Any, more: list[Tensor]) -> list[Tensor]:
    """Handles on the same values behind one graph node; `backward(grads) -> grads`, for `tensors` and what `more` the node leads to."""
    node = function_node(label, (*tensors, *more), tuple(t._layout for t in tensors), lambda node, grads: backward(grads))
    node.where = user_line()
    outs = []
    for t, target in zip(tensors, output_nodes(node, len(tensors)), strict=True):
        out = wrap(t._storage, t._layout)
        if t._requires_grad:
            out._grad_fn, out._requires_grad = target, True
        outs.append(out)
    return outs


def _zeros(layout: Layout) -> Tensor:
    return zeros(tuple(layout.shape), dtype=layout.dtype, device=layout.device)


BACKWARD_HOOK = "BackwardHookFunctionBackward"  # the name of the nodes of `BackwardHooks`
EVERYWHERE: dict[str, HookDict] = {}  # hooks of all modules, by the same names as those of one


def registered(kind: str, module: Any, name: str, value: Any) -> Any:
    """A parameter, buffer or module, or what a hook of all modules puts into its place."""
    for hook in list(EVERYWHERE.get(kind, {}).values()):
        changed = hook(module, name, value)
        value = value if changed is None else changed
    return value


def _split(values: Any) -> tuple[list[Any], list[int]]:
    items = list(values) if isinstance(values, (tuple, list)) else [values]
    return items, [i for i, v in enumerate(items) if is_tensor(v)]


class BackwardHooks:
    """The full backward (pre-)hooks of one call: an identity node before the inputs and one after the outputs."""

    def __init__(self, module: Any, pre: Any, post: Any) -> None:
        self.module, self.pre, self.post = module, pre, post
        self.grad_output: tuple[Any, ...] | None = None
        self.has_inputs, self.input_count = False, 0
        self.layouts: list[Any] = []  # of the inputs behind the input node
        self.reached: list[Tensor] = []  # one of these, whose gradient makes a backward pass come to that node; none behind the call: a cycle
        self.stand_in: Any = None  # its layout

    def wrap_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with the positional tensors that need a gradient behind the input node."""
        items, tensors = _split(args)
        self.input_count, self.input_positions = len(items), tensors
        if not local.state.grad or not any(items[i]._requires_grad for i in tensors):
            return args
        self.has_inputs = True
        self.layouts = [items[i]._layout for i in tensors]
        for i, out in zip(tensors, _identity(BACKWARD_HOOK, [items[i] for i in tensors], self._on_inputs, []), strict=True):
            items[i] = out
        self.reached = [items[i] for i in tensors if items[i]._requires_grad][:1]
        self.stand_in = self.reached[0]._layout
        return tuple(items)

    def wrap_outputs(self, result: Any) -> Any:
        """The result with its tensors behind the output node."""
        items, tensors = _split(result)
        reached, self.reached = self.reached, []
        if not local.state.grad or not any(items[i]._requires_grad for i in tensors):
            return result
        self.output_count, self.output_positions = len(items), tensors
        for i, out in zip(tensors, _identity(BACKWARD_HOOK, [items[i] for i in tensors], self._on_outputs, reached), strict=True):
            items[i] = out
        if not isinstance(result, (tuple, list)):
            return items[0]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)

    def _spread(self, grads: Any, size: int, positions: list[int]) -> tuple[Any, ...]:
        full: list[Any] = [None] * size
        for i, g in zip(positions, grads, strict=True):
            full[i] = g
        return tuple(full)

    def _on_outputs(self, grads: list[Any]) -> tuple[Any, ...]:
        full = self._spread(grads, self.output_count, self.output_positions)
        for hook in list(self.pre.values()):
            full = self._replaced(hook(self.module, full), full, "pre-", hook)
        self.grad_output = full
        if not self.has_inputs:
            for hook in list(self.post.values()):
                value = hook(self.module, (None,) * self.input_count, full)
                if value is not None and not (isinstance(value, tuple) and all(v is None for v in value)):
                    raise AutogradError(
                        "[backward hook] expected None from a full backward hook of a module whose inputs need no gradient, got a value "
                        f"from {self._named(hook)}; return None"
                    )
        found = tuple(full[i] for i in self.output_positions)
        # Where a hook stops a gradient, or an output is not used, the inputs have zeros all the same, and their hooks are called: as in PyTorch.
        if self.stand_in is None:
            return found
        return *found, _zeros(self.stand_in) if any(g is None for g in found) else None

    def _on_inputs(self, grads: list[Any]) -> tuple[Any, ...]:
        whole = [_zeros(layout) if g is None else g for g, layout in zip(grads, self.layouts, strict=True)]
        full = self._spread(whole, self.input_count, self.input_positions)
        for hook in list(self.post.values()):
            full = self._replaced(hook(self.module, full, self.grad_output), full, "", hook)
        return tuple(full[i] for i in self.input_positions)

    def _replaced(self, value: Any, full: tuple[Any, ...], kind: str, hook: Any) -> tuple[Any, ...]:
        if value is None:
            return full
        value = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if len(value) != len(full):
            raise AutogradError(
                f"[backward hook] expected {len(full)} gradients from a full backward {kind}hook, got {len(value)} from {self._named(hook)}; "
                "return None to keep them"
            )
        for found, old in zip(value, full, strict=True):
            if found is not None and not isinstance(found, Tensor):
                raise AutogradError(
                    f"[backward hook] expected Tensors or None from a full backward {kind}hook, got {described(found)} from "
                    f"{self._named(hook)}; return None to keep the gradients"
                )
            if found is not None and old is not None and found._layout.shape != old._layout.shape:
                raise AutogradError(
                    f"[backward hook] expected a gradient of shape {tuple(old._layout.shape)} from a full backward {kind}hook, got "
                    f"{tuple(found._layout.shape)} from {self._named(hook)}; return None to keep it"
                )
            if found is not None and old is not None and found._layout.dtype is not old._layout.dtype:
                raise AutogradError(
                    f"[backward hook] expected a gradient of dtype {old._layout.dtype!r} from a full backward {kind}hook, got "
                    f"{found._layout.dtype!r} from {self._named(hook)}; convert it with .to({old._layout.dtype!r})"
                )
        return value

    def _named(self, hook: Any) -> str:
        """The hook for messages: its name, its line, its module."""
        return f"{function_name(hook)} on {type(self.module).__name__}"
