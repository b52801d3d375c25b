"""PyTorch's protocol for classes that give functions another meaning: `__torch_function__(func, types, args, kwargs)`.

A subclass of `Tensor` with such a method has its storage and layout behind properties, so functions that are given one get `NotDense`, and ask it.
Its methods ask at once. Other classes are asked where a call with one of their objects has failed. Calls without such objects pay nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from calque.autograd.superinstruction import is_superinstruction
from calque.base.asked import ASKED, LOCAL, called, plainly
from calque.base.errors import DTypeError, NotDense, no_tensor
from calque.base.text import shown
from calque.functional.common import method
from calque.observe.source import inside_package
from calque.tensor import Tensor, alias, wrap

METHOD = "__torch_function__"
ASKING: set[type] = set()  # subclasses of Tensor with one of their own, not that of Tensor
_AS_THEY_ARE: list[Any] = []  # attributes of Tensor whose values are of no class of the program's


def _run(cls: type, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
    """`Tensor.__torch_function__`: the function as it is; tensors among its results become of the class that was asked."""
    if not all(issubclass(cls, t) for t in types) or _of_pytorch(func):
        return NotImplemented
    with plainly():
        found = func(*args, **(kwargs or {}))
    return found if issubclass(Tensor, cls) or getattr(func, "__self__", None) in _AS_THEY_ARE else _converted(found, cls)


def _of_pytorch(func: Any) -> bool:
    """Whether a function is one of PyTorch itself, which knows nothing of our tensors and would ask again."""
    owner = getattr(func, "__objclass__", None) or getattr(func, "__self__", None)
    ours = owner is Tensor or isinstance(owner, Tensor)  # which may be shown under PyTorch's name
    return not ours and any(str(getattr(x, "__module__", "")).partition(".")[0] == "torch" for x in (func, owner))


def _converted(found: Any, cls: Any) -> Any:
    if type(found) is Tensor:
        return instead(found, cls)
    if isinstance(found, (tuple, list)) and any(isinstance(x, (Tensor, tuple, list)) for x in found):
        parts = [_converted(x, cls) for x in found]
        return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)
    return found


def disabled(func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
    """What a class writes as its `__torch_function__` to have none: results are ordinary tensors."""
    with plainly():
        return func(*args, **(kwargs or {}))


def instead(t: Tensor, cls: type) -> Any:
    """What takes the place of a new tensor as an object of a class: it has its memory, its history and its base."""
    with plainly():
        made = wrap(t._storage, t._layout, cls) if t._base is None else alias(t, t._layout, cls)
        made._requires_grad, made._grad_fn = t._requires_grad, t._grad_fn
    return made


@method()
def as_subclass(input: Tensor, cls: Any) -> Any:
    """The tensor as an object of a subclass of `Tensor`: a view of all of it, with gradients.

    >>> import calque
    >>> class Named(calque.Tensor):
    ...     pass
    >>> type(calque.ones(2).as_subclass(Named)).__name__
    'Named'
    """
    if not isinstance(cls, type) or not issubclass(cls, Tensor):
        raise DTypeError(f"[as_subclass] expected a subclass of Tensor, got {shown(cls)}")
    with plainly():
        return instead(Tensor.view_as(input, input), cls)  # type: ignore[attr-defined]


def ask(function: Any, given: Iterable[Any], args: Sequence[Any], keywords: Mapping[str, Any], final: bool = False) -> Any:
    """What the classes of operands say to a call, subclasses first; an error if none of them takes it. They are asked about what the program has
    called: a part of that leaves it to the whole. `final`: it is the frame of a public function that asks (`blame.answer`)."""
    found = overriding(given)
    if found and _within_another(final):
        raise NotDense(found[0])
    types = tuple(type(x) for x in found)
    args, keywords = _written(function, args, keywords)
    for x in found:
        result = getattr(x, METHOD)(function, types, tuple(args), dict(keywords))
        if result is not NotImplemented:
            return result
    name = getattr(function, "__name__", function)
    raise DTypeError(f"[{name}] no implementation found for {name} on types that implement __torch_function__: got {[t.__name__ for t in types]}")


def _within_another(final: bool) -> bool:
    """Whether who asks is part of a public function, in whose frame the error ends that says so: it calls `blame.answer`. Methods of classes are
    none."""
    frame: Any = sys._getframe(2)
    if final:
        while frame.f_code.co_name != "answer":
            frame = frame.f_back
        while frame.f_code.co_name == "answer":
            frame = frame.f_back
        frame = frame.f_back
    while frame is not None and inside_package(frame.f_code.co_filename):
        if frame.f_code is called.__code__ or "asking" in frame.f_code.co_names:  # what these call is asked about
            return False
        if "answer" in frame.f_code.co_names and "." not in getattr(frame.f_locals.get("function"), "__qualname__", "."):
            return True
        frame = frame.f_back
    return False


def _written(function: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call without the defaults that stand among them: a class is told what the program said, its own defaults may be others.
    What comes after a default that is left out goes by its name."""
    if is_superinstruction(function):
        function = function.__wrapped__
    code, defaults = getattr(function, "__code__", None), getattr(function, "__defaults__", None)
    if code is None or not defaults or not code.co_argcount - len(defaults) < len(args) <= code.co_argcount:
        return args, keywords
    first, names = code.co_argcount - len(defaults), code.co_varnames
    said = [k < first or value is not defaults[k - first] for k, value in enumerate(args)]
    count = said.index(False) if False in said else len(args)
    return args[:count], {**{names[k]: args[k] for k in range(count, len(args)) if said[k]}, **keywords}


def overriding(given: Iterable[Any]) -> list[Any]:
    """One object of each class that has a protocol of its own, subclasses before their bases."""
    found: list[Any] = []
    for x in given:
        parts: dict[type, Any] = {}
        for part in x if isinstance(x, (tuple, list)) else (x,):
            parts.setdefault(type(part), part)  # lists may be of millions: each class is looked at once
        for part in parts.values():
            if overrides(type(part)) and all(type(part) is not type(other) for other in found):
                at = next((k for k, other in enumerate(found) if isinstance(part, type(other))), len(found))
                found.insert(at, part)
    return found


def others(given: Iterable[Any]) -> list[Any]:
    """Those of them that are no tensors of ours: these are looked at as they are inside the protocol, and say who they are elsewhere."""
    return [x for x in overriding(given) if not isinstance(x, Tensor)]


def overrides(cls: type) -> bool:
    """Whether objects of a class are asked: it has a `__torch_function__`, a subclass of `Tensor` that of `Tensor` at least, by which results are of
    the subclass. PyTorch's tensors have one that calls the function again, with the same tensors."""
    if cls is Tensor:
        return False
    own = inspect.getattr_static(cls, METHOD, None)
    function = getattr(own, "__func__", own)
    return own is not None and function is not disabled and getattr(function, "__module__", "") != "torch._tensor"


def public_function(name: str, function: Any = None, module: str = "") -> Any:
    """The function that users call by a name, of those in several modules the one in `module`."""
    facade: Any = sys.modules["calque"]
    known = [f for place in (facade, facade.nn.functional, facade.linalg, Tensor) if callable(f := getattr(place, name, None))]
    same = [f for f in known if f is function or getattr(f, "__wrapped__", None) is function]
    there = [f for f in same if f.__module__ == module]
    return (there or same or known or [function])[0]


def _meaning(self: Any, name: str, args: Sequence[Any], keywords: Mapping[str, Any], function: Any = None, module: str = "") -> Any:
    """See `SparseTensor._meaning`."""
    return ask(public_function(name, function, module), (*args, *keywords.values(), self), args, keywords, function is not None)


def _behind(slot: Any) -> property:
    """A slot that is asked for only inside the protocol."""

    def get(self: Any) -> Any:
        if not LOCAL.off:
            raise NotDense(self)
        return slot.__get__(self, type(self))

    return property(get, slot.__set__)


# What PyTorch calls for an operator, and so hands to the classes of its operands. A tensor in front of an object of such a class is the first
# operand, although Python asks the subclass for the reflected operator.
IN_FRONT = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "mod": "remainder", "matmul": "matmul"}
IN_FRONT |= {name: f"__{name}__" for name in ("floordiv", "pow", "and", "or", "xor", "lshift", "rshift")}
OPERATORS = {f"__{name}__": meant for name, meant in IN_FRONT.items()}
OPERATORS |= {f"__{name}__": name for name in ("lt", "le", "gt", "ge", "ne", "neg", "abs")}
OPERATORS |= {"__pos__": "positive", "__radd__": "add", "__rmul__": "mul", "__ifloordiv__": "floor_divide_"}
OPERATORS |= {f"__r{name}__": f"bitwise_{name}" for name in ("and", "or", "xor")}
OPERATORS |= {f"__i{name}__": f"{meant}_" for name, meant in IN_FRONT.items() if not meant.startswith("__")}
# By the primitive of an operator whose second operand is no tensor.
OPERATORS |= {"floor_divide": "__floordiv__", "pow": "__pow__", "shift_left": "__lshift__", "shift_right": "__rshift__"}
OPERATORS |= {f"bitwise_{name}": f"__{name}__" for name in ("and", "or", "xor")}


def of_operator(name: str) -> Any:
    """The method of `Tensor` that classes are asked about where a program has used an operator, named by its method or its primitive."""
    return getattr(Tensor, OPERATORS.get(name, name))


def _asking(name: str) -> Callable[..., Any]:
    in_front = "" if name == "__rshift__" else f"__{name[3:]}" if name.startswith("__r") and name[3:-2] in IN_FRONT else ""

    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        if LOCAL.off:
            return getattr(Tensor, name)(self, *args, **keywords)
        if in_front and len(args) == 1 and isinstance(args[0], Tensor):
            return ask(of_operator(in_front), (args[0], self), (args[0], self), {})
        return ask(of_operator(name), (self, *args, *keywords.values()), (self, *args), keywords)

    call.__name__ = call.__qualname__ = name
    call.__dict__["asks"] = True
    return call


def _seen(attribute: property) -> property:
    """An attribute of `Tensor`. A class with a protocol of its own is asked about it where a program reads or writes it; for others it is as it is,
    and a tensor that it gives is of the class, unless it is the gradient."""

    def get(self: Any) -> Any:
        if type(self) in ASKING and _by_program():
            return _of_attribute(self, attribute.__get__)
        with plainly():
            found = attribute.__get__(self, type(self))
        return found if attribute in _AS_THEY_ARE or LOCAL.off else _converted(found, type(self))

    def put(self: Any, value: Any) -> None:
        if type(self) in ASKING and _by_program():
            _of_attribute(self, attribute.__set__, value)
            return
        with plainly():
            attribute.__set__(self, value)

    def delete(self: Any) -> None:
        if type(self) in ASKING and _by_program():
            _of_attribute(self, attribute.__delete__)
            return
        with plainly():
            attribute.__delete__(self)

    return property(get, put, delete, attribute.__doc__)


def _by_program() -> bool:
    """Whether who reads an attribute is no part of the library, which knows what it wants."""
    return not LOCAL.off and not inside_package(sys._getframe(2).f_code.co_filename)


def _of_attribute(x: Any, access: Any, *values: Any) -> Any:
    """What the class of `x` says to an access of one of its attributes: `Tensor.grad.__get__`, for one, is what it is asked about."""
    found = getattr(x, METHOD)(access, (type(x),), (x, *values))
    if found is NotImplemented:
        name = access.__name__
        raise DTypeError(f"[{name}] no implementation found for {name} on types that implement __torch_function__: got {[type(x).__name__]}")
    return found


def gradient_of(x: Any) -> Any:
    """`x.grad` as a program reads it: a class may say what that is."""
    return _of_attribute(x, Tensor.grad.__get__) if type(x) in ASKING else x._grad  # type: ignore[attr-defined]


def forget_asked(parameters: Iterable[Any], set_to_none: bool) -> None:
    """`zero_grad` of those whose class may say what their gradient is."""
    for x in parameters:
        if type(x) in ASKING and (found := gradient_of(x)) is not None:
            if set_to_none:
                _of_attribute(x, Tensor.grad.__set__, None)  # type: ignore[attr-defined]
            else:
                found.detach_().zero_()


KEPT = (
    "__new__", "__init__", "__init_subclass__", METHOD, "__hash__", "__iter__", "__class__", "__getattribute__", "__setattr__", "__dir__",
    "as_subclass",
)  # fmt: skip


def adopt(cls: type) -> None:
    """Put a subclass of `Tensor` behind the protocol."""
    above = [base for base in cls.__mro__[: cls.__mro__.index(Tensor)] if not base.__module__.startswith(("calque.", "torch.nn."))]
    own = {name for base in above for name in vars(base)}
    for name, value in list(vars(Tensor).items()):
        if name in own or name in KEPT:
            continue
        if name in ("_storage", "_layout"):
            setattr(cls, name, _behind(value))
        elif isinstance(value, property):
            setattr(cls, name, _seen(value))
        elif isinstance(value, FunctionType) or type(value).__name__ == "LaterMethod":
            setattr(cls, name, _asking(name))
    if inspect.getattr_static(cls, METHOD) is not vars(Tensor)[METHOD]:
        ASKING.add(cls)
    cls._meaning = _meaning  # type: ignore[attr-defined]
    ASKED[cls] = partial(as_subclass, cls=Tensor)


def _of_others(name: str, x: Any, error: Exception) -> Any:
    """What a function of one operand means for something that is no tensor with values."""
    if isinstance(error, NotDense):
        return error.meaning(name, (x,), {})
    if overriding((x,)):
        return ask(public_function(name), (x,), (x,), {})
    assert isinstance(error, AttributeError)
    raise no_tensor(name, error) or error from None


type.__setattr__(Tensor, METHOD, classmethod(_run))
type.__setattr__(Tensor, "_of_others", staticmethod(_of_others))
_AS_THEY_ARE += (vars(Tensor)["grad"], vars(Tensor)["_base"])
