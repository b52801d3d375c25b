"""`torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook`: not offered; libraries look whether a hook's state is of this class."""

from calque.compat.refused import refused, refused_class

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]

_PLACE = "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook"
PostLocalSGDState = refused_class(f"{_PLACE}.PostLocalSGDState")
post_localSGD_hook = refused(f"{_PLACE}.post_localSGD_hook")  # noqa: N816 - PyTorch's name
