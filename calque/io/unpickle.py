"""A reader of pickles that can only build data.

A pickle is a program for a small machine with a stack. This one knows the instructions that push values and put them into containers. Where a
pickle names a class or function, a table says what of ours stands for it (`Known`), and everything else is `Refused` by its name: nothing is
imported, nothing of the file's choosing is called. Source of the instructions: the documentation in Python's `pickletools`.

Every value is charged to a `Budget` before it is made, keys are looked at before they are hashed, and what comes out is walked through once: no
cycles, no deep nesting, nothing but values.
"""

from __future__ import annotations

import codecs
import struct
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from calque.base.dtypes import DType
from calque.base.text import type_name
from calque.io.bounds import Budget, Damaged
from calque.io.source import Reader
from calque.io.structure import MAX_DEPTH

PER_BYTE = 8  # of memory that a byte of a pickle may become, beyond the allowance for all of it
_LINE = 1 << 16  # characters of a name or number that is written as text
_KEY_PARTS = 1000  # of a key that is a tuple
_SLOT, _CONTAINER, _ITEM = 16, 250, 120
_DICTS = (dict, OrderedDict, Counter, defaultdict)
_RAW_TEXT, _SHOWN_TEXT = codecs.getdecoder("raw_unicode_escape"), codecs.getdecoder("unicode_escape")
PLAIN = (type(None), bool, int, float, str, bytes, complex)


class Refused(Exception):
    """What a file asks for is no data; the text says what."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What stands for a class or function that a pickle names: `make(*arguments)` for calling it, `None` if it is only passed on."""

    name: str
    make: Callable[..., Any] | None


class Unfinished:
    """What only the table understands; it must not be in a value that is handed out."""


class Pending(Unfinished):
    """A value that is complete only when its state has come: `build(state)` returns it, and from then on `value` is what the pickle means."""

    def __init__(self, build: Callable[[Any], Any]) -> None:
        self.build: Callable[[Any], Any] | None = build
        self.value: Any = None

    def finish(self, state: Any) -> Any:
        """The value with its state."""
        if self.build is None:
            raise Damaged("its pickle gives a value its state twice")
        self.value, self.build = self.build(state), None
        return self.value


class _Mark(Unfinished):
    """Stands on the stack below the items of a container."""


_MARK = _Mark()
Find = Callable[[str, str], Any]


def _charge(value: Any) -> int:
    """At least the bytes of what a function of the table can make of an argument."""
    if isinstance(value, str | bytes | bytearray):
        return 4 * len(value) + 100
    if isinstance(value, list | tuple | dict | set | frozenset):
        return _ITEM * len(value) + _CONTAINER
    return 100 + 2 * int(getattr(value, "nbytes", 0)) if type(value).__module__ == "numpy" else 100


def check_key(value: Any) -> Any:
    """A value that may be hashed: plain, or a tuple of few such. Deep or shared tuples would take the hash's stack, or its time for ever."""
    parts, left = _KEY_PARTS, [value]
    while left:
        part = left.pop()
        if type(part) is tuple:
            left += part
        elif type(part) not in PLAIN and not _has_value_hash(type(part)):
            raise Damaged(f"its pickle uses a {type_name(part)} as a key")
        elif isinstance(part, frozenset):
            raise Damaged("its pickle uses a frozenset as a key")
        parts -= 1
        if parts < 0:
            raise Damaged(f"its pickle uses a tuple of more than {_KEY_PARTS} parts as a key")
    return value


def _has_value_hash(kind: type) -> bool:
    """Whether values of a class are keys by what they are: tensors are not, and neither is what only the table understands."""
    own: Any = kind.__hash__
    return kind is DType or own is not None and own is not object.__hash__


class Unpickler:
    """One pickle. `find(module, name)` is the table, `persistent(id)` what stands outside of the pickle, `encoding` how Python 2's strings read."""

    def __init__(self, text: Reader, find: Find, persistent: Callable[[Any], Any], budget: Budget, encoding: str = "ascii") -> None:
        self.text, self.find, self.persistent, self.budget, self.encoding = text, find, persistent, budget, encoding
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def load(self) -> Any:
        """The value, checked; the text then stands behind the pickle."""
        take, codes, stack = self.text.take, CODES, self.stack
        while True:
            code = take(1)
            if code == b".":
                break
            found = codes.get(code)
            if found is None:
                raise Refused(f"it uses the pickle instruction {REFUSED[code]}") if code in REFUSED else Damaged(f"its pickle has the byte {code!r}")
            self.budget.take(_SLOT)
            found[1](self, found[0](self))
        if len(stack) != 1:
            raise Damaged(f"its pickle ends with {len(stack)} values instead of one")
        self.check(stack[0])
        return stack[0]

    def check(self, value: Any) -> None:
        """Raise unless the value may be handed out."""
        check_result(value)

    # What the instructions need.

    def push(self, value: Any, size: int = 0) -> None:
        """A new value of so many bytes."""
        if size:
            self.budget.take(size)
        self.stack.append(value)

    def pop(self) -> Any:
        """The value on top."""
        value = self.stack.pop() if self.stack else _MARK
        if value is _MARK:
            raise Damaged("its pickle takes a value where there is none")
        return value

    def top(self, *kinds: type) -> Any:
        """The value on top, which must be one of these."""
        value = self.stack[-1] if self.stack else None
        if type(value) not in kinds:
            raise Damaged(f"its pickle puts items into a {type_name(value)}")
        return value

    def items(self) -> list[Any]:
        """The values above the last mark, which goes as well."""
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                found = stack[at + 1 :]
                del stack[at:]
                return found
        raise Damaged("its pickle looks for a mark that is not there")

    def put(self, place: int) -> None:
        """Remember the value on top."""
        if not self.stack:
            raise Damaged("its pickle remembers a value where there is none")
        if place not in self.memo:
            self.budget.take(_ITEM)
        self.memo[place] = self.stack[-1]

    def get(self, place: int) -> None:
        """A value again."""
        if place not in self.memo:
            raise Damaged(f"its pickle asks for the value {place}, which it has not remembered")
        value = self.memo[place]
        self.stack.append(value.value if isinstance(value, Pending) and value.build is None else value)

    def known(self, name: Any, module: Any) -> None:
        """What a name stands for."""
        if not isinstance(name, str) or not isinstance(module, str):
            raise Damaged("its pickle names a class by something else than text")
        self.push(self.find(module, name), 100)

    def call(self, function: Any, arguments: Any) -> None:
        """What the table has for calling a function."""
        if not isinstance(function, Known):
            raise Refused(f"it calls a {type_name(function)}")
        if type(arguments) is not tuple:
            raise Damaged(f"its pickle calls {function.name} with a {type_name(arguments)}")
        if function.make is None:
            raise Refused(f"it calls {function.name}")
        self.budget.take(_CONTAINER + sum(map(_charge, arguments)))
        self.push(function.make(*arguments))

    def build(self, state: Any) -> None:
        """Give the value on top its state."""
        value = self.pop()
        self.budget.take(_charge(state))
        if isinstance(value, Pending):
            self.push(value.finish(state))
            return
        if isinstance(value, Namespace | OrderedDict) and type(state) is dict and all(type(name) is str for name in state):
            taken = [] if isinstance(value, Namespace) else [name for name in state if hasattr(OrderedDict, name)]
            if not taken:
                vars(value).update(state)
                self.push(value)
                return
        raise Refused(f"it sets the state of a {type_name(value)}")

    def extend(self, items: list[Any]) -> None:
        """More items of a list."""
        found = self.top(list, deque)
        self.budget.take(8 * len(items))
        found.extend(items)

    def update(self, items: list[Any]) -> None:
        """More items of a dict: keys and values in turn."""
        found = self.top(*_DICTS)
        if len(items) % 2:
            raise Damaged("its pickle has a key without a value")
        self.budget.take(_ITEM * len(items) // 2)
        for key, value in zip(items[::2], items[1::2], strict=True):
            found[check_key(key)] = value

    def add(self, items: list[Any]) -> None:
        """More members of a set."""
        found = self.top(set)
        self.budget.take(_ITEM * len(items))
        found.update(map(check_key, items))

    def string(self, data: bytes) -> None:
        """A string of Python 2."""
        self.push(data if self.encoding == "bytes" else data.decode(self.encoding), 4 * len(data) + 60)

    def unicode(self, data: bytes) -> None:
        """A string."""
        self.push(data.decode("utf-8", "surrogatepass"), (1 if data.isascii() else 4) * len(data) + 60)


def children(value: Any) -> Iterator[Any]:
    """The values inside a value."""
    if isinstance(value, dict):
        yield from value.values()
        yield from value.keys()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from value
    if isinstance(value, dict | Namespace) or type(value).__module__.startswith("calque."):
        yield from getattr(value, "__dict__", {}).values()


def check_result(value: Any) -> None:
    """Raise unless a value is a tree (or shares parts) of moderate depth that holds no names and nothing half made."""
    depth: dict[int, int] = {}  # of what has been walked through; 0 while it is
    trail: list[tuple[Any, Iterator[Any], int]] = [(value, children(value), 1)]
    depth[id(value)] = 0
    _check_leaf(value)
    while trail:
        if len(trail) > MAX_DEPTH:
            raise Damaged(f"its values are nested more than {MAX_DEPTH} deep")
        parent, rest, below = trail[-1]
        for child in rest:
            if type(child) in PLAIN:
                continue
            known = depth.get(id(child))
            if known == 0:
                raise Damaged(f"a {type_name(child)} in it contains itself")
            if known is None:
                _check_leaf(child)
                depth[id(child)] = 0
                trail[-1] = (parent, rest, below)
                trail.append((child, children(child), 1))
                break
            below = max(below, known + 1)
        else:
            trail.pop()
            depth[id(parent)] = below
            if below + len(trail) > MAX_DEPTH:
                raise Damaged(f"its values are nested more than {MAX_DEPTH} deep")
            if trail:
                above, others, most = trail[-1]
                trail[-1] = (above, others, max(most, below + 1))


def _check_leaf(value: Any) -> None:
    if isinstance(value, Known):
        raise Refused(f"it holds {value.name} itself")
    if isinstance(value, Unfinished):
        raise Damaged("its pickle leaves a value half made")


# The instructions: how each reads its argument, and what it does with it.


def _nothing(p: Unpickler) -> None:
    return None


def _fixed(form: str) -> Callable[[Unpickler], Any]:
    machine = struct.Struct(form)
    return lambda p: machine.unpack(p.text.take(machine.size))[0]


def _counted(form: str) -> Callable[[Unpickler], bytes]:
    length = _fixed(form)

    def read(p: Unpickler) -> bytes:
        count = length(p)
        if count < 0:
            raise Damaged(f"its pickle has a value of {count} bytes")
        return p.text.take(count)

    return read


def _line(p: Unpickler) -> bytes:
    return p.text.line(_LINE)


def _two_lines(p: Unpickler) -> tuple[str, str]:
    return _line(p).decode(), _line(p).decode()


def _number(p: Unpickler, text: bytes) -> None:
    if text in (b"00", b"01"):
        p.push(text == b"01")
    else:
        p.push(int(text.rstrip(b"L")), len(text) + 40)


def _text_string(p: Unpickler, text: bytes) -> None:
    """A string as Python 2 shows it."""
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in b"'\"":
        raise Damaged("its pickle has a string without quotes")
    p.string(_SHOWN_TEXT(text[1:-1])[0].encode("latin-1"))


def _tuple(count: int) -> Callable[[Unpickler, Any], None]:
    def act(p: Unpickler, _: Any) -> None:
        p.push(tuple([p.pop() for _ in range(count)][::-1]), 100)

    return act


def _twice(p: Unpickler, _: Any) -> None:
    value = p.pop()
    p.push(value)
    p.push(value)


def _swap(p: Unpickler) -> tuple[Any, Any]:
    """The two values on top, the lower one first."""
    upper = p.pop()
    return p.pop(), upper


def _new_with_names(p: Unpickler, _: Any) -> None:
    names, (cls, arguments) = p.pop(), _swap(p)
    if type(names) is not dict or names:
        raise Refused(f"it makes a {getattr(cls, 'name', type_name(cls))} with named arguments")
    p.call(cls, arguments)


def _items_of(p: Unpickler) -> list[Any]:
    found = p.items()
    p.budget.take(_ITEM * len(found) + _CONTAINER)
    return found


def _new_dict(p: Unpickler, _: Any) -> None:
    items = _items_of(p)
    p.push({})
    p.update(items)


CODES: dict[bytes, tuple[Callable[[Unpickler], Any], Callable[[Unpickler, Any], Any]]] = {
    b"\x80": (_fixed("<B"), lambda p, x: None),  # PROTO
    b"\x95": (_fixed("<Q"), lambda p, x: None),  # FRAME
    b"(": (_nothing, lambda p, x: p.push(_MARK)),
    b"0": (_nothing, lambda p, x: p.stack.pop() if p.stack else p.pop()),  # POP
    b"1": (_nothing, lambda p, x: p.items()),  # POP_MARK
    b"2": (_nothing, _twice),  # DUP
    b"N": (_nothing, lambda p, x: p.push(None)),
    b"\x88": (_nothing, lambda p, x: p.push(True)),
    b"\x89": (_nothing, lambda p, x: p.push(False)),
    b"I": (_line, _number),
    b"L": (_line, _number),
    b"F": (_line, lambda p, x: p.push(float(x), 30)),
    b"J": (_fixed("<i"), lambda p, x: p.push(x, 30)),
    b"K": (_fixed("<B"), lambda p, x: p.push(x)),
    b"M": (_fixed("<H"), lambda p, x: p.push(x, 30)),
    b"G": (_fixed(">d"), lambda p, x: p.push(x, 30)),
    b"\x8a": (_counted("<B"), lambda p, x: p.push(int.from_bytes(x, "little", signed=True), len(x) + 40)),  # LONG1
    b"\x8b": (_counted("<i"), lambda p, x: p.push(int.from_bytes(x, "little", signed=True), len(x) + 40)),  # LONG4
    b"S": (_line, _text_string),
    b"T": (_counted("<i"), lambda p, x: p.string(x)),
    b"U": (_counted("<B"), lambda p, x: p.string(x)),
    b"V": (_line, lambda p, x: p.push(_RAW_TEXT(x)[0], 4 * len(x) + 60)),
    b"X": (_counted("<I"), lambda p, x: p.unicode(x)),
    b"\x8c": (_counted("<B"), lambda p, x: p.unicode(x)),
    b"\x8d": (_counted("<Q"), lambda p, x: p.unicode(x)),
    b"B": (_counted("<I"), lambda p, x: p.push(x, len(x) + 40)),  # BINBYTES
    b"C": (_counted("<B"), lambda p, x: p.push(x, len(x) + 40)),
    b"\x8e": (_counted("<Q"), lambda p, x: p.push(x, len(x) + 40)),
    b"\x96": (_counted("<Q"), lambda p, x: p.push(bytearray(x), 2 * len(x) + 60)),
    b")": (_nothing, lambda p, x: p.push(())),
    b"\x85": (_nothing, _tuple(1)),
    b"\x86": (_nothing, _tuple(2)),
    b"\x87": (_nothing, _tuple(3)),
    b"t": (_nothing, lambda p, x: p.push(tuple(_items_of(p)))),
    b"]": (_nothing, lambda p, x: p.push([], 90)),
    b"l": (_nothing, lambda p, x: p.push(_items_of(p))),
    b"a": (_nothing, lambda p, x: p.extend([p.pop()])),
    b"e": (_nothing, lambda p, x: p.extend(p.items())),
    b"}": (_nothing, lambda p, x: p.push({}, 90)),
    b"d": (_nothing, _new_dict),
    b"s": (_nothing, lambda p, x: p.update(list(_swap(p)))),
    b"u": (_nothing, lambda p, x: p.update(p.items())),
    b"\x8f": (_nothing, lambda p, x: p.push(set(), _CONTAINER)),
    b"\x90": (_nothing, lambda p, x: p.add(p.items())),
    b"\x91": (_nothing, lambda p, x: p.push(frozenset(map(check_key, _items_of(p))))),
    b"p": (_line, lambda p, x: p.put(int(x))),
    b"q": (_fixed("<B"), lambda p, x: p.put(x)),
    b"r": (_fixed("<I"), lambda p, x: p.put(x)),
    b"\x94": (_nothing, lambda p, x: p.put(len(p.memo))),
    b"g": (_line, lambda p, x: p.get(int(x))),
    b"h": (_fixed("<B"), lambda p, x: p.get(x)),
    b"j": (_fixed("<I"), lambda p, x: p.get(x)),
    b"c": (_two_lines, lambda p, x: p.known(x[1], x[0])),
    b"\x93": (_nothing, lambda p, x: p.known(p.pop(), p.pop())),
    b"R": (_nothing, lambda p, x: p.call(*_swap(p))),
    b"\x81": (_nothing, lambda p, x: p.call(*_swap(p))),
    b"\x92": (_nothing, _new_with_names),
    b"b": (_nothing, lambda p, x: p.build(p.pop())),
    b"Q": (_nothing, lambda p, x: p.push(p.persistent(p.pop()), 100)),
    b"P": (_line, lambda p, x: p.push(p.persistent(x.decode()), 100)),
}
REFUSED = {
    b"i": "INST", b"o": "OBJ", b"\x82": "EXT1", b"\x83": "EXT2", b"\x84": "EXT4", b"\x97": "NEXT_BUFFER", b"\x98": "READONLY_BUFFER",
}  # fmt: skip
