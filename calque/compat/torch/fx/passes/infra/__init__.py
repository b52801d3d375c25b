"""`torch.fx.passes.infra`: what passes are, and what runs several."""

__all__: list[str] = []
