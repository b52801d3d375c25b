"""Named results: tuples such as `(values, indices)` that print as PyTorch's."""

from __future__ import annotations

from collections import namedtuple
from typing import Any


def named_result(name: str, *fields: str) -> Any:
    """A named tuple type whose text is PyTorch's `torch.return_types.<name>(...)`."""

    def text(self: Any) -> str:
        body = ",\n".join(f"{field}={value!r}" for field, value in zip(fields, self, strict=True))
        return f"torch.return_types.{name}(\n{body})"

    base: Any = namedtuple(name, fields)  # type: ignore[misc]
    return type(name, (base,), {"__slots__": (), "__repr__": text, "__doc__": f"Result of `{name}`: {', '.join(fields)}."})


MaxResult = named_result("max", "values", "indices")
MinResult = named_result("min", "values", "indices")
MinMaxResult = named_result("aminmax", "min", "max")
MedianResult = named_result("median", "values", "indices")
NanMedianResult = named_result("nanmedian", "values", "indices")
ModeResult = named_result("mode", "values", "indices")
CummaxResult = named_result("cummax", "values", "indices")
CumminResult = named_result("cummin", "values", "indices")
SortResult = named_result("sort", "values", "indices")
TopkResult = named_result("topk", "values", "indices")
KthResult = named_result("kthvalue", "values", "indices")
