"""What names PyTorch has, by module: `python -m tests.oracle.surface` writes calque/compat/pytorch_names.txt from the installed PyTorch.

Calque reads it to say of a name that is not here whether PyTorch has it, and to find the names of PyTorch's inner modules in its outer ones.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "calque" / "compat" / "pytorch_names.txt"
CLASSES = ("Tensor", "nn.Module")
OPTIONAL = {"torch.utils.tensorboard": "FileWriter RecordWriter SummaryWriter"}  # needs a package that may not be installed
# Parts that programs do not name: tests, code generators, what needs another program. Their front page is listed, what is below it is not.
CLOSED = (
    "torch.testing.", "torch.onnx.", "torch.ao.", "torch.export.", "torch.quantization.", "torch.package.", "torch.contrib", "torch.fx.experimental.",
    "torch.fx.passes.", "torch.masked.maskedtensor", "torch.utils.benchmark.", "torch.utils.bottleneck", "torch.utils.hipify",
    "torch.utils.serialization", "torch.utils.viz", "torch.utils.model_dump", "torch.utils.tensorboard.", "torch.nn.quant", "torch.nn.qat",
    "torch.nn.intrinsic", "torch.cuda.gds", "torch.distributed.", "torch.backends.python_native.", "torch.utils.data.datapipes.",
    "torch.compiler.config",
)  # fmt: skip


def modules(path: Any, prefix: str) -> Iterator[str]:
    """The modules below a package, without what is private or closed."""
    for found in pkgutil.iter_modules(path):
        name = prefix + found.name
        if found.name.startswith("_") or name.startswith(CLOSED):
            continue
        try:
            module = importlib.import_module(name)
        except Exception:  # it needs something that is not installed
            continue
        yield name
        if found.ispkg and not (name + ".").startswith(CLOSED):
            yield from modules(module.__path__, name + ".")


def belongs(name: str, value: Any, module: str) -> bool:
    """Whether a name of a module is PyTorch's own and not something that it imports for itself."""
    if name.startswith("_") or name in ("TYPE_CHECKING", "F", "T", "R", "K", "V", "m", "torch"):
        return False
    if isinstance(value, types.ModuleType):
        return value.__name__.startswith("torch")
    home = getattr(value, "__module__", None)
    if home is None or inspect.isbuiltin(value):  # a function of the compiled half
        return True
    if module == "torch":
        return home.startswith(("torch", "builtins"))
    return isinstance(home, str) and home.startswith((module, "torch._C", "torch._ops"))


def names(path: str) -> list[str]:
    """The public names of a module: those that it lists, and those that it defines."""
    module = importlib.import_module(path)
    listed = {name for name in getattr(module, "__all__", ()) if isinstance(name, str)}
    there = vars(module) if hasattr(module, "__dict__") and "m" not in vars(module) else {name: getattr(module, name) for name in dir(module)}
    return sorted(listed | {name for name, value in there.items() if belongs(name, value, path)})


def text() -> str:
    """The content of the file: one line for each module, and for each class whose attributes are listed."""
    torch = importlib.import_module("torch")
    lines = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paths = sorted({"torch", *modules(torch.__path__, "torch.")})
        lines += [f"{path}: {' '.join(names(path))}" for path in paths if path not in OPTIONAL]
    lines += [f"{path}: {found}" for path, found in OPTIONAL.items()]
    for path in CLASSES:
        owner: Any = torch
        for part in path.split("."):
            owner = getattr(owner, part)
        lines.append(f"torch.{path}: {' '.join(sorted(name for name in dir(owner) if not name.startswith('_')))}")
    head = f"# Made by `python -m tests.oracle.surface` from PyTorch {torch.__version__.partition('+')[0]}."
    return "\n".join([head, *lines]) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
