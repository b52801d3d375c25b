"""Weight and spectral normalisation as hooks that compute the weight before each forward: PyTorch's older form of `parametrizations`."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError
from calque.nn.module import Module
from calque.nn.parameter import Parameter, is_lazy
from calque.nn.utils.parametrizations import as_matrix, default_dim, iterate_power, iterations, norm_except, random_direction, scaled_direction
from calque.observe.source import warn_user

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]


class _Hook:
    """Computes `module.<name>` from parameters and buffers called so with one of `suffixes`."""

    suffixes: tuple[str, ...] = ()
    leaving = False  # the last weight is computed from what there is, and nothing is changed

    def __init__(self, name: str) -> None:
        self.name = name

    def part(self, module: Any, suffix: str) -> Any:
        return getattr(module, self.name + suffix)

    def __call__(self, module: Any, inputs: Any) -> None:
        setattr(module, self.name, self.weight(module))

    def weight(self, module: Any) -> Any:
        raise NotImplementedError

    def attach(self, module: Any, label: str) -> None:
        """Remember the hook; what is called `name` is no parameter any more."""
        for hook in module._hook_dict("_forward_pre_hooks").values():
            if isinstance(hook, type(self)) and hook.name == self.name:
                raise RuntimeError(f"[{label}] Cannot register two {label} hooks on the same parameter {self.name}")
        if self.name not in module._parameters or module._parameters[self.name] is None:
            raise ArgumentError(f"[{label}] expected a parameter named {self.name!r}, found {list(module._parameters)}")
        if is_lazy(module._parameters[self.name]):
            raise ArgumentError(
                f"[{label}] The module passed can't have uninitialized parameters. Make sure to run the dummy forward before applying {label}"
            )
        del module._parameters[self.name]
        module.register_forward_pre_hook(self)

    @no_grad()
    def detach(self, module: Any) -> None:
        """Make the weight a parameter again."""
        self.leaving = True
        weight = self.weight(module).detach().clone()
        for suffix in ("", *self.suffixes):
            delattr(module, self.name + suffix)
        module.register_parameter(self.name, Parameter(weight))


class _WeightNormHook(_Hook):
    suffixes = ("_g", "_v")

    def __init__(self, name: str, dim: int | None) -> None:
        super().__init__(name)
        self.dim = dim

    def weight(self, module: Any) -> Any:
        return scaled_direction(self.part(module, "_v"), self.part(module, "_g"), self.dim)


class _SpectralNormHook(_Hook):
    suffixes = ("_orig", "_u", "_v")

    def __init__(self, name: str, count: int, eps: float, dim: int) -> None:
        super().__init__(name)
        self.count, self.eps, self.dim = iterations(count), eps, dim

    def weight(self, module: Any) -> Any:
        weight, u, v = (self.part(module, suffix) for suffix in self.suffixes)
        matrix = as_matrix(weight, self.dim)
        if module.training and not self.leaving:
            iterate_power(matrix, u, v, self.count, self.eps, first="v")
            u, v = T.clone(u), T.clone(v)
        return weight / T.dot(u, T.mv(matrix, v))


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Any:
    """w = g * v / |v| with parameters `<name>_g` and `<name>_v`; `parametrizations.weight_norm` is the newer form. Returns the module."""
    warn_user("`nn.utils.weight_norm` is deprecated in favor of `nn.utils.parametrizations.weight_norm`.", FutureWarning)
    weight: Any = getattr(module, name, None)
    hook = _WeightNormHook(name, dim)
    hook.attach(module, "weight_norm")
    module.register_parameter(name + "_g", Parameter(norm_except(weight.detach(), dim)))
    module.register_parameter(name + "_v", Parameter(weight.detach()))
    hook(module, None)
    return module


def spectral_norm(module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None) -> Any:
    """The weight divided by its estimated largest singular value, from a parameter `<name>_orig` and buffers `<name>_u` and `<name>_v`;
    `parametrizations.spectral_norm` is the newer form. Returns the module."""
    hook = _SpectralNormHook(name, n_power_iterations, eps, default_dim(module) if dim is None else dim)
    weight: Any = getattr(module, name, None)
    hook.attach(module, "spectral_norm")
    matrix = as_matrix(weight.detach(), hook.dim)
    module.register_parameter(name + "_orig", weight)
    setattr(module, name, weight.detach())
    module.register_buffer(name + "_u", random_direction(matrix.shape[0], weight, eps))
    module.register_buffer(name + "_v", random_direction(matrix.shape[1], weight, eps))
    return module


def _remove(kind: type[_Hook], label: str, module: Module, name: str) -> Any:
    hooks = module._hook_dict("_forward_pre_hooks")
    for key, hook in hooks.items():
        if isinstance(hook, kind) and hook.name == name:
            hook.detach(module)
            del hooks[key]
            return module
    raise ArgumentError(f"[remove_{label}] {label} of '{name}' not found in {module}")


def remove_weight_norm(module: Module, name: str = "weight") -> Any:
    """Undo `weight_norm`; the weight stays as it is. Returns the module."""
    return _remove(_WeightNormHook, "weight_norm", module, name)


def remove_spectral_norm(module: Module, name: str = "weight") -> Any:
    """Undo `spectral_norm`; the weight stays as it is. Returns the module."""
    return _remove(_SpectralNormHook, "spectral_norm", module, name)
