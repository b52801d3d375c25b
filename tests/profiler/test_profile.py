"""PyTorch's names: schedules, steps, ranges, averages, handlers, and that what is not supported says so."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

import calque
from calque.base.errors import ProfileError
from calque.observe import events
from calque.profiler import ProfilerAction, ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler

N = 200


def work() -> float:
    x = calque.randn(N, N)
    return float((x @ x).exp().sum().item())


def test_the_schedule_is_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    for plan in (
        {"wait": 1, "warmup": 1, "active": 2},
        {"wait": 0, "warmup": 0, "active": 1, "repeat": 2},
        {"wait": 2, "warmup": 1, "active": 3, "repeat": 2, "skip_first": 3},
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # theirs warns of warmup=0
            ours, theirs = schedule(**plan), torch.profiler.schedule(**plan)
        assert [ours(k).name for k in range(30)] == [theirs(k).name for k in range(30)]


def test_every_cycle_is_handed_over_once_and_holds_its_steps_alone() -> None:
    seen: list[list[str]] = []

    def ready(p: profile) -> None:
        seen.append([e.name for e in p.events() if e.name.startswith("ProfilerStep")])
        assert events.active is None

    with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready) as p:
        actions = []
        for _ in range(10):
            actions.append(p.current_action)
            work()
            p.step()
    assert seen == [["ProfilerStep#2", "ProfilerStep#3"], ["ProfilerStep#6", "ProfilerStep#7"]]
    assert actions[:5] == [ProfilerAction.NONE, ProfilerAction.WARMUP, ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE, ProfilerAction.NONE]


def test_a_cycle_that_the_block_cuts_short_is_handed_over_too() -> None:
    seen: list[int] = []
    with profile(schedule=schedule(wait=0, warmup=0, active=5), on_trace_ready=lambda p: seen.append(len(p.events()))) as p:
        work()
        p.step()
        work()
    assert len(seen) == 1 and seen[0] > 0
    assert [e.name for e in p.events() if e.name.startswith("ProfilerStep")] == ["ProfilerStep#0", "ProfilerStep#1"]


def test_back_to_back_cycles_are_separate_traces() -> None:
    seen: list[int] = []
    with profile(schedule=schedule(wait=0, warmup=0, active=1), on_trace_ready=lambda p: seen.append(len(p.events()))) as p:
        for _ in range(3):
            work()
            p.step()
    assert len(seen) == 4 and all(n > 0 for n in seen[:3])  # the fourth is the empty step after the last


def test_start_and_stop_without_with() -> None:
    p = profile()
    p.start()
    work()
    with pytest.raises(ProfileError, match=r"got start\(\) twice"):
        p.start()
    p.stop()
    assert any(e.row == "cpu queue" for e in p.events()) and events.active is None
    with pytest.raises(ProfileError, match=r"got stop\(\) without start"):
        p.stop()
    with pytest.raises(ProfileError, match=r"expected step\(\) between start and stop"):
        p.step()


def test_ranges_as_context_and_decorator() -> None:
    @record_function("decorated")
    def decorated(x: int) -> int:
        """Doc."""
        return x + 1

    with record_function("outside"):
        assert decorated(1) == 2  # nothing happens without a profile
    with profile() as p, record_function("outer", args="3"):
        assert decorated(2) == 3 and decorated(3) == 4
        with record_function("inner"):
            work()
    found = {e.name: e for e in p.events() if e.row == "ranges"}
    assert set(found) == {"decorated", "outer", "inner"} or set(found) == {"decorated", "inner"}
    assert decorated.__doc__ == "Doc."
    by_key = {a.key: a for a in p.key_averages() if a.kind == "range"}
    assert by_key["decorated"].count == 2 and by_key["inner"].count == 1
    assert by_key["inner"].cpu_time_total == pytest.approx(found["inner"].seconds * 1e6)
    with pytest.raises(TypeError, match=r"\[record_function\] expected a name that is not empty, got 3"):
        record_function(3)  # type: ignore[arg-type]


def test_a_range_survives_an_exception() -> None:
    with profile() as p:
        with pytest.raises(KeyError), record_function("failing"):
            raise KeyError("x")
        work()
    assert [e.name for e in p.events() if e.row == "ranges"] == ["failing"]


def test_averages_count_what_was_computed() -> None:
    x = calque.randn(N, N)
    x.sum().item()
    with profile(record_shapes=True, with_stack=True, kernels=True) as p:
        for _ in range(3):
            (x @ x).sum().item()
    product = next(a for a in p.key_averages() if a.key == "matmul")
    assert product.count == 3 and product.flops == 3 * 2 * N**3 and product.exact
    assert product.cpu_time_total > 0 and product.cpu_time == product.cpu_time_total / 3 and not math.isnan(product.share)
    shaped = next(a for a in p.key_averages(group_by_input_shape=True) if a.key == "matmul")
    assert shaped.input_shapes == ((N, N), (N, N))
    located = next(a for a in p.key_averages(group_by_stack_n=1) if a.key == "matmul")
    assert len(located.stack) == 1 and "test_profile.py" in located.stack[0]
    kernels = [e for e in p.events() if e.row == "kernels"]
    assert p.key_averages().self_cpu_time_total == pytest.approx(1e6 * sum(e.seconds for e in kernels), rel=1e-6)
    assert p.key_averages().total_average().flops == sum(e.facts["flops"] for e in kernels)


def test_without_exact_times_those_of_the_programs_are_divided() -> None:
    x = calque.randn(N, N)
    (x @ x).exp().sum().item()
    with profile() as p:
        for _ in range(3):
            (x @ x).exp().sum().item()
    runs = [e.seconds for e in p.events() if e.row == "cpu queue"]
    table = p.key_averages()
    assert table.self_cpu_time_total == pytest.approx(1e6 * sum(runs)) and not all(a.exact for a in table)
    assert "profile(kernels=True) times every launch" in table.table()
    assert sum(r.seconds for r in p.lines()) == pytest.approx(sum(runs))


def test_the_table_sorts_cuts_and_refuses() -> None:
    x = calque.randn(N, N)
    with profile() as p:
        ((x @ x).exp().sum() + x.sum()).item()
    found = p.key_averages()
    text = found.table(sort_by="count", row_limit=2, header="mine")
    assert text.startswith("mine\n") and f"... and {len(found) - 2} more rows" in text
    assert str(found) == found.table() and "matmul" in str(found) and "Device time total" in str(found)
    times = [a.cpu_time_total for a in found if a.kind == "op"]
    assert times == sorted(times, reverse=True)
    for name in ("cpu_time_total", "self_cpu_time_total", "cpu_time", "flops", "bytes", "share"):
        assert "matmul" in found.table(sort_by=name)
    with pytest.raises(ProfileError, match=r"got 'cuda_time_total'; no cuda activity was profiled; use sort_by='cpu_time_total'"):
        found.table(sort_by="cuda_time_total")
    for table in (found.table, p.lines().table):
        with pytest.raises(ProfileError, match=r"\[table\] expected row_limit to be an integer \(-1 shows all rows\), got '3'"):
            table(row_limit="3")  # type: ignore[arg-type]
    with pytest.raises(ProfileError, match=r"\[key_averages\] expected a profile with record_shapes=True"):
        p.key_averages(group_by_input_shape=True)
    with pytest.raises(ProfileError, match=r"\[key_averages\] expected a profile with with_stack=True"):
        p.key_averages(group_by_stack_n=1)
    with pytest.raises(ProfileError, match=r"expected group_by_stack_n to be 0 or 1"):
        p.key_averages(group_by_stack_n=5)


def test_the_table_by_line_says_what_was_fused_where() -> None:
    a, b = calque.randn(N, N), calque.randn(N, N)
    (a + b).sum().item()
    with profile(kernels=True) as p:
        for _ in range(2):
            product = a @ b  # line 1
            product.relu().mul(3.5).sum().item()  # line 2
    rows = {int(r.line.rsplit(":", 1)[1]): r for r in p.lines()}
    assert len(rows) == 2
    first, second = rows[min(rows)], rows[max(rows)]
    assert first.flops == 2 * 2 * N**3 and set(first.ops) == {"matmul"} and first.launches == 2
    assert "matmul" not in second.ops and {"mul", "sum"} <= set(second.ops) and second.exact
    assert any("mul" in name and "sum" in name for name in second.kernels), second.kernels
    text = str(p.lines())
    assert "test_profile.py:" in text and "matmul" in text and "2 x  " in text
    assert "more lines" in p.lines().table(row_limit=1)


def test_interpreted_programs_are_in_the_tables() -> None:
    calque.synchronize()
    with profile() as p:
        (calque.ones(3) * 2.25 + 1.125).tolist()
    if any(e.facts.get("form") == "interpreted" for e in p.events()):
        assert {"mul", "add"} <= {a.key for a in p.key_averages()}


def test_arguments_that_are_not_supported_say_so() -> None:
    with pytest.warns(UserWarning, match=r"\[profile\] CUDA is not available and is not profiled; only the CPU is"):
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
    with pytest.raises(ProfileError, match=r"expected ProfilerActivity.CPU among the activities, got CUDA"):
        profile(activities=[ProfilerActivity.CUDA])
    for wrong in ([], ["cpu"], "cpu"):
        with pytest.raises(ProfileError, match=r"expected activities from ProfilerActivity"):
            profile(activities=wrong)  # type: ignore[arg-type]
    for name in ("with_modules", "experimental_config", "execution_trace_observer"):
        with pytest.raises(ProfileError, match=rf"\[profile\] {name} is not supported; leave it out"):
            profile(**{name: True})  # type: ignore[arg-type]
    with pytest.raises(ProfileError, match=r"expected schedule to be a function, got int"):
        profile(schedule=3)  # type: ignore[arg-type]
    with pytest.raises(ProfileError, match=r"\[schedule\] expected active to be an integer >= 1, got 0"):
        schedule(wait=0, warmup=0, active=0)
    with pytest.raises(ProfileError, match=r"\[schedule\] expected wait to be an integer >= 0, got -1"):
        schedule(wait=-1, warmup=0, active=1)
    with pytest.raises(ProfileError, match=r"\[key_averages\] expected a profile, got one that never ran"):
        profile().key_averages()
    once = profile(schedule=lambda step: ProfilerAction.RECORD if step == 0 else ProfilerAction.NONE)
    with pytest.warns(UserWarning, match="the schedule stops recording without RECORD_AND_SAVE"), once as p:
        p.step()


def test_the_handler_writes_one_file_per_trace(tmp_path: Path) -> None:
    plan = schedule(wait=0, warmup=1, active=1, repeat=2)
    with profile(schedule=plan, on_trace_ready=tensorboard_trace_handler(tmp_path / "runs", worker_name="w0")) as p:
        for _ in range(4):
            work()
            p.step()
    files = sorted((tmp_path / "runs").iterdir())
    assert len(files) == 2 and all(f.name.startswith("w0.") and f.name.endswith(".pt.trace.json") for f in files)
    assert all(json.loads(f.read_text())["traceEvents"] for f in files)
    with pytest.raises(ProfileError, match="expected a worker_name without slashes"):
        tensorboard_trace_handler(tmp_path, worker_name="a/b")


def test_the_older_names() -> None:
    with calque.autograd.profiler.profile(record_shapes=True) as p, calque.autograd.profiler.record_function("mine"):
        work()
    assert "matmul" in p.key_averages(group_by_input_shape=True).table(sort_by="self_cpu_time_total")
    assert repr(p) == p.table() and "matmul" in p.table() and p.total_average().count > 0 and p.self_cpu_time_total > 0
    with calque.autograd.profiler.profile(enabled=False) as off:
        work()
    assert events.active is None and repr(off) == "<profile that has not run>"
    with pytest.raises(ProfileError, match="got one that never ran"):
        off.key_averages()
    with pytest.raises(ProfileError, match=r"\[profile\] use_cuda=True is not supported"):
        calque.autograd.profiler.profile(use_cuda=True)
    from calque.autograd.profiler import profile as imported

    assert imported is calque.autograd.profiler.profile


def test_failures_leave_no_profile_behind() -> None:
    def boom(p: Any) -> None:
        raise ValueError("handler")

    with pytest.raises(ValueError, match="handler"), profile(on_trace_ready=boom):
        work()
    assert events.active is None
    with pytest.raises(IndexError), profile() as p:
        (calque.ones(3)[calque.tensor([7])]).sum().item()
    assert events.active is None and p.events() is not None


def test_gradients_belong_to_the_line_of_their_forward_operation() -> None:
    class Cube(calque.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 3.0 * x * x  # the user's own gradient has its own line

    here = Cube.backward.__code__.co_firstlineno + 3
    x = calque.randn(N, N, requires_grad=True)
    w = calque.randn(N, N, requires_grad=True)
    with profile() as p:
        product = x @ w
        total = Cube.apply(product).sum()
        total.backward()
        assert x.grad is not None and w.grad is not None
        (x.grad + w.grad).sum().item()
    lines = {row.line.removeprefix(__file__ + ":"): set(row.ops) for row in p.lines()}
    forward = next(line for line, ops in lines.items() if ops == {"matmul"} and "backward" not in line)
    assert lines[f"{forward} (backward)"] == {"matmul"} and "mul" in lines[f"{here}"], lines
    assert sum("matmul" in ops for ops in lines.values()) == 2
