"""`Module`: parameters, buffers and submodules in a tree. Same interface and text as `torch.nn.Module`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from calque.base.errors import ArgumentError, DTypeError, NotDense, how_to_pass
from calque.base.text import clipped, described, shown, type_name
from calque.functional.common import is_tensor
from calque.functional.subclasses import ASKING, ask, forget_asked, overriding
from calque.nn import state
from calque.nn.context import annotate
from calque.nn.convert import Conversions
from calque.nn.hooks import EVERYWHERE, BackwardHooks, HookDict, RemovableHandle, WithoutModule, registered
from calque.nn.parameter import Buffer, Parameter
from calque.nn.registry import Registry
from calque.nn.traps import exchanged, look_at_lists
from calque.replay.counts import Changes
from calque.replay.effects import gradients_matter

__all__ = ["Module"]


def _add_indent(text: str, spaces: int) -> str:
    lines = text.split("\n")
    return "\n".join([lines[0], *(" " * spaces + line for line in lines[1:])])


class Module(Conversions):
    """Base class of all layers and models: define `forward`, assign parameters and submodules to attributes, call the instance.

    Submodules may also be given as keyword arguments of `__init__`. A subclass may define methods called `backward` and `optimize`: no
    such names are used here, and plain tensor attributes are not parameters.

    >>> import calque
    >>> class Net(calque.nn.Module):
    ...     def __init__(self):
    ...         super().__init__(first=calque.nn.Linear(4, 8), second=calque.nn.Linear(8, 2))
    ...     def forward(self, x):
    ...         return self.second(self.first(x).relu())
    >>> net = Net()
    >>> tuple(net(calque.ones(3, 4)).shape)
    (3, 2)
    >>> [name for name, _ in net.named_parameters()]
    ['first.weight', 'first.bias', 'second.weight', 'second.bias']
    """

    _version: int = 1
    dump_patches: bool = False  # PyTorch's; nothing looks at it
    call_super_init: bool = False  # as well: `__init__` is `super().__init__()` for mixins in any case
    _hooked: bool = False  # set once a hook is registered; keeps the call path short
    _hybrid: Any = None  # what calls run through after `hybridize()`
    hybridizer: Any = None  # makes that; `calque.hybrid` sets it once at import
    training: bool
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]

    def __init_subclass__(cls, **options: Any) -> None:
        """Functions of the library are built-in ones in PyTorch: in `class Block(Module): conv = torch.conv2d` they do not become methods."""
        super().__init_subclass__(**options)
        if not cls.__module__.startswith("calque."):
            for name, value in list(vars(cls).items()):
                if isinstance(value, FunctionType) and "." not in value.__qualname__ and value.__module__.partition(".")[0] == "calque":
                    setattr(cls, name, staticmethod(value))

    def __init__(self, **submodules: Any) -> None:
        set_attribute = super().__setattr__
        set_attribute("training", True)
        for name in ("_parameters", "_buffers", "_modules"):
            set_attribute(name, Registry())
        set_attribute("_non_persistent_buffers_set", set())
        for name, module in submodules.items():
            if not isinstance(module, Module):
                raise DTypeError(
                    f"[Module] expected submodules as keyword arguments of __init__(), got {name}={type_name(module)}; "
                    "assign other values to attributes"
                )
            setattr(self, name, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation of a call; subclasses define it."""
        raise NotImplementedError(
            f'[{type(self).__name__}] Module [{type(self).__name__}] is missing the required "forward" function; '
            "define forward(self, ...), or call the layers inside"
        )

    # ------------------------------------------------------------------------------------------------------------- calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hybrid = self._hybrid
        if hybrid is None:
            return self._call(*args, **kwargs)
        if hybrid.roots[0] is not self:  # a copy of the attributes of another module
            hybrid = self.hybridize(fullgraph=hybrid.fullgraph)._hybrid
        return hybrid(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._hooked:
                return self._call_with_hooks(args, kwargs)
            return self.forward(*args, **kwargs)
        except Exception as error:
            if isinstance(error, NotDense) and type(self).__module__.startswith("calque."):  # a layer that looks at layouts first
                if found := overriding((*args, *kwargs.values())):
                    return ask(self.forward, found, args, kwargs)
            meant = [found for found in (annotate(self, error, args, kwargs),) if found is not error]
            if meant:  # a frame that refers to the error that refers to it keeps all tensors of the call until the next collection
                raise meant[0] from meant.pop().__cause__
            raise

    def hybridize(self, active: bool = True, *, fullgraph: bool = False) -> Any:
        """Record calls and replay them without running the Python of `forward`, as long as nothing that it reads has changed; results are
        the same. `hybridize(False)` goes back. fullgraph: raise where a call cannot be replayed, instead of running it as written. Without it a
        layer of the library that records next to nothing (an activation) runs as written, which is quicker.

        >>> import calque
        >>> net = calque.nn.Sequential(calque.nn.Linear(4, 8), calque.nn.ReLU()).hybridize()
        >>> [tuple(net(calque.ones(2, 4)).shape) for _ in range(4)][-1]
        (2, 8)
        """
        self.__dict__["_hybrid"] = self.hybridizer(self, fullgraph) if active else None
        Changes.epoch += 1
        return self

    _call_impl = _wrapped_call_impl = _call  # PyTorch's names

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """`hybridize()`; PyTorch's arguments, which choose among its compilers, change nothing."""
        self.hybridize()

    def _hooks_of(self, name: str) -> HookDict:
        """The hooks of all modules, and those of this one."""
        everywhere = EVERYWHERE.get(name)
        own = self._hook_dict(name)
        if not everywhere:
            return own
        both = HookDict([*everywhere.items(), *own.items()])
        both.wants = {**everywhere.wants, **own.wants}
        return both

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for hook, wants in self._hooks_of("_forward_pre_hooks").calls():
            if "kwargs" in wants:
                changed = hook(self, args, kwargs)
                if changed is not None:
                    args, kwargs = changed
            else:
                changed = hook(self, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        backward = None
        before, after = self._hooks_of("_backward_pre_hooks"), self._hooks_of("_backward_hooks")
        if before or after:
            backward = BackwardHooks(self, before, after)
            args = backward.wrap_inputs(args)
        try:
            result = self.forward(*args, **kwargs)
        except Exception:
            for hook, wants in self._hooks_of("_forward_hooks").calls("always"):
                hook(*((self, args, kwargs, None) if "kwargs" in wants else (self, args, None)))
            raise
        for hook, wants in self._hooks_of("_forward_hooks").calls():
            changed = hook(*((self, args, kwargs, result) if "kwargs" in wants else (self, args, result)))
            if changed is not None:
                result = changed
        return backward.wrap_outputs(result) if backward is not None else result

    def _hook_dict(self, name: str) -> HookDict:
        found = self.__dict__.get(name)
        if found is None:
            found = self.__dict__[name] = HookDict()
        return found  # type: ignore[no-any-return]

    def _add_hook(self, name: str, hook: Any, prepend: bool = False, **wants: bool) -> RemovableHandle:
        self.__dict__["_hooked"] = True
        Changes.epoch += 1
        return self._hook_dict(name).add(hook, bool(prepend), frozenset(want for want, wanted in wants.items() if wanted))

    def register_forward_pre_hook(self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False) -> RemovableHandle:
        """Call `hook(module, args)` before every forward; a value it returns replaces the arguments."""
        return self._add_hook("_forward_pre_hooks", hook, prepend, kwargs=with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after every forward; a value it returns replaces the output."""
        return self._add_hook("_forward_hooks", hook, prepend, kwargs=with_kwargs, always=always_call)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the inputs are computed; it may return new ones."""
        return self._add_hook("_backward_hooks", hook, prepend)

    register_backward_hook = register_full_backward_hook  # what PyTorch calls with fewer gradients where a forward has several operations

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` before the gradients of the inputs are computed; it may return new output gradients."""
        return self._add_hook("_backward_pre_hooks", hook, prepend)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before this module's entries are collected."""
        return self._hook_dict("_state_dict_pre_hooks").add(hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` after this module's entries were collected. It may change the dict."""
        return self._hook_dict("_state_dict_hooks").add(state.WithoutResult(hook))

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        return self._hook_dict("_state_dict_hooks").add(hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)` before loading."""
        return self._hook_dict("_load_state_dict_pre_hooks").add(hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` after loading."""
        return self._hook_dict("_load_state_dict_post_hooks").add(hook)

    # ---------------------------------------------------------------------------------------------------------- registering

    def _check_name(self, name: str, kind: str, registry: str) -> None:
        if registry not in self.__dict__:
            raise AttributeError(f"[Module] cannot assign {kind} before Module.__init__() call; begin __init__ with super().__init__()")
        if not isinstance(name, str):
            raise TypeError(f"[register_{kind}] {kind} name should be a string. Got {described(name)}; pass its name first")
        if "." in name:
            raise KeyError(f'[register_{kind}] {kind} name can\'t contain ".", got {shown(name)}; use another character')
        if name == "":
            raise KeyError(f'[register_{kind}] {kind} name can\'t be empty string ""; give it a name')
        if hasattr(self, name) and name not in self.__dict__[registry]:
            raise KeyError(f"[register_{kind}] attribute '{name}' already exists; choose another name, or delete the attribute first")

    def register_parameter(self, name: str, param: Any) -> None:
        """Add a parameter (or None) under a name; it is then an attribute."""
        self._check_name(name, "parameter", "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"[register_parameter] cannot assign '{type_name(param)}' object to parameter '{name}' (nn.Parameter or None required); "
                + ("wrap it in nn.Parameter(...)" if is_tensor(param) else how_to_pass(param))
            )
        if param is not None and param._grad_fn is not None:
            raise ValueError(
                f"[register_parameter] Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly; "
                "to express it as a function of another Tensor, compute the value in the forward() method."
            )
        if EVERYWHERE and param is not None:
            param = registered("parameter", self, name, param)
        if param is not None and "_name" not in param.__dict__:
            param.__dict__["_name"] = name
        self._replace("_parameters", name, param)
        Changes.epoch += 1

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Add a tensor that belongs to the module's state but is not trained (or None)."""
        self._check_name(name, "buffer", "_buffers")
        if tensor is not None and not is_tensor(tensor):
            raise TypeError(
                f"[register_buffer] cannot assign '{type_name(tensor)}' object to buffer '{name}' (Tensor or None required); "
                f"{how_to_pass(tensor)}"
            )
        self._buffers[name] = registered("buffer", self, name, tensor) if EVERYWHERE else tensor
        Changes.epoch += 1
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def add_module(self, name: str, module: Any) -> None:
        """Add a submodule (or None) under a name."""
        self._check_name(name, "module", "_modules")
        if module is not None and not isinstance(module, Module):
            hint = "; unpack it, as in Sequential(*layers)" if isinstance(module, (list, tuple)) else "; pass a layer, such as nn.ReLU()"
            raise TypeError(f"[add_module] {_type_name(module)} is not a Module subclass{hint}")
        self._replace("_modules", name, registered("module", self, name, module) if EVERYWHERE else module)
        Changes.epoch += 1

    register_module = add_module

    # ----------------------------------------------------------------------------------------------------------- attributes

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for registry in ("_parameters", "_modules", "_buffers"):
            found = own.get(registry)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{clipped(name, 200)}'")

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        Changes.epoch += 1
        parameters = own.get("_parameters")
        if isinstance(value, Parameter):
            if parameters is None:
                raise AttributeError("[Module] cannot assign parameters before Module.__init__() call; begin __init__ with super().__init__()")
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
        elif parameters is not None and name in parameters:
            if value is not None:
                raise TypeError(f"[Module] cannot assign '{_type_name(value)}' as parameter '{name}' (nn.Parameter or None expected); {_hint(value)}")
            self._replace("_parameters", name, None)
        elif isinstance(value, Module):
            if "_modules" not in own:
                raise AttributeError("[Module] cannot assign module before Module.__init__() call; begin __init__ with super().__init__()")
            self._forget(name, "_modules")
            self._replace("_modules", name, registered("module", self, name, value) if EVERYWHERE else value)
        elif parameters is not None and name in own["_modules"]:
            if value is not None:
                raise TypeError(f"[Module] cannot assign '{_type_name(value)}' as child module '{name}' (nn.Module or None expected); {_hint(value)}")
            self._replace("_modules", name, None)
        elif isinstance(value, Buffer) or (parameters is not None and name in own["_buffers"]):
            self._set_buffer(name, value)
        else:
            object.__setattr__(self, name, value)

    def _set_buffer(self, name: str, value: Any) -> None:
        own = self.__dict__
        if "_buffers" not in own:
            raise AttributeError("[Module] cannot assign buffer before Module.__init__() call; begin __init__ with super().__init__()")
        if value is not None and not is_tensor(value):
            raise TypeError(f"[Module] cannot assign '{_type_name(value)}' as buffer '{name}' (Buffer, Tensor or None expected); {_hint(value)}")
        if isinstance(value, Buffer):
            self._forget(name, "_buffers")
            self.register_buffer(name, value, value.persistent)
        else:
            own["_buffers"][name] = registered("buffer", self, name, value) if EVERYWHERE else value

    def _replace(self, registry: str, name: str, value: Any) -> None:
        """Register a parameter or module (or None); what was there before leaves the model."""
        entries = self.__dict__[registry]
        old = entries.get(name)
        entries[name] = value
        if value is not None:
            exchanged(old, value)

    def _forget(self, name: str, keep: str) -> None:
        """Remove what else is called `name`."""
        own = self.__dict__
        own.pop(name, None)
        for registry in ("_parameters", "_buffers", "_modules"):
            if registry != keep and registry in own:
                own[registry].pop(name, None)
        own.get("_non_persistent_buffers_set", set()).discard(name)

    def __delattr__(self, name: str) -> None:
        own = self.__dict__
        Changes.epoch += 1
        for registry in ("_parameters", "_buffers", "_modules"):
            if registry in own and name in own[registry]:
                del own[registry][name]
                own["_non_persistent_buffers_set"].discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = set(super().__dir__()) | set(self._parameters) | set(self._buffers) | set(self._modules)
        return sorted(name for name in names if name.isidentifier())

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)

    # ------------------------------------------------------------------------------------------------------------ traversal

    def named_modules(self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        """(dotted name, module) of this module and everything below it; a shared module once."""
        memo = set() if memo is None else memo
        if not isinstance(memo, set):
            raise DTypeError(f"[named_modules] expected memo as a set of modules, got {type_name(memo)}; leave it out")
        if not isinstance(prefix, str):
            raise DTypeError(f"[named_modules] expected prefix as a str, got {type_name(prefix)}; leave it out")
        if not isinstance(remove_duplicate, int):
            raise DTypeError(f"[named_modules] expected remove_duplicate as a bool, got {described(remove_duplicate)}; pass True or False")
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Any]:
        """This module and everything below it; a shared module once, unless `remove_duplicate` is False."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """(name, module) of the direct submodules."""
        seen: set[Any] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Any]:
        """The direct submodules."""
        for _, module in self.named_children():
            yield module

    def _named_members(
        self, get_members_fn: Callable[[Any], Iterable[tuple[str, Any]]], prefix: str = "", recurse: bool = True, remove_duplicate: bool = True,
        *, op: str = "named_members",
    ) -> Iterator[tuple[str, Any]]:  # fmt: skip
        """(dotted name, value) of what a function finds in each module; libraries call it with functions of their own."""
        if not isinstance(recurse, int):
            raise DTypeError(f"[{op}] expected recurse as a bool, got {described(recurse)}; pass True or False")
        if not isinstance(prefix, str):
            raise DTypeError(f"[{op}] expected prefix as a str, got {described(prefix)}; leave it out")
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, value in get_members_fn(module):
                if value is None or id(value) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(value))
                yield f"{path}.{name}" if path else name, value

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        """(dotted name, parameter); a shared parameter once."""

        def members(module: Any) -> Iterable[tuple[str, Any]]:
            if recurse:
                look_at_lists(module, self)
            return module.__dict__["_parameters"].items()  # type: ignore[no-any-return]

        return self._named_members(members, prefix, recurse, remove_duplicate, op="named_parameters")

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """All parameters, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        """(dotted name, buffer); a shared buffer once."""
        return self._named_members(lambda module: module.__dict__["_buffers"].items(), prefix, recurse, remove_duplicate, op="named_buffers")

    def buffers(self, recurse: bool = True) -> Iterator[Any]:
        """All buffers, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Any:
        """The submodule with a dotted name, `""` for this one."""
        module: Any = self
        for part in target.split(".") if target else ():
            said = clipped(part, 200)
            if not hasattr(module, part):
                raise AttributeError(f"[get_submodule] {type(module).__name__} has no attribute `{said}`; named_modules() lists the names")
            module = getattr(module, part)
            if not isinstance(module, Module):
                raise AttributeError(f"[get_submodule] `{said}` is not an nn.Module, got {type_name(module)}; named_modules() lists the names")
        return module

    def _member(self, op: str, target: str, registry: str, what: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"[{op}] {type(module).__name__} has no attribute `{clipped(name, 200)}`; state_dict() lists the names")
        if name not in module.__dict__[registry]:
            raise AttributeError(f"[{op}] `{clipped(name, 200)}` is not {what}; state_dict() lists the names")
        return getattr(module, name)

    def get_parameter(self, target: str) -> Any:
        """The parameter with a dotted name."""
        return self._member("get_parameter", target, "_parameters", "an nn.Parameter")

    def get_buffer(self, target: str) -> Any:
        """The buffer with a dotted name."""
        return self._member("get_buffer", target, "_buffers", "a buffer")

    def set_submodule(self, target: str, module: Any, strict: bool = False) -> None:
        """Replace (or, unless `strict`, add) the submodule with a dotted name."""
        if not target:
            raise ArgumentError("[set_submodule] expected a name, got an empty string")
        path, _, name = target.rpartition(".")
        if strict:
            self.get_submodule(target)
        setattr(self.get_submodule(path), name, module)

    def apply(self, fn: Callable[[Any], Any]) -> Any:
        """Call `fn(module)` on every submodule, children first, and on this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # ---------------------------------------------------------------------------------------------------------------- state

    def get_extra_state(self) -> Any:
        """State besides parameters and buffers; override together with `set_extra_state`."""
        raise NotImplementedError(
            "[get_extra_state] Reached a code path in Module.get_extra_state() that should never be called: the module has no extra state; "
            "define get_extra_state() and set_extra_state() in your class"
        )

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` returned."""
        raise NotImplementedError(
            "[set_extra_state] Reached a code path in Module.set_extra_state() that should never be called: the module has no extra state; "
            "define get_extra_state() and set_extra_state() in your class"
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        state.save_own(self, destination, prefix, keep_vars)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str], unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Load this module's own entries; subclasses written for PyTorch define it to change `state_dict` first."""
        state.examine(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _register_load_state_dict_pre_hook(self, hook: Callable[..., Any], with_module: bool = False) -> RemovableHandle:
        """`register_load_state_dict_pre_hook` for a hook that is not given the module, unless `with_module`."""
        return self.register_load_state_dict_pre_hook(hook if with_module else WithoutModule(hook))

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> OrderedDict[str, Any]:
        """Ordered dict from dotted names to detached parameters and persistent buffers, which share memory with the module."""
        return state.collect(self, destination, prefix, keep_vars)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> state.IncompatibleKeys:
        """Copy values into parameters and buffers (or put them in place, with `assign`). All problems are reported at once, and nothing
        is loaded then: `StateDictError` for missing, unexpected and wrongly typed entries (if `strict`) and wrong shapes.

        >>> import calque
        >>> layer = calque.nn.Linear(2, 1)
        >>> layer.load_state_dict({"weight": calque.ones(1, 2), "bias": calque.zeros(1)})
        <All keys matched successfully>
        """
        return state.load(self, state_dict, strict, assign)

    # ---------------------------------------------------------------------------------------------------------------- modes

    def train(self, mode: bool = True) -> Any:
        """Set training mode here and below (dropout, batch norm)."""
        if not isinstance(mode, bool):
            raise ValueError(f"[train] training mode is expected to be boolean, got {described(mode)}; pass True or False")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Any:
        """Set evaluation mode here and below."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Freeze (False) or unfreeze all parameters."""
        for parameter in self.parameters():
            parameter._requires_grad = bool(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop (or set to zero) the gradients of all parameters."""
        gradients_matter()
        if ASKING:
            forget_asked(self.parameters(), set_to_none)
        for parameter in self.parameters():
            if parameter._grad is not None:
                if set_to_none:
                    parameter._grad = None
                else:
                    parameter._grad = parameter._grad.detach()
                    parameter._grad.zero_()

    # ----------------------------------------------------------------------------------------------------------------- text

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """Settings shown in the module's text."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        extra_lines = extra.split("\n") if extra else []
        child_lines = [f"({name}): {_add_indent(repr(module), 2)}" for name, module in self._modules.items()]
        lines = extra_lines + child_lines
        if not lines:
            return f"{self._get_name()}()"
        if len(extra_lines) == 1 and not child_lines:
            return f"{self._get_name()}({extra_lines[0]})"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


def _hint(value: Any) -> str:
    """What to do with a value that cannot be assigned."""
    if is_tensor(value):
        return "wrap it in nn.Parameter(...)"
    return how_to_pass(value) if _type_name(value).startswith("torch.") else "delete the attribute first to put something else there"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
