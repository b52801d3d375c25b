"""One word, one meaning: on the way from a tensor to native code and back no two classes have the same name, nor two files, but for the pairs below;
in the rooms between tensors and backends, where each function is read beside those of the other rooms, no two functions either.

Only what a reader meets on that way is compared. Names that PyTorch gives (`nn.Module`, `optim.Adam`), names that begin with `_`, and layers that
stand above and speak of other things are left out.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WAY = (
    "base", "ir", "ops", "graph", "kernel", "backend", "observe", "run", "record", "replay", "report", "tensor.py", "autograd", "functional", "optim",
    "hybrid",
)  # fmt: skip

BETWEEN = ("observe", "run", "record", "replay", "report", "tensor.py", "autograd", "hybrid")

# Class names that stand for the same thing in each of their files.
CLASSES = {
    "Buffer": "memory that holds one value: as a schedule numbers it (kernel), and as it is when the program runs (run)",
    "Counters": "what a file of the backend counts for `calque.stats()`",
    "Event": "PyTorch's word twice: `profiler` events and `torch.Event`",
}
# File names: the same subject, seen by several layers.
FILES = {
    "attention": "the operation, and its native code",
    "backend": "the backend of a kind of devices",
    "builder": "an `ir.scalar` builder of each backend",
    "cache": "a cache with a bound: in memory, and of object files on the disk",
    "complex": "complex numbers: primitives, and the functions that record them",
    "contract": "contractions: their records, and their launches",
    "copies": "copies of values: the functions, and their recording",
    "emit": "loop kernels: bodies of primitives, and LLVM IR of them",
    "handles": "handles on storages: functions of theirs, and those that a recording meets",
    "int4": "the product with weights of four bits, and its native code",
    "graph": "nodes of a backward pass: those of a hybridized call, and PyTorch's names for what programs do with them",
    "history": "the graph behind values",
    "host": "what NumPy computes in the place of a kernel",
    "index": "arithmetic of indices, and primitives that index",
    "inplace": "writes over what is there: functions, and results that take the place of an operand",
    "interpret": "computing node by node: a program, and a schedule",
    "memory": "where values lie: functions that ask, the plan of a schedule, the allocator, what is said when there is none",
    "plans": "programs that can run: in this process, and on the disk",
    "random": "random bits: primitives, and the functions that record them",
    "recurrent": "the operation, and its native code",
    "routines": "what is computed by one call: primitives, gradients, on a device",
    "rules": "rules of operations: gradients, and those of sparse tensors",
    "small": "small operands: kernels of the compiled module, and native contractions",
    "streams": "queues of work: native ones, and PyTorch's",
    "structure": "what is left of a thing without its values: of a program, and of arguments",
    "target": "the processor: what it has, and the vectors that contractions use of it",
    "tensor": "the tensor class, and the sparse one",
    "text": "text of values in messages, and of programs",
    "windows": "windows of signals, and windows of memory that XLA reads",
    "engine": "what works through a graph: tasks of the queues, and nodes of a backward pass",
    "direct": "without the detour: convolutions without a transformation, replays without a trace",
    "schedule": "an order that is fixed beforehand: launches of a program, tiles of a contraction, learning rates",
}
# Functions that other files call.
FUNCTIONS = {
    "possible": "whether the modes of a thread allow it: computing at once, appending gradients without their rules",
    "verify": "`CALQUE_VERIFY`: the long way beside the short one",
    **dict.fromkeys(("grad", "hessian", "jvp", "vjp"), "PyTorch's name twice: `torch.autograd` and `torch.func`"),
}


def sources(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """The files on the way."""
    for place in WAY:
        path = root / "calque" / place
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            yield file.relative_to(root / "calque").as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def classes(path: str, tree: ast.Module) -> Iterator[str]:
    yield from (node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))


def functions(path: str, tree: ast.Module) -> Iterator[str]:
    if path.split("/")[0] in BETWEEN:
        yield from (node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"))


def files(path: str, tree: ast.Module) -> Iterator[str]:
    name = path.rpartition("/")[2].removesuffix(".py")
    if not name.startswith("_"):
        yield name


def doubled(root: Path, words: Callable[[str, ast.Module], Iterator[str]], allowed: dict[str, str]) -> list[str]:
    """Words that stand in several files, and entries of the table that are not needed."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in sources(root):
        for word in words(path, tree):
            found[word].append(path)
    several = {word: paths for word, paths in found.items() if len(paths) > 1}
    wrong = [f"{word}: {', '.join(paths)}" for word, paths in sorted(several.items()) if word not in allowed]
    return wrong + [f"{word}: not needed in the table" for word in allowed if word not in several]


@pytest.mark.parametrize(("words", "allowed"), [(classes, CLASSES), (files, FILES), (functions, FUNCTIONS)])
def test_a_word_means_one_thing(words: Callable[[str, ast.Module], Iterator[str]], allowed: dict[str, str]) -> None:
    wrong = doubled(ROOT, words, allowed)
    assert not wrong, "rename the worse one, or say in the table what both mean:\n" + "\n".join(wrong)
    assert all(len(reason.split()) > 3 for reason in allowed.values())


def test_a_second_meaning_is_found(tmp_path: Path) -> None:
    for folder, name in (("run", "Plan"), ("kernel", "Plan"), ("ir", "Other"), ("hybrid", "Plan")):
        (tmp_path / "calque" / folder).mkdir(parents=True)
        (tmp_path / "calque" / folder / "chains.py").write_text(f"class {name}: pass\nclass _Private: pass\n")
    (tmp_path / "calque" / "tensor.py").write_text("class Tensor: pass\n")
    assert doubled(tmp_path, classes, {"Tensor": "one"}) == [
        "Plan: kernel/chains.py, run/chains.py, hybrid/chains.py",
        "Tensor: not needed in the table",
    ]
    assert doubled(tmp_path, files, {}) == ["chains: ir/chains.py, kernel/chains.py, run/chains.py, hybrid/chains.py"]
