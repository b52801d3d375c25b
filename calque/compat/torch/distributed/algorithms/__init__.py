"""`torch.distributed.algorithms`."""

__all__: list[str] = []
