"""Operations and bytes of launches, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

from calque.kernel.cost import Cost, cost, describe, lines
from calque.run.pipeline import compile_program, simplified
from tests.kernel.programs import Build


def only(program: Any) -> tuple[Cost, str]:
    schedule = compile_program(program)
    assert len(schedule.steps) == 1, schedule.steps
    return cost(schedule.steps[0], schedule.buffers), describe(schedule.steps[0], simplified(program).nodes)


def test_a_chain_reads_once_and_writes_once() -> None:
    b = Build()
    x, y = b.input((4, 6)), b.input((6,))
    found, name = only(b.program(b.exp(b.mul(x, y))))
    assert found == Cost(2 * 24, 4 * (24 + 6 + 24))
    assert name == "mul, exp [4, 6]"


def test_a_reduction_counts_its_additions() -> None:
    b = Build()
    found, _ = only(b.program(b.sum(b.input((8, 16)), attrs=((1,), False))))
    assert found == Cost(8 * 16, 4 * (128 + 8))


def test_a_product_counts_two_operations_per_term() -> None:
    b = Build()
    found, name = only(b.program(b.matmul(b.input((3, 5)), b.input((5, 7)))))
    assert found == Cost(2 * 3 * 5 * 7, 4 * (15 + 35 + 21))
    assert name == "matmul [3, 5] x [5, 7]"


def test_a_broadcast_batch_is_read_once() -> None:
    b = Build()
    found, _ = only(b.program(b.matmul(b.input((4, 3, 5)), b.input((5, 7)))))
    assert found == Cost(2 * 4 * 3 * 5 * 7, 4 * (60 + 35 + 84))


def test_a_slice_reads_what_it_needs_and_overlapping_windows_at_most_everything() -> None:
    b = Build()
    x = b.input((100,))
    found, _ = only(b.program(b.exp(b.view(x, (10,), (1,), 20))))
    assert found.nbytes == 4 * (10 + 10)
    b = Build()
    x = b.input((100,))
    found, _ = only(b.program(b.sum(b.view(x, (91, 10), (1, 1)), attrs=((1,), False))))
    assert found.nbytes == 4 * (100 + 91)


def test_gathered_rows_count_once_each() -> None:
    from calque.base.dtypes import int64

    b = Build()
    table, index = b.input((50, 8)), b.input((6,), int64)
    found, _ = only(b.program(b.index_select(table, index, attrs=(0,))))
    assert found.nbytes == 4 * 48 + 8 * 6 + 4 * 48


def test_integer_work_is_no_floating_point_work() -> None:
    from calque.base.dtypes import int64

    b = Build()
    found, _ = only(b.program(b.add("add", b.input((4,), int64), b.input((4,), int64))))
    assert found == Cost(0, 3 * 32)


def test_opaque_steps_count_their_bytes() -> None:
    b = Build()
    found, name = only(b.program(b.cumsum(b.input((4, 6)), attrs=(1,))))
    assert found.nbytes == 2 * 96 and name.startswith("cumsum")


def test_names_fold_repetitions_and_lines_are_unique() -> None:
    b = Build()
    x = b.input((4,))
    for _ in range(3):
        x = b.exp(x)
    program = b.program(x)
    schedule = compile_program(program)
    assert describe(schedule.steps[0], program.nodes) == "exp x3 [4]"
    assert lines(schedule.steps[0], program.nodes) == ()
