"""The direction of dependencies and the size limits, checked on the syntax tree of every module (nothing is imported)."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "calque"
BUDGET = tomllib.loads((ROOT / "tests" / "layering_budget.toml").read_text())

# A module may import from layers of a lower rank and from its own layer. Layers of one rank do not import each other.
RANK = {
    "base": 0,
    "ir": 1,
    "ops": 2,
    "graph": 3,
    "kernel": 4,
    "backend": 5,
    "observe": 6,  # it knows nothing of how programs are run, so that everything above may tell it
    "run": 7,
    "record": 8,
    "replay": 9,
    "report": 10,
    "profiler": 11,
    "tensor": 11,
    "autograd": 12,
    "functional": 13,
    "nn": 14,
    "optim": 15,
    "distributions": 16,
    "hybrid": 16,
    "fx": 16,
    "vision": 17,
    "audio": 17,
    "text": 17,
    "data": 16,
    "io": 16,
    "monitor": 16,
    "signal": 16,
    "parallel": 17,
    "generate": 17,  # decoding: it knows modules and hybridized calls
    "exported": 17,  # above hybrid and io, which it uses, and below the facade, which offers `calque.export`
    "distributed": 17,
    "cluster": 18,  # what runs on Ray: stores that several processes share, above those of one process
    "memory": 18,  # plans and watches steps: it knows modules, optimizers and what they reach
    "utils": 18,  # PyTorch's names for things of other layers
    "calque": 19,  # the facade: calque/__init__.py and the modules beside it; what stands above uses it like a user
    "array_api": 20,
    "compat": 20,  # Calque under the name `torch`
    "train": 20,
    "tune": 21,
    "cli": 22,
    "__main__": 23,
}

# What may be imported inside a function because it is optional, or (llvmlite, ctypes) loaded at the first compile.
OPTIONAL = {
    "llvmlite", "sklearn", "matplotlib", "tensorboardX", "wandb", "rich", "PIL", "onnx", "onnxruntime", "mpi4py", "ray", "optuna",
    "pynvml", "cuda", "triton", "fsspec", "torch", "IPython", "scipy", "ml_dtypes", "safetensors",
}  # fmt: skip
ENVIRONMENT_READER = "calque/base/config.py"


@dataclass
class Module:
    """One source file: its dotted name, its syntax tree and its imports."""

    path: Path
    name: str
    tree: ast.Module
    lines: int
    edges: list[tuple[str, int, bool]] = field(default_factory=list)  # imported module or attribute, line, inside a function

    @property
    def label(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def layer(self) -> str:
        return layer_of(self.name)


def layer_of(name: str) -> str:
    """Layer of a dotted name: `calque.ir.node` -> `ir`. What has no rank of its own belongs to the facade."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANK else "calque"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node: ast.Import | ast.ImportFrom, package: list[str]) -> Iterator[str]:
    """Dotted names that an import statement brings in; `package` resolves relative imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    else:
        base = package[: len(package) - node.level + 1] if node.level else []
        prefix = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{prefix}.{alias.name}" for alias in node.names)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{node.name}" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, f"{name}." if name else prefix)


def read(path: Path) -> Module:
    source = path.read_text()
    tree = ast.parse(source, str(path))
    module = Module(path, module_name(path), tree, source.count("\n"))
    package = module.name.split(".") if path.name == "__init__.py" else module.name.split(".")[:-1]
    deferred = {id(node) for _, function in functions(tree) for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module.edges += [(name, node.lineno, id(node) in deferred) for name in imported(node, package)]
    return module


@cache
def modules() -> list[Module]:
    """All of them, read by the first test that asks: whoever only collects tests does not wait for it."""
    return [read(path) for path in sorted(PACKAGE.rglob("*.py"))]


@cache
def names() -> set[str]:
    return {module.name for module in modules()}


def target_module(name: str) -> str | None:
    """The module of this package that an imported name comes from, or None for other packages."""
    while name:
        if name in names():
            return name
        name = name.rpartition(".")[0]
    return None


def listing(found: list[str]) -> str:
    return "\n" + "\n".join(found)


def test_every_layer_has_a_rank() -> None:
    unknown = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in RANK and any(path.glob("*.py"))]
    assert not unknown, f"folders without a rank in tests/test_layering.py: {unknown}"


def test_contributors_read_the_same_order() -> None:
    """The line of layers in CONTRIBUTING.md is the table above, without what has no module yet."""
    line = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("    base < ")[1].split("\n\n")[0]
    shown = [set(part.replace(",", " ").split()) for part in f"base < {line}".split("<")]
    there = {module.layer for module in modules()} - {"__main__"}
    assert shown == [found for rank in sorted(set(RANK.values())) if (found := {name for name in there if RANK[name] == rank})]


def test_imports_point_downwards() -> None:
    wrong = []
    for module in modules():
        for name, line, _ in module.edges:
            target = target_module(name)
            if target is None or layer_of(target) == module.layer:
                continue
            if RANK[layer_of(target)] >= RANK[module.layer]:
                wrong.append(f"{module.label}:{line} ({module.layer}) imports {name} ({layer_of(target)})")
    assert not wrong, listing(wrong)


def test_no_import_cycles() -> None:
    graph = {m.name: {t for name, _, _ in m.edges if (t := target_module(name)) and t != m.name} for m in modules()}
    # A package's __init__ that gathers its own modules is no cycle unless one of them imports from it.
    state: dict[str, int] = {}
    cycles: list[str] = []

    def visit(name: str, trail: list[str]) -> None:
        state[name] = 1
        for other in sorted(graph[name]):
            if state.get(other) == 1:
                cycles.append(" -> ".join([*trail[trail.index(other) :], other]))
            elif other not in state:
                visit(other, [*trail, other])
        state[name] = 2

    for name in sorted(graph):
        if name not in state:
            visit(name, [name])
    assert not cycles, listing(cycles)


def test_imports_stand_at_the_top_of_the_file() -> None:
    budget = BUDGET["deferred"]
    wrong, used = [], set()
    for module in modules():
        for name, line, deferred in module.edges:
            if not deferred or name.split(".")[0] in OPTIONAL:
                continue
            if module.label in budget:
                used.add(module.label)
            else:
                wrong.append(f"{module.label}:{line} imports {name} inside a function")
    assert not wrong, listing(wrong)
    assert used == set(budget), f"entries of [deferred] no longer needed: {sorted(set(budget) - used)}"


def test_imports_by_name_are_rare() -> None:
    budget = BUDGET["dynamic"]
    places = {
        f"{module.label}:{node.lineno}": module.label
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and (
            getattr(node.func, "attr", None) in ("import_module", "__import__")
            or getattr(node.func, "id", None) in ("import_module", "_import_module", "__import__")
        )
    }
    wrong = [place for place, label in places.items() if label not in budget]
    assert not wrong, f"imports by name: {wrong}; use calque.base.extras.need for optional dependencies"
    unused = set(budget) - set(places.values())
    assert not unused, f"entries of [dynamic] no longer needed: {sorted(unused)}"


def test_third_party_imports_at_the_top_are_base_dependencies() -> None:
    allowed = set(sys.stdlib_module_names) | {"numpy", "ml_dtypes", "safetensors", "calque"}
    wrong = [
        f"{module.label}:{line} imports {name}"
        for module in modules()
        for name, line, deferred in module.edges
        if not deferred
        and name.split(".")[0] not in allowed
        and not (name.startswith("llvmlite") and module.label.startswith("calque/backend/cpu/"))
    ]
    assert not wrong, listing(wrong)


def test_environment_is_read_in_one_place() -> None:
    wrong = [
        f"{module.label}:{node.lineno} os.{node.attr}"
        for module in modules()
        if module.label != ENVIRONMENT_READER
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv", "environb", "putenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    wrong += [
        f"{module.label}:{line} imports {name}"
        for module in modules()
        for name, line, _ in module.edges
        if module.label != ENVIRONMENT_READER and name in ("os.environ", "os.getenv")
    ]
    assert not wrong, listing(wrong)


@pytest.mark.parametrize("forbidden", ["pickle", "marshal", "shelve", "dill", "cloudpickle"])
def test_files_are_never_unpickled(forbidden: str) -> None:
    budget = BUDGET["between_processes"] if forbidden == "pickle" else {}
    places = {
        f"{module.label}:{line}": module.label
        for module in modules()
        if module.layer in ("io", "data", "train")
        for name, line, _ in module.edges
        if name.split(".")[0] == forbidden
    }
    wrong = [place for place, label in places.items() if label not in budget]
    assert not wrong, f"{forbidden} imported in{listing(wrong)}"
    assert set(budget) <= set(places.values()), "entries of [between_processes] no longer needed"


def over(limit: int, sizes: dict[str, int], budget: dict[str, dict[str, object]]) -> list[str]:
    """Entries above their limit, entries of the budget without a reason, and entries that are not needed."""
    found = [f"{name}: {size} lines, limit {limit}" for name, size in sizes.items() if size > limit and name not in budget]
    for name, entry in budget.items():
        allowed = entry.get("lines")
        assert isinstance(allowed, int), f"budget of {name} needs lines = number"
        if not entry.get("reason"):
            found.append(f"{name}: the budget gives no reason")
        if sizes.get(name, 0) <= limit:
            found.append(f"{name}: {sizes.get(name, 0)} lines, its budget of {allowed} is no longer needed")
        elif sizes[name] > allowed:
            found.append(f"{name}: {sizes[name]} lines, budget {allowed}")
    return found


def test_files_stay_small() -> None:
    sizes = {module.label: module.lines for module in modules()}
    wrong = over(BUDGET["limits"]["file_lines"], sizes, BUDGET["files"])
    assert not wrong, listing(wrong)


def test_functions_stay_small() -> None:
    sizes = {
        f"{module.label}::{name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules()
        for name, node in functions(module.tree)
    }
    wrong = over(BUDGET["limits"]["function_lines"], sizes, BUDGET["functions"])
    assert not wrong, listing(wrong)


def defined(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Functions, classes and values at the top of a module. What a decorator registers is used by it; a protocol describes what others have."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            protocol = isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
            if not node.decorator_list and not protocol:
                yield node.name, node.lineno
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((n.id, node.lineno) for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))


def mentioned(module: Module) -> Iterator[str]:
    """Names that a module uses, hands on (an import into a package's face, or under another name) or lists as strings."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.asname or module.path.name == "__init__.py")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.split(r"[ =]", node.value) if module.label == "calque/compat/handed_on.py" else (node.value,)  # a table of names


def test_nothing_is_left_over() -> None:
    """What no module mentions any more is deleted; a test alone keeps nothing alive. The facade is there for users."""
    used = {name for module in modules() for name in mentioned(module)}
    left = {
        f"{module.label}::{name}": f"{module.label}:{line} {name} is used nowhere in calque/"
        for module in modules()
        for name, line in defined(module.tree)
        if module.layer != "calque" and name not in used and not name.startswith("__")
    }
    needless = [f"{name}: the budget names what is used or gone" for name in BUDGET["unused"] if name not in left]
    wrong = [text for name, text in left.items() if name not in BUDGET["unused"]] + needless
    assert not wrong, listing(wrong)


# The rooms of the CPU backend, lowest first.
ROOMS = ("compile", "text", "loops", "contract", "code", "team", "program", "backend")
CPU_BACKEND = "calque/backend/cpu/"


def room_of(name: str) -> str:
    """The room of a file of the CPU backend, or of the module that an import names: `calque.backend.cpu.<room>...`."""
    return name.replace("/", ".").removeprefix(CPU_BACKEND.replace("/", ".")).removesuffix(".py").split(".")[0]


def test_rooms_of_the_cpu_backend_point_downwards() -> None:
    """No file of a room imports one of a room above it."""
    wrong = []
    for module in modules():
        if module.label.startswith(CPU_BACKEND) and not module.label.endswith("cpu/__init__.py"):
            rank = ROOMS.index(room_of(module.label))
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calque.backend.cpu"):
                    whole = node.module == "calque.backend.cpu"
                    above = [room for room in ([a.name for a in node.names] if whole else [room_of(node.module)]) if ROOMS.index(room) > rank]
                    wrong += [f"{module.label}:{node.lineno} imports {room}" for room in above]
    assert not wrong, listing(wrong)


# Parameters with these names are of a type of ours; where they are `Any`, nothing checks what is handed over, nor that no layer uses a higher one's.
TYPES = {"trace", "plan", "buffer", "storage", "edge", "program", "schedule", "macro", "capture", "task", "node", "t"}
# So are these where nothing comes from a user as it is.
TYPES_WITHIN = TYPES | {
    "node", "op", "layout", "view", "t", "frame", "entry", "test", "state", "root", "dtype", "progress", "leaf", "target", "optimizer", "device",
    "spec", "form",
}  # fmt: skip
ABOVE = {"array_api", "compat", "fx"}  # they have other libraries' words for theirs: a node of `fx` is none of the graph
WITHIN = {"ops", "observe", "run", "record", "replay", "hybrid", "optim", "autograd", "kernel", "graph", "backend", "memory"}


def untyped(module: Module) -> Iterator[tuple[str, str]]:
    """Parameters named like a type of ours that are `Any`: each by its function, and where that is."""
    names = TYPES_WITHIN if module.layer in WITHIN else TYPES
    for name, function in functions(module.tree):
        for parameter in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]:
            if parameter.arg in names and parameter.annotation is not None and ast.unparse(parameter.annotation) == "Any":
                yield f"{module.label}::{name}({parameter.arg})", f"{module.label}:{parameter.lineno} {name}({parameter.arg})"


def test_types_that_exist_are_named() -> None:
    """Those that cannot have one are in the budget, each with its reason."""
    found = {key: place for module in modules() if module.layer not in ABOVE for key, place in untyped(module)}
    wrong = [place for key, place in found.items() if key not in BUDGET["untyped"]]
    wrong += [f"{key}: has its type by now, or is gone" for key in BUDGET["untyped"] if key not in found]
    assert not wrong, listing(wrong)
    assert all(len(reason.split()) > 3 for reason in BUDGET["untyped"].values())


# The checks themselves: each must see the mistake it is there for.


def test_the_checks_see_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "calque"
    for folder in ("base", "ir", "io"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").write_text("")
    (package / "base" / "a.py").write_text("from calque.ir import b\n\nLEFT = 1\n")
    text = "import os\nfrom ..base import a\ndef f():\n    import calque.io\n    return os.environ\n"
    (package / "ir" / "b.py").write_text(text)
    (package / "io" / "c.py").write_text("import pickle, torch\ndef g(trace: Any, plan: int): g\n" + "\n" * 700)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    small = [read(path) for path in sorted(package.rglob("*.py"))]
    monkeypatch.setitem(globals(), "modules", lambda: small)
    monkeypatch.setitem(globals(), "names", lambda: {module.name for module in small})
    for check, words in [
        (test_imports_point_downwards, ["calque/base/a.py:1", "calque/ir/b.py:4"]),
        (test_no_import_cycles, ["calque.base.a -> calque.ir.b -> calque.base.a"]),
        (test_imports_stand_at_the_top_of_the_file, ["calque/ir/b.py:4 imports calque.io"]),
        (test_third_party_imports_at_the_top_are_base_dependencies, ["calque/io/c.py:1 imports torch"]),
        (test_environment_is_read_in_one_place, ["calque/ir/b.py:5 os.environ"]),
        (lambda: test_files_are_never_unpickled("pickle"), ["calque/io/c.py:1"]),
        (test_files_stay_small, ["calque/io/c.py: 702 lines"]),
        (test_types_that_exist_are_named, ["calque/io/c.py:2 g(trace)"]),
        (test_nothing_is_left_over, ["calque/base/a.py:3 LEFT is used nowhere", "calque/ir/b.py:3 f is used nowhere"]),
    ]:
        with pytest.raises(AssertionError) as caught:
            check()
        for word in words:
            assert word in str(caught.value)


def test_tests_do_without_pytorch() -> None:
    """A test module that imports PyTorch says first that it is skipped without it."""
    wrong = [text for path in sorted((ROOT / "tests").rglob("test_*.py")) for text in loads_pytorch(path)]
    assert not wrong, listing(wrong)


def loads_pytorch(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            loaded = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if any(name == "torch" or name.startswith(("torch.", "tests.oracle.")) for name in loaded):  # what helps the oracle imports it
                yield f"{path.relative_to(ROOT)}:{node.lineno} imports PyTorch; write torch = pytest.importorskip('torch') before it"
        elif "importorskip" in ast.unparse(node):
            return


def test_a_test_that_needs_pytorch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    skipped = "torch = pytest.importorskip('torch')\nimport torch\n"
    for text, found in (("import torch.nn\n", 1), ("import os\nfrom tests.oracle.compare import close\n", 1), (skipped, 0)):
        (tmp_path / "a.py").write_text(text)
        assert len([*loads_pytorch(tmp_path / "a.py")]) == found
