"""Names that a program asks for and Calque has not: what is said about them, and the list of them that `calque run --report` prints."""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from calque.base.dataclass import dataclass
from calque.base.text import LONGEST, clipped, nearest
from calque.compat.finder import VERSIONS

FILE = Path(__file__).with_name("pytorch_names.txt")
VERSION = "2.13"
CLASSES = {  # whose attributes the file lists
    "torch.Tensor": "torch.Tensor", "calque.tensor.Tensor": "torch.Tensor", "calque.nn.module.Module": "torch.nn.Module",
}  # fmt: skip

# The beginning of a name -> what to use instead. The longest beginning that fits is taken.
INSTEAD = {
    "torch._": "it is private to PyTorch: use the public function that it stands behind",
    "torch.__future__": "module.to(...) changes the parameters that are there: make a copy of the module first, where the old ones are still needed",
    "torch.export": "calque.export(model, inputs) gives a program that is saved and run without its source",
    "torch.onnx": "calque.export(model, inputs).onnx('model.onnx') writes an ONNX model",
    "torch.jit": "calque.compile(model) records calls and replays them",
    "torch.distributed": "there are collectives, DistributedDataParallel and ZeroRedundancyOptimizer: see docs/distributed.md",
    "torch.distributed.autograd": "calls in other processes are not there, nor gradients through them: see docs/distributed.md",
    "torch.distributed.pipelining": "calque.parallel.pipeline(module, micro_batches) keeps several devices of one process busy",
    "torch.distributed.rpc": "there are send, recv and objects: see docs/distributed.md; calque.kvstore has parameter servers",
    "torch.cuda": "XLA allocates, orders and compiles by itself what a device does: see docs/devices.md",
    "torch.cuda.CUDAGraph": "calque.compile(step) replays a whole step without Python",
    "torch.cuda.graph": "calque.compile(step) replays a whole step without Python",
    "torch.cuda.make_graphed_callables": "calque.compile(function) replays its calls without Python",
    "torch.cuda.set_per_process_memory_fraction": "XLA_PYTHON_CLIENT_MEM_FRACTION in the environment says how much of a GPU's memory JAX takes",
    "torch.cuda.utilization": "nvidia-smi tells it",
    "torch.cuda.temperature": "nvidia-smi tells it",
    "torch.cuda.power_draw": "nvidia-smi tells it",
    "torch.cuda.clock_rate": "nvidia-smi tells it",
    "torch.cuda.comm": "torch.nn.parallel has scatter, replicate and gather",
    "torch.accelerator": "see docs/devices.md",
    "torch.xpu": "there is no such device: ask torch.xpu.is_available() first, or use device='cpu'",
    "torch.mps": "there is no such device: ask torch.backends.mps.is_available() first, or use device='cpu'",
    "torch.mtia": "there is no such device: use device='cpu'",
    "torch.ao": "calque.nn.utils.quantize_(model) keeps weights as int8; torch.autocast('cpu') computes in bfloat16",
    "torch.quantization": "calque.nn.utils.quantize_(model) keeps weights as int8; torch.autocast('cpu') computes in bfloat16",
    "torch.quant": "quantised tensors are not there: calque.nn.utils.quantize_(model) keeps weights as int8",
    "torch.sparse": "docs/sparse.md lists what sparse tensors have: convert with .to_dense()",
    "torch.nested": "pad to one length and pass a mask, or use torch.nn.utils.rnn.pack_padded_sequence",
    "torch.utils.flop_counter": "calque.explain(f) and calque.profiler.profile count the operations of a program",
    "torch.autograd.profiler": "torch.profiler.profile measures, and prints tables by key_averages()",
    "torch.PyTorchFile": "torch.load and torch.save(..., format='pt') read and write such files",
    "torch.autograd.graph": "saved_tensors_hooks, get_gradient_edge and register_multi_grad_hook are there",
    "torch.nn.attention.flex_attention": "use torch.nn.functional.scaled_dot_product_attention with a mask",
    "torch.utils.cpp_extension": "extensions in C++ are compiled against PyTorch's own headers: write the function with tensor operations",
    "torch.utils.data.datapipes": "use torch.utils.data.Dataset or IterableDataset",
    "torch.package": "import the model's Python code and load its state_dict",
    "torch.overrides": "a class with __torch_function__ is asked; modes, which would see every call, are not there",
    "torch.fx.experimental": "shapes are those of the call: run the module again with others",
    "torch.fx.passes": "change the graph with torch.fx.Graph and Node",
}


@functools.cache
def pytorch_names() -> dict[str, frozenset[str]]:
    """PyTorch's modules and listed classes with their public names, as `tests/oracle/surface.py` found them in the installed PyTorch."""
    found = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        module, colon, names = line.partition(":")
        if colon and not line.startswith("#"):
            found[module] = frozenset(names.split())
    return found


def pytorch_has(module: str, name: str) -> bool:
    """Whether PyTorch has a public name, or a module of that name, in one of its modules."""
    names = pytorch_names()
    return name in names.get(module, ()) or f"{module}.{name}" in names


@dataclass
class Asked:
    """A name that was asked for: how often, and where first."""

    place: str
    times: int = 1


class Record:
    """What this process has asked for and not got."""

    asked: dict[str, Asked] = {}
    lock = threading.Lock()


def _passed(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(("calque.compat", "importlib")) or "<frozen" in frame.f_code.co_filename


def _place() -> str:
    """File and line of whoever asks: the first frame that is neither ours nor Python's import system."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _passed(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown"


def note(name: str) -> str:
    """Put a dotted name on the list; where it was asked for."""
    place = _place()
    with Record.lock:
        found = Record.asked.get(name)
        if found is None:
            Record.asked[name] = Asked(place)
        else:
            found.times += 1
    return place


def instead_of(name: str, known: Any = ()) -> str:
    """What to use where a name is missing."""
    fits = [beginning for beginning in INSTEAD if name.startswith(beginning)]
    if fits:
        return INSTEAD[max(fits, key=len)]
    near = nearest(name.rpartition(".")[2], known, 0.75)
    if near:
        return f"{name.rpartition('.')[0]}.{near} is there"
    return "docs/missing-names.md lists what is missing; write it with the functions that are there"


def text_of(module: str, name: str, known: Any = ()) -> str:
    """The message about a missing name of a module or class."""
    whole = f"{module}.{clipped(name, LONGEST)}"
    if pytorch_has(module, name) or name.startswith("_"):
        whose = "a private name of PyTorch's" if name.startswith("_") else f"one that PyTorch {VERSION} has and Calque has not"
        return f"[{whole}] expected a name that Calque has, got {whose}; {instead_of(whole, known)}"
    if not whole.startswith("torch."):
        return f"[{whole}] expected a name that Calque has, got another; dir({module}) lists those that are there"
    near = nearest(name, known, 0.6)
    hint = f"is {module}.{near} meant?" if near else f"dir({module}) lists those that are there"
    return f"[{whole}] expected a name of PyTorch or Calque, got one that neither has; {hint}"


def refusal(module: str, name: str, known: Any) -> AttributeError:
    """The error about a name that a module has not; it goes on the list."""
    place = note(f"{module}.{clipped(name, LONGEST)}")
    return AttributeError(f"{text_of(module, name, known)} (asked for at {place})", name=name)


def explain(error: BaseException) -> None:
    """Add to an error that leaves a program what the missing name behind it is, where the text of Python's does not say so."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in VERSIONS:
        module = error.name or ""
        names = [name.removeprefix(module + ".") for name in Record.asked if name.startswith(module + ".")]
        wanted = getattr(error, "name_from", None) or next((name for name in reversed(names) if f"'{name}'" in str(error)), None)
        if wanted is None:
            module, _, wanted = module.rpartition(".")
        _add(error, text_of(module, wanted))
    elif isinstance(error, AttributeError) and error.obj is not None and error.name:
        for owner in type(error.obj).__mro__:
            path = CLASSES.get(f"{owner.__module__}.{owner.__qualname__}")
            if path is not None and pytorch_has(path, error.name):
                _add(error, text_of(path, error.name, dir(owner)))


def _add(error: BaseException, note: str) -> None:
    """Add a note to an error that may have been shown before."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def report() -> str:
    """The list, one line for each name: those that PyTorch has first."""
    asked = dict(Record.asked)
    if not asked:
        return "Every name of torch that was asked for is there."
    rows = []
    for name, found in asked.items():
        module, _, last = name.rpartition(".")
        rows.append((not pytorch_has(module, last), name, found))
    lines = ["Names of torch that were asked for and are not there (a program that asks with hasattr may go on without):"]
    for nobody, name, found in sorted(rows, key=lambda row: row[:2]):
        private = any(part.startswith("_") for part in name.split("."))
        whose = " (private to PyTorch)" if private else " (PyTorch has it neither)" if nobody and name.startswith("torch.") else ""
        lines.append(f"  {name}{whose}  {found.times} {'time' if found.times == 1 else 'times'}, first at {found.place}")
    return "\n".join(lines)
