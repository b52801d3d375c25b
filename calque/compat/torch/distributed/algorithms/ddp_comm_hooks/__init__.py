"""`torch.distributed.algorithms.ddp_comm_hooks`."""

__all__: list[str] = []
