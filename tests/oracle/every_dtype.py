"""Every public function with tensors of every dtype, beside PyTorch: `python -m tests.oracle.every_dtype [--only softmax,f*] [--dtype int64]`.

The calls are those of `tests.bad_input.calls`. Of each, all floating tensors become ones of another dtype, or the first alone, or one of the
others, or its positions, or all lie in memory in the other order. A call agrees if both libraries refuse it under one built-in class, or neither
does and dtypes, shapes, strides, memory and values are the same.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import calque
from tests.bad_input.calls import Sample
from tests.bad_input.test_wrong_arguments import SAMPLES
from tests.oracle import opinfo
from tests.oracle.error_inputs import kind_of

DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float64", "complex64")
POSITIONS = ("bool", "uint8", "int32", "float32")
Change = Callable[[torch.Tensor, int, int], torch.Tensor]  # a tensor, its place among those of its kind, and how many there are


# Where the outcome is another one on purpose: (names of functions, states, parts of names of changes or "" for all, why).
KNOWN = [
    ("storage untyped_storage to_dlpack __iter__", "other", "", "handles, which are compared by what they are made of"),
    ("unsafe_chunk unsafe_split unsafe_split_with_sizes", "other", "", "parts are copies here, not views that nobody knows of"),
    ("conj adjoint", "other", "complex", "a copy: there are no lazily conjugated views here"),
    ("bucketize histc", "other", "bool bfloat16", "boundaries of bools are in no order; PyTorch rounds the edges of its bins to bfloat16"),
    ("matrix_exp", "other", "float16 bfloat16", "PyTorch's overflows on the way"),
    ("ldl_solve lu_solve", "other taken", "", "pivots of no factorisation, over which LAPACK goes block by block; int64 serves as int32 does"),
    ("cholesky_inverse cholesky_ex", "other", "complex64", "no factor, or no Hermitian matrix: the diagonal is complex"),
    ("cosine_similarity __rtruediv__ cross_entropy binary_cross_entropy_with_logits multilabel_soft_margin_loss", "other", "first last",
     "of one operand of 16 bits PyTorch rounds a part of the result to those"),
    ("fliplr flipud isreal msort sort argsort frexp igamma igammac nextafter addr flip rot90 index_put put select_scatter slice_scatter "
     "diagonal_scatter dropout alpha_dropout feature_alpha_dropout", "other", "order", "the result lies by rows, PyTorch's as its operand"),
    ("avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d max_pool1d_with_indices lp_pool1d conv1d conv_transpose1d multi_head_attention_forward",
     "other", "order", "the result lies by rows (of a batch that comes first)"),
    ("kron", "taken", "order", "PyTorch refuses a matrix that does not lie by rows"),
    ("median nanmedian topk kthvalue pow __pow__ __rpow__ __ipow__ pow_ isin searchsorted bucketize", "taken", "bool",
     "computed: PyTorch lacks a kernel (decision 0014)"),
    ("index_fill index_fill_ index_copy index_copy_ take put put_ take_along_dim one_hot multi_margin_loss multilabel_margin_loss cross_entropy "
     "nll_loss linear_cross_entropy", "taken", "int32 places", "positions of int32 are positions, too (decision 0014)"),
    ("numpy", "taken", "bfloat16", "an array of the type of ml_dtypes"),
    ("float_power_", "taken", "", "the result is converted, as with other functions (decision 0014)"),
    ("local_response_norm", "taken", "float16", "computed"),
    ("complex view_as_complex", "refused", "float16", "complex numbers of 16-bit parts"),
    ("binary_cross_entropy_with_logits soft_margin_loss", "refused", "complex64", "a loss of complex numbers, which is not one"),
    ("chain_matmul", "refused", "bool", "a product of bools"),
    ("normal_", "class", "", "a tensor as mean: an error of ours about its shape"),
]  # fmt: skip


@dataclass
class Found:
    """What became of one call: "same", "taken" (PyTorch refuses it), "refused" (it does not), "class" (of the error), "other" (result)."""

    sample: Sample
    change: str
    state: str
    cause: str = ""

    def __str__(self) -> str:
        return f"{self.state:8}{self.change:16}{self.sample!s:70} {self.cause}"

    def known(self) -> bool:
        """Whether the outcome is another one on purpose."""
        return any(
            self.sample.name in names.split() and self.state in states.split() and (not parts or any(p in self.change for p in parts.split()))
            for names, states, parts, _ in KNOWN
        )


def _as(dtype: str, x: torch.Tensor) -> torch.Tensor:
    """Values between 0 and 1 as ones of the dtype that are not all the same."""
    kind = getattr(torch, dtype)
    if kind is torch.bool:
        return x > x.mean() if x.numel() > 1 else x > 0.5
    if not kind.is_floating_point and not kind.is_complex:
        return (x * 10).to(kind)
    return torch.complex(x, x.flip(0) if x.dim() else x / 2) if kind.is_complex else x.to(kind)


def changes() -> dict[str, tuple[bool, Change]]:
    """By name: whether floating tensors are changed (else positions), and how."""
    found: dict[str, tuple[bool, Change]] = {"order": (True, lambda x, k, n: x.mT.contiguous().mT if x.dim() > 1 else x)}
    for dtype in DTYPES:
        found[dtype] = (True, lambda x, k, n, d=dtype: _as(d, x))
        found[f"{dtype} first"] = (True, lambda x, k, n, d=dtype: _as(d, x) if k == 0 < n - 1 else x)
        found[f"{dtype} last"] = (True, lambda x, k, n, d=dtype: _as(d, x) if k == n - 1 > 0 else x)
    for dtype in POSITIONS:
        found[f"{dtype} places"] = (False, lambda x, k, n, d=dtype: x.to(getattr(torch, d)))
    return found


CHANGES = {"as it is": (True, lambda x, k, n: x.clone()), **changes()}


def changed(arguments: tuple[Any, ...], change: str) -> tuple[Any, ...] | None:
    """The arguments with their tensors changed; None if nothing is."""
    floating, apply = CHANGES[change]
    tensors = [x for x in opinfo._tensors(arguments) if x.is_floating_point() == floating and not x.is_complex() and x.dtype is not torch.bool]
    made = [apply(x, k, len(tensors)) for k, x in enumerate(tensors)]
    if all(x is y for x, y in zip(made, tensors, strict=True)):
        return None
    put = {id(x): y for x, y in zip(tensors, made, strict=True)}

    def walk(x: Any) -> Any:
        return type(x)(walk(v) for v in x) if isinstance(x, (tuple, list)) else put.get(id(x), x)

    return walk(arguments)  # type: ignore[no-any-return]


def outcome(function: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        found = function(*arguments)
        return [str(found.dtype), found.shape, found.tolist()] if isinstance(found, np.ndarray) else found
    except Exception as error:
        return error


def strides(x: Any) -> Any:
    """Of the dims along which there is more than one element."""
    if not x.numel() or str(x.layout) != "torch.strided":
        return None
    return [s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1]


def differs(got: Any, wanted: Any, mine: Any, theirs: Any, random: bool) -> str:
    """"" if two results agree, else how they do not."""
    if text := opinfo.difference(got, wanted, random):
        return text
    for k, (a, b) in enumerate(zip(opinfo.flat(got), opinfo.flat(wanted), strict=True)):
        if opinfo.is_tensor(b) and strides(a) != strides(b):
            return f"strides of result {k}: expected {b.stride()}, got {a.stride()}"
    if (a := opinfo.sharing(got, mine)) != (b := opinfo.sharing(wanted, theirs)):
        return f"memory: expected results in that of the arguments {b}, got {a}"
    return ""


def _random(sample: Sample, arguments: tuple[Any, ...], wanted: Any) -> bool:
    """Whether the values depend on the seed or on what memory held."""
    torch.manual_seed(2)
    again = outcome(sample.function(torch), opinfo._copied(arguments))
    return "empty" in sample.name or sample.name == "resize_" or bool(opinfo.difference(again, wanted, False))


def compared(sample: Sample, change: str) -> Found | None:
    """One call on both libraries; None if there is nothing to change in it."""
    theirs = changed(sample.arguments(torch), change)
    if theirs is None or not sample.exists(torch):
        return None
    mine = opinfo.ours(theirs)
    kept = opinfo._copied(theirs)
    torch.manual_seed(1)
    wanted, got = outcome(sample.function(torch), theirs), outcome(sample.function(calque), mine)
    if isinstance(wanted, Exception):
        said = f"{type(wanted).__name__}: {' '.join(str(wanted).split())[:110]}"
        if not isinstance(got, Exception):
            return Found(sample, change, "taken", said)
        if not isinstance(got, kind_of(wanted)):
            return Found(sample, change, "class", f"{said} <> {type(got).__name__}: {' '.join(str(got).split())[:110]}")
        return Found(sample, change, "same")
    if isinstance(got, Exception):
        return Found(sample, change, "refused", f"{type(got).__name__}: {' '.join(str(got).split())[:160]}")
    text = differs(got, wanted, mine, theirs, _random(sample, kept, wanted))
    return Found(sample, change, "other" if text else "same", text)


def replay(samples: Iterable[Sample], wanted: tuple[str, ...] = ()) -> Iterator[Found]:
    """What became of every call, or of those whose change has such a part in its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples:
            for change in CHANGES:
                if (not wanted or any(w in change for w in wanted)) and (found := compared(sample, change)):
                    yield found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of functions, with wildcards")
    parser.add_argument("--dtype", default="", help="parts of the names of changes")
    parser.add_argument("--all", action="store_true", help="print what is known, too")
    given = parser.parse_args(arguments)
    counts: collections.Counter[str] = collections.Counter()
    only = given.only.split(",") if given.only else ["*"]
    chosen = [s for s in SAMPLES if any(fnmatch.fnmatchcase(s.name, o) for o in only)]
    for found in replay(chosen, tuple(filter(None, given.dtype.split(",")))):
        known = found.state != "same" and found.known()
        counts["known" if known else found.state] += 1
        if found.state != "same" and (given.all or not known):
            print(found, flush=True)
    print(f"{counts['same']} of {counts.total()} calls agree; {dict(counts)}")
    return 0


if __name__ == "__main__":
    main()
