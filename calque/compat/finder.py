"""The one finder of `import torch`. Only the standard library is imported here: a child process loads this file before anything else.

A process has it in `sys.meta_path`, in front of whatever else could find a `torch`. Its children have it by a `sitecustomize` module (`site/`), whose
folder stands first in the variable PYTHONPATH that they inherit.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

ROOT = "torch"
VERSIONS = {  # what is offered, and by whom
    "torch": "2.13.0+calque", "torchvision": "0.28.0+calque", "torchaudio": "2.11.0+calque", "functorch": "2.13.0+calque",
}  # fmt: skip
VERSION = VERSIONS[ROOT]
HERE = os.path.dirname(os.path.abspath(__file__))
SITE = os.path.join(HERE, "site")
_FACES = "calque.compat.face"
_TRACEBACKS = "calque.compat.tracebacks"


class Metadata(importlib.metadata.Distribution):
    """What `importlib.metadata` says about the distribution `torch`: libraries ask whether it is installed, and which version."""

    def __init__(self, root: str) -> None:
        self._files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {root}\nVersion: {VERSIONS[root]}\nSummary: Calque under PyTorch's name\n",
            "top_level.txt": root + "\n",
        }

    def read_text(self, filename: str) -> str | None:
        """The text of one of the files that an installed distribution has."""
        return self._files.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Where a file of the distribution would lie."""
        return os.path.join(HERE, str(path))


class Finder(importlib.metadata.DistributionFinder, importlib.abc.Loader):
    """Finds and makes the modules `torch` and `torch.*`, and those of `torchvision`, `torchaudio` and `functorch`."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec of `torch`, `torchvision`, `torchaudio` or of a module below them that is here; None for everything else."""
        root = fullname.partition(".")[0]
        if root not in VERSIONS:
            return None
        if fullname != root and not importlib.import_module(_FACES).exists(fullname):
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=os.path.join(HERE, root, "__init__.py"), is_package=True)
        spec.submodule_search_locations = [os.path.join(HERE, *fullname.split("."))]
        spec.has_location = True
        return spec

    def create_module(self, spec: Any) -> Any:
        """The face of the module that was found."""
        importlib.import_module(_TRACEBACKS).install()
        return importlib.import_module(_FACES).face(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: a face looks names up when they are asked for."""

    def find_distributions(self, context: Any = importlib.metadata.DistributionFinder.Context()) -> Iterator[Any]:  # noqa: B008 - as in the base class
        """The distributions `torch`, `torchvision` and `torchaudio`, where they are asked for by name or all are."""
        yield from (Metadata(root) for root in VERSIONS if context.name is None or context.name.lower() == root)


FINDER = Finder()


def installed() -> bool:
    """Whether `import torch` means Calque in this process."""
    return FINDER in sys.meta_path


def install() -> None:
    """Put the finder in front of the others. Raises `ImportError` if PyTorch is already loaded: what has it keeps it."""
    there = sys.modules.get(ROOT)
    if there is not None and getattr(there, "__loader__", None) is not FINDER:
        raise ImportError(
            f"[install_as_torch] expected that no torch is loaded yet, got {getattr(there, '__file__', there)!s}; "
            "call calque.install_as_torch() before anything imports torch, or start the program with `calque run`"
        )
    if not installed():
        sys.meta_path.insert(0, FINDER)
