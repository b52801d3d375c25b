"""Right calls with one argument spoilt, beside PyTorch: `python -m tests.oracle.spoilt_calls [--only topk,f*] [--taken]`.

The calls are those of `tests.bad_input.calls`, with tensors of other shapes and values, and numbers, texts, flags and sequences of other kinds. One
that PyTorch refuses is right if it is refused under a built-in class that catches PyTorch's. Flags that are no bools, and bools where ints are
asked for, are taken here: nothing is looked at before a call.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import inspect
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import calque
from tests.bad_input.calls import Sample
from tests.bad_input.test_spoilt_arguments import LARGE, spoilings
from tests.bad_input.test_wrong_arguments import SAMPLES
from tests.oracle import opinfo
from tests.oracle.error_inputs import kind_of

FAR = 1 << 40  # what reaches so far takes memory, or time, until it is refused
# PyTorch ends the process over a matrix of NaN; memory of the library's own; written to as long as the process lives.
LEFT_OUT = frozenset(["eig", "eigvals", "set_", "resize_", "as_strided", "share_memory_", *LARGE])


@dataclass
class Found:
    """What became of one call: "same", "class" (of the error), "taken" (PyTorch refuses it), "refused" (it does not)."""

    sample: Sample
    call: str
    state: str
    cause: str = ""

    def __str__(self) -> str:
        return f"{self.state:8}{self.sample.place}.{self.sample.name}({self.call})  {self.cause}"


def _far(value: Any) -> bool:
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(v, int) and abs(v) >= FAR for v in parts)


def _spoilt_tensors(t: torch.Tensor) -> list[torch.Tensor]:
    shapes = [torch.ones(s, dtype=t.dtype) for s in ((0,), (), (2, 3, 4, 5), (7,), (1, 1))]
    return [*shapes, t * float("nan") if t.is_floating_point() else t.long() * 0 - 1000]


def calls(sample: Sample) -> Iterator[tuple[list[Any], dict[str, Any], str]]:
    """Positional arguments, keywords, and what is spoilt in words."""
    arguments = list(sample.arguments(torch))
    for k, value in enumerate(arguments):
        for wrong in _spoilt_tensors(value) if isinstance(value, torch.Tensor) else spoilings(value, "", ""):
            if not _far(wrong):
                yield [*arguments[:k], wrong, *arguments[k + 1 :]], {}, f"{k}: {_shown(wrong)}"
    for parameter in list(inspect.signature(sample.function(calque)).parameters.values())[len(arguments) :]:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and parameter.name not in ("device", "generator", "dtype"):
            for wrong in spoilings(None, parameter.name, str(parameter.annotation)):
                if not _far(wrong):
                    yield arguments, {parameter.name: wrong}, f"{parameter.name}={_shown(wrong)}"


def _shown(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _raised(function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Exception | None:
    try:
        for part in opinfo.flat(function(*arguments, **keywords)):
            if opinfo.is_tensor(part) and part.numel() < 1 << 20:
                part.tolist()
    except Exception as error:
        return error
    return None


def compared(sample: Sample, arguments: list[Any], keywords: dict[str, Any], words: str) -> Found:
    """One call on both libraries."""
    mine = opinfo.ours(arguments)
    theirs, got = _raised(sample.function(torch), opinfo._copied(arguments), keywords), _raised(sample.function(calque), mine, keywords)
    said = "" if theirs is None else f"{type(theirs).__name__}: {' '.join(str(theirs).split())[:110]}"
    if theirs is None:
        return Found(sample, words, "same" if got is None else "refused", f"{type(got).__name__}: {got}")
    if got is None:
        return Found(sample, words, "taken", said)
    if isinstance(got, kind_of(theirs)):
        return Found(sample, words, "same", said)
    return Found(sample, words, "class", f"{said} <> {type(got).__name__}: {' '.join(str(got).split())[:110]}")


def replay(samples: Iterable[Sample]) -> Iterator[Found]:
    """What became of every call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples:
            if sample.name not in LEFT_OUT and sample.exists(torch):
                for arguments, keywords, words in calls(sample):
                    yield compared(sample, arguments, keywords, words)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names of functions, with wildcards")
    parser.add_argument("--taken", action="store_true", help="print calls that are taken, too")
    given = parser.parse_args(arguments)
    counts: collections.Counter[str] = collections.Counter()
    for found in replay(s for s in SAMPLES if any(fnmatch.fnmatchcase(s.name, o) for o in given.only.split(","))):
        counts[found.state] += 1
        if found.state in ("class", "refused") or given.taken and found.state == "taken":
            print(found, flush=True)
    print(f"{counts.total()} calls: {dict(counts)}")
    return 0


if __name__ == "__main__":
    main()
