"""What models are built from other models with. Names as in `torchvision.models._utils`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from calque import functional as T
from calque import nn
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.tensor import Tensor
from calque.vision.models.mobilenet import divisible as _make_divisible

__all__ = ["IntermediateLayerGetter", "_make_divisible", "relative_places"]


class IntermediateLayerGetter(nn.ModuleDict):
    """The children of a model one after the other, up to the last one whose result is wanted: x -> {new name: result}.

    model: a module whose `forward` calls its children once each, in the order in which they were given to it; what `forward` does between
    them is left out. return_layers: from names of children to the names that their results get. Raises ArgumentError for a name that is not
    one of a child.

    >>> import calque
    >>> from calque.vision.models import resnet18
    >>> body = IntermediateLayerGetter(resnet18(), {"layer1": "fine", "layer3": "coarse"})
    >>> [(name, tuple(x.shape)) for name, x in body(calque.zeros(1, 3, 64, 64)).items()]
    [('fine', (1, 64, 16, 16)), ('coarse', (1, 256, 4, 4))]
    """

    def __init__(self, model: nn.Module, return_layers: Mapping[str, str]) -> None:
        wanted = {str(name): str(new) for name, new in return_layers.items()}
        children = dict(model.named_children())
        missing = [name for name in wanted if name not in children]
        if missing:
            raise ArgumentError(f"[IntermediateLayerGetter] return_layers are not present in model: expected some of {', '.join(children)}, "
                                f"got {shown(missing[0])}")  # fmt: skip
        last = max((k for k, name in enumerate(children) if name in wanted), default=-1)
        super().__init__(OrderedDict(list(children.items())[: last + 1]))
        self.return_layers = wanted

    def forward(self, x: Tensor) -> Any:
        """The wanted results under their new names, in the order in which they are computed."""
        found: OrderedDict[str, Tensor] = OrderedDict()
        for name, module in self.items():
            x = module(x)
            if name in self.return_layers:
                found[self.return_layers[name]] = x
        return found


def relative_places(*sizes: int) -> Tensor:
    """Which row of a table of biases belongs to two places of a window of these sides: (n, n) of int64, n their product.

    The table has a row for each way in which two places can lie apart, (2 size - 1) along each side, the last side the fastest.

    >>> relative_places(1, 2).tolist()
    [[1, 0], [2, 1]]
    """
    places = np.indices(sizes).reshape(len(sizes), -1)
    rows: Any = 0
    for along, size in zip(places[:, :, None] - places[:, None, :], sizes):
        rows = rows * (2 * size - 1) + along + size - 1
    return T.tensor(rows.astype(np.int64))  # type: ignore[no-any-return]
