"""Operands and results written between passes, beside PyTorch: `python -m tests.oracle.written_between [--data] [--second] [--later]`.

Every differentiable entry of PyTorch's operator database is called; then an operand or a result is written in place without history, or through
`.data` (--data), which no version counts, and gradients are asked for. They are right if they are PyTorch's, or those of the values that the
forward pass has seen; a write that counts may be refused. With --second the gradients are those of gradients taken with `create_graph=True` after
the write, with --later before it.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import itertools
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import calque
from tests.oracle import opinfo

SECONDS = 40


@dataclass(frozen=True)
class Way:
    """Whether a write goes through `.data`, and what is asked for: second gradients, with the write behind the forward pass or behind the first ones
    (`later`)."""

    data: bool = False
    second: bool = False
    later: bool = False


@dataclass
class Found:
    """One call: "same" (as PyTorch), "true" (ours is that of the old values, PyTorch's is not), "wrong", "taken" or "refused" (PyTorch is not)."""

    name: str
    sample: int
    written: str
    state: str
    cause: str = ""

    def __str__(self) -> str:
        return f"{self.state:8}{self.name:45}{self.sample} {self.written:5} {self.cause}"


def _write(library: Any, t: Any, data: bool) -> None:
    with library.no_grad():
        to = t.data if data else t
        if t.requires_grad:
            to.mul_(0.5).add_(0.25)
        else:  # positions, labels and masks stay what they are: others of the same
            to.copy_(to.flip(tuple(range(to.dim()))) if to.dim() else to == 0)


def gradients(library: Any, call: Callable[..., Any], arguments: Any, leaves: list[Any], written: str, way: Way) -> Any:
    """Gradients of all leaves, second ones behind the first; the error that they end with; None if there is nothing to write or to differentiate."""
    try:
        result = call(arguments[0], *arguments[1], **arguments[2])
        total = opinfo.loss(result)
        if total is None:
            return None
        parts = [p for p in opinfo.flat(result) if opinfo.is_tensor(p)]
        others = [t for t in opinfo._tensors(arguments) if not t.requires_grad]
        places = {"": [], "in": leaves, "out": parts, "with": others}[written.rstrip("0123456789")]
        if written and int(written[-1]) >= len(places):
            return None
        if written and not way.later:
            _write(library, places[int(written[-1])], way.data)
        first = library.autograd.grad(total, leaves, allow_unused=True, create_graph=way.second)
        total = opinfo.loss([g for g in first if g is not None]) if way.second else None
        if written and way.later:
            _write(library, places[int(written[-1])], way.data)
        return [*first, *([None] * len(leaves) if total is None else library.autograd.grad(total, leaves, allow_unused=True))]
    except opinfo.TooLong:
        raise
    except Exception as error:
        return error


def _agree(got: Any, wanted: Any) -> str:
    for k, (x, y) in enumerate(zip(got, wanted, strict=True)):
        if x is None or y is None:
            here = x if y is None else y
            text = "" if here is None or not np.any(opinfo.values(here)) else f"{'missing' if x is None else 'expected none'}"
        else:
            text = opinfo.close(x, y)
        if text:
            return f"gradient {k}: {text}"
    return ""


def compared(name: str, number: int, reference: Any, call: Any, sample: Any, written: str, way: Way) -> Found | None:
    """One write of one call."""
    arguments = (sample.input, list(sample.args), sample.kwargs)

    def ours(place: str) -> Any:
        leaves: list[Any] = []
        return gradients(calque, call, opinfo.ours(opinfo._copied(arguments), leaves), leaves, place, way)

    copied = opinfo._copied(arguments)
    wanted = gradients(torch, reference, copied, list(opinfo.leaves_of(copied)), written, way)
    if wanted is None:
        return None
    found = None
    for _ in range(3):  # as written, watched, and as steps that are known
        got = ours(written)
        if got is not None and (found is None or found.state == "same"):
            found = _judged(name, number, written, got, wanted, lambda: ours(""))
    return found


def _judged(name: str, number: int, written: str, got: Any, wanted: Any, untouched: Callable[[], Any]) -> Found:
    if isinstance(got, Exception) or isinstance(wanted, Exception):
        if isinstance(got, Exception) and isinstance(wanted, Exception):
            return Found(name, number, written, "same")
        refused = isinstance(got, Exception)
        if not refused and not _agree(got, untouched()):
            return Found(name, number, written, "taken")
        return Found(name, number, written, "refused" if refused else "wrong", str(got if refused else wanted)[:120])
    if not (text := _agree(got, wanted)):
        return Found(name, number, written, "same")
    return Found(name, number, written, "wrong" if _agree(got, untouched()) else "true", text)


def of_entry(entry: Any, how: Way) -> Iterator[Found]:
    """All writes of two samples of one entry."""
    name = entry.name + (f"|{entry.variant_test_name}" if entry.variant_test_name else "")
    torch.manual_seed(0)
    try:
        samples = list(itertools.islice(entry.sample_inputs("cpu", torch.float64, requires_grad=True), 2))
        way, random = opinfo.pick(entry, samples, True)
    except opinfo.TooLong:
        raise
    except Exception:  # what PyTorch cannot do on this machine
        return
    if any(t.layout is not torch.strided for s in samples for t in opinfo._tensors((s.input, s.args, s.kwargs))):
        return
    reference, call = dict(opinfo.ways(torch, entry.name)).get(way), dict(opinfo.ways(calque, entry.name)).get(way)
    if random or reference is None or call is None:
        return
    for number, sample in enumerate(samples):
        count = len(list(opinfo.leaves_of((sample.input, list(sample.args), sample.kwargs))))
        places = [*[f"in{k}" for k in range(min(count, 3))], "with0", "with1", "out0", "out1"]
        for written in places[::-1] if number else places:  # what is called first is not what is known from other calls
            if found := compared(name, number, reference, call, sample, written, how):
                yield found


def replay(only: tuple[str, ...] = ("*",), way: Way = Way()) -> list[Found]:
    """What became of every write, of the entries with such names."""
    found: list[Found] = []
    signal.signal(signal.SIGALRM, opinfo._alarm)
    for entry in opinfo.database():
        if not (entry.supports_gradgrad if way.second else entry.supports_autograd) or torch.float64 not in entry.supported_dtypes("cpu"):
            continue
        if not any(fnmatch.fnmatchcase(entry.name, o) for o in only):
            continue
        signal.alarm(SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.extend(of_entry(entry, way))
        except opinfo.TooLong as error:
            found.append(Found(entry.name, -1, "", "wrong", str(error)))
        finally:
            signal.alarm(0)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names of entries, with wildcards")
    parser.add_argument("--data", action="store_true", help="write through .data")
    parser.add_argument("--second", action="store_true", help="second gradients")
    parser.add_argument("--later", action="store_true", help="write behind the first gradients")
    given = parser.parse_args(arguments)
    found = replay(tuple(given.only.split(",")), Way(given.data, given.second or given.later, given.later))
    for one in sorted(found, key=lambda one: (one.state, one.name)):
        if one.state in ("wrong", "refused"):
            print(one)
    print(f"{len(found)} writes: {dict(collections.Counter(one.state for one in found))}")
    return 0


if __name__ == "__main__":
    main()
