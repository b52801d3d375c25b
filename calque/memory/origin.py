"""`nan_origin`: where a value that is not finite comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base.config import settings
from calque.base.errors import ArgumentError, NonFiniteError
from calque.base.text import type_name
from calque.memory.stage import Stage
from calque.report.devices import synchronize


def nan_origin(step: Callable[..., Any], *inputs: Any) -> NonFiniteError | None:
    """The first operation of `step(*inputs)` that makes a NaN, or an infinity of finite numbers, that reaches a result: an error whose text names the
    operation, its line, the position and the ranges of its operands. None if all is finite.

    The step is run once, operation by operation by the reference interpreter (`CALQUE_CHECKED=1` does that all the time). Afterwards values,
    gradients, optimizers and streams of random numbers are as before, so call it with the inputs of the step that went wrong, before the next one,
    and set streams of random numbers back if masks matter.

    >>> import calque
    >>> print(calque.memory.nan_origin(lambda x: (x - 2).log().sum(), calque.tensor([1.0, 3.0])))
    [log] expected finite values in checked mode, got 1 NaN of 2 in the result at ..., first at index (0,); operand 0: shape (2,), min -1, max 1; ...
    """
    if not callable(step):
        raise ArgumentError(f"[nan_origin] expected a function, got {type_name(step)}; pass the function and its inputs")
    synchronize()
    stage = Stage(step, inputs)
    values = [(t, t.detach().clone()) for t in {id(t._storage): t for t in stage.reached.tensors.values()}.values()]
    synchronize()
    before, settings.checked = settings.checked, True
    try:
        result = step(*inputs)  # else nobody would want it
        synchronize()
        del result
    except NonFiniteError as error:
        return error.with_traceback(None)
    finally:
        settings.checked = before
        stage.put_back()
        for t, copy in values:
            t._storage.buffer, t._storage.trace, t._storage.home = copy._storage.buffer, None, None
    return None
