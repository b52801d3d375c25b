"""Pruning: parameters of which some elements are held at zero by a mask.

A pruned parameter `name` becomes `name_orig`, which is trained, with a buffer `name_mask`; before every forward `name` is their product.

>>> import calque
>>> from calque.nn.utils import prune
>>> layer = prune.l1_unstructured(calque.nn.Linear(2, 2), "weight", amount=1)
>>> int(layer.weight_mask.sum()), prune.is_pruned(layer), sorted(dict(layer.named_parameters()))
(3, True, ['bias', 'weight_orig'])
>>> int((prune.remove(layer, "weight").weight == 0).sum())
1
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError, ShapeError
from calque.base.text import shown, type_name
from calque.nn.parameter import replace_value
from calque.replay.counts import Changes
from calque.tensor import Tensor

__all__ = [
    "BasePruningMethod", "CustomFromMask", "Identity", "L1Unstructured", "LnStructured", "PruningContainer", "RandomStructured",
    "RandomUnstructured", "custom_from_mask", "global_unstructured", "identity", "is_pruned", "l1_unstructured", "ln_structured",
    "random_structured", "random_unstructured", "remove",
]  # fmt: skip


def _hooks(module: Any, name: str | None = None) -> dict[int, Any]:
    """The pruning methods of a module (of one tensor of it), by the numbers of their hooks."""
    found = {key: hook for key, hook in module._hook_dict("_forward_pre_hooks").items() if isinstance(hook, BasePruningMethod)}
    return {key: hook for key, hook in found.items() if name is None or hook._tensor_name == name}


class BasePruningMethod(ABC):
    """Base of pruning methods: a subclass says its `PRUNING_TYPE` ("unstructured", "structured" or "global") and `compute_mask`.

    >>> import calque
    >>> from calque.nn.utils import prune
    >>> class First(prune.BasePruningMethod):
    ...     PRUNING_TYPE = "unstructured"
    ...     def compute_mask(self, t, default_mask):
    ...         mask = default_mask.clone()
    ...         mask.view(-1)[0] = 0
    ...         return mask
    >>> layer = calque.nn.Linear(2, 1)
    >>> method = First.apply(layer, "weight")
    >>> layer.weight_mask.tolist()
    [[0.0, 1.0]]
    """

    PRUNING_TYPE: str
    _tensor_name: Any = None

    def __call__(self, module: Any, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of a tensor of importance `t`, of which `default_mask` was pruned before."""

    def apply_mask(self, module: Any) -> Tensor:
        """The parameter times its mask."""
        if self._tensor_name is None:
            raise AssertionError(f"[prune] Module {module} has to be pruned")
        mask, original = getattr(module, f"{self._tensor_name}_mask"), getattr(module, f"{self._tensor_name}_orig")
        return mask.to(original.dtype) * original  # type: ignore[no-any-return]

    @classmethod
    def apply(cls, module: Any, name: str, *args: Any, importance_scores: Any = None, **kwargs: Any) -> Any:
        """Prune the parameter `name`; what was pruned before stays so. importance_scores: looked at instead of the values. Returns the method."""
        older = _hooks(module, name)
        if len(older) > 1:
            raise AssertionError(f"[prune] Avoid adding multiple pruning hooks to the same tensor {name} of module {module}. Use a PruningContainer.")
        method: Any = cls(*args, **kwargs)
        method._tensor_name = name
        for hook in older.values():
            container = hook if isinstance(hook, PruningContainer) else PruningContainer(hook)
            container.add_pruning_method(method)
            method = container
        original = getattr(module, name)
        scores = original if importance_scores is None else importance_scores
        if scores.shape != original.shape:
            raise AssertionError(
                f"[prune] importance_scores should have the same shape as parameter {name} of {module}, got {scores.shape} vs {original.shape}"
            )
        with no_grad():
            before = getattr(module, f"{name}_mask").clone() if older else T.ones_like(original)
            mask = method.compute_mask(scores.detach(), default_mask=before)
        for key in older:
            del module._hook_dict("_forward_pre_hooks")[key]
        if not older:
            del module._parameters[name]
            module.register_parameter(f"{name}_orig", original)
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(self, t: Tensor, default_mask: Any = None, importance_scores: Any = None) -> Tensor:
        """A pruned copy of a tensor."""
        scores = t if importance_scores is None else importance_scores
        if scores.shape != t.shape:
            raise AssertionError(f"[prune] importance_scores should have the same shape as tensor t, got {scores.shape} vs {t.shape}")
        return t * self.compute_mask(scores, default_mask=T.ones_like(t) if default_mask is None else default_mask)

    def remove(self, module: Any) -> None:
        """Make pruning permanent: `name` is a parameter again, with zeros in it."""
        if self._tensor_name is None:
            raise AssertionError(f"[prune] Module {module} has to be pruned before pruning can be removed")
        name = self._tensor_name
        value, original = self.apply_mask(module).detach(), module._parameters[f"{name}_orig"]
        module.__dict__.pop(name, None)
        del module._parameters[f"{name}_orig"], module._buffers[f"{name}_mask"]
        replace_value(original, value)
        setattr(module, name, original)
        Changes.epoch += 1


class PruningContainer(BasePruningMethod):
    """Methods that pruned one tensor one after the other; the last one computes a new mask from what the others left.

    >>> import calque
    >>> from calque.nn.utils import prune
    >>> layer = calque.nn.Linear(4, 1)
    >>> _ = prune.random_unstructured(layer, "weight", amount=1)
    >>> len(prune.L1Unstructured.apply(layer, "weight", amount=1)), int(layer.weight_mask.sum())
    (2, 2)
    """

    PRUNING_TYPE = "unstructured"

    def __init__(self, *args: Any) -> None:
        self._pruning_methods: tuple[Any, ...] = ()
        if len(args) == 1:
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: Any) -> None:
        """Add a method that acts on the same parameter."""
        if method is not None and not isinstance(method, BasePruningMethod):
            raise TypeError(f"[prune] {type_name(method)} is not a BasePruningMethod subclass")
        if method is not None and self._tensor_name != method._tensor_name:
            raise ArgumentError(
                f"[prune] Can only add pruning methods acting on the parameter named '{self._tensor_name}' to PruningContainer {self}. Found "
                f"'{method._tensor_name}'"
            )
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._pruning_methods)

    def __getitem__(self, idx: Any) -> Any:
        return self._pruning_methods[idx]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of the last method, for the elements that are left."""
        method = self._pruning_methods[-1]
        kind, mask = method.PRUNING_TYPE, default_mask.to(t.dtype).clone()
        place: Any
        if kind == "unstructured":
            place = default_mask == 1
        elif kind == "structured":
            dim = _dim(t, method.dim)
            left = T.sum(default_mask, tuple(d for d in range(t.ndim) if d != dim)) != 0
            place = tuple(left if d == dim else slice(None) for d in range(t.ndim))
        elif kind == "global":
            place = (slice(None),) * t.ndim
        else:
            raise ArgumentError(f"[prune] Unrecognized PRUNING_TYPE {shown(kind)}; use unstructured, structured or global")
        mask[place] = method.compute_mask(t[place], default_mask=default_mask[place]).to(mask.dtype)
        return mask


def _dim(t: Tensor, dim: int) -> int:
    if not -t.ndim <= dim < t.ndim:
        raise IndexError(f"[prune] Invalid index {dim} for tensor of size {tuple(t.shape)}")
    return dim % t.ndim


def _count(amount: Any, size: int) -> int:
    """How many of `size` elements to prune."""
    if isinstance(amount, int):
        if amount > size:
            raise ArgumentError(f"[prune] amount={amount} should be smaller than the number of parameters to prune={size}")
        return amount
    return round(amount * size)


class _ByAmount(BasePruningMethod):
    def __init__(self, amount: Any) -> None:
        if isinstance(amount, bool) or not isinstance(amount, (int, float)):
            raise TypeError(f"[prune] Invalid type for amount: {shown(amount)}. Must be int or float.")
        if amount < 0 or isinstance(amount, float) and amount > 1.0:
            raise ArgumentError(f"[prune] amount={amount} should either be a float in the range [0.0, 1.0] or a non-negative integer")
        self.amount = amount


class Identity(BasePruningMethod):
    """Prunes nothing, but makes the mask.

    >>> import calque
    >>> from calque.nn.utils import prune
    >>> prune.identity(calque.nn.Linear(2, 1), "bias").bias_mask.tolist()
    [1.0]
    """

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _Unstructured(_ByAmount):
    PRUNING_TYPE = "unstructured"

    def _scores(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Zeros where the scores are lowest."""
        count, mask = _count(self.amount, t.numel()), T.flatten(default_mask).clone()
        if count:
            mask[T.topk(T.flatten(self._scores(t)), count, largest=False)[1]] = 0
        return T.reshape(mask, tuple(default_mask.shape))


class RandomUnstructured(_Unstructured):
    """Prunes elements at random: `amount` of them, or this share.

    >>> import calque
    >>> from calque.nn.utils import prune
    >>> int(prune.random_unstructured(calque.nn.Linear(4, 4), "weight", 0.25).weight_mask.sum())
    12
    """

    def _scores(self, t: Tensor) -> Tensor:
        return T.rand(tuple(t.shape))


class L1Unstructured(_Unstructured):
    """Prunes the smallest elements: `amount` of them, or this share.

    >>> import calque
    >>> from calque.nn.utils import prune
    >>> prune.L1Unstructured(amount=1).prune(calque.tensor([3.0, -1.0, 2.0])).tolist()
    [3.0, -0.0, 2.0]
    """

    def _scores(self, t: Tensor) -> Tensor:
        return T.abs(t)

    @classmethod
    def apply(cls, module: Any, name: str, amount: Any, importance_scores: Any = None) -> Any:  # type: ignore[override]
        return super().apply(module, name, amount=amount, importance_scores=importance_scores)


class _Structured(_ByAmount):
    PRUNING_TYPE = "structured"
    dim = -1

    def _scores(self, t: Tensor, dim: int) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Zeros for the slices along `dim` whose scores are lowest."""
        if t.ndim <= 1:
            raise ShapeError(f"[prune] Structured pruning can only be applied to multidimensional tensors. Found tensor of shape {tuple(t.shape)}")
        dim = _dim(t, self.dim)
        size = t.shape[dim]
        count = _count(self.amount, size)
        if not count:
            return default_mask
        kept = T.topk(self._scores(t, dim), size - count)[1]
        line = T.index_fill(T.zeros(size, dtype=t.dtype), 0, kept, 1.0)
        return T.reshape(line, tuple(size if d == dim else 1 for d in range(t.ndim))) * default_mask.to(t.dtype)


class RandomStructured(_Structured):
    """Prunes slices along `dim` at random: `amount` of them, or this share.

    >>> import calque
    >>> from calque.nn.utils import prune
    >>> prune.random_structured(calque.nn.Linear(3, 4), "weight", amount=1, dim=0).weight_mask.sum(1).sort()[0].tolist()
    [0.0, 3.0, 3.0, 3.0]
    """

    def __init__(self, amount: Any, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def _scores(self, t: Tensor, dim: int) -> Tensor:
        return T.rand(t.shape[dim])

    @classmethod
    def apply(cls, module: Any, name: str, amount: Any, dim: int = -1) -> Any:  # type: ignore[override]
        return super().apply(module, name, amount=amount, dim=dim)


class LnStructured(_Structured):
    """Prunes the slices along `dim` with the smallest norms of order `n`: `amount` of them, or this share.

    >>> import calque
    >>> from calque.nn.utils import prune
    >>> prune.LnStructured(amount=1, n=2, dim=0).prune(calque.tensor([[3.0, 4.0], [1.0, 1.0]])).tolist()
    [[3.0, 4.0], [0.0, 0.0]]
    """

    def __init__(self, amount: Any, n: Any, dim: int = -1) -> None:
        super().__init__(amount)
        self.n, self.dim = n, dim

    def _scores(self, t: Tensor, dim: int) -> Tensor:
        return T.norm(T.flatten(T.movedim(t, dim, 0), 1), self.n, 1)

    @classmethod
    def apply(cls, module: Any, name: str, amount: Any, n: Any, dim: int, importance_scores: Any = None) -> Any:  # type: ignore[override]
        return super().apply(module, name, amount=amount, n=n, dim=dim, importance_scores=importance_scores)


class CustomFromMask(BasePruningMethod):
    """Prunes what a mask says.

    >>> import calque
    >>> from calque.nn.utils import prune
    >>> prune.custom_from_mask(calque.nn.Linear(2, 1), "weight", calque.tensor([[0, 1]])).weight_mask.tolist()
    [[0.0, 1.0]]
    """

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if default_mask.shape != self.mask.shape:
            raise AssertionError(f"[prune] expected a mask of shape {tuple(default_mask.shape)}, got {tuple(self.mask.shape)}")
        return default_mask * self.mask.to(default_mask.dtype)


def identity(module: Any, name: str) -> Any:
    """`Identity` for a parameter of a module, which is returned."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Any, name: str, amount: Any) -> Any:
    """`RandomUnstructured` for a parameter of a module, which is returned."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: Any, name: str, amount: Any, importance_scores: Any = None) -> Any:
    """`L1Unstructured` for a parameter of a module, which is returned."""
    L1Unstructured.apply(module, name, amount=amount, importance_scores=importance_scores)
    return module


def random_structured(module: Any, name: str, amount: Any, dim: int) -> Any:
    """`RandomStructured` for a parameter of a module, which is returned."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(module: Any, name: str, amount: Any, n: Any, dim: int, importance_scores: Any = None) -> Any:
    """`LnStructured` for a parameter of a module, which is returned."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Any, name: str, mask: Tensor) -> Any:
    """`CustomFromMask` for a parameter of a module, which is returned."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(parameters: Iterable[tuple[Any, str]], pruning_method: Any, importance_scores: Any = None, **kwargs: Any) -> None:
    """Prune several parameters, `(module, name)` pairs, as if they were one: an unstructured method chooses among all their elements.

    importance_scores: a dict from such pairs to tensors that are looked at instead of the values. kwargs: of the method.

    >>> import calque
    >>> from calque.nn.utils import prune
    >>> net = calque.nn.Sequential(calque.nn.Linear(2, 2), calque.nn.Linear(2, 2))
    >>> prune.global_unstructured([(m, "weight") for m in net], prune.L1Unstructured, amount=3)
    >>> sum(int(m.weight_mask.sum()) for m in net)
    5
    """
    if not isinstance(parameters, Iterable):
        raise TypeError(f"[global_unstructured] expected (module, name) pairs as parameters, got {type_name(parameters)}")
    if importance_scores is not None and not isinstance(importance_scores, dict):
        raise TypeError(f"[global_unstructured] importance_scores must be of type dict, got {type_name(importance_scores)}")
    pairs, given = list(parameters), importance_scores or {}
    scores = [given.get((module, name), getattr(module, name)) for module, name in pairs]
    masks = [getattr(module, f"{name}_mask", T.ones_like(getattr(module, name))) for module, name in pairs]
    container = PruningContainer()
    container._tensor_name = "temp"
    method = pruning_method(**kwargs)
    method._tensor_name = "temp"
    container.add_pruning_method(method)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(f'[global_unstructured] Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found {method.PRUNING_TYPE}')
    with no_grad():
        flat = T.cat([T.flatten(s.detach()) for s in scores])
        final = container.compute_mask(flat, T.cat([T.flatten(m) for m in masks]))
    start = 0
    for module, name in pairs:
        value = getattr(module, name)
        custom_from_mask(module, name, T.reshape(final[start : start + value.numel()], tuple(value.shape)))
        start += value.numel()


def remove(module: Any, name: str) -> Any:
    """Make the pruning of a parameter permanent. Returns the module; ValueError if the parameter is not pruned."""
    for key, hook in list(_hooks(module, name).items()):
        hook.remove(module)
        del module._hook_dict("_forward_pre_hooks")[key]
        return module
    raise ArgumentError(f"[remove] Parameter '{name}' of module {module} has to be pruned before pruning can be removed")


def is_pruned(module: Any) -> bool:
    """Whether a parameter of the module, or of one inside of it, is pruned."""
    return any(_hooks(part) for part in module.modules())
