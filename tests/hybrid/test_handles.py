"""What hybridized calls do to handles rather than to values: results that are views or are saved for backward, metadata of arguments changed in
place, histories. Every call is compared with the function as written, with poisoned memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.config import settings
from calque.base.errors import AutogradError
from tests.hybrid.common import replays

CALLS = 6


@pytest.fixture(autouse=True, params=[False, True], ids=["", "verify"])
def _poison(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that nobody has written to holds NaN."""
    monkeypatch.setattr(settings, "poison", True)
    monkeypatch.setattr(settings, "verify", request.param)
    return


def numbers(k: int, *shape: int) -> Any:
    """An argument of call number k."""
    return (calque.arange(float(calque.Size(shape).numel())) + 1).reshape(*shape) * (k + 1)


def alike(function: Callable[..., Any], use: Callable[[Callable[..., Any], int], Any], calls: int = CALLS) -> int:
    """Compare what `use(function, k)` gives hybridized and as written; how many of the calls were replayed."""
    call = calque.compile(function)

    def both() -> None:
        for k in range(calls):
            assert use(call, k) == use(function, k), f"call {k + 1}"

    return replays(both)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "view": lambda x: x.view(-1), "slice": lambda x: x[1:], "T": lambda x: x.T, "chunk": lambda x: x.chunk(2)[1],
    "unsqueeze": lambda x: x.unsqueeze(0), "detach": lambda x: x.detach(), "expand": lambda x: x.expand(2, 2, 3), "select": lambda x: x[0],
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["leaf", "made", "captured"])
def test_a_returned_view_that_is_saved_for_backward(view: str, kind: str) -> None:
    cut, w = VIEWS[view], numbers(2, 2, 3).requires_grad_()

    def function(x: Any) -> Any:
        v = cut(w if kind == "captured" else x)
        return v, v * v * x.sum()

    def use(call: Any, k: int) -> Any:
        x = leaf = numbers(k, 2, 3).requires_grad_()
        if kind == "made":
            x = leaf * 2
        w.grad = None
        v, product = call(x)
        shown = v.tolist()
        (product.sum() + v.sum()).backward()
        return shown, v.tolist(), product.tolist(), leaf.grad.tolist(), w.grad is not None and w.grad.tolist()

    assert alike(function, use) >= CALLS - 3


class Flat(nn.Module):
    """A module that gives back its flattened input, too."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        calque.manual_seed(0)
        self.linear = nn.Linear(inputs, 2)
        self.hidden = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        x = x.flatten(1)
        features = self.linear(x)
        return x, features, self.hidden(features)


@pytest.mark.parametrize("needs", [False, True])
def test_a_module_that_returns_its_flattened_input_and_its_features(needs: bool) -> None:
    """Features are saved for the gradient of what comes after them: replays took those of an earlier call."""
    found = []
    for hybrid in (False, True):
        model = Flat(6)
        if hybrid:
            model.hybridize()
        seen: list[Any] = []
        for k in range(CALLS):
            x = numbers(k, 2, 3, 2).requires_grad_(needs)
            model.zero_grad()
            flat, features, out = model(x)
            (flat.sum() + features.sum() + (out * out).sum()).backward()
            seen += [flat.tolist(), features.tolist(), out.tolist(), x.grad is not None and x.grad.tolist()]
            seen += [p.grad.tolist() for p in model.parameters()]
        found.append(seen)
    assert found[0] == found[1]


def test_a_result_that_another_result_needs_for_its_gradient() -> None:
    def use(call: Any, k: int) -> Any:
        x = numbers(k, 3).requires_grad_()
        z = call(x)[1]
        z.sum().backward()
        return x.grad.tolist()

    def function(x: Any) -> Any:
        y = x * 2
        return y, y * y

    assert alike(function, use) >= CALLS - 3


@pytest.mark.parametrize("written", ["view", "argument", "base"])
def test_a_write_to_a_view_or_what_it_shows_changes_both_histories(written: str) -> None:
    def use(call: Any, k: int) -> Any:
        leaf = numbers(k, 2, 3).requires_grad_()
        base = leaf * 2
        x = base[0:2] if written == "base" else base
        v = call(x)
        {"view": v, "argument": x, "base": base}[written].mul_(3)
        (x.sum() + 2 * v.sum()).backward()
        return v.tolist(), x.tolist(), leaf.grad.tolist()

    assert alike(lambda x: x.view(-1), use) >= CALLS - 3


@pytest.mark.parametrize("how", ["set_", "data"])
def test_a_view_of_an_argument_that_was_a_view_of_something_else(how: str) -> None:
    """`set_` and `data` leave the base of the handle what it was, as in PyTorch: a write to the view changes the history of both."""

    def use(call: Any, k: int) -> Any:
        w = numbers(k, 3).requires_grad_()
        base = numbers(k, 2, 3)
        x = base[0]
        if how == "set_":
            x.set_(numbers(k + 1, 3))
        else:
            x.data = numbers(k + 1, 3)
        v = call(x)
        v.mul_(w)
        x.sum().backward()
        return v.tolist(), x.tolist(), x.requires_grad, base.requires_grad, base.tolist(), w.grad.tolist()

    assert alike(lambda x: x[:], use) > 0


@pytest.mark.parametrize("kind", ["plain", "view", "leaf", "made"])
@pytest.mark.parametrize("other", ["of its own", "a part", "turned"])
def test_data_of_an_argument_that_is_exchanged_before_the_gradient(kind: str, other: str) -> None:
    """A graph has saved the handle, as in PyTorch; also that of a call which is only recorded."""
    w = numbers(1, 3).requires_grad_()

    def use(call: Any, k: int) -> Any:
        x = numbers(k, 2, 3)[1] if kind == "view" else numbers(k, 3)
        leaf = x
        if kind in ("leaf", "made"):
            leaf = x.requires_grad_()
            x = x * 1 if kind == "made" else x
        w.grad = None
        out = call(x)
        x.data = {"of its own": lambda: x.data * 10, "a part": lambda: numbers(k + 1, 2, 3)[1], "turned": lambda: numbers(k, 3, 2).t()[0]}[other]()
        out.sum().backward()
        return w.grad.tolist(), out.tolist(), x.tolist(), leaf.grad is not None and leaf.grad.tolist()

    assert alike(lambda x: x * w.exp(), use) > 0


@pytest.mark.parametrize("keep", [False, True])
def test_a_pass_frees_what_it_has_used(keep: bool) -> None:
    """A result whose gradient needs nothing that was saved can be differentiated again, also beside one that cannot."""

    def function(x: Any) -> Any:
        y = x * 2
        return y.view(-1), y * y, x.exp().sum() + 1

    def use(call: Any, k: int) -> Any:
        seen = []
        for order in ("v v", "v s v s", "s v v s", "e e s v", "s s v", "v e s e", "vs v", "vs s v", "e v e", "ve s", "vse v"):
            x = numbers(k, 2, 2).requires_grad_()
            named = dict(zip("vse", call(x), strict=True))
            for names in order.split():
                try:
                    sum(named[name].sum() for name in names).backward(retain_graph=keep or None)
                    seen.append(x.grad.tolist())
                except AutogradError as error:
                    seen.append("a second time" in str(error))
        return seen

    assert alike(function, use) >= CALLS - 3


def test_gradients_through_what_the_call_has_used_are_refused() -> None:
    """Whichever are asked for."""
    w = numbers(1, 3).requires_grad_()

    def function(x: Any) -> Any:
        y = w * x
        calque.autograd.grad((y.sum() * w).sum(), w)
        return y

    def use(call: Any, k: int) -> Any:
        x = numbers(k, 3).requires_grad_()
        seen = []
        for wanted in ([x], [w], [x * 1]):
            out = call(x)
            seen.append(out.tolist())
            try:
                seen.append(calque.autograd.grad(out.sum(), wanted, allow_unused=True)[0])
            except AutogradError as error:
                seen.append("a second time" in str(error))
        return seen, out.requires_grad

    assert alike(function, use) >= CALLS - 3


def test_results_that_overlap_share_their_history() -> None:
    def function(x: Any) -> Any:
        h = x * 2
        return h[0:2], h[1:3]

    def use(call: Any, k: int) -> Any:
        x = numbers(k, 3).requires_grad_()
        first, second = call(x)
        first.mul_(3)
        second.sum().backward()
        return second.tolist(), x.grad.tolist()

    assert alike(function, use) >= CALLS - 3


def test_what_the_caller_does_to_the_handle_of_a_result_is_nothing_to_later_calls() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        return y, y * y

    def use(call: Any, k: int) -> Any:
        x = numbers(k, 2, 2).requires_grad_()
        y, z = call(x)
        (z.sum() + y.sum()).backward()
        y.t_()
        return y.tolist(), x.grad.tolist()

    assert alike(function, use) >= CALLS - 3


CHANGES: dict[str, Callable[[Any], Any]] = {
    "t_": lambda x: x.t_(), "unsqueeze_": lambda x: x.unsqueeze_(0), "squeeze_": lambda x: x.squeeze_(), "transpose_": lambda x: x.transpose_(0, 1),
    "resize_": lambda x: x.resize_(3), "set_": lambda x: x.set_(calque.ones(2, 2)), "data": lambda x: setattr(x, "data", calque.ones(2, 2) * 3),
    "requires_grad_": lambda x: x.requires_grad_(), "attribute": lambda x: setattr(x, "mark", 1), "twice": lambda x: x.t_().mul_(2).unsqueeze_(1),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("raises", [False, True])
def test_metadata_of_an_argument_changed_in_place(change: str, raises: bool) -> None:
    """Also where the call raises after that, and where calls before had no reason to do it."""

    def function(x: Any, late: bool = False, fails: bool = False) -> Any:
        if not late:
            CHANGES[change](x)
        if fails:
            raise LookupError
        return x * 2

    def use(call: Any, k: int) -> Any:
        x = numbers(k, 1, 3)
        try:
            y = call(x, False, raises).tolist()
        except LookupError:
            y = None
        return x.tolist(), x.requires_grad, getattr(x, "mark", 0), y

    alike(function, use)


@pytest.mark.parametrize("change", CHANGES)
def test_metadata_changed_where_a_value_says_so(change: str) -> None:
    """The recording of such a call begins after replays of others of the same signature."""

    def function(x: Any) -> Any:
        if x.sum() > 30:
            CHANGES[change](x)
        return x * 2

    def use(call: Any, k: int) -> Any:
        x = numbers(k, 1, 3)
        y = call(x)
        if x.requires_grad:
            y.sum().backward()
        return x.tolist(), y.tolist(), x.requires_grad, getattr(x, "mark", 0), x.grad is not None and x.grad.tolist()

    alike(function, use, 10)


LOOKS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda x: x * 2 if x.grad is None else x * 3, "is_leaf": lambda x: x * 2 if x.is_leaf else x * 3,
}  # fmt: skip


@pytest.mark.parametrize("what", LOOKS)
@pytest.mark.parametrize("mode", [calque.no_grad, calque.enable_grad])
def test_what_a_call_sees_of_an_argument_is_compared(what: str, mode: Any) -> None:
    def use(call: Any, k: int) -> Any:
        x = numbers(k, 3).requires_grad_()
        if k > 4:
            if what == "is_leaf":
                x = x * 1
            else:
                x.grad = calque.ones(3)
        with mode():
            return call(x).tolist()

    alike(LOOKS[what], use, 9)


def test_a_retained_gradient_and_a_hook_are_those_of_the_argument() -> None:
    def retain(x: Any) -> Any:
        x.retain_grad()
        return x * x

    def hook(x: Any) -> Any:
        x.register_hook(_double)
        return x * x

    def use(call: Any, k: int) -> Any:
        leaf = numbers(k, 3).requires_grad_()
        x = leaf * 1
        (call(x) + x).sum().backward()
        kept = x.grad.tolist() if x.retains_grad else None
        return leaf.grad.tolist(), kept

    alike(retain, use)
    alike(hook, use)


def _double(gradient: Any) -> Any:
    return gradient * 2


def test_gradients_reach_a_leaf_whose_call_is_made_without_them() -> None:
    def function(x: Any) -> Any:
        with calque.enable_grad():
            return x * x

    def use(call: Any, k: int) -> Any:
        leaf = numbers(k, 3).requires_grad_()
        x = leaf if k % 2 else leaf * 2
        with calque.no_grad():
            y = call(x)
        y.sum().backward()
        return leaf.grad.tolist()

    alike(function, use, 9)


def test_a_view_of_a_leaf_is_not_written_by_a_recorded_call_either() -> None:
    def use(call: Any, k: int) -> Any:
        leaf = numbers(k, 2, 3).requires_grad_()
        try:
            call(leaf[0])
        except AutogradError:
            return leaf.tolist()
        raise AssertionError("a leaf was written")

    alike(lambda x: x.mul_(2), use)


def test_data_of_a_leaf_argument_exchanged_between_call_and_backward() -> None:
    def use(call: Any, k: int) -> Any:
        x = numbers(k, 3).requires_grad_()
        y = call(x)
        x.data = x.data * 2
        y.sum().backward()
        return x.grad.tolist()

    assert alike(lambda x: x * x, use) >= CALLS - 3


def test_data_of_an_argument_is_exchanged_while_a_view_keeps_the_memory_that_both_had() -> None:
    def use(call: Any, k: int) -> Any:
        x = numbers(k, 3, 2).requires_grad_()
        y = call(x)
        if k % 3:
            x.data = x.data * 2
        y.sum().backward()
        return x.grad.tolist()

    assert alike(lambda x: x @ x.t(), use, 9) >= 6


def test_a_view_that_a_call_returns_after_an_exchange_of_its_data() -> None:
    def function(x: Any) -> Any:
        v = x.view(-1)
        v.data = v * 2
        return v

    def use(call: Any, k: int) -> Any:
        found = call(numbers(k, 2, 3).requires_grad_()[0])
        with pytest.raises(AutogradError, match="leaf"):
            found.add_(1)
        return found.tolist()

    alike(function, use)


HISTORIES: list[Callable[[Any], Any]] = [lambda w: w * 1, lambda w: (w + 1) * 3, lambda w: w * w, lambda w: w.t().t() * 5]


@pytest.mark.parametrize("way", ["argument", "captured"])
def test_a_pass_inside_a_call_through_a_history_that_is_another_at_the_next(way: str) -> None:
    """The gradient of the first history was given for ever."""
    found: list[list[Any]] = []
    for hybrid in (False, True):
        w = numbers(0, 2, 2).requires_grad_()
        h = w * 1

        def function(x: Any, w: Any = w, h: Any = h) -> Any:
            ((x if way == "argument" else h).sum() * x.sum() * w.sum()).backward(retain_graph=True)
            return w * 2

        call, seen = calque.compile(function) if hybrid else function, []
        for k in range(8):
            w.grad = None
            if way == "captured" and k > 3:
                h.mul_(2)
            call(HISTORIES[max(0, k - 4)](w) if way == "argument" else numbers(k, 2, 2))
            seen.append(w.grad.tolist())
        found.append(seen)
    assert found[0] == found[1]


def test_a_pass_inside_a_call_frees_the_history_of_an_argument() -> None:
    w = numbers(0, 2, 3).requires_grad_()

    def function(x: Any) -> Any:
        (x.sum() * w.sum()).backward()
        return w.relu()

    def use(call: Any, k: int) -> Any:
        w.grad = None
        x = w.relu()
        call(x)
        with pytest.raises(AutogradError, match="second time"):
            x.sum().backward()
        return w.grad.tolist()

    alike(function, use)


def test_a_call_that_changes_the_history_of_a_tensor_that_it_reaches() -> None:
    """The gradient went to the argument of the recorded call."""

    def use(call: Any, k: int) -> Any:
        x = numbers(k, 3).requires_grad_()
        call(x).sum().backward()
        return x.grad.tolist()

    def fresh() -> Callable[[Any], Any]:
        c = calque.zeros(3)

        def function(x: Any) -> Any:
            c.copy_(x)
            return c

        return function

    call, written = calque.compile(fresh()), fresh()
    for k in range(CALLS):
        assert use(call, k) == use(written, k)


def test_a_pass_for_one_gradient_leaves_the_results_that_do_not_lead_there() -> None:
    """A call is one node of the graph; as written, a pass frees what is on its way alone."""
    w = numbers(0, 3).requires_grad_()

    def use(call: Any, k: int) -> Any:
        x = numbers(k, 3).requires_grad_()
        first, second = call(x)
        (found,) = calque.autograd.grad(((first + second) * w).sum(), w)
        first.sum().backward()
        with pytest.raises(AutogradError, match="second time"):
            second.sum().backward()
        return found.tolist(), x.grad.tolist()

    assert alike(lambda x: (x * x, x * w * w), use) >= CALLS - 3


@pytest.mark.parametrize("step", ["t_", "unsqueeze_"])
def test_a_result_is_looked_at_in_another_way_without_a_history(step: str) -> None:
    w = numbers(1, 2, 2).requires_grad_()

    def use(call: Any, k: int) -> Any:
        w.grad = None
        found = call(numbers(k, 2))
        with calque.no_grad():
            found.t_() if step == "t_" else found.unsqueeze_(0)
        (found * numbers(k, *found.shape)).sum().backward()
        return found.tolist(), w.grad.tolist()

    assert alike(lambda x: (w * x).chunk(1)[0], use) >= CALLS - 3


@pytest.mark.parametrize("form", ["data", "view of data", "argument"])
def test_writes_through_data_that_a_call_returns_are_none_of_the_tensors(form: str) -> None:
    def function(x: Any) -> Any:
        shown = x if form == "argument" else x.data
        return shown.view(-1) if form == "view of data" else shown, (x * x).sum()

    def use(call: Any, k: int) -> Any:
        leaf = numbers(k, 2, 2).requires_grad_()
        x = leaf * 1
        found, y = call(x.data if form == "argument" else x)
        found.add_(1)
        if y.requires_grad:
            y.backward(retain_graph=True)
        x.sum().backward()
        return found.tolist(), x.tolist(), leaf.grad.tolist(), x._version

    alike(function, use)


def test_one_of_several_results_of_an_operation_whose_graph_is_used_inside_the_call() -> None:
    w = numbers(0, 2, 2).requires_grad_()

    def function(x: Any) -> Any:
        v = w * x
        part = v.split(1)[-1]
        calque.autograd.grad((v * v).sum(), w)
        return part

    def use(call: Any, k: int) -> Any:
        found = call(numbers(k, 2, 2))
        with pytest.raises(AutogradError, match="second time"):
            found.sum().backward()
        return found.tolist()

    alike(function, use)


def test_a_call_behind_a_pass_that_has_freed_the_history_of_its_argument_has_a_graph_of_its_own() -> None:
    """Its argument had a history that was used up at the recorded call; at the next one it is another."""
    function = calque.compile(lambda a: (a * 1.0, a * a))
    for turn in range(6):
        leaf = calque.ones(3).requires_grad_()
        x = leaf * leaf if turn < 4 else -leaf
        x.sum().backward()
        y = function(x)[1]
        if turn < 4:
            with pytest.raises(AutogradError, match="second time"):
                y.sum().backward()
        else:
            leaf.grad = None
            y.sum().backward()
            assert leaf.grad is not None
            assert leaf.grad.tolist() == [2.0, 2.0, 2.0]
