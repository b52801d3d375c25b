"""Optimizers and gradient clipping against PyTorch: values, state dicts in both directions, text, hooks, refusals.

Values are float64, so that a tolerance of 1e-12 leaves no room for another formula.
"""

from __future__ import annotations

import inspect
import io
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.optim_harness import SIDES, base_module, check_close, check_same_state, moved, numbers, parameters, set_gradients  # noqa: E402

pytestmark = pytest.mark.oracle


def grid(**options: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


CASES: list[tuple[str, dict[str, Any]]] = [
    *(("SGD", k) for k in grid(lr=(0.1,), momentum=(0, 0.9), weight_decay=(0, 0.1), maximize=(False, True))),
    *(("SGD", k) for k in grid(lr=(0.1,), momentum=(0.9,), dampening=(0.3,), weight_decay=(0, 0.1))),
    *(("SGD", k) for k in grid(lr=(0.1,), momentum=(0.9,), nesterov=(True,), weight_decay=(0, 0.1), maximize=(False, True))),
    *(("Adam", k) for k in grid(lr=(0.1,), weight_decay=(0, 0.1), amsgrad=(False, True), maximize=(False, True))),
    ("Adam", {"lr": 0.1, "betas": (0.5, 0.7), "eps": 1e-3, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adam", {"betas": (0.0, 0.0)}),
    *(("AdamW", k) for k in grid(lr=(0.1,), weight_decay=(0, 0.01), amsgrad=(False, True), maximize=(False, True))),
    ("AdamW", {}),
    *(("RMSprop", k) for k in grid(momentum=(0, 0.9), centered=(False, True), weight_decay=(0, 0.1), maximize=(False, True))),
    ("RMSprop", {"alpha": 0.5, "eps": 1e-2}),
    *(("Adagrad", k) for k in grid(lr_decay=(0, 0.1), weight_decay=(0, 0.1), maximize=(False, True))),
    ("Adagrad", {"initial_accumulator_value": 0.5, "eps": 1e-2}),
    *(("Adadelta", k) for k in grid(lr=(0.5,), rho=(0.9, 0.5), weight_decay=(0, 0.1), maximize=(False, True))),
    *(("Adamax", k) for k in grid(betas=((0.9, 0.999), (0.5, 0.7)), weight_decay=(0, 0.1), maximize=(False, True))),
    *(("NAdam", k) for k in grid(lr=(0.1,), weight_decay=(0, 0.1), decoupled_weight_decay=(False, True), maximize=(False, True))),
    ("NAdam", {"momentum_decay": 0.5, "betas": (0.5, 0.7)}),
    *(("RAdam", k) for k in grid(lr=(0.1,), weight_decay=(0, 0.1), decoupled_weight_decay=(False, True), maximize=(False, True))),
    ("RAdam", {"betas": (0.5, 0.7)}),
    *(("ASGD", k) for k in grid(t0=(1e6, 2), weight_decay=(0, 0.1), maximize=(False, True))),
    ("ASGD", {"lr": 0.5, "lambd": 0.1, "alpha": 0.5, "t0": 0}),
    *(("Rprop", k) for k in grid(lr=(0.1,), etas=((0.5, 1.2), (0.9, 1.1)), step_sizes=((1e-6, 50), (0.09, 0.11)), maximize=(False, True))),
    *(("Adafactor", k) for k in grid(lr=(0.1,), weight_decay=(0, 0.1), eps=((None, 1e-3), (0.3, 1.0)), maximize=(False, True))),
    ("Adafactor", {"beta2_decay": -0.5, "d": 2.0}),
]
KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"amsgrad": True}, "AdamW": {}, "RMSprop": {"momentum": 0.9, "centered": True}, "Adagrad": {},
    "Adadelta": {}, "Adamax": {}, "NAdam": {}, "RAdam": {}, "ASGD": {}, "Rprop": {}, "Adafactor": {},
}  # fmt: skip
# Adafactor has no such option, Rprop no weight decay, and PyTorch's own gradient through Adamax is refused.
DIFFERENTIABLE = [name for name in KINDS if name not in ("Adafactor", "Rprop", "Adamax")]


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else ",".join(f"{k}={x}" for k, x in v.items()))
def test_every_option(name: str, options: dict[str, Any]) -> None:
    """Values, state and text over steps; one parameter has no gradient at first, another none in the middle."""
    both = [(T, ps, getattr(T.optim, name)(ps, **options)) for T, ps in ((T, parameters(T)) for T in SIDES)]
    assert repr(both[0][2]) == repr(both[1][2])
    check_same_state(both[0][2], both[1][2])
    for step in range(6):
        for T, ps, optimizer in both:
            set_gradients(T, ps, step, skip=(1,) if step == 0 else (0,) if step == 3 else ())
            assert optimizer.step() is None
        for a, b in zip(both[0][1], both[1][1], strict=True):
            check_close(a, b)
    check_same_state(both[0][2], both[1][2])


@pytest.mark.parametrize("name", KINDS)
def test_float32_within_rounding(name: str) -> None:
    results = []
    for T in SIDES:
        ps = parameters(T, "float32")
        optimizer = getattr(T.optim, name)(ps, **KINDS[name])
        for step in range(20):
            set_gradients(T, ps, step)
            optimizer.step()
        results.append(ps)
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(numbers(a), numbers(b), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", KINDS)
def test_groups(name: str) -> None:
    """Options of groups, a group added later, text of all groups."""
    both = []
    for T in SIDES:
        ps = parameters(T)
        optimizer = getattr(T.optim, name)([{"params": ps[0], "lr": 0.3}, {"params": [ps[1]], "weight_decay": 0.2}], **KINDS[name])
        both.append((T, ps, optimizer))
    for step in range(4):
        for T, ps, optimizer in both:
            if step == 2:
                group = {"params": [ps[2]], "lr": 0.01}
                optimizer.add_param_group(group)
                assert optimizer.param_groups[2] is group
            set_gradients(T, ps, step)
            optimizer.step()
    assert repr(both[0][2]) == repr(both[1][2])
    check_same_state(both[0][2], both[1][2])
    for a, b in zip(both[0][1], both[1][1], strict=True):
        check_close(a, b)


def test_named_parameters() -> None:
    texts = []
    for T in SIDES:
        model = T.nn.Linear(2, 1)
        optimizer = T.optim.SGD(model.named_parameters(), lr=0.1)
        assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
        assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
        texts.append(repr(optimizer))
        with pytest.raises(ValueError, match="with/without names"):
            optimizer.add_param_group({"params": [T.ones(1, requires_grad=True)]})
        with pytest.raises(ValueError, match="Some param names are missing"):
            T.optim.SGD([("a", T.ones(1)), T.ones(1)], lr=0.1)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("direction", ["from PyTorch", "to PyTorch"])
@pytest.mark.parametrize("name", KINDS)
def test_state_dict_crosses(name: str, direction: str) -> None:
    """Four steps on one side, four more on the other, as eight on one side."""
    first, second = (torch, calque) if direction == "from PyTorch" else (calque, torch)
    ps = parameters(first)
    old = getattr(first.optim, name)(ps, **KINDS[name])
    for step in range(4):
        set_gradients(first, ps, step)
        old.step()
    qs = [second.tensor(numbers(p).copy()).requires_grad_() for p in ps]
    new = getattr(second.optim, name)(qs, lr=123.0)
    new.load_state_dict(moved(second, old.state_dict()))
    for step in range(4, 8):
        for T, xs, optimizer in ((first, ps, old), (second, qs, new)):
            set_gradients(T, xs, step)
            optimizer.step()
    rounds = first is calque and name in ("NAdam", "ASGD")  # loading gives PyTorch's averages of rates the dtype of the parameter
    for p, q in zip(ps, qs, strict=True):
        check_close(q, p, 1e-6 if rounds else 1e-12)
    if rounds:
        return
    if first is torch:
        check_same_state(new, old)
    else:
        check_same_state(old, new)


def test_loading_copies_and_checks_first() -> None:
    for T in SIDES:
        ps = parameters(T)
        old, new = (T.optim.Adam(ps) for _ in range(2))
        set_gradients(T, ps, 0)
        old.step()
        state = old.state_dict()
        new.load_state_dict(state)
        assert T is torch or new.state[ps[0]]["exp_avg"].data_ptr() != state["state"][0]["exp_avg"].data_ptr()  # PyTorch shares memory
        with pytest.raises(ValueError, match="different number of parameter groups"):
            T.optim.Adam([{"params": ps[:1]}, {"params": ps[1:]}]).load_state_dict(state)
        with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
            T.optim.Adam(ps[:1]).load_state_dict(state)


def test_adamw_stays_decoupled() -> None:
    for T in SIDES:
        ps = parameters(T)
        optimizer = T.optim.AdamW(ps)
        optimizer.load_state_dict(T.optim.Adam(ps).state_dict())
        assert optimizer.param_groups[0]["decoupled_weight_decay"] is True


@pytest.mark.parametrize("name", KINDS)
def test_closure(name: str) -> None:
    """The closure runs with gradients even inside no_grad, once, and its value is returned."""
    results = []
    for T in SIDES:
        w = T.tensor([1.0, -2.0], dtype=T.float64).requires_grad_()
        optimizer = getattr(T.optim, name)([w], lr=0.1)
        losses = []
        for _ in range(5):

            def closure(T: Any = T, w: Any = w, optimizer: Any = optimizer) -> Any:
                assert T.is_grad_enabled()
                optimizer.zero_grad()
                loss = (w * w).sum() + w.sum()
                loss.backward()
                return loss

            with T.no_grad():
                losses.append(optimizer.step(closure).item())
        results.append((losses, numbers(w)))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_zero_grad() -> None:
    for T in SIDES:
        ps = parameters(T)
        optimizer = T.optim.SGD(ps, lr=0.1)
        set_gradients(T, ps, 0, skip=(1,))
        kept = ps[0].grad
        optimizer.zero_grad(set_to_none=False)
        assert ps[0].grad is kept and ps[0].grad.tolist() == [[0.0, 0.0]] * 3 and ps[1].grad is None
        w = T.ones(2, requires_grad=True)
        optimizer = T.optim.SGD([w], lr=0.1)
        (w * w * w).sum().backward(create_graph=True)
        assert w.grad.requires_grad
        optimizer.zero_grad(set_to_none=False)
        assert not w.grad.requires_grad and w.grad.tolist() == [0.0, 0.0]
        optimizer.zero_grad()
        assert w.grad is None


def test_hooks() -> None:
    logs = []
    for T in SIDES:
        log: list[Any] = []
        w = T.ones(1, requires_grad=True)
        optimizer = T.optim.SGD([w], lr=0.5)

        def closure(log: list[Any] = log, w: Any = w) -> float:
            log.append("closure")
            w.grad = w.detach() * 0 + 1
            return 3.0

        def pre(o: Any, args: Any, kwargs: Any, log: list[Any] = log) -> None:
            log.append(("pre", type(o).__name__, len(args), sorted(kwargs)))

        def post(o: Any, args: Any, kwargs: Any, log: list[Any] = log, w: Any = w) -> None:
            log.append(("post", type(o).__name__, len(args), sorted(kwargs), w.item()))

        handles = [optimizer.register_step_pre_hook(pre), optimizer.register_step_post_hook(post)]
        assert optimizer.step(closure) == 3.0
        optimizer.step(closure=closure)
        optimizer.step()
        for handle in handles:
            handle.remove()
        optimizer.step()
        extra = optimizer.register_step_pre_hook(lambda o, args, kwargs, f=closure: ((o, f), {}))
        assert optimizer.step() == 3.0
        extra.remove()
        everywhere = [base_module(T).register_optimizer_step_pre_hook(pre), base_module(T).register_optimizer_step_post_hook(post)]
        optimizer.step()
        for handle in everywhere:
            handle.remove()
        optimizer.step()
        log.append(w.item())
        logs.append(log)
    assert logs[0] == logs[1]


def test_state_dict_hooks() -> None:
    logs = []
    for T in SIDES:
        log: list[Any] = []
        optimizer = T.optim.SGD([T.ones(1, requires_grad=True)], lr=0.5)
        optimizer.register_state_dict_pre_hook(lambda o, log=log: log.append("save"))
        optimizer.register_state_dict_pre_hook(lambda o, log=log: log.append("before save"), prepend=True)
        optimizer.register_state_dict_post_hook(lambda o, s: {**s, "more": 1})
        optimizer.register_load_state_dict_pre_hook(lambda o, s, log=log: log.append(sorted(s)))
        optimizer.register_load_state_dict_post_hook(lambda o, log=log: log.append("loaded"))
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        logs.append((log, sorted(state)))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_differentiable(name: str) -> None:
    """Gradients flow through three updates to the start value and to the gradients."""
    results = []
    for T in SIDES:
        start = T.tensor([0.5, -1.5], dtype=T.float64).requires_grad_()
        gradient = T.tensor([0.3, 0.2], dtype=T.float64).requires_grad_()
        p = start.clone()
        optimizer = getattr(T.optim, name)([p], lr=0.1, weight_decay=0.1, differentiable=True)
        for k in range(3):
            p.grad = gradient * (k + 1)
            optimizer.step()
        (p * p).sum().backward()
        results.append((numbers(p), numbers(start.grad), numbers(gradient.grad)))
    limit = {"Adam": 1e-4, "AdamW": 1e-4, "NAdam": 1e-5, "RAdam": 1e-9}.get(name, 1e-9)  # PyTorch computes 1 - beta ** step in float32 here
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=limit)


@pytest.mark.parametrize("name", KINDS)
def test_rate_as_a_tensor(name: str) -> None:
    results = []
    for T in SIDES:
        ps = parameters(T)
        rate = T.tensor(0.25, dtype=T.float64)
        optimizer = getattr(T.optim, name)(ps, lr=rate)
        scheduler = T.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(3):
            set_gradients(T, ps, step)
            optimizer.step()
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] is rate
        with pytest.raises(ValueError, match="1-element"):
            getattr(T.optim, name)(ps, lr=T.ones(2))
        results.append((ps, rate, repr(optimizer)))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        check_close(a, b)
    check_close(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]


def sparse_step(T: Any) -> None:
    w = T.ones(2, requires_grad=True)
    optimizer = T.optim.SparseAdam([w])
    w.sum().backward()
    optimizer.step()


REFUSED: dict[str, Callable[[Any, list[Any]], Any]] = {
    "Invalid learning rate": lambda T, ps: T.optim.SGD(ps, lr=-1),
    "Invalid momentum value": lambda T, ps: T.optim.SGD(ps, momentum=-1),
    "Invalid weight_decay value": lambda T, ps: T.optim.Adam(ps, weight_decay=-1),
    "Invalid epsilon value": lambda T, ps: T.optim.RMSprop(ps, eps=-1),
    "Invalid beta parameter at index 0": lambda T, ps: T.optim.AdamW(ps, betas=(1.0, 0.9)),
    "Invalid beta parameter at index 1": lambda T, ps: T.optim.Adam(ps, betas=(0.9, 1.5)),
    "Invalid alpha value": lambda T, ps: T.optim.RMSprop(ps, alpha=-1),
    "Invalid rho value": lambda T, ps: T.optim.Adadelta(ps, rho=1.5),
    "Invalid eta values": lambda T, ps: T.optim.Rprop(ps, etas=(1.5, 2)),
    "Invalid momentum_decay value": lambda T, ps: T.optim.NAdam(ps, momentum_decay=-1),
    "Muon only supports 2D parameters": lambda T, ps: T.optim.Muon(ps),
    "SparseAdam does not support dense gradients, please consider Adam instead": lambda T, ps: sparse_step(T),
    "Invalid lr_decay value": lambda T, ps: T.optim.Adagrad(ps, lr_decay=-1),
    "Invalid initial_accumulator_value value": lambda T, ps: T.optim.Adagrad(ps, initial_accumulator_value=-1),
    "Nesterov momentum requires a momentum and zero dampening": lambda T, ps: T.optim.SGD(ps, nesterov=True),
    "optimizer got an empty parameter list": lambda T, ps: T.optim.SGD([]),
    "some parameters appear in more than one parameter group": lambda T, ps: T.optim.SGD([{"params": ps}, {"params": ps[:1]}]),
    "can't optimize a non-leaf Tensor": lambda T, ps: T.optim.SGD([ps[0] * 2]),
    "`fused`": lambda T, ps: T.optim.SGD(ps, fused=True, differentiable=True),
    "cannot be `True` together": lambda T, ps: T.optim.Adam(ps, fused=True, foreach=True),
    "should be an iterable of Tensors or dicts": lambda T, ps: T.optim.SGD(ps[0]),
    "optimizer can only optimize Tensors, but one of the params is": lambda T, ps: T.optim.SGD([1.0]),
    "organized in ordered collections": lambda T, ps: T.optim.SGD([{"params": set(ps)}]),
    "param_group must be a dict": lambda T, ps: T.optim.SGD(ps).add_param_group(ps),
    "didn't specify a value of required optimization parameter lr": lambda T, ps: T.optim.Optimizer(ps, {"lr": base_module(T).required}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals_in_pytorchs_words(words: str) -> None:
    errors = []
    for T in SIDES:
        with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
            REFUSED[words](T, parameters(T))
        assert words in str(caught.value)
        errors.append(caught.value)
    kind = next(k for k in (ValueError, TypeError, RuntimeError) if isinstance(errors[1], k))
    assert isinstance(errors[0], kind)


@pytest.mark.parametrize("options", grid(shape=((4, 3), (3, 5), (2, 2)), nesterov=(True, False), adjust_lr_fn=(None, "match_rms_adamw")), ids=str)
def test_muon(options: dict[str, Any]) -> None:
    """Its iteration is bfloat16 in both: products of that type agree in two digits, so updates are compared by their size."""
    shape = options.pop("shape")
    rng = np.random.default_rng(7)
    start, gradients = rng.normal(size=shape), rng.normal(size=(4, *shape))
    results = []
    for T in SIDES:
        p = T.tensor(start.copy()).requires_grad_()
        optimizer = T.optim.Muon([p], lr=0.1, **options)
        for g in gradients:
            p.grad = T.tensor(g)
            optimizer.step()
        results.append((p, optimizer))
    np.testing.assert_allclose(numbers(results[0][0]), numbers(results[1][0]), atol=0.02)
    check_same_state(results[0][1], results[1][1])


@pytest.mark.parametrize("name", [*KINDS, "Muon", "SparseAdam"])
def test_arguments(name: str) -> None:
    """Same names, order and defaults of arguments."""
    def listed(T: Any) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.default, p.kind) for p in inspect.signature(getattr(T.optim, name)).parameters.values()]

    assert listed(calque) == listed(torch)
    for option in ("foreach", "fused", "capturable", "differentiable"):
        if option in inspect.signature(getattr(calque.optim, name)).parameters:
            ps = [calque.ones(2).requires_grad_().clone() if option == "differentiable" else calque.ones(2, requires_grad=True)]
            optimizer = getattr(calque.optim, name)(ps, **{option: True})
            ps[0].grad = calque.ones(2)
            optimizer.step()
            assert optimizer.param_groups[0][option] is True


def test_own_optimizer_as_written_for_pytorch() -> None:
    results = []
    for T in SIDES:

        class Sign(T.optim.Optimizer):
            def __init__(self, params: Any, lr: float = 0.1) -> None:
                super().__init__(params, {"lr": lr})

            @torch.no_grad()
            @calque.no_grad()
            def step(self, closure: Any = None) -> Any:
                for group in self.param_groups:
                    for p in group["params"]:
                        state = self.state[p]
                        if not state:
                            state["step"], state["total"] = 0, p.detach() * 0
                        state["step"] += 1
                        state["total"].add_(p.grad.abs())
                        p.add_(p.grad.sign(), alpha=-group["lr"])

        ps = parameters(T)
        optimizer = Sign(ps)
        log: list[str] = []
        optimizer.register_step_post_hook(lambda *_, log=log: log.append("post"))
        scheduler = T.optim.lr_scheduler.StepLR(optimizer, 2)
        for step in range(4):
            set_gradients(T, ps, step)
            optimizer.step()
            scheduler.step()
        state = optimizer.state_dict()
        again = Sign(ps)
        again.load_state_dict(state)
        assert again.state[ps[0]]["step"] == 4 and log == ["post"] * 4
        results.append((ps, state["state"][0]["total"], repr(again)))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        check_close(a, b)
    check_close(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 0.5, 3, float("inf"), "inf", 0])
@pytest.mark.parametrize("max_norm", [0.3, 100.0, 0])
def test_clip_grad_norm(norm_type: Any, max_norm: float) -> None:
    results = []
    for T in SIDES:
        ps = parameters(T)
        set_gradients(T, ps, 0, skip=(1,))
        results.append([T.nn.utils.clip_grad_norm_(ps, max_norm, norm_type), *(p.grad for p in ps if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        check_close(a, b)


def test_clip_grad_edges() -> None:
    for T in SIDES:
        ps = parameters(T)
        total = T.nn.utils.clip_grad_norm_(ps, 1.0)
        assert total.item() == 0.0 and total.dtype == T.float32
        with pytest.warns(UserWarning, match="empty generator"):
            T.nn.utils.clip_grad_norm_((p for p in []), 1.0)
        assert T.nn.utils.clip_grad_norm_([], 1.0).item() == 0.0
        set_gradients(T, ps, 0)
        ps[0].grad[0, 0] = float("inf")
        with pytest.raises((RuntimeError, ArithmeticError), match="is non-finite, so it cannot be clipped|non-finite"):
            T.nn.utils.clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)
        T.nn.utils.clip_grad_norm_(ps, 1.0)
        assert ps[0].grad.isnan().sum().item() == 1 and ps[1].grad.tolist() == [0.0] * 4
        w = T.ones(2, dtype=T.float64, requires_grad=True)
        w.grad = T.tensor([3.0, 4.0], dtype=T.float64)
        assert T.nn.utils.get_total_norm(w.grad).item() == 5.0
        T.nn.utils.clip_grads_with_norm_(w, 1.0, T.tensor(10.0, dtype=T.float64))
        np.testing.assert_allclose(numbers(w.grad), [0.3, 0.4], rtol=1e-6)


def test_clip_grad_value() -> None:
    results = []
    for T in SIDES:
        ps = parameters(T)
        set_gradients(T, ps, 0, skip=(1,))
        ps[0].grad[0, 0] = float("nan")
        kept = ps[0].grad
        T.nn.utils.clip_grad_value_(ps, 0.5)
        T.nn.utils.clip_grad_value_(ps[2], 0.1)
        assert ps[0].grad is kept
        results.append([p.grad for p in ps if p.grad is not None])
    for a, b in zip(*results, strict=True):
        check_close(a, b)


def test_optimizer_state_in_a_file() -> None:
    """`calque.save` keeps what `load_state_dict` needs."""
    ps = parameters(calque)
    optimizer = calque.optim.Adam(ps)
    set_gradients(calque, ps, 0)
    optimizer.step()
    stream = io.BytesIO()
    calque.save(optimizer.state_dict(), stream)
    stream.seek(0)
    again = calque.optim.Adam(ps)
    again.load_state_dict(calque.load(stream))
    assert again.state[ps[0]]["step"] == 1
    assert again.state[ps[0]]["exp_avg"].tolist() == optimizer.state[ps[0]]["exp_avg"].tolist()


def test_wrappers_that_never_call_init() -> None:
    """Sharpness-aware minimisation and averages of older weights are often written as an Optimizer that only has another one."""
    results = []
    for T in SIDES:

        class Wrapper(T.optim.Optimizer):
            def __init__(self, base: Any) -> None:
                self.optimizer = base
                self.param_groups, self.state, self.defaults = base.param_groups, base.state, base.defaults

            def step(self, closure: Any = None) -> Any:
                return self.optimizer.step(closure)

        ps = parameters(T)
        wrapper = Wrapper(T.optim.SGD(ps, lr=0.1, momentum=0.9))
        scheduler = T.optim.lr_scheduler.StepLR(wrapper, 2)
        for step in range(4):
            set_gradients(T, ps, step)
            wrapper.step()
            scheduler.step()
            wrapper.zero_grad()
        assert all(p.grad is None for p in ps)
        results.append((ps, wrapper.param_groups[0]["lr"]))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        check_close(a, b)
    assert results[0][1] == results[1][1]


def test_parameters_and_state_for_a_while() -> None:
    results = []
    for T in SIDES:
        ps = parameters(T)
        optimizer = T.optim.Adam(ps)
        set_gradients(T, ps, 0)
        optimizer.step()
        before = [numbers(p).copy() for p in ps]
        others, state = parameters(T), optimizer.state_dict()
        set_gradients(T, others, 1)
        with T.optim.swap_in_optimizer_params_and_state(optimizer, {str(k): p for k, p in enumerate(others)}, state):
            optimizer.step()
        assert all((numbers(p) == old).all() for p, old in zip(ps, before, strict=True)) and optimizer.param_groups[0]["params"][0] is ps[0]
        results.append([*others, *(s["exp_avg"] for s in state["state"].values())])
    for a, b in zip(*results, strict=True):
        check_close(a, b)


def test_groups_by_device_and_dtype() -> None:
    for T in SIDES:
        tensors = [T.ones(1), T.ones(2, dtype=T.float64), T.ones(3)]
        found = T.optim.Optimizer._group_tensors_by_device_and_dtype([tensors, [None, tensors[1], None]], with_indices=True)
        lists = {str(dtype): ([len(x) for x in values[0]], places) for (_, dtype), (values, places) in found.items()}
        assert lists == {"torch.float32": ([1, 3], [0, 2]), "torch.float64": ([2], [1])}


@pytest.mark.parametrize("nesterov", [False, True])
def test_differentiable_momentum(nesterov: bool) -> None:
    """The first velocity has no history: it is the gradient, detached."""
    results = []
    for T in SIDES:
        start = T.tensor([0.5, -1.5], dtype=T.float64).requires_grad_()
        p = start.clone()
        optimizer = T.optim.SGD([p], lr=0.1, momentum=0.9, nesterov=nesterov, differentiable=True)
        for k in range(3):
            p.grad = start.clone() * (k + 1)
            optimizer.step()
        (p * p).sum().backward()
        results.append((p.tolist(), start.grad.tolist()))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12)


def test_programs_keep_state_of_their_own() -> None:
    """Under a key that is no parameter."""
    for T in SIDES:
        optimizer = T.optim.Adam([T.ones(2, requires_grad=True)], lr=0.1)
        optimizer.state["of a program"] = 3
        assert optimizer.state_dict()["state"] == {"of a program": 3}
