"""Operations that an executable lets the host compute: what the device cannot, by its definition in NumPy (`calque.xla.fallback`).

JAX calls back on a thread for which types of 64 bits do not exist, and would round them: so wide numbers travel as words of 32 bits, both ways.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.backend.ref.interpret import run_node
from calque.ir.program import Node

Value = Any


def on_host(jax: Any, node: Node, operands: list[Value]) -> Value:
    """The value of a node, computed by the host whenever the executable comes to it."""
    shapes, types = [x.shape for x in operands], [np.dtype(x.dtype) for x in operands]
    shape, dtype = tuple(node.shape), np.dtype(node.dtype.np)
    wide = _wide(dtype)
    carried = jax.ShapeDtypeStruct((*shape, dtype.itemsize // 4), np.uint32) if wide else jax.ShapeDtypeStruct(shape, dtype)

    def called(*values: Any) -> Any:
        given = [_read(np.asarray(v), s, t) for v, s, t in zip(values, shapes, types, strict=True)]
        with np.errstate(all="ignore"):
            found = np.array(run_node(node, given, (), ()), dtype, order="C").reshape(shape)
        return np.frombuffer(found.tobytes(), np.uint32).reshape(carried.shape) if wide else found

    found = jax.pure_callback(called, carried, *(_words(jax, x) for x in operands))
    return _value(jax, found, dtype) if wide else found


def _wide(dtype: np.dtype[Any]) -> bool:
    return dtype.itemsize >= 8


def _words(jax: Any, x: Value) -> Value:
    """Words of 32 bits of wide numbers, in a last dimension."""
    dtype = np.dtype(x.dtype)
    if not _wide(dtype):
        return x
    if dtype.kind == "c":
        x = jax.numpy.stack([x.real, x.imag], -1)
    words = jax.lax.bitcast_convert_type(x, np.uint32)
    return words.reshape((*words.shape[:-2], 4)) if dtype == np.complex128 else words


def _read(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """The numbers of `_words`."""
    return np.frombuffer(array.tobytes(), dtype).reshape(shape) if _wide(dtype) else array


def _value(jax: Any, words: Value, dtype: np.dtype[Any]) -> Value:
    """Numbers of a wide type from their words."""
    if dtype.kind != "c":
        return jax.lax.bitcast_convert_type(words, dtype)
    if dtype == np.complex128:
        words = words.reshape((*words.shape[:-1], 2, 2))
    parts = jax.lax.bitcast_convert_type(words, np.float32 if dtype == np.complex64 else np.float64)
    return jax.lax.complex(parts[..., 0], parts[..., 1])
