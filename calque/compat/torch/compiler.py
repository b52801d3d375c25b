"""`torch.compiler`: switches of PyTorch's compiler of bytecode. Everything is compiled here, and nothing has to be told to be."""

from __future__ import annotations

from typing import Any

import calque
from calque.compat.refused import Settings, as_it_is, no, nothing, refused

__all__ = [
    "allow_in_graph", "assume_constant_result", "compile", "config", "cudagraph_mark_step_begin", "disable", "get_default_backend", "is_compiling",
    "is_dynamo_compiling", "is_exporting", "list_backends", "load_compiled_function", "nested_compile_region", "reset", "save_cache_artifacts",
    "set_default_backend", "set_enable_guard_collectives", "set_stance", "substitute_in_graph", "wrap_numpy", "_is_compiling_flag",
]  # fmt: skip

compile = calque.compile
config = Settings("torch.compiler.config", job_id=None, dynamic_sources="", unbacked_sources="")
allow_in_graph = assume_constant_result = nested_compile_region = wrap_numpy = as_it_is
is_compiling = is_dynamo_compiling = is_exporting = no
_is_compiling_flag = False
cudagraph_mark_step_begin = reset = set_enable_guard_collectives = nothing
load_compiled_function = refused("torch.compiler.load_compiled_function")


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """The function: it runs as written unless `calque.compile` is asked for, and then with the same results."""
    return fn if fn is not None else as_it_is


def list_backends(exclude_tags: Any = ("debug", "experimental")) -> list[str]:
    """The names that `torch.compile(backend=...)` knows for what it does."""
    return ["calque"]


def get_default_backend() -> str:
    """What `torch.compile` uses."""
    return "calque"


def set_default_backend(backend: Any) -> None:
    """There is one backend: any is accepted."""


def save_cache_artifacts() -> None:
    """None: compiled programs are kept on disk by themselves (`calque cache`)."""


def substitute_in_graph(original_fn: Any, *, can_constant_fold_through: bool = False, skip_signature_check: bool = False) -> Any:
    """A decorator that changes nothing: functions are called, not read."""
    return as_it_is


class set_stance:
    """Ask for another way of compiling from now on, in a block or in a function. Results are the same in each, and this changes nothing."""

    def __init__(self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: Any = None) -> None:
        known = ("default", "eager_then_compile", "aot_eager_then_compile", "force_eager", "eager_on_recompile", "fail_on_recompile")
        if stance not in known:
            raise RuntimeError(f"[compiler.set_stance] expected one of {', '.join(known)}, got {stance!r}; pass 'default'")

    def __call__(self, fn: Any) -> Any:
        return fn

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass
