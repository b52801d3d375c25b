"""Names of `torchvision` itself that only programs written for it ask for."""

from calque.compat.finder import VERSIONS
from calque.compat.refused import nothing
from calque.compat.torch.torch_version import TorchVersion

__all__ = ["__version__", "disable_beta_transforms_warning", "get_image_backend", "set_image_backend"]

__version__ = TorchVersion(VERSIONS["torchvision"])
disable_beta_transforms_warning = set_image_backend = nothing


def get_image_backend() -> str:
    """"PIL": images are read by Pillow."""
    return "PIL"
