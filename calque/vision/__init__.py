"""Vision: reference models."""

from calque.vision import models

__all__ = ["models"]
