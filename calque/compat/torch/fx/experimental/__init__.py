"""`torch.fx.experimental`: shapes are those of the call, so there are no symbols for them."""

__all__: list[str] = []
