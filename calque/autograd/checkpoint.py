"""Rematerialisation: keep only the inputs of a function, and run it again inside backward.

The function first runs with gradients on, only to see which tensors of the outside it uses; then that inner graph is dropped, so
nothing
of it stays alive. Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.autograd.api import target_of
from calque.autograd.engine import run_backward
from calque.autograd.leaves import RuleNamespace
from calque.base.errors import ArgumentError, AutogradError
from calque.base.text import described
from calque.observe.source import user_line
from calque.record import recorder
from calque.record.nodes import FunctionNode
from calque.record.recorder import local
from calque.tensor import GradNode, Tensor, _sequence, function_node, output_nodes, wrap

__all__ = ["checkpoint", "checkpoint_sequential"]


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True, context_fn: Any = None,
    determinism_check: str = "default", debug: bool = False, early_stop: bool = True, **keywords: Any,
) -> Any:  # fmt: skip
    """`function(*args, **keywords)` whose intermediate values are computed again in backward instead of being kept.

    function: returns a Tensor or a tuple. preserve_rng_state: dropout and other random operations repeat the same numbers.
    use_reentrant, determinism_check, debug and early_stop are accepted for PyTorch's signature and change nothing: gradients also reach the tensors
    that `function` captures, and what is computed again is compared with nothing.

    >>> import calque
    >>> x = calque.tensor([1.0, 2.0], requires_grad=True)
    >>> calque.autograd.checkpoint(lambda t: (t.exp() * t).sum(), x).backward()
    >>> calque.allclose(x.grad, ((x + 1) * x.exp()).detach())
    True
    """
    if context_fn is not None:
        raise ArgumentError("[checkpoint] expected context_fn=None, got a function; open its contexts inside of the checkpointed function")
    state = local.state
    if not state.grad:
        return function(*args, **keywords)
    random_state = _random_state() if preserve_rng_state else None
    start = next(_sequence)
    result = function(*args, **keywords)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    inner = [
        out
        for out in outputs
        if isinstance(out, Tensor) and out._requires_grad and out._grad_fn is not None and out._grad_fn.number > start
    ]
    if not inner:
        return result
    given = [a for a in [*args, *keywords.values()] if isinstance(a, Tensor)]
    sources = _sources(inner, start, [target_of(a) for a in given if a._requires_grad])
    replay = _Replay(function, args, keywords, sources, random_state, [any(out is i for i in inner) for out in outputs])
    node = function_node("CheckpointBackward", (), tuple(out._layout for out in inner), replay.backward)
    node.next = tuple(sources)
    node.where = user_line()
    kept = given + [t for t in sources if isinstance(t, Tensor) and not any(t is a for a in given)]
    node.saved = dict(enumerate(kept))
    node.versions = [t._storage.version for t in kept]
    if state.trace.transforms:
        state.trace.saving(node)
    fresh = {}
    for out, out_node in zip(inner, output_nodes(node, len(inner)), strict=True):
        handle: Tensor = wrap(out._storage, out._layout)
        handle._grad_fn, handle._requires_grad = out_node, True
        fresh[id(out)] = handle
    outputs = [fresh.get(id(out), out) for out in outputs]
    return type(result)(outputs) if isinstance(result, (tuple, list)) else outputs[0]


def _sources(outputs: list[Tensor], start: int, first: list[Any]) -> list[Any]:
    """Leaves and nodes of the outside that the graph since `start` leads to; those of the arguments first."""
    found = {id(t): t for t in first}
    seen: set[int] = set()
    stack: list[Any] = [out._grad_fn for out in outputs]
    while stack:
        item = stack.pop()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, GradNode) and item.number > start:
            stack.extend(item.next)
        else:
            found.setdefault(id(item), item)
    return list(found.values())


class _Replay:
    """What backward needs to run the function again."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        sources: list[Any],
        random: Any,
        used: list[bool],
    ) -> None:
        self.function, self.args, self.keywords = function, args, keywords
        self.sources, self.random, self.used = sources, random, used
        self.autocast = local.state.autocast

    def backward(self, node: FunctionNode, grads: list[Any]) -> tuple[Any, ...]:
        """Gradients of the sources, from a second run."""
        state = local.state
        create = state.grad
        recorded = not state.trace.eager
        recorder.flush("checkpoint")  # a program of its own: the values of the first run must not serve (and so live until) the second
        if recorded:  # the pass was: what comes again would be computed operation by operation to its end, however large
            recorder.record_from_here(state, "checkpoint")
        now = _random_state() if self.random is not None else None
        if self.random is not None:
            _set_random_state(self.random)
        around, state.grad, state.autocast = state.autocast, True, self.autocast
        try:
            result = self.function(*self.args, **self.keywords)
        finally:
            state.grad, state.autocast = create, around
            if self.random is not None:
                _set_random_state(now)
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        if len(outputs) != len(self.used):
            raise AutogradError(
                f"[checkpoint] the function (recorded at {node.line}) returned {len(self.used)} outputs at first and "
                f"{len(outputs)} when run "
                "again in backward; it must do the same both times"
            )
        again = [out for out, used in zip(outputs, self.used, strict=True) if used]
        roots = [(target_of(out), g) for out, g in zip(again, grads, strict=True) if g is not None and out._requires_grad]
        found = run_backward(roots, create, create, False, self.sources, stop=True) if roots else {}
        return tuple(found.get(id(source)) for source in self.sources)


def _random_state() -> Tensor | None:
    functional = RuleNamespace.functional
    return functional.get_rng_state() if hasattr(functional, "get_rng_state") else None


def _set_random_state(state: Tensor | None) -> None:
    if state is not None:
        RuleNamespace.functional.set_rng_state(state)


def checkpoint_sequential(
    functions: Any, segments: int, input: Tensor, use_reentrant: bool = False, preserve_rng_state: bool = True
) -> Any:
    """Run a sequence of functions in `segments` checkpointed pieces; the last piece is kept."""
    if not hasattr(functions, "children") and not isinstance(functions, (tuple, list)):
        raise ArgumentError(f"[checkpoint_sequential] expected a Sequential or a list of functions, got {described(functions)}")
    parts = list(functions.children()) if hasattr(functions, "children") else list(functions)
    for k, part in enumerate(parts):
        if not callable(part):
            raise ArgumentError(f"[checkpoint_sequential] expected functions or modules, got {described(part)} at index {k}")
    size = max(1, len(parts) // max(1, segments))

    def run(piece: list[Any]) -> Callable[[Any], Any]:
        def call(x: Any) -> Any:
            for part in piece:
                x = part(x)
            return x

        return call

    start = 0
    for _ in range(segments - 1):
        input = checkpoint(run(parts[start : start + size]), input, preserve_rng_state=preserve_rng_state)
        start += size
    return run(parts[start:])(input)
