"""`functorch`: what became `torch.func`, and modules as functions of their parameters, as they were there first."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import calque
from calque.compat.finder import VERSIONS
from calque.compat.refused import as_it_is
from calque.compat.torch.torch_version import TorchVersion
from calque.func import functional_call, functionalize, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from calque.nn.module import Module
from calque.tensor import Tensor

__all__ = [
    "FunctionalModule", "FunctionalModuleWithBuffers", "__version__", "combine_state_for_ensemble", "functionalize", "grad", "grad_and_value",
    "hessian", "jacfwd", "jacrev", "jvp", "make_functional", "make_functional_with_buffers", "make_fx", "vjp", "vmap",
]  # fmt: skip
__version__ = TorchVersion(VERSIONS["functorch"])
make_fx = as_it_is


class FunctionalModuleWithBuffers(Module):
    """A module as a function of its parameters and buffers: `f(params, buffers, *args)`."""

    def __init__(self, stateless_model: Module, param_names: Sequence[str], buffer_names: Sequence[str]) -> None:
        super().__init__()
        self.stateless_model, self.param_names, self.buffer_names = stateless_model, tuple(param_names), tuple(buffer_names)

    def forward(self, params: Sequence[Tensor], buffers: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        """The result of the module with these in the place of its own."""
        state = dict(zip((*self.param_names, *self.buffer_names), (*params, *buffers), strict=True))
        return functional_call(self.stateless_model, state, args, kwargs)


class FunctionalModule(FunctionalModuleWithBuffers):
    """A module as a function of its parameters: `f(params, *args)`."""

    def forward(self, params: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        """The result of the module with these in the place of its own."""
        return super().forward(params, (), *args, **kwargs)


def _taken(model: Module, tracked: bool) -> tuple[Module, dict[str, Tensor], dict[str, Tensor]]:
    """A copy of a module, and its parameters and buffers."""
    params = {name: p.detach().clone().requires_grad_(p.requires_grad and tracked) for name, p in model.named_parameters()}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    return copy.deepcopy(model), params, buffers


def make_functional(model: Module, disable_autograd_tracking: bool = False) -> tuple[FunctionalModule, tuple[Tensor, ...]]:
    """A function of parameters, and the parameters of the module. One with buffers is refused: see `make_functional_with_buffers`."""
    stateless, params, buffers = _taken(model, not disable_autograd_tracking)
    if buffers:
        raise RuntimeError("[make_functional] expected a module without buffers, got one that has some; use make_functional_with_buffers(model)")
    return FunctionalModule(stateless, tuple(params), ()), tuple(params.values())


def make_functional_with_buffers(
    model: Module, disable_autograd_tracking: bool = False
) -> tuple[FunctionalModuleWithBuffers, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A function of parameters and buffers, and those of the module."""
    stateless, params, buffers = _taken(model, not disable_autograd_tracking)
    return FunctionalModuleWithBuffers(stateless, tuple(params), tuple(buffers)), tuple(params.values()), tuple(buffers.values())


def combine_state_for_ensemble(
    models: Sequence[Module],
) -> tuple[FunctionalModuleWithBuffers, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A function for one of several alike modules, with their parameters and buffers stacked along a new first dim, for `vmap`."""
    if not models:
        raise RuntimeError("[combine_state_for_ensemble] expected at least one model, got none; pass a list of alike modules")
    made = [make_functional_with_buffers(model) for model in models]
    function = made[0][0]
    params = tuple([calque.stack(each).detach().requires_grad_() for each in zip(*[params for _, params, _ in made], strict=True)])
    buffers = tuple([calque.stack(each) for each in zip(*[buffers for *_, buffers in made], strict=True)])
    return function, params, buffers
