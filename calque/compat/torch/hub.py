"""Names of `torch.hub` beside those of `calque.hub` that libraries import."""

import re
from urllib.parse import urlparse
from urllib.request import urlopen

import calque

__all__ = ["HASH_REGEX", "_get_torch_home", "urlopen", "urlparse"]

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")


def _get_torch_home() -> str:
    """The folder above `get_dir()`."""
    return calque.hub.get_dir().rpartition("/")[0]
