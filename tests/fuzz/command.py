"""What generators of random programs share: the command line, making a failing program smaller, and programs of lines that PyTorch runs, too."""

from __future__ import annotations

import argparse
import contextlib
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import calque
from calque.base.config import settings
from calque.run import dispatch, prepacking
from tests.fuzz.check import forget


def main(
    module: str, doc: str | None, check: Callable[..., str], count: int = 10_000, also: Callable[[], str] = str, **options: Any
) -> int:
    """The command line of a generator: `check(seed, **options)` gives "" or a report. `options`: with their defaults; `also`: said at the end."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    for name, default in options.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    given = vars(parser.parse_args())
    count, first = given.pop("count"), given.pop("seed")
    failures, start = 0, time.monotonic()
    for seed in range(first, first + count):
        try:
            text = check(seed, **given)
        except Exception:  # whatever it is, it is a finding
            text = traceback.format_exc()
        if text:
            failures += 1
            print(text if text.startswith("seed ") else f"seed {seed}: {text}", flush=True)
        if (done := seed - first + 1) % 500 == 0 or done == count:
            print(f"{done} cases of {module}, seeds from {first}, {failures} failures, {time.monotonic() - start:.0f} s {also()}", flush=True)
    return 1 if failures else 0


def shrunk(lines: list[str], fails: Callable[[list[str]], Any]) -> list[str]:
    """The lines without those that a failure does not need."""
    k = len(lines)
    while k:
        k -= 1
        if fails(fewer := lines[:k] + lines[k + 1 :]):
            lines = fewer
    return lines


def reported(seed: int, lines: list[str], fails: Callable[[list[str]], str], module: str) -> str:
    """"" or what is wrong with a program, made smaller, and the line that repeats it."""
    if not fails(lines):
        return ""
    lines = shrunk(lines, fails)
    listing = "\n  ".join(lines)
    return f"seed {seed}: {fails(lines)}\n  {listing}\n  repeat: python -m {module} --seed {seed} --count 1"


@contextlib.contextmanager
def drawn(seed: int, eager: bool = True) -> Iterator[None]:
    """Start from nothing, with freed memory poisoned; every eighth seed compiles all programs and packs weights at once, every third records small
    operations, too."""
    saved = dispatch.INTERPRET_WORK, prepacking.AFTER, settings.poison, settings.eager
    forget()
    try:
        settings.poison = True
        if seed % 8 == 0:
            dispatch.INTERPRET_WORK = prepacking.AFTER = 0
        if seed % 3 == 0 and eager:
            settings.eager = 0
        yield
    finally:
        dispatch.INTERPRET_WORK, prepacking.AFTER, settings.poison, settings.eager = saved
        forget()


def plain(shown: Any) -> str:
    """What was shown as text, in which zeros have no sign."""
    return repr(shown).replace("-0.0", "0.0").replace("-0j", "0j")


def beside_pytorch(lines: list[str], seed: int, seen: Callable[[list[str], Any], list[Any]], overflows: bool = False) -> str:
    """"" if both libraries show the same. `seen(lines, library)`: what a library shows; `overflows`: numbers may grow too large."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = seen(lines, torch)
        with drawn(seed):
            mine = seen(lines, calque)
    for a, b in zip(mine, wanted, strict=False):
        if overflows and any(sign in repr(b) for sign in ("e+", "inf", "nan")):
            return ""
        if plain(a) != plain(b):
            return f"{a}\n  but PyTorch has\n  {b}"
    return "" if len(mine) == len(wanted) else f"{mine}\n but PyTorch has\n {wanted}"
