"""`Optimizer`: parameter groups, state, hooks, and one fused program per step.

`step()` records the whole update and flushes, so forward, backward and update of one iteration run as one program.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from typing import Any, NoReturn

import numpy as np

from calque.autograd.api import RemovableHandle
from calque.autograd.assign import assign
from calque.autograd.modes import enable_grad, no_grad
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, StateDictError, how_to_pass
from calque.base.text import LONGEST, clipped, described, function_name, shown, type_name
from calque.functional.common import is_tensor
from calque.functional.subclasses import ASKING, forget_asked
from calque.nn.shares import part_of_state, require_whole, whole_state
from calque.nn.traps import Departures, look_for_departed
from calque.observe.source import warn_user
from calque.optim.kept import ParameterState, copied, count_of, held
from calque.optim.methods import update_by_methods
from calque.optim.parts import update
from calque.optim.updates import update_again
from calque.record import recorder
from calque.record.threads import SECTION, handed_over
from calque.record.watching import Watcher
from calque.replay.effects import gradients_matter, numbers
from calque.tensor import Tensor, constant, layout_of, upload

Hooks = OrderedDict[int, Callable[..., Any]]
_pre_hooks_of_all: Hooks = OrderedDict()
_post_hooks_of_all: Hooks = OrderedDict()


INITIAL = 256  # operations that initialise a model, beyond which they are a program of their own, so that the first step is the same as later ones


class _Required:
    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()  # a default that every group must override


def root(x: Any) -> Any:
    """The square root of a number that follows from a count of steps; while a step is exported, that is a value of the program."""
    return math.sqrt(x) if type(x) is float else x**0.5


def check_range(owner: str, name: str, value: Any, low: float, high: float = math.inf) -> None:
    """Raise unless `value` is a number in [low, high); NaN and infinities are refused."""
    if is_tensor(value) and value._layout.numel != 1:
        raise ArgumentError(f"[{owner}] Invalid {name}: a Tensor must be 1-element, got shape {list(value._layout.shape)}")
    number = value.item() if is_tensor(value) else value
    valid = isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) <= sys.float_info.max
    if not valid or not low <= number < high:
        raise ArgumentError(f"[{owner}] Invalid {name}: expected a finite number in [{low:g}, {high:g}), got {shown(number)}")


def check_common(owner: str, group: dict[str, Any]) -> None:
    """What all optimizers of this package ask of a group."""
    check_range(owner, "learning rate", group["lr"], 0.0)
    check_range(owner, "weight_decay value", group["weight_decay"], 0.0)
    if group.get("fused") and (group.get("differentiable") or group.get("foreach")):
        other = "differentiable" if group.get("differentiable") else "foreach"
        raise ArgumentError(f"[{owner}] `fused` and `{other}` cannot be `True` together; leave one out (every step is one fused program anyway)")


def check_betas(owner: str, group: dict[str, Any]) -> None:
    """Raise unless `betas` is a pair of numbers in [0, 1)."""
    if not isinstance(group["betas"], (tuple, list)) or len(group["betas"]) != 2:
        raise ArgumentError(f"[{owner}] expected betas as a pair of numbers in [0, 1), got {shown(group['betas'])}")
    for k, beta in enumerate(group["betas"]):
        check_range(owner, f"beta parameter at index {k}", beta, 0.0, 1.0)


@no_grad()
def _clear(gradient: Any) -> None:
    gradient.zero_()


def cycles(group: dict[str, Any]) -> bool:
    """Whether a schedule moves the momentum (or the betas) of a group: it is then a number of every step, like the rate."""
    return "max_momentum" in group


def _hooked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`step` between the hooks; a `step` that calls its parent's runs them once."""

    @functools.wraps(function)
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if self._stepping == get_ident():
            return function(self, *args, **kwargs)
        everything: tuple[Any, ...] = (self, *args)
        capture = recorder.local.state.capture
        if capture is not None:
            self._check_replay(capture)
            gradients_matter()
        if self._departures != Departures.count:
            self._departures = Departures.count
            look_for_departed(self)
            if not self.by_element:
                require_whole(type(self).__name__, [p for group in self.param_groups for p in group["params"]])
        self._stepping, self._opt_called = get_ident(), True
        try:
            before = self._optimizer_step_pre_hooks
            for hook in (*_pre_hooks_of_all.values(), *before.values()) if before or _pre_hooks_of_all else ():
                changed = hook(self, everything, kwargs)
                if changed is None:
                    continue
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise ArgumentError(
                        f"[step] a pre-hook must return None or a tuple of (new_args, new_kwargs), got {shown(changed)} from {function_name(hook)}"
                    )
                everything, kwargs = changed
            result = function(*everything, **kwargs)
            after = self._optimizer_step_post_hooks
            for hook in (*after.values(), *_post_hooks_of_all.values()) if after or _post_hooks_of_all else ():
                hook(self, everything, kwargs)
        finally:
            self._stepping = 0
        recorder.flush("optimizer.step")
        return result

    step._with_hooks = True  # type: ignore[attr-defined]
    return step


class Optimizer:
    """Base of all optimizers; same interface as `torch.optim.Optimizer`.

    params: tensors, `(name, tensor)` pairs, or dicts with key "params" and options of their own. A subclass defines `step`
    (as for PyTorch) or `update_group`.
    """

    state_like_parameter: tuple[str, ...] = ()  # state tensors of the parameter's shape and dtype; the shape is checked when loaded
    state_needed: tuple[str, ...] = ()  # entries without which loaded state is of no use
    replays = False  # whether everything that changes from step to step comes from `run.capture.numbers`
    by_element = True  # whether every number of a parameter is updated by its own gradient alone
    takes_complex = True  # whether complex parameters are updated as their parts
    on_host: tuple[str, ...] = ()  # state that is a Python number here and a 0-d float32 tensor in state dicts, as PyTorch's; "step" is an int

    _stepping = 0  # the thread that is in `step`
    _opt_called = False
    _departures = 0  # of all models, when it last looked for parameters of its own among them
    _updates: Any = None  # see `optim/updates.py`
    _pieces: Any = None
    _by_methods: list[Any] = []  # groups with parameters that the update of this step leaves to `optim.methods`
    _given: list[list[float]] | None = None  # numbers of the groups, for an update whose replay has asked for them already

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = cls.__dict__.get("step")
        if own is not None and not getattr(own, "_with_hooks", False):
            cls.step = _hooked(own)  # type: ignore[method-assign]

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if is_tensor(params):
            raise TypeError(
                f"[{type(self).__name__}] params argument given to the optimizer should be an iterable of Tensors or dicts, got one Tensor; "
                "put it in a list"
            )
        if not isinstance(params, Iterable):
            raise TypeError(
                f"[{type(self).__name__}] expected an iterable of Tensors or dicts, got {type_name(params)}; pass model.parameters()"
            )
        if not isinstance(defaults, dict):
            raise DTypeError(f"[{type(self).__name__}] expected defaults as a dict of options, got {type_name(defaults)}; pass dict(lr=...)")
        self.defaults, self._departures = defaults, Departures.count
        self._reset_hooks()
        self.state: defaultdict[Any, dict[str, Any]] = self._no_state()
        self.param_groups: list[dict[str, Any]] = []
        groups = list(params)
        if not groups:
            hint = "was the iterator consumed already, or are the layers in a plain Python list (put them into nn.ModuleList)?"
            raise ArgumentError(f"[{type(self).__name__}] optimizer got an empty parameter list; {hint}")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)
        state = recorder.local.state
        if state.capture is None and state.trace.__class__ is recorder.Trace and state.trace.n > INITIAL:
            recorder.flush("Optimizer")

    def _no_state(self) -> defaultdict[Any, dict[str, Any]]:
        return defaultdict(ParameterState if self.on_host and type(self).step is Optimizer.step else dict)

    def _reset_hooks(self) -> None:
        self._optimizer_step_pre_hooks: Hooks = OrderedDict()
        self._optimizer_step_post_hooks: Hooks = OrderedDict()
        self._optimizer_state_dict_pre_hooks: Hooks = OrderedDict()
        self._optimizer_state_dict_post_hooks: Hooks = OrderedDict()
        self._optimizer_load_state_dict_pre_hooks: Hooks = OrderedDict()
        self._optimizer_load_state_dict_post_hooks: Hooks = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        """Hooks of a subclass that wraps another optimizer and never calls `__init__`."""
        if not name.startswith("_optimizer_") or not name.endswith("_hooks"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {clipped(name, LONGEST)!r}")
        self._reset_hooks()
        return self.__dict__[name]

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_optimizer_step_pre_hooks" not in self.__dict__:
            self._reset_hooks()

    # ------------------------------------------------------------------------------------------------------------ groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own. The dict itself becomes the group, with the missing options filled in."""
        if not isinstance(param_group, dict):
            raise TypeError(f"[add_param_group] param_group must be a dict, but got {type_name(param_group)}")
        group = self._with_names(param_group)
        seen = {id(p): name for g in self.param_groups for p, name in zip(g["params"], self._names(g), strict=True)}
        for parameter, name in zip(group["params"], self._names(group), strict=True):
            self._check_parameter(parameter, name, seen)
        ids = [id(p) for p in group["params"]]
        if len(set(ids)) < len(ids):
            again = next(name for k, name in enumerate(self._names(group)) if ids[k] in ids[:k])
            warn_user(
                f"[{type(self).__name__}] optimizer contains a parameter group with duplicate parameters, which each step updates as often as they "
                f"appear: expected every parameter once, got {again} twice; module.parameters() lists tied weights once"
            )
        for key, value in self.defaults.items():
            if value is required and key not in group:
                raise ArgumentError(f"[{type(self).__name__}] parameter group didn't specify a value of required optimization parameter {key}")
            group.setdefault(key, value)
        if any(("param_names" in g) != ("param_names" in group) for g in self.param_groups):
            which = "with names" if "param_names" in group else "without names"
            raise ArgumentError(
                f"[{type(self).__name__}] all optimizer param groups should be with/without names. "
                f"cannot add param group {which} to the optimizer"
            )
        self.check_group(group)
        if not self.by_element:
            require_whole(type(self).__name__, group["params"])
        param_group.update(group)
        self.param_groups.append(param_group)

    def _with_names(self, group: dict[str, Any]) -> dict[str, Any]:
        """A copy of the group with a list of tensors, and their names if they came as pairs."""
        if "params" not in group:
            raise ArgumentError(f"[{type(self).__name__}] expected a group with 'params', got the keys {shown(list(group))}; add the Tensors")
        group, given = dict(group), group["params"]
        if isinstance(given, (set, frozenset)):
            raise TypeError(
                f"[{type(self).__name__}] optimizer parameters need to be organized in ordered collections, but the ordering of tensors in "
                "sets will change between runs. Please use a list instead."
            )
        if not isinstance(given, Iterable):
            raise TypeError(f"[{type(self).__name__}] expected Tensors as 'params' of a group, got {type_name(given)}; pass its .parameters()")
        items = [given] if is_tensor(given) else list(given)
        names = [item[0] for item in items if isinstance(item, tuple)]
        if names and len(names) != len(items):
            raise ArgumentError(f"[{type(self).__name__}] all optimizer params should be with/without names. Some param names are missing")
        group["params"] = [item[1] if isinstance(item, tuple) else item for item in items]
        if names:
            group["param_names"] = names
        return group

    @staticmethod
    def _names(group: dict[str, Any]) -> list[str]:
        known = group.get("param_names")
        if known:
            return list(known)
        return [getattr(p, "_name", "") or (f"of shape {list(p.shape)}" if is_tensor(p) else described(p)) for p in group["params"]]

    def _check_parameter(self, parameter: Any, name: str, seen: dict[int, str]) -> None:
        owner = type(self).__name__
        if not is_tensor(parameter):
            hint = how_to_pass(parameter)
            if callable(getattr(parameter, "parameters", None)):
                hint = "put a Python list of layers into nn.ModuleList(...) and pass its .parameters()"
            elif isinstance(parameter, Iterator) or inspect.ismethod(parameter):
                hint = "chain the parameters of several modules: [p for m in modules for p in m.parameters()]"
            elif isinstance(parameter, str):
                hint = "pass the values of a dict, such as model.parameters()"
            raise TypeError(f"[{owner}] optimizer can only optimize Tensors, but one of the params is {type_name(parameter)}; {hint}")
        if parameter._grad_fn is not None and not self.defaults.get("differentiable") and not parameter.retains_grad:
            raise ArgumentError(f"[{owner}] can't optimize a non-leaf Tensor (parameter {name}); pass the leaf it was computed from")
        if id(parameter) in seen:
            raise ArgumentError(f"[{owner}] some parameters appear in more than one parameter group: expected it in one, got parameter {name} twice")

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise if a group's options are invalid; here nothing is known about them."""

    # ------------------------------------------------------------------------------------------------------------ steps

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients (or fill them with zeros)."""
        gradients_matter()
        if ASKING:
            forget_asked((p for group in self.param_groups for p in group["params"]), set_to_none)
        with SECTION:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter._grad is None:
                        continue
                    if set_to_none:
                        parameter._grad = None
                        continue
                    if parameter._grad._grad_fn is not None:
                        parameter._grad.detach_()
                    _clear(parameter._grad)
            if not set_to_none:
                handed_over(recorder.flush, recorder.local.state, "zero_grad")

    @_hooked
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. `closure` re-evaluates the model and returns the loss."""
        loss = None
        if closure is not None:
            if not callable(closure):
                raise DTypeError(f"[{type(self).__name__}] expected a function or None as 'closure', got {described(closure)}; leave it out")
            with enable_grad():
                loss = closure()
        state = recorder.local.state
        recorder.record_from_here(state, "optimizer.step")  # what is done to many parameters at once is one program, and always the same
        before, state.grad = state.grad, bool(self.defaults.get("differentiable"))
        try:
            with SECTION:
                if not update_again(self):
                    for group in self.param_groups:
                        update(self, group)
                handed_over(recorder.flush, state, "optimizer.step")
            if self._by_methods:
                update_by_methods(self)
        finally:
            state.grad = before
            if self._by_methods:  # the update of others has failed
                self._by_methods = []
        return loss

    def changing(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """The numbers of a group that change from step to step, for `update_group`; see `step_numbers`."""
        if self._given:
            return self._given.pop(0)
        return numbers(lambda: self.step_numbers(group, parameters), bool(parameters))

    def count_step(self, parameter: Tensor) -> int:
        """Count a step of a parameter, and say which it is."""
        state = self.state[parameter]
        state["step"] = count = count_of(state) + 1
        return count

    def step_numbers(self, group: dict[str, Any], parameters: list[Any]) -> list[float]:
        """Count a step of the parameters, which have gradients; what changes in their update from step to step."""
        raise self._missing("step_numbers()")

    def _check_replay(self, capture: Watcher) -> None:
        """A step is being recorded for replay by `hybridize`."""
        if not self.replays:
            capture.abort(f"steps a {type(self).__name__}, which cannot say its numbers for a replay")
        if _pre_hooks_of_all or _post_hooks_of_all or self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            capture.abort("steps an optimizer with hooks")

    def _nothing_to_check(self) -> None:
        """What steps copied from PyTorch's ask first: there are no graphs of an accelerator."""

    _cuda_graph_capture_health_check = _accelerator_graph_capture_health_check = _patch_step_function = _nothing_to_check

    @staticmethod
    def _group_tensors_by_device_and_dtype(tensorlistlist: Any, with_indices: bool = False) -> dict[Any, Any]:
        """Lists of tensors (or None) that go together, by the device and dtype of those in the first list."""
        found: dict[Any, Any] = {}
        for k, row in enumerate(zip(*tensorlistlist, strict=True)):
            lists, places = found.setdefault((row[0].device, row[0].dtype), ([[] for _ in tensorlistlist], []))
            for values, value in zip(lists, row, strict=True):
                values.append(value)
            places.append(k)
        return found

    def update_group(self, group: dict[str, Any]) -> None:
        """Record the update of one group."""
        raise self._missing("update_group() or step()")

    def _missing(self, what: str) -> NotImplementedError:
        name = type(self).__name__
        return NotImplementedError(f"[{name}] expected an optimizer with {what}, got {name} without; define it, or use SGD, Adam, ...")

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` before each step; it may return new `(args, kwargs)`."""
        return RemovableHandle(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return RemovableHandle(self._optimizer_step_post_hooks, hook)

    # ------------------------------------------------------------------------------------------------------- state dicts

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` before `state_dict`."""
        return _add(self._optimizer_state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` after `state_dict`; what it returns replaces the result."""
        return _add(self._optimizer_state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` before `load_state_dict`; what it returns is loaded instead."""
        return _add(self._optimizer_load_state_dict_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` after `load_state_dict`."""
        return _add(self._optimizer_load_state_dict_post_hooks, hook, prepend)

    def state_dict(self) -> dict[str, Any]:
        """{"state": {index: ...}, "param_groups": [...]} with parameters replaced by their indices, as PyTorch."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        index: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for parameter in group["params"]:
                index.setdefault(id(parameter), len(index))
            packed = {k: v for k, v in group.items() if k != "params"}
            packed["params"] = [index[id(p)] for p in group["params"]]
            groups.append(packed)
        state = {
            index.get(id(p), p) if is_tensor(p) else p: self._packed(whole_state(values, p)) if is_tensor(p) else values
            for p, values in self.state.items()
        }
        result: dict[str, Any] = {"state": state, "param_groups": groups}
        for hook in self._optimizer_state_dict_post_hooks.values():
            changed = hook(self, result)
            result = result if changed is None else changed
        return result

    def _packed(self, values: Any) -> Any:
        numbers = [name for name in self.on_host if isinstance(held(values, name), (int, float))]
        if not numbers:
            return values
        return {name: upload(np.asarray(value, np.float32), dt.float32) if name in numbers else value for name, value in dict.items(values)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; checks everything before changing anything."""
        state_dict = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        missing = [key for key in ("state", "param_groups") if key not in state_dict]
        if missing:
            _refuse([f"the key(s) {missing} are missing from the state dict of an optimizer, found {list(state_dict)}"])
        saved = state_dict["param_groups"]
        self._check_sizes(saved)
        parameters = {i: p for g, s in zip(self.param_groups, saved, strict=True) for i, p in zip(s["params"], g["params"], strict=True)}
        names = {id(p): n for g in self.param_groups for p, n in zip(g["params"], self._names(g), strict=True)}
        loaded = self._no_state()
        problems: list[str] = []
        memory: dict[int, Any] = {}
        for key, values in state_dict["state"].items():
            parameter = parameters.get(int(key) if isinstance(key, str) and key.isdigit() else key)
            if parameter is None:
                loaded[key] = copied(values, memory)
            else:
                values = part_of_state(values, parameter)
                problems += self._problems(values, parameter, f"parameter {key} ({names[id(parameter)]})")
                loaded[parameter] = self._unpacked(values, parameter, memory)
        if problems:
            _refuse(problems)
        groups = [_merged(group, other) for group, other in zip(self.param_groups, saved, strict=True)]
        for group in groups:
            self._check_loaded(group)
        for group, new in zip(self.param_groups, groups, strict=True):
            group.update(new)
        self.__setstate__({"state": loaded, "param_groups": self.param_groups})
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def _check_loaded(self, group: dict[str, Any]) -> None:
        """Raise if an option that is a number here is no finite number there. Ranges are not asked for: by rounding, schedules take rates
        below 0, and programs change options in the middle; what an optimizer has saved has to be loadable."""
        for name, value in self.defaults.items():
            if is_tensor(value) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
                check_range(type(self).__name__, "learning rate" if name == "lr" else name, group[name], -math.inf)

    def _check_sizes(self, saved: list[dict[str, Any]]) -> None:
        groups = self.param_groups
        if len(groups) != len(saved):
            _refuse([f"loaded state dict has a different number of parameter groups: {len(saved)}, expected {len(groups)}"])
        wrong = [
            f"loaded state dict contains a parameter group that doesn't match the size of optimizer's group: "
            f"group {k} has {len(group['params'])} parameters, the loaded one {len(other['params'])}"
            for k, (group, other) in enumerate(zip(groups, saved, strict=True))
            if len(group["params"]) != len(other["params"])
        ]
        if wrong:
            _refuse(wrong)

    def _problems(self, values: Any, parameter: Tensor, what: str) -> list[str]:
        """Why loaded state does not fit a parameter."""
        absent = [name for name in self.state_needed if name not in values]
        if absent:
            return [f"{what} lacks the state {absent}, found {list(values)}; was it saved by another kind of optimizer?"]
        want, found = layout_of(parameter), []
        for name, value in values.items():
            if hasattr(value, "__dlpack__") and not is_tensor(value):
                found.append(f"state {name!r} of {what} is no Tensor but {type_name(value)}: {how_to_pass(value)}")
        for name in self.state_like_parameter:
            value = values.get(name)
            if not is_tensor(value):
                continue
            have = layout_of(value)
            if tuple(have.shape) != tuple(want.shape):
                found.append(f"state {name!r} of {what} has shape {list(have.shape)}, its parameter {list(want.shape)}")
        return found

    def _unpacked(self, values: Any, parameter: Tensor, memory: dict[int, Any]) -> Any:
        """A copy of loaded state on the parameter's device, in its dtype if that is a floating one, as PyTorch's."""
        want = layout_of(parameter)
        result = copied(values, memory, want.dtype if want.dtype.category == 2 else None, want.device)
        for name in self.on_host:
            if is_tensor(result.get(name)):
                number = result[name].item()
                result[name] = int(number) if name == "step" else float(number)
        return ParameterState(result) if self.state.default_factory is ParameterState else result

    def __repr__(self) -> str:
        text = f"{type(self).__name__} ("
        for i, group in enumerate(self.param_groups):
            text += f"\nParameter Group {i}\n" + "".join(f"    {k}: {group[k]}\n" for k in sorted(group) if k != "params")
        return text + ")"


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` before each step of every optimizer."""
    return RemovableHandle(_pre_hooks_of_all, hook)


def register_optimizer_step_post_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` after each step of every optimizer."""
    return RemovableHandle(_post_hooks_of_all, hook)


def _add(hooks: Hooks, hook: Callable[..., Any], prepend: bool) -> RemovableHandle:
    handle = RemovableHandle(hooks, hook)
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle


def _refuse(problems: list[str]) -> NoReturn:
    raise StateDictError("[load_state_dict] " + ";\n  ".join(problems) + "; nothing was loaded")


def _merged(group: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """The group with the saved options; a pair that a file format made a list is a tuple again."""
    found = {k: copied(v, {}) for k, v in saved.items() if k != "params"}
    return {**group, **{k: tuple(v) if isinstance(group.get(k), tuple) else v for k, v in found.items()}}


def gradient(parameter: Tensor, group: dict[str, Any], decay: float = 0.0) -> Tensor:
    """The gradient, negated for `maximize`, plus L2 weight decay."""
    g: Any = parameter._grad
    if group["maximize"]:
        g = -g
    if decay:
        g = g + parameter * decay
    return g  # type: ignore[no-any-return]


def slot(state: dict[str, Any], name: str, parameter: Tensor, value: float = 0.0) -> Tensor:
    """The state tensor of this name; a new one has the parameter's shape and dtype, and one value everywhere."""
    found = held(state, name)
    if found is None:
        lay = parameter._layout
        found = state[name] = constant(value, lay)
    return found  # type: ignore[no-any-return]


def replace(target: Tensor, value: Tensor) -> None:
    """In-place update; the old buffer is donated to the new value."""
    assign(target, value)


__all__ = [
    "Optimizer", "check_betas", "check_common", "check_range", "gradient", "register_optimizer_step_post_hook", "register_optimizer_step_pre_hook",
    "replace", "required", "slot",
]  # fmt: skip
