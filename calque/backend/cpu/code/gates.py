"""Native functions that are compiled when somebody calls them.

A contraction reaches more functions than one program calls: tiles of every height, several ways to multiply. Those that are not expected to be
called (`contract/expectations.py`) are left out at first, and their callers are linked with a gate instead: code that jumps to the function if it is
there, and else asks for it and sleeps until it is. A thread of this process compiles what is asked for. It needs the interpreter's lock, so
native code that is run while that is held must reach no closed gate: for such programs everything is compiled before (`link.py`).

A gate stays in the code that was linked with it; an open one costs one more jump. Gates are x86-64 code for Linux, as is all that
`objects.py` loads.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from calque.backend.cpu.compile.objects import UnsupportedObject, code_at, library_function
from calque.base.errors import CompileError

_FUTEX, _NANOSLEEP = 202, 35  # system calls
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_NAP_NANOSECONDS = 100_000
_ATTEMPTS = 3
_STUB_BYTES, _SLOT_WORDS = 16, 2  # a slot: where the gate leads, whether somebody stands before it


def _stub(slot: int) -> bytes:
    """Jump to where the slot says; the waiting code finds the slot in r11, which is nobody's argument."""
    return b"\x49\xbb" + struct.pack("<Q", slot) + b"\x41\xff\x23"  # mov r11, slot; jmp [r11]


def _waiting(own: int, requests: int) -> bytes:
    """Ask for the function behind a gate and sleep until it is there. Every register that may hold an argument is as before; system calls leave
    those of vectors alone. `own`: where this code will stand."""
    ask = (
        b"\x50\x51\x52\x56\x57\x41\x52\x41\x53"  # push rax, rcx, rdx, rsi, rdi, r10, r11
        b"\x49\xc7\x43\x08\x01\x00\x00\x00"  # mov qword [r11 + 8], 1
        + b"\x48\xbf" + struct.pack("<Q", requests)  # mov rdi, requests
        + b"\xf0\xff\x07"  # lock inc dword [rdi]
        + b"\xbe" + struct.pack("<I", _WAKE_PRIVATE) + b"\xba\x01\x00\x00\x00"  # mov esi, wake; mov edx, 1
        + b"\xb8" + struct.pack("<I", _FUTEX) + b"\x0f\x05"  # mov eax, futex; syscall
    )  # fmt: skip
    nap = (
        b"\x68" + struct.pack("<I", _NAP_NANOSECONDS) + b"\x6a\x00"  # push nanoseconds; push seconds
        + b"\x48\x89\xe7\x31\xf6"  # mov rdi, rsp; xor esi, esi
        + b"\xb8" + struct.pack("<I", _NANOSLEEP) + b"\x0f\x05"  # mov eax, nanosleep; syscall
        + b"\x48\x83\xc4\x10"  # add rsp, 16
        + b"\x4c\x8b\x1c\x24\x49\x8b\x03"  # mov r11, [rsp]; mov rax, [r11]
        + b"\x48\xb9" + struct.pack("<Q", own) + b"\x48\x39\xc8"  # mov rcx, own; cmp rax, rcx
    )  # fmt: skip
    again = b"\x74" + struct.pack("<b", -len(nap) - 2)  # je nap
    leave = b"\x41\x5b\x41\x5a\x5f\x5e\x5a\x59\x58\x41\xff\x23"  # pop r11, r10, rdi, rsi, rdx, rcx, rax; jmp [r11]
    return ask + nap + again + leave


class Gates:
    """The gates of this process, by the name of the function behind them. Nothing of theirs is ever given back."""

    def __init__(self) -> None:
        self.opened = 0  # functions that were called before they were there
        self._closed: dict[str, tuple[Any, Callable[[], None]]] = {}  # slot, what makes the function
        self.places: dict[str, int] = {}  # also of those that are open
        self._slots: list[Any] = []
        self._requests = ctypes.c_int32(0)
        self._wait = 0
        self._serving = False

    @property
    def closed(self) -> list[str]:
        """Functions that are not there."""
        return list(self._closed)

    def make(self, wanted: Mapping[str, Callable[[], None]]) -> None:
        """Gates to some functions (see `places`). The action makes its function, which ends with `open`, when it is called."""
        fresh = {name: action for name, action in wanted.items() if name not in self.places}
        if not fresh:
            return
        try:
            slots, base = self._written(len(fresh))
        except UnsupportedObject as error:
            raise CompileError(f"[cpu] expected to write machine code, got: {error}; allow executable memory") from error
        for k, (name, action) in enumerate(fresh.items()):
            self.places[name] = base + _STUB_BYTES * k
            self._closed[name] = slots[k], action
        self._serve()

    def _written(self, count: int) -> tuple[Any, int]:
        """The slots of new gates, and where the code of the first stands."""
        if not self._wait:
            requests = ctypes.addressof(self._requests)
            self._wait = code_at(len(_waiting(0, 0)), lambda base: _waiting(base, requests))
        slots = (ctypes.c_int64 * _SLOT_WORDS * count)()
        for slot in slots:
            slot[0] = self._wait
        self._slots.append(slots)
        first = ctypes.addressof(slots)
        stubs = [_stub(first + 8 * _SLOT_WORDS * k).ljust(_STUB_BYTES, b"\xcc") for k in range(count)]
        return slots, code_at(_STUB_BYTES * count, lambda _: b"".join(stubs))

    def open(self, functions: Mapping[str, int]) -> None:
        """Functions are there now, at these addresses; those without a gate are none of ours."""
        for name in self._closed.keys() & functions.keys():
            slot, _ = self._closed.pop(name)
            slot[0] = functions[name]

    def _serve(self) -> None:
        if self._serving:
            return
        try:
            threading.Thread(target=self._work, name="calque-gates", daemon=True).start()
            self._serving = True
        except RuntimeError:  # no new threads while the interpreter goes down: nothing is linked any more that could run
            return

    def _work(self) -> None:
        """Make what is asked for."""
        system = ctypes.CDLL(None).syscall
        system.argtypes, system.restype = [ctypes.c_long, ctypes.c_void_p, *[ctypes.c_long] * 5], ctypes.c_long
        while True:
            seen = self._requests.value
            asked = [name for name, (slot, _) in list(self._closed.items()) if slot[1]]
            if not asked:
                system(_FUTEX, ctypes.addressof(self._requests), _WAIT_PRIVATE, seen, 0, 0, 0)
            for name in asked:
                self._make(name)

    def _make(self, name: str) -> None:
        found = self._closed.get(name)
        if found is None:  # somebody else has made it meanwhile
            return
        self.opened += 1
        for left in reversed(range(_ATTEMPTS)):
            try:
                found[1]()
                return
            except BaseException:  # a compiler that somebody ended is started anew
                if not left:  # a native thread waits for what there will never be
                    traceback.print_exc()
                    self.open({name: library_function("abort")})

    def forget(self) -> None:
        """In a forked child: the thread stayed in the parent."""
        self._serving = False
        if self._closed:
            self._serve()


GATES = Gates()
os.register_at_fork(after_in_child=GATES.forget)
