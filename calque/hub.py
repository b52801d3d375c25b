"""`torch.hub`: models that a folder with a `hubconf.py` offers. Its code is the user's, and runs; nothing is fetched but what
`load_state_dict_from_url` names.

>>> import calque, pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = pathlib.Path(folder, "hubconf.py").write_text("def answer(n=42):\\n    '''The answer.'''\\n    return n\\n")
...     calque.hub.list(folder, source="local"), calque.hub.load(folder, "answer", source="local", n=43)
(['answer'], 43)
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.blame import publish as _publish
from calque.io.fetch import download_url_to_file, get_dir, load_state_dict_from_url, set_dir

__all__ = ["download_url_to_file", "get_dir", "help", "list", "load", "load_state_dict_from_url", "set_dir"]

CONFIGURATION = "hubconf.py"


def _offered(repo_or_dir: Any, source: str) -> Any:
    """The module `hubconf.py` of a folder."""
    if source != "local":
        raise ArgumentError(
            f"[hub] expected source='local' and a folder, got source={shown(source)} and {shown(repo_or_dir)}: code is not fetched; "
            "clone the repository and pass its folder with source='local'"
        )
    file = Path(repo_or_dir) / CONFIGURATION
    if not file.is_file():
        raise FileNotFoundError(f"[hub] expected a folder with {CONFIGURATION}, got {shown(str(repo_or_dir))}; look at the path")
    spec = importlib.util.spec_from_file_location("hubconf", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))  # its imports begin in its folder
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    lacking = [name for name in getattr(module, "dependencies", []) if importlib.util.find_spec(name) is None]
    if lacking:
        raise RuntimeError(f"[hub] expected the packages that {CONFIGURATION} depends on, got none named {', '.join(lacking)}; install them")
    return module


def _entry(module: Any, name: Any) -> Callable[..., Any]:
    found = getattr(module, name, None) if isinstance(name, str) and not name.startswith("_") else None
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ArgumentError(f"[hub] expected the name of a function of {CONFIGURATION}, got {shown(name)}; it has {', '.join(names) or 'none'}")
    return found


def list(github: Any, force_reload: bool = False, skip_validation: bool = False, trust_repo: Any = None, verbose: bool = True, *,
         source: str = "local") -> Any:  # fmt: skip
    """The names of the functions that a folder offers."""
    module = _offered(github, source)
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]


def help(github: Any, model: str, force_reload: bool = False, skip_validation: bool = False, trust_repo: Any = None, *,
         source: str = "local") -> str | None:  # fmt: skip
    """The docstring of a function that a folder offers."""
    return _entry(_offered(github, source), model).__doc__


def load(
    repo_or_dir: Any, model: str, *args: Any, source: str = "github", trust_repo: Any = None, force_reload: bool = False, verbose: bool = True,
    skip_validation: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """What a function of `hubconf.py` in a folder gives for these arguments. source: "local"; repositories are not fetched."""
    return _entry(_offered(repo_or_dir, source), model)(*args, **kwargs)


_publish(sys.modules[__name__])
