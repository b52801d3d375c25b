"""An ONNX graph while it is made: nodes, constants, and sizes that are computed from those of the inputs when the graph runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.base.dtypes import DType
from calque.base.errors import ExportError
from calque.base.extras import need
from calque.exported.extents import Extents
from calque.exported.graph import Entry
from calque.ir.program import Node
from calque.ir.symint import SymInt

KINDS = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11, "uint32": 12,
    "uint64": 13, "bfloat16": 16,
}  # fmt: skip
"""ONNX's numbers of types."""
PARAMETERS, DIMS = "calque.parameters", "calque.dims"
"""What our models say beyond the standard: names of parameters, and ranges of free sizes."""


def unknown(name: str, line: str, what: str = "has no counterpart there") -> ExportError:
    """The error about an operation that ONNX cannot say."""
    return ExportError(f"[onnx] expected operations that ONNX has, but {name} ({line or 'at an unknown line'}) {what}")


class Builder:
    """Makes nodes of an entry's program. `node`: the one that is translated now, for messages."""

    def __init__(self, entry: Entry, extents: Extents, opset: int) -> None:
        self.onnx = need("onnx", "onnx", "onnx", "Exported.onnx")
        self.entry, self.extents, self.opset = entry, extents, opset
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.known: dict[Any, Any] = {}
        self.node: Node | None = None
        self.count = 0
        self.reserved: set[str] = set()

    def name(self) -> str:
        """A new name, none of those that inputs, outputs and state have."""
        self.count += 1
        while f"v{self.count}" in self.reserved:
            self.count += 1
        return f"v{self.count}"

    def add(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        """The result of an operation (a list if there are several). The same one is made once."""
        key = (op, inputs, outputs, repr(sorted(attrs.items())))
        found = self.known.get(key)
        if found is None:
            names = [self.name() for _ in range(outputs)]
            self.nodes.append(self.onnx.helper.make_node(op, list(inputs), names, **attrs))
            found = self.known[key] = names[0] if outputs == 1 else names
        return found

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """A tensor that does not change."""
        array = np.asarray(values, dtype)
        key = ("constant", array.dtype, array.shape, array.tobytes())
        if key not in self.known:
            self.known[key] = self.name()
            self.initializers.append(self.tensor(self.known[key], array))
        return self.known[key]  # type: ignore[no-any-return]

    def tensor(self, name: str, array: Any) -> Any:
        """Values with a name."""
        kind = KINDS.get(array.dtype.name)
        if kind is None:
            raise ExportError(f"[onnx] expected values of types that ONNX has, but {name} is of {array.dtype.name}; keep it as real numbers")
        return self.onnx.helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)

    def kind(self, dtype: DType) -> int:
        """ONNX's number of a type."""
        if dtype.name not in KINDS:
            raise self.refused(f"has the type {dtype.name}")
        return KINDS[dtype.name]

    def refused(self, what: str) -> ExportError:
        """The error about a node that ONNX cannot say."""
        node = self.node
        name, line = (node.op.name, node.line) if node is not None else ("the graph", "")
        return unknown(name, line, what)

    # --------------------------------------------------------------------------------------------------------- sizes

    def size(self, x: Any) -> str:
        """A number as a tensor of one element, int64 (double for a quotient)."""
        if not isinstance(x, SymInt):
            return self.constant([x], np.int64 if isinstance(x, int) else np.float64)
        return self._row(x.row)

    def sizes(self, values: Any) -> str:
        """Several as one tensor."""
        values = tuple(values)
        if not any(isinstance(x, SymInt) for x in values):
            return self.constant(values)
        return values and self.add("Concat", *[self.size(x) for x in values], axis=0)  # type: ignore[no-any-return]

    def _row(self, row: int) -> str:
        key = self.extents.rows[row]
        if key[0] == "variable":
            return self._variable(key[1])
        if key[0] == "constant":
            value = self.extents.values[row]
            return self.constant([value], np.int64 if isinstance(value, int) else np.float64)
        a, b = self._row(key[1]), self._row(key[2])
        floats = [isinstance(self.extents.values[k], float) for k in key[1:]]
        if key[0] == "truediv" or any(floats):
            a, b = (x if is_float else self.add("Cast", x, to=11) for x, is_float in zip((a, b), floats, strict=True))
        if key[0] == "mod":
            return self.add("Mod", a, b)  # type: ignore[no-any-return]
        if key[0] == "floordiv":
            return self.add("Div", self.add("Sub", a, self.add("Mod", a, b)), b)  # type: ignore[no-any-return]
        return self.add({"add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div"}[key[0]], a, b)  # type: ignore[no-any-return]

    def _variable(self, number: int) -> str:
        d = self.entry.dims[number]
        spec = next(s for s in self.entry.inputs if d.name in s.shape)
        axis = spec.shape.index(d.name)
        found: str = self.add("Shape", spec.name, start=axis, end=axis + 1)
        return found if d.multiple == 1 else self.add("Div", found, self.constant([d.multiple]))  # type: ignore[no-any-return]

    # --------------------------------------------------------------------------------------------------- common pieces

    def reshape(self, x: str, shape: Any) -> str:
        """x with another shape of as many elements."""
        return self.add("Reshape", x, self.sizes(shape) if len(shape) else self.constant(np.zeros(0)), allowzero=1)  # type: ignore[no-any-return]

    def expand(self, x: str, given: Any, shape: Any) -> str:
        """x, of shape `given`, repeated along its dims of size 1. By Tile where nothing may be left: of 1 and 0, ONNX Runtime's Expand takes 1."""
        if all(self._positive(size) for size in shape):
            return self.add("Expand", x, self.sizes(shape))  # type: ignore[no-any-return]
        lined = (*[1] * (len(shape) - len(given)), *given)
        once = [type(size) is not int or size != 1 for size in lined]
        x = x if len(lined) == len(given) else self.reshape(x, lined)
        return self.add("Tile", x, self.sizes(1 if kept else size for kept, size in zip(once, shape, strict=True)))  # type: ignore[no-any-return]

    def _positive(self, size: Any) -> bool:
        """Whether a size is never 0."""
        if not isinstance(size, SymInt):
            return bool(size > 0)
        form = self.extents.forms.get(size.row)
        return form is not None and self.extents.bounds(form)[0] > 0

    def range(self, count: Any) -> str:
        """0, 1, 2, ... as int64."""
        scalar = self.constant(np.asarray(0)), self.constant(np.asarray(1))
        if not isinstance(count, SymInt):
            return self.constant(np.arange(count))
        return self.add("Range", scalar[0], self.add("Reshape", self.size(count), self.constant(np.zeros(0))), scalar[1])  # type: ignore[no-any-return]

    def scalar(self, value: float, dtype: DType) -> str:
        """A number of this type."""
        return self.constant(np.asarray(value).astype(dtype.np), dtype.np)
