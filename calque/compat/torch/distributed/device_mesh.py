"""`torch.distributed.device_mesh`: there are no several processes to put in order."""

from calque.compat.refused import refused, refused_class

__all__ = ["DeviceMesh", "init_device_mesh"]

DeviceMesh = refused_class("torch.distributed.device_mesh.DeviceMesh")
init_device_mesh = refused("torch.distributed.device_mesh.init_device_mesh")
