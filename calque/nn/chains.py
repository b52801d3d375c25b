"""Chains of the library's layers, recorded again without running them.

What a `Sequential` of such layers records is determined by the layers (looked at again when some module has changed), the parameters, the
input and the modes. As with steps and backward passes (`replay/stretches.py`) the second call at a place of the trace is watched and later ones
are replays, unless something is unusual. The graph of a replay is one node until somebody looks at it (`autograd/chain.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from calque.autograd.chain import ChainGraph, Unfit
from calque.autograd.dependencies import Dependencies, Unknown
from calque.nn.functional.current import foreign, looked_up
from calque.nn.module import Module
from calque.record.recorder import local
from calque.replay.counts import Changes
from calque.replay.macro import key_of
from calque.replay.stretches import Stretch, StretchCounts, Stretches, possible, watch
from calque.tensor import TENSOR_TYPES, Tensor, next_number, wrap

SHORT = 10  # operations, views and inputs that are recorded in the time in which a replay is found
_REGISTRIES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_SETTINGS = (bool, int, float, str, type(None))
_call, _run = Module.__call__, Module._call
_layers: dict[type, Callable[..., Any]] = {}
_chains: dict[type, Callable[..., Any]] = {}


def replayable(layer: type) -> type:
    """Mark a class of layers: `forward` depends on the input, the parameters, attributes that are numbers or names, and the modes, and changes
    nothing."""
    _layers[layer] = layer.__dict__["forward"]
    return layer


def replayable_chain(container: type) -> type:
    """Mark a class of containers: `forward` calls the submodules one after the other."""
    _chains[container] = container.__dict__["forward"]
    return container


class Line:
    """What is known of a chain. `layers`: what they were when it was last looked at, `parameters` their tensors, `classes` and `names` what
    nobody may replace: methods, and functions of the library that they name."""

    __slots__ = ("owner", "epoch", "layers", "parameters", "classes", "names", "known", "stretches")

    def __init__(self, chain: Any, lines: dict[int, Line]) -> None:
        key = id(chain)
        self.owner = ref(chain, partial(lines.pop, key))  # no Python, in which a handler's exception would be lost
        self.epoch = -1
        self.layers: list[Any] = []
        self.parameters: list[Tensor] = []
        self.classes: dict[type, Any] = {}
        self.names: list[tuple[dict[str, Any], str, Any]] = []
        self.known = False  # whether all of it is understood
        self.stretches = Stretches()

    def look(self, chain: Any) -> None:
        """Look at the layers; what was recorded of others is forgotten."""
        self.epoch = Changes.epoch
        before, parameters = self.layers, self.parameters
        self.layers, self.parameters, self.classes = [], [], {}
        self.known = self._collect(chain)
        if not self.known:
            return
        same = len(parameters) == len(self.parameters) and all(p is q for p, q in zip(parameters, self.parameters, strict=True))
        if not same or before != self.layers:
            self.stretches = Stretches()
            self.names = [found for forward in self.classes.values() for found in looked_up(forward)]
            if any(foreign(value) for _, _, value in self.names):  # a program's, which wants to be called
                self.known, self.layers = False, []

    def _collect(self, chain: Any) -> bool:
        for layer in chain._modules.values():
            if layer is None:
                return False
            kind, own = layer.__class__, layer.__dict__
            forward = _layers.get(kind) or _chains.get(kind)
            if forward is None or layer._hooked or own["_buffers"]:  # hybridized ones, too: they do the same
                return False
            settings = {name: value for name, value in own.items() if name not in _REGISTRIES and name != "_hybrid"}
            if any(value.__class__ not in _SETTINGS for value in settings.values()):
                return False
            self.classes[kind] = forward
            self.layers.append((kind, {name: key_of(value) for name, value in settings.items()}, tuple(own["_parameters"])))
            if kind in _chains:
                if own["_parameters"] or not self._collect(layer):
                    return False
                continue
            for p in own["_parameters"].values():
                if p is not None and not any(p is q for q in self.parameters):
                    self.parameters.append(p)
            self.layers.append([next((k for k, q in enumerate(self.parameters) if p is q), -1) for p in own["_parameters"].values()])
        return True

    def as_known(self) -> bool:
        """Whether nobody has put other functions in the place of those that run."""
        if Module.__call__ is not _call or Module._call is not _run:
            return False
        for kind, forward in self.classes.items():
            if kind.forward is not forward:  # type: ignore[attr-defined]
                return False
        for space, name, value in self.names:
            if space.get(name) is not value:
                return False
        return True


class Given(Dependencies):
    """What the chain depends on: `tensors` are the input and the parameters."""

    __slots__ = ("tensors",)

    def read(self, line: Line, input: Any) -> bool:
        """Look at everything; False if something is unusual."""
        state, parts = local.state, self.parts
        tensors = self.tensors = [input, *line.parameters]
        node = input._grad_fn
        if node is not None and input._storage.buffer is not None:  # history of an earlier program is watched
            return False
        parts += (state.grad, state.inference, input.__class__, node is None)
        for t in tensors:
            parts.append(t._requires_grad)
        for p in line.parameters:
            if p._grad_fn is not None:
                return False
        self.values(tensors)
        return len(self.cells) == len(tensors)


def chain_again(chain: Any, input: Any, run: Callable[..., Any]) -> Tensor | None:
    """The result of a replay, or of `run(layers, input)` under a recording; None if nothing was done: the layers are to be called."""
    if not possible() or input.__class__ not in TENSOR_TYPES:
        return None
    lines = _tables.lines
    line = lines.get(id(chain))
    if line is None:
        line = lines[id(chain)] = Line(chain, lines)
    if line.epoch != Changes.epoch:
        line.look(chain)
    if not line.known or not line.as_known() or not line.stretches.met():
        return None
    given = Given()
    try:
        if not given.read(line, input):
            return None
    except Unknown:
        return None
    stretch = line.stretches.here(given.parts, 1)
    if stretch.macro is not None and stretch.macro.fits(given.trace, given.cells):
        return _replay(stretch, given)
    return _record(line, stretch, given, lambda: run(chain._modules, input)) if stretch.due() else None


def _record(line: Line, stretch: Stretch, given: Given, run: Callable[[], Any]) -> Tensor:
    caches, first = given.caches(), next_number() + 1
    place, slots = given.trace.cur, given.trace.n
    result, macro, capture = watch(given.cells, run, False)
    if macro is not None and macro.slots - slots <= SHORT:
        line.stretches.leave(place)
    elif macro is not None and not macro.definitions and not macro.written and line.epoch == Changes.epoch:
        try:
            stretch.result = (*_outcome(result, given, capture.storages, first), given.remembered(caches))
            stretch.macro = macro
        except Unfit:
            line.stretches.leave(place)
    capture.release()
    return result  # type: ignore[no-any-return]


def _outcome(out: Any, given: Given, made: list[Any], first: int) -> tuple[int, Any, ChainGraph | None]:
    """(place of the result among the new storages, its layout, its graph)."""
    cache = out._cache
    if out.__class__ is not Tensor or out._base is not None or out.__dict__ or (cache is not None and cache[0] is not given.trace):
        raise Unfit
    place = next((k for k, st in enumerate(made) if st is out._storage), -1)
    template = None if out._grad_fn is None else ChainGraph(out, given.tensors, made, first)
    held = {place} if template is None else {place, *template.kept}
    if place < 0 or cache is not None or held != set(range(len(made))) or out._requires_grad is not (template is not None):
        raise Unfit
    return place, out._layout, template


def _replay(stretch: Stretch, given: Given) -> Tensor:
    place, view, template, seen = stretch.result
    macro: Any = stretch.macro
    trace = given.trace
    created = macro.replay(trace, given.cells, [])
    if seen:
        given.remember(seen)
    StretchCounts.replays += 1
    out: Tensor = wrap(created[place], view)
    if template is not None:
        out._grad_fn, out._requires_grad = template.node(given.tensors, created, trace), True
    return out


class _Tables(threading.local):
    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}  # by the identity of the chain


_tables = _Tables()
