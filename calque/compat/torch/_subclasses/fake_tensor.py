"""`torch._subclasses.fake_tensor`: no tensor is a fake one."""

from __future__ import annotations

from contextlib import nullcontext

from calque.compat.refused import no, refused_class

__all__ = ["FakeTensor", "FakeTensorMode", "is_fake", "unset_fake_temporarily"]

is_fake = no
unset_fake_temporarily = nullcontext
FakeTensor, FakeTensorMode = (refused_class(f"torch._subclasses.fake_tensor.{name}") for name in __all__[:2])
