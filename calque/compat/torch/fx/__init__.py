"""`torch.fx` is `calque.fx`; the modules beside this one hold what libraries look up of PyTorch's own tracing."""

__all__: list[str] = []
