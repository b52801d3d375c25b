"""What is told of everything that a thread records, and asked about what Python wants to know meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque.base.device import Device
from calque.base.layout import Layout
from calque.record.path import Trace
from calque.record.storage import Storage
from calque.run.buffer import Buffer


class Watcher:
    """Watches a call (`State.capture`): to record it for replay (`replay/capture.py`), to export it or to plan its memory (`exported/frame.py`,
    `memory/rehearsal.py`), which need less, and leave the rest as it is here.

    `active`: whether a replay will do what is told now; `failed`: why it cannot; `met`: whether something came up that another thread has recorded;
    `oldest`: number of the first node of the graph that is the call's own. `blind`: no values are to be looked at; `rehearses`: what is recorded may
    depend on values. `given`: what sources of numbers are known to say; `definitions`: what is known of numbers; `used`: which were; `losses`: where
    backward passes started; `looked_at`: ids of tensors whose gradient was asked for; `stand_ins`: by id of a handle the argument that it stands for.
    """

    active, failed, met, oldest, blind, rehearses = False, "", False, 0, False, False

    def __init__(self) -> None:
        self.given: list[list[Any]] = []
        self.definitions: list[Any] = []
        self.used: set[int] = set()
        self.losses: list[tuple[Any, str]] = []
        self.looked_at: set[int] = set()
        self.stand_ins: dict[int, Any] = {}

    def abort(self, reason: str) -> None:
        """Something was done that a replay cannot do."""
        raise NotImplementedError

    def foreseen(self, storage: Storage) -> bool:
        """Whether Python may look at a value, as it is the same in every call."""
        return False

    def flushing(self, trace: Trace, reason: str) -> bool:
        """A program is about to be started; True if it need not be."""
        return False

    def flushed(self) -> None:
        """The program was started."""

    def enter(self, storage: Storage, slot: int) -> None:
        """The value of a storage has entered the trace."""

    def snapshot(self, copy: Buffer, buffer: Buffer, view: Layout) -> None:
        """Memory that others see was copied."""

    def twin(self, source: Storage, storage: Storage) -> None:
        """A new storage has the value of another that exists already."""

    def constant(self, storage: Storage) -> None:
        """The values of a new storage follow from Python values that the code names."""

    def peek(self, storage: Storage, view: Layout, verdict: Callable[[Any], Any], result: Any) -> None:
        """A decision was made on values that existed already."""

    def numbers(self, source: Callable[[], list[Any]], needed: bool = True) -> list[Any]:
        """What `source` says, a number that may be another one at the next call. `needed`: some of it must be used."""
        return source()

    def computed(self, function: Callable[..., Any], arguments: tuple[Any, ...], result: Any) -> Any:
        """Python computed something from such a number."""
        return result

    def read(self, storage: Storage, view: Layout, reason: str, convert: Callable[[Any], Any]) -> Any:
        """Python looks at a value: `convert` makes it of the array."""
        raise NotImplementedError

    def copied(
        self, sources: Sequence[tuple[Storage, Layout]], device: Device, reason: str, wanted: tuple[int, ...],
        start: Callable[[list[Buffer] | None], list[Storage]],
    ) -> list[Storage]:  # fmt: skip
        """Values go to another device. `start` copies them, or takes what it is given for the copies."""
        self.abort(f"copies a value between devices: {reason}")
        return start(None)
