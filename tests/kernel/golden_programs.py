"""About ten small programs whose kernels are kept as text in `golden/`."""

from __future__ import annotations

from calque.base.dtypes import bfloat16, float32, int64
from calque.ir.program import Program
from tests.kernel.programs import Build
from tests.kernel.test_fusion import adam, layer_norm, mean, plus, softmax


def elementwise() -> Program:
    b = Build()
    x, y = b.input((4, 6)), b.input((6,))
    return b.program(b.relu(plus(b, b.mul(x, y), b.scalar())))


def transposed_read() -> Program:
    b = Build()
    x, y = b.input((4, 6)), b.input((6, 4))
    return b.program(plus(b, b.transpose(x, 1, 0), y))


def column_sum() -> Program:
    b = Build()
    x = b.input((8, 6))
    return b.program(b.sum(b.mul(x, x), attrs=((0,), False)))


def softmax_rows() -> Program:
    b = Build()
    return b.program(softmax(b, b.input((4, 10)), 1))


def layer_norm_rows() -> Program:
    b = Build()
    y, _, scale = layer_norm(b, b.input((8, 32)), b.input((32,)), b.input((32,)), 32)
    return b.program(y, scale)


def batch_statistics() -> Program:
    b = Build()
    x = b.input((4, 16, 5, 5))
    mu = mean(b, x, (0, 2, 3), 100, False)
    return b.program(b.sub(x, b.view(mu, (1, 16, 1, 1), (16, 1, 1, 1))), mu)


def adam_update() -> Program:
    return adam(Build(), [(7, 5)])


def argmax_rows() -> Program:
    b = Build()
    return b.program(b.argmax(b.input((4, 6)), attrs=((1,), False)))


def embedding() -> Program:
    b = Build()
    return b.program(b.mul(b.index_select(b.input((10, 4)), b.input((2, 3), int64), attrs=(0,)), b.scalar()))


def embedding_gradient() -> Program:
    b = Build()
    zeros = b.full(b.constant(0.0), attrs=((10, 4),))
    return b.program(b.index_add(zeros, b.input((2, 3), int64), b.input((2, 3, 4)), attrs=(0,)))


def concatenation() -> Program:
    b = Build()
    x = b.input((4, 5))
    return b.program(b.cat(b.exp(x), x, attrs=(1,)))


def row_update() -> Program:
    b = Build()
    x, v, at = b.input((5, 4)), b.input((4,)), b.scalar(int64)
    return b.program(b.update_at(x, b.neg(v), at, attrs=((4,), (1,))), donated={0}, updates=((0, 0),))


def pooling_windows() -> Program:
    b = Build()
    windows = b.view(b.input((3, 12, 36)), (3, 6, 18, 2, 2), (432, 72, 2, 36, 1))
    return b.program(b.amax(windows, attrs=((3, 4), False)), b.argmax(windows, attrs=((3, 4), False)))


def pooling_gradient() -> Program:
    b = Build()
    g, place = (b.view(b.input((18, 18), t), (18, 1, 18, 1), (18, 0, 1, 0)) for t in (float32, int64))
    spread = b.where(b.eq(place, b.iota(attrs=((2, 1, 2), int64))), g, b.constant(0.0))
    return b.program(b.reshape(spread, (36, 36)))


def bfloat16_chain() -> Program:
    b = Build()
    x = b.input((8,), bfloat16)
    return b.program(b.cast(b.mul(plus(b, x, x), x), attrs=(float32,)))


GOLDEN = (
    elementwise, transposed_read, column_sum, softmax_rows, layer_norm_rows, batch_statistics, adam_update, argmax_rows,
    embedding, embedding_gradient, concatenation, row_update, bfloat16_chain, pooling_windows, pooling_gradient,
)  # fmt: skip
