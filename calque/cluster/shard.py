"""What one server of a parameter server holds and decides, without what carries its messages: `actors.py` runs it on Ray, a test in one process.

Every member (a worker, or a machine whose workers add up first) numbers its *batches*: lists of operations on keys. A shard takes each batch
once and in order, whatever is sent twice or late, and counts what it has taken. Counts, values and optimizer belong to one state, which is kept
elsewhere from time to time. A shard that dies goes on from what was kept, and members send again what is not in it: nothing is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.autograd.modes import no_grad
from calque.functional.creation import from_numpy, zeros
from calque.functional.views import detach
from calque.optim.adadelta import Adadelta
from calque.optim.adam import Adam, AdamW
from calque.optim.adamax import Adamax
from calque.optim.adaptive import Adagrad, RMSprop
from calque.optim.asgd import ASGD
from calque.optim.nadam import NAdam
from calque.optim.radam import RAdam
from calque.optim.rprop import Rprop
from calque.optim.sgd import SGD
from calque.parallel.store import KVStore
from calque.tensor import Tensor

STARTER = -1  # the member that is whoever started the servers: it initialises, sets the optimizer and pulls, and never pushes
BY_ELEMENT = {SGD, ASGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop}  # update each element by its own gradient
Operation = tuple[Any, ...]  # its name, a key, and what it needs


def array_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The values of a tensor, copied: neither changes with the other."""
    return np.array(detach(tensor).cpu())  # type: ignore[attr-defined]


class Shard(KVStore):
    """Values by key, and what their updates wait for.

    members: the numbers of those who push, and `word`, what they are. kind: "dist_sync", where an update waits for one push of every member and takes
    their sum in the order of members, so it is the same every time; or "dist_async", where every push is an update. staleness: by how many pushes of
    a key a member may be ahead of the slowest one when it pulls ("dist_async"; None: by any number).
    """

    def __init__(self, kind: str, members: Sequence[int], staleness: int | None = None, word: str = "rank") -> None:
        super().__init__("local")
        self.kind, self.members, self.staleness, self.word = kind, list(members), staleness, word
        self.taken: dict[int, int] = {}  # by member the number of its last batch
        self.callers: dict[int, str] = {}  # by member which process it is
        self.failed = ""  # what is wrong for everybody: a batch that cannot be applied would leave the others waiting
        self._left: set[int] = set()
        self._pushed: dict[int, dict[Any, int]] = {}
        self._rounds: dict[Any, int] = {}
        self._arrived: dict[Any, dict[int, list[Any]]] = {}
        self._shapes: dict[Any, tuple[Any, str]] = {}
        self._parts: set[Any] = set()  # keys of which other servers hold a part as well
        self._copies: dict[Any, Any] = {}  # of values since their last update, for all who pull them

    def take(self, member: int, number: int, batch: list[Operation]) -> None:
        """Apply a batch, whose number is the next one of its member."""
        self.taken[member] = number
        for name, *given in batch:
            try:
                getattr(self, f"_do_{name}")(member, *given)
            except Exception as error:
                self.failed = self.failed or f"{self.who(member)}: {type(error).__name__}: {error}"

    def who(self, *members: int) -> str:
        """Members in words."""
        return "the process that started the servers" if members == (STARTER,) else f"{self.word} {', '.join(map(str, members))}"

    def pushed(self, member: int, key: Any) -> int:
        """How many pushes of a key have come from a member."""
        return self._pushed.get(member, {}).get(key, 0)

    def lacks(self, member: int, keys: list[Any]) -> str:
        """What a pull of these keys has to wait for; nothing if it has not to."""
        for key in keys:
            mine = self.pushed(member, key)
            if not self._has(key):
                return f"key {key!r} has no value; {self.word} 0 or whoever started the servers has to initialise it"
            if not self._ready(key):
                return f"no optimizer is set, and {self.kind} has to know what a push does; call set_optimizer or set_updater on rank 0"
            if self.kind == "dist_sync":
                if self._rounds.get(key, 0) < mine:
                    late = [m for m in self._active() if not self._arrived.get(key, {}).get(m)]
                    return f"push {self._rounds.get(key, 0) + 1} of key {key!r} is missing from {self.who(*late)}"
            elif self.staleness is not None:
                late = [m for m in self._active() if self.pushed(m, key) < mine - self.staleness]
                if late:
                    return f"{self.who(*late)} is more than {self.staleness} pushes of key {key!r} behind {self.who(member)}, which has made {mine}"
        return ""

    def values(self, member: int, keys: list[Any]) -> list[Any]:
        """The arrays of these keys, which nobody changes."""
        for key in keys:
            if key not in self._copies:
                self._copies[key] = array_of(self._values[key])
        return [self._copies[key] for key in keys]

    def state(self) -> dict[str, Any]:
        """All of it, as it is now."""
        return {
            "values": {key: array_of(value) for key, value in self._values.items()},
            "optimizers": {key: _arrays(optimizer.state_dict()) for key, optimizer in self._optimizers.items()},
            "set": (self._make, self._updater, self._rate),
            "taken": dict(self.taken), "callers": dict(self.callers), "failed": self.failed, "left": set(self._left),
            "pushed": {member: dict(counts) for member, counts in self._pushed.items()},
            "rounds": dict(self._rounds), "shapes": dict(self._shapes), "parts": set(self._parts),
            "arrived": {key: {m: list(parts) for m, parts in by.items()} for key, by in self._arrived.items()},
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` has told."""
        self._make, self._updater, self._rate = state["set"]
        self.taken, self.callers, self.failed, self._left = state["taken"], state["callers"], state["failed"], state["left"]
        self._pushed, self._rounds, self._shapes, self._arrived = state["pushed"], state["rounds"], state["shapes"], state["arrived"]
        self._parts = state["parts"]
        self._values = {key: from_numpy(value) for key, value in state["values"].items()}
        for key, saved in state["optimizers"].items():
            self._optimizer_of(key, self._values[key]).load_state_dict(_tensors(saved))

    def _has(self, key: Any) -> bool:
        return key in self._values

    def _active(self) -> list[int]:
        return [m for m in self.members if m not in self._left]

    def _do_init(self, member: int, key: Any, shape: tuple[int, ...], dtype: str, value: Any) -> None:
        first = self._shapes.setdefault(key, ((shape, dtype), self.who(member)))
        if first[0] != (shape, dtype):
            (known, of), giver = first
            raise ValueError(f"[kvstore] init expected {of} of shape {known} for key {key!r}, as from {giver}, got {dtype} of shape {shape}")
        if value is not None and not self._has(key):  # the first value counts
            if value.shape != shape:
                self._parts.add(key)
                self._refuse_parts()
            self.init(key, from_numpy(value))
            self._settle(key)

    def _do_push(self, member: int, key: Any, value: Any) -> None:
        counts = self._pushed.setdefault(member, {})
        counts[key] = counts.get(key, 0) + 1
        self._arrived.setdefault(key, {}).setdefault(member, []).append(value)
        self._settle(key)

    def _do_leave(self, member: int) -> None:
        """The member pushes no more, and nobody waits for it."""
        self._left.add(member)
        self._settle(*self._arrived)

    def _do_optimizer(self, member: int, make: Callable[..., Any]) -> None:
        self.set_optimizer(make)
        self._refuse_parts()
        self._settle(*self._arrived)

    def _do_updater(self, member: int, updater: Callable[..., Any]) -> None:
        self.set_updater(updater)
        self._refuse_parts()
        self._settle(*self._arrived)

    def _do_rate(self, member: int, lr: float) -> None:
        self.set_learning_rate(lr)

    def _ready(self, key: Any) -> bool:
        """Whether it is known what a push does: to replace the value by what some worker has pushed last would be nobody's wish."""
        return self._has(key) and (self.kind == "dist_sync" or self._make is not None or self._updater is not None)

    def _refuse_parts(self) -> None:
        """Some updates look at the whole of a parameter; from its parts they would compute something else."""
        if not self._parts:
            return
        kind = None if self._make is None else type(self._make([zeros(1, requires_grad=True)]))
        if self._updater is not None or (kind is not None and kind not in BY_ELEMENT):
            what = "an updater" if kind is None else kind.__name__
            raise ValueError(
                f"[kvstore] expected an optimizer that looks at each element alone for key {sorted(map(repr, self._parts))[0]}, of which every "
                f"server holds a part, got {what}; create the store with split=None"
            )

    def _settle(self, *keys: Any) -> None:
        """Update keys as often as what has been pushed allows."""
        for key in keys:
            by = self._arrived.get(key, {})
            while by and self._ready(key) and (self.kind == "dist_async" or all(m in by for m in self._active())):
                chosen = sorted(by) if self.kind == "dist_sync" else [min(by)]
                parts = [by[m].pop(0) for m in chosen]
                by = {m: rest for m, rest in by.items() if rest}
                self._rounds[key] = self._rounds.get(key, 0) + 1
                self._add_up(key, parts)
            self._arrived[key] = by

    def _add_up(self, key: Any, parts: list[Any]) -> None:
        self._copies.pop(key, None)
        with no_grad():
            self._update(key, from_numpy(total_of(parts)), self._held(key))


def total_of(parts: list[Any]) -> Any:
    """The sum of arrays, from left to right; an array of its own."""
    if len(parts) == 1:
        return np.array(parts[0])
    total = np.empty_like(parts[0])  # a sum without out= is a number, where arrays have no dimension
    np.add(parts[0], parts[1], out=total)
    for part in parts[2:]:
        np.add(total, part, out=total)
    return total


def _arrays(tree: Any) -> Any:
    """A state with an array for every tensor."""
    if isinstance(tree, dict):
        return {key: _arrays(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_arrays(value) for value in tree)
    return ("tensor", array_of(tree)) if isinstance(tree, Tensor) else tree


def _tensors(tree: Any) -> Any:
    """The state that `_arrays` has written."""
    if isinstance(tree, dict):
        return {key: _tensors(value) for key, value in tree.items()}
    if isinstance(tree, tuple) and len(tree) == 2 and isinstance(tree[0], str) and tree[0] == "tensor":
        return from_numpy(tree[1])
    return type(tree)(_tensors(value) for value in tree) if isinstance(tree, (list, tuple)) else tree
