"""One module of IR text cut into units, so that a large library compiles on all cores and only what is called is compiled.

Functions marked `noinline` may stand in another unit than their callers; the others are copied into every unit that calls them. So a
unit's code is what it would be in the whole module, up to what LLVM infers across functions that it may not inline. A function that only one
unit calls stands in that unit: it is needed whenever the unit is, and each module of its own costs LLVM as much as a small function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from functools import cache

from calque.base.dataclass import dataclass

_NAME = re.compile(r"@([\w.$]+)")
_DEFINITION = re.compile(r"define [^\n]*?@([\w.$]+)\(")
UNIT_BYTES = 40_000
"""The longest text of a unit of several functions: it compiles in some 40 ms, so that many cores still share a library evenly."""


@dataclass(frozen=True, slots=True)
class Partition:
    """`functions`: text by name; `calls`: names of the module's functions that each one uses; `common`: everything that is no definition; `sizes`:
    the length of the text of every unit, by the function that gives it its name."""

    functions: dict[str, str]
    calls: dict[str, tuple[str, ...]]
    common: str
    sizes: dict[str, int]

    def shared(self, name: str) -> bool:
        """Whether a function gives a unit its name, which other units may call."""
        return name in self.sizes

    def callers(self, name: str) -> list[str]:
        """The functions that call a function."""
        return [caller for caller, called in self.calls.items() if name in called]

    def reach(self, roots: Iterable[str], without: Set[str] = frozenset()) -> list[str]:
        """The units that some functions need, themselves included, in the order of the text. Functions `without` which they do are left out."""
        seen: set[str] = set(without)
        stack = list(roots)
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                stack.extend(self.calls[name])
        return [name for name in self.functions if name in seen and name not in without and self.shared(name)]

    def unit(self, name: str, suffix: str) -> str:
        """IR text of a unit: its function, those copied into it, declarations of the others. Names of units get the suffix."""
        copied = [name]
        declared: dict[str, None] = {}
        for function in copied:  # grows
            for called in self.calls[function]:
                if self.shared(called):
                    declared[called] = None
                elif called not in copied:
                    copied.append(called)
        declared.pop(name, None)
        parts = [self.common, *[self._declaration(other) for other in declared]]
        for function in copied:
            text = self.functions[function]
            parts.append(re.sub(r"^define (internal |private )?", "define ", text, count=1) if function == name else text)
        renamed = {name, *declared}
        return _NAME.sub(lambda m: f"{m[0]}{suffix}" if m[1] in renamed else m[0], "\n".join(parts))

    def _declaration(self, name: str) -> str:
        first = self.functions[name].split("\n", 1)[0]
        head = re.sub(r"^define (internal |private )?", "declare ", first)
        depth = 0
        for position in range(head.index("("), len(head)):  # up to the parenthesis that closes the parameters
            depth += {"(": 1, ")": -1}.get(head[position], 0)
            if not depth:
                return head[: position + 1]
        raise ValueError(f"no parameter list: {first}")


def _never(_: str) -> bool:
    return False


def _sizes(functions: Mapping[str, str], calls: Mapping[str, tuple[str, ...]], apart: Callable[[str], object]) -> dict[str, int]:
    """The units by the length of their text, in the order of the text."""
    callers: dict[str, list[str]] = {name: [] for name in functions}
    for name, called in calls.items():
        for other in called:
            callers[other].append(name)
    sizes: dict[str, int] = {}

    @cache
    def places(name: str) -> frozenset[str]:
        """The units in which a function stands."""
        first = functions[name].split("\n", 1)[0]
        inside = frozenset[str]().union(*map(places, callers[name]))
        length, outside = len(functions[name]), not first.startswith(("define internal", "define private"))
        if outside or "noinline" in first:
            only = next(iter(inside)) if len(inside) == 1 and not outside and not apart(name) else ""
            if not only or sizes[only] + length > UNIT_BYTES:
                sizes[name] = length
                return frozenset([name])
            sizes[only] += length
        return inside

    for name in functions:
        places(name)
    return {name: sizes[name] for name in functions if name in sizes}


def partition(text: str, apart: Callable[[str], object] = _never) -> Partition:
    """Cut a module. Every definition must start with `define` and end with `}` at the start of a line. `apart`: whether a function may be left out
    while its callers are there."""
    functions: dict[str, str] = {}
    common: list[str] = []
    text = "\n" + text
    place = 0
    while (line := text.find("\ndefine ", place)) >= 0:
        found = _DEFINITION.match(text, line + 1)
        assert found is not None, "a definition has a name"
        end = text.index("\n}", line) + 2
        common.append(text[place : line + 1])
        functions[found[1]] = text[line + 1 : end]
        place = end
    common.append(text[place:])
    calls = {}
    for name, body in functions.items():
        used = dict.fromkeys(_NAME.findall(body))
        calls[name] = tuple(other for other in used if other in functions and other != name)
    return Partition(functions, calls, "\n".join(part.strip("\n") for part in common if part.strip()), _sizes(functions, calls, apart))
