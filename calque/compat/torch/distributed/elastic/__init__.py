"""`torch.distributed.elastic`: what torchrun is made of. `calque launch` starts processes here."""

__all__: list[str] = []
