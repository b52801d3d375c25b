"""Copies of a module on several devices, through which gradients flow back to the one set of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque.autograd.moving import move, move_all
from calque.base.device import Device
from calque.base.errors import ArgumentError
from calque.base.text import type_name
from calque.functional.views import detach
from calque.nn.module import Module
from calque.nn.parallel.primitives import devices_of
from calque.record.nodes import GradNode
from calque.record.recorder import local
from calque.tensor import Tensor, function_node, output_nodes


def replicate(network: Any, devices: Sequence[Any], detach: bool = False) -> list[Any]:
    """Copies of `network`, one per device: same modules, parameters and buffers copied there by one task per device. Gradients of all copies are
    summed into the parameters (unless `detach`). The copy for the device where a parameter lives uses it itself, with the buffers: what a
    forward writes into them (statistics) stays. Make new copies after every optimizer step."""
    if not isinstance(network, Module):
        raise ArgumentError(f"[replicate] expected a Module, got {type_name(network)}; only modules have parameters to copy")
    parameters = list(dict.fromkeys(p for p in network.parameters()))
    where = devices_of(devices, "replicate", parameters)
    buffers = list(dict.fromkeys(b for b in network.buffers()))
    copies = broadcast(parameters, where, detach)
    return [_copy(network, dict(zip(parameters, copies[k], strict=True)), _buffers(buffers, device)) for k, device in enumerate(where)]


def broadcast(tensors: Sequence[Tensor], devices: Sequence[Device], without_history: bool = False) -> list[list[Tensor]]:
    """The tensors on every device: themselves where they live, else copies. The gradient of a tensor is the sum over its copies."""
    rows: list[list[Tensor]] = []
    made: list[tuple[int, Tensor]] = []  # position of the source, copy
    for device in devices:
        others = [k for k, t in enumerate(tensors) if t._layout.device is not device]
        row = list(tensors)
        for k, copy in zip(others, move_all([tensors[k] for k in others], device) if others else (), strict=True):
            row[k] = copy
            if tensors[k]._requires_grad and local.state.grad and not without_history:
                made.append((k, copy))
        rows.append([detach(t) for t in row] if without_history else row)
    if made:
        _attach(tensors, made)
    return rows


def _attach(tensors: Sequence[Tensor], made: list[tuple[int, Tensor]]) -> None:
    """One graph node behind all copies."""
    sources = [k for k, _ in made]

    def backward(node: GradNode, grads: Any) -> Any:
        found: list[Any] = [None] * len(tensors)
        for k, g in zip(sources, _home([tensors[k]._layout.device for k in sources], grads), strict=True):
            if g is not None:
                found[k] = g if found[k] is None else found[k] + g
        return found

    node = function_node("BroadcastBackward", tuple(tensors), tuple(copy._layout for _, copy in made), backward)
    for (_, copy), end in zip(made, output_nodes(node, len(made)), strict=True):
        copy._grad_fn, copy._requires_grad = end, True


def _home(devices: Sequence[Device], grads: Sequence[Any]) -> list[Any]:
    """Every gradient on its device: one copy task for all that go to one."""
    found = list(grads)
    if local.state.grad:  # gradients of gradients: with history
        return [None if g is None else move(g, device) for g, device in zip(grads, devices, strict=True)]
    groups: dict[tuple[Device, Device], list[int]] = {}
    for k, (g, device) in enumerate(zip(grads, devices, strict=True)):
        if g is not None and g._layout.device is not device:
            groups.setdefault((g._layout.device, device), []).append(k)
    for (_, device), positions in groups.items():
        for k, moved in zip(positions, move_all([grads[k] for k in positions], device), strict=True):
            found[k] = moved
    return found


def _buffers(buffers: Sequence[Tensor], device: Device) -> dict[Tensor, Tensor]:
    others = [b for b in buffers if b._layout.device is not device]
    return {**{b: b for b in buffers}, **dict(zip(others, move_all(others, device) if others else (), strict=True))}


def _copy(network: Any, parameters: dict[Tensor, Tensor], buffers: dict[Tensor, Tensor]) -> Any:
    """The tree of modules with other tensors. Nothing of the original changes."""
    twins: dict[Any, Any] = {}
    for module in network.modules():
        twin = twins[module] = object.__new__(type(module))
        own = twin.__dict__
        own.update(module.__dict__)
        own["_parameters"] = {name: None if p is None else parameters[p] for name, p in module._parameters.items()}
        own["_buffers"] = {name: None if b is None else buffers[b] for name, b in module._buffers.items()}
        own["_hybrid"] = None  # what was recorded of the original knows its parameters
    for module, twin in twins.items():
        twin.__dict__["_modules"] = {name: None if m is None else twins[m] for name, m in module._modules.items()}
    return twins[network]
