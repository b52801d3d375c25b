"""`symbolic_trace`: run a module on proxies and write down what it does."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import FunctionType, ModuleType
from typing import Any

from calque.autograd.transform.tree import LEAF, Container, flatten, mapped
from calque.base.dtypes import DType
from calque.base.errors import DTypeError
from calque.base.text import described, type_name
from calque.fx.functions import public_functions
from calque.fx.graph import Flat, Graph
from calque.fx.module import GraphModule
from calque.fx.operators import ORDINARY
from calque.fx.proxy import Proxy, TraceError, TracerBase
from calque.nn.module import Module
from calque.nn.modules.container import Sequential
from calque.nn.parameter import Parameter
from calque.observe.source import warn_user
from calque.tensor import Tensor

_WRAPPED: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}  # global names whose calls become nodes, see `wrap`


def wrap(fn_or_name: Any) -> Any:
    """Make calls of a function with proxies one node each, instead of tracing through it. Call it at the top of a module, with the name or as a
    decorator: `wrap("len")`.

    >>> import calque
    >>> @calque.fx.wrap
    ... def helper(x):
    ...     return x if x.sum() > 0 else -x
    """
    if not isinstance(fn_or_name, str) and not callable(fn_or_name):
        raise RuntimeError(f"[wrap] expected a function or the name of one, got {type_name(fn_or_name)}; pass its name")
    name = fn_or_name if isinstance(fn_or_name, str) else fn_or_name.__name__
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") == "calque.functional.blame" and frame.f_back is not None:
        frame = frame.f_back
    if frame.f_code.co_name != "<module>":
        raise NotImplementedError(f"[wrap] expected a call at the top of a module, got one in {frame.f_code.co_name}(); move it there")
    _WRAPPED[id(frame.f_globals), name] = (frame.f_globals, name)
    return fn_or_name


def _proxy_in(*values: Any) -> Proxy | None:
    """A proxy among arguments, also inside of containers."""
    for value in values:
        if isinstance(value, Proxy):
            return value
        inside = value if isinstance(value, (tuple, list)) else value.values() if isinstance(value, dict) else ()
        if isinstance(value, slice):
            inside = (value.start, value.stop, value.step)
        found = _proxy_in(*inside) if inside else None
        if found is not None:
            return found
    return None


def _recording(function: Any) -> Any:
    """A function that becomes a node where it is given a proxy."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = _proxy_in(args, kwargs)
        if found is not None:
            return found.tracer.create_proxy("call_function", function, args, kwargs)
        return function(*args, **kwargs)

    call.__dict__["_records"] = True
    return call


class _Patches:
    """Values of names that are others for a while."""

    def __init__(self) -> None:
        self.before: list[tuple[Any, str, Any, bool]] = []

    def item(self, space: dict[str, Any], name: str, value: Any) -> None:
        """Set a global name."""
        self.before.append((space, name, space.get(name), name in space))
        space[name] = value

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class or module."""
        own = vars(owner)
        self.before.append((owner, name, own.get(name), name in own))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put back what was there."""
        for owner, name, value, there in reversed(self.before):
            if isinstance(owner, dict):
                if there:
                    owner[name] = value
                else:
                    del owner[name]
            elif there:
                setattr(owner, name, value)
            else:
                delattr(owner, name)
        self.before.clear()


def _places() -> Iterator[dict[str, Any]]:
    """The names of every module in which functions may record: of programs, of the namespaces of functions, and of the models that Calque has."""
    inner = ("calque.", "builtins", "importlib")
    faces = ("calque.nn.functional", "calque.linalg", "calque.special", "calque.fft", "calque.functional")
    models = ("calque.vision.", "calque.text.")  # written as users write theirs: they are traced through
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", None)
        if isinstance(module, ModuleType) and isinstance(name, str) and (not name.startswith(inner) or name in faces or name.startswith(models)):
            yield vars(module)


def _patch_functions(patches: _Patches, root: Any, more: dict[int, Any]) -> None:
    """Let functions of Calque record wherever a program has a name for them: in modules, and in attributes of the modules that are traced."""
    public: dict[int, Any] = {key: _recording(function) for key, function in more.items()}
    wrapped = {id(inner): public[key] for key, function in more.items() if (inner := getattr(function, "__wrapped__", None)) is not None}
    known = wrapped | public  # models of ours call functions that have no explanations of errors around them
    for space in _places():
        for key, value in list(space.items()):
            if id(value) in known and not key.startswith("__"):
                patches.item(space, key, known[id(value)])
    if isinstance(root, Module):
        for owner in root.modules():
            for key, value in list(vars(owner).items()):
                if id(value) in known:
                    patches.item(vars(owner), key, known[id(value)])
    elif isinstance(root, FunctionType):
        for key, value in list(root.__globals__.items()):
            if id(value) in known:
                patches.item(root.__globals__, key, known[id(value)])


def _patch_tensors(patches: _Patches) -> None:
    """Let operators of tensors record where the other operand is a proxy."""
    for name, function in ORDINARY.items():
        method = getattr(Tensor, name, None)
        if method is None or name in ("__neg__", "__invert__", "__pos__", "__abs__"):
            continue

        def call(self: Any, other: Any, _method: Any = method, _function: Any = function) -> Any:
            found = _proxy_in(other)
            if found is not None:
                return found.tracer.create_proxy("call_function", _function, (self, other), {})
            return _method(self, other)

        patches.attribute(Tensor, name, call)


class Tracer(TracerBase):
    """Traces modules. Subclasses say by `is_leaf_module` which modules become one node, and may change what becomes of calls.

    autowrap_modules: Python modules whose functions become nodes where they are given proxies. autowrap_functions: more such functions.
    """

    def __init__(self, autowrap_modules: Any = (math,), autowrap_functions: Any = (), param_shapes_constant: bool = False) -> None:
        if not isinstance(autowrap_modules, (tuple, list)) or not all(isinstance(m, ModuleType) for m in autowrap_modules):
            raise DTypeError(f"[Tracer] expected autowrap_modules as a tuple of Python modules, got {described(autowrap_modules)}")
        self._more = [f for m in autowrap_modules for f in vars(m).values() if callable(f) and not isinstance(f, type)] + list(autowrap_functions)
        self.param_shapes_constant = param_shapes_constant
        self.root: Any = None
        self.tensor_attrs: dict[Any, str] = {}
        self._paths: dict[Any, str] = {}
        self._parameters: dict[str, Proxy] = {}

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        """Whether a module becomes one node: those of `torch.nn`, but for `Sequential`."""
        return type(m).__module__.startswith(("calque.nn", "torch.nn")) and not isinstance(m, Sequential)

    def path_of_module(self, mod: Module) -> str:
        """The dotted name of a module below the root."""
        found = self._paths.get(mod)
        if found is None:
            raise NameError(f"[symbolic_trace] expected a submodule of what is traced, got a {type(mod).__name__}; assign it to an attribute")
        return found

    def call_module(self, m: Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a call of a module becomes: one node, or what its `forward` does."""
        path = self.path_of_module(m)
        if not self.is_leaf_module(m, path):
            return forward(*args, **kwargs)
        return self.create_proxy("call_module", path, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """What reading an attribute of a module gives: proxies for parameters."""
        if not isinstance(attr_val, Parameter):
            return attr_val
        name = self.tensor_attrs.get(attr_val)
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {})
        return parameter_proxy_cache[name]

    def constant(self, a: Any) -> Any:
        """An argument of another kind."""
        return self.create_node("call_function", type(a), (), {}) if _is_empty(a) else super().constant(a)

    def create_arg(self, a: Any) -> Any:
        """An argument as a node can have it: tensors are read from the module, others become attributes of it."""
        if not isinstance(a, Tensor):
            return super().create_arg(a)
        if self.root is None:
            raise TraceError("[Tracer] expected a trace to be going on, got a tensor before it; call trace(root) first")
        name = self.tensor_attrs.get(a)
        if name is None:
            name = next(f"_tensor_constant{k}" for k in range(1 << 30) if not hasattr(self.root, f"_tensor_constant{k}"))
            self.tensor_attrs[a] = name
            self.root.register_buffer(name, a, persistent=False) if a._grad_fn is None else setattr(self.root, name, a)
        return self.create_node("get_attr", name, (), {})

    def create_args_for_root(self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """(function, positional arguments): placeholders for what the function takes."""
        parameters = list(inspect.signature(root_fn).parameters.values())[is_module:]
        given = self._given(concrete_args, parameters)
        args: list[Any] = [self.root] if is_module else []
        for p in sorted(parameters, key=lambda p: _ORDER.index(p.kind)):
            if p.name in given:
                value = self._specialised(p, given[p.name])
            else:
                star = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
                default = () if p.default is p.empty else (p.default,)
                value = self.create_proxy("placeholder", star + p.name, default, {})
            args.append(value)
        return _all_by_position(root_fn, len(args)), args

    def _given(self, concrete_args: Any, parameters: list[inspect.Parameter]) -> dict[str, Any]:
        """The values that arguments are to have, by name. If there are containers among them, the graph takes what these hold."""
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if isinstance(concrete_args, tuple):
            if len(concrete_args) != len(named):
                raise RuntimeError(f"[symbolic_trace] Tracing expected {len(named)} arguments but got {len(concrete_args)} concrete arguments")
            concrete_args = {p.name: value for p, value in zip(named, concrete_args)}
        given = dict(concrete_args or {})
        structures = [flatten(given[p.name])[1] if p.name in given else LEAF for p in parameters]
        if any(structure is not LEAF for structure in structures):
            self.graph.flat = Flat([p.name for p in parameters], Container(list, None, tuple(structures)))
        return given

    def _specialised(self, parameter: inspect.Parameter, given: Any) -> Any:
        """A value in the place of an argument. The result still takes the argument, and checks that it is that value; `PH` stands for any."""
        name, numbers = parameter.name, count(1)
        default = () if parameter.default is parameter.empty else (parameter.default,)

        def one(value: Any) -> Any:
            out = self.create_proxy("placeholder", f"{name}_{next(numbers)}", default, {})
            if isinstance(value, PHBase):
                if value is not PH:
                    out.node.__dict__.update({key: x for key, x in vars(value).items() if key not in vars(out.node)})
                return out
            text = f"{name} has been specialized to have value {value} but got another value"
            if value is None:
                self.create_proxy("call_function", _assert_is_none, (out, text), {})
            elif isinstance(value, (bool, int, float, complex, str, bytes, DType)):
                self.create_proxy("call_function", _assert, (out == value, text), {})
            else:
                warn_user(
                    f"Was not able to add assertion to guarantee correct input {name} to specialized function. It is up to the user to make sure "
                    "that your inputs match the inputs you specialized the function with."
                )
            return value

        return mapped(one, given)

    def trace(self, root: Any, concrete_args: dict[str, Any] | tuple[Any, ...] | None = None) -> Graph:
        """The graph of a module or function. concrete_args: values of arguments, which the result checks; a tuple gives one for each argument."""
        is_module = isinstance(root, Module)
        if not is_module and not callable(root):
            raise DTypeError(f"[symbolic_trace] expected a Module or a function, got {type_name(root)}; pass the module itself")
        function = type(root).forward if is_module else root
        self.root = root if is_module else Module()
        self.graph = Graph(tracer_cls=type(self))
        self._paths = {module: name for name, module in reversed(list(self.root.named_modules(remove_duplicate=False)))}
        members = [*self.root.named_parameters(remove_duplicate=False), *self.root.named_buffers(remove_duplicate=False)]
        self.tensor_attrs = {value: name for name, value in reversed(members)}
        self._parameters = {}
        function, args = self.create_args_for_root(function, is_module, concrete_args)
        with self._patched(root):
            result = function(*args)
        if self.graph.flat is not None:
            result, self.graph.flat.out_spec = flatten(result)
        self.create_node("output", "output", (self.create_arg(result),), {})
        return self.graph

    @contextlib.contextmanager
    def _patched(self, root: Any) -> Iterator[None]:
        """A block in which functions, modules and tensors record."""
        patches = _Patches()
        call, read = Module.__call__, Module.__getattr__

        def call_module(m: Module, *args: Any, **kwargs: Any) -> Any:
            def forward(*a: Any, **k: Any) -> Any:
                return call(m, *a, **k)

            return self.call_module(m, forward, args, kwargs) if m in self._paths else call(m, *args, **kwargs)

        def get(m: Module, name: str) -> Any:
            return self.getattr(name, read(m, name), self._parameters)

        try:
            patches.attribute(Module, "__call__", call_module)
            patches.attribute(Module, "__getattr__", get)
            _patch_tensors(patches)
            _patch_functions(patches, root, {**public_functions(), **{id(f): f for f in self._more}})
            for space, name in _WRAPPED.values():
                value = space.get(name, getattr(builtins, name, None))
                if value is not None and "_records" not in getattr(value, "__dict__", {}):
                    patches.item(space, name, _recording(value))
            yield
        finally:
            patches.undo()


class PHBase:
    """Stands in `concrete_args` for a value that stays an argument. Attributes of an object of a subclass become those of its node."""

    def __repr__(self) -> str:
        return "PH"


PH = PHBase()


def _assert(condition: Any, message: str) -> None:
    assert condition, message


def _assert_is_none(value: Any, message: str) -> None:
    assert value is None, message


_ORDER = (  # of the variables of a function's code
    inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)  # fmt: skip


def _all_by_position(function: Any, number: int) -> Any:
    """The function with its keyword arguments, `*args` and `**kwargs` as ordinary arguments, so that a proxy can be each of the last two."""
    code = getattr(function, "__code__", None)
    stars = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    if code is None or not (code.co_kwonlyargcount or code.co_flags & stars):
        return function
    plain = code.replace(co_argcount=number, co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=code.co_flags & ~stars)
    return FunctionType(plain, function.__globals__, function.__name__, None, function.__closure__)


def _is_empty(a: Any) -> bool:
    return isinstance(a, (set, frozenset)) and not a


def symbolic_trace(root: Any, concrete_args: dict[str, Any] | tuple[Any, ...] | None = None) -> GraphModule:
    """A module whose code is what `root` does. Control flow that depends on values raises `TraceError`; layers of `torch.nn` are one node each.

    concrete_args: values of arguments that control flow depends on, by name. The result still takes these arguments, and raises if one has another
    value. Containers of values and `fx.PH` (any value) are taken apart.

    >>> import calque
    >>> class Net(calque.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear = calque.nn.Linear(2, 2)
    ...     def forward(self, x):
    ...         return calque.relu(self.linear(x)) + 1
    >>> print(calque.fx.symbolic_trace(Net()).code.strip())
    def forward(self, x):
        linear = self.linear(x)
        relu = torch.relu(linear)
        add = relu + 1
        return add
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    return GraphModule(tracer.root, graph, type(root).__name__ if isinstance(root, Module) else root.__name__)
