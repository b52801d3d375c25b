"""State that no attribute, variable or container shows, changed behind the back of a hybridized function, see `test_dependencies.py`."""

from __future__ import annotations

import abc
import builtins
import collections
import functools
import tempfile
import types
from pathlib import Path
from typing import Any

from calque import nn

CASES: dict[str, Any] = {}
REFUSED = {"file"}


def case(function: Any) -> Any:
    CASES[function.__name__.strip("_")] = function
    return function


def _cached(decorator: Any) -> Any:
    table = [2.0]

    @decorator
    def factor(k: int) -> float:
        return table[0] * k

    def change() -> None:
        """It is forgotten, and somebody else has it computed again."""
        factor.cache_clear()
        factor(1)

    factor(1)
    table[0] = 5.0
    return lambda x: x * factor(1), change


@case
def _cache() -> Any:
    return _cached(functools.cache)


@case
def _cache_with_a_limit() -> Any:
    return _cached(functools.lru_cache(2))


@case
def _list_in_a_cache() -> Any:
    @functools.lru_cache
    def factors(k: int) -> list[float]:
        return [float(k)]

    return lambda x: x * factors(2)[0], lambda: factors(2).append(factors(2).pop() + 1.0)


@case
def _single_dispatch() -> Any:
    @functools.singledispatch
    def factor(k: Any) -> float:
        return 2.0

    return lambda x: x * factor(3), lambda: factor.register(int, lambda k: 5.0)


@case
def _virtual_subclass() -> Any:
    class Kind(abc.ABC):  # noqa: B024 - others are registered with it
        pass

    class Other:
        pass

    other = Other()
    return lambda x: x * (2.0 if isinstance(other, Kind) else 3.0), lambda: Kind.register(Other)


@case
def _default_of_a_dict() -> Any:
    numbers: Any = collections.defaultdict(lambda: 2.0)

    def change() -> None:
        numbers.default_factory = lambda: 5.0

    return lambda x: x * numbers.default_factory(), change


@case
def _state_of_a_partial() -> Any:
    call = functools.partial(lambda k, x: x * k, 2.0)
    return lambda x: call(x), lambda: call.__setstate__((call.func, (5.0,), {}, {}))  # type: ignore[attr-defined]


@case
def _name_among_the_builtins() -> Any:
    builtins.FACTOR_OF_A_CASE = 2.0  # type: ignore[attr-defined]

    def change() -> None:
        builtins.FACTOR_OF_A_CASE = 5.0  # type: ignore[attr-defined]

    return lambda x: x * FACTOR_OF_A_CASE, change  # type: ignore[name-defined]  # noqa: F821


@case
def _attribute_that_hides_one_of_a_base() -> Any:
    class Base:
        factor = 2.0

    class Derived(Base):
        pass

    held = Derived()
    return lambda x: x * held.factor, lambda: setattr(Derived, "factor", 5.0)


@case
def _method_that_hides_one_of_a_base() -> Any:
    class Base(nn.Module):
        def scaled(self, x: Any) -> Any:
            return x * 2

        def forward(self, x: Any) -> Any:
            return self.scaled(x)

    class Derived(Base):
        pass

    return Derived(), lambda: setattr(Derived, "scaled", lambda self, x: x * 5)


@case
def _attributes_that_a_method_refuses_in_its_own_way() -> Any:
    class Table:
        def __init__(self) -> None:
            self.numbers = {"factor": 2.0}

        def __getattr__(self, name: str) -> Any:
            return self.__dict__["numbers"][name]  # a KeyError, where Python expects an AttributeError

    table = Table()
    return lambda x: x * table.factor, lambda: table.numbers.update(factor=5.0)


@case
def _file() -> Any:
    path = Path(tempfile.mkdtemp()) / "flag"
    return lambda x: x * (2.0 if path.exists() else 3.0), lambda: path.touch()


# What is not there, and comes later.


def _missing(text: str, put: Any, **names: Any) -> Any:
    """A function `call` of a text, and what puts something into its globals or into what these name."""
    scope: dict[str, Any] = {"__name__": "missing", **names}
    exec(text, scope)  # noqa: S102 - the texts below
    return scope["call"], lambda: put(scope)


@case
def _global_over_a_builtin() -> Any:
    return _missing("def call(x): return abs(x)", lambda scope: scope.update(abs=lambda x: x * 5))


@case
def _global_that_is_not_there() -> Any:
    text = "def call(x):\n  try: return x * factor\n  except NameError: return x"
    return _missing(text, lambda scope: scope.update(factor=5.0))


@case
def _attribute_of_a_module_that_is_not_there() -> Any:
    text = "def call(x):\n  try: return x * config.factor\n  except AttributeError: return x"
    return _missing(text, lambda scope: setattr(scope["config"], "factor", 5.0), config=types.ModuleType("config"))


@case
def _attribute_of_a_module_that_is_asked_for() -> Any:
    text = "def call(x): return x * 5 if hasattr(config, 'large') else x"
    return _missing(text, lambda scope: setattr(scope["config"], "large", True), config=types.ModuleType("config"))


@case
def _variable_that_is_not_assigned_yet() -> Any:
    def call(x: Any) -> Any:
        try:
            return x * factor
        except NameError:
            return x

    def change() -> None:
        nonlocal factor
        factor = 5.0

    if CASES is None:
        factor = 2.0
    return call, change


@case
def _variable_that_is_deleted() -> Any:
    factor = 2.0

    def call(x: Any) -> Any:
        try:
            return x * factor
        except NameError:
            return x

    def change() -> None:
        nonlocal factor
        del factor

    return call, change
