"""`torch.onnx`: `export` is `calque.export(...).onnx(...)`; PyTorch's symbolic functions are refused by name."""

from __future__ import annotations

from typing import Any

import calque
from calque.compat.refused import no, refused

__all__ = ["dynamo_export", "export", "is_in_onnx_export", "register_custom_op_symbolic", "unregister_custom_op_symbolic"]

is_in_onnx_export = no
dynamo_export, register_custom_op_symbolic, unregister_custom_op_symbolic = (
    refused(f"torch.onnx.{name}") for name in ("dynamo_export", "register_custom_op_symbolic", "unregister_custom_op_symbolic")
)
_NOTHING_TO_DO = {
    "export_params", "do_constant_folding", "verbose", "dynamo", "keep_initializers_as_inputs", "external_data", "optimize", "verify", "training",
}  # fmt: skip


def export(
    model: Any, args: Any = (), f: Any = None, *, kwargs: dict[str, Any] | None = None, input_names: Any = None, output_names: Any = None,
    opset_version: int | None = None, dynamic_axes: Any = None, dynamic_shapes: Any = None, **options: Any,
) -> None:  # fmt: skip
    """Write a model as ONNX. Opsets below 18, which nothing needs any more, become 18; options that choose how PyTorch traces and optimises change
    nothing. Values are always stored (`export_params=False` is refused)."""
    if options.get("export_params", True) is False or (unknown := set(options) - _NOTHING_TO_DO):
        named = "export_params=False" if options.get("export_params", True) is False else ", ".join(sorted(unknown))
        raise NotImplementedError(f"[torch.onnx.export] expected options that Calque has, got {named}; leave it out")
    given = args if isinstance(args, tuple) else (args,)
    dynamic = dynamic_shapes
    if dynamic is None and dynamic_axes:
        axes = [dynamic_axes.get(name) for name in input_names or ()]
        free = [dict.fromkeys(a, "Dim.AUTO") if isinstance(a, (list, tuple)) else a for a in axes]
        dynamic = tuple(free)
    exported = calque.export(model, given, dynamic, kwargs=kwargs)
    exported.onnx(f, opset=max(opset_version or 18, 18), input_names=input_names, output_names=output_names)
