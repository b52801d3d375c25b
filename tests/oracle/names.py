"""Which documented functions and classes of PyTorch have no counterpart here: `python -m tests.oracle.names` writes docs/missing-names.md.

The table is made from the installed PyTorch and this tree, so that it cannot grow old by hand; `test_names.py` holds the file to it.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from pathlib import Path
from typing import Any

from calque.compat.face import face

PAGE = Path(__file__).parents[2] / "docs" / "missing-names.md"
MODULES = (
    "torch", "torch.Tensor", "torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.utils", "torch.linalg", "torch.fft", "torch.special",
    "torch.autograd", "torch.autograd.functional", "torch.func", "torch.optim", "torch.optim.lr_scheduler", "torch.utils.data",
    "torch.utils.checkpoint", "torch.amp", "torch.random", "torch.jit", "torch.compiler", "torch.profiler", "torch.testing",
    "torch.distributions", "torch.distributed", "torch.sparse", "torch.fx", "torch.export", "torch.onnx", "torch.multiprocessing",
)  # fmt: skip
HEAD = """# Names of PyTorch that are missing

Made by `python -m tests.oracle.names` from PyTorch {version}; a test holds the page to the tree. Counted are functions and classes with
documentation; a name that is here may still lack some of its arguments: it then refuses them. `docs/decisions/0014` lists what behaves differently.

| module | names | here | missing |
|---|---:|---:|---:|
"""


def public(module: Any, whole: bool) -> list[str]:
    """Documented callables of a module; `whole`: also those that its `__all__` leaves out."""
    listed = set(getattr(module, "__all__", ())) or set(dir(module))
    names = listed | set(dir(module)) if whole else listed
    values = {name: getattr(module, name, None) for name in names if not name.startswith("_")}
    return sorted(
        name
        for name, value in values.items()
        if callable(value) and value.__doc__ and (getattr(value, "__module__", None) or "torch").startswith(("torch", "builtins"))
    )


def find(path: str, root: Any) -> Any:
    """`torch.nn.init` below the module `root`; None if there is nothing of that name."""
    found = root
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    return found


def missing() -> dict[str, tuple[list[str], list[str]]]:
    """Module -> (all public names, those that are missing here)."""
    out = {}
    for path in MODULES:
        theirs, ours = find(path, importlib.import_module("torch")), find(path, face("torch"))
        names = public(theirs, path == "torch" or inspect.isclass(theirs))
        out[path] = (names, [name for name in names if ours is None or not hasattr(ours, name)])
    return out


def page() -> str:
    """The text of docs/missing-names.md."""
    rows = missing()
    text = HEAD.format(version=importlib.import_module("torch").__version__.partition("+")[0])
    for path, (names, absent) in rows.items():
        text += f"| `{path}` | {len(names)} | {len(names) - len(absent)} | {len(absent)} |\n"
    for path, (names, absent) in rows.items():
        if absent and len(absent) < len(names):
            text += f"\n## {path}\n\n" + textwrap.fill(", ".join(f"`{name}`" for name in absent), 140, break_on_hyphens=False) + "\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
