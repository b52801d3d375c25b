"""Function transforms, with PyTorch's `torch.func` names: functions of functions that differentiate them, or run them for many inputs at once.

>>> import calque
>>> def loss(w, x, y):
...     return ((x @ w - y) ** 2).sum()
>>> w, x, y = calque.ones(3), calque.eye(3), calque.zeros(3)
>>> calque.vmap(calque.func.grad(loss), in_dims=(None, 0, 0))(w, x, y)  # the gradient of every sample
tensor([[2., 0., 0.],
        [0., 2., 0.],
        [0., 0., 2.]])
"""

from typing import Any

from calque.autograd.transform.frame import frames
from calque.autograd.transform.gradients import (
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    value_and_grad,
    vjp,
)
from calque.autograd.transform.vmap import vmap
from calque.functional.blame import framed
from calque.nn.module import Module
from calque.nn.utils.stateless import functional_call, stack_module_state
from calque.tensor import Tensor

__all__ = [
    "debug_unwrap", "functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "replace_all_batch_norm_modules_", "stack_module_state", "value_and_grad", "vjp", "vmap",
]  # fmt: skip


def replace_all_batch_norm_modules_(root: Module) -> Module:
    """Have all batch norm layers of a module normalise by their batch alone, without running statistics, which no transform can write for one
    slice. Changes the module and returns it.

    >>> import calque
    >>> calque.func.replace_all_batch_norm_modules_(calque.nn.BatchNorm1d(2)).running_mean is None
    True
    """
    for module in root.modules():
        if hasattr(module, "track_running_stats") and hasattr(module, "running_mean") and "BatchNorm" in type(module).__name__:
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root


def debug_unwrap(tensor: Tensor, *, recurse: bool = True) -> Tensor:
    """What a tensor inside a transform stands for, to look at: all slices of one inside `vmap` in the first dim, the value of one that moves inside
    `jvp`; with `recurse` through all transforms around it. Anything else as it is.

    >>> import calque
    >>> shapes = []
    >>> _ = calque.vmap(lambda x: (shapes.append(calque.func.debug_unwrap(x).shape), x)[1])(calque.zeros(4, 2))
    >>> shapes
    [torch.Size([4, 2])]
    """
    found: Any = tensor
    for frame in frames():
        if not frame.mine(found):
            continue
        found = frame.unwrapped(found)
        if not recurse:
            break
    return found  # type: ignore[no-any-return]


globals().update(framed({name: globals()[name] for name in __all__}, __name__))
