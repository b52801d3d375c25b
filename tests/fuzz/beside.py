"""Random calls made on Calque and on PyTorch side by side: what the generators of values, refusals and strides share.

A generator gives a `Case` for a seed: source text with `T` for the library and `F` for its `nn.functional`, and named arrays. Both libraries run
the text and what comes out is compared: shapes, dtypes, values with the signs of zeros, gradients where asked, or that both refuse.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import calque

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
MISSING = (
    "not implemented for", "is not implemented", "not supported for", "Unsupported", "not currently supported", "expected scalar type",
    "could not be determined",
)  # fmt: skip


@dataclass
class Operand:
    """A tensor of a case, with a shape where the values do not say it. `view`: how it is seen, as text with `t` for the tensor."""

    values: Any
    dtype: str
    view: str = "t"
    grad: bool = False
    shape: tuple[int, ...] | None = None


@dataclass
class Case:
    """`text`: an expression, or statements that leave their results in `out`. `ulps`: units in the last place that results may differ by."""

    text: str
    operands: dict[str, Operand] = field(default_factory=dict)
    ulps: float = 8.0
    signs: bool = True  # of zeros, too
    scaled: bool = False  # rounding errors of all elements may be those of the largest, or of 1

    def describe(self) -> str:
        """The case as a program."""
        lines = []
        for name, o in self.operands.items():
            shape = f".reshape({o.shape})" if o.shape is not None else ""
            lines.append(f"t = T.tensor({o.values!r}, dtype=T.{o.dtype}){shape}{'.requires_grad_()' if o.grad else ''}; {name} = {o.view}")
        return "\n  ".join([*lines, *self.text.split("\n")])


def made(module: Any, o: Operand) -> Any:
    """The operand as a tensor of the module."""
    t = module.tensor(o.values, dtype=getattr(module, o.dtype))
    if o.shape is not None:
        t = t.reshape(o.shape)
    if o.grad:
        t.requires_grad_(True)
    return eval(o.view, {"t": t, "T": module})


def run(module: Any, case: Case) -> Any:
    """("value", results) or ("error", exception)."""
    scope: dict[str, Any] = {"T": module, "F": module.nn.functional}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            scope |= {name: made(module, o) for name, o in case.operands.items()}
            if "\n" in case.text or case.text.startswith("out"):
                exec(case.text, scope)  # noqa: S102 - generated here
            else:
                scope["out"] = eval(case.text, scope)
            return "value", [plain(x) for x in flat(scope["out"])]
        except Exception as error:
            return "error", error
        finally:
            if module is calque:  # what a failed case has left unread belongs to it
                with contextlib.suppress(Exception):
                    calque.synchronize()


def flat(result: Any) -> list[Any]:
    """Tensors, numbers and texts of a result, in order."""
    if isinstance(result, (tuple, list)) and not hasattr(result, "numel"):
        return [x for part in result for x in flat(part)]
    return [result]


def plain(x: Any) -> Any:
    """(dtype, shape, values in float64 or int64), or what is no tensor as it is."""
    if not hasattr(x, "requires_grad"):
        return str(x) if type(x).__name__ in ("dtype", "DType", "Size") else x
    dtype = str(x.dtype).removeprefix("torch.")
    x = x.detach()
    values = x.double().numpy(force=True) if dtype in EPS else x.numpy()  # PyTorch has tensors of zeros without memory
    return dtype, tuple(x.shape), np.array(values)


def different(mine: Any, theirs: Any, ulps: float, signs: bool = True, scaled: bool = False) -> str:
    """"" if a result is PyTorch's, else what differs."""
    if not isinstance(theirs, tuple) or len(theirs) != 3:
        return "" if type(mine) is type(theirs) and (mine == theirs or mine != mine) else f"{mine!r} instead of {theirs!r}"
    if not isinstance(mine, tuple):
        return f"{mine!r} instead of a tensor"
    if mine[:2] != theirs[:2]:
        return f"{mine[0]} {mine[1]} instead of {theirs[0]} {theirs[1]}"
    a, b = mine[2], theirs[2]
    if theirs[0] not in EPS:
        return "" if np.array_equal(a, b) else f"{a.tolist()} instead of {b.tolist()}"
    with np.errstate(all="ignore"):
        same = (a == b) & ((a != 0) | (np.signbit(a) == np.signbit(b)) | (not signs)) | (np.isnan(a) & np.isnan(b))
        finite = np.isfinite(a) & np.isfinite(b)
        size = max(1.0, float(np.max(np.abs(b[finite]), initial=0.0))) if scaled else np.where(b == 0, 0.0, np.maximum(np.abs(b), 1e-30))
        near = finite & (np.abs(a - b) <= ulps * EPS[theirs[0]] * size) & ((b != 0) | scaled)
    return "" if bool(np.all(same | near)) else f"{a.tolist()} instead of {b.tolist()}"


def mismatch(case: Case, torch: Any, allowed: Callable[[Case, Any, Any], bool] | None = None) -> str:
    """"" if both libraries do the same, else what differs. `allowed` knows the differences of docs/decisions/0014."""
    theirs, mine = run(torch, case), run(calque, case)
    if mine[0] == "error" and "bug of Calque" in str(mine[1]):
        return f"internal error: {mine[1]}"
    if theirs[0] == mine[0] == "error":
        return ""
    text = ""
    if mine[0] == "error":
        text = f"refused: {type(mine[1]).__name__}: {str(mine[1])[:300]}"
    elif theirs[0] == "error":
        if any(part in str(theirs[1]) for part in MISSING):  # PyTorch has no kernel for these types; see docs/decisions/0014
            return ""
        text = f"not refused: PyTorch says {type(theirs[1]).__name__}: {str(theirs[1])[:200]}"
    elif len(mine[1]) != len(theirs[1]):
        text = f"{len(mine[1])} results instead of {len(theirs[1])}"
    else:
        text = next((t for t in (different(a, b, case.ulps, case.signs, case.scaled) for a, b in zip(mine[1], theirs[1], strict=True)) if t), "")
    return "" if not text or (allowed is not None and allowed(case, mine, theirs)) else text


def checked(seed: int, case: Case, module: str, allowed: Callable[[Case, Any, Any], bool] | None = None) -> str:
    """"" or what differs in the case of a seed, with the line that repeats it."""
    import torch

    text = mismatch(case, torch, allowed)
    return text and f"seed {seed}: {text}\n  {case.describe()}\n  repeat: python -m {module} --seed {seed} --count 1"
