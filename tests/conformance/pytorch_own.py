"""PyTorch's own tests, run on Calque: `python -m tests.conformance.pytorch_own SOURCE test_autograd.py nn/test_pooling.py [-- -k name]`.

SOURCE is a folder with PyTorch's source (2.6 was tried): its `test` and `torch/testing` are read. Nothing of it is kept here, and no test of ours
asks for it. Many of its tests look at PyTorch's own machinery (saved tensors of nodes, JIT, CUDA) and fail for that reason; what is worth reading are
values, gradients, and errors that are missing. Texts of errors are not compared. Needs `pip install expecttest pytest-timeout`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

VARIABLE = "CALQUE_PYTORCH_TESTS"  # where the copies are, for the process that runs them
MACHINERY = (
    "torch._dynamo", "torch.onnx", "torch._inductor", "torch._logging", "torch._utils_internal", "torch.utils.cpp_extension", "torch._subclasses",
    "torch.fx.experimental", "torch._functorch", "torch._export", "torch._prims", "torch._refs", "torch._decomp", "torch._higher_order_ops",
    "torch.utils._import_utils", "torch.utils._mode_utils", "torch.utils._python_dispatch", "torch.distributed._", "torch.profiler._",
    "torch.testing._internal.generated",
)  # fmt: skip
# What PyTorch's helpers for tests do to PyTorch itself -> what stands there instead.
EDITS: dict[str, list[tuple[str, str]]] = {
    "common_utils.py": [
        (r"^from torch\.utils\._import_utils import _check_module_exists", "from tests.conformance.pytorch_own import _check_module_exists"),
        (r"^import torch\.backends\.xnnpack", "torch.backends.xnnpack = types.SimpleNamespace(enabled=False)"),
        (r"^from torch\._C import ScriptDict, ScriptList.*", "ScriptDict = ScriptList = type('Never', (), {})"),
        (r"^torch\.backends\.disable_global_flags\(\)", "pass"),
        (r"torch\.backends\.cuda\.preferred_(blas|linalg)_library\(", "str("),
        (r"getattr\(generic_cls, attr_name\)", "getattr(generic_cls, attr_name, None)"),
        (r"if values is check_exhausted_iterator:", "if False:"),
        (r"assert len\(matching_opinfos\) (> 0|== 1, f\"Couldn't).*", "if not matching_opinfos: continue"),
        (r"super\(\)\.assertRaisesRegex\(expected_exception, expected_regex", "super().assertRaisesRegex(expected_exception, ''"),
    ],
    "common_nn.py": [
        (r"^from torch\.autograd\.gradcheck import _get.*", "_get_numerical_jacobian = _iter_tensors = None"),
        (r"^from torch\.types import _TensorOrTensors", "_TensorOrTensors = object"),
        (r"if self\.should_test_pickle:", "if False:"),  # whole models are code, which is not loaded
    ],
    "common_methods_invocations.py": [
        (r"op=torch\.ops\.aten\.[\w.]+", "op=lambda *a, **k: None"), (r"torch\.ops\.aten\.[\w.]+", "None"),
    ],
    "common_modules.py": [
        (r"^    torch\.ao\..*\n", ""), (r"^(        )(module_cls = getattr.*)", r"\1\2\n\1if not isinstance(module_cls, type): continue"),
        (r"cls for cls in MODULE_CLASSES if", "cls for cls in MODULE_CLASSES if isinstance(cls, type) and"),
    ],
    "common_device_type.py": [(r"if op is check_exhausted_iterator:", "if False:")],
    "custom_op_db.py": [(r"\b\w+\._opoverload", "lambda *a, **k: None")],
    "core.py": [(r"        obj = getattr\(obj, path\)\n", "        obj = getattr(obj, path, None)\n")],
}  # fmt: skip


MOCK = "__import__('unittest.mock').mock.MagicMock()"
INSTEAD = {  # a class below it is to stay one, and a method that it decorates
    "JitTestCase": "torch.testing._internal.common_utils.TestCase",
    "skipIfNoDynamoSupport": "(lambda function: function)",
}


def soften(text: str) -> str:
    """A test file whose imports of names that are missing give mocks: the tests that need them fail, the others run."""
    text = text.replace("torch.profiler.itt.is_available()", "False")  # asked for when the file is imported
    text = text.replace("TestVisionTracing.generate_tests()", "pass")  # asks for the names of all models
    text = text.replace("(torch._subclasses.CrossRefFakeMode)", "")
    lines = text.split("\n")
    for node in reversed(ast.parse(text).body):
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or node.names[0].name == "*":
            continue
        if (getattr(node, "module", None) or node.names[0].name).partition(".")[0] not in ("torch", "functorch"):
            continue
        made = []
        for alias in node.names:
            wanted = alias.name + (f" as {alias.asname}" if alias.asname else "")
            bound = alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else "")
            made += ["try:", f"    {f'from {node.module} ' if isinstance(node, ast.ImportFrom) else ''}import {wanted}", "except ImportError:"]
            made += [f"    {bound} = {INSTEAD.get(bound, 'None' if 'Test' in bound else MOCK)}" if bound else "    pass"]
        lines[node.lineno - 1 : node.end_lineno] = made
    return "\n".join(lines)


def copies(source: Path, folder: Path, files: list[str]) -> list[str]:
    """What is run: the test files, softened, and PyTorch's helpers for tests."""
    shutil.copytree(source / "torch" / "testing", folder / "testing")
    shutil.copytree(source / "test", folder / "test", ignore=shutil.ignore_patterns("conftest.py", "*.pt", "cpp*"))
    for path in [*(folder / "testing" / "_internal").rglob("*.py"), *(folder / "test").rglob("common_utils.py")]:
        for pattern, to in EDITS.get(path.name, []):
            path.write_text(re.sub(pattern, to, path.read_text(), flags=re.M))
    for file in (folder / "test").rglob("test_*.py"):
        with contextlib.suppress(SyntaxError):
            file.write_text(soften(file.read_text()))
    return [str(folder / "test" / file) for file in files]


def _check_module_exists(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


class Mock(types.ModuleType):
    """A module of PyTorch's machinery that has whatever one asks for."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **keywords: Any) -> Any:  # a function that was imported from a mock is taken for a module
        return MagicMock(name=self.__name__)


class Helpers(MetaPathFinder):
    """Finds PyTorch's helpers for tests in the copies."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith("torch.testing._"):
            return None
        base = Path(os.environ[VARIABLE], *fullname.split(".")[1:])
        if base.is_dir():
            return importlib.util.spec_from_file_location(fullname, base / "__init__.py", submodule_search_locations=[str(base)])
        return importlib.util.spec_from_file_location(fullname, base.with_suffix(".py")) if base.with_suffix(".py").exists() else None


class Machinery(MetaPathFinder, Loader):
    """Finds mocks for what is not there."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(MACHINERY) else None

    def create_module(self, spec: ModuleSpec) -> Any:
        return Mock(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def prepare() -> None:
    """`import torch` is Calque, with the parts that PyTorch's helpers ask for at their import."""
    import calque

    calque.install_as_torch()
    sys.meta_path.insert(0, Helpers())
    sys.meta_path.append(Machinery())
    torch: Any = importlib.import_module("torch")
    for name in ("ScriptFunction", "ScriptMethod"):
        setattr(torch._C, name, type(name, (), {"__call__": lambda self: None}))
    for name in ("_get_graph_executor_optimize", "_jit_set_profiling_executor", "_jit_set_num_profiled_runs", "_cuda_clearCublasWorkspaces"):
        setattr(torch._C, name, lambda *_: False)
    for name in ("_debug_only_display_vmap_fallback_warnings", "_debug_only_are_vmap_fallback_warnings_enabled"):
        setattr(torch._C, name, lambda *_: False)
        setattr(torch._C._functorch, name, lambda *_: False)
    torch._C._functorch._is_vmap_fallback_enabled = lambda: True
    torch._C.has_lapack = torch._C.has_spectral = True
    torch._C._get_privateuse1_backend_name = lambda: "privateuseone"
    torch._C._DisableFuncTorch = contextlib.nullcontext
    torch._C._functorch.TransformType = torch._C.DispatchKey = MagicMock()
    torch._disable_dynamo = lambda function=None, recursive=True: function or (lambda f: f)
    sys.modules["torch.utils._triton"] = types.SimpleNamespace(has_triton=lambda: False)  # type: ignore[assignment]
    torch._running_with_deploy = lambda: False
    stateless = importlib.import_module("torch.nn.utils.stateless")
    stateless._functional_call = stateless.functional_call
    torch.cuda.jiterator = MagicMock()
    torch._nnpack_available = lambda: False
    torch._C._ConvBackend = torch._mkldnn = MagicMock()
    torch.utils._mode_utils = types.SimpleNamespace(no_dispatch=contextlib.nullcontext)
    for name in ("_comparison", "_utils"):
        setattr(torch.testing, name, importlib.import_module(f"torch.testing.{name}"))


def main(source: str, *rest: str) -> int:
    """Run the files; arguments behind `--` are pytest's."""
    files = list(rest[: rest.index("--")] if "--" in rest else rest)
    more = list(rest[rest.index("--") + 1 :] if "--" in rest else [])
    with tempfile.TemporaryDirectory() as folder:
        found = copies(Path(source), Path(folder), files)
        options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--noconftest", "-p", __spec__.name, "--tb=short", "--rootdir", folder]
        command = [sys.executable, "-m", "pytest", *options, *more, *found]
        return subprocess.run(command, env={**os.environ, VARIABLE: folder}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
elif VARIABLE in os.environ:  # a plugin of pytest
    prepare()
