"""`torch.amp`: all of it is `calque.amp`; the files that it has in PyTorch are beside this one."""

__all__: list[str] = []
