"""Parametrizations: a parameter (or buffer) that modules compute from another one, each time it is read.

A parametrized module gets a class of its own, made for it, with a property per parametrized tensor. Such a class never changes: registering and
removing give the module another one, so that copies of a module, which share its class, keep what they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError
from calque.base.text import type_name
from calque.functional.common import is_tensor
from calque.nn.modules.container import ModuleDict, ModuleList
from calque.nn.parameter import Parameter, replace_value
from calque.replay.capture import abort
from calque.replay.counts import Changes

__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations",
    "transfer_parametrizations_and_params", "type_before_parametrizations",
]  # fmt: skip


class _Cache:
    """Values computed inside `cached()` blocks, by module and name."""

    depth = 0
    values: dict[tuple[int, str], Any] = {}


@contextmanager
def cached() -> Iterator[None]:
    """Compute each parametrized tensor once inside the block, however often it is read.

    >>> import calque
    >>> from calque.nn.utils import parametrizations, parametrize
    >>> layer = parametrizations.weight_norm(calque.nn.Linear(2, 2))
    >>> with parametrize.cached():
    ...     layer.weight is layer.weight
    True
    """
    _Cache.depth += 1
    Changes.epoch += 1
    try:
        yield
    finally:
        _Cache.depth -= 1
        Changes.epoch += 1
        if not _Cache.depth:
            _Cache.values = {}


def _register(module: Any, name: str, tensor: Any) -> None:
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _set(target: Any, value: Any) -> None:
    """Let a tensor show another value and stay the object that an optimizer knows."""
    Changes.epoch += 1
    if value is not target:
        replace_value(target, value.detach())


def _tensors(values: Any) -> bool:
    return isinstance(values, Sequence) and all(is_tensor(v) for v in values)


def _same(what: str, tensor: Any, like: Any) -> None:
    """Raise unless a tensor has the dtype and the shape of another one."""
    if not is_tensor(tensor):
        raise ArgumentError(f"[register_parametrization] A parametrization must return a tensor. Got {type_name(tensor)} from {what}")
    for part in ("dtype", "shape"):
        have, want = getattr(tensor, part), getattr(like, part)
        if have != want:
            raise ArgumentError(
                f"[register_parametrization] Registering a parametrization may not change the {part} of the tensor: expected {want} from {what}, "
                f"got {have}; pass unsafe=True to allow it"
            )


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, in order, and the tensor(s) that the first is computed from: `original`, or `original0`,
    `original1`, ... if its `right_inverse` returns several. Made by `register_parametrization`."""

    def __init__(self, modules: Sequence[Any], original: Any, unsafe: bool = False) -> None:
        if not len(modules):
            raise ArgumentError("[ParametrizationList] ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        shown = original.detach()
        new = self._inverse(original)
        if not is_tensor(new) and not _tensors(new):
            raise ArgumentError(
                f"[register_parametrization] 'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). Got {type_name(new)}"
            )
        self.is_tensor = is_tensor(new)
        self.ntensors = 1 if self.is_tensor else len(new)
        if self.is_tensor:
            self._check_dtype(new, original)
            _set(original, new)
            _register(self, "original", original)
        for i, part in enumerate(() if self.is_tensor else new):
            part = Parameter(part, original.requires_grad) if isinstance(original, Parameter) else part.requires_grad_(original.requires_grad)
            _register(self, f"original{i}", part)
        if not unsafe:
            _same("forward(right_inverse(tensor))", self(), shown)

    @no_grad()
    def _inverse(self, value: Any) -> Any:
        """What the parametrizations would make `value` of; those without an inverse count as the identity."""
        for module in reversed(list(self)):
            if hasattr(module, "right_inverse"):
                try:
                    value = module.right_inverse(value)
                except NotImplementedError:
                    continue
        return value

    @staticmethod
    def _check_dtype(value: Any, original: Any) -> None:
        if value.dtype != original.dtype:
            raise ArgumentError(
                "[register_parametrization] When `right_inverse` outputs one tensor, it may not change the dtype: "
                f"expected {original.dtype}, got {value.dtype}"
            )

    @no_grad()
    def right_inverse(self, value: Any) -> None:
        """Set the original tensors so that the parametrized one becomes `value`."""
        for module in reversed(list(self)):
            if not hasattr(module, "right_inverse"):
                raise RuntimeError(f"[right_inverse] parametrization {type(module).__name__} does not implement right_inverse.")
            value = module.right_inverse(value)
        if self.is_tensor:
            if not is_tensor(value):
                raise ArgumentError(f"[right_inverse] `right_inverse` should return a tensor. Got {type_name(value)}")
            self._check_dtype(value, self.original)
            _set(self.original, value)
            return
        if not _tensors(value) or len(value) != self.ntensors:
            raise ArgumentError(
                f"[right_inverse] 'right_inverse' must return a sequence of tensors of length {self.ntensors}. Got {type_name(value)}"
                + (f" of length {len(value)}." if isinstance(value, Sequence) else ".")
            )
        for i, part in enumerate(value):
            self._check_dtype(part, getattr(self, f"original{i}"))
            _set(getattr(self, f"original{i}"), part)

    def forward(self) -> Any:
        """The parametrized tensor."""
        first, *rest = self
        x = first(self.original) if self.is_tensor else first(*(getattr(self, f"original{i}") for i in range(self.ntensors)))
        for module in rest:
            x = module(x)
        return x


# --------------------------------------------------------------------------------------------------------- the class of a module


def _property(name: str) -> property:
    def read(self: Any) -> Any:
        if not _Cache.depth:
            return self.parametrizations[name]()
        abort("reads a cached parametrization")
        key = (id(self), name)
        if key not in _Cache.values:
            _Cache.values[key] = self.parametrizations[name]()
        return _Cache.values[key]

    def write(self: Any, value: Any) -> None:
        self.parametrizations[name].right_inverse(value)

    return property(read, write)


def _rebuild(base: type, names: tuple[str, ...]) -> Any:
    cls: Any = _class(base, names)
    return cls.__new__(cls)


def _class(base: type, names: tuple[str, ...]) -> type:
    """A subclass of `base` with a property per name, whose instances can be copied and pickled."""

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        return (_rebuild, (base, names), self.__getstate__())

    return type(f"Parametrized{base.__name__}", (base,), {"__reduce_ex__": reduce, "__module__": base.__module__, **{n: _property(n) for n in names}})


def _reclass(module: Any, base: type) -> None:
    names = tuple(module.parametrizations) if "parametrizations" in module._modules else ()
    module.__class__ = _class(base, names) if names else base
    Changes.epoch += 1


# ------------------------------------------------------------------------------------------------------------------- public


def is_parametrized(module: Any, tensor_name: str | None = None) -> bool:
    """Whether a module has a parametrization on this tensor, or on any."""
    found = getattr(module, "parametrizations", None)
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def type_before_parametrizations(module: Any) -> type:
    """The class of a module without its parametrizations."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def register_parametrization(module: Any, tensor_name: str, parametrization: Any, *, unsafe: bool = False) -> Any:
    """Let `module.tensor_name` be `parametrization(original)`, computed each time it is read; `original` is trained and saved instead, as
    `parametrizations.<tensor_name>.original`. Several are applied in the order of their registration. Returns the module.

    parametrization: a module; its `right_inverse(value)`, if it has one, gives the original for a value that is assigned (or several, which are
    then the arguments of its `forward`). unsafe: it may change shape and dtype, which is not checked then.

    >>> import calque
    >>> from calque.nn.utils import parametrize
    >>> class Symmetric(calque.nn.Module):
    ...     def forward(self, x):
    ...         return x.triu() + x.triu(1).T
    >>> layer = parametrize.register_parametrization(calque.nn.Linear(3, 3), "weight", Symmetric())
    >>> calque.equal(layer.weight, layer.weight.T)
    True
    >>> [name for name, _ in layer.named_parameters()]
    ['bias', 'parametrizations.weight.original']
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        if not unsafe:
            _check_further(module, tensor_name, parametrization)
        module.parametrizations[tensor_name].append(parametrization)
        module.parametrizations[tensor_name].unsafe |= unsafe
    elif tensor_name in module._parameters or tensor_name in module._buffers:
        base = type_before_parametrizations(module)
        found = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe)
        delattr(module, tensor_name)
        if not is_parametrized(module):
            module.parametrizations = ModuleDict()
        module.parametrizations[tensor_name] = found
        _reclass(module, base)
    else:
        raise ArgumentError(
            f"[register_parametrization] Module '{module}' does not have a parameter, a buffer, or a parametrized element with name '{tensor_name}'"
        )
    return module


@no_grad()
def _check_further(module: Any, name: str, parametrization: Any) -> None:
    """Raise unless a parametrization that comes after others keeps shape and dtype, in both directions."""
    value = getattr(module, name)
    result = parametrization(value)
    _same(f"parametrization(module.{name})", result, value)
    if hasattr(parametrization, "right_inverse"):
        try:
            back = parametrization.right_inverse(result)
        except NotImplementedError:
            return
        _same("parametrization.right_inverse", back, value)


def remove_parametrizations(module: Any, tensor_name: str, leave_parametrized: bool = True) -> Any:
    """Make `module.tensor_name` an ordinary parameter (or buffer) again, with the value it shows, or with the original value if not
    `leave_parametrized`. Returns the module."""
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(f"[remove_parametrizations] Module {module} does not have a parametrization on {tensor_name}")
    found, base = module.parametrizations[tensor_name], type_before_parametrizations(module)
    if found.is_tensor:
        original = found.original
        if leave_parametrized:
            _set(original, getattr(module, tensor_name))
    elif leave_parametrized:
        value = getattr(module, tensor_name)
        original = Parameter(value.detach()) if value.requires_grad else value
    else:
        raise ArgumentError(
            "[remove_parametrizations] Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a "
            "sequence of tensors."
        )
    del module.parametrizations[tensor_name]
    _reclass(module, base)
    if not len(module.parametrizations):
        del module.parametrizations
    _register(module, tensor_name, original)
    return module


def transfer_parametrizations_and_params(from_module: Any, to_module: Any, tensor_name: str | None = None) -> Any:
    """Give a module the parametrizations of another one, and the parameters they compute from. Returns `to_module`.

    tensor_name: one parametrized tensor (default: all). A tensor that `to_module` has not is made first.

    >>> import calque
    >>> from calque.nn.utils import parametrizations, parametrize
    >>> a, b = parametrizations.weight_norm(calque.nn.Linear(2, 2)), calque.nn.Linear(2, 2)
    >>> c = parametrize.transfer_parametrizations_and_params(a, b)
    >>> calque.equal(a.weight, b.weight), parametrize.is_parametrized(b, "weight")
    (True, True)
    """
    if not is_parametrized(from_module):
        return to_module
    for name in list(from_module.parametrizations) if tensor_name is None else [tensor_name]:
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name).detach()))
        held = from_module.parametrizations[name]
        for parametrization in held:
            register_parametrization(to_module, name, parametrization, unsafe=True)
        other = to_module.parametrizations[name]
        with no_grad():
            for key, value in held._parameters.items():
                setattr(other, key, value)
            for key, value in held._buffers.items():
                other._buffers[key] = value
    return to_module
