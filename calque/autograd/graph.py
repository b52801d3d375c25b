"""What programs see of the graph of a backward pass, with the names of `torch.autograd.graph`: nodes, hooks of several tensors, and functions through
which goes what is saved."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from calque.autograd.api import GradientEdge, RemovableHandle, as_edge, register_hook, target_of
from calque.autograd.engine import reaches
from calque.autograd.grad_fn import GradFn as Node
from calque.autograd.transform.packing import Hooks, pop, push
from calque.base.errors import ArgumentError, AutogradError, DTypeError
from calque.base.text import shown, type_name
from calque.record.recorder import local
from calque.tensor import Tensor

__all__ = [
    "GradientEdge", "Node", "disable_saved_tensors_hooks", "get_gradient_edge", "increment_version", "register_multi_grad_hook", "save_on_cpu",
    "saved_tensors_hooks",
]  # fmt: skip


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Where the gradient of a tensor goes, for `backward` and `grad` in the place of the tensor, which need not be kept."""
    if not isinstance(tensor, Tensor) or not tensor._requires_grad:
        raise AutogradError(
            "[get_gradient_edge] It is not possible to get the gradient edge for a Tensor that does not require gradients; set requires_grad=True"
        )
    return as_edge(tensor)


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Count an in-place write to the memory of one or several tensors, of which nobody else knows: what has saved them refuses its gradient then."""
    for t in (tensor,) if isinstance(tensor, Tensor) else tensor:
        t._storage.version += 1
        t._storage.writer = None


class _Several(RemovableHandle):
    """The handle of hooks of several tensors."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self.handles = tuple(handles)

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def _executed(work: Any, key: int) -> bool:
    """Whether a pass gives the target of this id its gradient."""
    return key in (reaches(work.roots, {key}) if work.needed is None else work.needed)


def register_multi_grad_hook(tensors: Sequence[Tensor], fn: Callable[[Any], None], *, mode: str = "all") -> RemovableHandle:
    """Call `fn(gradients)` when a backward pass knows the gradients of all the tensors that it reaches: a list, with None for the others. With mode
    "any", call `fn(gradient)` with the first of them.

    >>> import calque
    >>> a, b = calque.ones(2, requires_grad=True), calque.ones(2, requires_grad=True)
    >>> handle = calque.autograd.graph.register_multi_grad_hook([a, b], lambda found: print([g is not None for g in found]))
    >>> a.sum().backward()
    [True, False]
    """
    if mode not in ("all", "any"):
        raise ArgumentError(f"[register_multi_grad_hook] Expects mode to be one of ('all', 'any') but got {shown(mode)}")
    for t in tensors:
        if not isinstance(t, Tensor):
            raise DTypeError(f"[register_multi_grad_hook] expected Tensors, got {type_name(t)}; pass a list of them")
    targets, lock = [target_of(t) for t in tensors], threading.Lock()
    found: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()  # by pass: the gradients so far, then how many are missing still

    def arrived(index: int, gradient: Any) -> None:
        work = local.state.waiting
        with lock:
            mine = found.get(work)
            if mine is None:
                mine = found[work] = [None] * len(targets) + [sum(_executed(work, id(t)) for t in targets)]
            mine[index] = gradient
            mine[-1] -= 1
            call = mine[-1] == 0 if mode == "all" else mine.count(None) == len(targets) - 1
        if call:
            fn(mine[:-1] if mode == "all" else gradient)

    wanted = [(k, t) for k, t in enumerate(tensors) if mode == "all" or t._requires_grad]
    return _Several([register_hook(t, lambda g, k=k: arrived(k, g)) for k, t in wanted])  # type: ignore[misc]


class saved_tensors_hooks:
    """A block in which `pack_hook(tensor)` is called for each tensor that an operation saves for its gradient. What it returns is kept instead, until
    a backward pass asks `unpack_hook` for a tensor of the same shape and dtype, and computes with that.

    In-place changes of what was packed are not noticed. Of several blocks, one inside the other, the innermost counts. Operations whose formula keeps
    its tensors to itself (`var`, functions of `linalg`, checkpoints) raise NotImplementedError inside of it if they need a gradient.

    >>> import calque
    >>> x = calque.tensor([2.0], requires_grad=True)
    >>> with calque.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float() + 1):
    ...     y = x * x
    >>> y.backward()
    >>> x.grad
    tensor([6.])
    """

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook
        self._every = True

    def __enter__(self) -> None:
        if _Refused.why is not None:
            raise RuntimeError(_Refused.why)
        push(Hooks(self.pack_hook, self.unpack_hook, self._every))

    def __exit__(self, *error: object) -> None:
        pop()


class save_on_cpu(saved_tensors_hooks):
    """A block in which what operations save for their gradients is kept in the memory of the processor, and goes back to its device when a backward
    pass needs it. What `saved_tensors_hooks` refuses stays on its device. pin_memory: for PyTorch's signature, as how memory is copied is XLA's
    business."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(lambda t: (t.device, t.cpu()), lambda kept: kept[1].to(kept[0]))  # type: ignore[attr-defined]
        self._every = False


class _Refused:
    why: str | None = None  # what `saved_tensors_hooks` raises


@contextlib.contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """A block in which `saved_tensors_hooks` raises RuntimeError(error_message)."""
    before, _Refused.why = _Refused.why, error_message
    try:
        yield
    finally:
        _Refused.why = before
