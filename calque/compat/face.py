"""The modules that programs see under PyTorch's names.

A face has no content of its own. A name is looked up, once, in
1. the module of the same path in `calque/compat/torch/`, or in the table of `handed_on.py`: what exists only because programs written for PyTorch
   mention it,
2. the module (or object) of the same path in Calque,
3. where PyTorch keeps a name in an inner module, such as `torch.nn.modules.batchnorm`, and lists it there: the nearest outer one that has it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from types import FunctionType, ModuleType
from typing import Any

import calque
from calque.compat import finder
from calque.compat.handed_on import OURS, own_module
from calque.compat.methods import attach
from calque.compat.missing import pytorch_has, pytorch_names, refusal
from calque.compat.refused import Settings
from calque.nn.functional.current import CALLED
from calque.replay.counts import Changes

NOTHING = object()
# Modules whose functions layers look up at every call, as PyTorch's do -> those functions, or all.
CALLED_BY_NAME: dict[str, tuple[str, ...] | None] = {"torch": CALLED, "torch.nn.functional": None, "torch.nn.init": None}
_ORIGINALS: dict[tuple[str, str], Any] = {}  # (module, name) that a program has given another value -> Calque's own
_FACES: dict[str, Any] = {}


def _offered(path: str, name: str, source: Any) -> bool:
    """Whether a name of a module of Calque's is one of the module that stands for it: PyTorch has it, or (elsewhere) Calque lists it."""
    if path.partition(".")[0] == finder.ROOT:
        return pytorch_has(path, name)
    if name in getattr(source, "__all__", ()):
        return True
    return isinstance(source, ModuleType) and hasattr(source, "__path__") and importlib.util.find_spec(f"{source.__name__}.{name}") is not None


def _switches(path: str) -> Settings | None:
    """The switches that stand in one of our modules for a module of PyTorch's, such as `torch._dynamo.config`."""
    above, _, last = path.rpartition(".")
    own = own_module(above) if above else None
    found = getattr(own, last, None) if own is not None and last in own.__all__ else None
    return found if isinstance(found, Settings) else None


def _calques(path: str) -> Any:
    """What Calque itself has under a dotted path below `torch`, or None. Modules that PyTorch does not have are Calque's inner ones."""
    root, *names = path.split(".")
    found: Any = calque if root == finder.ROOT else getattr(calque, root.removeprefix(finder.ROOT), None)
    if found is None:
        return None  # all of it is in `calque/compat/`
    for k, name in enumerate(names):
        if not _offered(".".join([root, *names[:k]]), name, found):
            return None
        inner = getattr(found, name, None)
        if inner is None and isinstance(found, ModuleType):
            place = f"{found.__name__}.{name}"
            try:
                inner = importlib.import_module(place) if importlib.util.find_spec(place) is not None else None
            except (ModuleNotFoundError, ValueError):  # `found` is a module without a folder, or not a module of files
                inner = None
        if inner is None:
            return None
        found = inner
    return found


@functools.cache
def exists(path: str) -> bool:
    """Whether there is a module of this name: one of ours, or one of PyTorch's that has at least one name here."""
    if path in finder.VERSIONS or own_module(path) is not None or _switches(path) is not None:
        return True
    there = _calques(path)
    if there is not None and (isinstance(there, ModuleType) or type(there).__module__.startswith("calque.")):  # or settings
        return not callable(there)
    if path not in pytorch_names():
        return False
    above, _, last = path.rpartition(".")
    outer = face(above) if above not in finder.VERSIONS and exists(above) else None
    return isinstance(outer, Face) and any(name != last and outer.find(name) is not NOTHING for name in pytorch_names()[path])


def face(path: str) -> Any:
    """The module `path`, made when it is first asked for. Where Calque has settings of that name (of a backend), it is those."""
    found = _FACES.get(path)
    if found is None:
        if path in finder.VERSIONS:
            attach()
        there = _switches(path) or _calques(path) if own_module(path) is None else None
        found = _FACES[path] = Face(path) if there is None or isinstance(there, ModuleType) or callable(there) else there
    return found


def _module(path: str) -> Any:
    """The module `path` as `import` gives it, if it can be imported."""
    return importlib.import_module(path) if finder.installed() else face(path)


# Packages with a module for each class or few -> classes that modules of theirs have imported, and where libraries take them from.
BASES = {
    "torch.distributions": ("Distribution",), "torch.nn.modules": ("Module",), "torch.optim": ("Optimizer",),
    "torch.utils.data": ("BatchSampler", "Dataset", "IterableDataset", "RandomSampler", "Sampler", "SequentialSampler"),
}  # fmt: skip


def _shown(path: str, name: str, source: Any) -> bool:
    """Whether a module of Calque's offers a name, rather than having imported it for itself."""
    listed = getattr(source, "__all__", None)
    if listed is not None and name in listed or pytorch_has(path, name):
        return True
    return listed is None and not name.startswith("_")


def _names(module: ModuleType) -> dict[str, Any]:
    """The names that a face has looked up so far."""
    return vars(ModuleType)["__dict__"].__get__(module)  # type: ignore[no-any-return]  # the property of Face stands in front of it


@functools.cache
def _listed(path: str) -> list[str]:
    """The names of a module for texts of errors: libraries ask with `hasattr` in their loops, and to list all names takes milliseconds."""
    return dir(face(path))


class Face(ModuleType):
    """A module of PyTorch's, made of what Calque has."""

    def __init__(self, path: str) -> None:
        super().__init__(path, f"PyTorch's module `{path}`, as Calque has it.")
        self._sources = (own_module(path), _calques(path))

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """Every name with its value: libraries go through the classes of a module that way."""
        for name in dir(self):
            getattr(self, name)
        return _names(self)

    def __reduce__(self) -> Any:
        """By its name: libraries hash functions by what they would pickle of them, and dill knows modules of Python's own class alone."""
        return importlib.import_module, (self.__name__,)

    def find(self, name: str) -> Any:
        """The value of a name, or `NOTHING`."""
        path = self.__name__
        own, calques = self._sources
        if own is not None and name in own.__all__:
            found = getattr(own, name)
            inner = isinstance(found, Settings) or found is sys.modules.get(f"{OURS}{path}.{name}", NOTHING)
            return _module(f"{path}.{name}") if inner else found
        if own_module(f"{path}.{name}") is not None or exists(f"{path}.{name}") and not callable(getattr(calques, name, None)):
            return _module(f"{path}.{name}")
        if own is not None and (ask := getattr(own, "find", None)) is not None and (found := ask(name, NOTHING)) is not NOTHING:
            return found
        if calques is not None and _shown(path, name, calques):
            found = getattr(calques, name, NOTHING)
            if found is not NOTHING and not isinstance(found, ModuleType):  # a module that PyTorch does not have is an inner one of Calque's
                return found
        outer = path.rpartition(".")[0]
        if outer not in ("", *finder.VERSIONS) and pytorch_has(path, name) and isinstance(above := face(outer), Face):
            found = above.find(name)
            return NOTHING if found is self else found
        if name in BASES.get(outer, ()):
            return getattr(face(outer), name)
        return NOTHING

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [listed for listed in dir(self) if not listed.startswith("_")]
        own = self._sources[0]
        special = name.startswith("__") and name.endswith("__") and (own is None or name not in own.__all__)
        found = NOTHING if special else self.find(name)
        if found is NOTHING:
            if name.startswith("__"):
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
            raise refusal(self.__name__, name, _listed(self.__name__))
        if found.__class__ is not FunctionType or "_records" not in found.__dict__:  # what stands there while `fx` traces stays for no longer
            super().__setattr__(name, found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        """Give a name another value, where layers look functions up when they are called in Calque's module as well."""
        if isinstance(value, Face) and callable(self.find(name)):
            return  # `import` puts a module into the one above, where PyTorch has a function of the same name, as for `torch.nn.utils.weight_norm`
        called = CALLED_BY_NAME.get(self.__name__, ())
        if not name.startswith("_") and (called is None or name in called):
            calques = self._sources[1]
            now = getattr(self, name, NOTHING)
            if now is not NOTHING and getattr(calques, name, NOTHING) is now:
                setattr(calques, name, value)
                Changes.epoch += 1  # recordings look again at what they depend on
                _ORIGINALS.setdefault((self.__name__, name), now)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Forget a value that a program gave to a name: the next look finds Calque's own."""
        super().__delattr__(name)
        own = _ORIGINALS.get((self.__name__, name), NOTHING)
        if own is not NOTHING:
            setattr(self._sources[1], name, own)
            Changes.epoch += 1

    def __dir__(self) -> list[str]:
        own, calques = self._sources
        names = {name for name in _names(self) if name not in ("_sources", "_replaced")} | set(own.__all__ if own is not None else ())
        if calques is not None:
            names |= {name for name in dir(calques) if _shown(self.__name__, name, calques)}
        listed = pytorch_names().get(self.__name__, frozenset())
        inner = {path.rpartition(".")[2] for path in pytorch_names() if path.rpartition(".")[0] == self.__name__ and exists(path)}
        names = {name for name in names if _offered(self.__name__, name, calques) or not isinstance(getattr(calques, name, None), ModuleType)}
        return sorted(names | inner | {name for name in listed - names if self.find(name) is not NOTHING})

    def __repr__(self) -> str:
        return f"<module {self.__name__!r} of Calque>"
