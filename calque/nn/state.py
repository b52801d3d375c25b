"""State dicts of modules: collecting, and loading in two steps (check everything, then copy), so that an error leaves nothing half loaded."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import field, replace
from threading import get_ident
from typing import Any

import numpy as np

from calque.autograd.modes import no_grad
from calque.base.dataclass import dataclass
from calque.base.dtypes import from_numpy_dtype
from calque.base.errors import DTypeError, StateDictError, how_to_pass
from calque.base.text import LONGEST, clipped, described, function_name, nearest, shown, type_name
from calque.functional.common import is_tensor
from calque.nn.parameter import Parameter, is_lazy
from calque.replay.counts import Changes
from calque.tensor import upload

EXTRA = "_extra_state"


class IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):
    """What `load_state_dict` returns: names that were missing, and names that were not used."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_{super().__repr__()}"  # PyTorch's class has the underscore

    __str__ = __repr__


# ------------------------------------------------------------------------------------------------------------------- save


def _persistent(module: Any) -> list[tuple[str, Any]]:
    """(name, value) of a module's own parameters and persistent buffers."""
    hidden = module._non_persistent_buffers_set
    own = list(module._parameters.items()) + [(n, b) for n, b in module._buffers.items() if n not in hidden]
    return [(name, value) for name, value in own if value is not None]


def _has_extra(module: Any) -> bool:
    """Whether the class defines extra state (the base class's methods only raise)."""
    for cls in type(module).__mro__:
        if "get_extra_state" in cls.__dict__:
            return cls.__module__ != "calque.nn.module"
    return False


def save_own(module: Any, destination: Any, prefix: str, keep_vars: bool) -> None:
    """Put a module's own entries into `destination`."""
    for name, value in _persistent(module):
        destination[prefix + name] = value if keep_vars or is_lazy(value) else value.detach()
    if _has_extra(module):
        destination[prefix + EXTRA] = module.get_extra_state()


@dataclass(frozen=True)
class WithoutResult:
    """A hook that may change a state dict, and not give another one."""

    hook: Any

    def __call__(self, *arguments: Any) -> None:
        if (found := self.hook(*arguments)) is not None:
            raise StateDictError(
                f"[state_dict] expected None from the hook {function_name(self.hook)}, got {described(found)}: state_dict post-hook must return "
                "None; change the dict that it is given"
            )


def collect(module: Any, destination: Any, prefix: str, keep_vars: bool) -> OrderedDict[str, Any]:
    """`Module.state_dict`."""
    if destination is not None and not isinstance(destination, MutableMapping):
        raise DTypeError(f"[state_dict] expected destination as a dict to fill, got {type_name(destination)}; leave it out")
    if destination is None:
        destination = OrderedDict()
        destination._metadata = OrderedDict()
    local = {"version": module._version}
    if hasattr(destination, "_metadata"):
        destination._metadata[prefix[:-1]] = local
    for hook in list(module._hook_dict("_state_dict_pre_hooks").values()):
        hook(module, prefix, keep_vars)
    module._save_to_state_dict(destination, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for hook in list(module._hook_dict("_state_dict_hooks").values()):
        result = hook(module, destination, prefix, local)
        if result is not None:
            destination = result
    return destination  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------------- load


@dataclass(slots=True)
class Plan:
    """What a load would do, and everything that speaks against it."""

    strict: bool
    assign: bool = False
    copies: list[tuple[Any, str, Any, Any]] = field(default_factory=list)  # module, name, current value, new value
    extras: list[tuple[Any, Any]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)  # modules whose own entries were looked at

    def incomplete(self) -> bool:
        """Whether names speak against it."""
        return self.strict and bool(self.missing or self.unexpected)


def load(module: Any, state_dict: Any, strict: bool, assign: bool) -> IncompatibleKeys:
    """`Module.load_state_dict`."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"[load_state_dict] Expected state_dict to be dict-like, got {type(state_dict)}; pass what state_dict() of a module returns")
    for key in state_dict:
        if not isinstance(key, str):
            raise DTypeError(f"[load_state_dict] expected names as keys, got {described(key)}; pass what state_dict() of a module returns")
    metadata = getattr(state_dict, "_metadata", None)
    entries: OrderedDict[str, Any] = OrderedDict(state_dict)
    plan = Plan(strict, assign)
    _examine_tree(module, "", entries, metadata, plan)
    plan.unexpected += [key for key in entries if key not in plan.used]
    hooks = list(_post_hooks(module))
    if plan.errors or (not hooks and plan.incomplete()):
        raise StateDictError(_report(module, entries, plan, "Nothing was loaded."))
    _put_all(plan)
    for owner, value in plan.extras:
        owner.set_extra_state(value)
    keys = IncompatibleKeys(plan.missing, plan.unexpected)
    for part, hook in hooks:
        hook(part, keys)
    if plan.incomplete():  # hooks may take names from these lists, and add some
        raise StateDictError(_report(module, entries, plan, "What was there has been loaded, as hooks had to see it."))
    return keys


def _post_hooks(module: Any) -> Iterator[tuple[Any, Any]]:
    """What is called after a load, with its module: parts come before what they are parts of."""
    for child in module._modules.values():
        if child is not None:
            yield from _post_hooks(child)
    for hook in module._hook_dict("_load_state_dict_post_hooks").values():
        yield module, hook


@no_grad()
def _put_all(plan: Plan) -> None:
    for owner, name, current, value in plan.copies:
        _put(owner, name, current, value, plan.assign)


class _Loading:
    """The plans of the loads that are going on in this thread, innermost last."""

    plans: list[tuple[int, Plan]] = []


def _examine_tree(module: Any, prefix: str, entries: Any, metadata: Any, plan: Plan) -> None:
    local = {} if metadata is None else metadata.get(prefix[:-1], {})
    if type(module)._load_from_state_dict.__module__ == "calque.nn.module":
        _examine_own(module, prefix, entries, local, plan)
    else:  # a subclass has its own way, which may end in ours
        _Loading.plans.append((get_ident(), plan))
        before = len(plan.seen)
        try:
            module._load_from_state_dict(entries, prefix, local, True, plan.missing, plan.unexpected, plan.errors)
        finally:
            _Loading.plans.pop()
        if module not in plan.seen[before:]:  # it has read what it wanted
            plan.used.update(k for k in entries if _of_the_module_itself(module, prefix, k))
    for name, child in module._modules.items():
        if child is not None:
            _examine_tree(child, f"{prefix}{name}.", entries, metadata, plan)


def _of_the_module_itself(module: Any, prefix: str, key: str) -> bool:
    """Whether a key under the prefix belongs to no submodule."""
    return key.startswith(prefix) and key[len(prefix) :].partition(".")[0] not in module._modules


def examine(module: Any, entries: Any, prefix: str, local: Any, strict: bool, missing: Any, unexpected: Any, errors: Any) -> None:
    """`Module._load_from_state_dict`: part of the load that is going on, or a load of its own."""
    going = next((plan for thread, plan in reversed(_Loading.plans) if thread == get_ident()), None)
    if going is not None:
        part = replace(going, strict=strict, missing=missing if strict else [], unexpected=unexpected, errors=errors)  # the subclass may give its own
        _examine_own(module, prefix, entries, local, part, strict)
        if not strict or unexpected is not going.unexpected:
            surplus = [key for key in entries if key not in going.used and _of_the_module_itself(module, prefix, key)]
            going.used.update(surplus)  # so that nobody else reports them
            unexpected.extend(surplus if strict else ())
        return
    plan = Plan(strict, missing=missing if strict else [], unexpected=unexpected, errors=errors)
    _examine_own(module, prefix, entries, local, plan, strict)
    _put_all(plan)


def _examine_own(module: Any, prefix: str, entries: Any, local: Any, plan: Plan, strict: bool = True) -> None:
    """`strict` is what hooks are told: as in PyTorch True unless a subclass says otherwise, whatever the whole load is."""
    plan.seen.append(module)
    for hook in list(module._hook_dict("_load_state_dict_pre_hooks").values()):
        hook(module, entries, prefix, local, strict, plan.missing, plan.unexpected, plan.errors)
    upgrade = getattr(module, "_upgrade_state_dict", None)
    if upgrade is not None:
        upgrade(entries, prefix, local.get("version"))
    for name, current in _persistent(module):
        _examine_entry(module, name, current, prefix + name, entries, plan)
    if _has_extra(module):
        key = prefix + EXTRA
        if key in entries:
            plan.used.add(key)
            plan.extras.append((module, entries[key]))
        else:
            plan.missing.append(key)


def _examine_entry(module: Any, name: str, current: Any, key: str, entries: Any, plan: Plan) -> None:
    if key not in entries:
        plan.missing.append(key)
        return
    plan.used.add(key)
    value = entries[key]
    if isinstance(value, np.ndarray):
        dtype = from_numpy_dtype(value.dtype)
        value = value if dtype is None else upload(value, dtype)
    if not is_tensor(value):
        received = f"received {type(entries[key])}; {how_to_pass(entries[key])}"
        plan.errors.append(f"While copying the parameter named {shown(key)}, expected a Tensor from checkpoint object but {received}")
        return
    if is_lazy(current):
        if not is_lazy(value):
            plan.copies.append((module, name, current, value))
        return
    if is_lazy(value):
        plan.errors.append(
            f"Trying to load an uninitialized parameter {key} into an initialized one; initialise the model that was saved by calling it once"
        )
        return
    want, dtype = current.shape, current.dtype
    if not want and tuple(value.shape) == (1,):
        value = value.reshape(())
    if tuple(want) != tuple(value.shape):
        plan.errors.append(
            f"size mismatch for {key}: copying a param with shape {value.shape!r} from checkpoint, "
            f"the shape in current model is {want!r}. (expected {tuple(want)}, found {tuple(value.shape)})"
        )
    elif plan.strict and not plan.assign and value.dtype is not dtype:
        plan.errors.append(
            f"dtype mismatch for {key}: expected {dtype!r}, found {value.dtype!r} in the checkpoint; "
            f"convert it with .to({dtype!r}), or convert the model first, or pass strict=False to convert silently"
        )
    elif current.layout != value.layout:
        plan.errors.append(f"layout mismatch for {key}: expected {current.layout!r}, found {value.layout!r} in the checkpoint; convert it first")
    else:
        plan.copies.append((module, name, current, value))


def _put(owner: Any, name: str, current: Any, value: Any, assign: bool) -> None:
    Changes.epoch += 1
    if is_lazy(current):
        current.materialize(value.detach().to(current._layout.dtype).clone())
    elif not assign:
        current.copy_(value)
    elif isinstance(current, Parameter):
        learns = current._requires_grad
        fresh = value.requires_grad_(learns) if isinstance(value, Parameter) else Parameter(value, requires_grad=learns)
        owner._replace("_parameters", name, fresh)
    else:
        owner._buffers[name] = value.detach()


# ---------------------------------------------------------------------------------------------------------------- message


def _quoted(names: list[str], others: list[str]) -> str:
    parts = []
    for name in names:
        near = nearest(name, others, 0.6)
        parts.append(f'"{clipped(name, LONGEST)}"' + (f" (near: {near!r})" if near else ""))
    return ", ".join(parts)


def _prefix_hint(missing: list[str], unexpected: list[str]) -> str:
    """All names differ by one leading component: say so."""
    if not missing or not unexpected:
        return ""
    first = unexpected[0].split(".")[0] + "."
    if all(k.startswith(first) for k in unexpected) and {k[len(first) :] for k in unexpected} & set(missing):
        return f"all unexpected names start with {first!r}: remove that prefix from the state dict's keys"
    first = missing[0].split(".")[0] + "."
    if all(k.startswith(first) for k in missing) and {k[len(first) :] for k in missing} & set(unexpected):
        return f"all missing names start with {first!r}: add that prefix to the state dict's keys, or load into that submodule"
    return ""


def _nested_hint(entries: Any, missing: list[str]) -> str:
    """A whole checkpoint came, and one of its values is the state dict."""
    for key, value in entries.items():
        if isinstance(value, Mapping) and set(missing) & set(value):
            return f"the names are inside entry {shown(key)}: pass checkpoint[{shown(key)}]"
    return ""


def _report(module: Any, entries: Any, plan: Plan, outcome: str) -> str:
    lines = []
    if plan.strict and plan.missing:
        lines.append(f"Missing key(s) in state_dict: {_quoted(plan.missing, plan.unexpected)}. ")
    if plan.strict and plan.unexpected:
        lines.append(f"Unexpected key(s) in state_dict: {_quoted(plan.unexpected, plan.missing)}. ")
    lines += plan.errors
    hint = (_nested_hint(entries, plan.missing) or _prefix_hint(plan.missing, plan.unexpected)) if plan.strict else ""
    if hint:
        lines.append(hint)
    lines.append(outcome)
    return "Error(s) in loading state_dict for {}:\n\t{}".format(type(module).__name__, "\n\t".join(lines))
