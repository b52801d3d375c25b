"""`torch.distributed.tensor._utils`: parts of tensors that several processes share. Nothing is one."""

from calque.compat.refused import refused

__all__ = ["compute_local_shape_and_global_offset"]

compute_local_shape_and_global_offset = refused("torch.distributed.tensor._utils.compute_local_shape_and_global_offset")
