"""Plans on disk: what comes back is what was linked, runs to the same bits, and whatever does not fit is planned again."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.backend.cpu.code import library
from calque.backend.cpu.compile import objects, target
from calque.backend.cpu.program import plans
from calque.base.config import settings
from calque.base.dtypes import float32, int64
from calque.ir.program import Program
from calque.ops import get, register, unregister
from calque.run import fingerprint as fingerprints
from calque.run.backends import Compiled, backend
from tests.kernel.random_programs import random_program

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not objects.can_load(), reason="plans are kept where our own loader works")


@pytest.fixture(autouse=True, scope="module")
def _every_program(tmp_path_factory):
    """Short programs too, in a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "cache_dir", tmp_path_factory.mktemp("plans"))
        patch.setattr(fingerprints, "LONG", 0)
        yield


def recalled(program: Program) -> tuple[Compiled, Compiled, int]:
    """A program compiled, and once more; how many plans were recalled for the second."""
    first = Compiled(backend(), program)
    before = plans.COUNTERS.recalled
    again = Compiled(backend(), program)
    return first, again, plans.COUNTERS.recalled - before


def same(a: Any, b: Any) -> bool:
    return np.array_equal(a, b) and a.dtype == b.dtype if isinstance(a, np.ndarray) else a == b


@given(st.integers(0, 10**9))
def test_random_programs_come_back_as_they_were_linked(seed: int) -> None:
    program, arrays, scalars = random_program(seed, 20, (float32, float32, int64))
    first, again, hits = recalled(program)
    if hits:
        for name in (f.name for f in dataclasses.fields(first.executable.linked)):
            if name not in ("needed", "launched"):
                assert same(getattr(first.executable.linked, name), getattr(again.executable.linked, name)), name
        assert [m.place for m in first.executable.linked.launched] == [m.place for m in again.executable.linked.launched]
        assert first.launches == again.launches == len(again.schedule.steps)
        assert (first.distinct, first.plain) == (again.distinct, again.plain)
    else:  # it runs Python, or has values of its own
        linked = first.executable.linked
        assert linked.constants or any(s.host is not None for s in linked.stretches)
    wanted = first.run([a.reshape(-1).copy() for a in arrays], scalars)
    got = again.run([a.reshape(-1).copy() for a in arrays], scalars)
    assert wanted[1:] == got[1:]
    assert all(x.tobytes() == y.tobytes() for x, y in zip(wanted[0], got[0], strict=True))


def long_program() -> Program:
    """One that is kept, with a product in it."""
    for seed in range(1000):
        program, _, _ = random_program(seed, 20, (float32,))
        if any(n.op.name == "matmul" for n in program.nodes) and recalled(program)[2]:
            return program
    raise AssertionError("no random program is kept")


@pytest.fixture
def entry():
    """A program, the name of its entry, and what is in there."""
    program = long_program()
    key = plans._key(fingerprints.fingerprint(program))
    data = library.disk_cache().get(key)
    yield program, key, json.loads(data)
    library.disk_cache().put(key, data)


SPOILED = {
    "form": lambda f: f.update(form="calque plan 0"),
    "field missing": lambda f: f.pop("stretches"),
    "a word less": lambda f: f["patches"][0].pop(),
    "address outside the words": lambda f: f["patches"][0].__setitem__(0, len(f["words"])),
    "negative address": lambda f: f["patches"][0].__setitem__(0, -1),
    "object that is none": lambda f: f["patches"][1].__setitem__(0, 1000),
    "launch of no module": lambda f: f["launched"].__setitem__(0, 1000),
    "arguments outside the words": lambda f: f["records"][0].__setitem__(0, 8 * len(f["words"]) + 8),
    "too many launches": lambda f: f["stretches"][0].__setitem__(1, 1000),
    "dtype that is none": lambda f: f["buffers"][0].__setitem__(2, "float33"),
    "constant": lambda f: f["buffers"][0].__setitem__(0, "constant"),
    "output that is none": lambda f: f["outputs"].__setitem__(0, 1000),
    "word too long": lambda f: f["words"].__setitem__(0, 1 << 70),
    "a list": lambda f: f.update(modules=[[]]),
    "object not there": lambda f: f["modules"][0].__setitem__(0, "e" * 64),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_entries_that_do_not_fit_are_planned_again(entry, spoil) -> None:
    program, key, found = entry
    spoil(found)
    library.disk_cache().put(key, json.dumps(found).encode())
    before = plans.COUNTERS.recalled
    compiled = Compiled(backend(), program)
    assert plans.COUNTERS.recalled == before and compiled.launches == len(compiled.schedule.steps)
    assert recalled(program)[2]  # and kept again


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff\xfe", b"null", b"[" * 100_000], ids=["empty", "list", "dict", "bytes", "null", "deep"])
def test_entries_of_another_kind_are_planned_again(entry, data) -> None:
    program, key, _ = entry
    library.disk_cache().put(key, data)
    before = plans.COUNTERS.recalled
    Compiled(backend(), program)
    assert plans.COUNTERS.recalled == before


def test_a_cache_without_the_objects_is_as_good_as_empty(entry, monkeypatch, tmp_path) -> None:
    program, key, found = entry
    monkeypatch.setattr(settings, "cache_dir", tmp_path)
    monkeypatch.setattr(library, "_loaded", {})
    library._kernels.clear()
    library.disk_cache().put(key, json.dumps(found).encode())
    before = library.COUNTERS.compiled
    assert not recalled(program)[0].executable.linked.constants
    assert library.COUNTERS.compiled > before


def test_an_empty_cache_is_not_asked_at_the_price_of_loading_llvm(entry, monkeypatch, tmp_path) -> None:
    program, _, _ = entry
    monkeypatch.setattr(settings, "cache_dir", tmp_path)
    monkeypatch.setattr(target, "_host", lru_cache(maxsize=1)(lambda: pytest.fail("asked")))
    assert plans.recall(fingerprints.fingerprint(program)) is None


def test_a_plan_is_known_by_all_that_it_depends_on(entry, monkeypatch) -> None:
    program, key, _ = entry
    text = fingerprints.fingerprint(program)
    monkeypatch.setattr(settings, "cpu_target", "sse2")
    assert plans._key(text) != key
    monkeypatch.undo()
    monkeypatch.setattr(fingerprints, "LONG", 0)
    monkeypatch.setattr(plans, "_PLANNER", "other")
    assert plans._key(text) != key
    plans.keep(text, Compiled(backend(), program).executable)  # the code on disk is not the code of this process
    assert library.disk_cache().get(plans._key(text)) is None
    monkeypatch.setattr(settings, "tune", True)
    assert plans._key(text) == ""


def test_fingerprints_tell_programs_apart() -> None:
    program, _, _ = random_program(7, 20, (float32,))
    node = next(k for k, n in enumerate(program.nodes) if n.op.name == "input")
    n = program.nodes[node]
    others = [
        dataclasses.replace(program, outputs=program.outputs[:-1]),
        dataclasses.replace(program, donated=program.donated ^ {0}),
        dataclasses.replace(program, updates=((0, 0),)),
        dataclasses.replace(program, late=((1, 0),)),
        dataclasses.replace(program, nodes=(*program.nodes[:node], dataclasses.replace(n, dtype=int64), *program.nodes[node + 1 :])),
    ]
    known = [fingerprints.fingerprint(p) for p in (program, *others)]
    assert len(set(known)) == len(known) and all(known)
    assert fingerprints.fingerprint(dataclasses.replace(program, name="other")) == known[0]


def one(attrs: tuple[Any, ...], op: str = "full") -> Program:
    n = dataclasses.replace(random_program(1, 8, (float32,))[0].nodes[0], op=get(op), inputs=(), attrs=attrs)
    return Program((n,), (0,))


def test_equal_numbers_of_different_kinds_are_told_apart() -> None:
    known = [fingerprints.fingerprint(one((value, ()))) for value in (0.0, -0.0, 0, False, None, "0", (0,), float32, ("dtype", "float32"))]
    assert len(set(known)) == len(known) and all(known)


def test_objects_and_primitives_of_others_have_no_fingerprint() -> None:
    assert fingerprints.fingerprint(one((object(),))) == b""
    toy = dataclasses.replace(get("exp"), name="toy_exp")
    register(toy)
    try:
        assert fingerprints.fingerprint(one((), "toy_exp")) == b""
    finally:
        unregister("toy_exp")


def test_verification_plans_itself(entry, monkeypatch) -> None:
    program, _, _ = entry
    monkeypatch.setattr(settings, "verify", True)
    before = plans.COUNTERS.recalled
    Compiled(backend(), program)
    assert plans.COUNTERS.recalled == before


def test_explain_names_the_launches_of_a_plan_from_the_disk() -> None:
    def f(x: calque.Tensor) -> calque.Tensor:
        for _ in range(3):
            x = (x @ x).tanh().sum(0, keepdim=True) + x
        return x

    x = calque.ones(24, 24)
    first, again = str(calque.explain(f, x)), str(calque.explain(f, x))
    assert first.count("matmul") == again.count("matmul") > 0


STEP = """
import calque
from calque.backend.cpu.code import library
from calque.backend.cpu.program import plans
calque.manual_seed(0)
nn = calque.nn
net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
                    nn.Linear(8 * 64, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 10))
best = calque.optim.Adam(net.parameters())
x, y = calque.randn(4, 3, 8, 8), calque.arange(4)
for _ in range(3):
    best.zero_grad()
    loss = calque.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    best.step()
    print(loss.item().hex())
print(plans.COUNTERS.kept, plans.COUNTERS.recalled, library.COUNTERS.compiled)
"""


def test_another_process_trains_to_the_same_bits_without_planning(tmp_path) -> None:
    environment = {**os.environ, "CALQUE_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    runs = [subprocess.run([sys.executable, "-c", STEP], env=environment, capture_output=True, text=True, check=True) for _ in range(2)]
    texts = [run.stdout.split() for run in runs]
    assert texts[0][:3] == texts[1][:3]
    kept, none, _ = map(int, texts[0][3:])
    assert kept >= 2 and not none
    assert list(map(int, texts[1][3:])) == [0, kept, 0]


LOADED = """
import sys
parts = ("graph.simplify", "run.pipeline", "kernel.fuse", "kernel.memory", "backend.cpu.contract.params", "backend.cpu.loops.emit",
         "backend.cpu.program.link", "backend.cpu.program.limits")
print(*(part for part in parts if f"calque.{part}" in sys.modules))
"""


def test_what_edited_code_makes_is_not_kept(monkeypatch) -> None:
    key = library.content_key("edited", "x", target.current())
    monkeypatch.setattr(library, "_SOURCES", "other")
    monkeypatch.setattr(library, "_seen", {})
    library.keep(key, b"x")
    assert library.disk_cache().get(key) is None
    monkeypatch.undo()
    library.keep(key, b"x")
    assert library.disk_cache().get(key) == b"x"


def test_each_module_that_is_imported_has_the_sources_read_again(monkeypatch) -> None:
    """What a part of the backend makes that was edited before it was imported is not kept, nor anything behind it."""
    key, said = library.content_key("edited later", "x", target.current()), []
    monkeypatch.setattr(library, "_seen", {})
    monkeypatch.setattr(library, "_sources", lambda: said[-1])
    said.append(library._SOURCES)
    assert library.unedited() and library.unedited()
    said.append("other")
    assert library.unedited()  # nothing was imported since
    monkeypatch.setitem(sys.modules, "calque.backend.cpu.another", sys)
    assert not library.unedited()
    said.append(library._SOURCES)
    monkeypatch.setitem(sys.modules, "calque.backend.cpu.third", sys)
    assert not library.unedited()
    library.keep(key, b"x")
    assert library.disk_cache().get(key) is None


def test_what_runs_a_plan_from_the_disk_does_not_load_what_makes_plans(tmp_path) -> None:
    """Even if the program is short: it is one of the first of its process."""
    environment = {**os.environ, "CALQUE_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.pop("CALQUE_VERIFY", None)
    command = [sys.executable, "-c", STEP.replace("COUNTERS.compiled)", "COUNTERS.compiled)" + LOADED)]
    first, second = (subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split("\n") for _ in range(2))
    assert first[:3] == second[:3]
    assert first[4] and not second[4]
