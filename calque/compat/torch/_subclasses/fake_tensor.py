"""`torch._subclasses.fake_tensor`: no tensor is a fake one."""

from __future__ import annotations

from calque.compat.refused import no, refused_class

__all__ = ["FakeTensor", "FakeTensorMode", "is_fake"]

is_fake = no
FakeTensor, FakeTensorMode = (refused_class(f"torch._subclasses.fake_tensor.{name}") for name in __all__[:2])
