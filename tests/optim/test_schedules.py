"""Schedules against closed formulas in float64, written from the papers and PyTorch's documentation, and saving and restoring them."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque import optim
from calque.base.errors import ArgumentError
from calque.optim import lr_scheduler as S

STEPS = 60


def optimizer_of(kind: str = "SGD", base: float = 0.1) -> Any:
    w = calque.ones(2, requires_grad=True)
    return getattr(optim, kind)([w], lr=base, **({"momentum": 0.9} if kind == "SGD" else {}))


def rates(optimizer: Any, schedule: Any, steps: int = STEPS) -> list[float]:
    """The rate of every step, from step 0."""
    found = []
    for _ in range(steps):
        assert schedule.get_last_lr() == [optimizer.param_groups[0]["lr"]]
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def cosine(t: float, period: float, high: float = 0.1, low: float = 0.0) -> float:
    """Loshchilov & Hutter 2017, equation 5."""
    return low + (high - low) * (1 + math.cos(math.pi * t / period)) / 2


def restarts(t: int, period: int, mult: int) -> float:
    while t >= period:
        t, period = t - period, period * mult
    return cosine(t, period, low=0.01)


def one_cycle(t: int, total: int, curve: Callable[[float, float, float], float], *, three: bool = False, peak: float = 1.0) -> float:
    """Up to the peak at 0.3 total - 1, down to the start (three phases) or to the end, and the rest of the way."""
    start, end, top = peak / 25, peak / 25 / 1e4, 0.3 * total - 1
    corners = [(0.0, start), (top, peak), *([(2 * top, start)] if three else []), (total - 1.0, end)]
    for (a, y), (b, z) in itertools.pairwise(corners):
        if t <= b:
            return curve(y, z, (t - a) / (b - a))
    raise AssertionError


def bend(a: float, b: float, x: float) -> float:
    return b + (a - b) * (1 + math.cos(math.pi * x)) / 2


def line(a: float, b: float, x: float) -> float:
    return a + (b - a) * x


def triangle(t: int, up: int, down: int) -> float:
    """Smith 2017: height between 0 and 1."""
    x = t % (up + down)
    return x / up if x <= up else (up + down - x) / down


FORMULAS: dict[str, tuple[Callable[[Any], Any], Callable[[int], float]]] = {
    "step": (lambda o: S.StepLR(o, 7, 0.5), lambda t: 0.1 * 0.5 ** (t // 7)),
    "multistep": (lambda o: S.MultiStepLR(o, [30, 4, 4], 0.5), lambda t: 0.1 * 0.5 ** ((t >= 4) * 2 + (t >= 30))),
    "multistep of fractions": (lambda o: S.MultiStepLR(o, [0.75 * 40, 4.0, 5.5], 0.5), lambda t: 0.1 * 0.5 ** ((t >= 4) * 1 + (t >= 30))),
    "step of a float": (lambda o: S.StepLR(o, 2.0, 0.5), lambda t: 0.1 * 0.5 ** (t // 2)),
    "constant": (lambda o: S.ConstantLR(o, 0.5, 4), lambda t: 0.1 * (0.5 if t < 4 else 1)),
    "constant at zero": (lambda o: S.ConstantLR(o, 0.0, 4), lambda t: 0.0 if t < 4 else 0.1),
    "linear": (lambda o: S.LinearLR(o, 0.25, 0.75, 10), lambda t: 0.1 * (0.25 + 0.5 * min(t, 10) / 10)),
    "exponential": (lambda o: S.ExponentialLR(o, 0.95), lambda t: 0.1 * 0.95**t),
    "polynomial": (lambda o: S.PolynomialLR(o, 50, 3.0), lambda t: 0.1 * (1 - min(t, 50) / 50) ** 3),
    "cosine": (lambda o: S.CosineAnnealingLR(o, 60, 0.01), lambda t: cosine(t, 60, low=0.01)),
    "cosine back up": (lambda o: S.CosineAnnealingLR(o, 13), lambda t: cosine(t, 13)),
    "restarts": (lambda o: S.CosineAnnealingWarmRestarts(o, 8, eta_min=0.01), lambda t: restarts(t, 8, 1)),
    "restarts growing": (lambda o: S.CosineAnnealingWarmRestarts(o, 4, 3, 0.01), lambda t: restarts(t, 4, 3)),
    "lambda": (lambda o: S.LambdaLR(o, lambda t: 1 / math.sqrt(1 + t)), lambda t: 0.1 / math.sqrt(1 + t)),
    "multiplicative": (lambda o: S.MultiplicativeLR(o, lambda t: t / (t + 1)), lambda t: 0.1 / (t + 1)),
    "one cycle": (lambda o: S.OneCycleLR(o, 1.0, STEPS), lambda t: one_cycle(t, STEPS, bend)),
    "one cycle linear": (lambda o: S.OneCycleLR(o, 1.0, epochs=6, steps_per_epoch=10, anneal_strategy="linear"), lambda t: one_cycle(t, STEPS, line)),
    "one cycle three": (lambda o: S.OneCycleLR(o, 1.0, STEPS, three_phase=True), lambda t: one_cycle(t, STEPS, bend, three=True)),
    "cyclic": (lambda o: S.CyclicLR(o, 0.1, 0.5, 6, 4), lambda t: 0.1 + 0.4 * triangle(t, 6, 4)),
    "cyclic 2": (lambda o: S.CyclicLR(o, 0.1, 0.5, 5, mode="triangular2"), lambda t: 0.1 + 0.4 * triangle(t, 5, 5) * 0.5 ** (t // 10)),
    "cyclic exp": (lambda o: S.CyclicLR(o, 0.1, 0.5, 5, mode="exp_range", gamma=0.9), lambda t: 0.1 + 0.4 * triangle(t, 5, 5) * 0.9**t),
    "sequential": (
        lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, total_iters=5), S.CosineAnnealingLR(o, 55), S.ConstantLR(o, 0.5, 99)], [5, 40]),
        lambda t: 0.1 * (0.1 + 0.9 * t / 5) if t < 5 else cosine(t - 5, 55) if t < 40 else 0.05,
    ),
    "chained": (
        lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 6), S.ExponentialLR(o, 0.9), S.StepLR(o, 20)]),
        lambda t: 0.1 * (0.1 if t < 6 else 1) * 0.9**t * 0.1 ** (t // 20),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name: str) -> None:
    make, formula = FORMULAS[name]
    optimizer = optimizer_of()
    assert rates(optimizer, make(optimizer)) == pytest.approx([formula(t) for t in range(STEPS)], rel=1e-10, abs=1e-15)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_momentum_moves_against_the_rate(kind: str) -> None:
    def momentum(o: Any) -> float:
        return o.param_groups[0]["betas"][0] if kind == "AdamW" else o.param_groups[0]["momentum"]

    for make in (
        lambda o: S.OneCycleLR(o, 1.0, 21, base_momentum=0.8, max_momentum=0.9, anneal_strategy="linear", div_factor=2.0, final_div_factor=1.0),
        lambda o: S.CyclicLR(o, 0.5, 1.0, 10, base_momentum=0.8, max_momentum=0.9),
    ):
        optimizer = optimizer_of(kind)
        schedule = make(optimizer)
        for _ in range(20):
            assert momentum(optimizer) == pytest.approx(0.9 - 0.1 * (optimizer.param_groups[0]["lr"] - 0.5) / 0.5)
            optimizer.step()
            schedule.step()
        if kind == "AdamW":
            assert optimizer.param_groups[0]["betas"][1] == 0.999


@pytest.mark.parametrize("name", FORMULAS)
def test_resume_in_the_middle(name: str, tmp_path: Any) -> None:
    """Save at step 23 to a file, load into new objects: the same rates as without the break, bit for bit."""
    make = FORMULAS[name][0]
    optimizer = optimizer_of()
    whole = rates(optimizer, make(optimizer))
    optimizer = optimizer_of()
    schedule = make(optimizer)
    rates(optimizer, schedule, 23)
    calque.save([optimizer.state_dict(), schedule.state_dict()], tmp_path / "state")
    again = optimizer_of(base=9.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = make(again)
        saved = calque.load(tmp_path / "state")
        again.load_state_dict(saved[0])
        resumed.load_state_dict(saved[1])
        assert rates(again, resumed, STEPS - 23) == whole[23:]


def test_schedules_multiply_and_manual_rates_stay() -> None:
    optimizer = optimizer_of(base=1.0)
    first, second = S.ExponentialLR(optimizer, 0.5), S.StepLR(optimizer, 2, 0.1)
    found = []
    for k in range(4):
        if k == 3:
            optimizer.param_groups[0]["lr"] = 8.0
        optimizer.step()
        first.step()
        second.step()
        found.append(optimizer.param_groups[0]["lr"])
    assert found == pytest.approx([0.5, 0.025, 0.0125, 0.4])


def test_groups_keep_their_ratio() -> None:
    a, b = calque.ones(1, requires_grad=True), calque.ones(1, requires_grad=True)
    optimizer = optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 0.1}])
    schedule = S.CosineAnnealingLR(optimizer, 10)
    for t in range(10):
        assert schedule.get_last_lr() == pytest.approx([cosine(t, 10, 1.0), cosine(t, 10, 0.1)])
        optimizer.step()
        schedule.step()
    schedule = S.LambdaLR(optimizer, [lambda t: 2.0, lambda t: 3.0])
    assert schedule.get_last_lr() == pytest.approx([2.0, 0.3])


def test_plateau() -> None:
    optimizer = optimizer_of(base=1.0)
    schedule = S.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, min_lr=0.2)
    found = []
    for metric in (3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0):
        schedule.step(calque.tensor(metric))
        found.append(schedule.get_last_lr()[0])
    assert found == [1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2, 0.2, 0.2]
    with pytest.warns(RuntimeWarning, match="the metric is NaN"):
        schedule.step(math.nan)
    assert schedule.best == 2.0
    other = S.ReduceLROnPlateau(optimizer_of())
    other.load_state_dict(schedule.state_dict())
    assert (other.best, other.patience, other.cooldown_counter, other.last_epoch) == (2.0, 1, schedule.cooldown_counter, 14)


def test_plateau_with_a_new_group() -> None:
    optimizer = optimizer_of(base=1.0)
    plain, listed = S.ReduceLROnPlateau(optimizer, patience=0), S.ReduceLROnPlateau(optimizer, patience=0, min_lr=[0.1])
    optimizer.add_param_group({"params": [calque.ones(1, requires_grad=True)]})
    for schedule in (plain, listed):
        schedule.step(1.0)
    plain.step(1.0)
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.1, 0.1])
    with pytest.raises(ArgumentError, match=r"number of param groups in the `optimizer` \(2\) differs .*\(1\); set `min_lrs`"):
        listed.step(1.0)


def test_rates_in_a_tensor_are_filled_in_place() -> None:
    rate = calque.tensor(0.5)
    optimizer = optim.SGD([calque.ones(1, requires_grad=True)], lr=rate)
    schedule = S.StepLR(optimizer, 1, 0.5)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.25 and schedule.base_lrs[0].item() == 0.5


def test_warnings() -> None:
    optimizer = optimizer_of()
    schedule = S.StepLR(optimizer, 2)
    with pytest.warns(UserWarning, match=r"`lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        schedule.step()
    with pytest.warns(UserWarning, match="get_last_lr"):
        schedule.get_lr()
    with pytest.warns(UserWarning, match="epoch parameter"):
        schedule.step(4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


class Ramp:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, t: int) -> float:
        self.calls += 1
        return float(self.calls)


@pytest.mark.parametrize("inner", [lambda o: S.ChainedScheduler([S.StepLR(o, 2), S.LinearLR(o)]), lambda o: S.SequentialLR(o, [S.StepLR(o, 2)], [])])
def test_a_sequence_of_sequences_is_made_without_a_warning(inner: Callable[[Any], Any]) -> None:
    optimizer = optimizer_of()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = S.SequentialLR(optimizer, [inner(optimizer), S.ExponentialLR(optimizer, 0.9)], [5])
    assert not optimizer._opt_called
    early = S.StepLR(optimizer, 2)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        early.step()
    optimizer.step()
    schedule.step()


def test_callable_objects_are_saved_and_functions_are_not() -> None:
    optimizer = optimizer_of()
    schedule = S.LambdaLR(optimizer, Ramp())
    optimizer.step()
    schedule.step()
    state = schedule.state_dict()
    assert state["lr_lambdas"] == [{"calls": 2}]
    again = S.LambdaLR(optimizer, Ramp())
    again.load_state_dict(state)
    assert again.lr_lambdas[0].calls == 2
    assert S.LambdaLR(optimizer, abs).state_dict()["lr_lambdas"] == S.LambdaLR(optimizer, lambda t: 1).state_dict()["lr_lambdas"] == [None]
    cyclic = S.CyclicLR(optimizer, 0.1, 0.2, scale_fn=Ramp())
    state = cyclic.state_dict()
    assert state["_scale_fn_custom"] == {"calls": 1}
    other = S.CyclicLR(optimizer, 0.1, 0.2, scale_fn=Ramp())
    other.step()
    other.load_state_dict(state)
    assert other._scale_fn_custom.calls == 1


MISTAKES: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda o: S.StepLR(o.param_groups, 1), TypeError, r"\[StepLR\] expected an Optimizer, but list is not an Optimizer"),
    (lambda o: S.StepLR(o, 0), ArgumentError, r"\[StepLR\] expected step_size >= 1, got 0"),
    (lambda o: S.StepLR(o, 1, last_epoch=3), KeyError, r"'initial_lr' is not specified in param_groups\[0\].*load the optimizer's state first"),
    (lambda o: S.LambdaLR(o, 0.1), TypeError, r"\[LambdaLR\] lr_lambda should be a function, but got float"),
    (lambda o: S.LambdaLR(o, [abs, abs]), ArgumentError, "lr_lambda has 2 values, param_groups has 1"),
    (lambda o: S.ConstantLR(o, 1.5), ArgumentError, "between 0 and 1, got 1.5"),
    (lambda o: S.LinearLR(o, 0.0), ArgumentError, "greater than 0 and less or equal to 1, got 0.0"),
    (lambda o: S.LinearLR(o, 0.5, -1.0), ArgumentError, "Ending .* between 0 and 1, got -1.0"),
    (lambda o: S.CosineAnnealingWarmRestarts(o, 0), ArgumentError, "T_0 >= 1 and T_mult >= 1, got 0, 1"),
    (lambda o: S.CosineAnnealingWarmRestarts(o, 2, 1.5), ArgumentError, "got 2, 1.5"),
    (lambda o: S.CosineAnnealingWarmRestarts(o, 2, 1, "x"), ArgumentError, "float or int eta_min, got 'x'"),
    (lambda o: S.CosineAnnealingWarmRestarts(o, 2).step(-1), ArgumentError, "Expected non-negative epoch, but got -1"),
    (lambda o: S.OneCycleLR(o, 0.1), ArgumentError, r"either total_steps OR \(epochs AND steps_per_epoch\)"),
    (lambda o: S.OneCycleLR(o, 0.1, 2.5), ArgumentError, "positive integer total_steps, but got 2.5"),
    (lambda o: S.OneCycleLR(o, 0.1, epochs=2, steps_per_epoch=0), ArgumentError, "positive integer steps_per_epoch, but got 0"),
    (lambda o: S.OneCycleLR(o, 0.1, 9, pct_start=-0.5), ArgumentError, "between 0 and 1 pct_start, but got -0.5"),
    (lambda o: S.OneCycleLR(o, 0.1, 9, anneal_strategy="sine"), ArgumentError, "'cos' or 'linear', instead got sine"),
    (lambda o: S.OneCycleLR(o, [0.1] * 2, 9), ArgumentError, "max_lr has 2 values, param_groups has 1"),
    (lambda o: S.CyclicLR(o, 0.1, 1.0, mode="square"), ArgumentError, "triangular, triangular2 or exp_range, got 'square'"),
    (lambda o: S.OneCycleLR(optimizer_of("Adagrad"), 0.1, 9), ArgumentError, "must support momentum or beta1 .*pass cycle_momentum=False"),
    (lambda o: S.SequentialLR(o, [S.StepLR(o, 1)], [3]), ArgumentError, "number of schedulers 1 and the number of milestones to be equal to 1"),
    (lambda o: S.SequentialLR(o, [], []), ArgumentError, "at least one scheduler, but got no scheduler"),
    (lambda o: S.SequentialLR(o, [o], []), TypeError, "expected schedulers, got SGD at index 0"),
    (lambda o: S.SequentialLR(optimizer_of(), [S.StepLR(o, 1)], []), ArgumentError, "the same optimizer, but got scheduler StepLR at index 0"),
    (lambda o: S.ChainedScheduler([S.ReduceLROnPlateau(o)]), ArgumentError, r"`ReduceLROnPlateau` \(at index 0\).*call it by itself"),
    (
        lambda o: S.SequentialLR(o, [S.StepLR(o, 1), S.ChainedScheduler([S.StepLR(o, 1)])], [3]), ArgumentError,
        "expected a ChainedScheduler only in the first place.*put its parts in the list",
    ),
    (lambda o: S.SequentialLR(o, [S.StepLR(o, 1)], []).step(3), TypeError, r"\[SequentialLR\] step\(\) takes no epoch"),
    (lambda o: S.ChainedScheduler([S.StepLR(o, 1)]).step(3), TypeError, r"\[ChainedScheduler\] step\(\) takes no epoch"),
    (lambda o: S.ChainedScheduler([S.StepLR(o, 1)]).load_state_dict({"_schedulers": []}), ArgumentError, "states of 1 schedulers, got 0"),
    (lambda o: S.ReduceLROnPlateau(o, factor=1.0), ArgumentError, "Factor should be < 1.0, got 1.0"),
    (lambda o: S.ReduceLROnPlateau(o, "up"), ArgumentError, "mode up is unknown! expected 'min' or 'max'"),
    (lambda o: S.ReduceLROnPlateau(o, threshold_mode="x"), ArgumentError, "threshold mode x is unknown! expected 'rel' or 'abs'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), MISTAKES, ids=lambda v: v if isinstance(v, str) else "")
def test_mistakes(call: Callable[[Any], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call(optimizer_of())


def test_one_cycle_ends() -> None:
    optimizer = optimizer_of()
    schedule = S.OneCycleLR(optimizer, 0.1, 4)
    rates(optimizer, schedule, 4)
    with pytest.raises(ArgumentError, match="Tried to step 5 times. The specified number of total steps is 4"):
        schedule.step()
    short = S.OneCycleLR(optimizer_of(), 0.1, 1, pct_start=1.0)  # a cycle of one step starts at its peak
    assert short.get_last_lr() == [0.1]


@pytest.mark.parametrize("sizes", [{"step_size_up": 0}, {"step_size_up": 2, "step_size_down": -2}])
def test_a_cycle_of_no_steps_is_refused(sizes: dict[str, int]) -> None:
    optimizer = calque.optim.SGD([calque.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"\[CyclicLR\] expected step_size_up > 0"):
        calque.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 1.0, **sizes)


def test_a_rate_that_a_schedule_has_rounded_below_zero_is_loaded_again() -> None:
    parameter = calque.zeros(2, requires_grad=True)
    optimizer = optim.SGD([parameter], lr=0.1)
    schedule = S.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=3)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    rate = optimizer.param_groups[0]["lr"]
    assert -1e-15 < rate <= 0, "this schedule ends at 0, give or take rounding"
    optimizer.param_groups[0].update(lr=-1e-18, momentum=0, nesterov=True)
    again = optim.SGD([parameter], lr=0.1)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["lr"] == -1e-18 and again.param_groups[0]["nesterov"]
    broken = optimizer.state_dict()
    broken["param_groups"][0]["momentum"] = "much"
    with pytest.raises(ValueError, match=r"\[SGD\] Invalid momentum: expected a finite number"):
        again.load_state_dict(broken)
