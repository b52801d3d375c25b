"""`torch.distributed.checkpoint.filesystem`."""

from calque.compat.torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

__all__ = ["FileSystemReader", "FileSystemWriter"]
