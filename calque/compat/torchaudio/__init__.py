"""Names of `torchaudio` itself that only programs written for it ask for."""

from calque.compat.finder import VERSIONS
from calque.compat.torch.torch_version import TorchVersion

__all__ = ["__version__"]

__version__ = TorchVersion(VERSIONS["torchaudio"])
