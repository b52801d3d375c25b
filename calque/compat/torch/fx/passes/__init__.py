"""`torch.fx.passes`: what changes graphs, or finds out about them."""

__all__: list[str] = []
