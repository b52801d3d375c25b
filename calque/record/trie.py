"""The trie of everything that was recorded, the places where pending work is cut, and what is forgotten.

What has been recorded since the last flush starts programs when a bound is reached (`Edge.boundary`). Where that happens must follow from what is
recorded, not from how much was recorded before: a loop whose iterations nobody reads from would else be cut somewhere else in every iteration, and
never meet its programs again. The first cut comes at a number of operations. Paths behind a cut begin at a root of their own, where cuts are
chosen by content (`beat`): every position has a number that follows from the last operations alone, and a path ends a few operations behind the
largest of those it has passed. So all paths that pass the same largest number end at the same operation, wherever they began.
"""

from __future__ import annotations

from zlib import crc32

from calque.base.cache import Cache, Table, register
from calque.base.config import settings
from calque.observe.causes import Causes
from calque.record.path import INPUT, START, Counters, Edge, Key

BOUND = "bound on pending work"  # reason of flushes at a boundary
WINDOW = 16  # operations that the number of a position follows from
LONG = 768  # operations of a program that is worth cutting, see `loosen`
QUIET = 128  # operations without a larger number that end a path; a number that comes again ends one that is twice as long
LOOSE = 32  # the same where paths seldom come again: short ones do so more often, but each costs a flush, and the interpreter's lock twice
EDGE = 700  # bytes of an edge, roughly
_BITS = 4  # by which each operation moves the ones before it out of the window
_MASK = (1 << (_BITS * WINDOW)) - 1


def beat(edge: Edge, rhythm: tuple[int, int, int, int]) -> None:
    """Find out whether a path behind a cut ends at this new operation. `rhythm`: of the path before it.

    Inputs and views enter a path where it first uses them, which depends on where it began; they have no part in this. Where a number comes again
    before the path has become quiet (a short loop), it ends at that number: a path of whole iterations.
    """
    code, count, largest, met = rhythm
    code = ((code << _BITS) + hash((crc32(edge.op.name.encode()), len(edge.layout.shape)))) & _MASK
    count += 1
    quiet = min(LOOSE if edge.loose else QUIET, max(1, settings.max_pending_ops // 4))
    if count >= min(WINDOW, quiet):
        if code >= largest:
            largest, met = code, count
            ends = count >= 2 * quiet
        else:
            ends = count - met >= quiet
        edge.boundary = edge.boundary or ends
    edge.rhythm = (code, count, largest, met)


def loosen(edge: Edge) -> None:
    """A program ends here at a line whose programs seldom come again: if it is long, small operations that leave its path, or another one that begins
    as it does, are computed at once (`at_once.py`), and the large ones are cut by content as what follows a cut is. Pieces of such programs come
    again where the whole does not: the bodies of a loop of another length, blocks in another order."""
    if edge.depth < LONG:
        return
    first = before = edge
    while before.parent is not None:
        before = before.parent
        if before.op not in (None, INPUT):  # every program begins with an input
            first = before
    if not first.loose:
        Counters.loose = True
        found = [first]
        for edge in found:  # it grows
            edge.loose = True
            found.extend(set(edge.next.values()))


_ROOT = Edge(None, None, (), (), None, "")
_BEHIND_CUT = Edge(None, None, (), (), None, "")
_BEHIND_CUT.rhythm = START
_LOOSE = Edge(None, None, (), (), None, "")
_LOOSE.loose = True


_ROOTS = (_ROOT, _BEHIND_CUT, _LOOSE)


def root(reason: str = "", loose: bool = False) -> Edge:
    """The empty path of what is recorded after a flush for this reason. `loose`: behind a part of a path that seldom comes again."""
    return _LOOSE if loose else _BEHIND_CUT if reason == BOUND else _ROOT


def varies(following: dict[Key, Edge], mark: Key, line: str) -> bool:
    """Whether the offset of a view or an update that is new at a place is to be a run-time argument: the place has met another one, or a place of
    the same line and shape has. So a loop that picks something else at every turn soon has one path, and not one for each choice. `mark`: ("seen",
    the operation, its operands, shape, strides), under which `following` knows what the place has met."""
    _, op, _, shape, strides = mark
    key = (line, op, shape, strides)
    return mark in following and VARYING.keep(key, True) or VARYING.get(key) is not None


def retire(following: dict[Key, Edge], mark: Key, successor: Edge) -> None:
    """Forget the path behind an offset that was baked into an edge, as its place has met another one: `successor` takes whatever comes there at run
    time. With two edges at each, n such places would make two to the power of n paths. `mark`: where `following` has the edge again. (Numbers keep
    both edges: a program with a known 2 or 0.5 may round differently, and equal loops of one process could differ.)"""
    edge = following.pop(mark, None)
    following[mark] = successor  # behind its own key, which is the one that is found by searching for the edge
    if edge is not None:
        for key in [key for key, found in following.items() if found is edge]:
            del following[key]
        gone = [edge]
        for edge in gone:  # it grows
            edge.retired = True
            gone.extend(set(edge.next.values()))
        Counters.edges -= len(gone)
        Counters.nbytes -= sum(map(_held, gone))


def forget() -> None:
    """Forget everything that was recorded, with its programs."""
    Counters.evictions += 1  # what was recorded of library code leads to edges that nobody finds again
    for start in _ROOTS:
        start.next.clear()
    VARYING.clear()
    for site in list(Causes.sites.values()):
        site[2:] = 0, site[0], 0, {}
    Counters.edges = Counters.nbytes = 0
    Counters.loose = False


def full() -> bool:
    """Whether something has to be forgotten before more is recorded."""
    limit = _TABLE.limit()  # programs come between two times that this is asked
    return Counters.edges >= settings.max_trie_edges or Counters.edges * EDGE + Counters.nbytes >= limit - limit // 32


def make_room(edge: Edge) -> None:
    """Forget what was used least recently if the trie is full, but nothing that leads to this edge."""
    if full():
        evict(edge)


def evict(here: Edge = _ROOT) -> None:
    """Forget what was used least recently, until three quarters of what may be kept are left. Loops that still run find their paths again. `here`:
    where the calling thread records. What is forgotten is only no longer found: who has come to such an edge goes on from it."""
    Counters.evictions += 1
    found: list[Edge] = list(_ROOTS)
    for edge in found:  # it grows
        found.extend(set(edge.next.values()))
    latest: dict[Edge, int] = {}  # when a program at the edge or behind it ran last
    weight: dict[int, int] = {}  # bytes by that time
    now = here.used = max(edge.used for edge in found)
    for edge in reversed(found):
        last = max([edge.used, *[latest.get(following, now) for following in edge.next.values()]])  # `now`: other threads go on recording
        latest[edge] = last
        weight[last] = weight.get(last, 0) + EDGE + _held(edge)
    room = min(_TABLE.limit(), settings.max_trie_edges * EDGE) * 3 // 4
    oldest = max(weight, default=0) + 1
    for last in sorted(weight, reverse=True):
        room -= weight[last]
        if room < 0:
            break
        oldest = last
    for edge in found:
        for key, following in list(edge.next.items()):
            if latest.get(following, now) < oldest:
                edge.next.pop(key, None)
    for edge in found[len(_ROOTS):]:
        if latest[edge] < oldest:
            edge.next.clear()  # parts cycles: what nobody has any more goes at once
    left = [edge for edge in found[len(_ROOTS):] if latest[edge] >= oldest]
    Counters.edges, Counters.nbytes = len(left), sum(map(_held, left))


def _held(edge: Edge) -> int:
    """Bytes of the programs of an edge."""
    return sum(plan.nbytes for plan in edge.plans.values()) if edge.plans else 0


VARYING = Cache("offsets that vary", 400, 1 / 128)  # (line, operation, shape, strides) of views and updates
_TABLE = register("trie", Table(141 / 256, lambda: (Counters.edges, Counters.edges * EDGE + Counters.nbytes), 100 * EDGE))
