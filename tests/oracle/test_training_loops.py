"""Random training loops, event by event the same in PyTorch and in Calque: values, flags and refusals agree.

How much rounding may matter is measured, not chosen: PyTorch runs each loop twice more from weights that differ in their last digits.
`python -m tests.oracle.test_training_loops --count 500` runs many and prints the seeds that differ.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from calque.base.config import settings  # noqa: E402
from calque.base.errors import AutogradError, CalqueError, OutOfRangeError, ShapeError, VerificationError  # noqa: E402
from calque.record import recorder  # noqa: E402
from calque.run import dispatch  # noqa: E402
from tests.oracle.loop_changes import EVENTS, Structure  # noqa: E402
from tests.oracle.loop_models import Plan, draw, network  # noqa: E402

pytestmark = pytest.mark.oracle

LENGTH = 14
COMMON = ["train", "several", "train", "evaluate", "item"]
ROUNDING = {"float64": 1e-14, "float32": 3e-7}


def drawn_events(seed: int, length: int = LENGTH) -> list[str]:
    r = random.Random(seed)
    return ["train"] + [r.choice(COMMON) if r.random() < 0.25 else r.choice(EVENTS) for _ in range(length)]


def theirs(plan: Plan, seed: int, events: list[str], dtype: str, shift: int = 0) -> list[tuple[str, Any]]:
    net = reference(plan, seed, dtype)
    values = np.random.default_rng(shift)
    if shift:
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1 + ROUNDING[dtype] * torch.tensor(values.uniform(-4, 4, tuple(p.shape)), dtype=p.dtype))
    loop = Structure(torch, net, plan, seed, dtype)
    return [(what, loop.plain(value)) for what, value in loop.run(events)]


def reference(plan: Plan, seed: int, dtype: str) -> Any:
    torch.manual_seed(seed)
    return network(torch, plan).to(getattr(torch, dtype))


def ours(plan: Plan, seed: int, events: list[str], dtype: str) -> list[tuple[str, Any]]:
    net = network(calque, plan).to(getattr(calque, dtype))
    net.load_state_dict({k: calque.tensor(v.numpy()) for k, v in reference(plan, seed, dtype).state_dict().items()})
    loop = Structure(calque, net, plan, seed, dtype)
    return [(what, loop.plain(value)) for what, value in loop.run(events)]


def refused_alike(got: Exception, expected: Exception) -> bool:
    """Whether `got` is caught where `expected` is, and is a refusal: an error that Calque raises on purpose, or Python itself on both sides."""
    kind = next(c for c in type(expected).__mro__ if c.__module__ == "builtins")
    if type(got) is type(expected) and str(got) == str(expected):
        return True
    on_purpose = isinstance(got, CalqueError) and not isinstance(got, VerificationError)
    return on_purpose and (isinstance(got, kind) or kind in (AssertionError, NotImplementedError, IndexError))  # depends on the kernel that meets it


def difference(got: Any, expected: Any, shifted: list[Any], dtype: str) -> str:
    """What differs by more than rounding explains, or ''."""
    if isinstance(expected, Exception) and isinstance(got, Exception):
        return "" if refused_alike(got, expected) else f"refused as {type(got).__name__}: {got}, expected {expected!r}"
    if isinstance(expected, Exception) or isinstance(got, Exception):
        return f"{got!r} instead of {expected!r}"
    if not isinstance(expected, (np.ndarray, float)):
        return "" if not isinstance(got, np.ndarray) and got == expected else f"{got!r} instead of {expected!r}"
    a, b = np.asarray(got), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype} {a.shape} instead of {b.dtype} {b.shape}"
    others = [np.asarray(s) for s in shifted if isinstance(s, (np.ndarray, float)) and np.shape(s) == b.shape]
    if b.dtype.kind != "f":
        steady = np.all([s == b for s in others], axis=0) if others else np.ones(b.shape, bool)
        return "" if (a == b)[steady].all() else f"{a.tolist()} instead of {b.tolist()}"
    kinds = [np.isnan(x).astype(int) + 2 * np.isposinf(x) + 4 * np.isneginf(x) for x in (b, *others)]
    steady = np.all([k == kinds[0] for k in kinds], axis=0)
    kind = np.isnan(a).astype(int) + 2 * np.isposinf(a) + 4 * np.isneginf(a)
    if not (kind == kinds[0])[steady].all():
        return f"{a.tolist()} instead of {b.tolist()}"
    return far(a, b, others, steady & (kinds[0] == 0), dtype)


def far(a: np.ndarray, b: np.ndarray, others: list[np.ndarray], where: np.ndarray, dtype: str) -> str:
    if not where.any():
        return ""
    with np.errstate(over="ignore"):
        x, y, rest = a[where].astype(float), b[where].astype(float), [o[where].astype(float) for o in others]
        size = np.abs(y).max()
        spread = max((float(np.abs(o - y).max()) for o in rest), default=0.0)
        wrong = float(np.abs(x - y).max())
    limit = 1000 * ROUNDING[dtype] * max(float(size), 1e-3) + 100 * spread
    return "" if wrong <= limit or not np.isfinite(wrong) else f"off by {wrong:.3g} of {size:.3g}, rounding explains {limit:.3g}"


def beyond(what: str, value: Any) -> bool:
    """Whether PyTorch refuses for reasons of its own: a kernel without a second gradient, what its kernels of in-place activations saved, state
    that its optimizers lack after options changed."""
    if not isinstance(value, Exception):
        return False
    text = str(value)
    saved = "modified by an inplace operation" in text and "_refused" not in what
    return saved or "is not implemented" in text or isinstance(value, KeyError)


def answered(plan: Plan, seed: int, events: list[str], dtype: str) -> list[tuple[str, Any]]:
    """What PyTorch notes; an event that is beyond it becomes one that only reads (in `events` too), so that those behind it are compared."""
    while True:
        noted = theirs(plan, seed, events, dtype)
        number = next((int(what.split(" ")[0]) for what, value in noted if beyond(what, value)), None)
        if number is None:
            return noted
        events[number] = "text"


def mismatches(seed: int, dtype: str, events: list[str] | None = None) -> list[str]:
    """All differences of one loop in order."""
    plan = draw(seed)
    events = drawn_events(seed) if events is None else list(events)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = answered(plan, seed, events, dtype)
        shifted = [theirs(plan, seed, events, dtype, k) for k in (1, 2)]
        got = ours(plan, seed, events, dtype)
    if [w for w, _ in got] != [w for w, _ in expected]:
        first = next((k for k, (x, y) in enumerate(zip(got, expected)) if x[0] != y[0]), min(len(got), len(expected)))
        near = [(x[first][0], repr(x[first][1])[:200]) if first < len(x) else None for x in (got, expected)]
        return [f"noted {near[0]} instead of {near[1]}"]
    maps = [dict(s) for s in shifted]
    found = []
    for (what, x), (_, y) in zip(got, expected, strict=True):
        overflowed = "diverging" in what and isinstance(y, (np.ndarray, float)) and not np.isfinite(y).all()
        text = "" if overflowed else difference(x, y, [m.get(what) for m in maps], dtype)  # inf or NaN: a question of the order of sums
        if text:
            found.append(f"{what}: {text}")
    return found


@contextmanager
def way(name: str) -> Iterator[None]:
    """Programs compiled from their first run, or everything by the reference interpreter."""
    before = dispatch.INTERPRET_WORK, settings.backend
    recorder.flush("test")
    calque.synchronize()
    dispatch.INTERPRET_WORK, settings.backend = (0, "cpu") if name == "compiled" else (before[0], "ref" if name == "ref" else "cpu")
    try:
        yield
    finally:
        recorder.flush("test")
        calque.synchronize()
        dispatch.INTERPRET_WORK, settings.backend = before


def report(seed: int, dtype: str, name: str) -> str:
    with way(name):
        found = mismatches(seed, dtype)
    return f"seed {seed} {dtype} {name}: {draw(seed)} {drawn_events(seed)}\n  " + "\n  ".join(found[:6]) if found else ""


CASES = [(n, name, dtype) for n in range(60) for name in ("compiled", "default", "ref") for dtype in ("float64", "float32")]
QUICK = {(0, "compiled", "float32"), (1, "default", "float64"), (2, "ref", "float64")}


@pytest.mark.parametrize(("number", "name", "dtype"), [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES])
def test_random_loops(number: int, name: str, dtype: str, seed: int) -> None:
    text = report(1000 * seed + number, dtype, name)
    assert not text, text


@pytest.mark.parametrize(
    ("got", "expected", "alike"),
    [
        (ShapeError("[linear] expected"), RuntimeError("mat1"), True),
        (ShapeError("[pad] expected"), NotImplementedError("only 3D"), True),
        (ShapeError("[attention] expected"), AssertionError("embed_dim"), True),
        (OutOfRangeError("[embedding] expected"), IndexError("index out of range in self"), True),
        (AttributeError("no weight"), AttributeError("no weight"), True),
        (AutogradError("[backward] expected"), TypeError("a Tensor"), False),
        (AttributeError("'NoneType' object has no attribute 'shape'"), IndexError("too many indices"), False),
        (KeyError("state"), NotImplementedError("only 3D"), False),
        (VerificationError("a shape"), AssertionError("embed_dim"), False),
        (RuntimeError("dictionary changed size during iteration"), RuntimeError("mat1"), False),
    ],
)
def test_which_refusals_are_alike(got: Exception, expected: Exception, alike: bool) -> None:
    assert (difference(got, expected, [], "float64") == "") is alike
    assert difference(got, 1.0, [], "float64")
    assert difference(1.0, expected, [], "float64")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--way", default="compiled")
    options, failures = parser.parse_args(), 0
    for seed in range(options.seed, options.seed + options.count):
        text = report(seed, options.dtype, options.way)
        failures += bool(text)
        if text:
            print(text, flush=True)
    print(f"{options.count} loops, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
