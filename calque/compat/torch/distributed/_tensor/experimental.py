"""What is being tried with tensors that several processes share. Nothing is one."""

from calque.compat.refused import refused

__all__ = ["implicit_replication"]

implicit_replication = refused("torch.distributed.tensor.experimental.implicit_replication")
