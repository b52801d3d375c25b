"""`Exported`: a module whose calls run a program that was recorded, without the Python that it came from."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from calque.autograd.modes import no_grad
from calque.base.errors import AutogradError, ExportError
from calque.base.text import shown
from calque.exported import tree
from calque.exported.graph import Entry, Places, held
from calque.exported.play import play
from calque.exported.writing import save_exported
from calque.functional.common import is_tensor
from calque.functional.math import with_formula
from calque.ir.text import format_program
from calque.nn.module import Module
from calque.nn.parameter import Parameter
from calque.observe.source import warn_user
from calque.record.recorder import local
from calque.tensor import TENSOR_TYPES


class Part(Module):
    """A part of an exported model: programs read the values that stand here, and know nothing of modules."""

    def _replace(self, registry: str, name: str, value: Any) -> None:
        if registry == "_modules" and name in self._modules:
            raise ExportError(
                f"[Exported] expected the part {name!r} to stay, got another module in its place, of which the exported program would read nothing; "
                "load its values with load_state_dict(), or export the model again"
            )
        super()._replace(registry, name, value)


class Exported(Part):
    """What `calque.export` gives and `calque.load_exported` reads: a `Module` with the parameters and buffers of what was exported, by their
    names, whose calls run the recorded program. It needs none of the source that it was made from.

    A call takes arguments like those of the export: tensors of the same dtypes, and of the same sizes but for those that are free; numbers and texts
    among them were fixed. Results are those of the function, bit for bit where the same kernels run. Gradients flow to arguments and parameters: it
    can be trained further. State that the function changes (running statistics, caches, the state of a random generator, which is a buffer called
    `generator`) are buffers that calls change as well. With several entries, `exported.NAME(...)` calls one of them.

    >>> import calque
    >>> net = calque.nn.Linear(4, 2)
    >>> exported = calque.export(net, (calque.ones(3, 4),), dynamic={"input": {0: "batch"}})
    >>> tuple(exported(calque.ones(7, 4)).shape), [name for name, _ in exported.named_parameters()]
    ((7, 2), ['weight', 'bias'])
    """

    def __init__(self, entries: dict[str, Entry], values: list[tuple[tuple[str, ...], Any, bool]], mode: bool | None) -> None:
        """`values`: (names, tensor, whether a state dict has it) of all that the entries read; `mode`: the `training` of what was exported."""
        super().__init__()
        self.__dict__["_entries"], self.__dict__["_mode"] = entries, mode
        self.training = bool(mode)
        state: dict[str, Places] = {}
        for names, value, persistent in values:
            places: Places = {}
            for name in names:
                owner, last = owner_of(self, name, bool(mode))
                is_parameter = isinstance(value, Parameter)
                registry = owner._parameters if is_parameter else owner._buffers
                registry[last] = value
                if not is_parameter and not persistent:
                    owner._non_persistent_buffers_set.add(last)
                places[name] = (registry, last)
            state[names[0]] = places
        self.__dict__["_state"] = state

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of what can be called."""
        return tuple(self.__dict__["_entries"])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The entry called "forward", or the only one."""
        entries = self.__dict__["_entries"]
        if "forward" not in entries and len(entries) > 1:
            first = next(iter(entries))
            raise ExportError(f"[Exported] expected one of the entries {', '.join(entries)} to be called by name; write exported.{first}(...)")
        return self._run(entries["forward"] if "forward" in entries else next(iter(entries.values())), args, kwargs)

    @property
    def call_signature(self) -> inspect.Signature:
        """What `forward` takes: the arguments of its entry."""
        entries = self.__dict__["_entries"]
        names = (entries.get("forward") or next(iter(entries.values()))).arguments[1]
        kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD if name.isidentifier() else inspect.Parameter.VAR_POSITIONAL for name in names]
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            return inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])
        return inspect.Signature([inspect.Parameter(name, kind) for name, kind in zip(names, kinds, strict=True)])

    def entry(self, name: str) -> Callable[..., Any]:
        """The entry of this name, to be called."""
        found = self.__dict__["_entries"].get(name)
        if found is None:
            raise ExportError(f"[Exported] expected the name of an entry, one of {', '.join(self.entries)}, got {shown(name)}")
        return lambda *args, **kwargs: self._run(found, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        entries = self.__dict__.get("_entries", {})
        return self.entry(name) if name in entries else super().__getattr__(name)

    def train(self, mode: bool = True) -> Any:
        """Set `training`, which the program does not look at: dropout and batch norm do what they did when it was exported. Warns if that is another
        mode."""
        fixed = self.__dict__["_mode"]
        if fixed is not None and bool(mode) is not fixed:
            warn_user(
                f"[Exported] this was exported in {'training' if fixed else 'evaluation'} mode, and dropout and batch norm go on as then; "
                f"export the model after .{'train' if mode else 'eval'}() as well"
            )
        return super().train(mode)

    # ------------------------------------------------------------------------------------------------------------ running

    def _run(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = arguments_of(entry, args, kwargs)
        sizes = entry.sizes(tensors)
        variant, attributes = entry.variant(sizes)
        state = self.__dict__["_state"]
        read = held(entry, variant, state, tensors)
        count = len(entry.outputs)
        why = entry.without(tensors, read) if entry.cuts and local.state.grad else ""
        if entry.grad and not why:
            values = play(variant, attributes, [*tensors, *read])
            for k in entry.still:
                values[k] = values[k].detach()
        else:
            with no_grad():
                values = play(variant, attributes, [*tensors, *read])
        if entry.grad and why:
            inputs = [*tensors, *read]
            values[:count] = [v if k in entry.still else _without_gradient(entry.name, why, v, inputs) for k, v in enumerate(values[:count])]
        if variant.writes:
            with no_grad():
                before = dict(zip(variant.reads, read, strict=True))
                for name, value in zip(variant.writes, values[count:], strict=True):
                    before[name].copy_(value)
        return tree.build(entry.results, values[:count])

    def extra_repr(self) -> str:
        lines = []
        for entry in self.__dict__["_entries"].values():
            lines.append(f"{entry.name}({', '.join(map(str, entry.inputs))}) -> {', '.join(map(str, entry.outputs))}")
            lines += [f"  {d.text}" for d in entry.dims]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return "Exported(\n  " + self.extra_repr().replace("\n", "\n  ") + "\n)"

    def text(self, entry: str | None = None) -> str:
        """The programs of an entry (default: all), as text: one operation a line, with the line of the source that it came from."""
        parts = []
        for found in self.__dict__["_entries"].values():
            if entry in (None, found.name):
                for k, variant in enumerate(found.variants):
                    lead = f"# {found.name}" + (f", variant {k}" if len(found.variants) > 1 else "")
                    parts.append(lead + "\n" + format_program(variant.program))
        return "\n".join(parts)

    def onnx(
        self, f: str | os.PathLike[str] | BinaryIO, *, entry: str | None = None, opset: int = 18, input_names: Any = None, output_names: Any = None
    ) -> None:
        """Write an entry (default: "forward", or the first) as an ONNX model, with dynamic axes for free sizes; needs the package `onnx`.

        Values that the entry changes become inputs and, with `_out` behind their names, outputs of the model. opset: 18 to 26 (views as other
        types need 26). Names of inputs and outputs are those of the export, unless lists of others are given. Raises ExportError, with the line, for
        an operation that ONNX does not have, and for an entry that does something else for some sizes.
        """
        import_module("calque.exported.onnx.write").write_onnx(self, f, entry, opset, (input_names, output_names))

    def stablehlo(self, entry: str | None = None, sizes: dict[str, int] | None = None) -> str:
        """An entry (default: "forward", or the first) as the text of a StableHLO module, for XLA and what else reads it; needs the package
        `jax`, which writes it.

        sizes: a number for each free size. The arguments of its function `main` are the entry's inputs, then the parameters and buffers that it
        reads, its results those of the entry, then new values of the buffers that it writes; comments at its beginning name them in order. Indices
        are not checked as they are here. Raises ExportError, with the line, for what is computed by NumPy and for types that are only stored,
        ArgumentError for sizes that are missing or out of range.
        """
        return str(import_module("calque.exported.stablehlo").stablehlo_text(self, entry, sizes or {}))

    def compile(  # type: ignore[override]
        self, folder: str | os.PathLike[str], target: str = "", *, name: str = "model", sizes: dict[str, int | list[int]] | None = None,
        cpu: str = "", weights: str = "inside", entries: list[str] | None = None, linker: str | bool = True, wheel: bool = False,
    ) -> list[Path]:  # fmt: skip
        """Write a native library that runs without Python: an object file, a static library, headers for C and C++, a package for CMake, and a
        shared library where a linker is there. Returns the files. No compiler is needed: LLVM writes the object.

        folder: where; it is made if it is missing. target: "x86_64-linux-gnu" and others, by default this machine's system. name: of the library,
        the beginning of all its functions. sizes: for each free size, the number, or the numbers, that the library has a program for. cpu: the
        processor, "native" for this one; for x86-64 by default "x86-64-v3+x86-64-v4" (AVX2 and AVX-512), of which the library chooses when an
        instance is made. weights: "inside" of the library, or in a "file" beside it. entries: which (default: all). linker: a command, or False for
        no shared library. wheel: write a wheel for Python as well, which needs NumPy alone. One thread runs a program. Outputs are those of the
        export bit for bit where the kernels are the same: for this processor, on one thread.

        Raises ExportError for operations that NumPy computes, with their line, and ArgumentError for an unknown target, cpu or size.
        """
        found = {key: entry for key, entry in self.__dict__["_entries"].items() if entries is None or key in entries}
        missing = [key for key in entries or [] if key not in found]
        if missing:
            raise ExportError(f"[compile] expected names of entries, some of {', '.join(self.entries)}, got {shown(missing[0])}")
        state = self.__dict__["_state"]
        values = {name: value for entry in found.values() for v in entry.variants for name, value in zip(v.reads, held(entry, v, state), strict=True)}
        build = import_module("calque.exported.native.build")
        files: list[Path] = build.compile_exported(found, values, folder, target, name, sizes, cpu, weights, linker, wheel)
        return files

    def save(self, f: str | os.PathLike[str] | BinaryIO) -> None:
        """Write programs, parameters and buffers to one file, which `calque.load_exported` reads: the programs as text, in a safetensors file with a
        checksum for each tensor and for the rest. It holds no code; it appears under its name complete or not at all."""
        save_exported(self, f)


def _without_gradient(entry: str, why: str, value: Any, inputs: list[Any]) -> Any:
    """A result whose gradient is refused: that of the operations is not that of the function."""
    if value._layout.dtype.category < 2 or any(value is x for x in inputs):
        return value

    def backward(_: Any) -> tuple[Any, ...]:
        raise AutogradError(
            f"[{entry}] expected a function whose gradients are those of its operations, got one that {why}; train the function that was exported, "
            "or call the export under no_grad(), or with arguments and parameters that require none (requires_grad_(False))"
        )

    return with_formula("ExportedBackward0", tuple([x for x in inputs if x._requires_grad]), lambda: value, backward, straight=True)


def owner_of(root: Module, name: str, mode: bool) -> tuple[Module, str]:
    """The module, made if it is missing, that has the value of this name, and its last part."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root._modules[part] = Part()
            root._modules[part].training = mode
        root = root._modules[part]  # type: ignore[assignment]
    return root, last


def arguments_of(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors of a call, in the order of the entry's inputs; raises where the call is not like the exported one."""
    _, names, wanted = entry.arguments
    if len(args) > len(names):
        raise ExportError(f"[{entry.name}] expected at most {len(names)} arguments ({', '.join(names)}), got {len(args)}")
    given = dict(zip(names, args, strict=False))
    twice = [name for name in kwargs if name in given]
    unknown = [name for name in kwargs if name not in names]
    if twice or unknown:
        what = f"{twice[0]!r} twice" if twice else f"{unknown[0]!r}"
        raise ExportError(f"[{entry.name}] expected arguments {', '.join(names)}, got {what}")
    given |= kwargs
    if len(args) == len(wanted) and all(w == ["tensor", k] for k, w in enumerate(wanted)) and TENSOR_TYPES.issuperset(map(type, args)):
        return list(args)
    found: list[tuple[str, Any]] = []
    for name, description in zip(names, wanted, strict=True):
        if name not in given:
            if _has_tensor(description):
                raise ExportError(f"[{entry.name}] expected an argument {name!r}, got none; pass one like that of the export")
            continue
        got = tree.describe(given[name], name, found)
        different = tree.difference(description, got, name)
        if different:
            raise ExportError(f"[{entry.name}] {different}; call it as it was called when it was exported")
    return [t for _, t in found if is_tensor(t)]


def _has_tensor(description: Any) -> bool:
    kind = description[0]
    if kind in ("list", "tuple"):
        return any(map(_has_tensor, description[1]))
    return any(map(_has_tensor, description[2])) if kind == "dict" else kind == "tensor"
