"""`torch.distributed.elastic.multiprocessing`."""

__all__: list[str] = []
