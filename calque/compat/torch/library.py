"""`torch.library` and `torch.ops`: operators that programs define. One is a Python function with a name, and perhaps a backward function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import calque
from calque.autograd.function import Function
from calque.compat.missing import refusal
from calque.compat.refused import as_it_is, nothing, refused

__all__ = [
    "CustomOpDef", "Library", "OPERATORS", "custom_op", "define", "fallthrough_kernel", "get_ctx", "impl", "impl_abstract", "infer_schema", "opcheck",
    "register_autocast", "register_autograd", "register_fake", "register_kernel", "register_torch_dispatch", "register_vmap", "triton_op",
    "wrap_triton",
]  # fmt: skip

fallthrough_kernel = nothing
opcheck, wrap_triton, get_ctx = (refused(f"torch.library.{name}") for name in ("opcheck", "wrap_triton", "get_ctx"))


OF_PYTORCH = ("aten", "prims")  # namespaces whose operators are functions of Calque's
OF_THE_CPU = ("cpu", "compositeimplicitautograd", "compositeexplicitautograd", "default")  # keys under which PyTorch looks for it


class CustomOpDef:
    """An operator: what `custom_op` makes of a function, and what `torch.ops.namespace.name` is."""

    def __init__(self, name: str, function: Callable[..., Any] | None = None) -> None:
        self._qualname, self._function = name, function
        self._backward: Callable[..., Any] | None = None
        self._setup: Callable[..., Any] | None = None
        self.__name__ = name.rpartition("::")[2]
        self.__doc__ = function.__doc__ if function is not None else None

    default = property(lambda self: self, doc="The operator itself.")

    def __getattr__(self, overload: str) -> "CustomOpDef":
        """A form of an operator of PyTorch's, such as `aten.add.Tensor`: another key in the tables of libraries, and the same function."""
        if overload.startswith("_") or self._qualname.partition("::")[0] not in OF_PYTORCH:
            raise AttributeError(overload)
        form = CustomOpDef(self._qualname, self._function)
        form.__name__ = f"{self.__name__}.{overload}"
        self.__dict__[overload] = form
        return form

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        function = self._function
        if function is None:
            raise NotImplementedError(f"[{self._qualname}] expected a function to call, got a definition alone; register one with torch.library.impl")
        if self._backward is None or not calque.is_grad_enabled():
            return function(*args, **keywords)
        if keywords:
            bound = inspect.signature(function).bind(*args, **keywords)
            bound.apply_defaults()
            args = bound.args
        return self._node().apply(*args)

    def _node(self) -> Any:
        """The autograd function of an operator with a backward function."""
        function, backward, setup = self._function, self._backward, self._setup

        class Operator(Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Any:
                output = function(*args)  # type: ignore[misc]
                if setup is not None:
                    setup(ctx, args, output)
                return output

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                return backward(ctx, *grads)  # type: ignore[misc]

        return Operator

    def register_autograd(self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None) -> None:
        """Differentiate the operator by `backward(ctx, *grads)`; `setup_context(ctx, inputs, output)` saves what that needs."""
        self._backward, self._setup = backward, setup_context

    def register_kernel(self, device_types: Any, fn: Any = None, /) -> Any:
        """Compute by another function on some devices: on "cpu" or all of them (None) it becomes the operator's."""

        def register(found: Any) -> Any:
            names = [device_types] if isinstance(device_types, str) or device_types is None else list(device_types)
            if any(name is None or str(name).lower() in OF_THE_CPU for name in names):
                self._function = found
            return found

        return register if fn is None else register(fn)

    def register_fake(self, fn: Any, /) -> Any:
        """Accepted: shapes of results are those that the function gives."""
        return fn

    register_vmap = register_autocast = register_torch_dispatch = register_fake

    def __repr__(self) -> str:
        return f"<operator {self._qualname}>"


def _sliced(self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """`self[start:end:step]` along `dim`."""
    return self[(slice(None),) * (dim % self.ndim) + (slice(start, end, step),)]


def _indexed(self: Any, indices: Any) -> Any:
    """`self[indices]`, where None stands for a whole dimension."""
    return self[tuple(slice(None) if index is None else index for index in indices)]


def _copied(self: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, non_blocking: Any = False,
            memory_format: Any = None) -> Any:  # fmt: skip
    """A copy of `self` in another dtype or on another device."""
    return self.to(dtype=dtype or self.dtype, device=device or self.device, copy=True)


# Operators of PyTorch's that are no function or method of the same name.
OF_ATEN: dict[str, Callable[..., Any]] = {
    "slice": _sliced,
    "index": _indexed,
    "_to_copy": _copied,
    "alias": lambda self: self.view_as(self),
    "_pin_memory": lambda self, device=None: self.pin_memory(),
    "_sparse_addmm": refused("torch.sparse.addmm"),
    "_sparse_mm_reduce_impl": refused("torch.sparse.mm"),
}


class _Namespace:
    """`torch.ops.name`: operators that programs have defined; in `aten` and `prims` the functions of the same names."""

    def __init__(self, name: str) -> None:
        self._name, self._defined = name, dict[str, CustomOpDef]()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._defined:
            return self._defined[name]
        if self._name in OF_PYTORCH:
            spaces = (calque, calque.nn.functional, calque.Tensor)
            found = OF_ATEN.get(name) or next((getattr(space, name) for space in spaces if inspect.isfunction(getattr(space, name, None))), None)
            if found is not None:
                return self._defined.setdefault(name, CustomOpDef(f"{self._name}::{name}", found))
        raise refusal(f"torch.ops.{self._name}", name, self._defined)


class _Operators:
    """`torch.ops`."""

    def __init__(self) -> None:
        self._spaces: dict[str, _Namespace] = {}
        self.loaded_libraries: set[str] = set()

    def __getattr__(self, name: str) -> _Namespace:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._spaces.setdefault(name, _Namespace(name))

    def load_library(self, path: Any) -> None:
        """Refused: libraries are compiled against PyTorch's own headers."""
        refused("torch.utils.cpp_extension.load")()


OPERATORS = _Operators()


def _operator(name: str) -> CustomOpDef:
    """The operator "namespace::name", defined now if it was not."""
    space, colons, last = name.partition("(")[0].partition("::")
    if not colons or not last:
        raise ValueError(f"[torch.library] expected a name such as 'mylib::myop', got {name!r}; put a namespace in front")
    last = last.partition(".")[0].strip()
    return getattr(OPERATORS, space)._defined.setdefault(last, CustomOpDef(f"{space}::{last}"))  # type: ignore[no-any-return]


def custom_op(
    name: str, fn: Any = None, /, *, mutates_args: Any, device_types: Any = None, schema: str | None = None, tags: Any = None
) -> Any:
    """Make an operator of a function; also a decorator. Its name is "namespace::name", and it is then `torch.ops.namespace.name` as well."""

    def define_it(function: Any) -> CustomOpDef:
        made = _operator(name)
        made.__init__(made._qualname, function)  # type: ignore[misc]
        return made

    return define_it if fn is None else define_it(fn)


def triton_op(name: str, fn: Any = None, /, *, mutates_args: Any, schema: str | None = None) -> Any:
    """`custom_op`: what the function calls may be kernels of Triton or anything else."""
    return custom_op(name, fn, mutates_args=mutates_args, schema=schema)


class Library:
    """Definitions of operators in one namespace: `Library("mylib", "FRAGMENT")`."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        if kind not in ("IMPL", "DEF", "FRAGMENT"):
            raise ValueError(f"[Library] expected kind as 'IMPL', 'DEF' or 'FRAGMENT', got {kind!r}; pass 'FRAGMENT'")
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
        """Define an operator by its signature: "myop(Tensor x) -> Tensor". Returns its name."""
        return _operator(f"{self.ns}::{schema}").__name__

    def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", *, with_keyset: bool = False, allow_override: bool = False) -> None:
        """Say how an operator is computed. Of a device other than the CPU it is accepted and never called."""
        name = op_name if isinstance(op_name, str) else op_name._qualname
        _operator(name if "::" in name else f"{self.ns}::{name}").register_kernel(dispatch_key or self.dispatch_key or None, fn)


def define(qualname: str, schema: Any, *, lib: Any = None, tags: Any = ()) -> None:
    """Define an operator by its name and signature."""
    _operator(qualname)


def impl(qualname: str, types: Any, func: Any = None, *, lib: Any = None) -> Any:
    """Say how an operator is computed on some devices; also a decorator."""
    return _operator(qualname).register_kernel(types, func)


def _of(op: Any) -> CustomOpDef:
    return op if isinstance(op, CustomOpDef) else _operator(op)


def register_kernel(op: Any, device_types: Any, func: Any = None, /, *, lib: Any = None) -> Any:
    """As `impl`."""
    return _of(op).register_kernel(device_types, func)


def register_autograd(op: Any, backward: Any, /, *, setup_context: Any = None, lib: Any = None) -> None:
    """Say how an operator is differentiated: see `CustomOpDef.register_autograd`."""
    _of(op).register_autograd(backward, setup_context=setup_context)


def register_fake(op: Any, func: Any = None, /, **options: Any) -> Any:
    """Accepted: shapes of results are those that the operator gives."""
    _of(op)
    return as_it_is if func is None else func


impl_abstract = register_vmap = register_autocast = register_torch_dispatch = register_fake


def infer_schema(prototype_function: Any, /, *, mutates_args: Any, op_name: str | None = None) -> str:
    """The signature of a function as text."""
    names = {calque.Tensor: "Tensor", int: "SymInt", float: "float", bool: "bool", str: "str"}

    def shown(kind: Any) -> str:
        return names.get(kind, str(getattr(kind, "__name__", kind)))

    signature = inspect.signature(prototype_function, eval_str=True)
    given = ", ".join(f"{shown(p.annotation)} {p.name}" for p in signature.parameters.values())
    return f"{op_name or ''}({given}) -> {shown(signature.return_annotation)}"
