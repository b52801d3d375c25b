"""What a function records between its entry and its exit, as macros that can be recorded again without running it.

A `Capture` watches one call. Where a program starts, or Python looks at a value, one stretch ends and another begins; `finish` gives the list.
If a replay has done the beginning already (it came to a value that was never seen twice), the call runs again with a `Script` of that: what it
records is compared and bound to what exists, and from there on it is recorded as ever. So nothing happens twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any
from weakref import ref

from calque.base.device import Device
from calque.base.layout import Layout
from calque.observe.source import user_line
from calque.record.live import LIVE, LiveFloat, LiveInt, leaves, live, plain, rebuilt
from calque.record.numbers import scalar_tag
from calque.record.path import Edge
from calque.record.recorder import INPUT, Storage, Trace, flush, local, materialise
from calque.record.state import read_by_python
from calque.record.threads import LOCK
from calque.record.trie import BOUND, root
from calque.record.versions import written_since
from calque.record.watching import Watcher
from calque.replay.macro import ABSENT, ELSEWHERE, REALISED, Fresh, Macro, Number, Test, key_of, state_of
from calque.run.buffer import Buffer, host_array, strided
from calque.run.dispatch import raise_pending

ENDINGS = ("optimizer.step", BOUND, "parallel_apply", "pipeline")  # flushes that a replay repeats: nobody reads anything there
LARGEST_CONSTANT = 1 << 16  # elements of a tensor that is made of Python data
LARGEST = 256  # elements of a value that Python may read


class Diverged(RuntimeError):
    """A call that was run again took another path: it depends on something that the guards do not see."""


class Script:
    """What a replay has done of a call: the stretches with what their tests gave, and what sources of numbers said."""

    def __init__(self) -> None:
        self.steps: list[tuple[Macro, Any]] = []
        self.asked: list[list[Any]] = []
        self.buffers: dict[int, Buffer] = {}  # what the cells became, those that somebody still has
        self.ran: dict[int, Buffer] = {}  # the same by id of the storage, of those that existed before the call
        self.flushed = 0  # stretches that are in programs that were started
        self.broken = False


class Capture(Watcher):
    """Watches one call of a function. `failed` says why it cannot be replayed, if so.

    `closed`: the function reaches values only through the cells. Otherwise it may also name older slots of the trace, which the place of entry
    determines. `tree`: it may start several programs, and (`looks`) look at values. `exact`: what it does with floats is known, so they may stay
    numbers. `constants`: a number that is a constant of the program when nobody watches stays one. `oldest`: number of its first own node.
    """

    def __init__(
        self, cells: list[Storage | None], closed: bool = True, tree: bool = False, exact: bool = False, script: Script | None = None,
        looks: bool = True, constants: bool = False,
    ) -> None:  # fmt: skip
        self.closed, self.tree, self.exact, self.script, self.looks, self.constants = closed, tree, exact, script, tree and looks, constants
        self.active, self.failed = True, ""
        self.known: list[Any] = list(cells)  # references to those made in the call are weak
        self.entries, self.oldest = len(cells), 0
        self.values: list[Any] = []  # the numbers of the call
        self.asked: list[range] = []
        self.used: set[int] = set()
        self.segments: list[Macro] = []
        self.keys: list[Any] = []  # what the tests at the ends of the segments gave
        self.storages: list[Storage] = []  # new ones, alive when the call ended
        self.losses: list[tuple[Any, str]] = []  # where backward passes started
        self.given: list[list[Any]] = [] if script is None else list(script.asked)
        self.reading = self.met = False  # the latter: something that another thread has recorded
        self.looked_at: set[int] = set()  # ids of tensors; whoever looks which leaves have a gradient adds one
        self.stand_ins: dict[int, Any] = {}  # by id of a handle that stands for an argument: the argument
        self.targets: list[Storage] = []  # what Python is about to look at, or to copy to another device
        self._open()
        self.entry_trace, self.entry_first, self.entry_slots = self.trace, self.first, {s for s in self.stood if s >= 0}

    def _open(self) -> None:
        """Begin a stretch."""
        trace = local.state.trace
        self.trace, self.start, self.first = trace, trace.cur, trace.n
        self.marks = (len(trace.inputs), len(trace.scalars), len(trace.checks), len(trace.storages))
        self.begun = len(self.known)
        cells = [self.cell(k) for k in range(self.begun)]
        self.place = {id(st): k for k, st in enumerate(cells) if st is not None}
        self.stood = [state_of(trace, st) for st in cells]
        self.met = self.met or ELSEWHERE in self.stood
        self.versions = [0 if st is None else st.version for st in cells]
        buffers = [None if st is None else st.buffer for st in cells]  # asked once: another thread may overwrite a value at any time
        self.buffers = {id(buffer): (ref(buffer), k) for k, buffer in enumerate(buffers) if buffer is not None}
        self.definitions: list[Number] = []
        self.fresh: list[Fresh] = []
        self.shared: list[int] = []  # cells whose value others have too
        self.entered: dict[int, int] = {}  # slot -> cell whose value enters the trace there
        self.snapshots: dict[int, tuple[Any, Any, Layout]] = {}
        self.peeks: list[tuple[Storage, Layout, Callable[[Any], Any], Any]] = []

    def cell(self, k: int) -> Storage | None:
        """Storage number k, None if nobody has it any more."""
        found = self.known[k]
        return found() if found.__class__ is ref else found

    def abort(self, reason: str) -> None:
        """This call runs as it is written, and so will the next ones."""
        if not self.failed:
            self.failed = f"{reason} ({user_line()})"
            if self.scripted():
                raise Diverged(
                    f"[hybridize] expected a call to do again what calls like it did, but it {self.failed}; call hybridize(False), or pass what it "
                    "depends on as an argument"
                )

    def scripted(self) -> bool:
        """Whether what runs now has been done already."""
        return self.script is not None and len(self.segments) < len(self.script.steps)

    # --------------------------------------------------------------------------- told by the recorder and by higher layers

    def flushing(self, trace: Trace, reason: str) -> bool:
        """A program is about to be started; True if it need not be, because it was."""
        if not self.active:
            return False
        if reason not in ENDINGS and not self.reading:
            self.abort(f"starts a program: {reason}")
        elif not self.tree and self.segments:
            self.abort("starts more than one program")
        elif trace is not self.trace:
            self.abort("recorded in another trace")
        done = False
        if not self.failed:
            done = self.script is not None and len(self.segments) < self.script.flushed
            self.close(reason)
        plain_numbers(trace)
        if done and not self.failed:
            self._bind(trace, reason)
            self.flushed()
        return done

    def flushed(self) -> None:
        """The program was started."""
        if self.active and not self.failed and not self.reading and self.tree:
            self.keys.append(())
            self._open()

    def _bind(self, trace: Trace, reason: str) -> None:
        """Give the storages of the trace what they became when a replay ran it for this reason, and begin a new trace."""
        assert self.script is not None
        cells = {id(st): k for k in range(len(self.known)) for st in (self.cell(k),) if st is not None}
        with LOCK:  # other threads look for both, value and trace
            for storage in (*trace.attached.values(), *trace.storages):
                if storage.trace is trace:
                    if storage.buffer is None:
                        storage.buffer = self.script.buffers.get(cells.get(id(storage), -1)) or Buffer(None)  # the latter: nobody has it any more
                    storage.trace = storage.home = None
            trace.storages, trace.attached, trace.inputs = [], {}, []
            local.state.trace = Trace(root(reason))
            if len(self.segments) < self.script.flushed:
                local.state.trace.ran = self.script.ran

    def numbers(self, source: Callable[[], list[Any]], needed: bool = True) -> list[Any]:
        """What `source` says, as numbers that a replay asks it for. `needed`: some of them must be used, else they were lost."""
        values = self.given.pop(0) if self.given else source()
        if not self.active:
            return values
        first = self._define(Number(source, len(values)), values)
        baked = [self.constants and scalar_tag(v) != "s" for v in values]
        if needed and not all(baked):
            self.asked.append(range(first, len(self.values)))
        kinds = [LiveInt if isinstance(v, int) else LiveFloat for v in values]
        return [v if baked[k] else live(kinds[k], v, first + k, self) for k, v in enumerate(values)]

    def _define(self, number: Number, values: list[Any]) -> int:
        self.definitions.append(number)
        self.values += values
        return len(self.values) - len(values)

    def computed(self, function: Callable[..., Any], arguments: tuple[Any, ...], result: Any) -> Any:
        """Python computed something from a live number: another number, or a decision."""
        if self.failed or not self.active:
            return result
        self.used.update(a.index for a in arguments if a.__class__ in LIVE)
        if any(a.__class__ is LiveInt for a in arguments):
            self.abort("computes with a number that changes from call to call")
            return result
        number = Number(function, 1, tuple(("live", a.index) if a.__class__ in LIVE else a for a in arguments))
        if result.__class__ is float and function is not _FLOAT:
            return live(LiveFloat, result, self._define(number, [result]), self)
        if not self.looks:
            self.abort("computes with a number that changes from call to call")
            return result
        self._test(Test(-1, None, _nothing, False, number, user_line()), result)
        return result

    def read(self, storage: Storage, view: Layout, reason: str, convert: Callable[[Any], Any]) -> Any:
        """A value that Python looks at: `convert` makes it of the array."""
        if self.looks and not self.failed and view.numel <= LARGEST:
            value = self._read(storage, view, reason, convert)
            if value is not _MISSING:
                return value
        else:
            self.abort(f"reads {'many values' if self.looks else 'a value'}: {reason}")
        return _value(storage, view, reason, convert)

    def _read(self, storage: Storage, view: Layout, reason: str, convert: Callable[[Any], Any]) -> Any:
        if storage.buffer is None and storage.trace is not local.state.trace:
            self.abort("reads a value that another thread has recorded")
            return _MISSING
        scripted = self.scripted()
        self._stop([storage], reason, True, ())
        cell = self._number_of(storage)
        if cell < 0:
            self.abort("reads a value of a tensor that the guards do not reach")
        if self.failed:
            return _MISSING
        if scripted:
            assert self.script is not None
            value = self.script.steps[len(self.segments) - 1][1]
            if isinstance(value, BaseException):
                self.active, self.failed = False, f"raises {type(value).__name__}"
                raise value
        else:
            try:
                value = _value(storage, view, reason, convert)
            except BaseException as error:
                self.abort(f"raises {type(error).__name__}")
                raise
        floats = value.__class__ is float or (value.__class__ is list and view.dtype.category == 2)
        loss = next((line for held, line in self.losses if held() is storage and value.__class__ is float), "")
        test = Test(cell, view, convert, self.exact and floats, None, user_line(), loss)
        return self._test(test, value, scripted)

    def _stop(self, targets: list[Storage], reason: str, awaited: bool, wanted: tuple[int, ...]) -> None:
        """End a stretch because something is done with the values of the targets: their program is started if they have none yet."""
        self.reading, self.targets = True, targets
        try:
            if any(storage.buffer is None for storage in targets):
                flush(reason, awaited, wanted)
            else:
                self.close("")
        finally:
            self.reading, self.targets = False, []

    def copied(
        self, sources: Sequence[tuple[Storage, Layout]], device: Device, reason: str, wanted: tuple[int, ...],
        start: Callable[[list[Buffer] | None], list[Storage]],
    ) -> list[Storage]:  # fmt: skip
        """Values go to another device. `start` copies them, or takes what it is given for the copies."""
        if not self.failed:
            if not self.tree or not self.active:
                self.abort("copies a value between devices")
            elif any(storage.buffer is None and storage.trace is not local.state.trace for storage, _ in sources):
                self.abort("copies a value that another thread has recorded")
        if self.failed:
            return start(None)
        scripted = self.scripted()
        self._stop([storage for storage, _ in sources], reason, False, wanted)
        copies = ([(self._number_of(storage), view) for storage, view in sources], device)
        if any(cell < 0 for cell, _ in copies[0]):
            self.abort("copies a value that the guards do not reach")
        if self.failed:
            return start(None)
        if scripted and self.segments[-1].copies != copies:
            self.abort("copies something else than before")
        self.segments[-1].copies = copies
        given: list[Buffer] | None = None
        if self.script is not None and len(self.segments) <= self.script.flushed:
            given = [self.script.buffers.get(len(self.known) + k) or Buffer(None) for k in range(len(sources))]
        made = start(given)
        self.known += [ref(storage) for storage in made]
        self.keys.append(())
        self._open()
        return made

    def _number_of(self, storage: Storage) -> int:
        """The number of a cell; those that the last stretch made included."""
        for k in range(len(self.known) - 1, -1, -1):
            if self.cell(k) is storage:
                return k
        return -1

    def _test(self, test: Test, value: Any, scripted: bool | None = None) -> Any:
        """The call goes on as it does because of `value`."""
        if scripted is None:  # a decision on numbers, in the middle of recording
            self.close("")
            if self.failed:
                return value
        if self.script is not None and len(self.segments) <= len(self.script.steps):
            self._compare(self.script.steps[len(self.segments) - 1][0].test, test)
        else:
            self.segments[-1].test = test
        if test.live:
            first, values = len(self.values), leaves(value)
            self.values += values
            numbers = iter([live(LiveFloat, v, first + k, self) for k, v in enumerate(values)])
            value = rebuilt(value, numbers)
        self.keys.append(() if test.live else key_of(value))
        self._open()
        return value

    def _compare(self, expected: Test | None, found: Test) -> None:
        if expected is None or expected.fingerprint() != found.fingerprint():
            self.abort(f"looks at something else than before at {'its end' if expected is None else expected.line}")

    def enter(self, storage: Storage, slot: int) -> None:
        """The value of a storage has entered the trace."""
        number = self.place.get(id(storage), -1) if self.active else -1
        if number >= 0 and self.cell(number) is storage:
            self.entered[slot] = number

    def snapshot(self, copy: Buffer, buffer: Buffer, view: Layout) -> None:
        self.snapshots[id(copy)] = (copy, buffer, view)

    def peek(self, storage: Storage, view: Layout, verdict: Callable[[Any], Any], result: Any) -> None:
        self.peeks.append((storage, view, verdict, result))

    def constant(self, storage: Storage) -> None:
        """The values of a new storage follow from what the guards compare: a replay makes them again."""
        buffer = storage.buffer
        if self.active and self.tree and buffer is not None:
            if buffer.array.size > LARGEST_CONSTANT:
                self.abort("makes a large tensor from Python data")
            self._adopt(storage, Fresh(-1, host_array(buffer.array).copy(), storage.layout, buffer.floating))

    def twin(self, source: Storage, storage: Storage) -> None:
        """A new storage has the value of another that exists already."""
        number = self.place.get(id(source), -1) if self.active and self.tree else -1
        if number >= 0 and self.cell(number) is source:
            self.shared.append(number)
            self._adopt(storage, Fresh(number, None, storage.layout))

    def _adopt(self, storage: Storage, fresh: Fresh) -> None:
        """A cell that comes up in the middle of a stretch; a replay makes it at its beginning."""
        number = len(self.known)
        self.fresh.append(fresh)
        self.known.append(ref(storage))
        self.place[id(storage)] = number
        self.stood.append(REALISED)
        self.versions.append(storage.version)
        if fresh.source < 0 and storage.buffer is not None:
            self.buffers[id(storage.buffer)] = (ref(storage.buffer), number)
        self.begun += 1

    # ------------------------------------------------------------------------------------------------------------ the end

    def close(self, ending: str) -> None:
        """Make the macro of what was recorded since the last one."""
        trace = self.trace
        inputs0, scalars0, checks0, storages0 = self.marks
        edges = self._edges()
        inputs = self._inputs(trace, inputs0, edges)
        scalars = trace.scalars[scalars0:]
        numbers = [(k, v.index) for k, v in enumerate(scalars) if v.__class__ in LIVE]
        self.used.update(index for _, index in numbers)
        self._known_slots(edges)
        created: list[Storage] = []
        dropped: list[int] = []
        for k in range(len(trace.storages)):
            st = trace.storages[k]
            if st.trace is not trace:
                continue
            number = self.place.get(id(st), -1)
            alone = getrefcount(st) <= 3  # the list, `st` and the argument
            if number >= 0 and self.cell(number) is st:
                if number >= self.entries and alone:
                    dropped.append(number)
            elif k >= storages0 and not alone:
                if st.home is not None:
                    self.abort("writes to a tensor that the guards do not reach")
                created.append(st)
        st = None
        cells = [self.cell(k) for k in range(self.begun)]
        dropped += [k for k in range(self.entries, self.begun) if cells[k] is None and self.stood[k] != ABSENT]
        written = [
            (k, c.slot, written_since(c, v), c.layout, c.writer) for k, (c, v) in enumerate(zip(cells, self.versions, strict=True))
            if c is not None and c.version != v
        ]  # fmt: skip
        order = {id(st): k for k, st in enumerate(trace.storages)}  # a replay lists them as the call did: programs depend on it
        written.sort(key=lambda w: order.get(id(cells[w[0]]), -1))
        appended = [order[id(cells[w[0]])] for w in written if order.get(id(cells[w[0]]), -1) >= storages0]
        if (others := [cells[w[0]].trace for w in written if cells[w[0]].trace is not trace]):  # type: ignore[union-attr]
            self.met = self.met or any(others)
            self.abort("writes to a tensor whose value leaves the call")
        used = self._used(inputs, written)
        peeks = self._peeks(used)
        expect = [(k, self.stood[k]) for k in sorted(used)]
        if any(s in (ELSEWHERE, ABSENT) for _, s in expect):
            self.abort("uses a tensor that another thread has recorded")
        macro = Macro(
            self.start, trace.cur, trace.n, inputs, expect, [plain(v) for v in scalars], numbers, self.definitions, trace.checks[checks0:],
            [(st.slot, st.layout) for st in created], written, ending, peeks, sorted(set(dropped)), self.fresh,
        )  # fmt: skip
        if not self.tree:
            macro.order = _order([order[id(st)] for st in created] + appended)
        cells = []
        self._add(macro, created)

    def _add(self, macro: Macro, created: list[Storage]) -> None:
        """One more segment; what was done already must be what was done."""
        if self.scripted():
            assert self.script is not None
            old = self.script.steps[len(self.segments)][0]
            if old.stretch() != macro.stretch():
                self.abort("records something else than before")
            macro = old
        self.segments.append(macro)
        self.known += [ref(st) for st in created]

    def _used(self, inputs: list[Any], written: list[Any]) -> set[int]:
        """Cells from outside the call whose state at entry matters."""
        used = {cell for cell, _, _ in inputs} | {w[0] for w in written}
        if not self.segments:
            used.update(k for k, s in enumerate(self.stood) if s >= 0)
        elif self.trace is self.entry_trace:
            used.update(k for k, s in enumerate(self.stood) if 0 <= s < self.entry_first)
        used.update(self.place.get(id(storage), -1) for storage in self.targets)
        used.update(self.shared)
        return {k for k in used if 0 <= k < self.entries}

    def _peeks(self, used: set[int]) -> list[Any]:
        found = []
        peeks, self.peeks = self.peeks, []  # a reference here would make the values outlive the call
        for storage, view, verdict, result in peeks:
            cell = self._standing(self.place.get(id(storage), -1))
            if cell is None:
                continue
            if cell < 0:
                self.abort("checks values of a tensor that the guards do not reach")
            else:
                used.add(cell)
            found.append((cell, view, verdict, result))
        return found

    def _standing(self, cell: int) -> int | None:
        """The cell that holds the value of this one when the stretch begins; None for constants."""
        first = self.begun - len(self.fresh)
        while cell >= first:
            fresh = self.fresh[cell - first]
            if fresh.source < 0:
                return None
            cell = fresh.source
        return cell

    def _edges(self) -> list[Edge]:
        found: list[Edge] = []
        edge: Edge | None = self.trace.cur
        while edge is not None and edge is not self.start:
            found.append(edge)
            edge = edge.parent
        if edge is None:
            self.abort("recorded in another trace")
        found.reverse()
        return found

    def _inputs(self, trace: Trace, first: int, edges: list[Edge]) -> list[tuple[int, int, Layout | None]]:
        slots = [self.first + k for k, edge in enumerate(edges) if edge.op is INPUT]
        found: list[tuple[int, int, Layout | None]] = []
        if len(slots) != len(trace.inputs) - first:
            self.abort("recorded in another trace")
            return found
        for k, slot in enumerate(slots):
            buffer = trace.inputs[first + k]
            copied = self.snapshots.get(id(buffer))
            if copied is None and slot in self.entered:
                found.append((self.entered[slot], slot, None))
                continue
            source = buffer if copied is None else copied[1]  # a template's own storages show the memory of cells
            held, cell = self.buffers.get(id(source), (None, -1))
            storage = self.cell(cell) if cell >= 0 else None
            gone = storage is None and cell >= self.entries  # made by the call, which has no more use for it
            if held is None or held() is not source or not (gone or (storage is not None and (storage.buffer is source or storage.home is source))):
                self.abort(_MADE)
                continue
            found.append((cell, slot, None if copied is None else copied[2]))
        return found

    def _known_slots(self, edges: list[Edge]) -> None:
        """Every older slot that the stretch uses must belong to a cell."""
        if not self.entry_first or not self.closed or self.trace is not self.entry_trace:
            return
        for edge in edges:
            for source in edge.inputs:
                if isinstance(source, int) and source < self.entry_first and source not in self.entry_slots:
                    self.abort("uses a value recorded earlier that the guards do not reach")
                    return

    def watch(self, function: Callable[[], Any]) -> Any:
        """Run the call. If it raises, nothing comes of the recording."""
        state = local.state
        state.capture = self
        try:
            return function()
        except BaseException:
            plain_numbers(state.trace)
            if self.script is not None:
                self.script.broken = len(self.segments) < self.script.flushed
            self.release()
            raise
        finally:
            state.capture = None

    def release(self) -> None:
        """The call is over: numbers that are kept somewhere must keep nothing alive."""
        self.active = False
        self.known, self.storages, self.segments, self.peeks, self.script = [], [], [], [], None
        self.buffers, self.place = {}, {}

    def finish(self) -> Macro | None:
        """The last macro of the call, without storages that died with the call's local variables. None if it cannot be replayed."""
        trace = local.state.trace
        if not self.failed and self.scripted():
            self.abort("ends earlier than before")
        if self.segments and self.segments[-1].test is None and self.segments[-1].copies is None and self._idle():
            self.keys = self.keys[: len(self.segments) - 1]
        elif not self.failed:
            if trace is not self.trace:
                self.abort("recorded in another trace")
            else:
                self.close("")
        plain_numbers(trace)
        self.active = False
        if not self.failed and any(not self.used.intersection(numbers) for numbers in self.asked):
            self.abort("loses a number that changes from call to call")
        if self.failed or not self.segments:
            return None
        return self._finished(self.segments[-1])

    def _idle(self) -> bool:
        """Whether nothing was recorded since the last program was started."""
        return not local.state.trace.n and not self.definitions and not self.peeks

    def _finished(self, macro: Macro) -> Macro:
        if self.script is not None and len(self.segments) <= len(self.script.steps):
            self.abort("ends earlier than before")
        first = len(self.known) - len(macro.created)
        alive = [k for k in range(self.entries, len(self.known)) if self._held(k)]
        kept, keep = [k for k in alive if k < first], [k for k in alive if k >= first]
        if macro.order is not None and len(keep) < len(macro.created):
            gone = set(range(len(macro.created))) - {k - first for k in keep}
            left = [k for k in macro.order if k not in gone]
            macro.order = [sorted(left).index(k) for k in left]
        macro.created = [macro.created[k - first] for k in keep]
        self.storages = [self.cell(k) for k in alive]  # type: ignore[misc]
        macro.kept = [*kept, *range(first, first + len(keep))] if first > self.entries or len(self.segments) > 1 else None
        return macro

    def _held(self, k: int) -> bool:
        """Whether somebody other than the trace has a storage that the call made."""
        st = self.cell(k)
        return st is not None and getrefcount(st) > (3 if st.trace is local.state.trace else 2)


_MISSING: Any = object()
_MADE = "uses a tensor made inside from Python or NumPy data, or one that the guards do not reach"
_FLOAT = float.__float__


def _nothing(value: Any) -> Any:
    return value


def _value(storage: Storage, view: Layout, reason: str, convert: Callable[[Any], Any]) -> Any:
    flat = (buffer := storage.buffer or materialise(storage, reason)).readable()
    raise_pending()
    read_by_python(local.state, buffer)
    return convert(strided(flat, view))


def _order(places: list[int]) -> list[int] | None:
    """The numbers of places in their order; None if they are in order."""
    order = sorted(range(len(places)), key=places.__getitem__)
    return order if order != list(range(len(places))) else None


def plain_numbers(trace: Trace) -> None:
    """Live numbers have done their work: programs want plain ones."""
    if any(v.__class__ in LIVE for v in trace.scalars):
        trace.scalars[:] = [plain(v) for v in trace.scalars]


def abort(reason: str) -> None:
    """Tell a capture, if one is running, that this call cannot be replayed."""
    if (capture := local.state.capture) is not None:
        capture.abort(reason)
