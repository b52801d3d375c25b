"""`torch.nn.modules.module`: names beside `Module`."""

from __future__ import annotations

from typing import Any

import calque
from calque.compat.refused import no
from calque.nn.global_hooks import (
    register_module_backward_hook,
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from calque.nn.hooks import EVERYWHERE, HookDict
from calque.nn.module import Module

__all__ = [
    "_EXTRA_STATE_KEY_SUFFIX", "Module", "_IncompatibleKeys", "_addindent", "_global_buffer_registration_hooks",
    "_global_module_registration_hooks", "_global_parameter_registration_hooks", "_has_any_global_hook", "register_module_backward_hook",
    "register_module_buffer_registration_hook", "register_module_forward_hook", "register_module_forward_pre_hook",
    "register_module_full_backward_hook", "register_module_full_backward_pre_hook", "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]  # fmt: skip

_EXTRA_STATE_KEY_SUFFIX = "_extra_state"
_IncompatibleKeys: Any = type(calque.nn.Identity().load_state_dict({}))
_has_any_global_hook = no
_global_parameter_registration_hooks, _global_buffer_registration_hooks, _global_module_registration_hooks = (
    EVERYWHERE.setdefault(name, HookDict()) for name in ("parameter", "buffer", "module")
)


def _addindent(s_: str, numSpaces: int) -> str:
    return s_.replace("\n", "\n" + " " * numSpaces)
