"""Automatic differentiation, with the names of `torch.autograd`."""

from calque.autograd import functional, profiler
from calque.autograd.anomaly import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from calque.autograd.api import backward, grad
from calque.autograd.checkpoint import checkpoint
from calque.autograd.function import Function, once_differentiable
from calque.autograd.gradcheck import gradcheck, gradgradcheck
from calque.autograd.modes import enable_grad, inference_mode, no_grad, set_grad_enabled
from calque.tensor import Tensor as Variable

__all__ = [
    "Function", "Variable", "backward", "checkpoint", "detect_anomaly", "enable_grad", "functional", "grad", "gradcheck",
    "gradgradcheck",
    "inference_mode", "is_anomaly_enabled", "no_grad", "once_differentiable", "profiler", "set_detect_anomaly", "set_grad_enabled",
]  # fmt: skip
