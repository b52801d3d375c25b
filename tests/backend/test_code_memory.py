"""Machine code of loops is given back when neither the cache nor a program has it, and never before."""

from __future__ import annotations

import ctypes
import gc
import random
from typing import Any

import pytest

import calque
from calque.backend.cpu.code import library, llvm
from calque.backend.cpu.code.llvm import Loader
from calque.backend.cpu.compile import objects
from calque.backend.cpu.compile.target import current
from calque.base.config import settings
from calque.record import recorder, trie
from calque.run import dispatch

pytestmark = pytest.mark.skipif(not objects.can_load(), reason="LLVM's loader keeps everything")
UNARY = [calque.exp, calque.sin, calque.tanh, calque.sqrt, calque.cos, calque.sigmoid, calque.square, calque.neg]
TEXT = """
define i64 @answer_{0}(i64 %x) nounwind {{
  %y = add i64 %x, {0}
  ret i64 %y
}}
"""


def compiled(number: int) -> bytes:
    return llvm.compile_all([llvm.Source(lambda: TEXT.format(number), 1)], current())[0]


def call(address: int, x: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(x))


def mapped(address: int) -> bool:
    with open("/proc/self/maps") as lines:
        return any(low <= address < high for low, high in ((int(x, 16) for x in line.split(" ")[0].split("-")) for line in lines))


def test_pages_go_with_their_last_owner() -> None:
    loader = Loader()
    (first,), pages = loader.load_apart([(compiled(17), ["answer_17"])])
    assert call(first, 1) == 18 and mapped(first) and first & -4096 in objects._MAPPED
    other = pages
    del pages
    objects.settle()
    assert call(first, 1) == 18
    del other
    (second,), held = loader.load_apart([(compiled(18), ["answer_18"])])  # loading gives back what nobody has
    assert not mapped(first) or first & -4096 == second & -4096
    assert call(second, 1) == 19 and all(place() is not None for place in objects._MAPPED.values()) and held is not None
    assert "answer_17" not in loader._known


def test_what_is_loaded_for_good_stays() -> None:
    loader = Loader()
    (address,) = loader.load([(compiled(19), ["answer_19"])])
    before = len(objects._MAPPED)
    objects.settle()
    assert call(address, 2) == 21 and len(objects._MAPPED) <= before


def novel(rng: random.Random, x: Any) -> Any:
    for _ in range(rng.randrange(3, 9)):
        x = rng.choice(UNARY)(x)
    return x


def test_code_of_programs_that_never_come_again_is_given_back(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A program that is held by its caller goes on while hundreds of others are compiled and forgotten."""
    recorder.flush("test")
    trie.forget()
    library._kernels.clear()
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    monkeypatch.setattr(settings, "memo_bytes", 1 << 20)
    rng, x = random.Random(seed), calque.linspace(0.1, 1.0, 100)

    @calque.compile
    def held(x: Any) -> Any:
        return (x * 2.0).atan().exp().cumsum(0)

    expected, sizes = held(x).tolist(), []
    for number in range(120):
        value = novel(rng, x)
        assert value.numel() == len(value.tolist())
        assert held(x).tolist() == expected
        if number % 30 == 29:
            gc.collect()
            objects.settle()
            sizes.append(len(objects._MAPPED))
            assert library._kernels.measured()[1] <= library._kernels.table.limit()
    assert sizes[-1] <= sizes[0] + 16, sizes


def test_a_kernel_that_was_forgotten_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    x = calque.linspace(0.1, 1.0, 10)
    expected = (x.atan() * 3.0).tolist()
    for n in range(11, 20):
        library._kernels.clear()
        y = calque.linspace(0.1, 1.0, n)
        assert (y.atan() * 3.0).tolist()[0] == expected[0]
