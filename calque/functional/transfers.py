"""Moving values between devices by hand, waiting for them, and work of the host that waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calque.base.errors import DTypeError
from calque.base.text import described, type_name
from calque.functional.common import is_tensor, method
from calque.functional.declared import public
from calque.functional.inplace import copy_
from calque.report.devices import Callback, call_on_host
from calque.run.buffer import strided
from calque.run.dispatch import raise_pending
from calque.tensor import Tensor, realise


@method("wait_to_read")
def wait_to_read(input: Tensor) -> Tensor:
    """Block until the values are there; raises the error of the computation that was to make them. Returns the tensor.

    >>> import calque
    >>> (calque.ones(2) + 1).wait_to_read()
    tensor([2., 2.])
    """
    realise(input, "wait_to_read").readable()
    raise_pending()
    return input


@method("copyto")
def copyto(input: Tensor, *targets: Any) -> Any:
    """Write the values into each of the target tensors, wherever they live; returns the last one. A device as target gives a new tensor there.

    >>> import calque
    >>> a, b = calque.zeros(2), calque.zeros(2)
    >>> _ = calque.ones(2).copyto(a, b)
    >>> a, b
    (tensor([1., 1.]), tensor([1., 1.]))
    """
    result: Any = input
    for target in targets:
        result = copy_(target, input) if is_tensor(target) else input.to(target)  # type: ignore[attr-defined]
    return result


@method("copyfrom")
def copyfrom(input: Tensor, source: Tensor) -> Tensor:
    """Write the values of `source`, wherever it lives, into the tensor."""
    return copy_(input, source)


@public(method=False)
def call_when_ready(function: Callable[..., Any], *tensors: Tensor) -> Callback:
    """Run `function` on the values of the tensors (NumPy arrays, not to be written) once they are there, on a thread beside the devices; nothing
    waits for it. `done` of the result tells whether it has run, `wait()` waits and raises what it raised; so does `calque.synchronize()`.

    >>> import calque
    >>> seen = []
    >>> calque.call_when_ready(lambda loss: seen.append(float(loss)), calque.ones(3).sum()).wait()
    >>> seen
    [3.0]
    """
    if not callable(function):
        raise DTypeError(f"[call_when_ready] expected a function, got {described(function)}; pass the function itself, not its result")
    for t in tensors:
        if not is_tensor(t):
            raise DTypeError(f"[call_when_ready] expected Tensors behind the function, got {type_name(t)}; bind other values in the function")
    views = [t._layout for t in tensors]
    buffers = [realise(t, "call_when_ready", False) for t in tensors]

    def shown(arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        return [strided(flat, view) for flat, view in zip(arrays, views, strict=True)]

    return call_on_host(function, buffers, shown)
