"""`torch.distributed.fsdp.wrap`: which modules share their parameters among processes. None do."""

from calque.compat.refused import refused, refused_class

__all__ = ["ModuleWrapPolicy", "enable_wrap", "size_based_auto_wrap_policy", "transformer_auto_wrap_policy", "wrap"]

ModuleWrapPolicy = refused_class("torch.distributed.fsdp.wrap.ModuleWrapPolicy")
enable_wrap, size_based_auto_wrap_policy, transformer_auto_wrap_policy, wrap = (
    refused(f"torch.distributed.fsdp.wrap.{name}") for name in ("enable_wrap", *__all__[2:])
)
