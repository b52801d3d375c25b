"""Libraries built from exports, run by a C program."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calque.exported.native.plan import DTYPES

DRIVER = Path(__file__).with_name("driver.c")


def driver(folder: Path, name: str, cc: Sequence[str] = ("gcc",), source: Path = DRIVER) -> Path:
    """The driver linked to a static library. Also shows that the header has no warnings."""
    made = folder / source.stem
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c11", f"-DNAME={name}", "-I", str(folder), "-include", f"{name}.h"]
    subprocess.run([*cc, *flags, str(source), str(folder / f"lib{name}.a"), "-lm", "-o", str(made)], check=True)
    return made


def run(
    command: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], program: int = 0, times: int = 1, weights: Any = "-", threads: int = 1
) -> list[list[Any]]:
    """The outputs of each run as arrays like `outputs`."""
    folder = Path(command[-1]).parent
    given, found = folder / "in.bin", folder / "out.bin"
    given.write_bytes(b"".join(np.ascontiguousarray(x).tobytes() for x in inputs))
    words = [*command, program, times, weights, given, found, threads]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    data, at, rows = found.read_bytes(), 0, []
    for _ in range(times):
        row = []
        for like in outputs:
            row.append(np.frombuffer(data, like.dtype, like.size, at).reshape(like.shape))
            at += like.nbytes
        rows.append(row)
    assert at == len(data)
    return rows


class Tensor(ctypes.Structure):
    """`calque_tensor`."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
    ]  # fmt: skip

    @classmethod
    def of(cls, array: Any, dtype: str = "") -> Tensor:
        """The memory of an array, as it lies; `dtype`: what NumPy has no name for."""
        row = ctypes.c_int64 * max(array.ndim, 1)
        steps = row(*(s // array.itemsize for s in array.strides))
        return cls(array.ctypes.data, row(*array.shape), steps, DTYPES.index(dtype or array.dtype.name), array.ndim)


class Spec(ctypes.Structure):
    """`calque_spec`."""

    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int32), ("ndim", ctypes.c_int32), ("shape", ctypes.POINTER(ctypes.c_int64))]


class Instance:
    """Memory of an instance."""

    def __init__(self, block: Any, weights: Any, pointer: Any) -> None:
        self.block, self.weights, self.pointer = block, weights, pointer


class Library:
    """A shared library as any other language sees it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.library, self.name = ctypes.CDLL(str(folder / f"lib{name}.so")), name

    def call(self, function: str, *arguments: Any) -> int:
        return int(getattr(self.library, f"{self.name}_{function}")(*arguments) or 0)

    def memory_bytes(self) -> int:
        function = getattr(self.library, f"{self.name}_memory_bytes")
        function.restype = ctypes.c_uint64
        return int(function())

    def threads_bytes(self, threads: int) -> int:
        function = getattr(self.library, f"{self.name}_threads_bytes")
        function.restype = ctypes.c_uint64
        return int(function(threads))

    def create(self, weights: bytes | None = None, expected: int = 0, room: int = 1) -> Any:
        """`room`: threads that its memory is for."""
        size = self.threads_bytes(room)
        block = np.full(size + 64, 0xAB, np.uint8)  # nothing may depend on what memory holds
        held = None if weights is None else np.frombuffer(weights + bytes(8), np.uint8).copy()
        made = ctypes.c_void_p()
        start = ctypes.c_void_p(block.ctypes.data + -block.ctypes.data % 64)
        given = (None, 0) if held is None else (ctypes.c_void_p(held.ctypes.data), held.size - 8)
        code = self.call("create", start, ctypes.c_uint64(size), given[0], ctypes.c_uint64(given[1]), ctypes.byref(made))
        assert code == expected and (made.value is None) == (code != 0)
        return None if code else Instance(block, held, made)

    def run(self, m: Instance, program: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        return self.run_tensors(m, program, [Tensor.of(a) for a in inputs], [Tensor.of(a) for a in outputs])

    def run_tensors(self, m: Instance, program: int, inputs: Any, outputs: Any, most_in: int = 0, most_out: int = 0) -> int:
        given = None if inputs is None else (Tensor * len(inputs))(*inputs)
        wanted = None if outputs is None else (Tensor * len(outputs))(*outputs)
        return self.call("run", m.pointer, program, given, len(inputs or ()) or most_in, wanted, len(outputs or ()) or most_out)

    def text(self, code: int) -> str:
        function = getattr(self.library, f"{self.name}_text")
        function.restype = ctypes.c_char_p
        return str(function(code).decode())

    def error(self, m: Instance) -> str:
        function = getattr(self.library, f"{self.name}_error")
        function.restype = ctypes.c_char_p
        return str(function(m.pointer).decode())

    def state(self, m: Instance) -> dict[str, Any]:
        """Copies of the state by name."""
        function = getattr(self.library, f"{self.name}_state")
        function.restype = ctypes.c_void_p
        found: dict[str, Any] = {}
        spec = ctypes.POINTER(Spec)()
        while (data := function(m.pointer, len(found), ctypes.byref(spec))) is not None:
            s = spec.contents
            shape = tuple(s.shape[k] for k in range(s.ndim))
            dtype = np.dtype(DTYPES[s.dtype])
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            found[s.name.decode()] = np.frombuffer(ctypes.string_at(data, size), dtype).reshape(shape)
        return found
