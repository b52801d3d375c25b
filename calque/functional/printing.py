"""The text of a tensor, equal to PyTorch's: one number format per tensor, summarised when large, with the metadata that is
not default."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.asked import ASKED
from calque.base.dataclass import dataclass
from calque.base.device import CPU, META
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.common import method
from calque.functional.declared import public
from calque.record.recorder import local
from calque.tensor import GradNode, Tensor, read

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Options:
    """Digits after the point, elements above which a tensor is summarised, elements shown at each end, characters per line."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


OPTIONS = Options()
_PROFILES: dict[str, dict[str, float]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": math.inf, "edgeitems": 3, "linewidth": 80},
}


@public(method=False)
def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None, linewidth: int | None = None,
    profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """Set how tensors print; None leaves an option as it is, except that `sci_mode` returns to automatic.

    >>> import calque
    >>> calque.set_printoptions(precision=2)
    >>> calque.tensor([1.2345])
    tensor([1.23])
    >>> calque.set_printoptions(profile="default")
    """
    if profile is not None:
        if profile not in _PROFILES:
            raise ArgumentError(f"[set_printoptions] expected profile 'default', 'short' or 'full', got {shown(profile)}")
        for name, value in _PROFILES[profile].items():
            setattr(OPTIONS, name, value)
    for name, given in (("precision", precision), ("threshold", threshold), ("edgeitems", edgeitems), ("linewidth", linewidth)):
        if given is not None:
            setattr(OPTIONS, name, given)
    OPTIONS.sci_mode = sci_mode


@public(method=False)
def get_printoptions() -> dict[str, Any]:
    """The current options by name."""
    return asdict(OPTIONS)


@public(method=False)
@contextlib.contextmanager
def printoptions(**options: Any) -> Iterator[None]:
    """`set_printoptions` for a `with` block."""
    before = get_printoptions()
    set_printoptions(**options)
    try:
        yield
    finally:
        set_printoptions(**before)


class _Format:
    """The common format of the numbers of one tensor: integers with a point, fixed or scientific, right-aligned."""

    def __init__(self, shown: Array, floating: bool) -> None:
        self.floating, self.whole, self.scientific, self.width = floating, True, False, 1
        if not floating:
            self.width = max([1, *(len(str(v)) for v in shown.reshape(-1).tolist())])
            return
        values = shown.reshape(-1)
        values = values[np.isfinite(values) & (values != 0)]
        if not values.size:
            return
        size = np.abs(values)
        low, high = float(size.min()), float(size.max())
        self.whole = bool((values == np.ceil(values)).all())
        automatic = high / low > 1000.0 or high > 1.0e8 or low < 1.0e-4
        self.scientific = automatic if OPTIONS.sci_mode is None else OPTIONS.sci_mode
        point = 1 if self.whole and not self.scientific else 0
        self.width = max(1, *(len(self._digits(v)) + point for v in values.tolist()))

    def _digits(self, value: float) -> str:
        if self.scientific:
            return f"{value:.{OPTIONS.precision}e}"
        return f"{value:.0f}" if self.whole else f"{value:.{OPTIONS.precision}f}"

    def __call__(self, value: Any) -> str:
        if not self.floating:
            return str(value).rjust(self.width)
        text = self._digits(value)
        if self.whole and not self.scientific and math.isfinite(value):
            text += "."
        return text.rjust(self.width)


class _ComplexFormat:
    """The formats of the parts of complex numbers, each of its own."""

    def __init__(self, shown: Array) -> None:
        self.real, self.imag = _Format(shown.real, True), _Format(shown.imag, True)
        self.width = self.real.width + self.imag.width + 1

    def __call__(self, value: complex) -> str:
        imag = (self.imag(value.imag) + "j").lstrip()
        return self.real(value.real) + (imag if imag[0] in "+-" else "+" + imag)


def _ends(values: Array) -> Array:
    """The elements that a summary shows."""
    k = OPTIONS.edgeitems
    for axis, extent in enumerate(values.shape):
        if extent > 2 * k:
            before = (slice(None),) * axis
            # Not `np.take`, which first copies all of a tensor that is expanded.
            values = np.concatenate((values[(*before, slice(k))], values[(*before, slice(extent - k, None))]), axis)
    return values


def _row(values: Array, indent: int, summary: bool, form: _Format | _ComplexFormat) -> str:
    k = OPTIONS.edgeitems
    per_line = max(1, (OPTIONS.linewidth - indent) // (form.width + 2))
    if summary and not k:
        words = ["..."]
    elif summary and len(values) > 2 * k:
        words = [*map(form, values[:k].tolist()), " ...", *map(form, values[-k:].tolist())]
    else:
        words = [form(v) for v in values.tolist()]
    lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _block(values: Array, indent: int, summary: bool, form: _Format | _ComplexFormat) -> str:
    if values.ndim == 0:
        return form(values.item())
    if values.ndim == 1:
        return _row(values, indent, summary, form)
    k = OPTIONS.edgeitems
    if summary and len(values) > 2 * k:
        shown = [_block(v, indent + 1, summary, form) for v in values[:k]]
        shown += ["...", *(_block(v, indent + 1, summary, form) for v in values[len(values) - k :])]
    else:
        shown = [_block(v, indent + 1, summary, form) for v in values]
    return "[" + ("," + "\n" * (values.ndim - 1) + " " * (indent + 1)).join(shown) + "]"


def contents(t: Tensor, indent: int) -> str:
    """The numbers of a tensor in brackets, the first of which stands behind `indent` characters."""
    if not t._layout.numel:
        return "[]"
    values = read(t, "print")
    floating = t._layout.dtype.is_floating_point
    summary = values.size > OPTIONS.threshold
    shown = _ends(values) if summary and OPTIONS.edgeitems else values
    if floating:
        zero = t._layout.dtype.encode(np.zeros((), np.float32)).astype(np.float64)  # the smallest number, where there is no zero
        shown = shown.astype(np.float64)
        shown = np.where(shown == zero, 0.0, shown) if zero else shown
    shown = shown[:0] if summary and not OPTIONS.edgeitems else shown
    form = _ComplexFormat(shown.astype(np.complex128)) if t._layout.dtype.is_complex else _Format(shown, floating)
    if floating and values.dtype.itemsize <= 2:
        values = values.astype(np.float64)
    return _block(values, indent, summary, form)


def _suffixes(t: Tensor, default_dtypes: tuple[dt.DType, ...]) -> list[str]:
    view = t._layout
    found = []
    if view.device is not CPU:
        found.append(f"device='{view.device}'")
    if view.device is META or view.numel == 0 and view.ndim != 1 or view.numel and not OPTIONS.edgeitems:
        found.append(f"size={tuple(view.shape)}")
    if view.dtype not in default_dtypes:
        found.append(f"dtype={view.dtype!r}")
    node = t._grad_fn
    if isinstance(node, GradNode):
        found.append(f"grad_fn=<{node.name()}>")
    elif t._requires_grad:
        found.append("requires_grad=True")
    return found


def closed(text: str, suffixes: list[str], indent: int, force_newline: bool = False) -> str:
    """`text`, the suffixes behind it as long as the line lasts, and a bracket."""
    length = len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        if force_newline or length + len(suffix) + 2 > OPTIONS.linewidth:
            text += ",\n" + " " * indent + suffix
            length = indent + len(suffix)
            force_newline = False
        else:
            text += ", " + suffix
            length += len(suffix) + 2
    return text + ")"


def tensor_text(t: Tensor, name: str = "tensor") -> str:
    """`tensor(...)` as PyTorch prints it."""
    prefix = f"{name}("
    indent = len(prefix)
    default = dt.get_default_dtype()
    usual: tuple[dt.DType, ...]
    if t._layout.device is META:
        text, usual = "...", (default,)
    elif t._layout.numel == 0:
        text, usual = contents(t, indent), (default,)
    else:
        text, usual = contents(t, indent), (default, dt.default_complex(), dt.int64, dt.bool_)
    return closed(prefix + text, _suffixes(t, usual), indent)


@method("__repr__", "__str__")
def _repr(self: Tensor) -> str:
    frame = local.state.trace
    if frame.transforms:
        return frame.text(self, tensor_text)  # type: ignore[no-any-return]
    return tensor_text(self, type(self).__name__ if type(self) in ASKED else "tensor")


@method("__format__")
def _format(self: Tensor, spec: str) -> str:
    return format(self.item(), spec) if not self._layout.ndim else object.__format__(self, spec)  # type: ignore[attr-defined]
