"""Schedules of the learning rate against PyTorch: rates bit for bit, state dicts in both directions, text, refusals."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.optim_harness import SIDES, moved, parameters  # noqa: E402

pytestmark = pytest.mark.oracle


class Wave:
    """A callable object with state, as a rate."""

    def __init__(self, height: float) -> None:
        self.height = height

    def __call__(self, epoch: int) -> float:
        return 1.0 + self.height * (epoch % 3)


SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "step": lambda S, o: S.StepLR(o, 7, gamma=0.3),
    "multistep": lambda S, o: S.MultiStepLR(o, [3, 10, 10, 25], gamma=0.5),
    "exponential": lambda S, o: S.ExponentialLR(o, 0.93),
    "lambda": lambda S, o: S.LambdaLR(o, lambda e: 0.9**e),
    "lambdas": lambda S, o: S.LambdaLR(o, [lambda e: 1 / (1 + e), Wave(0.5)]),
    "multiplicative": lambda S, o: S.MultiplicativeLR(o, lambda e: 0.95 if e % 2 else 1.01),
    "constant": lambda S, o: S.ConstantLR(o, 0.25, total_iters=6),
    "linear": lambda S, o: S.LinearLR(o, 0.1, 0.7, total_iters=13),
    "linear default": lambda S, o: S.LinearLR(o),
    "polynomial": lambda S, o: S.PolynomialLR(o, 30, power=2.0),
    "cosine": lambda S, o: S.CosineAnnealingLR(o, 10, eta_min=0.001),
    "cosine long": lambda S, o: S.CosineAnnealingLR(o, 100),
    "restarts": lambda S, o: S.CosineAnnealingWarmRestarts(o, 7),
    "restarts growing": lambda S, o: S.CosineAnnealingWarmRestarts(o, 3, T_mult=2, eta_min=0.01),
    "onecycle": lambda S, o: S.OneCycleLR(o, 0.5, total_steps=50),
    "onecycle linear": lambda S, o: S.OneCycleLR(o, [0.5, 1.0], epochs=5, steps_per_epoch=10, anneal_strategy="linear"),
    "onecycle three": lambda S, o: S.OneCycleLR(o, 0.5, total_steps=50, three_phase=True, pct_start=0.4),
    "onecycle three linear": lambda S, o: S.OneCycleLR(o, 0.5, total_steps=60, three_phase=True, anneal_strategy="linear", div_factor=10.0),
    "onecycle no momentum": lambda S, o: S.OneCycleLR(o, 0.5, total_steps=50, cycle_momentum=False, final_div_factor=10.0),
    "onecycle momenta": lambda S, o: S.OneCycleLR(o, 0.5, total_steps=50, base_momentum=[0.5, 0.6], max_momentum=0.9),
    "cyclic": lambda S, o: S.CyclicLR(o, 0.01, 0.5, step_size_up=8),
    "cyclic uneven": lambda S, o: S.CyclicLR(o, [0.01, 0.02], [0.5, 0.7], step_size_up=8, step_size_down=3, mode="triangular2"),
    "cyclic exponential": lambda S, o: S.CyclicLR(o, 0.01, 0.5, step_size_up=5, mode="exp_range", gamma=0.97, cycle_momentum=False),
    "cyclic own": lambda S, o: S.CyclicLR(o, 0.01, 0.5, step_size_up=5, scale_fn=lambda x: 1 / x, base_momentum=0.3, max_momentum=0.6),
    "cyclic own steps": lambda S, o: S.CyclicLR(o, 0.01, 0.5, step_size_up=5, scale_fn=Wave(0.1), scale_mode="iterations"),
    "sequential": lambda S, o: S.SequentialLR(o, [S.LinearLR(o, 0.1, total_iters=5), S.CosineAnnealingLR(o, 30)], [5]),
    "sequential three": lambda S, o: S.SequentialLR(
        o, [S.ConstantLR(o, 0.1, total_iters=4), S.ExponentialLR(o, 0.9), S.CosineAnnealingWarmRestarts(o, 6)], [4, 20]
    ),
    "sequential at once": lambda S, o: S.SequentialLR(o, [S.StepLR(o, 3), S.ExponentialLR(o, 0.9)], [1]),
    "chained": lambda S, o: S.ChainedScheduler([S.ConstantLR(o, 0.1, total_iters=4), S.ExponentialLR(o, 0.9)]),
    "chained three": lambda S, o: S.ChainedScheduler([S.StepLR(o, 5), S.LinearLR(o, 0.5), S.MultiStepLR(o, [9, 30])], optimizer=o),
    "sequence of sequences": lambda S, o: S.SequentialLR(
        o, [S.SequentialLR(o, [S.LinearLR(o), S.StepLR(o, 4)], [6]), S.ExponentialLR(o, 0.9)], [20]
    ),
    "sequence of chains": lambda S, o: S.SequentialLR(
        o, [S.ChainedScheduler([S.LinearLR(o), S.StepLR(o, 4)]), S.ExponentialLR(o, 0.9)], [20]
    ),
}
STEPS = 48


def make_optimizer(T: Any, kind: str = "SGD") -> Any:
    ps = parameters(T)
    options = {"SGD": {"momentum": 0.9}}.get(kind, {})
    return getattr(T.optim, kind)([{"params": ps[:1], "lr": 0.2}, {"params": ps[1:]}], lr=0.1, **options)


def describe(optimizer: Any, scheduler: Any) -> tuple[Any, ...]:
    groups = optimizer.param_groups
    return [g["lr"] for g in groups], list(scheduler.get_last_lr()), [g.get("momentum") for g in groups], [g.get("betas") for g in groups]


def run_schedule(T: Any, make: Any, steps: int = STEPS, kind: str = "SGD") -> list[Any]:
    optimizer = make_optimizer(T, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a nested sequence steps before the optimizer, on both sides
        scheduler = make(T.optim.lr_scheduler, optimizer)
        history = [describe(optimizer, scheduler), repr(optimizer)]
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
            history.append(describe(optimizer, scheduler))
    return history


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    assert run_schedule(calque, SCHEDULES[name]) == run_schedule(torch, SCHEDULES[name])


@pytest.mark.parametrize("name", ["onecycle", "onecycle three", "onecycle momenta", "cyclic", "cyclic own"])
def test_schedule_of_beta(name: str) -> None:
    assert run_schedule(calque, SCHEDULES[name], kind="AdamW") == run_schedule(torch, SCHEDULES[name], kind="AdamW")


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("at", [1, 5, 17])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_resumed(name: str, at: int, tmp_path: Any) -> None:
    """Save after some steps (through a file), make everything anew, load, and go on as if nothing had happened."""
    make = SCHEDULES[name]
    expected = run_schedule(calque, make)
    optimizer = make_optimizer(calque)
    scheduler = make(calque.optim.lr_scheduler, optimizer)
    for _ in range(at):
        optimizer.step()
        scheduler.step()
    calque.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, tmp_path / "state")
    saved = calque.load(tmp_path / "state")
    optimizer = make_optimizer(calque)
    scheduler = make(calque.optim.lr_scheduler, optimizer)
    scheduler.load_state_dict(saved["scheduler"])
    optimizer.load_state_dict(saved["optimizer"])
    for k in range(at, STEPS):
        optimizer.step()
        scheduler.step()
        assert describe(optimizer, scheduler) == expected[k + 2]


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_state_crosses(name: str) -> None:
    """Same entries; PyTorch's state continues here and ours there."""
    make = SCHEDULES[name]
    expected = run_schedule(torch, make, 30)
    for first, second in ((torch, calque), (calque, torch)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = make_optimizer(first)
            scheduler = make(first.optim.lr_scheduler, optimizer)
            for _ in range(11):
                optimizer.step()
                scheduler.step()
            other = make_optimizer(second)
            continued = make(second.optim.lr_scheduler, other)
            state = scheduler.state_dict()
            assert set(state) - OPTIONAL == set(continued.state_dict()) - OPTIONAL
            continued.load_state_dict(copy.deepcopy(state))
            other.load_state_dict(moved(second, optimizer.state_dict()))
            for k in range(11, 30):
                other.step()
                continued.step()
                assert describe(other, continued) == expected[k + 2]


OPTIONAL = {"_scale_fn_ref"}  # a function; PyTorch leaves it out too


METRICS = [5, 4, 3, 3, 3, 3, 3.1, 2.9999, *[2] * 8, 1.5, float("inf"), 1.5, 1.5, 1.5, *[1.4] * 5, -1, -1, *[-2] * 6]
PLATEAUS: list[dict[str, Any]] = [
    {"patience": 2},
    {"patience": 1, "cooldown": 2, "factor": 0.5},
    {"patience": 0, "mode": "max", "factor": 0.7},
    {"patience": 1, "threshold_mode": "abs", "threshold": 0.05},
    {"patience": 1, "mode": "max", "threshold_mode": "abs", "threshold": 0.5},
    {"patience": 0, "min_lr": 0.05},
    {"patience": 0, "min_lr": [0.05, 0.001], "eps": 0.01},
    {"patience": 3, "threshold": 0.5},
]


@pytest.mark.parametrize("options", PLATEAUS, ids=str)
def test_plateau(options: dict[str, Any]) -> None:
    histories = []
    for T in SIDES:
        optimizer = make_optimizer(T)
        scheduler = T.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        history: list[Any] = []
        for k, metric in enumerate(METRICS):
            scheduler.step(T.tensor(float(metric), dtype=T.float64) if k % 2 else metric)
            history.append((describe(optimizer, scheduler), scheduler.best, scheduler.num_bad_epochs, scheduler.in_cooldown))
            if k == 12:
                state = scheduler.state_dict()
                scheduler = T.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=99)
                scheduler.load_state_dict(state)
        histories.append((history, scheduler.state_dict()))
    assert histories[0] == histories[1]
    assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    assert issubclass(calque.optim.lr_scheduler.ReduceLROnPlateau, calque.optim.lr_scheduler.LRScheduler)


def test_schedules_of_one_optimizer_multiply() -> None:
    """Two schedules stepped by hand, and a rate changed by hand, as in PyTorch's documentation."""
    histories = []
    for T in SIDES:
        S, optimizer = T.optim.lr_scheduler, make_optimizer(T)
        first, second = S.ExponentialLR(optimizer, 0.9), S.MultiStepLR(optimizer, [3, 8], 0.1)
        history = []
        for k in range(12):
            optimizer.step()
            first.step()
            second.step()
            if k == 5:
                optimizer.param_groups[0]["lr"] = 7.0
            history.append([describe(optimizer, s) for s in (first, second)])
        histories.append(history)
    assert histories[0] == histories[1]


@pytest.mark.parametrize("name", ["step", "multistep", "exponential", "constant", "linear", "polynomial", "cosine", "lambda"])
def test_last_epoch_and_step_to_an_epoch(name: str) -> None:
    histories = []
    for T in SIDES:
        optimizer = make_optimizer(T)
        SCHEDULES[name](T.optim.lr_scheduler, optimizer)
        again = SCHEDULES[name](T.optim.lr_scheduler, optimizer)
        options = {"step": (T.optim.lr_scheduler.StepLR, 7), "cosine": (T.optim.lr_scheduler.CosineAnnealingLR, 10)}
        history = [describe(optimizer, again)]
        if name in options:
            kind, argument = options[name]
            again = kind(optimizer, argument, last_epoch=8)
            history.append(describe(optimizer, again))
        optimizer.step()
        for epoch in (4, 20, 2):
            with pytest.warns(UserWarning, match="epoch parameter in `scheduler.step"):
                again.step(epoch)
            history.append(describe(optimizer, again))
        histories.append(history)
    assert histories[0] == histories[1]


def test_restarts_at_fractions() -> None:
    histories = []
    for T in SIDES:
        history = []
        for mult in (1, 2):
            optimizer = make_optimizer(T)
            scheduler = T.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4, mult)
            optimizer.step()
            for epoch in (0.25, 3.75, 4, 9.5, 13, 31.9, 2, None, None):
                scheduler.step(epoch)
                history.append((describe(optimizer, scheduler), scheduler.last_epoch))
        histories.append(history)
    assert histories[0] == histories[1]


def test_warnings() -> None:
    for T in SIDES:
        optimizer = make_optimizer(T)
        scheduler = T.optim.lr_scheduler.StepLR(optimizer, 3)
        with pytest.warns(UserWarning, match="before `optimizer.step"):
            scheduler.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scheduler.step()
        with pytest.warns(UserWarning, match="please use `get_last_lr"):
            scheduler.get_lr()


REFUSED_SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "is not an Optimizer": lambda S, o: S.StepLR(o.param_groups, 1),
    "Constant multiplicative factor expected to be between 0 and 1": lambda S, o: S.ConstantLR(o, 2.0),
    "Starting multiplicative factor": lambda S, o: S.LinearLR(o, 0.0),
    "Ending multiplicative factor": lambda S, o: S.LinearLR(o, 0.5, 1.5),
    "Factor should be < 1.0": lambda S, o: S.ReduceLROnPlateau(o, factor=1.0),
    "mode up is unknown!": lambda S, o: S.ReduceLROnPlateau(o, mode="up"),
    "threshold mode up is unknown!": lambda S, o: S.ReduceLROnPlateau(o, threshold_mode="up"),
    "define either total_steps OR (epochs AND steps_per_epoch)": lambda S, o: S.OneCycleLR(o, 0.1, epochs=3),
    "Expected positive integer total_steps, but got 0": lambda S, o: S.OneCycleLR(o, 0.1, total_steps=0),
    "Expected positive integer epochs": lambda S, o: S.OneCycleLR(o, 0.1, epochs=-1, steps_per_epoch=2),
    "Expected float between 0 and 1 pct_start": lambda S, o: S.OneCycleLR(o, 0.1, total_steps=5, pct_start=1.5),
    "anneal_strategy must be one of 'cos' or 'linear', instead got x": lambda S, o: S.OneCycleLR(o, 0.1, total_steps=5, anneal_strategy="x"),
    "max_lr has 3 values, param_groups has 2.": lambda S, o: S.OneCycleLR(o, [0.1] * 3, total_steps=5),
    "mode is invalid and scale_fn is None": lambda S, o: S.CyclicLR(o, 0.1, 1.0, mode="x"),
    "when resuming scheduler": lambda S, o: S.StepLR(o, 3, last_epoch=4),
    "does not support `ReduceLROnPlateau`": lambda S, o: S.SequentialLR(o, [S.ReduceLROnPlateau(o)], []),
    "number of milestones to be equal to 1": lambda S, o: S.SequentialLR(o, [S.StepLR(o, 3)], [2]),
    "but got no scheduler": lambda S, o: S.ChainedScheduler([]),
}


@pytest.mark.parametrize("words", REFUSED_SCHEDULES)
def test_schedule_refusals_in_pytorchs_words(words: str) -> None:
    errors = []
    for T in SIDES:
        with pytest.raises((ValueError, TypeError, KeyError)) as caught:
            REFUSED_SCHEDULES[words](T.optim.lr_scheduler, make_optimizer(T))
        assert words in str(caught.value)
        errors.append(caught.value)
    assert isinstance(errors[0], next(k for k in (ValueError, TypeError, KeyError) if isinstance(errors[1], k)))


def test_too_many_steps_of_a_cycle() -> None:
    for T in SIDES:
        optimizer = make_optimizer(T)
        scheduler = T.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)
        optimizer.step()
        for _ in range(3):
            scheduler.step()
        with pytest.raises(ValueError, match="Tried to step 4 times. The specified number of total steps is 3"):
            scheduler.step()


def test_cycle_needs_a_momentum() -> None:
    for T in SIDES:
        for make in (lambda S, o: S.OneCycleLR(o, 0.1, total_steps=5), lambda S, o: S.CyclicLR(o, 0.1, 1.0)):
            with pytest.raises(ValueError, match="must support momentum or beta1 with `cycle_momentum` option enabled"):
                make(T.optim.lr_scheduler, make_optimizer(T, "Adagrad"))


def test_same_names() -> None:
    mine, reference = calque.optim.lr_scheduler, torch.optim.lr_scheduler
    assert set(mine.__all__) == set(reference.__all__)
    for name in reference.__all__:
        a, b = (inspect.signature(getattr(S, name)).parameters.values() for S in (mine, reference))
        assert [(p.name, p.default) for p in a] == [(p.name, p.default) for p in b], name
