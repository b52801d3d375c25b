"""From a schedule to a run."""

from typing import TYPE_CHECKING, Any

from calque.base.on_demand import on_first_use

if TYPE_CHECKING:
    from calque.backend.cpu.program import direct as direct
    from calque.backend.cpu.program import limits as limits
    from calque.backend.cpu.program import link as link
    from calque.backend.cpu.program import sized as sized

# A process that runs what others have planned and compiled needs none of them.
_part = on_first_use(__name__, {"direct": "", "limits": "", "link": "", "sized": ""})


def __getattr__(name: str) -> Any:
    return _part(name)
