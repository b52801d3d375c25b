"""A module on several devices as one: parameters cut over the axes of a mesh, batches likewise, each step one program on all devices.

The rules that name parameters and say along which dimension they are cut follow Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter
Language Models Using Model Parallelism" (2019); who sends what to whom is found by XLA, see `backend/xla/mesh.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import Any

import numpy as np

from calque.autograd.moving import move
from calque.base.device import Device, accelerator, backend_of, known
from calque.base.errors import ArgumentError, DeviceError, DTypeError, UnsupportedTypeError
from calque.base.layout import dense_layout
from calque.base.text import shown, type_name
from calque.functional.common import is_tensor
from calque.nn.module import Module
from calque.nn.parameter import is_lazy, replace_value
from calque.record.copies import REASON, buffer_of
from calque.record.recorder import local
from calque.replay.capture import abort
from calque.replay.counts import Changes
from calque.replay.effects import gradients_matter
from calque.run.buffer import strided
from calque.tensor import Tensor, from_array, function_node

Cut = Mapping[int, str]
"""Dimension of a tensor -> axis of the mesh over which it is cut."""


class Mesh:
    """Devices of one process in a grid with named axes, that compute as one device: `mesh.device`, to which tensors and modules move by `.to`, and
    lie whole on each of its devices. `shard` and `put` cut them. What is computed from them is what one device computes, but for the order of sums:
    gradients, statistics and losses are those of the whole batch.

    axes: the name of each axis and how many devices stand along it. devices: so many devices of one kind as there are places in the grid, or the name
    of a kind, whose first devices are meant; None means the accelerator that is there, else XLA's CPU devices. Raises `ArgumentError` for axes that
    are not names and positive numbers, `DeviceError` for devices that are not there or not XLA's.

    >>> import importlib.util
    >>> import calque
    >>> if importlib.util.find_spec("jax"):
    ...     mesh = calque.parallel.Mesh({"data": 1}, "xla")
    ...     x = mesh.put(calque.ones(6, 3), {0: "data"})
    ...     assert x.device == mesh.device and x.sum().item() == 18.0
    """

    def __init__(self, axes: Mapping[str, int], devices: Any = None) -> None:
        if not isinstance(axes, Mapping) or not axes:
            raise ArgumentError(f"[Mesh] expected the axes of the mesh as {{name: number of devices}}, got {shown(axes)}; such as {{'data': 4}}")
        for name, n in axes.items():
            if not isinstance(name, str) or not name.isidentifier() or isinstance(n, bool) or not isinstance(n, int) or n < 1:
                got = f"{shown(name)}: {shown(n)}"
                raise ArgumentError(f"[Mesh] expected a name and a positive number for each axis, got {got}; such as {{'data': 4}}")
        self.axes = dict(axes)
        self.devices = _devices(devices, prod(axes.values()))
        numbers = [device.index for device in self.devices]
        kind = self.devices[0].type
        self.device = known(Device("mesh", backend_of("mesh").make(backend_of(kind), numbers, self.axes)))

    def __repr__(self) -> str:
        return f"Mesh({self.axes}, {[str(device) for device in self.devices]})"

    def put(self, tensor: Tensor, cut: Cut | None = None) -> Tensor:
        """The tensor on the mesh, cut as `cut` says: its dimensions -> axes of the mesh; {} or None: whole on each device. Gradients flow back. A
        size that the devices of the axis cannot share out evenly, such as the last batch of an epoch, is allowed: the tensor then lies whole on each
        device, and the programs that read it cut it.

        Raises `ArgumentError` for dimensions and axes that are not there, `DTypeError` for what is no tensor.
        """
        if not is_tensor(tensor):
            raise DTypeError(f"[Mesh.put] expected a tensor, got {type_name(tensor)}; make one with calque.tensor")
        abort("puts a tensor on a mesh")  # a replay would not see the next batch
        placed = self._placed(tensor, self.partition(tuple(tensor.shape), cut, "Mesh.put"))
        if tensor._requires_grad and local.state.grad:
            here = tensor._layout.device
            placed._grad_fn = function_node("ToCopyBackward0", (tensor,), (placed._layout,), lambda node, grads: (move(grads[0], here),))
            placed._requires_grad = True
        return placed

    def partition(self, shape: Sequence[int], cut: Cut | None, name: str) -> tuple[str | None, ...]:
        """For each dimension of a shape the axis that cuts it or None; raises `ArgumentError`, which says `[name]`, for a cut that cannot be."""
        found: list[str | None] = [None] * len(shape)
        if cut is not None and not isinstance(cut, Mapping):
            raise ArgumentError(f"[{name}] expected {{dimension: axis}}, got {shown(cut)}; such as {{0: {next(iter(self.axes))!r}}}")
        for dim, axis in (cut or {}).items():
            if isinstance(dim, bool) or not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
                raise ArgumentError(f"[{name}] expected a dimension of a tensor of shape {tuple(shape)}, got {shown(dim)}; cut one that it has")
            if axis not in self.axes:
                raise ArgumentError(f"[{name}] expected an axis of the mesh, got {shown(axis)}; it has {', '.join(self.axes)}")
            if axis in found or found[dim] is not None:
                raise ArgumentError(f"[{name}] expected each axis and each dimension once, got {shown(dict(cut or {}))}; cut another dimension")
            found[dim] = axis
        return tuple(found)

    def cut_of(self, tensor: Tensor) -> dict[int, str]:
        """How a tensor on the mesh lies there: dimension -> axis. Starts what it is computed by.

        Raises `DeviceError` for a tensor that is elsewhere.
        """
        if tensor._layout.device is not self.device:
            raise DeviceError(f"[Mesh.cut_of] expected a tensor on {self.device}, got one on {tensor._layout.device}; move it with Mesh.put")
        value = buffer_of(tensor._storage, "where a tensor lies")
        value.wait()
        spec = value.array.cut.spec if value.array.array.ndim == tensor.ndim else ()
        return {dim: axis for dim, axis in enumerate(spec) if axis is not None}

    def _placed(self, t: Tensor, partition: tuple[str | None, ...]) -> Tensor:
        """A copy on the mesh, without history."""
        backend, view = self.device.backend, t._layout
        if view.dtype.hosted:
            raise UnsupportedTypeError(f"[Mesh.put] expected a dtype that {self.device} has, got {view.dtype!r}; keep the tensor on the CPU")
        array = np.array(strided(buffer_of(t._storage, REASON).wait(), view))
        value = backend.meshes[self.device.index].place(array.reshape(tuple(view.shape)), partition)
        return from_array(value, dense_layout(tuple(view.shape), view.dtype, self.device))


def _devices(devices: Any, count: int) -> list[Device]:
    """`count` devices of one kind that XLA serves."""
    chosen = accelerator() or "xla" if devices is None else devices
    listed = [f"{chosen}:{i}" for i in range(count)] if isinstance(chosen, str) else list(chosen)
    found = [known(Device(device) if not isinstance(device, Device) else device) for device in listed]
    if len(found) != count or len(set(found)) != count or len({device.type for device in found}) != 1:
        names = ", ".join(map(str, found))
        raise DeviceError(f"[Mesh] expected {count} different devices of one kind, as the axes say, got {names or 'none'}; pass 'xla' or a list")
    if found[0].backend is None or not hasattr(found[0].backend, "afford"):
        raise DeviceError(f"[Mesh] expected devices that XLA serves, got {found[0]}; use 'cuda', 'tpu' or 'xla' (docs/devices.md)")
    return found


def shard(module: Any, mesh: Mesh, rules: Mapping[str, Cut | None] | None = None) -> Any:
    """Move a module to a mesh, its parameters and buffers cut as rules say, and return it. The optimizer is made afterwards; what it keeps of a
    parameter lies as the parameter does. No device ever holds more than its part of what is cut, and what is not cut.

    rules: a pattern of names (`"*.qkv.weight"`, as in `fnmatch`) -> the dimensions of such tensors and the axes of the mesh that cut them (`{0:
    "model"}`). The first pattern that fits a name counts. What fits none, or one that says None, lies whole on each device; None or {}: everything
    does, which is data parallel training if batches are `put` on the mesh in parts.

    Raises `ArgumentError` if a pattern fits nothing, if a size cannot be shared out evenly among the devices of an axis, and for parameters without a
    shape; nothing has moved then.

    >>> import importlib.util
    >>> import calque
    >>> if importlib.util.find_spec("jax"):
    ...     mesh = calque.parallel.Mesh({"model": 1}, "xla")
    ...     model = calque.parallel.shard(calque.nn.Linear(4, 6), mesh, {"weight": {0: "model"}, "bias": {0: "model"}})
    ...     assert mesh.cut_of(model.weight) == {0: "model"}
    """
    if not isinstance(module, Module):
        raise ArgumentError(f"[shard] expected a Module, got {type_name(module)}; only modules have parameters to cut")
    if not isinstance(mesh, Mesh):
        raise ArgumentError(f"[shard] expected a Mesh, got {type_name(mesh)}; make one: calque.parallel.Mesh({{'model': 4}})")
    plan = _plan(module, mesh, rules or {})
    abort("moves a module to a mesh")
    Changes.epoch += 1
    gradients_matter()
    known_shapes = mesh.device.backend.meshes[mesh.device.index].shapes
    for t, partition in plan:
        if any(partition):
            known_shapes.setdefault(tuple(t.shape), partition)
        replace_value(t, mesh._placed(t, partition))
        if t._grad is not None:
            t._grad = mesh._placed(t._grad, partition)
    return module


def _plan(module: Module, mesh: Mesh, rules: Mapping[str, Cut | None]) -> list[tuple[Tensor, tuple[str | None, ...]]]:
    """Every parameter and buffer, and how it is cut."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    unused = dict.fromkeys(rules)
    plan = []
    for name, t in tensors:
        pattern = next((p for p in rules if fnmatchcase(name, p)), None)
        for p in [p for p in unused if fnmatchcase(name, p)]:
            del unused[p]
        if is_lazy(t):
            raise ArgumentError(f"[shard] expected parameters with a shape, got {name}, which has none yet; call the module once before")
        partition = mesh.partition(tuple(t.shape), None if pattern is None else rules[pattern], f"shard: {name}")
        for dim, axis in enumerate(partition):
            if axis is not None and t.shape[dim] % mesh.axes[axis]:
                n = mesh.axes[axis]
                raise ArgumentError(
                    f"[shard] expected sizes that {n} devices share out evenly, got {name} of shape {tuple(t.shape)} cut along dimension {dim}; "
                    f"pad it to {-(-t.shape[dim] // n) * n}, or cut another dimension"
                )
        plan.append((t, partition))
    if unused:
        names = ", ".join(name for name, _ in tensors[:6]) or "none"
        raise ArgumentError(f"[shard] expected patterns that fit a parameter, got {shown(next(iter(unused)))}; names are {names}, ...")
    return plan
