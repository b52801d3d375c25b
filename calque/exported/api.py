"""`calque.export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from calque.base.dtypes import float64, int64
from calque.base.errors import ArgumentError, ExportError
from calque.base.text import shown, type_name
from calque.exported import tree
from calque.exported.graph import Dim, Entry
from calque.exported.module import Exported
from calque.exported.names import Reached, bound
from calque.exported.tracing import Request, State, entry_of
from calque.functional.common import is_tensor
from calque.nn.module import Module
from calque.nn.parameter import Parameter, is_lazy
from calque.record.recorder import local, share_value
from calque.tensor import upload, wrap


def export(
    model: Callable[..., Any], inputs: Any = (), dynamic: Any = None, *, kwargs: dict[str, Any] | None = None, entries: dict[str, Any] | None = None,
) -> Exported:  # fmt: skip
    """The program of a function or module, with all parameters and state that it uses: an `Exported`, which runs, trains and is saved without the
    source of what it came from.

    model: a Module, a function, a method, or a step that trains (forward, backward, optimizer), after one ordinary call of it. It is called with the
    inputs, but nothing is computed: every operation becomes one of the program. Nothing of the model is changed.
    inputs: the positional arguments as a tuple (or one tensor); kwargs: those by name. Numbers, texts and None among them are fixed.
    dynamic: what is free, by name of the argument (in lists and dicts "state.0"): `{"x": {0: "batch", 1: Dim("time", 2, 512)}}`. A name is a `Dim`
    from 1 on without limit; the same name is the same size. All other sizes are fixed. That the function does the same for the whole range is
    found out from every question that its Python asks about a size; where it does something else, it is traced again (at most sixteen programs), and
    where it raises, the export does.
    entries: further functions that share parameters and state, by name: `{"decode": (model.decode, inputs, dynamic)}`. `model` is then "forward", or,
    without inputs, no entry itself.

    Raises ExportError, with the line, for what no program can say: reading a value (`item()`, `if x > 0:`), what NumPy computes, tensors that Python
    keeps, numbers that change from call to call. Dtypes and values are those of the call; a model in evaluation mode is exported as such.

    >>> import calque
    >>> exported = calque.export(lambda x, scale: (x * scale).relu(), (calque.ones(2, 3), 2.0), {"x": {0: "rows"}})
    >>> exported(calque.ones(1, 3), 2.0)
    tensor([[2., 2., 2.]])
    >>> exported
    Exported(
      forward(x: float32[rows, 3]) -> output: float32[rows, 3]
        rows (1 to any)
    )
    """
    if not callable(model):
        raise ArgumentError(f"[export] expected a function or a Module, got {type_name(model)}; pass the model itself, not its result")
    if not local.state.plain or local.state.capture is not None:
        raise ExportError("[export] expected to be called outside of vmap, grad, hybridized calls and other exports; export first")
    wanted: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {}
    args = _tuple(inputs)
    if not entries or args or kwargs:
        wanted["forward"] = (model, args, dynamic, kwargs or {})
    for name, item in (entries or {}).items():
        wanted[_entry_name(name)] = _entry(name, item)
    state = State(Reached([model, *(function for function, *_ in wanted.values())]))  # the names are those of the model
    _look_for_lazy(state.reached)
    made: dict[str, Entry] = {}
    with_grad = local.state.grad
    for name, (function, given, free, named) in wanted.items():
        made[name] = entry_of(_request(name, function, given, free, named), state)
        trains = any(isinstance(state.values.get(written), Parameter) for v in made[name].variants for written in v.writes)
        made[name].grad = made[name].grad and with_grad and not trains  # a step has used its graph
        if not made[name].grad:
            made[name].cuts, made[name].still = {}, ()
    for t in state.reached.tensors.values():  # what the model has and no entry uses, so that its state dicts fit
        if id(t._storage) in state.reached.of_model:
            state.name_of(t._storage, True, t._storage.layout)
    modes = {module.training for module in state.reached.modules}
    return Exported(made, _values(state), modes.pop() if len(modes) == 1 else None)


def _look_for_lazy(found: Reached) -> None:
    """Raise for parameters that have no shape yet: the first call of their layer makes them, and that is no part of a program."""
    name = next((name for name, t in found.tensors.items() if is_lazy(t)), None)
    if name is not None:
        raise ExportError(
            f"[export] expected parameters and buffers that have shapes, but {name} gets its shape in the first call of its layer; call the model "
            "once before, model(*inputs), or load a state dict"
        )


def _tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _entry_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or hasattr(Exported, name):
        raise ArgumentError(f"[export] expected names of entries that are identifiers and no attributes of a Module, got {shown(name)}")
    return name


def _entry(name: str, item: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    if isinstance(item, tuple) and len(item) in (2, 3) and callable(item[0]):
        return (item[0], _tuple(item[1]), item[2] if len(item) > 2 else None, {})
    raise ArgumentError(f"[export] expected entries={{{name!r}: (function, inputs, dynamic)}}, got {shown(item)}")


def _request(name: str, function: Callable[..., Any], args: tuple[Any, ...], dynamic: Any, kwargs: dict[str, Any]) -> Request:
    """What is asked for, with checked arguments."""
    try:
        named, call = bound(function, args, kwargs)
    except TypeError as error:
        raise ArgumentError(f"[export] expected inputs with which {name} can be called, but {error}") from None
    tensors: list[tuple[str, Any]] = []
    description = tree.describe(named, "", tensors)
    for spec, t in tensors:
        if t._grad_fn is not None:
            raise ExportError(f"[export] expected inputs without history, got {spec}, which was computed from others; pass {spec}.detach()")
    places = {spec: k for k, (spec, _) in enumerate(tensors)}
    dims: list[dict[int, Dim]] = [{} for _ in tensors]
    known: dict[str, Dim] = {}
    for key, by_axis in _by_name(dynamic, list(named)).items():
        _free(str(key), by_axis, places, tensors, dims, known)
    return Request(name, call, description, tensors, dims)


def _by_name(dynamic: Any, names: list[str]) -> dict[str, Any]:
    """`dynamic` by names of tensors; PyTorch also takes a tuple in the order of the arguments, and nested ones."""
    if dynamic is None:
        return {}
    if isinstance(dynamic, tuple | list):
        dynamic = dict(zip(names, dynamic, strict=False))
    if not isinstance(dynamic, Mapping):
        raise ArgumentError(f"[export] expected dynamic={{'x': {{0: 'batch'}}}}, got {shown(dynamic)}")
    found: dict[str, Any] = {}
    for key, value in dynamic.items():
        nested = isinstance(value, Mapping) and value and all(isinstance(k, str) for k in value)
        items = value.items() if nested else enumerate(value) if isinstance(value, tuple | list) and value and not _is_axes(value) else None
        if items is None:
            found[str(key)] = value
        else:
            found |= {f"{key}.{k}": v for k, v in _by_name(dict(items), []).items()}
    return found


def _is_axes(value: Any) -> bool:
    """Whether a list names dims, rather than tensors in a list."""
    return all(item is None or isinstance(item, str | Dim) or item in (_AUTO, _STATIC) for item in value)


_AUTO, _STATIC = "Dim.AUTO", "Dim.STATIC"  # how PyTorch's marks come here


def _free(name: str, by_axis: Any, places: dict[str, int], tensors: list[Any], dims: list[dict[int, Dim]], known: dict[str, Dim]) -> None:
    """Note which dims of a tensor are free."""
    if by_axis is None:
        return
    if name not in places:
        raise ArgumentError(f"[export] expected names of tensors among the inputs in dynamic ({', '.join(places) or 'there are none'}), got {name!r}")
    number = places[name]
    ndim = tensors[number][1]._layout.ndim
    if isinstance(by_axis, tuple | list):
        by_axis = dict(enumerate(by_axis))
    if not isinstance(by_axis, Mapping):
        raise ArgumentError(f"[export] expected dynamic[{name!r}] as {{axis: Dim}}, got {shown(by_axis)}")
    for axis, free in by_axis.items():
        if not isinstance(axis, int) or not -ndim <= axis < ndim:
            raise ArgumentError(f"[export] expected an axis of {name}, which has {ndim} dims, in dynamic[{name!r}], got {shown(axis)}")
        if isinstance(free, int) and not isinstance(free, bool) and free != tensors[number][1]._layout.shape[axis]:
            raise ArgumentError(
                f"[export] expected dynamic[{name!r}][{axis}] as a name, a Dim, or the size that {name} has there, "
                f"{tensors[number][1]._layout.shape[axis]}, got {free}; a size that is no name stays fixed"
            )
        if free is None or free == _STATIC or (isinstance(free, int) and not isinstance(free, bool)):
            continue
        if free is True or free == _AUTO:
            free = f"{name.replace('.', '_')}_{axis % ndim}"
        d = Dim(free) if isinstance(free, str) else free
        if not isinstance(d, Dim):
            raise ArgumentError(f"[export] expected a name or Dim(name, min, max) in dynamic[{name!r}][{axis}], got {shown(free)}")
        before = known.setdefault(d.name, d)
        if before != d and not isinstance(free, str):
            raise ArgumentError(f"[export] expected one range for {d.name}, got {before!r} and {d!r}")
        dims[number][axis % ndim] = before


def _values(state: State) -> list[tuple[tuple[str, ...], Any, bool]]:
    """What the exported module holds: copies (nothing is copied before one of both is written) of all that the entries read."""
    found: list[tuple[tuple[str, ...], Any, bool]] = []
    order = {name: k for k, name in enumerate(state.reached.tensors)}
    for name, t in sorted(state.values.items(), key=lambda item: order.get(item[0], len(order))):
        storage = share_value(t._storage)
        names = tuple(state.reached.names.get(id(t._storage), [name]))
        copy: Any = wrap(storage, t._layout)
        if isinstance(t, Parameter):
            copy = Parameter(copy, requires_grad=t._requires_grad)
        persistent = name not in state.constants and is_tensor(t) and not _hidden(name, state)
        found.append((names, copy, persistent))
    for name, number in state.counted.items():
        found.append(((name,), upload(np.array(number), float64), True))
    for name, generator in state.generators.items():
        words = np.array([generator._seed, generator._offset], np.int64)
        found.append(((name,), upload(words, int64), False))
    return found


def _hidden(name: str, state: State) -> bool:
    """Whether a buffer is one that its module leaves out of state dicts."""
    for root in state.reached.modules:
        *path, last = name.split(".")
        owner: Any = root
        for part in path:
            owner = owner._modules.get(part) if isinstance(owner, Module) else None
        if isinstance(owner, Module) and last in owner._non_persistent_buffers_set:
            return True
    return False
