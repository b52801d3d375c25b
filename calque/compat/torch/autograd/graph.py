"""`torch.autograd.graph`: what is saved for a backward pass is a value of the program, and is not handed to Python on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from calque.autograd.grad_fn import GradFn as Node
from calque.compat.refused import refused

__all__ = ["Node", "disable_saved_tensors_hooks", "save_on_cpu", "saved_tensors_hooks"]

saved_tensors_hooks = refused("torch.autograd.graph.saved_tensors_hooks")


@contextlib.contextmanager
def save_on_cpu(pin_memory: bool = False, device_type: str = "cuda") -> Iterator[None]:
    """A block in which what is saved for a backward pass is kept in the memory of the processor. It always is."""
    yield


@contextlib.contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """A block in which `saved_tensors_hooks` is refused. It always is."""
    yield
