"""Random programs with control flow that depends on values, state and random numbers: hybridized they do what they do as written.

Hypothesis makes the source text of a function; it is called many times, as written and hybridized, on the same inputs, with everything it may
touch (tensors that are written, statistics, gradients, the stream of random numbers) compared bit for bit at the end of each session.
"""

from __future__ import annotations

import itertools
import linecache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import calque

NUMBER = itertools.count()


# Random programs overflow now and then.
pytestmark = [pytest.mark.filterwarnings("ignore::calque.base.errors.NonFiniteWarning"), pytest.mark.usefixtures("two_devices")]


NUMBERS = [
    "x.sum().item()", "float(y.mean())", "x.max().item() * 0.5", "abs(x.min().item())", "y.sum().item() - x[0].item()", "x.tolist()[1]",
    "round(y.mean().item(), 1)", "max(x.sum().item(), 0.25)", "sum(y.tolist())", "s.sum().item()", "1.0 if x.sum() > y.sum() else -1.0",
]  # fmt: skip
CONDITIONS = [
    "x.sum() > 0", "y.mean().item() < 0.5", "v > 0.1", "v * 2 < x.sum().item()", "(x > y).any()", "int(v) % 2 == 0", "s.sum() > 2.0",
    "bool(c % 3 == 1)", "c.item() % 2", "not (x.min() < -1.0)", "x.sum().item() > 0 and v < 1.0", "str(v)[0] == '-'", "v in (0.0, 1.0)",
]  # fmt: skip
STATEMENTS = [
    "x = x * 1.5 + y", "y = x / (1.0 + abs(v))", "x = x - v", "y = (x * y).tanh()", "s.add_(y.detach())", "s.mul_(0.5)", "c.add_(1)",
    "x = x + calque.rand(3)", "y = x[1:].sum() + y", "x = x.clone()", "s[1] = v", "x = nn.functional.dropout(x, 0.5)", "y = y.detach() * 2",
    "x = x * int(v)", "s.sub_(x.detach() * v)", "y = x.relu() - y * v", "x = x / x.norm().clamp(min=0.5).item()", "w = y.sum() * v; y = y + w",
    "(x * v).sum().backward(retain_graph=True)", "s.copy_(y.detach())", "t = s; t.add_(1.0)", "y = calque.full((3,), v) + y", "x = x + v * v / 3",
    "x = x * calque.tensor([1.0, 2.0, -0.5])", "t = calque.tensor([0.0, 1.0, 2.0]); t.add_(y.detach()); y = y + t",
    "y = y * calque.linspace(0, 1, 3)", "t = calque.tensor(v); y = y + t", "x = (x.to('cpu:1') * 2).to('cpu')",
    "s.copy_(x.detach().to('cpu:1'))", "s.add_((s.to('cpu:1') + 1).to('cpu'))", "t = y.to('cpu:1'); y = y + t.sum().item()",
    "y = (y.to('cpu:1').tanh() + calque.ones(3, device='cpu:1')).to('cpu') * x",
]  # fmt: skip


@st.composite
def blocks(draw: Any, depth: int = 2) -> list[str]:
    """Lines of a block."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["plain", "plain", "plain", "read", "if", "while", "for"] if depth else ["plain", "read"]))
        if kind == "plain":
            lines.append(draw(st.sampled_from(STATEMENTS)))
        elif kind == "read":
            lines.append("v = " + draw(st.sampled_from(NUMBERS)))
        elif kind == "if":
            lines += [f"if {draw(st.sampled_from(CONDITIONS))}:", *("    " + line for line in draw(blocks(depth - 1)))]
            if draw(st.booleans()):
                lines += ["else:", *("    " + line for line in draw(blocks(depth - 1)))]
        elif kind == "for":
            lines += ["for k in range(min(3, int(x.abs().sum()))):", *("    " + line for line in draw(blocks(depth - 1))), "    x = x + k"]
        else:
            name = f"n{depth}"
            lines += [f"{name} = 0", f"while {name} < 3 and {draw(st.sampled_from(CONDITIONS))}:", f"    {name} += 1"]
            lines += ["    " + line for line in draw(blocks(depth - 1))]
    return lines


def function_of(lines: list[str], state: dict[str, Any]) -> Any:
    """The function of these lines; `s` and `c` are tensors that it reaches and writes."""
    text = "def program(x, y):\n    v = 0.5\n" + "".join(f"    {line}\n" for line in lines) + "    return x, y * 1.0, v, c.item()\n"
    name = f"<program {next(NUMBER)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"calque": calque, "nn": calque.nn, **state}
    exec(compile(text, name, "exec"), scope)  # noqa: S102 - source text of this file
    return scope["program"], text


def session(lines: list[str], prepared: Any, seed: int) -> Any:
    """Results of many calls, and everything they left behind. `prepared`: what makes of the function what is called."""
    calque.manual_seed(seed)
    state = {"s": calque.zeros(3), "c": calque.zeros((), dtype=calque.int64)}
    function, text = function_of(lines, state)
    function = prepared(function)
    rng = np.random.default_rng(seed)
    pool = [rng.integers(-4, 5, 3).astype(np.float32) / 2 for _ in range(4)]
    weight = calque.tensor([1.0, -0.5, 0.25], requires_grad=True)
    found: list[Any] = []
    for k in range(24):
        if k % 8 == 7:
            state["s"].fill_(0.25)  # state is wound back, so that ways are met again
            state["c"].zero_()
        x = calque.tensor(pool[int(rng.integers(4))]) * weight
        y = calque.tensor(pool[int(rng.integers(4))])
        a, b, v, c = function(x, y)
        if a.requires_grad and k % 3 == 0:
            (a * a).sum().backward()
        found += [a.detach(), b.detach(), repr(v), repr(c)]
        if k % 2:
            found[-4:-2] = [found[-4].tolist(), found[-3].tolist()]
    ends = [repr(f if not isinstance(f, calque.Tensor) else f.tolist()) for f in found]
    grad = None if weight.grad is None else weight.grad.tolist()
    return text, ends, repr(state["s"].tolist()), state["c"].item(), repr(grad), calque.rand(2).tolist()


def check(lines: list[str], seed: int, prepared: Any = calque.compile) -> None:
    """As written and hybridized."""
    try:
        expected = session(lines, lambda function: function, seed)
    except Exception as error:
        with pytest.raises(type(error)):
            session(lines, prepared, seed)
        return
    got = session(lines, prepared, seed)
    for name, a, b in zip(("results", "state", "count", "gradient", "random numbers"), expected[1:], got[1:], strict=True):
        assert a == b, f"{name} differ:\n{expected[0]}"


@given(lines=blocks(), number=st.integers(0, 1000))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs(lines: list[str], number: int) -> None:
    check(lines, number)


@pytest.mark.slow
@given(lines=blocks(3), number=st.integers(0, 1000))
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_random_programs(lines: list[str], number: int) -> None:
    check(lines, number)


def test_a_copy_of_an_argument_before_a_new_way() -> None:
    """The value of the argument is the new value of the state, but their memory is not the same."""
    check(["x = x * 1.5 + y", "s.copy_(y.detach())", "n3 = 0", "while n3 < 3 and x.sum() > 0:", "    n3 += 1", "    x = x * 1.5 + y"], 32)


def test_a_copy_behind_pending_work_where_python_takes_over() -> None:
    """The inputs of the pending program are gone by then, but whether they were made for a device is asked again."""
    check(["x = (x.to('cpu:1') * 2).to('cpu')", "v = float(y.mean())"], 0)


def test_a_copy_of_a_copy_where_python_takes_over() -> None:
    """The first copy is dropped before the second is made, and no program starts between that and the new way."""
    check(["if x.sum() > 0:", "    x = x * 1.5 + y", "    c.add_(1)", "s.copy_(x.detach().to('cpu:1'))"], 0)


def test_a_copy_of_state_that_is_sometimes_made_of_constants() -> None:
    """Whether its values were computed from constants alone is no part of what a replay depends on."""
    lines = ["for k in range(min(3, int(x.abs().sum()))):", "    for k in range(min(3, int(x.abs().sum()))):"]
    lines += ["        s.add_((s.to('cpu:1') + 1).to('cpu'))", "        v = y.sum().item() - x[0].item()", "    x = x + k"]
    check(lines, 135)


def test_two_tensors_of_one_value_that_part_later() -> None:
    lines = ["n3 = 0", "while n3 < 3 and x.sum() > 0:", "    n3 += 1", "    x = x * 1.5 + y", "    y = x / (1.0 + abs(v))", "    s.copy_(y.detach())"]
    check([*lines, "s.add_(y.detach())", "v = float(y.mean())"], 0)
