"""A data set on its way to worker processes.

What the workers need is pickled once for each pool, into memory without a name. Its arrays and tensors lie there as they are, and every worker maps
them: eight workers share one copy, and what one of them writes to stays its own. A `SharedList` lies in such memory from the beginning.
"""

from __future__ import annotations

import ast
import io
import mmap
import os
import pickle
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from calque.base.errors import DTypeError, WorkerError
from calque.base.text import shown, type_name
from calque.data.transport import mapped, new_memory

T = TypeVar("T")
_APART = 1 << 14  # bytes of an array from which on it is shared
_ALIGNED = 64
_COUNT = struct.Struct("<QQ")
GUARD = 'if __name__ == "__main__":\n    main()  # what trains goes into a function that is called here'


class Unsendable(DTypeError):
    """Something cannot be sent to another process."""


class Memory:
    """Bytes in shared memory."""

    def __init__(self, handle: int, size: int) -> None:
        self.handle, self.size = handle, size
        self.view = memoryview(mapped(handle, max(size, 1), mmap.MAP_SHARED, mmap.PROT_READ))

    def __del__(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)


class SharedList(Sequence[T]):
    """A list that all workers of a DataLoader share, whatever its items are. It cannot be changed.

    Worker processes have a copy each of an ordinary list: eight of them hold eight times the file names of a large data set. A SharedList keeps its
    items pickled in memory that every process maps; an item is made anew each time it is asked for (about a microsecond), and compares equal
    to the one that was put in.

    items: any iterable of things that can be pickled.

    >>> from calque.data import SharedList
    >>> names = SharedList(f"img{k}.png" for k in range(1000))
    >>> names[3], len(names), names[-2:]
    ('img3.png', 1000, ['img998.png', 'img999.png'])
    """

    def __init__(self, items: Iterable[T]) -> None:
        ends, content = [], io.BytesIO()
        for item in items:
            content.write(pickle.dumps(item, protocol=5))
            ends.append(content.tell())
        table = np.asarray(ends, np.int64).tobytes()
        size = len(table) + content.tell()
        handle = new_memory(max(size, 1))
        with mapped(handle, max(size, 1)) as memory:
            memory[: len(table)] = table
            memory[len(table) : size] = content.getbuffer()
        self._open(Memory(handle, size), len(ends))

    def _open(self, memory: Memory, count: int) -> None:
        self.memory, self._count = memory, count
        self.ends = np.frombuffer(memory.view, np.int64, count) if count else np.empty(0, np.int64)
        self.content = memory.view[8 * count :]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(self._count))]
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(f"[SharedList] expected an index in [{-self._count}, {self._count - 1}], got {index}")
        start = int(self.ends[place - 1]) if place else 0
        return pickle.loads(self.content[start : int(self.ends[place])])  # noqa: S301 - what this class has pickled

    def __iter__(self) -> Iterator[T]:
        return (self[k] for k in range(self._count))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SharedList({self._count} items, {self.memory.size:,} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.memory, self._count)


def _reopened(memory: Memory, count: int) -> SharedList[Any]:
    made: SharedList[Any] = SharedList.__new__(SharedList)
    made._open(memory, count)
    return made


def _copied(content: bytes) -> Memory:
    handle = new_memory(max(len(content), 1))
    with mapped(handle, max(len(content), 1)) as memory:
        memory[: len(content)] = content
    return Memory(handle, len(content))


def _reduce_memory(memory: Memory) -> tuple[Any, ...]:
    return _copied, (bytes(memory.view[: memory.size]),)


Memory.__reduce__ = _reduce_memory  # type: ignore[method-assign,assignment]


class _Pickler(pickle.Pickler):
    """Notes which modules are needed on the other side; shared memory goes by its handle."""

    def __init__(self, file: io.BytesIO, **options: Any) -> None:
        super().__init__(file, **options)
        self.modules: set[str] = set()
        self.main: set[str] = set()  # names of `__main__` that are needed
        self.handles: list[int] = []

    def persistent_id(self, value: Any) -> Any:
        if type(value) is Memory:
            self.handles.append(value.handle)
            return len(self.handles) - 1, value.size
        return None

    def reducer_override(self, value: Any) -> Any:
        for found in (value, type(value)):
            module = getattr(found, "__module__", None)
            if isinstance(module, str):
                self.modules.add(module)
                if module == "__main__" and hasattr(found, "__qualname__"):
                    self.main.add(found.__qualname__.partition(".")[0])
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, handles: list[int], buffers: Any) -> None:
        super().__init__(file, buffers=buffers)
        self.handles = handles

    def persistent_load(self, key: Any) -> Memory:
        number, size = key
        return Memory(os.dup(self.handles[number]), size)


class Payload:
    """What is sent to the workers of a pool, in one piece of memory: `handles` names it, and the memory of shared lists."""

    def __init__(self, parts: dict[str, Any]) -> None:
        buffers: list[pickle.PickleBuffer] = []

        def apart(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes < _APART:
                return True
            buffers.append(buffer)
            return False

        file = io.BytesIO()
        pickler = _Pickler(file, protocol=5, buffer_callback=apart)
        try:
            pickler.dump(parts)
        except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
            raise Unsendable(_what_fails(parts, error)) from error
        self.modules = sorted(pickler.modules)
        self.main = _how_to_find_main(pickler.main) if "__main__" in pickler.modules else None
        self.size = self._store(file.getbuffer(), [buffer.raw() for buffer in buffers])
        self.kept = parts  # their shared memory stays open
        self.handles = [self.handle, *pickler.handles]

    def _store(self, text: memoryview, buffers: list[memoryview]) -> int:
        ends, at = [], _padded(_COUNT.size + 16 * len(buffers) + len(text))
        for buffer in buffers:
            ends.append((at, buffer.nbytes))
            at = _padded(at + buffer.nbytes)
        self.handle = new_memory(at)
        with mapped(self.handle, at) as memory:
            head = _COUNT.pack(len(buffers), len(text)) + b"".join(_COUNT.pack(*end) for end in ends)
            memory[: len(head)] = head
            memory[len(head) : len(head) + len(text)] = text
            for (start, size), buffer in zip(ends, buffers):
                memory[start : start + size] = buffer
        return at

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)


def unpacked(handles: list[int]) -> Any:
    """The parts, in a worker. Its arrays lie in the memory that all workers map; pages that it writes to become its own."""
    size = os.fstat(handles[0]).st_size
    view = memoryview(mapped(handles[0], size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
    count, length = _COUNT.unpack_from(view)
    places = [_COUNT.unpack_from(view, _COUNT.size * (k + 1)) for k in range(count)]
    start = _COUNT.size * (count + 1)
    return _Unpickler(io.BytesIO(view[start : start + length]), handles[1:], [view[a : a + n] for a, n in places]).load()


def _padded(size: int) -> int:
    return max(-(-size // _ALIGNED), 1) * _ALIGNED


# ------------------------------------------------------------------------------------------------------------------ what cannot be sent


def _what_fails(parts: dict[str, Any], error: BaseException) -> str:
    """Names the attribute that cannot be pickled."""
    for name, value in parts.items():
        path = _failing(value, name, 0)
        if path is not None:
            where, culprit, why = path
            return (
                f"[DataLoader] expected what can be sent to a worker process, got {type_name(culprit)} as {where} ({why}); define functions and "
                f"classes at "
                "the top of a module and open files in the worker, or use multiprocessing_context='thread'"
            )
    return f"[DataLoader] expected a dataset that can be sent to a worker process, got {error}; use multiprocessing_context='thread'"


def _failing(value: Any, path: str, depth: int) -> tuple[str, Any, str] | None:
    try:
        _Pickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: False).dump(value)
        return None
    except Exception as error:
        why = str(error)
    if depth < 6:
        inside = getattr(value, "__dict__", None)
        if isinstance(inside, dict) and not callable(value) or isinstance(inside, dict) and not hasattr(value, "__qualname__"):
            for name, item in inside.items():
                if (found := _failing(item, f"{path}.{name}", depth + 1)) is not None:
                    return found
        elif isinstance(value, list | tuple):
            for k, item in enumerate(value):
                if (found := _failing(item, f"{path}[{k}]", depth + 1)) is not None:
                    return found
        elif isinstance(value, dict):
            for key, item in value.items():
                if (found := _failing(item, f"{path}[{shown(key)}]", depth + 1)) is not None:
                    return found
    return path, value, why


def _how_to_find_main(names: set[str]) -> tuple[str, str]:
    """How a worker gets at some names of the program: its module, or its file, which is run there under another name."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path):
        raise Unsendable(
            "[DataLoader] expected a dataset whose class is in a file, got one that was typed in (a notebook, or -c), which a worker process cannot "
            "find; put it "
            "into a module, or use multiprocessing_context='thread'"
        )
    guarded, known = guarded_names(path)
    if guarded and (hidden := sorted(names - known)):
        raise Unsendable(
            f"[DataLoader] expected {hidden[0]} at the top of {path}, got it inside of `if __name__ == ...` or of something else that a worker does "
            f"not run; move it "
            "out of there, or use multiprocessing_context='thread'"
        )
    if not guarded:
        raise WorkerError(
            f"[DataLoader] expected a guard in {path}, because a worker process runs that file to find the dataset, and would train, too; "
            f"write:\n{GUARD}\n"
            "or put the dataset into a module of its own, or use multiprocessing_context='thread'"
        )
    if spec is not None and spec.name and not spec.name.startswith("calque.") and not spec.name.endswith("__main__"):
        return "module", spec.name
    return "file", os.path.abspath(path)


def guarded_names(path: str) -> tuple[bool, set[str]]:
    """Whether a program looks at `__name__` before it begins to work, and the names that are there without that. What comes from another module by
    `import *` is not among them: it is found in that module."""
    try:
        with open(path, "rb") as file:
            body = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        return False, set()
    guards = [n for n in body if isinstance(n, ast.If) and any(isinstance(x, ast.Name) and x.id == "__name__" for x in ast.walk(n.test))]
    names = set()
    for node in (inner for outer in body if outer not in guards for inner in ast.walk(outer)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return bool(guards), names
