"""PyTorch's own operator database replayed on Calque: `python -m tests.oracle.opinfo --dtype float32 [--only add,linalg] [--causes]`.

Every entry of the database comes with samples: tensors, numbers and keywords of a valid call. A call is found by the entry's name, as a function
of the namespace or as a method of Tensor, whichever gives on PyTorch what the entry's own callable gives; entries for which neither does are not
counted.
Values, dtypes, shapes and gradients are compared. Where PyTorch gives other values for another seed, the values are not compared.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import importlib.util
import itertools
import signal
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import calque

TOLERANCES = {"float64": (1e-6, 1e-8), "float32": (2e-4, 2e-5), "float16": (4e-3, 2e-3), "bfloat16": (3e-2, 2e-2)}
OWN_MEMORY = {"unsafe_chunk", "unsafe_split", "histogramdd"}  # whose parts are copies here, not views that nobody knows of
SECONDS = 60
SAMPLES = 6


def database() -> list[Any]:
    """The entries. Importing them asks for a test package of PyTorch's authors, of which nothing is used here."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = object  # type: ignore[attr-defined]
        stand_in.assert_expected_inline = None  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("torch.testing._internal.common_methods_invocations")
        setattr(module, "wrapper_set_seed", lambda op, *a, **k: op(*a, **k))  # noqa: B010 - else nobody sees which results depend on the seed
        return list(module.op_db)


@dataclass
class Outcome:
    """What became of one entry: "pass", "fail" or "skip", with the cause."""

    name: str
    state: str
    cause: str = ""


class TooLong(Exception):
    """A call took longer than `SECONDS`."""


# --------------------------------------------------------------------------------------------------------------------- converting


def ours(x: Any, leaves: list[Any] | None = None) -> Any:
    """A PyTorch value as Calque's, in the same memory order. Leaves that require a gradient are noted."""
    if isinstance(x, torch.Tensor):
        return _tensor(x, leaves)
    if isinstance(x, (torch.dtype, torch.memory_format, torch.layout)):
        return getattr(calque, str(x).removeprefix("torch."))
    if isinstance(x, torch.device):
        return str(x)
    if isinstance(x, (tuple, list)):
        parts = [ours(v, leaves) for v in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts) if isinstance(x, tuple) else parts
    if isinstance(x, dict):
        return {key: ours(v, leaves) for key, v in x.items()}
    if isinstance(x, slice):
        return slice(ours(x.start), ours(x.stop), ours(x.step))
    if isinstance(x, torch.nn.Module):
        return getattr(calque.nn, type(x).__name__)()
    if isinstance(x, torch.Generator):
        return calque.Generator()
    return x


def _tensor(x: torch.Tensor, leaves: list[Any] | None) -> Any:
    plain = x.detach()
    dtype = getattr(calque, str(x.dtype).removeprefix("torch."))
    if plain.is_contiguous() or plain.numel() == 0 or plain.layout is not torch.strided:
        made = _from_values(plain, dtype)
    else:
        span = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
        flat = _from_values(plain.as_strided((span,), (1,)).clone(), dtype)
        made = flat.as_strided(tuple(plain.shape), plain.stride())
    if x.requires_grad:
        made.requires_grad_(True)
    if leaves is not None and x.requires_grad:
        leaves.append(made)
    return made


def _from_values(plain: torch.Tensor, dtype: Any) -> Any:
    if plain.dtype is torch.bfloat16:
        return calque.tensor(plain.float().contiguous().numpy().copy()).to(dtype)
    return calque.tensor(plain.contiguous().resolve_neg().resolve_conj().numpy().copy(), dtype=dtype)


def leaves_of(x: Any) -> Iterator[torch.Tensor]:
    """The leaves of a PyTorch sample that require a gradient, in the order in which `ours` meets them."""
    if isinstance(x, torch.Tensor):
        if x.requires_grad:
            yield x
    elif isinstance(x, (tuple, list)):
        for v in x:
            yield from leaves_of(v)
    elif isinstance(x, dict):
        for v in x.values():
            yield from leaves_of(v)


def values(x: Any) -> np.ndarray[Any, Any]:
    """The values of a tensor of either framework."""
    x = x.detach()
    if str(x.dtype) == "torch.bfloat16":
        x = x.float()
    if isinstance(x, torch.Tensor) and x.layout is torch.strided:
        x = x.resolve_conj().resolve_neg().clone()  # a clone of what stands for zeros has memory
    return np.asarray(x.numpy())


def flat(x: Any) -> list[Any]:
    """The parts of a result, in order."""
    if isinstance(x, (tuple, list)) and not isinstance(x, torch.Size) and type(x).__name__ != "Size":
        return [part for v in x for part in flat(v)]
    return [x]


def is_tensor(x: Any) -> bool:
    return isinstance(x, (torch.Tensor, calque.Tensor))


# ---------------------------------------------------------------------------------------------------------------------- comparing


def difference(got: Any, expected: Any, random: bool) -> str:
    """"" if two results agree, else how they differ."""
    mine, theirs = flat(got), flat(expected)
    if len(mine) != len(theirs):
        return f"{len(theirs)} results expected, got {len(mine)}"
    for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if not is_tensor(b):
            if is_tensor(a) or not _same_number(a, b, random):
                return f"result {k}: expected {b!r:.80}, got {a!r:.80}"
            continue
        if not is_tensor(a):
            return f"result {k}: expected a Tensor, got {type(a).__name__}"
        if str(a.dtype) != str(b.dtype):
            return f"dtype of result {k}: expected {b.dtype}, got {a.dtype}"
        if tuple(a.shape) != tuple(b.shape):
            return f"shape of result {k}: expected {tuple(b.shape)}, got {tuple(a.shape)}"
        if not random and (text := close(a, b)):
            return f"values of result {k}: {text}"
    return ""


def sharing(result: Any, arguments: Any) -> list[list[int]]:
    """For each tensor of a result the arguments whose memory it lies in."""
    given = list(_tensors(arguments))
    return [[k for k, x in enumerate(given) if _memory(x) is not None and _memory(x) == _memory(part)] for part in flat(result) if is_tensor(part)]


def _tensors(x: Any) -> Iterator[Any]:
    if is_tensor(x):
        yield x
    elif isinstance(x, (tuple, list, dict)):
        for v in x.values() if isinstance(x, dict) else x:
            yield from _tensors(v)


def _memory(x: Any) -> int | None:
    """What two tensors in one memory have in common; None of one without elements or of several memories."""
    if not x.numel() or x.is_sparse or str(x.layout) != "torch.strided":
        return None
    return id(x._storage) if isinstance(x, calque.Tensor) else x.untyped_storage().data_ptr()


def _same_number(a: Any, b: Any, random: bool) -> bool:
    if random and isinstance(b, (int, float)):
        return type(a) is type(b)
    if isinstance(b, (int, float, complex)) and isinstance(a, (int, float, complex)):
        return bool(np.isclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)) and isinstance(a, type(b))
    return bool(tuple(a) == tuple(b)) if isinstance(b, torch.Size) else a == b or str(a) == str(b)


def close(a: Any, b: Any) -> str:
    """"" if the values of two tensors agree within what their dtype allows."""
    x, y = values(a), values(b)
    if x.shape != y.shape:
        return f"shape {y.shape} expected, got {x.shape}"
    rtol, atol = TOLERANCES.get(str(b.dtype).removeprefix("torch."), (0.0, 0.0))
    if y.dtype.kind == "c":
        rtol, atol = TOLERANCES["float32"]
    kind = np.complex128 if y.dtype.kind == "c" or x.dtype.kind == "c" else np.float64 if rtol else x.dtype
    x, y = x.astype(kind), y.astype(kind)
    finite = np.abs(y[np.isfinite(y)]) if rtol else np.zeros(0)
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    with np.errstate(all="ignore"):
        same = np.asarray(np.isclose(x, y, rtol=rtol, atol=atol * min(scale, 1e3), equal_nan=True) if rtol else x == y)
    if same.all():
        return ""
    place = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{int((~same).sum())} of {same.size} differ, at {place} expected {y[place]}, got {x[place]}"


def loss(result: Any) -> Any:
    """A weighted sum of all floating outputs that have a history; the weights follow from the number of elements alone."""
    total = None
    for part in flat(result):
        if not is_tensor(part) or not part.requires_grad:
            continue
        weights = np.cos(np.arange(int(np.prod(tuple(part.shape))), dtype=np.float64) * 0.7 + 0.3).reshape(tuple(part.shape))
        if isinstance(part, torch.Tensor):
            weighted = (part * torch.from_numpy(weights).to(part.dtype)).sum()
        else:
            weighted = (part * calque.tensor(weights).to(part.dtype)).sum()
        total = weighted if total is None else total + weighted.to(total.dtype)
    return total


# ------------------------------------------------------------------------------------------------------------------------- calling


def find(root: Any, path: str) -> Any:
    """A function of a namespace by its dotted name; modules that load on first use are imported."""
    found = root
    for part in path.split("."):
        if not hasattr(found, part) and isinstance(found, types.ModuleType):
            try:
                importlib.import_module(f"{found.__name__}.{part}")
            except ImportError:
                return None
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


def ways(root: Any, name: str) -> list[tuple[str, Callable[..., Any] | None]]:
    """How an entry may be called by name: as a property, a function, a method, an in-place method."""
    path = name.removeprefix("torch.")
    function = find(root, path)
    method = getattr(root.Tensor, path, None) if "." not in path else None
    if isinstance(method, property) or (method is not None and not callable(method)):
        return [("property", lambda x, *a, **k: getattr(x, path))]
    in_place = getattr(root.Tensor, f"{path}_", None) if "." not in path else None
    return [("function", function if callable(function) else None), ("method", method), ("in place", in_place)]


def _copied(x: Any) -> Any:
    """A sample of PyTorch that a call may write to."""
    if isinstance(x, torch.Tensor):
        return x.detach().clone().requires_grad_(x.requires_grad) if x.layout is torch.strided else x
    if isinstance(x, (tuple, list)):
        parts = [_copied(v) for v in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return {k: _copied(v) for k, v in x.items()} if isinstance(x, dict) else x


def _again(call: Callable[..., Any], sample: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    return call(_copied(sample.input), *_copied(sample.args), **_copied(sample.kwargs))


def pick(entry: Any, samples: list[Any], whole: bool) -> tuple[str, bool]:
    """(the way that works on PyTorch, whether results depend on the seed); the way is "" if there is none."""
    expected = [_again(entry.op, s, 1) for s in samples]
    random = "empty" in entry.name
    for seed in (2, 3, 4):
        random = random or any(difference(_again(entry.op, s, seed), e, False) for s, e in zip(samples, expected, strict=True))
    for way, function in ways(torch, entry.name):
        if function is None:
            continue
        try:
            if not any(difference(_again(function, s, 1), e, random) for s, e in zip(samples, expected, strict=True)):
                return way, random
        except Exception:
            continue
    return "", random


def run_sample(entry: Any, sample: Any, reference: Callable[..., Any], call: Callable[..., Any], random: bool, gradients: bool) -> str:
    """"" if one sample agrees, else how it does not."""
    arguments = (sample.input, list(sample.args), sample.kwargs)
    leaves: list[Any] = []
    mine = ours(arguments, leaves)
    theirs = list(leaves_of(arguments))
    torch.manual_seed(1)
    expected = reference(sample.input, *sample.args, **sample.kwargs)
    got = call(mine[0], *mine[1], **mine[2])
    text = difference(got, expected, random)
    if not text and entry.name not in OWN_MEMORY and (a := sharing(got, mine)) != (b := sharing(expected, arguments)):
        text = f"memory: expected results in that of the arguments {b}, got {a}"
    if text or not gradients or not theirs or random:
        return text
    try:
        expected = sample.output_process_fn_grad(expected)
        total = loss(expected)
        wanted = None if total is None else torch.autograd.grad(total, theirs, allow_unused=True)
    except Exception:
        return ""
    if wanted is None:
        return ""
    with_processed = loss(sample.output_process_fn_grad(got))
    if with_processed is None:
        return "gradient: no output has a history"
    with_processed.backward()
    for k, (leaf, g) in enumerate(zip(leaves, wanted, strict=True)):
        zero = g is None
        if leaf.grad is None:
            if not zero and bool((g != 0).any()):
                return f"gradient {k}: missing"
            continue
        if zero:
            if np.any(values(leaf.grad) != 0):
                return f"gradient {k}: expected none"
            continue
        if str(leaf.grad.dtype) != str(g.dtype) or tuple(leaf.grad.shape) != tuple(g.shape):
            return f"gradient {k}: expected {g.dtype} {tuple(g.shape)}, got {leaf.grad.dtype} {tuple(leaf.grad.shape)}"
        if text := close(leaf.grad, g):
            return f"gradient {k}: {text}"
    return ""


def _alarm(*_: Any) -> None:
    raise TooLong(f"more than {SECONDS} seconds")


def run_entry(entry: Any, dtype: Any, count: int = SAMPLES, show: bool = False) -> Outcome:
    """Replay some samples of one entry."""
    name = entry.name + (f"|{entry.variant_test_name}" if entry.variant_test_name else "")
    if dtype not in entry.supported_dtypes("cpu"):
        return Outcome(name, "skip", "dtype")
    gradients = dtype.is_floating_point and bool(entry.supports_autograd)
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run_entry(entry, name, dtype, count, gradients, show)
    except TooLong as error:
        return Outcome(name, "fail", f"TooLong: {error}")
    finally:
        signal.alarm(0)


def _run_entry(entry: Any, name: str, dtype: Any, count: int, gradients: bool, show: bool) -> Outcome:
    torch.manual_seed(0)
    try:
        samples = list(itertools.islice(entry.sample_inputs("cpu", dtype, requires_grad=gradients), count))
        way, random = pick(entry, samples, gradients)
    except TooLong:
        raise
    except Exception as error:
        return Outcome(name, "skip", f"PyTorch: {type(error).__name__}")
    if not way:
        return Outcome(name, "skip", "not by name")
    try:
        found = dict(ways(calque, entry.name)).get(way)
    except Exception as error:
        return Outcome(name, "fail", f"the name: {error}")
    if found is None:
        return Outcome(name, "fail", "missing name")
    reference = dict(ways(torch, entry.name))[way]
    assert reference is not None
    for k, sample in enumerate(samples):
        try:
            text = run_sample(entry, sample, reference, found, random, gradients)
        except TooLong:
            raise
        except Exception as error:
            if show:
                traceback.print_exc()
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if text:
            return Outcome(name, "fail", f"sample {k}: {text}")
    return Outcome(name, "pass")


def replay(dtype: str, only: tuple[str, ...] = (), count: int = SAMPLES, show: bool = False) -> list[Outcome]:
    """The outcome of every entry (whose name begins with one of `only`) for one dtype."""
    kind = getattr(torch, dtype)
    chosen = [e for e in database() if not only or e.name in only or any(o.endswith("*") and e.name.startswith(o[:-1]) for o in only)]
    return [run_entry(e, kind, count, show) for e in chosen]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--show", action="store_true", help="print tracebacks")
    parser.add_argument("--all", action="store_true", help="print entries that pass, and those that are skipped")
    given = parser.parse_args(arguments)
    found = replay(given.dtype, tuple(given.only.split(",")) if given.only else (), given.samples, given.show)
    for outcome in sorted(found, key=lambda o: (o.state, o.cause.partition(": ")[2], o.name)):
        if outcome.state == "fail" or given.all:
            print(f"{outcome.state:5}{outcome.name:50}{outcome.cause}")
    counts = collections.Counter(o.state for o in found)
    total = counts["pass"] + counts["fail"]
    print(f"{given.dtype}: {counts['pass']} of {total} entries agree ({counts['pass'] / max(total, 1):.1%}); {counts['skip']} are not counted")
    return 0


if __name__ == "__main__":
    main()
