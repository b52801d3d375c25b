"""Schedules worth timing for a contraction; which one is taken by default is the cost model's business."""

from __future__ import annotations

from dataclasses import replace

from calque.backend.cpu.contract.params import Contraction, Conv2d, Conv2dInputGrad, Conv2dWeightGrad

PIXELS = (128, 512, 1024)
"""Block sizes of weight gradients beside the usual one."""


def candidates(model: Contraction) -> dict[str, Contraction]:
    """Labels and schedules, the cost model's ("model") first; its alone where nothing else applies."""
    found: dict[str, Contraction] = {"model": model}
    if not isinstance(model, Conv2d | Conv2dInputGrad | Conv2dWeightGrad):
        return found
    plain = replace(model, direct=True)
    if model.winograd:
        found["direct"] = plain
    found["patches"] = replace(plain, patches=True)
    if isinstance(plain, Conv2dWeightGrad) and plain.tiled:
        for pixels in PIXELS:
            other = replace(plain, pixels=pixels)
            if other.tiled and other.tiled != plain.tiled:
                found[f"pixels {pixels}"] = other
    return found
