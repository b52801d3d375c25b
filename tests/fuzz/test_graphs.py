"""Random typed graphs against the float64 oracle with bounds, forward and backward, in all the ways a graph can be run. Every failure prints its
seed, the shrunk graph and the line that repeats it. `python -m tests.fuzz.check_graphs` runs any number of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calque.base.config import settings
from calque.ops import opdef
from calque.ops.opdef import Vjp
from tests.fuzz import check_graphs
from tests.fuzz.bounded import Oracle, gradients, leaf
from tests.fuzz.check import mode
from tests.fuzz.check_graphs import STEPS, failure, guard, report
from tests.fuzz.graphs import Found, Graph, wrong

ROOT = Path(__file__).resolve().parents[2]
FAST, PARTS = 160, 4


@pytest.mark.parametrize("part", range(PARTS))
def test_values_and_gradients_are_within_their_bounds(part: int, seed: int) -> None:
    size = FAST // PARTS
    for number in range(seed + part * size, seed + (part + 1) * size):
        if failure(number, STEPS, frozenset(), False):
            pytest.fail(report(number))


def test_optimisation_threads_and_memory(seed: int) -> None:
    for number in range(seed, seed + 25):
        if failure(number, STEPS, frozenset(), True):
            pytest.fail(report(number, full=True))


@pytest.mark.slow
def test_twenty_thousand_graphs(seed: int) -> None:
    """Every tenth in all ways."""
    for number in range(seed, seed + 20_000):
        full = number % 10 == 0
        if failure(number, STEPS, frozenset(), full):
            pytest.fail(report(number, full=full))


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def guarded(seed: int, count: int) -> None:
    """A touched guard page ends the process; the last seed printed is the one."""
    done = python("-m", "tests.fuzz.check_graphs", "--guard", "--seed", str(seed), "--count", str(count), CALQUE_CACHE=str(settings.cache_dir))
    assert done.returncode == 0, f"status {done.returncode} after\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    assert f"{count} cases of " in done.stdout and ", 0 failures, " in done.stdout


def test_nothing_behind_a_buffer_is_touched(seed: int) -> None:
    guarded(seed, 60)


@pytest.mark.slow
def test_nothing_behind_a_buffer_is_touched_by_two_thousand_graphs(seed: int) -> None:
    guarded(seed, 2000)


def test_fresh_and_stored_code_give_the_same_bits(seed: int, tmp_path: Path) -> None:
    arguments = ("-m", "tests.fuzz.check_graphs", "--digest", "--seed", str(seed), "--count", "5")
    first, second = (python(*arguments, CALQUE_CACHE=str(tmp_path)) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr[-2000:]
    assert first.stdout.splitlines()[:5] == second.stdout.splitlines()[:5]
    assert "compiled 0 modules" not in first.stdout and "compiled 0 modules" in second.stdout


# ------------------------------------------------------------------------------------------- the checks themselves


def test_graphs_hold_what_they_should(seed: int) -> None:
    """Types, empty and 0-d shapes, views, broadcasting, reductions, integers and gradients all occur."""
    calls: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    empty = scalars = slopes = 0
    for number in range(seed, seed + 200):
        graph = Graph(number, STEPS)
        calls.update(name for name, _ in graph.calls)
        dtypes.update(v.dtype for v in graph.values)
        empty += any(v.value.size == 0 for v in graph.values)
        scalars += any(v.shape == () for v in graph.values)
        slopes += sum(g is not None and g.v.size > 0 and bool(g.v.any()) for g in graph.gradients)
    operations = {name for name in vars(Oracle) if not name.startswith("_")}
    assert operations <= set(calls), operations - set(calls)
    assert {"float32", "float64", "int64", "int32", "bool"} == set(dtypes)
    assert empty > 50 and scalars > 100 and slopes > 200


def test_steps_can_be_left_out(seed: int) -> None:
    """The others stay what they are, so shrinking means something."""
    whole, less = Graph(seed, STEPS), Graph(seed, STEPS, frozenset({STEPS - 1}))
    assert whole.calls[: len(less.calls)] == less.calls
    assert len(Graph(seed, STEPS, frozenset(range(STEPS))).calls) == 3


def test_bounds_hold_in_float32_and_are_not_loose() -> None:
    """A chain computed in float32 by NumPy is inside, and a wrong last digit but two is outside."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((20, 30)), rng.standard_normal((30, 10))
    x, w = (a.astype(np.float32).astype(np.float64) for a in (x, w))
    o = Oracle()
    value = o.sum(o.tanh(o.matmul(leaf(x, "float32"), leaf(w, "float32"))), (1,), False)
    plain = np.tanh(x.astype(np.float32) @ w.astype(np.float32)).sum(1)
    assert value.b is not None
    assert (np.abs(plain - value.b.v) <= value.b.e).all()
    assert (value.b.e < 1e-3).all()


def test_bounds_of_graphs_are_narrow(seed: int) -> None:
    """Nine of ten elements of values and gradients are known to a thousandth of their size or of one."""
    narrow = total = 0
    for number in range(seed, seed + 200):
        graph = Graph(number, STEPS)
        for b in [*(graph.values[n].b for n in graph.outputs), *graph.gradients]:
            if b is not None:
                narrow += int((b.e <= 1e-3 * (np.abs(b.v) + 1)).sum())
                total += b.v.size
    assert narrow > 0.9 * total, narrow / total


def test_terms_that_cancel_leave_their_rounding_in_the_bound() -> None:
    """The gradient of x - x + f(x) may be summed in any order."""
    x = leaf(np.asarray([0.25]), "float32")
    x.tracked = True
    o = Oracle()
    weight = np.asarray([1000.0])
    found = gradients([(o.sub(x, x), weight), (o.sin(x), np.asarray([1.0]))], [x])[0]
    assert found is not None and abs(found.v[0] - np.cos(0.25)) < 1e-9 and found.e[0] > 1000 * 2.0**-23


def test_the_oracle_differentiates(seed: int) -> None:
    """Its gradients agree with differences of its own values, in float64."""
    rng = np.random.default_rng(seed)
    x = leaf(rng.uniform(0.5, 1.5, (3, 4)), "float64")
    x.tracked = True
    o = Oracle()

    def function(v: object) -> object:
        y = o.div(o.mul(o.sin(v), o.sqrt(v)), o.exp(o.cos(v)))
        return o.mean(o.cat([o.flip(y, 0), o.cut(o.log(v), (slice(0, 2), slice(0, 4)))], 0), (0, 1), False)

    found = gradients([(function(x), np.asarray(1.0))], [x])[0]
    assert found is not None
    for place in np.ndindex(3, 4):
        step = np.zeros((3, 4))
        step[place] = 1e-6
        up, down = (function(leaf(x.b.v + s * step, "float64")).value for s in (1, -1))  # type: ignore[union-attr, attr-defined]
        assert abs((up - down) / 2e-6 - found.v[place]) < 1e-7


@pytest.mark.parametrize("name", ["tanh", "mul", "sum", "matmul", "maximum", "view"])
def test_a_wrong_gradient_rule_is_found(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one rule off by a thousandth, one of the first graphs fails."""
    monkeypatch.setattr(settings, "macros", False)  # rules are run, not appended from what right or wrong ones have recorded
    record = opdef.get(name)
    right = record.vjp

    def bent(rule: Any) -> Any:
        return lambda F, g, c: rule(F, g, c) * 1.001

    try:
        object.__setattr__(record, "vjp", tuple(None if v is None else Vjp(bent(v.rule), v.saves) for v in right))
        assert any(failure(number, STEPS, frozenset(), False) for number in range(seed, seed + 80)), f"a wrong gradient of {name} went unnoticed"
    finally:
        object.__setattr__(record, "vjp", right)


def test_a_wrong_value_is_found(seed: int) -> None:
    """In floating values, exact values and gradients."""
    seen = set()
    for number in range(seed, seed + 60):
        graph = Graph(number, STEPS)
        with mode("cpu"):
            found = Found(graph)
        for kind, arrays in (("value", found.arrays), ("gradient", found.slopes)):
            for k, array in enumerate(arrays):
                if array is None or not array.size or (kind == "gradient" and graph.gradients[k] is None):
                    continue
                before = array.copy()
                b = graph.gradients[k] if kind == "gradient" else graph.values[graph.outputs[k]].b
                first = array.reshape(-1)[0]
                shift = 1.0 if b is None else 1e-3 * abs(float(first)) + 2.5 * float(b.e.reshape(-1)[0]) + 1e-30
                array.reshape(-1)[0] = ~first if array.dtype == bool else first + (1 if b is None else shift)
                assert wrong(graph, found), f"seed {number}: a changed {kind} went unnoticed"
                array[...] = before
                seen.add((kind, array.dtype.kind))
        assert not wrong(graph, found)
    assert seen >= {("value", "f"), ("value", "i"), ("value", "b"), ("gradient", "f")}


FAULTS = {
    "read behind": "ctypes.string_at(a.ctypes.data + 64, 1)",
    "write into the rounding": "ctypes.memset(a.ctypes.data + a.nbytes, 0, 1); g.inspect()",
    "nothing": "g.inspect()",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_guards_see_faults(fault: str) -> None:
    program = (
        "import ctypes, numpy as np\nfrom calque.backend.cpu.team.memory import POOL\nfrom tests.fuzz.check_graphs import guard\n"
        f"with guard() as g:\n    a = POOL.empty(9, np.dtype('float32'))\n    {FAULTS[fault]}\n"
    )
    status = python("-c", program).returncode
    assert status == {"read behind": -11, "write into the rounding": 1, "nothing": 0}[fault]


def test_a_failure_is_made_small(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A graph that fails whenever it contains a certain operation shrinks to few calls."""
    target = next(n for n in range(seed, seed + 50) if any(name == "flip" for name, _ in Graph(n, STEPS).calls))

    def fails(number: int, steps: int, skip: frozenset[int] = frozenset(), full: bool = False) -> str:
        return "flip" if any(name == "flip" for name, _ in Graph(number, steps, skip).calls) else ""

    monkeypatch.setattr(check_graphs, "mismatch", fails)
    text = report(target)
    assert "flip" in text and f"--seed {target} --count 1" in text
    steps, skip = check_graphs.shrink(target, STEPS, False)
    assert len(Graph(target, steps, skip).calls) <= len(Graph(target, STEPS).calls) - 3
    assert guard is check_graphs.guard
