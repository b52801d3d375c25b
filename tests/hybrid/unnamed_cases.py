"""What Python calls of a user's class although no code names it, attributes that users put on tensors, and how the process stands: all of it changes
behind the back of a hybridized function, see `test_dependencies.py`.
"""

from __future__ import annotations

import textwrap
import types
from typing import Any

import calque
from calque import nn

# What code does, by the special method that Python calls for it. `a` is an object with that method, x the tensor.
UNNAMED = {
    "add": "a + x", "radd": "(1 + a) * x", "sub": "a - x", "rsub": "(1 - a) * x", "mul": "a * x", "rmul": "(3 * a) * x", "truediv": "a / x",
    "rtruediv": "(1 / a) * x", "floordiv": "a // x", "rfloordiv": "(1 // a) * x", "mod": "a % x", "rmod": "(3 % a) * x", "pow": "a ** x",
    "rpow": "(3 ** a) * x", "matmul": "a @ x", "rmatmul": "(3 @ a) * x", "and": "a & x", "rand": "(3 & a) * x", "or": "a | x", "ror": "(3 | a) * x",
    "xor": "a ^ x", "rxor": "(3 ^ a) * x", "lshift": "a << x", "rlshift": "(3 << a) * x", "rshift": "a >> x", "rrshift": "(3 >> a) * x",
    "divmod": "x * divmod(a, 3)", "neg": "x * -a", "pos": "x * +a", "invert": "x * ~a", "abs": "x * abs(a)", "round": "x * round(a)",
    "lt": "x * (a < 3)", "le": "x * (a <= 3)", "gt": "x * (a > 3)", "ge": "x * (a >= 3)", "eq": "x * (a == 3)", "ne": "x * (a != 3)",
    "iadd": "into(a, x)", "call": "a(x)", "getitem": "x * a[2]", "len": "x * len(a)", "index": "x * [1.0, 2.0, 3.0][a]",
    "hash": "x * {1: 1.0, 2: 2.0}[a]",
    "int": "x * int(a)", "float": "x * float(a)", "bool": "x * (2 if a else 3)", "contains": "x * (2 if 3 in a else 3)", "iter": "x * sum(a)",
    "reversed": "x * sum(reversed(a))", "str": "x * float(str(a))", "repr": "x * float(repr(a))", "format": "x * float(f'{a}')", "get": "x * b.k",
    "missing": "x * a['q']", "enter": "entered(a, x)", "class_getitem": "x * A[3]",
    "instancecheck": "x * (2.0 if isinstance(3, Q) else 3.0)", "init": "x * len(type(a)())",
}  # fmt: skip
_TENSORS = (
    "a + x", "a - x", "a * x", "a / x", "a // x", "a % x", "a ** x", "a @ x", "a & x", "a | x", "a ^ x", "a << x", "a >> x",
    "into(a, x)", "a(x)",
)  # fmt: skip
_RESULTS = {  # of a method, where it is not FACTOR
    **dict.fromkeys(("iter", "reversed"), "iter([FACTOR])"), **dict.fromkeys(("str", "repr", "format"), "str(FACTOR)"), "float": "float(FACTOR)",
    **dict.fromkeys(("bool", "contains", "instancecheck"), "FACTOR > 1"), "init": "self.extend([0] * FACTOR)",
}  # fmt: skip
_TEXT = """
class A({base}):
    {static}
    def __{name}__(self, *others):
        return {result}
    {more}
a = A()
class B:
    k = a if {descriptor} else 0
b = B()
class Kind(type):
    __instancecheck__ = A.__dict__.get("__instancecheck__")
class Q(metaclass=Kind):
    pass
def into(a, x):
    a += x
    return a
def entered(a, x):
    with a as factor:
        return x * factor
def call(x):
    return {code}
"""


def special(name: str, code: str) -> Any:
    """A function that depends on a global which a special method alone reads, and what changes that."""
    scope: dict[str, Any] = {"__name__": "__main__", "FACTOR": 1}
    more = {"hash": "def __eq__(self, other): return True", "enter": "def __exit__(self, *error): pass"}.get(name, "")
    result = "others[0] * FACTOR" if code in _TENSORS else _RESULTS.get(name, "FACTOR")
    base = {"missing": "dict", "init": "list"}.get(name, "object")
    static = "@classmethod" if name == "class_getitem" else ""
    text = _TEXT.format(base=base, name=name, result=result, more=more, descriptor=name == "get", code=code, static=static)
    if name != "instancecheck":  # isinstance() asks the class of a class
        text = text.replace("class Kind(type):\n    __instancecheck__", "class Kind(type):\n    unused")
    exec(textwrap.dedent(text), scope)  # noqa: S102 - the text above
    return scope["call"], lambda: scope.__setitem__("FACTOR", 2)


def _descriptor() -> Any:
    class Scale:
        def __get__(self, owner: Any, kind: Any) -> Any:
            return held[0]

    class Options:
        scale = Scale()

    held, options = [2.0], Options()
    return lambda x: x * options.scale, lambda: held.__setitem__(0, 5.0)


def _attribute_of_a_tensor() -> Any:
    weight: Any = calque.ones(2)
    weight.scale = 2.0
    return lambda x: x * weight * weight.scale, lambda: setattr(weight, "scale", 5.0)


def _attribute_that_a_parameter_gets_later() -> Any:
    layer = nn.Linear(2, 2)

    def call(x: Any) -> Any:
        return layer(x) + sum(p.detach().sum() for p in layer.parameters() if not getattr(p, "no_decay", False))

    return call, lambda: setattr(layer.weight, "no_decay", True)


def _class_of_a_class() -> Any:
    class Kind(type):
        def __call__(cls, x: Any) -> Any:
            return x * held[0]

    class Scale(metaclass=Kind):
        pass

    held = [2.0]
    return lambda x: Scale(x), lambda: held.__setitem__(0, 5.0)  # type: ignore[call-arg]


def _defaults_of_an_optimizer() -> Any:
    optimizer = calque.optim.SGD([calque.ones(2, requires_grad=True)], lr=0.1)
    return lambda x: x * optimizer.defaults["lr"], lambda: optimizer.defaults.__setitem__("lr", 0.7)


def _seed_of_the_default_stream() -> Any:
    return lambda x: x * (calque.initial_seed() % 100), lambda: calque.manual_seed(7)


def _switch_of_the_process() -> Any:
    def call(x: Any) -> Any:
        return x * (2.0 if calque.are_deterministic_algorithms_enabled() else 3.0)

    call.undo = lambda: calque.use_deterministic_algorithms(False)  # type: ignore[attr-defined]
    return call, lambda: calque.use_deterministic_algorithms(True)


def _number_of_writes() -> Any:
    held = calque.ones(2)
    return lambda x: x * (held._version + 1), lambda: held.add_(1)


def _module(held: bool) -> Any:
    """A module that is no global of the function: in a closure, or in an object."""
    options: Any = types.ModuleType("options_of_a_user")
    options.scale = 2.0
    box = types.SimpleNamespace(options=options)
    call = (lambda x: x * box.options.scale) if held else (lambda x: x * options.scale)
    return call, lambda: setattr(options, "scale", 5.0)


def _functions_of_a_module_behind_a_name() -> Any:
    library: Any = nn.functional
    before = library.relu
    call: Any = lambda x: library.relu(x)  # noqa: E731 - attributes are put on it
    call.undo = lambda: setattr(library, "relu", before)
    return call, lambda: setattr(library, "relu", lambda x: x * 7)


def _attribute_that_a_module_computes() -> Any:
    options: Any = types.ModuleType("more_options_of_a_user")
    held = [2.0]

    def computed(name: str) -> float:
        if name != "scale":
            raise AttributeError(name)
        return held[0]

    options.__getattr__ = computed
    return lambda x: x * options.scale, lambda: held.__setitem__(0, 5.0)


CASES = {f"__{name}__": (lambda name=name, code=code: special(name, code)) for name, code in UNNAMED.items()}
CASES |= {
    made.__name__.strip("_"): made
    for made in (
        _descriptor, _attribute_of_a_tensor, _attribute_that_a_parameter_gets_later, _class_of_a_class, _defaults_of_an_optimizer,
        _functions_of_a_module_behind_a_name, _attribute_that_a_module_computes,
        _seed_of_the_default_stream, _switch_of_the_process, _number_of_writes,
    )
}  # fmt: skip
CASES |= {"module in a closure": lambda: _module(False), "module in an object": lambda: _module(True)}
REFUSED = {"seed_of_the_default_stream", "switch_of_the_process", "number_of_writes"}
