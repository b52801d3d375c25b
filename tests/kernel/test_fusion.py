"""What is fused: the number of launches and of distinct kernels of known patterns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from calque.backend.ref.interpret import interpret as reference
from calque.base.dtypes import DType, bfloat16, float16, float32, int8, int64
from calque.ir.program import Program
from calque.kernel.interpret import interpret
from calque.kernel.memory import predicted_peak
from calque.kernel.schedule import Contract, Host, Loop, Schedule
from calque.run.pipeline import compile_program, explain_cuts
from tests.kernel.programs import Build, random_array


def compiled(program: Program, scalars: Sequence[Any] = (), tolerance: float = 1e-4) -> Schedule:
    """The schedule, after comparing its results with the reference."""
    rng = np.random.default_rng(0)
    arrays = []
    for n in program.nodes:
        if n.op.name == "input":
            whole = n.dtype.category == 1
            arrays.append(rng.integers(0, 3, n.shape).astype(n.dtype.np) if whole else random_array(rng, n.shape, n.dtype))
    schedule = compile_program(program)
    for x, y in zip(interpret(schedule, arrays, scalars), reference(program, arrays, scalars), strict=True):
        np.testing.assert_allclose(x.reshape(y.shape).astype(np.float64), y.astype(np.float64), rtol=tolerance, atol=tolerance)
    return schedule


def kernels(schedule: Schedule) -> int:
    """Number of distinct loop kernels."""
    return len({s.kernel for s in schedule.steps if isinstance(s, Loop)})


def plus(b: Build, x: int, y: int) -> int:
    return Build.add(b, "add", x, y)


def mean(b: Build, x: int, dims: tuple[int, ...], count: int, keepdim: bool = True) -> int:
    return b.mul(b.sum(x, attrs=(dims, keepdim)), b.constant(1 / count))


def softmax(b: Build, x: int, dim: int) -> int:
    e = b.exp(b.sub(x, b.amax(x, attrs=((dim,), True))))
    return b.div(e, b.sum(e, attrs=((dim,), True)))


def layer_norm(b: Build, x: int, w: int, bias: int, count: int) -> tuple[int, int, int]:
    centred = b.sub(x, mean(b, x, (1,), count))
    scale = b.rsqrt(plus(b, mean(b, b.mul(centred, centred), (1,), count), b.constant(1e-5)))
    normal = b.mul(centred, scale)
    return plus(b, b.mul(normal, w), bias), normal, scale


@pytest.mark.parametrize("slices", [4, 40])
def test_slices_of_random_numbers_are_few_kernels(slices: int) -> None:
    """Each slice asks for other positions, which are part of a kernel: 400 rows of noise were 400 kernels, and took LLVM eight seconds."""
    b = Build()
    noise = b.random_bits(b.constant(7, int64), b.constant(3, int64), attrs=((slices, 10),))
    scaled = b.mul(b.cast(b.bitwise_and(noise, b.constant(1023, int64)), attrs=(float32,)), b.constant(1 / 1024))
    rows = [b.view(scaled, (1, 10), (10, 1), 10 * k) for k in range(slices)]
    schedule = compiled(b.program(b.cat(*[b.relu(row) for row in rows], attrs=(0,))))
    assert kernels(schedule) <= 4


def test_pixels_stay_innermost_under_many_parameters_per_channel() -> None:
    """Batch norm for inference: four vectors of channels are read, but it is the image that must be walked in order."""
    b = Build()
    x = b.input((4, 16, 6, 6))
    mean_, variance, weight, bias = (b.view(b.input((16,)), (1, 16, 1, 1), (16, 1, 1, 1)) for _ in range(4))
    y = plus(b, b.mul(b.sub(x, mean_), b.mul(b.rsqrt(b.exp(variance)), weight)), bias)
    step = compiled(b.program(b.relu(y))).steps[0]
    assert isinstance(step, Loop) and step.params[: step.kernel.rank_p] == (4, 16, 36)
    assert all(a.strides[-1] == ("1" if a.strides[0] != "0" else "0") for a in step.kernel.accesses)


def test_rows_are_walked_in_order_whatever_follows_their_sum() -> None:
    """Vectors that are read once for a whole row do not outvote the matrix: down its columns the same sum took eight times as long."""
    b = Build()
    y = b.sum(b.mul(b.cast(b.input((384, 1536), int8), attrs=(float32,)), b.input((1536,))), attrs=((1,), False))
    for _ in range(5):
        y = plus(b, y, b.input((384,)))
    steps = compiled(b.program(y)).steps
    assert len(steps) == 1 and isinstance(steps[0], Loop) and steps[0].kernel.vector == "r"


@pytest.mark.parametrize("rows", [4, 384])
def test_what_is_dear_is_not_computed_for_every_row_of_a_matrix(rows: int) -> None:
    """erf of a vector before its product with a matrix: once for each of 384 rows took seven times as long as the product."""
    b = Build()
    x = b.input((1536,))
    y = b.mul(x, plus(b, b.erf(b.mul(x, b.constant(0.7))), b.constant(1.0)))
    steps = compiled(b.program(b.sum(b.mul(b.reshape(y, (1, 1536)), b.input((rows, 1536))), attrs=((1,), False)))).steps
    assert len(steps) == (2 if rows > 16 else 1)


def test_a_cheap_vector_is_computed_where_rows_need_it() -> None:
    b = Build()
    y = plus(b, b.input((140, 800)), b.reshape(plus(b, b.input((800,)), b.input((800,))), (1, 800)))
    assert len(compiled(b.program(y)).steps) == 1


def test_elementwise_chain_is_one_kernel() -> None:
    b = Build()
    x = y = b.input((5, 7))
    for _ in range(40):
        y = b.tanh(b.mul(y, x))
    s = compiled(b.program(y))
    assert len(s.steps) == 1
    assert s.arena_bytes == 0


def test_positions_are_numbered_across_rows() -> None:
    b = Build()
    place = b.cast(b.iota(attrs=((3, 5), int64)), attrs=(float32,))
    y = plus(b, b.input((5, 3)), b.transpose(place, 1, 0))  # neither order of the loop makes one row of both
    assert kernels(compiled(b.program(y))) == 1


def test_softmax_is_one_kernel() -> None:
    b = Build()
    assert len(compiled(b.program(softmax(b, b.input((4, 10)), 1))).steps) == 1


def test_softmax_over_columns_is_one_kernel() -> None:
    b = Build()
    s = compiled(b.program(softmax(b, b.input((10, 32)), 0)))
    assert len(s.steps) == 1
    assert isinstance(s.steps[0], Loop)
    assert s.steps[0].kernel.vector == "p"


def test_softmax_backward_is_one_kernel() -> None:
    b = Build()
    y, g = b.input((4, 10)), b.input((4, 10))
    inner = b.sum(b.mul(y, g), attrs=((1,), True))
    assert len(compiled(b.program(b.mul(y, b.sub(g, inner)))).steps) == 1


def test_values_known_before_the_reductions_are_stored_with_them() -> None:
    """The gradients of x * b for a row b: one loop over the rows, not one for the sum and one for the store."""
    b = Build()
    x, row, g = b.input((64, 40)), b.input((40,)), b.input((64, 40))
    s = compiled(b.program(b.mul(g, row), b.sum(b.mul(g, x), attrs=((0,), False))))
    (step,) = s.steps
    assert isinstance(step, Loop)
    assert [stage.kind for stage in step.kernel.stages if stage.kind != "point"] == ["reduce"]


@pytest.mark.parametrize("shape", [(8, 24), (6, 4)])  # a loop over R, and one that is written out
def test_memory_of_a_stored_value_does_not_serve_another_one_too(shape: tuple[int, int]) -> None:
    """tanh(y) is evaluated twice, and y's memory could hold it between, if y were not stored before."""
    b = Build()
    y = b.add("neg", b.input(shape))
    t = b.tanh(y)
    shifted = b.sub(t, b.amax(t, attrs=((1,), True)))
    compiled(b.program(y, b.sum(shifted, attrs=((1,), False))))


def test_layer_norm_is_one_kernel_forward_and_two_with_backward() -> None:
    b = Build()
    x, w, bias = b.input((8, 32)), b.input((32,)), b.input((32,))
    y, normal, scale = layer_norm(b, x, w, bias, 32)
    assert len(compiled(b.program(y, scale)).steps) == 1
    g = b.input((8, 32))
    gw = b.mul(g, w)
    dx = b.mul(scale, b.sub(b.sub(gw, mean(b, gw, (1,), 32)), b.mul(normal, mean(b, b.mul(gw, normal), (1,), 32))))
    dw, db = b.sum(b.mul(g, normal), attrs=((0,), False)), b.sum(g, attrs=((0,), False))
    assert len(compiled(b.program(y, dx, dw, db)).steps) == 2


def test_batch_norm_training_with_relu_and_running_statistics_is_one_kernel() -> None:
    b = Build()
    x = b.input((4, 16, 5, 5))
    w, bias, running_mean, running_var = (b.input((16,)) for _ in range(4))
    dims = (0, 2, 3)

    def channel(v: int) -> int:
        return b.view(v, (1, 16, 1, 1), (16, 1, 1, 1))

    mu = mean(b, x, dims, 100, False)
    centred = b.sub(x, channel(mu))
    var = mean(b, b.mul(centred, centred), dims, 100, False)
    normal = b.mul(centred, channel(b.rsqrt(plus(b, var, b.constant(1e-5)))))
    y = b.relu(plus(b, b.mul(normal, channel(w)), channel(bias)))
    keep, new = b.constant(0.9), b.constant(0.1)
    next_mean = plus(b, b.mul(running_mean, keep), b.mul(mu, new))
    next_var = plus(b, b.mul(running_var, keep), b.mul(var, new))
    s = compiled(b.program(y, next_mean, next_var, donated={3, 4}, updates=((1, 3), (2, 4))))
    assert len(s.steps) == 1
    assert [s.buffers[o].donor for o in s.outputs] == [-1, 3, 4]


def adam(b: Build, shapes: Sequence[tuple[int, ...]]) -> Program:
    lr = b.scalar()
    outputs: list[int] = []
    updates: list[tuple[int, int]] = []
    for number, shape in enumerate(shapes):
        p, g, m, v = (b.input(shape) for _ in range(4))
        m2 = plus(b, b.mul(m, b.constant(0.9)), b.mul(g, b.constant(0.1)))
        v2 = plus(b, b.mul(v, b.constant(0.99)), b.mul(b.mul(g, g), b.constant(0.01)))
        p2 = b.sub(p, b.div(b.mul(m2, lr), plus(b, b.sqrt(b.abs(v2)), b.constant(1e-8))))
        for output, place in ((p2, 0), (m2, 2), (v2, 3)):
            updates.append((len(outputs), 4 * number + place))
            outputs.append(output)
    return b.program(*outputs, donated=set(range(4 * len(shapes))), updates=tuple(updates))


def test_adam_is_one_kernel_structure_and_updates_in_place() -> None:
    program = adam(Build(), [(7, 5), (3, 9), (64, 2), (100,)] * 3)
    s = compiled(program, [0.1])
    assert len(s.steps) == 12
    assert kernels(s) == 1
    assert s.arena_bytes == 0
    assert all(s.buffers[o].donor >= 0 for o in s.outputs)
    assert predicted_peak(s) == sum(b.nbytes for b in s.buffers if b.kind == "input")


def test_structure_does_not_depend_on_extents() -> None:
    found = set()
    for shape in ((4, 10), (7, 33), (128, 5)):
        b = Build()
        s = compiled(b.program(softmax(b, b.input(shape), 1)))
        found |= {step.kernel for step in s.steps if isinstance(step, Loop)}
    assert len(found) == 1


def test_cross_entropy_keeps_no_log_probabilities() -> None:
    b = Build()
    x, target = b.input((8, 40)), b.input((8, 1), int64)
    shifted = b.sub(x, b.amax(x, attrs=((1,), True)))
    log_p = b.sub(shifted, b.log(b.sum(b.exp(shifted), attrs=((1,), True))))
    loss = b.neg(mean(b, b.gather(log_p, target, attrs=(1,)), (0, 1), 8, False))
    picked = b.full(b.constant(-1 / 8), attrs=((8, 1),))
    grad = b.scatter_add(b.full(b.constant(0.0), attrs=((8, 40),)), target, picked, attrs=(1,))
    grad = b.sub(grad, b.mul(b.exp(log_p), b.sum(grad, attrs=((1,), True))))
    s = compiled(b.program(loss, grad))
    assert len(s.steps) == 2  # one pass over rows, one sum of their losses
    assert s.arena_bytes <= 128  # a few numbers per row


def test_the_mask_of_dropout_is_kept_for_its_gradient() -> None:
    """One byte per element; its random bits take fifty times as long as reading it."""
    b = Build()
    x, w, g = b.input((64, 32)), b.input((32, 16)), b.input((64, 16))
    bits = b.random_bits(b.constant(1, int64), b.constant(7, int64), attrs=((64, 32),))
    kept = b.lt(b.cast(b.bitwise_and(bits, b.constant(255, int64)), attrs=(float32,)), b.constant(100.0))
    zero = b.constant(0.0)
    y = b.matmul(b.where(kept, x, zero), w)
    back = b.matmul(plus(b, y, g), b.transpose(w, 1, 0))
    s = compiled(b.program(y, b.where(kept, back, zero)), tolerance=1e-3)
    drawing = [k for k in s.steps if isinstance(k, Loop) and any(i.op == "xor" for i in k.kernel.instructions())]
    assert len(drawing) == 1 and len([k for k in s.steps if isinstance(k, Loop)]) == 3


def test_attention_reads_heads_through_strides() -> None:
    b = Build()
    B, T, H, D = 2, 6, 2, 4
    qkv = b.input((B, T, 3 * H * D))
    row = 3 * H * D
    q, v = (b.view(qkv, (B, H, T, D), (T * row, D, row, 1), i * H * D) for i in (0, 2))
    k = b.view(qkv, (B, H, D, T), (T * row, D, 1, row), H * D)
    rows = b.view(b.iota(attrs=((T,), int64)), (T, 1), (1, 1))
    allowed = b.le(b.iota(attrs=((T,), int64)), rows)
    scores = b.where(allowed, b.mul(b.matmul(q, k), b.constant(0.5)), b.full(b.constant(-1e9), attrs=((T, T),)))
    y = b.matmul(softmax(b, scores, 3), v)
    s = compiled(b.program(b.copy(b.view(y, (B, T, H, D), (H * T * D, D, T * D, 1)))))
    assert [type(step) for step in s.steps] == [Contract, Loop, Contract, Loop]


def test_cat_and_padding_are_written_by_their_producers() -> None:
    b = Build()
    x = b.input((4, 5))
    joined = b.cat(b.exp(x), b.tanh(x), attrs=(1,))
    padded = b.update(b.full(b.constant(0.0), attrs=((6, 9),)), b.mul(x, x), (9, 1), 11)
    s = compiled(b.program(joined, padded))
    assert len(s.steps) == 2  # the zeros, everything else
    assert s.arena_bytes == 0


def test_update_of_a_donated_input_is_in_place() -> None:
    b = Build()
    x, v = b.input((4, 6)), b.input((4,))
    y = b.update(x, b.mul(v, v), (6,), 2)
    s = compiled(b.program(y, donated={0}, updates=((0, 0),)))
    assert len(s.steps) == 1
    assert s.buffers[s.outputs[0]].donor == 0
    kept = compiled(b.program(y))
    assert len(kept.steps) == 2  # the input must survive: copy, then write


def test_shifted_self_update_is_not_done_in_place() -> None:
    b = Build()
    x = b.input((10,))
    y = b.update(x, b.exp(b.view(x, (9,), (1,))), (1,), 1)
    compiled(b.program(y, donated={0}, updates=((0, 0),)))  # interpret() raises on a race


def test_donor_is_refused_when_the_old_value_is_read_elsewhere() -> None:
    b = Build()
    x, w = b.input((4, 4)), b.input((4, 4))
    new = b.mul(x, w)
    later = b.matmul(new, b.transpose(x, 1, 0))
    s = compiled(b.program(new, later, donated={0}, updates=((0, 0),)))
    assert s.buffers[s.outputs[0]].donor == -1


def test_update_waits_for_the_last_read_of_the_old_value() -> None:
    b = Build()
    p, g, x = b.input((8,)), b.input((8,)), b.input((4, 8))
    new = b.sub(p, g)
    y = b.sum(b.exp(b.mul(x, p)), attrs=((1,), False))
    s = compiled(b.program(new, y, donated={0}, updates=((0, 0),)))
    assert s.buffers[s.outputs[0]].donor == 0


def test_unchanged_input_is_returned_as_it_is() -> None:
    b = Build()
    x = b.input((2, 3))
    s = compiled(b.program(b.copy(x), b.reshape(x, (6,)), b.neg(x)))
    assert [s.buffers[o].kind for o in s.outputs] == ["input", "input", "output"]


def test_equal_outputs_do_not_share_memory() -> None:
    b = Build()
    x = b.input((2, 3))
    s = compiled(b.program(b.exp(x), b.exp(x)))
    assert len(set(s.outputs)) == 2


def test_checks_come_first_and_alone() -> None:
    b = Build()
    x, i = b.input((5, 3)), b.input((4,), int64)
    bad = b.bitwise_or(b.lt(i, b.constant(0, int64)), b.le(b.constant(5, int64), i))
    first = b.amax(b.where(bad, b.iota(attrs=((4,), int64)), b.full(b.constant(-1, int64), attrs=((4,),))), attrs=((0,), False))
    y = b.index_select(b.mul(x, x), i, attrs=(0,))
    new = b.neg(x)
    program = b.program(y, new, donated={0}, updates=((1, 0),), checks=(first,))
    s = compiled(program)
    assert s.check_steps == 1
    assert len(s.checks) == 1
    assert s.buffers[s.checks[0]].numel == 1
    assert all(s.buffers[k].donor < 0 for step in s.steps[: s.check_steps] for k in step.operands)


@pytest.mark.parametrize("count", [100_000, 131_072, 99_991])
def test_long_sum_is_split_by_size_alone(count: int) -> None:
    b = Build()
    s = compiled(b.program(b.sum(b.input((count,)), attrs=((0,), False))), tolerance=1e-3)
    assert isinstance(s.steps[0], Loop)
    assert s.steps[0].params[0] >= 16  # points of P to share between threads


def test_tall_column_sum_is_split() -> None:
    b = Build()
    s = compiled(b.program(b.sum(b.input((1000, 12)), attrs=((0,), False))), tolerance=1e-3)
    assert len(s.steps) >= 2
    assert all(step.kernel.vector == "p" for step in s.steps if isinstance(step, Loop))


@pytest.mark.parametrize(("dtype", "computed"), [(float16, float32), (bfloat16, bfloat16)])
def test_16_bit_product_sums_in_float32(dtype: DType, computed: DType) -> None:
    """float16 by casts; the library's product of bfloat16 does so itself."""
    b = Build()
    x, w = b.input((4, 6), dtype), b.input((6, 3), dtype)
    s = compiled(b.program(b.relu(b.matmul(x, w))), tolerance=1e-2)
    contraction = next(step for step in s.steps if isinstance(step, Contract))
    assert contraction.dtype is computed


def test_integer_contraction_and_scans_are_host_steps() -> None:
    b = Build()
    x = b.input((4, 4), int64)
    s = compiled(b.program(b.cumsum(b.matmul(x, x), attrs=(1,))))
    assert [type(step) for step in s.steps] == [Host, Host]


def test_explain_says_why_a_value_is_not_fused() -> None:
    b = Build()
    x = b.input((6, 10))
    y = b.exp(x)
    text = explain_cuts(b.program(b.sum(y, attrs=((1,), False)), b.sum(y, attrs=((0,), False))))
    assert "is not in group 0: it reduces over [6], the group over [10]" in text


def test_explain_names_groups_and_members() -> None:
    b = Build()
    text = explain_cuts(b.program(softmax(b, b.input((4, 10)), 1)))
    assert "group 0 (loop) over [4] reducing [10]" in text
    assert "amax" in text


def test_transposing_copy_walks_in_blocks() -> None:
    b = Build()
    x, y = b.input((3, 96, 160)), b.input((3, 160, 96))
    s = compiled(b.program(plus(b, b.transpose(x, 0, 2, 1), y)))
    assert isinstance(s.steps[0], Loop)
    assert s.steps[0].params[:5] == (3, 10, 6, 16, 16)


def test_a_sum_that_is_read_across_its_rows_is_not_taken_from_its_row() -> None:
    """x * x.sum(1) of a square x: element (i, j) needs the sum of row j, not of row i."""
    b = Build()
    x = b.input((4, 4))
    y = b.add("mul", x, b.add("sum", x, attrs=((1,), False)))
    value = np.arange(16, dtype=np.float32).reshape(4, 4)
    (found,) = interpret(compile_program(Program(tuple(b.nodes), (y,))), [value.reshape(-1).copy()], [])
    np.testing.assert_array_equal(found.reshape(4, 4), value * value.sum(1))


def test_a_value_does_not_move_to_the_launch_that_writes_parts_of_it() -> None:
    b = Build()
    x, w, part = b.input((64,)), b.input((64,)), b.input((31, 3))
    added = b.update_add(b.relu(x), part, attrs=((31, 3), (2, 1), 0))
    base = plus(b, added, x)
    backwards = b.update(base, added, (-1,), 63)
    first = b.maximum(added, x)
    least, other = b.minimum(first, base), b.minimum(w, first)
    chosen = b.where(b.lt(least, other), least, other)
    compiled(b.program(b.cat(backwards, least, least, attrs=(0,)), chosen))
