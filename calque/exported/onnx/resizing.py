"""Resize: along each dim a product with a matrix of weights that depends on the sizes alone; where sizes are free, functions of ours with the same
coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque import functional as T
from calque.exported.onnx.values import Call, Refused, tensor_of
from calque.functional.common import cast
from calque.ir.symint import SymInt
from calque.nn import functional as F

_COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resize(c: Call) -> Any:
    """A Resize of any version, and Upsample."""
    x = c.t(0)
    rank = x._layout.ndim
    mode = c.text("mode", "nearest", ("nearest", "linear", "bilinear", "cubic"))
    axes = c.axes(c.attrs["axes"], rank) if c.attrs.get("axes") else list(range(rank))
    old = c.node.op == "Upsample" or c.opset < 11
    scales, lengths = _wanted(c, axes, old)
    if lengths is None:
        lengths = [_scaled(x.shape[a], s) for a, s in zip(axes, scales, strict=True)]
    elif c.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        lengths, scales = _kept(c, x, axes, lengths)
    changed = [k for k, a in enumerate(axes) if not _equal(lengths[k], x.shape[a]) or scales[k] != 1 or _crops(c)]
    if any(isinstance(s, SymInt) for k in changed for s in (lengths[k], x.shape[axes[k]])):
        return _free(c, x, mode, {axes[k]: scales[k] for k in changed}, {axes[k]: lengths[k] for k in changed}, old)
    outside: Any = None
    for k in changed:
        x, beyond = _along(c, x, axes[k], len(axes), k, int(lengths[k]), scales[k], mode, old)
        if beyond is not None and beyond.any():
            shape = tuple([-1 if d == axes[k] else 1 for d in range(rank)])
            mask = T.reshape(tensor_of(beyond), shape)
            outside = mask if outside is None else outside | mask
    return x if outside is None else T.where(outside, T.full((), c.attr("extrapolation_value", 0.0), dtype=x._layout.dtype), x)


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b)


def _crops(c: Call) -> bool:
    return bool(c.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize")


def _scaled(size: Any, scale: float) -> Any:
    if float(scale).is_integer():
        return size * int(scale)
    if isinstance(size, SymInt):
        raise Refused(f"a scale of {scale} for a free size; fix the size")
    return int(np.floor(np.float32(size) * np.float32(scale)))


def _wanted(c: Call, axes: list[int], old: bool) -> tuple[list[Any], list[Any] | None]:
    """(scales, sizes or None)."""
    x = c.t(0)
    place = 1 if old else 2
    if "scales" in c.attrs:
        scales = c.attrs["scales"]
    elif c.has(place) and c.value(place).shape != (0,):
        scales = c.known(place, "the scales").reshape(-1).tolist()
    else:
        lengths = c.ints(3, "the sizes")
        if len(lengths) != len(axes):
            raise Refused(f"sizes {lengths} for {len(axes)} dims")
        return [n / x.shape[a] if x.shape[a] != n else 1.0 for n, a in zip(lengths, axes, strict=True)], lengths
    if not isinstance(scales, list) or len(scales) != len(axes) or not all(isinstance(s, float | int) and 0 < s < 1e6 for s in scales):
        raise Refused(f"scales {scales} for {len(axes)} dims")
    return scales, None


def _kept(c: Call, x: Any, axes: list[int], lengths: list[Any]) -> tuple[list[Any], list[Any]]:
    """Sizes and scales where all dims are scaled alike."""
    policy = c.text("keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
    ratios = [n / x.shape[a] for n, a in zip(lengths, axes, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [int(np.floor(scale * x.shape[a] + 0.5)) for a in axes], [scale] * len(axes)


def _along(c: Call, x: Any, axis: int, count: int, k: int, length: int, scale: float, mode: str, old: bool) -> tuple[Any, Any]:
    """(x resized along one dim, which positions lie outside of it)."""
    size = int(x.shape[axis])
    if not size or length > 1 << 20:
        raise Refused(f"a size of {length} from one of {size}")
    kind = "asymmetric" if old else c.text("coordinate_transformation_mode", "half_pixel", _COORDINATES)
    roi = (0.0, 1.0)
    if kind == "tf_crop_and_resize":
        flat = c.known(1, "the part").reshape(-1).tolist()
        roi = (flat[k], flat[k + count])
    at = coordinates(kind, length, size, scale, roi)
    beyond = (at < 0) | (at > size - 1) if kind == "tf_crop_and_resize" else None
    if mode == "nearest":
        how = "floor" if old else c.text("nearest_mode", "round_prefer_floor", _NEAREST)
        near = {"round_prefer_floor": np.ceil(at - 0.5), "round_prefer_ceil": np.floor(at + 0.5), "floor": np.floor(at), "ceil": np.ceil(at)}[how]
        return T.index_select(x, axis, tensor_of(np.clip(near, 0, size - 1).astype(np.int64))), beyond
    weights = _weights(c, at, size, scale, mode)
    matrix = cast(tensor_of(weights.astype(np.float32)), x._layout.dtype)
    return T.movedim(T.matmul(T.movedim(x, axis, -1), T.t(matrix)), -1, axis), beyond


def coordinates(kind: str, length: int, size: int, scale: float, roi: tuple[float, float]) -> Any:
    """Where the positions of the result lie in the input."""
    out = np.arange(length, dtype=np.float64)
    if kind == "half_pixel" or (kind == "pytorch_half_pixel" and length > 1):
        return (out + 0.5) / scale - 0.5
    if kind == "half_pixel_symmetric":
        adjustment = length / (scale * size)
        return size / 2 * (1 - adjustment) + (out + 0.5) / scale - 0.5
    if kind == "align_corners":
        return out * (size - 1) / (length - 1) if length > 1 else out * 0
    if kind == "tf_crop_and_resize":
        first, last = roi[0] * (size - 1), roi[1] * (size - 1)
        return first + out * ((last - first) / (length - 1)) if length > 1 else out + (first + last) / 2
    return out * 0 if kind == "pytorch_half_pixel" else out / scale


def _weights(c: Call, at: Any, size: int, scale: float, mode: str) -> Any:
    """The matrix (length, size) of linear or cubic interpolation."""
    narrow = min(scale, 1.0) if c.attr("antialias", 0) else 1.0
    a = c.attr("cubic_coeff_a", -0.75)
    reach = 2 if mode == "cubic" else 1
    span = int(np.ceil(reach / narrow))
    first = np.floor(at).astype(np.int64)
    found = np.zeros((len(at), size))
    taps = np.arange(-span + 1, span + 1)[None] + first[:, None]
    distance = np.abs(at[:, None] - taps) * narrow
    w = np.maximum(1 - distance, 0) if mode != "cubic" else cubic(distance, a)
    inside = (taps >= 0) & (taps < size)
    if c.attr("exclude_outside", 0):
        w = np.where(inside, w, 0)
    w = w / w.sum(1, keepdims=True)
    np.add.at(found, (np.repeat(np.arange(len(at)), taps.shape[1]), np.clip(taps, 0, size - 1).reshape(-1)), w.reshape(-1))
    return found


def cubic(x: Any, a: float) -> Any:
    """Weights of cubic convolution at these distances.

    Source: Keys, "Cubic convolution interpolation for digital image processing" (1981).
    """
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _free(c: Call, x: Any, mode: str, scales: dict[int, Any], lengths: dict[int, Any], old: bool) -> Any:
    """Where sizes are free: repeated elements, or `interpolate`."""
    kind = "asymmetric" if old else c.attrs.get("coordinate_transformation_mode", "half_pixel")
    whole = all(not isinstance(s, SymInt) and float(s).is_integer() for s in scales.values())
    near = "floor" if old else c.attrs.get("nearest_mode", "round_prefer_floor")
    if mode == "nearest" and whole and (kind, near) in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
        for a, s in scales.items():
            shape = tuple(x.shape)
            x = T.expand(T.unsqueeze(x, a + 1), (*shape[: a + 1], int(s), *shape[a + 1 :]))
            x = T.reshape(x, (*shape[:a], shape[a] * int(s), *shape[a + 1 :]))
        return x
    rank = x._layout.ndim
    if mode in ("linear", "bilinear", "cubic") and not c.attr("antialias", 0) and min(scales) >= 2 and kind in (
        "half_pixel", "pytorch_half_pixel", "align_corners",
    ):  # fmt: skip
        name = {3: "linear", 4: "bilinear", 5: "trilinear"}.get(rank) if mode != "cubic" else "bicubic" if rank == 4 else None
        if name is not None:
            size = [lengths.get(a, x.shape[a]) for a in range(2, rank)]
            return F.interpolate(x, size, mode=name, align_corners=kind == "align_corners")
    raise Refused(f"mode={mode!r} with coordinates {kind!r} of a free size; fix the size")
