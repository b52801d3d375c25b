"""Updates of optimizers, recorded again without running their Python.

The update of a step is a function of the options, the parameters, gradients and state tensors it finds, and of a few numbers that change from step to
step (`Optimizer.step_numbers`). The second step that finds the same at the same place of the trace is recorded, later ones are replays: the
same operations, with other numbers. Where something is unusual the update runs as it is written. Behind steps that never repeat it is a program of
its own, which does repeat. Where each step finds gradients of other parameters (experts that are not asked, layers that are dropped) no whole update
is met again: then those that have had gradients at the same steps are updated together, by a program for each such piece.
"""

from __future__ import annotations

from typing import Any

from calque.base.dtypes import get_default_dtype
from calque.base.errors import NotDense
from calque.optim.methods import Stepping
from calque.optim.parts import update
from calque.record.live import plain
from calque.record.numbers import scalar_tag
from calque.record.recorder import flush, local, record_from_here
from calque.replay.stretches import STRANGE, Stretch, StretchCounts, Stretches, generalised, may_replay, record_call, takes_constants
from calque.tensor import TENSOR_TYPES

_FREE = ("params", "lr", "initial_lr", "param_names")  # what an update takes from `step_numbers` or does not look at
_OPTIONS = (bool, int, str, type(None))
_PACKAGE = __name__.rpartition(".")[0]


_REASON = "optimizer.step"
LEAST = 2  # parameters of a piece, on the average: programs for fewer are not worth starting one by one


class Piece:
    """Parameters of a group that have had gradients at the same steps."""

    __slots__ = ("group", "parameters", "table")

    def __init__(self, group: int, parameters: list[Any]) -> None:
        self.group, self.parameters, self.table = group, parameters, Stretches()


class Pieces:
    """All parameters of an optimizer in pieces. `strange`: steps in a row at which others had gradients than at any that is remembered."""

    __slots__ = ("strange", "known", "pieces")

    def __init__(self) -> None:
        self.strange = 0
        self.known: tuple[int, ...] = ()
        self.pieces: list[Piece] = []

    def cut(self, optimizer: Stepping) -> list[Piece]:
        """Cut each piece of which some have gradients and some have none; those that have."""
        groups = optimizer.param_groups
        known = tuple([id(p) for group in groups for p in (group, *group["params"])])
        if known != self.known:  # whose parameters the pieces keep alive
            self.known, self.pieces = known, [Piece(k, list(group["params"])) for k, group in enumerate(groups)]
        found = []
        for piece in self.pieces:
            there = [p for p in piece.parameters if p._grad is not None]
            if 0 < len(there) < len(piece.parameters):
                found += [Piece(piece.group, there), Piece(piece.group, [p for p in piece.parameters if p._grad is None])]
            else:
                found.append(piece)
        self.pieces = found
        return [piece for piece in found if piece.parameters and piece.parameters[0]._grad is not None]


class Update:
    """What the update of some parameters depends on: `parts` compared with those of a recording, `cells` the storages, by group the parameters that
    have gradients. `scopes`: groups, and which of their parameters it is about."""

    __slots__ = ("parts", "cells", "groups", "scopes")

    def __init__(self, optimizer: Stepping, scopes: list[tuple[dict[str, Any], list[Any]]]) -> None:
        state = local.state
        self.scopes = scopes
        self.parts: list[Any] = [type(optimizer).update_group, state.autocast, state.device, get_default_dtype()]
        self.cells: list[Any] = []
        self.groups: list[tuple[dict[str, Any], list[Any]]] = []

    def collect(self, optimizer: Stepping) -> bool:
        """Look at everything; False if something is unusual."""
        parts, cells, states = self.parts, self.cells, optimizer.state
        for group, given in self.scopes:
            if not self._options(group):
                return False
            parameters = []
            for p in given:
                g = p._grad
                if g is None:
                    parts.append(None)
                    continue
                storage, held = p._storage, g._storage
                layout = p._layout
                if storage.layout is not layout or held.layout is not g._layout:  # views of larger memory
                    return False
                parameters.append(p)
                parts += (layout, p.__class__, g._layout, g.__class__)
                cells += (storage, held)
                values = states.get(p)
                if values:
                    for name, value in values.items():
                        if value.__class__ in TENSOR_TYPES:
                            if name in optimizer.on_host:  # a program has asked for it
                                number = values[name] = int(value) if name == "step" else float(value)
                                parts += (name, number.__class__)
                                continue
                            storage = value._storage
                            if storage.layout is not value._layout:
                                return False
                            parts += (name, value._layout)
                            cells.append(storage)
                        else:
                            parts += (name, value.__class__)
            self.groups.append((group, parameters))
        return bool(cells) and len(set(cells)) == len(cells)

    def _options(self, group: dict[str, Any]) -> bool:
        """Add the options of a group; numbers and names only."""
        parts = self.parts
        parts.append(tuple(group))
        for name, value in group.items():
            kind = value.__class__
            if name in _FREE:
                if name == "lr" and kind is not float and kind is not int:
                    return False
            elif kind is float:
                parts.append(value or str(value))  # the zeros differ
            elif kind in _OPTIONS:
                parts.append(value)
            elif kind is tuple or kind is list:
                for number in value:
                    if number.__class__ is not float:
                        return False
                    parts.append(number or str(number))
            else:
                return False
        return True

    def record(self, optimizer: Stepping, stretch: Stretch) -> None:
        """Update as it is written, and learn from it."""
        _, macro, capture = record_call(self.cells, lambda: self._as_written(optimizer), True)
        if macro is not None and not macro.created and [d.arguments for d in macro.definitions] == [None] * len(self.groups):
            constants = [(k, plain(v)) for k, v in enumerate(capture.values) if scalar_tag(plain(v)) != "s"]
            macro.definitions = []  # they know the optimizer, which would never be freed
            stretch.macro, stretch.result = macro, (constants, generalised(macro))
        capture.release()

    def replay(self, optimizer: Stepping, stretch: Stretch) -> None:
        """Update by the recording, unless the numbers of this step would have been recorded differently."""
        macro: Any = stretch.macro
        given: list[list[float]] = []
        known: list[float] = []
        for group, parameters in self.groups:
            found = optimizer.step_numbers(group, parameters)
            given.append(found)
            known += found
        constants, guarded = stretch.result
        differs = False
        for k, value in constants:
            differs = differs or known[k] != value
        if differs or (guarded and takes_constants(macro, known)):
            if differs:
                stretch.macro = None
            optimizer._given = given
            try:
                self._as_written(optimizer)
            finally:
                optimizer._given = None
            return
        if not macro.ending or macro.start_directly(self.cells, known) is None:
            macro.replay(local.state.trace, self.cells, known)
        StretchCounts.replays += 1

    def _as_written(self, optimizer: Stepping) -> None:
        for group, parameters in self.scopes:
            whole, group["params"] = group["params"], parameters
            try:
                update(optimizer, group)
            finally:
                group["params"] = whole


def update_again(optimizer: Stepping) -> bool:
    """Update by a replay, or under a recording; False if nothing was done: the update is to run as it is written."""
    state = local.state
    kind = type(optimizer)
    if state.grad or not optimizer.replays or not may_replay() or kind.__module__.rpartition(".")[0] != _PACKAGE:
        return False
    if "update_group" in optimizer.__dict__ or "step_numbers" in optimizer.__dict__:  # put there by somebody
        return False
    update = Update(optimizer, [(group, group["params"]) for group in optimizer.param_groups])
    try:
        usual = update.collect(optimizer)
    except NotDense:  # a sparse gradient
        return False
    if not usual:
        return False
    table = optimizer._updates
    if table is None:
        optimizer._pieces = Pieces()  # first: whoever finds a table finds pieces
        table = optimizer._updates = Stretches()
    if table.alone():
        flush(_REASON)
        record_from_here(state, _REASON)
    stretch, pieces = table.here(update.parts), optimizer._pieces
    pieces.strange = pieces.strange + 1 if not stretch.calls else 0
    if stretch.macro is not None and stretch.macro.fits(state.trace, update.cells):
        update.replay(optimizer, stretch)
    elif stretch.due():
        update.record(optimizer, stretch)
    else:
        return pieces.strange > STRANGE and _by_pieces(optimizer, pieces, update)
    return True


def _by_pieces(optimizer: Stepping, pieces: Pieces, whole: Update) -> bool:
    """Update piece by piece; False if they are too many for that."""
    state = local.state
    found = pieces.cut(optimizer)
    if sum([len(parameters) for _, parameters in whole.groups]) < LEAST * len(found):
        return False
    for piece in found:
        part = Update(optimizer, [(optimizer.param_groups[piece.group], piece.parameters)])
        part.collect(optimizer)  # nothing is unusual, or the whole would be
        if state.trace.n or state.trace.cur.parent is not None:
            flush(_REASON)
            record_from_here(state, _REASON)
        stretch = piece.table.here(part.parts)
        macro = stretch.macro
        if macro is not None and macro.fits(state.trace, part.cells):
            part.replay(optimizer, stretch)
        elif stretch.due():
            part.record(optimizer, stretch)
            if stretch.macro is not None:
                stretch.macro.ending = _REASON  # each is started as soon as it is recorded
        else:
            part._as_written(optimizer)
    return True
