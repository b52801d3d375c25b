"""Containers of modules and parameters."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from calque.base.errors import DTypeError, OutOfRangeError
from calque.base.text import clipped, described, type_name
from calque.functional.common import is_tensor
from calque.nn.module import Module
from calque.nn.parameter import Parameter
from calque.replay.counts import Changes

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


def _position(index: Any, size: int) -> int:
    i = operator.index(index)
    if not -size <= i < size:
        raise OutOfRangeError(f"index {i} is out of range: expected {-size} to {size - 1}")
    return i % size


class _List(Module):
    """What Sequential and ModuleList share: children named 0, 1, 2, ..."""

    def _names(self) -> list[str]:
        return list(self._modules)

    def _rebuild(self, modules: Iterable[Any]) -> None:
        items = list(modules)
        self._modules.clear()
        for i, module in enumerate(items):
            self.add_module(str(i), module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __setitem__(self, index: Any, module: Any) -> None:
        setattr(self, self._names()[_position(index, len(self))], module)

    def __delitem__(self, index: Any) -> None:
        names = self._names()
        doomed = names[index] if isinstance(index, slice) else [names[_position(index, len(self))]]
        self._rebuild(m for name, m in list(self._modules.items()) if name not in doomed)

    def append(self, module: Any) -> Any:
        """Add one module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Any]) -> Any:
        """Add several modules at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Any) -> Any:
        """Put a module before position `index`."""
        items = list(self)
        if not -len(items) <= index <= len(items):
            raise OutOfRangeError(f"Index out of range: {index}; expected {-len(items)} to {len(items)}")
        items.insert(index, module)
        self._rebuild(items)
        return self

    def pop(self, key: Any = -1) -> Any:
        """Remove and return one module."""
        module = self[key]
        del self[key]
        return module

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError


class Sequential(_List):
    """Modules called one after the other. Takes modules, or one ordered dict of named modules; slices are Sequentials.

    >>> import calque
    >>> nn = calque.nn
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    >>> net.add(nn.Linear(3, 2), nn.Tanh())
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
      (2): Linear(in_features=3, out_features=2, bias=True)
      (3): Tanh()
    )
    >>> tuple(net(calque.ones(1, 4)).shape)
    (1, 2)
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for i, module in enumerate(args):
                self.add_module(str(i), module)

    def add(self, *layers: Any) -> "Sequential":
        """Add layers at the end."""
        self.extend(layers)
        return self

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            if module is None:
                raise DTypeError("[Sequential] expected layers to call one after the other, got None among them; nn.Identity() passes its input on")
            input = module(input)
        return input

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(OrderedDict(list(self._modules.items())[index]))
        return self._modules[self._names()[_position(index, len(self))]]

    def __add__(self, other: Any) -> "Sequential":
        if not isinstance(other, Sequential):
            raise TypeError(
                f"[Sequential] add operator supports only objects of Sequential class, but {type_name(other)} is given; wrap it: Sequential(...)"
            )
        return Sequential(*self, *other)

    def __iadd__(self, other: Any) -> "Sequential":
        if not isinstance(other, Sequential):
            raise TypeError(
                f"[Sequential] add operator supports only objects of Sequential class, but {type_name(other)} is given; wrap it: Sequential(...)"
            )
        return self.extend(other)  # type: ignore[no-any-return]

    def __mul__(self, times: int) -> "Sequential":
        if not isinstance(times, int):
            raise TypeError(f"[Sequential] unsupported operand type(s) for *: {type(self)} and {type(times)}; multiply by an int")
        return Sequential(*(list(self) * times))

    __rmul__ = __mul__


def _grouped(texts: list[str]) -> Iterator[tuple[int, int, str]]:
    """(first, last, text) of runs of equal texts."""
    start = 0
    for i in range(1, len(texts) + 1):
        if i == len(texts) or texts[i] != texts[start]:
            yield start, i - 1, texts[start]
            start = i


class ModuleList(_List):
    """A list whose modules are registered.

    >>> import calque
    >>> calque.nn.ModuleList([calque.nn.Linear(2, 2) for _ in range(3)])
    ModuleList(
      (0-2): 3 x Linear(in_features=2, out_features=2, bias=True)
    )
    """

    def __init__(self, modules: Iterable[Any] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self._modules.values())[index])
        return self._modules[str(_position(index, len(self)))]

    def __iadd__(self, modules: Iterable[Any]) -> "ModuleList":
        return self.extend(modules)  # type: ignore[no-any-return]

    def __add__(self, other: Iterable[Any]) -> "ModuleList":
        return ModuleList([*self, *other])

    def extend(self, modules: Iterable[Any]) -> Any:
        if not isinstance(modules, Iterable) or getattr(modules, "ndim", 1) == 0:
            raise TypeError(f"[ModuleList.extend] ModuleList.extend should be called with an iterable, but got {type_name(modules)}")
        return super().extend(modules)

    def __repr__(self) -> str:
        if not len(self):
            return f"{self._get_name()}()"
        lines = []
        for first, last, text in _grouped([repr(m) for m in self]):
            label = f"({first}): " if first == last else f"({first}-{last}): {last - first + 1} x "
            lines.append(("  " + label + text).replace("\n", "\n  "))
        return f"{self._get_name()}(\n" + "\n".join(lines) + "\n)"


class ModuleDict(Module):
    """A dict whose modules are registered."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        try:
            return self._modules[key]
        except KeyError:
            raise KeyError(clipped(str(key), 200)) from None

    def __setitem__(self, key: str, module: Any) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        Changes.epoch += 1
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Remove all modules."""
        Changes.epoch += 1
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Remove and return one module."""
        Changes.epoch += 1
        return self._modules.pop(key)

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def items(self) -> Any:
        """(name, module) pairs."""
        return self._modules.items()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def update(self, modules: Any) -> None:
        """Add modules from a mapping or from (name, module) pairs."""
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"[ModuleDict.update] ModuleDict.update should be called with an iterable of key/value pairs, but got {type_name(modules)}"
            )
        for key, module in modules.items() if isinstance(modules, (Mapping, ModuleDict)) else pairs("ModuleDict", modules):
            self[key] = module


def pairs(owner: str, items: Any) -> list[tuple[str, Any]]:
    """(name, value) pairs, all of them checked before the first is used."""
    found = list(items) if isinstance(items, Iterable) and not is_tensor(items) and getattr(items, "ndim", 1) != 0 else [items]
    for i, item in enumerate(found):
        if not isinstance(item, (tuple, list)) or len(item) != 2 or not isinstance(item[0], str):
            raise DTypeError(
                f"[{owner}.update] expected a dict or (name, value) pairs, got {described(item)} at index {i}; for values without names use "
                f"nn.{owner.removesuffix('Dict')}List(...)"
            )
    return found


def _as_parameter(value: Any) -> Any:
    return Parameter(value) if is_tensor(value) and not isinstance(value, Parameter) else value


class ParameterList(Module):
    """A list whose tensors become registered parameters; other values are kept as they are."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)([self[i] for i in range(*index.indices(len(self)))])
        return getattr(self, str(_position(index, len(self))))

    def __setitem__(self, index: Any, value: Any) -> None:
        setattr(self, str(_position(index, len(self))), _as_parameter(value))

    def append(self, value: Any) -> "ParameterList":
        """Add one value."""
        setattr(self, str(len(self)), _as_parameter(value))
        self._size += 1
        return self

    def extend(self, values: Iterable[Any]) -> "ParameterList":
        """Add several values."""
        if not isinstance(values, Iterable) or is_tensor(values):
            raise TypeError(f"[ParameterList.extend] ParameterList.extend should be called with an iterable, but got {type_name(values)}")
        for value in list(values):
            self.append(value)
        return self

    __iadd__ = extend

    def extra_repr(self) -> str:
        return "\n".join(_describe(str(i), value) for i, value in enumerate(self))


class ParameterDict(Module):
    """A dict whose tensors become registered parameters; other values are kept as they are."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(clipped(str(key), 200))
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._keys[key] = None
        setattr(self, key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def keys(self) -> Any:
        """The names."""
        return self._keys.keys()

    def items(self) -> Any:
        """(name, value) pairs."""
        return ((key, self[key]) for key in self._keys)

    def values(self) -> Any:
        """The values."""
        return (self[key] for key in self._keys)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a name, or `default`."""
        return self[key] if key in self else default  # noqa: SIM401 - that is `get` itself

    def pop(self, key: str) -> Any:
        """Remove and return one value."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last (name, value) pair."""
        key = list(self._keys)[-1] if self._keys else ""
        if not self._keys:
            raise KeyError("[ParameterDict] popitem(): dictionary is empty")
        return key, self.pop(key)

    def clear(self) -> None:
        """Remove all values."""
        for key in list(self._keys):
            del self[key]

    def copy(self) -> Any:
        """A new ParameterDict of the same values."""
        return ParameterDict({key: self[key] for key in self._keys})

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of a name, which is first set to `default` if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> Any:
        """A new ParameterDict of these names, each with the value `default`."""
        return ParameterDict(dict.fromkeys(keys, default))

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._keys))

    def __or__(self, other: Any) -> Any:
        made = self.copy()
        made.update(other)
        return made

    def __ror__(self, other: Any) -> Any:
        made = ParameterDict(other)
        made.update(self)
        return made

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def update(self, parameters: Any) -> None:
        """Add values from a mapping or from (name, value) pairs. Those of a plain dict come in the order of their names, as in PyTorch: optimizers
        count parameters in this order."""
        if isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict):
            parameters = sorted(parameters.items())
        for key, value in parameters.items() if isinstance(parameters, (Mapping, ParameterDict)) else pairs("ParameterDict", parameters):
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(_describe(key, value, legacy=True) for key, value in self.items())


_LEGACY = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int", "bool": "Bool"}


def _describe(name: str, value: Any, legacy: bool = False) -> str:
    """One line of a container's text; PyTorch names the element type in two ways."""
    if not is_tensor(value):
        return f"  ({name}): Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    dtype = value._layout.dtype
    text = f"torch.{_LEGACY.get(dtype.name, dtype.name)}Tensor" if legacy else repr(dtype)
    return f"  ({name}): {kind} containing: [{text} of size {'x'.join(str(n) for n in value._layout.shape)}]"
