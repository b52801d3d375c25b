"""`summary(model, inputs)`: what a model consists of and what a call of it costs; `memory_summary()`: what the process holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from calque.base.errors import DTypeError
from calque.base.text import human, type_name
from calque.functional.common import is_tensor
from calque.kernel.cost import cost
from calque.memory.rehearsal import Form, Rehearsal
from calque.memory.snapshot import snapshot
from calque.memory.stage import Stage
from calque.nn.module import Module
from calque.record import recorder
from calque.report.devices import synchronize
from calque.run.backends import host_memory


@dataclass
class Layer:
    """A module in a summary. `shapes`: of its results, over all its calls; `flops` and `nbytes` (read and written): of its own operations, without
    those of the modules in it; `parameters`, `trainable`: numbers that belong to it alone; a tensor that several share counts at the first."""

    name: str
    kind: str
    depth: int
    parameters: int
    trainable: int
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    flops: int = 0
    nbytes: int = 0
    calls: int = 0


class Summary:
    """What `summary` found. Printing it gives a table. `layers`: in the order of the model; `parameters`, `trainable`, `flops`, `nbytes` (moved):
    sums; `parameter_bytes`, `output_bytes`: of the parameters, and of all results of modules."""

    def __init__(self, layers: list[Layer], parameter_bytes: int, output_bytes: int) -> None:
        self.layers = tuple(layers)
        self.parameters, self.trainable = sum(x.parameters for x in layers), sum(x.trainable for x in layers)
        self.flops, self.nbytes = sum(x.flops for x in layers), sum(x.nbytes for x in layers)
        self.parameter_bytes, self.output_bytes = parameter_bytes, output_bytes

    def __str__(self) -> str:
        rows = [("module", "results", "parameters", "MFLOP", "moved")]
        for x in self.layers:
            shapes = ", ".join(str(list(s)) for s in x.shapes[:2]) + (", ..." if len(x.shapes) > 2 else "")
            times = f" x {x.calls}" if x.calls > 1 else ""
            text = f"{'  ' * x.depth}{x.name.rpartition('.')[2] or x.kind}{f' ({x.kind})' if x.name else ''}{times}"
            learn = "" if x.trainable == x.parameters else f" ({x.trainable:,} learn)" if x.trainable else " (frozen)"
            count, flops = f"{x.parameters:,}{learn}" if x.parameters else "", f"{x.flops / 1e6:,.2f}" if x.flops else ""
            rows.append((text, shapes, count, flops, human(x.nbytes) if x.nbytes else ""))
        wide = [max(len(row[k]) for row in rows) for k in range(5)]
        aligned = [[c.ljust(w) if k < 2 else c.rjust(w) for k, (c, w) in enumerate(zip(row, wide, strict=True))] for row in rows]
        out = ["  ".join(row).rstrip() for row in aligned]
        out.append(f"{self.parameters:,} parameters ({self.trainable:,} learn, {human(self.parameter_bytes)}), {self.flops / 1e6:,.2f} MFLOP a call, "
                   f"{human(self.output_bytes)} of results")  # fmt: skip
        return "\n".join(out)

    __repr__ = __str__


class _Recorder:
    """Cuts what is recorded at the borders of modules, and charges each piece to the module that it came from."""

    def __init__(self, model: Any) -> None:
        self.layers: dict[int, Layer] = {}
        self.stack: list[Layer] = []
        self.handles: list[Any] = []
        self.output_bytes = 0
        seen: set[int] = set()
        for name, module in model.named_modules():
            own = [p for p in module._parameters.values() if p is not None and id(p) not in seen]
            seen.update(id(p) for p in own)
            counts = sum(p.numel() for p in own), sum(p.numel() for p in own if p.requires_grad)
            layer = self.layers[id(module)] = Layer(name, type(module).__name__, name.count(".") + 1 if name else 0, *counts)
            self.handles += [module.register_forward_pre_hook(self._entering(layer)), module.register_forward_hook(self._leaving(layer))]

    def _entering(self, layer: Layer) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            recorder.flush("summary")
            self.stack.append(layer)

        return enter

    def _leaving(self, layer: Layer) -> Callable[..., None]:
        def leave(module: Any, given: Any, result: Any) -> None:
            recorder.flush("summary")
            self.stack.pop()
            layer.calls += 1
            for t in _tensors(result):
                layer.shapes.append(tuple(t.shape))
                self.output_bytes += t._layout.nbytes

        return leave

    def charge(self, form: Form) -> None:
        """A program was recorded."""
        if self.stack and form.schedule is not None:
            for step in form.schedule.steps:
                found = cost(step, form.schedule.buffers)
                self.stack[-1].flops += found.flops
                self.stack[-1].nbytes += found.nbytes


def _tensors(value: Any) -> list[Any]:
    if is_tensor(value):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [t for item in items for t in _tensors(item)]


def summary(model: Any, *inputs: Any, **keywords: Any) -> Summary:
    """What a model consists of and what `model(*inputs)` costs, module by module, from a recording of the call: nothing is computed.

    Any number and kind of inputs; operations that the model writes itself (`F.relu`, `x + y`) are charged to the module whose `forward` they stand
    in; modules that are called several times say so. FLOPs count multiplications and additions, bytes what kernels read and write.

    >>> import calque
    >>> nn = calque.nn
    >>> found = calque.memory.summary(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), calque.ones(16, 4))
    >>> [layer.kind for layer in found.layers], found.parameters, found.layers[1].shapes
    (['Sequential', 'Linear', 'ReLU', 'Linear'], 58, [(16, 8)])
    """
    if not isinstance(model, Module):
        raise DTypeError(f"[summary] expected a Module and its inputs, got {type_name(model)}; write summary(model, x)")
    synchronize()
    stage = Stage(model, (*inputs, *keywords.values()))
    found = _Recorder(model)
    rehearsal = Rehearsal(found.charge)
    grad = recorder.local.state.grad
    try:
        with rehearsal:
            recorder.local.state.grad = False
            model(*inputs, **keywords)
    finally:
        recorder.local.state.grad = grad
        for handle in found.handles:
            handle.remove()
        stage.put_back()
    unique = {id(p): p for p in model.parameters()}.values()
    return Summary(list(found.layers.values()), sum(p._layout.nbytes for p in unique), found.output_bytes)


# ------------------------------------------------------------------------------------------------------------------ the process


def memory_summary(rows: int = 8) -> str:
    """What tensors of this process hold now, as text: bytes in use, their peak, what is kept for reuse, and the variables that hold most.
    `snapshot()` is the same as an object, and as a page.

    >>> import calque
    >>> x = calque.ones(1000, 1000)
    >>> _ = x.sum().item()
    >>> "`x`" in calque.memory.memory_summary()
    True
    """
    return snapshot().text(rows)


def empty_cache() -> int:
    """Give memory that no tensor uses back to the system; the bytes given back. `del` makes memory free for the next tensors; this makes it free for
    other processes."""
    synchronize()
    return host_memory().release_cached()


def memory_allocated() -> int:
    """Bytes that tensors and running programs hold now."""
    synchronize()
    return host_memory().memory().in_use


def memory_reserved() -> int:
    """The same, and what is kept for reuse."""
    synchronize()
    stats = host_memory().memory()
    return stats.in_use + stats.cached


def max_memory_allocated() -> int:
    """The most bytes held at one time since `reset_peak_memory_stats()`."""
    synchronize()
    return host_memory().memory().peak


def reset_peak_memory_stats() -> None:
    """Start the peak anew from what is in use."""
    synchronize()
    host_memory().reset_peak()

