"""Micro-batch pipelines: the parts of a module that live on different devices work on different pieces of the batch at the same time.

Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (2019). Nothing is scheduled here: the pieces
are recorded one after the other, every copy between devices starts what was recorded for the first, and the engine runs what is ready. The
backward pass does the same in reverse order of the pieces.
"""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError
from calque.base.text import shown, type_name
from calque.functional.common import is_tensor
from calque.nn.module import Module
from calque.nn.parallel.primitives import gather, number_of_parts, rebuilt
from calque.record.recorder import flush


def _pieces(value: Any, wanted: int, count: int) -> list[Any]:
    """`count` pieces of every tensor inside, as `chunk` cuts it into at most `wanted`; what is no tensor, or has no dims, goes to all."""
    if is_tensor(value):
        return list(T.chunk(value, wanted, 0)) if value._layout.ndim else [value] * count
    if isinstance(value, (tuple, list)) and value:
        return [rebuilt(value, items) for items in zip(*[_pieces(v, wanted, count) for v in value], strict=True)]
    if isinstance(value, dict) and value:
        rows = zip(*[_pieces(v, wanted, count) for v in value.values()], strict=True)
        return [dict(zip(value, items, strict=True)) for items in rows]
    return [value] * count


def _first(value: Any) -> Any:
    while not is_tensor(value):
        if not isinstance(value, (tuple, list, dict)) or not value:
            return None
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value


class Pipeline(Module):
    """See `pipeline`. The module is the attribute `module`."""

    def __init__(self, module: Any, micro_batches: int) -> None:
        super().__init__()
        if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
            raise ArgumentError(f"[pipeline] expected a positive number of micro-batches, got {shown(micro_batches)}; 4 per device is a good start")
        if not callable(module):
            raise ArgumentError(f"[pipeline] expected a module, got {type_name(module)}")
        self.module = module
        self.micro_batches = micro_batches

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's result for the whole batch, computed piece by piece."""
        wanted = self.micro_batches
        count = number_of_parts("pipeline", (inputs, kwargs), wanted)
        outputs = []
        for positional, named in zip(_pieces(inputs, wanted, count), _pieces(kwargs, wanted, count), strict=True):
            outputs.append(self.module(*positional, **named))
            flush("pipeline")
        example = _first(outputs[0])
        if example is None:
            raise ArgumentError(f"[pipeline] expected the module to return tensors, got {type_name(outputs[0])}")
        return gather(outputs, example._layout.device)


def pipeline(module: Any, micro_batches: int) -> Pipeline:
    """A module that runs `module`, whose parts live on different devices (its `forward` moves the activations with `.to(device)`), on
    `micro_batches` pieces of the batch (dim 0 of every tensor), so that the devices work at the same time. Results and gradients are those
    of the whole batch, as long as the module treats the samples independently; batch normalisation uses the statistics of each piece, and
    a module that returns one number (a loss) returns one per piece. With m pieces and d devices of equal work, each is busy
    m / (m + d - 1) of the time.

    >>> import calque
    >>> from calque import nn
    >>> calque.set_logical_devices(2)
    >>> class Halves(nn.Module):
    ...     def __init__(self):
    ...         super().__init__(first=nn.Linear(4, 8).to("cpu:0"), second=nn.Linear(8, 2).to("cpu:1"))
    ...     def forward(self, x):
    ...         return self.second(self.first(x).relu().to("cpu:1"))
    >>> model = calque.parallel.pipeline(Halves(), micro_batches=4)
    >>> tuple(model(calque.ones(8, 4, device="cpu:0")).shape)
    (8, 2)
    >>> calque.set_logical_devices(1)
    """
    return Pipeline(module, micro_batches)
