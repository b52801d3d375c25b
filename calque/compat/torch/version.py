"""`torch.version`: which interface this is, and for which devices."""

from calque.compat.finder import VERSION

__all__ = ["__version__", "cuda", "debug", "git_version", "hip", "rocm", "xpu"]

__version__ = VERSION
debug = False
cuda = hip = rocm = xpu = None
git_version = "calque"
