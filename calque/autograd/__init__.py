"""Automatic differentiation, with the names of `torch.autograd`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from calque.autograd import functional, profiler
from calque.autograd.anomaly import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from calque.autograd.api import backward, grad
from calque.autograd.checkpoint import checkpoint
from calque.autograd.function import Function, once_differentiable
from calque.autograd.gradcheck import gradcheck, gradgradcheck
from calque.autograd.modes import enable_grad, inference_mode, no_grad, set_grad_enabled
from calque.autograd.variable import Variable
from calque.base.on_demand import on_first_use as _on_first_use

__all__ = [
    "Function", "Variable", "backward", "checkpoint", "detect_anomaly", "enable_grad", "functional", "grad", "gradcheck",
    "gradgradcheck",
    "inference_mode", "is_anomaly_enabled", "no_grad", "once_differentiable", "profiler", "set_detect_anomaly", "set_grad_enabled",
]  # fmt: skip

if _TYPE_CHECKING:
    from calque.autograd import forward_ad as forward_ad
    from calque.autograd import graph as graph


_part = _on_first_use(__name__, {"forward_ad": "", "graph": ""})


def __getattr__(name: str) -> object:
    return _part(name)
