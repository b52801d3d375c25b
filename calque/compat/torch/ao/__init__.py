"""`torch.ao`: quantisation by PyTorch's own modules, of which there are only names. `calque.nn.utils.quantize_` keeps weights as int8."""

__all__: list[str] = []
