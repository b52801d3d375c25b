"""`calque.memory.plan`: what a step will hold, before it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calque.base.errors import ArgumentError, MemoryPlanError
from calque.base.layout import dense_layout
from calque.base.text import human, shown, type_name
from calque.functional.common import is_tensor
from calque.memory.rehearsal import Known, Moment, Rehearsal
from calque.memory.stage import Stage
from calque.nn.parameter import is_lazy
from calque.profiler.peak import Held, temporaries
from calque.record import recorder
from calque.record.recorder import local
from calque.record.storage import realised
from calque.report.devices import synchronize
from calque.run.backends import host_memory
from calque.tensor import Tensor, wrap

ROWS = 8
PARAMETERS, RESULTS, TEMPORARY, REST = "made before", "results", "temporary", "other"


@dataclass(frozen=True)
class TensorHeld:
    """One value that is held at the peak: its name or operation with shape and dtype, its bytes, the line that makes it ("" if it was there
    before), and its kind ("made before", "results" that outlive their program, "temporary" values of the program at the peak)."""

    text: str
    nbytes: int
    line: str
    kind: str


class MemoryPlan:
    """What `calque.memory.plan` found. Printing it gives a table.

    `peak`: bytes in use at the highest moment of the step; `before`: those in use now; `after`: those in use behind the steps; `tensors`: what is
    held at the peak, most first; `held`: the same by source line; `line`: where the program ends that runs then; `programs`: how many a step starts;
    `reads`: (line, reason) of values that Python looks at: the plan is that of a step that finds ones there; `result`: nothing of it is kept.
    """

    def __init__(self, before: int, after: int, moment: Moment, tensors: list[TensorHeld], programs: int, reads: list[tuple[str, str]]) -> None:
        self.peak, self.before, self.after = moment.nbytes, before, after
        self.line, self.programs = moment.line, programs
        self.reads = tuple(dict.fromkeys(reads))
        self.tensors = tuple(sorted(tensors, key=lambda t: -t.nbytes))
        by_line: dict[tuple[str, str], Held] = {}
        for t in self.tensors:
            by_line.setdefault((t.line, t.kind), Held(t.line, t.kind)).add(t.text, t.nbytes)
        self.held = tuple(sorted(by_line.values(), key=lambda h: -h.nbytes))

    def fits(self, budget: int | str) -> bool:
        """Whether the step stays within so many bytes ("2GiB")."""
        return self.peak <= bytes_of("fits", budget)

    def __str__(self) -> str:
        where = f" in the program that ends at {_short(self.line)}" if self.line else ""
        out = [f"peak {human(self.peak)}{where} ({human(self.before)} in use before, {human(self.after)} after)"]
        out.append(f"{'':>12}  {'by line':<34} kind")
        out += [f"{human(h.nbytes):>12}  {_short(h.line) or '-':<34} {h.kind}{_most(h)}" for h in self.held[:ROWS]]
        out.append(f"{'':>12}  largest values")
        out += [f"{human(t.nbytes):>12}  {t.text}{f'  ({_short(t.line)})' if t.line else ''}" for t in self.tensors[:ROWS]]
        out += [f"{_short(line)} looks at a value ({reason}): planned as if it were 1" for line, reason in self.reads]
        return "\n".join(out)

    __repr__ = __str__


def _short(line: str) -> str:
    return Path(line).name


def _most(held: Held) -> str:
    name, (times, _) = max(held.values.items(), key=lambda item: item[1][1])
    return f": {f'{times} x ' if times > 1 else ''}{name}{', ...' if len(held.values) > 1 else ''}"


def bytes_of(where: str, budget: int | str) -> int:
    """A number of bytes, as a number or as text."""
    if isinstance(budget, str):
        text = budget.strip()
        digits = text.rstrip("KMGTiBkb ")
        factor = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
        unit = text[len(digits) :].strip().lower()
        try:
            budget = int(float(digits) * factor[unit])
        except (KeyError, ValueError, OverflowError):
            raise ArgumentError(f'[{where}] expected a budget such as "2GiB", "500 MB" or a number of bytes, got {shown(text)}') from None
    if isinstance(budget, bool) or not isinstance(budget, int) or budget <= 0:
        raise ArgumentError(f"[{where}] expected a budget of at least one byte, got {shown(budget)}")
    return budget


def plan(step: Callable[..., Any], *inputs: Any, steps: int = 2) -> MemoryPlan:
    """What `step(*inputs)` will hold at its peak, before anything runs, by source line and tensor.

    step: a function that trains (forward, backward, optimizer) or evaluates. Its Python runs, `steps` times (the second step already has gradients
    and states of the optimizer), but its programs are only planned, as they would be for a run. Afterwards parameters, gradients, optimizers, streams
    of random numbers, attributes of modules and objects (schedulers, meters), and the variables, lists and dicts that the function names or that
    these lead to, are as before. Few numbers may be read (`item()`): they are taken for 1, and the plan says where. Files that it writes are written.

    Raises MemoryPlanError where a step needs values that only a run has (arrays of NumPy's, other devices), and whatever `step` raises.

    >>> import calque
    >>> model = calque.nn.Linear(256, 256)
    >>> def step(x):
    ...     model.zero_grad()
    ...     model(x).square().mean().backward()
    >>> found = calque.memory.plan(step, calque.ones(1024, 256))
    >>> found.peak - found.before > 1024 * 256 * 4, model.weight.grad is None
    (True, True)
    """
    if not callable(step):
        raise ArgumentError(f"[plan] expected a function, got {type_name(step)}; pass the function and its inputs: plan(step, x, y)")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ArgumentError(f"[plan] expected at least one step, got steps={shown(steps)}")
    recorder.record_from_here(local.state, "plan")
    if not local.state.plain or local.state.capture is not None or local.state.trace.__class__ is not recorder.Trace:
        raise MemoryPlanError("[plan] expected to be called outside of vmap, hybridized calls, exports and other plans; call it first")
    synchronize()
    return _rehearsed(step, inputs, steps)


def planned_for(step: Callable[..., Any], inputs: tuple[Any, ...], example: int, count: int) -> MemoryPlan:
    """`plan` with `count` samples in the place of `example`; no such batch is made."""
    synchronize()
    return _rehearsed(step, inputs, 2, lambda t: (count, *t.shape[1:]) if t.dim() and t.shape[0] == example else None)


def _rehearsed(step: Callable[..., Any], inputs: tuple[Any, ...], steps: int, sizes: Callable[[Any], Any] | None = None) -> MemoryPlan:
    stage = Stage(step, inputs)
    lazy = next((name for name, t in stage.reached.tensors.items() if is_lazy(t)), None)
    if lazy is not None:
        raise MemoryPlanError(
            f"[plan] expected parameters and buffers that have shapes, but {lazy} gets its shape in the first call of its layer, which a plan would "
            "have to undo; call the model once before, or load a state dict"
        )
    before = host_memory().memory().in_use
    rehearsal = Rehearsal()
    recorder.record_from_here(local.state, "plan")  # waiting for what was pending may have ended that
    try:
        with rehearsal:
            stage.set(rehearsal)
            given = inputs
            if sizes is not None:
                given = tuple([_sized(rehearsal, t, sizes(t), k) if is_tensor(t) else t for k, t in enumerate(inputs)])
            for _ in range(steps):
                rehearsal.next_step()
                result = step(*given)
                recorder.flush("plan")
            rehearsal.call(stage.results())
            del result, given
            rehearsal.next_step()
    finally:
        stage.put_back()
    after = rehearsal.moments.pop().nbytes
    moment = max(rehearsal.moments, key=lambda m: m.nbytes)
    tensors = _tensors(moment, stage, before)
    found = MemoryPlan(before, after, moment, tensors, rehearsal.programs // steps, rehearsal.reads)
    del moment
    rehearsal.moments.clear()
    kept = rehearsal.left()
    if kept is not None:
        raise MemoryPlanError(
            "[plan] expected a step whose tensors are its arguments, parameters, attributes of modules or variables that it names, but after it "
            f"Python still holds {kept.text} of {kept.line or 'an unknown line'} somewhere else; a plan cannot put that back: make what holds it anew"
        )
    return found


def _sized(rehearsal: Rehearsal, t: Tensor, shape: Any, number: int) -> Any:
    """A tensor of another shape, without values; the given one, if it stays as it is."""
    if shape is None or tuple(shape) == tuple(t.shape):
        return t
    view = dense_layout(tuple(shape), t._layout.dtype, t._layout.device)
    buffer = rehearsal.fresh(view.nbytes, f"input {number} {list(shape)} {view.dtype.name}")
    made: Any = wrap(realised(buffer, view), view)
    made._requires_grad = t._requires_grad
    return made


def _tensors(moment: Moment, stage: Stage, before: int) -> list[TensorHeld]:
    """What is held at a moment."""
    found: list[TensorHeld] = []
    for t in {id(t._storage): t for t in stage.reached.tensors.values()}.values():
        buffer = t._storage.buffer
        if buffer is not None and buffer.array is not None:
            text = f"{stage.names[id(t._storage)]} {list(t._layout.shape)} {t._layout.dtype.name}"
            found.append(TensorHeld(text, host_memory().held(buffer.array.nbytes), "", PARAMETERS))
    for known in moment.alive:
        found.append(_result(known))
    if moment.form.schedule is not None:
        found += [TensorHeld(name, size, line, TEMPORARY) for line, name, size in temporaries(moment.form.schedule, moment.form.program.nodes)]
    rest = moment.nbytes - sum(t.nbytes for t in found)
    if rest > 0:
        found.append(TensorHeld("room between values, values that the step does not reach", rest, "", REST))
    return found


def _result(known: Known) -> TensorHeld:
    return TensorHeld(known.text, known.nbytes, known.line, PARAMETERS if known.node < 0 else RESULTS)
