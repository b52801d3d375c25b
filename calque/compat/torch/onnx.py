"""`torch.onnx`: refused by name; whoever asks whether a model is being exported hears that it is not."""

from calque.compat.refused import no, refused

__all__ = ["dynamo_export", "export", "is_in_onnx_export", "register_custom_op_symbolic", "unregister_custom_op_symbolic"]

is_in_onnx_export = no
export, dynamo_export, register_custom_op_symbolic, unregister_custom_op_symbolic = (
    refused(f"torch.onnx.{name}") for name in ("export", "dynamo_export", "register_custom_op_symbolic", "unregister_custom_op_symbolic")
)
