"""`__torch_function__`: classes that give functions another meaning are asked, whatever way a function was called."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import DTypeError
from calque.functional.subclasses import disabled

CALLS: list[str] = []


class Logged(calque.Tensor):
    """Writes down what is called, and keeps a unit."""

    unit = ""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLS.append(func.__name__)
        found = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(found, Logged):
            found.unit = next((x.unit for x in args if isinstance(x, Logged)), "")
        return found


class Number:
    """No tensor; knows two functions."""

    def __init__(self, value: float) -> None:
        self.value = value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is calque.add:
            return Number(sum(getattr(x, "value", x) for x in args))
        if func is calque.mean:
            return args[0].value
        return NotImplemented


def logged(values: Any, unit: str = "m") -> Any:
    x = calque.tensor(values).as_subclass(Logged)
    x.unit = unit
    return x


def test_every_way_to_call_asks_the_class() -> None:
    x, y = logged([[1.0, 2.0], [3.0, 4.0]]), calque.ones(2, 2)
    ways = {
        "operator": lambda: x + y, "reflected": lambda: y + x, "number": lambda: 2 - x, "function": lambda: calque.exp(x),
        "method": lambda: x.sum(),
        "second operand": lambda: calque.mm(y, x), "list": lambda: calque.cat([x, y]), "index": lambda: x[0], "view": lambda: x.reshape(4),
        "T": lambda: x.T,
        "functional": lambda: calque.nn.functional.softmax(x, -1), "late": lambda: calque.add(y, x, alpha=2), "product": lambda: calque.mul(y, x),
        "module": lambda: calque.nn.Linear(2, 3)(x), "two results": lambda: x.max(0).values,
    }  # fmt: skip
    for name, call in ways.items():
        found = call()
        assert type(found) is Logged, name
    assert (x * 3).unit == "m" and x.sum().unit == "m"
    CALLS.clear()
    calque.exp(x + 1)
    assert CALLS == ["add", "exp"]
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]] and float(x.sum()) == 10.0 and x.shape == (2, 2) and len(x) == 2 and x.numpy().sum() == 10.0


def test_gradients_writes_and_plain_tensors_beside() -> None:
    w = logged([1.0, 2.0]).requires_grad_()
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0] and type(w.grad) is calque.Tensor
    x = logged([1.0, 2.0])
    x.add_(1)
    x[0] = 5.0
    assert x.tolist() == [5.0, 3.0]
    assert type(calque.ones(2) + 1) is calque.Tensor
    with pytest.raises(calque.base.errors.ShapeError):
        x + calque.ones(3)


def test_other_classes_are_asked_where_a_call_fails() -> None:
    assert calque.mean(Number(3.0)) == 3.0 and calque.add(Number(1.0), 2).value == 3.0
    with pytest.raises(DTypeError, match="no implementation found for sin"):
        calque.sin(Number(1.0))
    with pytest.raises(DTypeError, match="expected a Tensor"):
        calque.sin(object())


def test_a_class_may_have_none_of_it() -> None:
    class Off(calque.Tensor):
        __torch_function__ = disabled

    class Own(calque.nn.Parameter):
        pass

    assert type(calque.ones(2).as_subclass(Off) + 1) is calque.Tensor and type(Own(calque.ones(2)) * 2) is calque.Tensor
    with pytest.raises(DTypeError, match="expected a subclass of Tensor"):
        calque.ones(2).as_subclass(int)


def test_long_lists_are_asked_once_for_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of millions of numbers that is refused, as `save` does, took seconds."""
    from calque.functional import subclasses

    asked: list[type] = []
    monkeypatch.setattr(subclasses, "overrides", lambda cls: bool(asked.append(cls)))
    assert subclasses.overriding([[1.0] * 1000 + [2] * 1000, 3]) == [] and asked == [float, int, int]


class Told:
    """No tensor; keeps what it is told of a call."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func, args, kwargs or {}


class ToldTensor(calque.Tensor):
    """A tensor that does."""

    __torch_function__ = Told.__torch_function__


@pytest.mark.parametrize("x", [Told(), calque.ones(2, 2).as_subclass(ToldTensor)], ids=["no tensor", "tensor"])
def test_classes_are_told_what_was_written(x: Any) -> None:
    """`alpha` and `rounding_mode` were left out, `rsub` had its operands exchanged, and defaults stood in the place of a class's own ones."""
    t = calque.ones(2, 2)
    calls: dict[str, tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = {
        "alpha": (lambda: calque.add(t, x, alpha=2), calque.add, (t, x), {"alpha": 2}),
        "sub": (lambda: calque.sub(x, t, alpha=3), calque.sub, (x, t), {"alpha": 3}),
        "rsub": (lambda: calque.rsub(t, x), calque.rsub, (t, x), {}),
        "rounding": (lambda: calque.div(x, 2, rounding_mode="floor"), calque.div, (x, 2), {"rounding_mode": "floor"}),
        "default": (lambda: calque.clone(x), calque.clone, (x,), {}),
        "defaults": (lambda: calque.diagonal(x, dim1=-1, dim2=-2), calque.diagonal, (x,), {"dim1": -1, "dim2": -2}),
        "stack": (lambda: calque.stack([x, x]), calque.stack, ([x, x],), {}),
        "parts": (lambda: calque.nn.functional.tanhshrink(x), calque.nn.functional.tanhshrink, (x,), {}),
        "logdet": (lambda: calque.logdet(x), calque.logdet, (x,), {}),
        "norm": (lambda: calque.norm(x), calque.norm, (x,), {}),
        "roll": (lambda: calque.roll(x, 1), calque.roll, (x, 1), {}),
    }
    for name, (call, function, args, keywords) in calls.items():
        asked, given, words = call()
        assert asked is function, (name, asked)
        assert len(given) == len(args) and all(a is b or a == b for a, b in zip(given, args, strict=True)), (name, given)
        assert {k: v for k, v in words.items() if v is not None} == keywords, (name, words)


@pytest.mark.parametrize("x", [Told(), calque.ones(2, 2).as_subclass(ToldTensor)], ids=["no tensor", "tensor"])
def test_operators_ask_about_the_method_with_the_tensor_in_front(x: Any) -> None:
    """`tensor + other` did not ask a class that is no tensor, `tensor == other` was False, and a subclass was asked about operators of ours."""
    t = calque.ones(2, 2)
    names = "add sub mul truediv:div mod:remainder matmul floordiv:__floordiv__ pow:__pow__ and_:__and__ or_:__or__ xor:__xor__ lshift:__lshift__"
    for word in (names + " iadd:add_ isub:sub_ imul:mul_ itruediv:div_").split():
        name, _, method = word.partition(":")
        asked, args, _ = getattr(operator, name)(t, x)
        assert asked is getattr(calque.Tensor, method or name) and args[0] is t and args[1] is x, (name, asked, args)
    for name, turned in {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}.items():
        asked, args, _ = getattr(operator, name)(t, x)
        first, expected = (x, turned) if isinstance(x, calque.Tensor) else (t, name)
        assert asked is getattr(calque.Tensor, expected) and args[0] is first, name
    assert (t == x)[1][1] is not None
    if isinstance(x, calque.Tensor):
        asked, args, _ = t[x]
        assert asked is calque.Tensor.__getitem__ and args[0] is t and args[1] is x


def test_an_ordinary_object_is_no_operand_and_equal_to_nothing() -> None:
    assert (calque.ones(2) == object()) is False
    with pytest.raises(TypeError):
        calque.ones(2) + object()


def test_objects_that_have_every_attribute_are_asked_as_well() -> None:
    """A tracer's proxy seems to have a meaning of its own."""

    class Everything(Told):
        def __getattr__(self, name: str) -> Any:
            return lambda *args: "not asked"

    x = Everything()
    for call, function in ((lambda: calque.tensordot(calque.ones(2, 2), x, 1), calque.tensordot), (lambda: calque.add(x, 1, alpha=2), calque.add)):
        assert call()[0] is function


class Counted(calque.Tensor):
    asked: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs)


@pytest.mark.parametrize("make", [
    lambda nn: (nn.BatchNorm1d(3), (4, 3)), lambda nn: (nn.BatchNorm2d(3).eval(), (2, 3, 4, 4)), lambda nn: (nn.InstanceNorm1d(3), (2, 3, 4)),
    lambda nn: (nn.LSTM(3, 2), (5, 2, 3)), lambda nn: (nn.GRUCell(3, 2), (4, 3)), lambda nn: (nn.Flatten(), (2, 3, 4)),
    lambda nn: (nn.Sequential(nn.Conv1d(3, 2, 1), nn.BatchNorm1d(2), nn.ReLU()), (2, 3, 4)),
])  # fmt: skip
def test_layers_take_objects_of_a_class_with_a_protocol(make: Any) -> None:
    layer, shape = make(calque.nn)
    twin = copy.deepcopy(layer)
    x = calque.arange(float(math.prod(shape))).reshape(shape).cos()
    Counted.asked.clear()
    found, wanted = layer(x.as_subclass(Counted)), twin(x)
    found, wanted = (found[0], wanted[0]) if isinstance(wanted, tuple) else (found, wanted)
    assert type(found) is Counted and Counted.asked and type(wanted) is calque.Tensor
    assert found.tolist() == wanted.tolist()
    assert [b.tolist() for b in layer.buffers()] == [b.tolist() for b in twin.buffers()]
    if found.grad_fn is not None:
        found.sum().backward()
        wanted.sum().backward()
        assert [p.grad.tolist() for p in layer.parameters()] == [p.grad.tolist() for p in twin.parameters()]


# ------------------------------------------------------------------------------------- subclasses without a method of their own


class Plain(calque.Tensor):
    """Says nothing about functions: their results are of its class, as in PyTorch."""


class Other(calque.Tensor):
    """Another one, which has nothing to do with the first."""


def plain(*shape: int) -> Any:
    return calque.randn(*shape).as_subclass(Plain)


def hooked(x: Any) -> Any:
    layer = calque.nn.Identity()
    layer.register_forward_hook(lambda m, i, o: x)
    return layer


RESULTS: dict[str, Any] = {
    "operator": lambda x: x + 1, "reflected": lambda x: 1 - x, "beside a tensor": lambda x: calque.ones(3) * x, "function": calque.relu,
    "reduction": lambda x: x.sum(), "index": lambda x: x[0], "view": lambda x: x.view(3, 1), "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(), "like": calque.zeros_like, "new": lambda x: x.new_zeros(2), "dtype": lambda x: x.double(),
    "list": lambda x: calque.stack([x, x]), "out": lambda x: calque.add(x, 1, out=calque.empty(3)), "in place": lambda x: x.add_(1),
    "layer": lambda x: calque.nn.Linear(3, 2)(x), "copy": copy.copy, "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "iteration": lambda x: list(x)[0], "loss": lambda x: calque.nn.functional.mse_loss(x, calque.zeros(3)),
    "numbers": lambda x: calque.normal(x, 1.0),
    "checkpoint": lambda x: calque.utils.checkpoint.checkpoint(calque.sin, x, use_reentrant=False),
    "collated": lambda x: next(iter(calque.utils.data.DataLoader([x, x], batch_size=2))),
    "weight of a loss": lambda x: calque.nn.functional.cross_entropy(calque.ones(2, 3), calque.tensor([0, 1]), weight=x.abs()),
    "called with other weights": lambda x: calque.func.functional_call(calque.nn.Linear(3, 1), {"weight": x[None]}, calque.ones(1, 3)),
    "written to": lambda x: calque.zeros(3).copy_(x), "picked": lambda x: calque.ones(3)[x > 9],
    "state": lambda x: calque.nn.LSTM(2, 3)(calque.ones(1, 2), (x[None], x[None]))[0],
    "attention": lambda x: calque.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "hook": lambda x: calque.nn.Sequential(hooked(x), calque.nn.ReLU())(calque.ones(3)),
    "rows": lambda x: next(iter(calque.utils.data.DataLoader(calque.utils.data.TensorDataset(x))))[0],
}  # fmt: skip


@pytest.mark.parametrize("what", RESULTS)
def test_results_are_of_a_subclass_that_says_nothing(what: str) -> None:
    assert type(RESULTS[what](plain(3))) is Plain


def test_what_is_an_ordinary_tensor_all_the_same(tmp_path: Any) -> None:
    x = plain(3).requires_grad_()
    (x * x).sum().backward()
    assert type(x.grad) is calque.Tensor
    assert type(calque.tensor(x.detach())) is calque.Tensor
    assert type(calque.func.grad(lambda v: (v * v).sum())(plain(3))) is calque.Tensor
    assert type(calque.vmap(lambda v: v * 2)(plain(3, 2))) is calque.Tensor
    parameter = calque.nn.Parameter(plain(3))
    assert type(parameter) is calque.nn.Parameter and type(parameter * 2) is calque.Tensor
    for name, options in (("a.calque", {}), ("a.pt", {"format": "pt"})):
        calque.save({"x": x.detach()}, tmp_path / name, **options)
        again = calque.load(tmp_path / name)["x"]
        assert type(again) is calque.Tensor and again.tolist() == x.tolist()


def test_a_parameter_of_a_class_with_a_method_is_refused() -> None:
    with pytest.raises(DTypeError, match=r"\[Parameter\] expected a Tensor without a __torch_function__ of its own, got .*Logged"):
        calque.nn.Parameter(logged([1.0]))


def test_two_subclasses_that_know_nothing_of_each_other() -> None:
    with pytest.raises(TypeError, match="no implementation found for add"):
        plain(3) + calque.ones(3).as_subclass(Other)


def test_an_optimizer_and_a_function_of_the_program_take_leaves_of_a_subclass() -> None:
    class Double(calque.autograd.Function):
        @staticmethod
        def forward(ctx: Any, v: Any) -> Any:
            ctx.save_for_backward(v)
            return v * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (v,) = ctx.saved_tensors
            return g * 2 + 0 * v

    values, found = calque.randn(3), []
    for cls in (calque.Tensor, Plain):
        x = values.clone().as_subclass(cls).requires_grad_()
        optimizer = calque.optim.Adam([x], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            y = Double.apply(x)
            assert type(y) is cls
            (y * y).sum().backward()
            optimizer.step()
        found.append(x.tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("cls", [Plain, Logged])
def test_hybridized_calls_of_subclasses_run_as_written(cls: type) -> None:
    layer = calque.nn.Linear(3, 2)
    call = calque.compile(lambda v: calque.relu(layer(v)) + 1)
    for k in range(5):
        x = calque.full((2, 3), float(k)).as_subclass(cls)
        got = call(x)
        assert type(got) is cls
        assert calque.equal(got.as_subclass(calque.Tensor), calque.relu(layer(calque.full((2, 3), float(k)))) + 1)


@pytest.mark.parametrize("made", [lambda: calque.ones(2), lambda: plain(2), lambda: calque.nn.Parameter(calque.ones(2))])
def test_copies_keep_what_a_program_has_set_on_a_tensor(made: Any) -> None:
    for make in (copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))):
        t = made()
        t.names_of_it = ["a"]
        assert make(t).names_of_it == ["a"]
    t = made()
    t.names_of_it = ["a"]
    assert copy.copy(t).names_of_it is t.names_of_it


def test_a_subclass_prints_its_name() -> None:
    assert repr(calque.ones(2).as_subclass(Plain)) == "Plain([1., 1.])"


def test_tensors_take_values_from_a_subclass() -> None:
    x = calque.zeros(3)
    x[0], x[calque.tensor([1]).as_subclass(Plain)] = plain(1)[0] * 0 + 5, 6.0
    x[2:] = calque.tensor([7.0]).as_subclass(Plain)
    assert x.tolist() == [5.0, 6.0, 7.0]
    p = calque.nn.Parameter(calque.zeros(2))
    p.data = calque.ones(2).as_subclass(Plain)
    p.grad = calque.ones(2).as_subclass(Plain)
    calque.optim.SGD([p], lr=0.5).step()
    assert type(p) is calque.nn.Parameter and p.tolist() == [0.5, 0.5]
    assert calque.nn.Embedding.from_pretrained(plain(2, 2)).weight.shape == (2, 2)
    assert plain(2).untyped_storage().nbytes() == 8 and type(calque.Tensor(plain(2))) is calque.Tensor


def test_a_class_is_asked_about_writes_of_its_objects_into_tensors() -> None:
    x, value = calque.zeros(2), logged(3.0)
    CALLS.clear()
    x[0] = value
    assert [calque.Tensor.__setitem__.__name__] == CALLS and x.tolist() == [3.0, 0.0]


def test_a_view_of_another_class() -> None:
    """Gradients go through it to a leaf, and writes to either side show in the other with theirs."""
    for one, other in ((calque.Tensor, Plain), (Plain, calque.Tensor), (Plain, Other)):
        leaf = calque.tensor([1.0, 2.0]).as_subclass(one).requires_grad_()
        seen = leaf.as_subclass(other)
        assert not seen.is_leaf and leaf.is_leaf and seen.requires_grad
        for times in (1, 2):
            calque.autograd.backward((seen * seen).sum().as_subclass(calque.Tensor), retain_graph=True)
            assert leaf.grad.as_subclass(calque.Tensor).tolist() == [2.0 * times, 4.0 * times]
        with calque.no_grad():
            assert not leaf.as_subclass(other).requires_grad
        x = calque.ones(2, requires_grad=True)
        for write in (lambda a, b: a.mul_(5), lambda a, b: b.mul_(5)):
            made = (x * 1).as_subclass(one)
            seen = made.as_subclass(other)
            write(made, seen)
            for t in (made, seen):
                (found,) = calque.autograd.grad(t.as_subclass(calque.Tensor).sum(), x, retain_graph=True)
                assert t.tolist() == [5.0, 5.0] and found.tolist() == [5.0, 5.0]
        whole = calque.zeros(2).as_subclass(one)
        seen = whole.as_subclass(other)
        whole.add_(x)
        assert seen.requires_grad and calque.autograd.grad(seen.as_subclass(calque.Tensor).sum(), x)[0].tolist() == [1.0, 1.0]
    leaf = calque.ones(2).as_subclass(Plain).requires_grad_()
    assert calque.autograd.grad((leaf.as_subclass(calque.Tensor) ** 2).sum(), [leaf])[0].tolist() == [2.0, 2.0]
    for copied in (copy.deepcopy(leaf), pickle.loads(pickle.dumps(leaf))):
        assert type(copied) is Plain and copied.is_leaf and copied.requires_grad


def test_results_that_are_views_follow_their_base() -> None:
    x, w = plain(2, 3), calque.ones(3, 2, requires_grad=True)
    turned = x.t()
    x.t().add_(w)
    assert type(turned) is Plain and calque.equal(turned.as_subclass(calque.Tensor), x.t().as_subclass(calque.Tensor))
    assert calque.autograd.grad(turned.as_subclass(calque.Tensor).sum(), w)[0].tolist() == [[1.0, 1.0]] * 3


def test_functional_derivatives_hand_the_class_on() -> None:
    """`autograd.functional` asks nobody itself: a function is given objects of the class of its inputs, whose methods it may call."""

    class Doubling(Plain):
        def twice(self) -> Any:
            return self * 2

    derivatives = calque.autograd.functional
    x, one = calque.tensor([1.0, 2.0]).as_subclass(Doubling), calque.ones(2)
    for given in (x, x.detach().requires_grad_()):
        for further in (False, True):
            twice: Any = lambda a: a.twice()  # noqa: E731
            square: Any = lambda a: (a.twice() * a).sum()  # noqa: E731
            found = [
                derivatives.jacobian(twice, given, create_graph=further), derivatives.vjp(twice, given, one, create_graph=further)[1],
                derivatives.jvp(twice, given, one, create_graph=further)[1], derivatives.hessian(square, given, create_graph=further),
                derivatives.hvp(square, given, one, create_graph=further)[1], derivatives.vhp(square, given, one, create_graph=further)[1],
            ]  # fmt: skip
            diagonal = lambda k: [[k, 0.0], [0.0, k]]  # noqa: E731
            assert [t.tolist() for t in found] == [diagonal(2.0), [2.0, 2.0], [2.0, 2.0], diagonal(4.0), [4.0, 4.0], [4.0, 4.0]]


def test_operators_are_asked_about_by_their_names() -> None:
    x = calque.ones(2, 2).as_subclass(Logged)
    uses: dict[str, Any] = {
        "__getitem__": lambda: x[0], "__setitem__": lambda: operator.setitem(x, 0, 1.0), "__len__": lambda: len(x), "__eq__": lambda: x == 1,
        "pow": lambda: x**2, "__rpow__": lambda: 2**x, "__rsub__": lambda: 1 - x, "__rdiv__": lambda: 1 / x, "__floordiv__": lambda: x // 2,
        "__and__": lambda: x.bool() & True, "__lshift__": lambda: x.int() << 1, "__bool__": lambda: bool(x[0, 0]),
        "__float__": lambda: float(x[0, 0]),
        "__contains__": lambda: 1.0 in x, "__repr__": lambda: repr(x), "__deepcopy__": lambda: copy.deepcopy(x), "__format__": lambda: f"{x}",
        "__array__": lambda: x.__array__(), "add": lambda: x + 1, "sub": lambda: x - 1, "matmul": lambda: x @ x, "lt": lambda: x < 1,
    }  # fmt: skip
    for name, use in uses.items():
        CALLS.clear()
        use()
        assert name in CALLS, (name, CALLS)


class Boxed(nn.Parameter):
    """A parameter whose values are another tensor's, and who says so of its attributes alone."""

    inner: Any

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.__class__.__name__ == "method-wrapper" and types == (cls,) and kwargs is None
        return func(*(x.inner if isinstance(x, Boxed) else x for x in args))


def boxed() -> Any:
    box = Boxed(calque.zeros(1))
    box.inner = calque.ones(2, 3, dtype=calque.float64).requires_grad_()
    return box


def test_attributes_are_what_the_class_says() -> None:
    box = boxed()
    assert (tuple(box.shape), box.dtype, box.requires_grad, box.is_leaf, box.ndim) == ((2, 3), calque.float64, True, True, 2)
    assert tuple(box.T.shape) == (3, 2) and box.data.dtype is calque.float64 and box.grad is None
    (box.inner * 2).sum().backward()
    assert box.grad is box.inner.grad
    del box.grad
    assert box.inner.grad is None
    box.grad = calque.ones(2, 3, dtype=calque.float64)
    assert box.inner.grad.tolist() == [[1.0] * 3] * 2
    box.requires_grad = False
    assert not box.inner.requires_grad


def test_gradients_that_a_class_names_are_cleared_clipped_and_used() -> None:
    box = boxed()
    holder = nn.Module()
    holder.box = box
    for optimizer in (calque.optim.SGD([box], lr=0.5), holder):
        (box.inner * 2).sum().backward()
        assert nn.utils.clip_grad_norm_([box], 1.0).item() == pytest.approx(math.sqrt(24))
        assert box.inner.grad.norm().item() == pytest.approx(1)
        optimizer.zero_grad(set_to_none=False)
        assert box.inner.grad.tolist() == [[0.0] * 3] * 2
        optimizer.zero_grad()
        assert box.inner.grad is None


def test_the_protocol_of_tensor_leaves_gradients_as_they_are_and_converts_other_attributes() -> None:
    CALLS.clear()
    x = calque.ones(2, 3).as_subclass(Logged).requires_grad_()
    x.grad = calque.ones(2, 3)
    del CALLS[:]
    assert type(x.grad) is calque.Tensor and type(x.T) is Logged and type(x.data) is Logged and tuple(x.shape) == (2, 3)
    assert CALLS == ["__get__"] * 4
    x.data = calque.zeros(2, 3)
    del x.grad
    assert CALLS[4:] == ["__set__", "__delete__"]
    assert calque.Tensor.grad.__get__ == calque.Tensor.grad.__get__ != calque.Tensor.data.__get__


def test_a_class_that_answers_for_no_attribute_is_an_error() -> None:
    class Silent(calque.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return NotImplemented

    with pytest.raises(TypeError, match=r"\[__get__\] no implementation found for __get__ on types .* got \['Silent'\]"):
        _ = calque.ones(2).as_subclass(Silent).shape


class Weight(calque.Tensor):
    """Looks for what a function means in a table of functions, as libraries do; it has what that takes once it is made."""

    asked: list[Any] = []

    def __new__(cls, inner: Any) -> Any:
        return calque.Tensor._make_subclass(cls, inner, True)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func)
        return func(*(x.inner if isinstance(x, Weight) else x for x in args), **(kwargs or {}))


def test_a_class_is_not_asked_while_one_of_its_objects_is_made() -> None:
    del Weight.asked[:]
    assert Weight(calque.ones(2)).inner.tolist() == [1.0, 1.0] and Weight.asked == []
    again = calque.Tensor._make_subclass(Weight, Weight(calque.ones(2)))
    assert type(again) is Weight and vars(again) == {} and Weight.asked == []


@pytest.mark.parametrize(
    ("layer", "x", "function"),
    [
        (nn.Linear(4, 3), calque.ones(2, 4), nn.functional.linear),
        (nn.LayerNorm(4), calque.ones(2, 4), nn.functional.layer_norm),
        (nn.GroupNorm(2, 4), calque.ones(2, 4, 3), nn.functional.group_norm),
        (nn.InstanceNorm1d(4, affine=True), calque.ones(2, 4, 3), nn.functional.instance_norm),
        (nn.BatchNorm1d(4), calque.ones(2, 4), nn.functional.batch_norm),
        (nn.Embedding(4, 2), calque.tensor([1]), nn.functional.embedding),
        (nn.RMSNorm(4), calque.ones(2, 4), nn.functional.rms_norm),
        (nn.Conv2d(1, 1, 1), calque.ones(1, 1, 2, 2), nn.functional.conv2d),
    ],
)
def test_the_function_that_a_layer_calls_is_what_a_class_is_asked_about(layer: Any, x: Any, function: Any) -> None:
    """Not another function of that name (`layer_norm` of `calque` itself), nor `functional_call`, which is no function of tensors."""
    del Weight.asked[:]
    wanted = layer(x)
    found = calque.func.functional_call(layer, {name: Weight(p) for name, p in layer.named_parameters()}, (x,))
    assert len(Weight.asked) == 1 and Weight.asked[0] is function and calque.allclose(found, wanted)


def test_functions_of_one_name_are_told_apart_by_where_they_were_found() -> None:
    w = Weight(calque.ones(2, 3))
    for function, args in ((calque.softmax, (w, 0)), (nn.functional.softmax, (w, 0)), (calque.selu, (w,)), (nn.functional.selu, (w,))):
        del Weight.asked[:]
        function(*args)
        assert Weight.asked[0] is function
