"""Modules of `torchvision.models` that only programs written for it ask for."""

__all__: list[str] = []
