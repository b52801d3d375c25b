"""From a loop kernel to LLVM IR."""

from typing import TYPE_CHECKING, Any

from calque.base.on_demand import on_first_use

if TYPE_CHECKING:
    from calque.backend.cpu.loops.emit import emit_kernel as emit_kernel

_part = on_first_use(__name__, {"emit": "emit_kernel"})


def __getattr__(name: str) -> Any:
    return _part(name)
