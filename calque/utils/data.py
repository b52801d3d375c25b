"""`torch.utils.data` names; see `calque.data`."""

from calque.data import *  # noqa: F403
from calque.data import __all__ as __all__
