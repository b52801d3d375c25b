"""Gradients with and without their rules: `python -m tests.fuzz.templates --count 2000`.

A sample is a backward pass through a few calls of public functions (`gradient_cases`), recorded behind something else each time, with operands that
are pending or not, views or not. Where the gradients of operations are appended (`autograd/template.py`), the edges of the trie must be those of a
pass that runs all rules, with the same lines, and the gradients must agree; both where nothing was recorded yet and where everything was.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np

import calque
from calque.autograd import template
from calque.base.config import settings
from calque.record.path import Counters, Edge
from calque.record.recorder import local, record_from_here
from calque.record.trie import forget
from tests.fuzz.command import main
from tests.fuzz.gradients import Sample

Path = list[tuple[Any, ...]]
appended: Counter[str] = Counter()


class Pass:
    """Calls whose results are differentiated together. Everything follows from the seed; `turn` decides where and on what they are recorded."""

    def __init__(self, seed: int, only: str = "") -> None:
        rng = np.random.default_rng([seed, 17])
        self.seed = seed
        self.samples = [Sample(int(rng.integers(1 << 30)), only) for _ in range(rng.integers(1, 4))]

    def __str__(self) -> str:
        return "; ".join(map(str, self.samples))

    def record(self, turn: int) -> tuple[Path, list[Any]]:
        """Record the pass; the path that it left in the trie, and the gradients."""
        rng = np.random.default_rng([self.seed, 18, turn])
        calque.synchronize()
        leaves: list[Any] = []
        made: dict[int, Any] = {}
        for sample in self.samples:
            for leaf in sample.leaves():
                t = calque.tensor(leaf.array.copy())
                if leaf.needs and leaf.array.dtype.kind == "f":
                    leaves.append(t.requires_grad_())
                made[id(leaf)] = _given(t, rng)
                others = [x for x in made.values() if x.shape == t.shape and x.dtype == t.dtype and x is not made[id(leaf)]]
                if others and rng.random() < 0.4:  # the same value, through the same handle or another
                    made[id(leaf)] = others[0] if rng.random() < 0.5 else others[0].view_as(others[0])
        for _ in range(rng.integers(0, 3)):
            made[0] = calque.zeros(2) + float(rng.integers(3, 9))
        total: Any = None
        for sample in self.samples:
            for out in _call(sample, made):
                if out.requires_grad and out.dtype.is_floating_point:
                    part = (out.double() * rng.uniform(0.5, 1.5)).sum()
                    total = part if total is None else total + part
        if total is None:
            return [], []
        found = list(calque.autograd.grad(total, leaves, allow_unused=True, retain_graph=bool(rng.random() < 0.2)))
        return _path(), found


def _given(t: Any, rng: np.random.Generator) -> Any:
    """An operand as it is, pending, or as a view that may be in the trace already."""
    way = rng.integers(6)
    if way == 5:
        return calque.from_numpy(t.detach().numpy().copy()) if not t.requires_grad else t  # memory that others see
    if way == 1:
        return t * 1
    if way == 2 and t.ndim:
        return calque.stack([t, t])[1]
    if way == 3 and t.ndim > 1:
        return (t * 1).mT.contiguous().mT
    if way == 4 and t.ndim:
        t = calque.cat([t, t])[: t.shape[0]]
        if t.dtype.is_floating_point:
            t.detach() + 1  # the handle of another tensor; the next one remembers its slot
            t + 1
    return t


def _call(sample: Sample, made: dict[int, Any]) -> list[Any]:
    def build(value: Any) -> Any:
        if id(value) in made:
            return made[id(value)]
        return type(value)(build(v) for v in value) if isinstance(value, (tuple, list)) else value

    arguments, keywords = build(sample.arguments), {k: build(v) for k, v in sample.keywords.items()}
    name = sample.case.name
    result = sample.case.function(calque)(*arguments, **keywords)
    if name.endswith("_") and not name.endswith("__") or name == "__setitem__":
        result = arguments[0]
    return [t for t in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(t, calque.Tensor)]


def _path() -> Path:
    """What is pending: every edge with all that it says."""
    found: Path = []
    edge: Edge | None = local.state.trace.cur
    while edge is not None and edge.parent is not None:
        found.append((edge.op, edge.inputs, edge.attrs, edge.layout, edge.input_layouts, edge.line, edge.fixed, edge.boundary, edge))
        edge = edge.parent
    return [*found[::-1], (list(local.state.trace.scalars),)]


def _same(ours: list[Any], theirs: list[Any]) -> bool:
    """Whether gradients agree. The programs are the same, but one may have been interpreted and the other compiled, which rounds differently."""
    if [g is None for g in ours] != [g is None for g in theirs]:
        return False
    for a, b in zip(ours, theirs, strict=True):
        if a is not None and (a.dtype != b.dtype or a.shape != b.shape or a.strides != b.strides):
            return False
        if a is not None and not np.allclose(a, b, 1e-12 if a.dtype == np.float64 else 1e-5, 1e-14, equal_nan=True):
            return False
    return True


def mismatch(seed: int, only: str = "") -> str:
    """What differs between a pass that runs rules and one that does not, or nothing."""
    before = settings.macros, settings.verify, settings.max_pending_ops, settings.eager
    real = template.Template.append

    def counted(self: Any, node: Any, *rest: Any) -> Any:
        found = real(self, node, *rest)
        appended[node.name() if found is not None else "run by the rule"] += 1
        return found

    sample = Pass(seed, only)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        template.Template.append = counted  # type: ignore[method-assign]
        try:
            return _difference(sample)
        finally:
            template.Template.append = real  # type: ignore[method-assign]
            settings.macros, settings.verify, settings.max_pending_ops, settings.eager = before


def _difference(sample: Pass) -> str:
    settings.verify, settings.eager = False, 0
    record_from_here(local.state, "test")  # what is computed at once leaves no path to look at
    if sample.seed % 2:
        calque.zeros(1, device="meta")  # from now on devices are several
    if sample.seed % 4 == 3:
        settings.max_pending_ops = 8 + sample.seed % 32  # passes are cut, also in the middle of a rule
    for turn in range(5):
        for fresh in (True, False):  # nothing recorded yet; everything recorded
            found = []
            for settings.macros in (False, True):
                if fresh:
                    calque.synchronize()
                    forget()
                    Counters.evictions += 1  # replays of stretches must not lead to what is forgotten
                try:
                    path, gradients = sample.record(turn)
                    found.append((path, [None if g is None else g.numpy() for g in gradients], ""))
                except Exception as error:  # the same error both ways is another fuzzer's affair
                    found.append(([], [], f"{type(error).__name__}: {error}"))
            (path, values, error), (other, their, wrong) = found
            last = -1 if fresh else None  # the edges themselves are the same if they were there
            if error != wrong:
                return f"turn {turn}: rules {error or 'work'}, templates {wrong or 'work'}"
            for k, (a, b) in enumerate(zip(path, other, strict=False)):
                if repr(a[:last]) != repr(b[:last]) or (not fresh and a[-1] is not b[-1] and len(a) > 1):
                    return f"turn {turn}, {'new' if fresh else 'known'}: edge {k} of the rules is\n      {a}\n    of the templates\n      {b}"
            if len(path) != len(other) or not _same(values, their):
                return f"turn {turn}: {len(path)} and {len(other)} edges, gradients {values} and {their}"
    settings.macros = settings.verify = True
    try:
        sample.record(5)
    except AssertionError as error:
        return f"verified: {error}"
    except Exception:  # as above
        pass
    finally:
        settings.verify = False
    return ""


def check(seed: int, only: str) -> str:
    """"" or the difference of a sample."""
    text = mismatch(seed, only)
    return text and f"{Pass(seed, only)}\n    {text}"


def counted() -> str:
    """How often which operation's gradient was appended."""
    return f"{sum(appended.values())} appended: " + ", ".join(f"{name} {count}" for name, count in appended.most_common())


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.templates", __doc__, check, 200, counted, only=""))
