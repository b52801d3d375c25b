"""What a replay depends on besides its arguments: the Python values and tensors that a function can reach, as they were.

Reached from a function are: the globals its code names, the variables it closes over, its defaults, attributes of objects (modules, optimizers
and plain objects), items of lists, tuples and dicts, and the same of every Python function and class of the user's that it reaches. Numbers,
strings, booleans, None and the like are compared by value, everything else by identity. Attributes of modules are looked at again only after
some module changed (`Changes.epoch`), everything else at every call.
"""

from __future__ import annotations

import abc
import builtins
import collections
import dis
import functools
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

from calque.base.asked import ASKED
from calque.base.device import Device
from calque.base.dtypes import DType
from calque.hybrid.handles import NOT_NOTES
from calque.hybrid.impure import (
    ASKING,
    CALLED,
    EXACT_BUILTINS,
    IMPURE_BUILTINS,
    IMPURE_MODULES,
    LOCKS,
    OF_FILES,
    OF_INTERPRETER,
    OF_PROCESS,
    TRANSPARENT,
    TRANSPARENT_MODULES,
)
from calque.hybrid.origin import (
    MADE,
    MISSING,
    cached_results,
    content,
    contents,
    foreign,
    foreign_class,
    identities,
    is_error,
    of_calque,
    slots,
    unnamed,
    user_class,
)
from calque.nn.functional.current import looked_up
from calque.nn.module import Module
from calque.observe.source import inside_package
from calque.optim.optimizer import Optimizer, cycles
from calque.replay.counts import Changes
from calque.replay.macro import key_of
from calque.tensor import TENSOR_TYPES, Tensor

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), DType, Device, slice, range, frozenset)
_RATES, _MOMENTA = ("lr", "initial_lr"), ("momentum", "betas")  # options of optimizers that schedules change
Fact = tuple[Any, ...]  # (what, object, details ...), see `COMPARE`
_LIMIT, _DEPTH = 20_000, 60  # values and levels; what reaches more runs as it is written


class Refused(Exception):
    """The function cannot be hybridized; the text says why."""


class Guards:
    """A snapshot of everything reached, and the check that it still holds."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []  # compared at every call, by the compiled module where it can
        self.others: list[Fact] = []  # compared at every call by Python
        self.modules: list[Fact] = []  # compared if some module has changed
        self.tensors: list[Tensor] = []
        self.epoch = Changes.epoch
        self.inexact = ""  # why Python may use a number without anybody noticing, if it may
        self.functions = False  # whether there are some of the user's
        self._changing: set[str] = set()  # attributes that replays change
        self._own: list[Fact] = []  # attributes of the user's modules
        self._items: list[Any] = []  # of lists, tuples and the like
        self._rates: list[dict[str, Any]] = []  # groups of optimizers
        self._options: list[dict[str, Any]] = []  # and their defaults
        self._seen: dict[Any, Any] = {}
        self._paths = False  # whether there are paths, which may ask for files
        self.asks = False  # whether code may find out that a tensor has an attribute
        self._named: set[str] = set(CALLED)  # attributes that code names
        self._held: dict[int, tuple[types.ModuleType, set[str]]] = {}  # modules that are not globals, with the names looked at
        self._classes: list[tuple[Any, Any, set[str]]] = []  # user's classes: attributes, those that an instance uses unasked, done

    # ---------------------------------------------------------------------------------------------------------- checking

    def hold(self) -> bool:
        """Whether everything is as it was."""
        return _hold(self.facts) and self.rest_holds()

    def rest_holds(self) -> bool:
        """Whether that is as it was which is not among the `facts`."""
        if self.others and not _hold(self.others):
            return False
        if self.epoch != Changes.epoch:
            if not _hold(self.modules):
                return False
            self.epoch = Changes.epoch
        return True

    def reached(self, value: Any) -> bool:
        """Whether the function can reach this object."""
        return self._seen.get(id(value)) is value

    def first_change(self) -> str:
        """The name of something that changed, for the statistics."""
        for what, held, *more in (*self.facts, *self.modules):
            if what in ("entry", "absent") and not COMPARE[what](held, *more):
                key = more[0]
                return f"the state of a {type(key).__name__}" if isinstance(key, Tensor) else str(key)  # no values are read for a statistic
        return "a variable, a function or the length of a container"

    # -------------------------------------------------------------------------------------------------------- collecting

    def collect(self, roots: list[Any]) -> None:
        """Add everything that can be reached from the roots."""
        for root in roots:
            self.reach(root)
        size = -1
        while size != len(self._seen) + len(self._named):  # code names methods, which name others
            size = len(self._seen) + len(self._named)
            for module, known in list(self._held.values()):
                if new := (self._named | {"__getattr__"}).intersection(module.__dict__) - known:
                    known |= new
                    self._python_module(module, sorted(new), 1)
            for attributes, unasked, done in list(self._classes):
                for name in [n for n in attributes if n not in done and (n in self._named or n in unasked or unnamed(attributes, n, self._named))]:
                    done.add(name)
                    self._attribute(attributes, name)
        for entry in self._own:  # what code names may be written past `__setattr__`
            (self.facts if entry[2] in self._named else self.modules).append(entry)
        self._require_repeatable()
        self.asks = not self._named.isdisjoint(ASKING)
        read = self._changing & self._named
        if read:
            raise Refused(f"reads {min(read)}, which replays change")
        for defaults in self._options if "defaults" in self._named else ():
            self.facts += [("entry", defaults, name, value) for name, value in defaults.items()]
        for group in self._rates if self._named & {*_RATES, *_MOMENTA} else ():
            self.facts += [("entry", group, name, group[name]) for name in _RATES + _MOMENTA if name in group]

    def _require_repeatable(self) -> None:
        """Refuse code that asks for files or takes what threads wait for: a replay would not, and while one records no other thread trains."""
        if self._paths and not self._named.isdisjoint(OF_FILES):
            raise Refused("asks for files")
        entries = [fact for fact in (*self.facts, *self.others, *self.modules) if fact[0] in ("entry", "attribute")]
        found = [value for _, _, key, value in entries if key in self._named]
        found += [fact[2] for fact in self.facts if fact[0] == "cell"]
        if any(isinstance(value, LOCKS) for value in (*found, *self._items)):
            raise Refused("takes a lock or waits for another thread")

    def reach(self, value: Any, depth: int = 0) -> None:
        """Add what can be reached from a value that the function can see."""
        kind = value.__class__
        if isinstance(value, types.ModuleType):  # what code names of it is guarded when all names are known
            self._library(value)
            self._held.setdefault(id(value), (value, set()))
            return
        if kind in PLAIN or id(value) in self._seen:
            if kind is complex:
                self._unknown("reaches a complex number")
            return
        if depth > _DEPTH or len(self._seen) > _LIMIT:
            raise Refused("reaches too many Python objects")
        self._seen[id(value)] = value
        if kind in TENSOR_TYPES and kind not in ASKED:
            self.tensors.append(value)
            self._tensor(value, depth)
        elif isinstance(value, Tensor):
            raise Refused(f"reaches a {kind.__name__}, whose parts are not followed")
        else:
            self._inside(value, depth)

    def _tensor(self, value: Tensor, depth: int) -> None:
        """The attributes that somebody has put on a tensor."""
        held = value.__dict__
        self.facts.append(("length", held, len(held)))
        for name in held.keys() - NOT_NOTES:
            self.facts.append(("entry", held, name, held[name]))
            self.reach(held[name], depth + 1)

    def _inside(self, value: Any, depth: int) -> None:
        """Add what can be reached from an object."""
        if isinstance(value, (list, tuple, dict, collections.deque)) and user_class(type(value)):
            self._kind(value)
        if value.__class__ in (types.FunctionType, types.MethodType):
            self.reach(getattr(value, "__self__", None), depth + 1)
            self.function(getattr(value, "__func__", value), depth)  # type: ignore[arg-type]
        elif isinstance(value, Module):
            self._module(value, depth)
        elif isinstance(value, Optimizer):
            self._optimizer(value, depth)
        elif isinstance(value, (list, tuple, collections.deque)):
            if any(isinstance(getattr(value.__class__, name), types.FunctionType) for name in ("__len__", "__iter__")):
                raise Refused(f"reaches a {value.__class__.__name__}, whose own code says what is in it")
            self._sequence(value)
            for item in value:
                self.reach(item, depth + 1)
            self._attributes(value, depth)
        elif isinstance(value, (dict, types.MappingProxyType)):
            self.others.append(("order", value, tuple(value)))
            self._mapping(value, depth, self.facts, False)
            self._members(value, ("default_factory",) if isinstance(value, collections.defaultdict) else (), depth)
            self._attributes(value, depth)
        elif isinstance(value, functools.partial):
            self._members(value, ("func", "args"), depth)
            self._inside(value.keywords, depth + 1)
            self._attributes(value, depth)
        elif isinstance(value, type):
            self._class(value, True)
        else:
            self._object(value, depth)

    def function(self, function: types.FunctionType, depth: int = 0) -> None:
        """Everything that the code of a Python function names."""
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.reach(wrapped, depth + 1)
        code = function.__code__
        if (function.__module__ or "").split(".")[0] in IMPURE_MODULES:
            raise Refused(f"calls {function.__name__}() of the module {function.__module__!r}")
        if foreign(code.co_filename):
            self._asks(function)
            if not inside_package(code.co_filename) and not code.co_filename.startswith("<"):
                self._unknown(f"calls {function.__qualname__}")
                self._mapping(function.__dict__, depth, self.facts)  # as of `functools.singledispatch`
                return
            for found in contents(function):  # decorators of ours close over functions of the user's
                if callable(found[1]):
                    self.reach(found[1], depth + 1)
            for taken in looked_up(function):
                self._entry(*taken, depth)
            return
        self.facts.append(("function", function, code, function.__defaults__, function.__kwdefaults__))
        self.functions = True
        if function.__kwdefaults__:
            self._mapping(function.__kwdefaults__, depth, self.facts)
        self._mapping(function.__dict__, depth, self.facts)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.reach(default, depth + 1)
        for cell, found in contents(function):
            self.facts.append(("unassigned", cell) if found is MISSING else ("cell", cell, found))
            if found is not MISSING:
                self.reach(found, depth + 1)
        self._names(code, function.__globals__, depth)

    def _names(self, code: types.CodeType, scope: dict[str, Any], depth: int) -> None:
        names = list(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._names(constant, scope, depth)
            elif isinstance(constant, complex):
                self._unknown("computes with complex numbers")
        self._named.update(names)
        self._named.update(c for c in code.co_consts if isinstance(c, str) and c.isidentifier())  # getattr(x, "name")
        instructions = list(dis.get_instructions(code))
        if any(isinstance(c, (str, tuple)) and "%" in str(c) for c in code.co_consts) and any(i.argrepr in ("%", "%=") for i in instructions):
            self._unknown("formats with %")
            self._named.add("format")
        if any(i.opname.startswith("FORMAT_") for i in instructions):  # f-strings
            self._named.add("format")
        for name in {i.argval for i in instructions if i.opname == "IMPORT_NAME"}:
            found = sys.modules.get(name)
            if found is None:
                raise Refused(f"imports {name}")
            self._python_module(found, names, depth)
        for name in {i.argval for i in instructions if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}:
            if name in scope:
                self._global(scope, name, names, depth)
            else:
                self._absent(scope, name)
                self._name_of_python(name, names, depth)

    def _absent(self, scope: dict[str, Any], name: str) -> None:
        """A name that code looks for in vain: it may come later."""
        if (id(scope), name) not in self._seen:
            self._seen[id(scope), name] = scope
            self.facts.append(("absent", scope, name))

    def _name_of_python(self, name: str, names: list[str], depth: int) -> None:
        """A name that code finds among the built-in ones, where others may be put as well."""
        if name in IMPURE_BUILTINS and hasattr(builtins, name):
            raise Refused(f"calls {name}()")
        if name not in EXACT_BUILTINS and not is_error(getattr(builtins, name, None)):
            self._unknown(f"calls {name}()")
            if name in vars(builtins):
                self._global(vars(builtins), name, names, depth)
            else:
                self._absent(vars(builtins), name)

    def _unknown(self, reason: str) -> None:
        """Python may use a float without its operators: what it read is then compared as a whole."""
        self.inexact = self.inexact or reason

    def _library(self, module: types.ModuleType) -> None:
        file = getattr(module, "__file__", None)
        if file is None or (foreign(file) and not inside_package(file)):
            self._unknown(f"uses the module {module.__name__!r}")

    def _global(self, scope: dict[str, Any], name: str, names: list[str], depth: int) -> None:
        value = scope[name]
        self.facts.append(("entry", scope, name, value))
        if isinstance(value, types.ModuleType):
            self._python_module(value, names, depth)
        else:
            source = getattr(value, "__module__", None) or type(getattr(value, "__self__", None)).__module__
            if callable(value) and isinstance(source, str) and source.split(".")[0] in IMPURE_MODULES:
                raise Refused(f"calls {name}() of the module {source!r}")
            self.reach(value, depth + 1)

    def _python_module(self, module: types.ModuleType, names: list[str], depth: int) -> None:
        root = module.__name__.split(".")[0]
        self._paths = self._paths or root == "pathlib"
        if root in IMPURE_MODULES:
            raise Refused(f"uses the module {module.__name__!r}")
        if root == "numpy" and "random" in names:
            raise Refused("uses the random numbers of NumPy")
        if root == "sys" and not OF_INTERPRETER.isdisjoint(names):
            raise Refused("asks the interpreter for frames, references or limits")
        self._library(module)
        if (id(module), id(names)) in self._seen:
            return
        self._seen[id(module), id(names)] = (module, names)
        file = getattr(module, "__file__", None)
        own = file is not None and not foreign(file)
        space = module.__dict__
        self.facts.append(("length", space, len(space)))  # code may find out that something is not there, which may come later
        if isinstance(found := space.get("__getattr__"), types.FunctionType) and not foreign(found.__code__.co_filename):
            self._global(space, "__getattr__", names, depth + 1)
        for name in filter(space.__contains__, names):
            value = space[name]
            if own:
                self._global(space, name, names, depth + 1)
            elif not name.startswith("__"):  # trusted to depend on arguments alone, but somebody may put another one there
                self._entry(space, name, value, depth)
                if isinstance(value, types.ModuleType):
                    self._python_module(value, names, depth + 1)

    def _entry(self, space: dict[str, Any], name: str, value: Any, depth: int) -> None:
        """A function of a module that is not the user's. One that the user has put there may do more than what is recorded."""
        if (id(space), name) not in self._seen:
            self._seen[id(space), name] = value
            self.facts.append(("entry", space, name, value))
            self._asks(value)
            if isinstance(value, types.FunctionType) and not foreign(value.__code__.co_filename):
                self.reach(value, depth + 1)

    def _asks(self, value: Any) -> None:
        """Functions of ours that tell how the process stands do not depend on their arguments alone."""
        if getattr(value, "__name__", None) in OF_PROCESS and (getattr(value, "__module__", None) or "").split(".")[0] == "calque":
            raise Refused(f"calls {value.__name__}(), which tells how the process stands")

    def _mapping(self, mapping: Any, depth: int, facts: list[Fact], sized: bool = True) -> None:
        if sized:
            facts.append(("length", mapping, len(mapping)))
        for key, value in mapping.items():
            facts.append(("entry", mapping, key, value))
            self.reach(value, depth + 1)

    def _sequence(self, value: Any) -> None:
        """The items of a list or the like; those of a tuple cannot change."""
        self._items += value
        if not isinstance(value, tuple):
            (self.facts if value.__class__ is list else self.others).append(("items", value, tuple(value)))

    def _class(self, kind: type, made: bool) -> None:
        """A class of the user's: what code names of it and of its bases. `made`: it is not only the class of an object, code may call it."""
        root = kind.__module__.split(".")[0]
        if made and root in IMPURE_MODULES:
            raise Refused(f"uses {kind.__name__} of the module {kind.__module__!r}")
        known = kind.__name__ in EXACT_BUILTINS or is_error(kind) if root == "builtins" else of_calque(kind)
        if not known and root != "__main__" and foreign(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<frozen"):
            self._unknown(f"reaches a {root}.{kind.__name__}")
        self._paths = self._paths or root == "pathlib"
        if made and isinstance(kind, abc.ABCMeta):  # what counts as an instance of it
            self.others.append(("answer", abc.get_cache_token, abc.get_cache_token()))
        for base in kind.__mro__:
            if not foreign_class(base):
                self.facts.append(("length", vars(base), len(vars(base))))  # a new attribute hides one of a class behind it
                layer = not made and issubclass(kind, (Module, Optimizer))  # hardly made anew from one that exists
                self._classes.append((vars(base), MADE if made else (), set(MADE) if layer else set()))
        if user_class(type(kind)):
            self._kind(kind)

    def _attribute(self, attributes: Any, name: str) -> None:
        """An attribute of a class that code names."""
        value = attributes[name]
        self.facts.append(("entry", attributes, name, value))
        if isinstance(value, (staticmethod, classmethod)):
            self.reach(value.__func__, 1)
        elif isinstance(value, property):
            for part in (value.fget, value.fset):
                self.reach(part, 1)
        elif not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            self.reach(value, 1)

    def _module(self, module: Any, depth: int) -> None:
        if module._hooked:
            raise Refused("has hooks")
        self._kind(module)
        own = module.__dict__
        self.modules += [("length", own, len(own)), ("class", module, type(module))]
        for taken in looked_up(type(module).forward):
            self._entry(*taken, depth)
        entries = self.modules if type(module).__module__.split(".")[0] == "calque" else self._own
        for name, value in own.items():
            if name in ("_parameters", "_buffers", "_modules"):
                self.modules.append(("entry", own, name, value))
                self._mapping(value, depth, self.modules)
            elif name not in ("_hybrid", "_non_persistent_buffers_set"):
                entries.append(("entry", own, name, value))
                self.reach(value, depth + 1)

    def _optimizer(self, optimizer: Optimizer, depth: int) -> None:
        """Options except the learning rate, which replays ask for; state tensors and dicts."""
        own = optimizer.__dict__
        self.facts += [("entry", own, name, own[name]) for name in ("state", "param_groups")]
        self._kind(optimizer)
        self._options.append(own["defaults"])
        self._sequence(optimizer.param_groups)
        for group in optimizer.param_groups:
            numbers = _RATES + _MOMENTA if cycles(group) else _RATES
            self.facts += [("entry", group, name, value) for name, value in group.items() if name not in (*numbers, "params")]
            self._sequence(group["params"])
            self._rates.append(group)
            for parameter in group["params"]:
                self.reach(parameter, depth + 1)
        self.facts.append(("length", optimizer.state, len(optimizer.state)))
        for parameter, values in optimizer.state.items():
            self.facts += [("entry", optimizer.state, parameter, values), ("length", values, len(values))]
            for name, value in values.items():
                if isinstance(value, Tensor):
                    self.facts.append(("entry", values, name, value))
                    self.reach(value, depth + 1)
        for name, value in own.items():
            if name.endswith("_hooks") and isinstance(value, collections.OrderedDict):
                self.facts.append(("length", value, len(value)))

    def _builtin(self, value: Any, depth: int) -> None:
        """A function in C: of a module, or a method of something."""
        owner, module = value.__self__, (getattr(value, "__module__", None) or "").lstrip("_").split(".")[0]
        if module in IMPURE_MODULES or (module == "builtins" and value.__name__ in IMPURE_BUILTINS):
            raise Refused(f"calls {value.__name__}() of the module {module!r}")
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.reach(owner, depth + 1)

    def _object(self, value: Any, depth: int) -> None:
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._builtin(value, depth)
        if isinstance(value, (types.GeneratorType, types.CoroutineType)) or hasattr(type(value), "__next__"):
            raise Refused(f"reaches an iterator ({type(value).__name__})")
        if type(value).__module__.split(".")[0] in ("numpy", "random"):
            raise Refused(f"reaches a {type(value).__module__}.{type(value).__name__}")
        if isinstance(value, set):
            if any(item.__class__ not in PLAIN for item in value):
                raise Refused("reaches a set of objects")
            self.others.append(("copy", value, frozenset(value)))
            return
        if isinstance(value, bytearray):
            self.others.append(("copy", value, bytes(value)))
            return
        if isinstance(value, threading.local):
            raise Refused("reaches state of a thread (threading.local)")
        if isinstance(value, functools._lru_cache_wrapper) and not foreign(value.__wrapped__.__code__.co_filename):
            self.others.append(("answer", functools.partial(identities, value), identities(value)))
            self.reach(cached_results(value), depth + 1)
        self._kind(value)
        kind = type(value)
        if not (self._attributes(value, depth) or isinstance(value, TRANSPARENT) or of_calque(kind) or user_class(kind)):
            if kind.__module__.split(".")[0] not in TRANSPARENT_MODULES:
                raise Refused(f"reaches a {kind.__module__}.{kind.__qualname__}, whose state cannot be compared")

    def _attributes(self, value: Any, depth: int) -> bool:
        """Attributes of an object, wherever they are kept; False if there are none."""
        known = False
        attributes = getattr(value, "__dict__", None)
        internal = getattr(type(value), "not_guarded", None)
        if internal is not None and isinstance(attributes, dict):
            shown = {name: found for name, found in attributes.items() if name not in internal}
            self.facts += [("entry", attributes, name, found) for name, found in shown.items()]
            self._mapping(shown, depth, [])
            known = True
        elif isinstance(attributes, dict):
            changing = getattr(type(value), "replayed_state", ())
            if changing:
                self._replayed_object(attributes, attributes.keys() if changing is True else changing, depth)
            else:
                self.facts.append(("class", value, type(value)))
                self._mapping(attributes, depth, self.facts)
            known = True
        names = slots(type(value))
        self._members(value, names, depth)
        return known or bool(names)

    def _members(self, value: Any, names: Sequence[str], depth: int) -> None:
        """Attributes that an object keeps outside of a dict."""
        for name in names:
            found = getattr(value, name, MISSING)
            self.others.append(("attribute", value, name, found))
            self.reach(found, depth + 1)

    def _replayed_object(self, attributes: dict[str, Any], changing: Any, depth: int) -> None:
        """An object of ours some of whose attributes replays keep up to date; code that reads them by name cannot be replayed."""
        for name, value in attributes.items():
            if name not in changing:
                self.facts.append(("entry", attributes, name, value))
            if name not in changing or isinstance(value, Optimizer):
                self.reach(value, depth + 1)
            else:
                self._changing.add(name)

    def _kind(self, value: Any) -> None:
        kind = type(value)
        if ("class", id(kind)) not in self._seen:
            self._seen["class", id(kind)] = kind
            self._class(kind, False)


def _same(a: Any, b: Any) -> bool:
    """Equal plain values of one type."""
    return a.__class__ is b.__class__ and a.__class__ in PLAIN and bool(key_of(a) == key_of(b))


def _are(found: Any, values: tuple[Any, ...]) -> bool:
    return len(found) == len(values) and all(a is b or _same(a, b) for a, b in zip(found, values, strict=True))


# By kind of fact, whether it still holds: the twin of `native/unchanged.c` for what may be among the `facts`, and those that only Python knows.
COMPARE: dict[str, Callable[..., bool]] = {
    "entry": lambda mapping, key, value: (found := mapping.get(key, MISSING)) is value or _same(found, value),
    "absent": lambda mapping, key: key not in mapping,
    "items": _are,
    "cell": lambda cell, value: (found := content(cell)) is value or _same(found, value),
    "unassigned": lambda cell: content(cell) is MISSING,
    "length": lambda sized, length: len(sized) == length,
    "function": lambda f, code, defaults, named: f.__code__ is code and f.__defaults__ is defaults and f.__kwdefaults__ is named,
    "order": lambda mapping, keys: len(mapping) == len(keys) and tuple(mapping) == keys,
    "copy": lambda live, copy: bool(live == copy),
    "class": lambda held, kind: held.__class__ is kind,
    "answer": lambda ask, answer: bool(ask() == answer),
    "attribute": lambda held, name, value: (found := getattr(held, name, MISSING)) is value or _same(found, value),
}


def _hold(facts: list[Fact]) -> bool:
    for fact in facts:
        if not COMPARE[fact[0]](*fact[1:]):
            return False
    return True
