"""Python imports this at its start if the folder stands in PYTHONPATH: a process that was started by a program under `calque run` (or after
`calque.install_as_torch()`) finds Calque under the name `torch` as well. Then the `sitecustomize` of the installation runs, if there is one.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_COMPAT = os.path.dirname(_HERE)


def _install() -> None:
    name = "calque.compat.finder"
    spec = importlib.util.spec_from_file_location(name, os.path.join(_COMPAT, "finder.py"))
    if spec is None or spec.loader is None or name in sys.modules:
        return
    finder = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(finder)  # by its path: `import calque` would load the whole framework in each process
    root = os.path.dirname(os.path.dirname(_COMPAT))
    if importlib.machinery.PathFinder.find_spec("calque") is None:
        sys.path.append(root)
    finder.install()


def _run_the_other() -> None:
    """Run the module of this name that Python would have found without this folder."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_install()
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # the program sees the path it would have
_run_the_other()
