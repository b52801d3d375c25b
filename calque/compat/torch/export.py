"""`torch.export`: `calque.export` under PyTorch's names. What is exported is an `Exported`, which `ExportedProgram.module()` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import calque
from calque.compat.refused import refused

__all__ = ["Dim", "ExportedProgram", "dims", "export", "load", "register_dataclass", "save"]

register_dataclass = refused("torch.export.register_dataclass")


class Dim:
    """`calque.Dim` with PyTorch's arguments. `AUTO` and `DYNAMIC`: free, with a name of its own and no limits; `STATIC`: fixed."""

    AUTO = DYNAMIC = "Dim.AUTO"
    STATIC = "Dim.STATIC"

    def __new__(cls, name: str, *, min: int | None = None, max: int | None = None) -> Any:  # type: ignore[misc]
        return calque.Dim(name, 1 if min is None else min, max)


def dims(*names: str, min: int | None = None, max: int | None = None) -> tuple[Any, ...]:
    """Several of them."""
    return tuple([Dim(name, min=min, max=max) for name in names])


class ExportedProgram:
    """What `export` gives: the program and its parameters. `module()` is to be called."""

    def __init__(self, exported: Any, inputs: Any = None) -> None:
        self._exported, self.example_inputs = exported, inputs

    def module(self, check_guards: bool = True) -> Any:
        """The `Exported`: a module that runs the program."""
        return self._exported

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("[ExportedProgram] Unable to call ExportedProgram directly. You should use `exported_program.module()` instead.")

    @property
    def state_dict(self) -> Any:
        """Parameters and buffers by name."""
        return self._exported.state_dict()

    def parameters(self) -> Iterator[Any]:
        """The parameters."""
        return self._exported.parameters()  # type: ignore[no-any-return]

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """The parameters with their names."""
        return self._exported.named_parameters()  # type: ignore[no-any-return]

    def buffers(self) -> Iterator[Any]:
        """The buffers."""
        return self._exported.buffers()  # type: ignore[no-any-return]

    def named_buffers(self) -> Iterator[tuple[str, Any]]:
        """The buffers with their names."""
        return self._exported.named_buffers()  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return f"ExportedProgram:\n{self._exported.text()}"


def export(
    mod: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, dynamic_shapes: Any = None, strict: bool = False,
    preserve_module_call_signature: tuple[str, ...] = (), prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:  # fmt: skip
    """`calque.export(mod, args, dynamic_shapes)`. The last three arguments, which choose how PyTorch traces, change nothing."""
    return ExportedProgram(calque.export(mod, args, dynamic_shapes, kwargs=kwargs), (args, kwargs or {}))


def save(ep: ExportedProgram, f: Any, *, extra_files: dict[str, Any] | None = None, opset_version: dict[str, int] | None = None) -> None:
    """Write what `calque.load_exported` reads. Raises for extra files, which it does not hold."""
    if extra_files:
        raise calque.base.errors.ArgumentError("[torch.export.save] expected no extra_files, got some: write them beside the export")
    ep.module().save(f)


def load(f: Any, *, extra_files: dict[str, Any] | None = None, expected_opset_version: dict[str, int] | None = None) -> ExportedProgram:
    """Read what `save` wrote. Files of PyTorch's, which hold its own graphs, are refused."""
    return ExportedProgram(calque.load_exported(f))
