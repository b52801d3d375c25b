"""`torch.distributed.device_mesh`."""

from calque.distributed.mesh import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh"]
