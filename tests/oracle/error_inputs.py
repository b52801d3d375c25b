"""The calls that PyTorch's operator database says must fail: `python -m tests.oracle.error_inputs [--only add,linalg*]`.

Every entry of the database may come with error inputs: calls of it, and the class that PyTorch raises. A call is counted if PyTorch itself raises
when it is called by its name. It is right if Calque raises the same built-in class (PyTorch's NotImplementedError is a RuntimeError too, and Calque
may raise that). A call that returns is *silent*: a wrong program goes on.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import signal
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

import calque
from tests.oracle import opinfo

SECONDS = 20


@dataclass
class Found:
    """What became of one call: "right", "class", "silent" or "skip"."""

    name: str
    number: int
    state: str
    cause: str = ""


def kind_of(error: BaseException) -> type[BaseException]:
    """The built-in class by which a program would catch an error."""
    kind = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
    return RuntimeError if kind is NotImplementedError else kind


def _way(entry: Any) -> str:
    """How the entry is called by its name: a sample that is right tells."""
    supported = entry.supported_dtypes("cpu")
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64):
        if dtype in supported:
            try:
                return opinfo.pick(entry, list(itertools.islice(entry.sample_inputs("cpu", dtype), 2)), False)[0]
            except opinfo.TooLong:
                raise
            except Exception:  # what PyTorch cannot do on this machine
                return ""
    return ""


def mirrored(x: Any, memory: dict[tuple[int, Any], Any]) -> Any:
    """A PyTorch value as Calque's. Tensors that share memory do so here, since what overlaps is what some calls are refused for."""
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)(mirrored(v, memory) for v in x)
    if isinstance(x, dict):
        return {key: mirrored(v, memory) for key, v in x.items()}
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or not x.numel():
        return opinfo.ours(x)
    dtype = getattr(calque, str(x.dtype).removeprefix("torch."))
    if x.device.type == "meta":
        return calque.empty(tuple(x.shape), dtype=dtype, device="meta")
    key = (x.untyped_storage().data_ptr(), x.dtype)
    if key not in memory:
        memory[key] = opinfo._from_values(x.detach().as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0), dtype)
    made = memory[key].as_strided(tuple(x.shape), x.stride(), x.storage_offset())
    return made.detach().requires_grad_() if x.requires_grad else made


def _raised(call: Any, sample: Any) -> BaseException | None:
    try:
        call(sample[0], *sample[1], **sample[2])
    except opinfo.TooLong:
        raise
    except Exception as error:
        return error
    return None


def one_call(entry: Any, number: int, call: Any, reference: Any, sample: Any, show: bool = False) -> Found:
    """Compare one call that must fail."""
    name = entry.name + (f"|{entry.variant_test_name}" if entry.variant_test_name else "")
    arguments = (sample.input, list(sample.args), sample.kwargs)
    try:
        mine = mirrored(arguments, {})
    except Exception as error:
        return Found(name, number, "skip", f"converting: {type(error).__name__} {error}")
    theirs = _raised(reference, arguments)
    if theirs is None:
        return Found(name, number, "skip", "PyTorch returns")
    got = _raised(call, mine)
    said = f"{type(theirs).__name__}: {' '.join(str(theirs).split())[:150]}"
    if got is None:
        return Found(name, number, "silent", said)
    if show:
        traceback.print_exception(got)
    if not isinstance(got, kind_of(theirs)):
        return Found(name, number, "class", f"{said} <> {type(got).__name__}: {' '.join(str(got).split())[:150]}")
    return Found(name, number, "right", f"{said} <> {' '.join(str(got).split())[:150]}")


def of_entry(entry: Any, show: bool = False) -> Iterator[Found]:
    """All calls of one entry that must fail."""
    if entry.error_inputs_func is None:
        return
    way = _way(entry)
    reference, call = dict(opinfo.ways(torch, entry.name)).get(way), dict(opinfo.ways(calque, entry.name)).get(way) if way else None
    for number, error_input in enumerate(entry.error_inputs("cpu")):
        if reference is None:
            yield Found(entry.name, number, "skip", "not by name")
        elif call is None:
            yield Found(entry.name, number, "class", "missing name")
        else:
            yield one_call(entry, number, call, reference, error_input.sample_input, show)


def replay(only: tuple[str, ...] = (), show: bool = False) -> list[Found]:
    """The outcome of every call that must fail, of the entries whose name begins with one of `only`."""
    found: list[Found] = []
    signal.signal(signal.SIGALRM, opinfo._alarm)
    for entry in opinfo.database():
        if only and not any(entry.name == o or (o.endswith("*") and entry.name.startswith(o[:-1])) for o in only):
            continue
        signal.alarm(SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(0)
                found.extend(of_entry(entry, show))
        except opinfo.TooLong as error:
            found.append(Found(entry.name, -1, "class", f"TooLong: {error}"))
        finally:
            signal.alarm(0)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true", help="print tracebacks")
    parser.add_argument("--all", action="store_true", help="print calls that are right or not counted, too")
    given = parser.parse_args(arguments)
    found = replay(tuple(given.only.split(",")) if given.only else (), given.show)
    for one in sorted(found, key=lambda one: (one.state, one.name, one.number)):
        if one.state in ("silent", "class") or given.all:
            print(f"{one.state:7}{one.name:40}{one.number:3} {one.cause}")
    counts = collections.Counter(one.state for one in found)
    total = len(found) - counts["skip"]
    print(f"{counts['right']} of {total} calls are refused with PyTorch's class ({counts['right'] / max(total, 1):.1%})")
    print(f"{counts['silent']} return a value, {counts['class']} raise another class, {counts['skip']} are not counted")
    return 0


if __name__ == "__main__":
    main()
