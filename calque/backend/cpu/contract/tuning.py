"""Schedules worth timing for a contraction; which one is taken by default is the cost model's business."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from calque.backend.cpu.contract.params import Contraction, Conv2d, Conv2dInputGrad, Conv2dWeightGrad
from calque.backend.cpu.contract.product_words import Matmul
from calque.backend.cpu.contract.schedule import CUT_COLUMNS, CUT_ROWS, PACK_ALWAYS, READ_ALWAYS, ProductSchedule

PIXELS = (128, 512, 1024)
"""Block sizes of weight gradients beside the usual one."""
BLOCKS = (256, 384, 512, 800)
"""Longest blocks of k of a product."""
FEW = 16
"""Products with so few rows or columns have ways of their own, with one schedule."""
NEAR = 1 << 20
"""Elements of both operands up to which reading them in place is worth a trial."""


def candidates(model: Contraction) -> dict[str, Contraction]:
    """Labels and schedules, the cost model's ("model") first; its alone where nothing else applies."""
    found: dict[str, Contraction] = {"model": model}
    if isinstance(model, Matmul):
        return found | {label: replace(model, schedule=schedule) for label, schedule in _schedules(model.folded()).items()}
    if not isinstance(model, Conv2d | Conv2dInputGrad | Conv2dWeightGrad) or model.pairs:
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


def _schedules(product: Matmul) -> dict[str, ProductSchedule]:
    """What may be fixed for a product, by label; block lengths that cut k alike are one candidate."""
    found: dict[str, ProductSchedule] = {}
    if min(product.rows, product.columns) <= FEW:
        return found
    alone = prod(product.batch) == 1
    if alone:
        found = {"rows": ProductSchedule(cut=CUT_ROWS), "columns": ProductSchedule(cut=CUT_COLUMNS)}
    lengths = {-(-product.depth // block): block for block in BLOCKS}
    if len(lengths) > 1:
        found |= {f"blocks of {block}": ProductSchedule(block=block) for block in sorted(lengths.values())}
    if product.b_strides[1] == 1 and product.depth * (product.rows + product.columns) <= NEAR:
        whole = ProductSchedule(block=product.depth, near=READ_ALWAYS)
        found |= {"packed": ProductSchedule(near=PACK_ALWAYS), "in place": whole}
        if alone:
            found["columns in place"] = replace(whole, cut=CUT_COLUMNS)
    return found
