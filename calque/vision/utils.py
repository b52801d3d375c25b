"""Images side by side, and in files. Names as in `torchvision.utils`.

>>> import calque
>>> calque.vision.utils.make_grid(calque.zeros(4, 3, 8, 8), nrow=2).shape
torch.Size([3, 22, 22])
"""

from __future__ import annotations

import math
import sys
from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base import dtypes as dt
from calque.base.errors import DTypeError
from calque.base.text import type_name
from calque.functional.blame import publish as _publish
from calque.functional.common import is_tensor
from calque.tensor import Tensor
from calque.vision.io import pillow_speaks
from calque.vision.transforms.functional import to_pil_image

__all__ = ["make_grid", "save_image"]


def _scaled(x: Tensor, limits: Any) -> Tensor:
    low, high = limits if limits is not None else (float(x.min().item()), float(x.max().item()))
    return (x.clamp(low, high) - low) / max(high - low, 1e-5)


@no_grad()
def make_grid(
    tensor: Any, nrow: int = 8, padding: int = 2, normalize: bool = False, value_range: tuple[float, float] | None = None, scale_each: bool = False,
    pad_value: float = 0.0,
) -> Tensor:  # fmt: skip
    """(N, C, H, W), or a list of images, as one image of `nrow` columns. normalize: from `value_range` (or what is there) to 0 to 1."""
    if not is_tensor(tensor) and not (isinstance(tensor, list) and all(is_tensor(t) for t in tensor)):
        raise DTypeError(f"[make_grid] expected a Tensor or a list of Tensors, got {type_name(tensor)}; stack the images")
    images = T.stack(tensor, 0) if isinstance(tensor, list) else tensor
    while images.ndim < 4:
        images = images.unsqueeze(0)
    if images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    if normalize:
        images = T.stack([_scaled(x, value_range) for x in images.unbind(0)]) if scale_each else _scaled(images, value_range)
    if images.shape[0] == 1:
        return images.squeeze(0)
    count, channels, height, width = images.shape
    columns = min(nrow, count)
    rows = math.ceil(count / columns)
    grid = T.full((channels, (height + padding) * rows + padding, (width + padding) * columns + padding), pad_value, dtype=images.dtype)
    for k in range(count):
        y, x = (k // columns) * (height + padding) + padding, (k % columns) * (width + padding) + padding
        grid[:, y : y + height, x : x + width] = images[k]
    return grid


@no_grad()
def save_image(tensor: Any, fp: Any, format: str | None = None, **kwargs: Any) -> None:
    """Write `make_grid(tensor, **kwargs)`, values from 0 to 1, to a file."""
    values = (make_grid(tensor, **kwargs) * 255).add(0.5).clamp(0, 255).to(dt.uint8)
    with pillow_speaks("save_image"):
        to_pil_image(values).save(fp, format=format)


_publish(sys.modules[__name__])
