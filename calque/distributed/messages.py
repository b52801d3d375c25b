"""Messages from one process to another: `send`, `recv`, and those that do not wait."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.base.errors import ArgumentError, DistributedError, DTypeError, ShapeError
from calque.base.text import shown, type_name
from calque.distributed.collectives import Work, assign, require_tensor, root_of
from calque.distributed.exchange import beside, flat, values_of
from calque.distributed.group import ProcessGroup
from calque.distributed.record import DONE, FAILED, WAITING, Call, kind_of
from calque.distributed.watch import WATCH
from calque.distributed.world import group_of
from calque.observe.source import user_line
from calque.run.buffer import Buffer, strided
from calque.tensor import Tensor

MARK = 4  # bytes behind the data of a message
_BYTE = np.dtype(np.uint8)


def _peer(op: str, pg: ProcessGroup, rank: Any, group_rank: Any) -> int:
    found = root_of(op, pg, rank, group_rank)
    if found == pg.rank():
        raise ArgumentError(f"[{op}] expected the rank of another process, got this process's own, {pg.own}")
    return found


def _mark(dtype: Any) -> Any:
    """What says of which dtype a message is, behind its data."""
    return np.frombuffer(zlib.crc32(dtype.name.encode()).to_bytes(MARK, "little"), np.uint8)


def _tag(op: str, tag: Any) -> int:
    if isinstance(tag, bool) or not isinstance(tag, int) or not 0 <= tag < 1 << 15:
        raise ArgumentError(f"[{op}] expected tag to be a whole number from 0 to {(1 << 15) - 1}, got {shown(tag)}")
    return tag


def _follow(pg: ProcessGroup, call: Call, pending: Any, others: tuple[int, ...], after: Callable[[], None], outputs: list[Buffer]) -> Any:
    """A task that ends with the message."""

    def work() -> None:
        pause, deadline = 2e-5, time.monotonic() + pg.timeout
        call.begun, call.state = time.time(), WAITING
        try:
            while not pending.done():
                WATCH.look(call, others, deadline, pg.timeout)
                time.sleep(pause)
                pause = min(pause * 1.5, 1e-3)
            after()
        except Exception as error:
            call.ended, call.state = time.time(), FAILED
            if isinstance(error, pg.failures):
                raise DistributedError(f"[{call.op}] expected a message of the size of the tensor, got the error of {pg.name}: {error}") from None
            raise
        call.ended, call.state = time.time(), DONE

    return beside(work, outputs)


def _record(pg: ProcessGroup, op: str, t: Tensor, detail: str) -> Call:
    pg.messages += 1
    call = Call(pg.number, -pg.messages, kind_of(op, t._layout.dtype.name, tuple(t._layout.shape), detail), user_line())
    WATCH.recorder.calls.append(call)
    return call


def isend(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> Work | None:
    """Begin to send a tensor to rank `dst` (of the job; `group_dst`: of the group), once its values are there, for which this waits."""
    pg = group_of("isend", group)
    if pg is None:
        return None
    require_tensor("isend", tensor)
    peer = _peer("isend", pg, dst, group_dst)
    buffer = values_of([tensor])[0]
    layout = tensor._layout
    whole = np.empty(layout.nbytes + MARK, np.uint8)  # a copy: the tensor may be written to at once
    whole[: layout.nbytes].view(layout.dtype.np)[:] = strided(buffer.wait(), layout).reshape(-1)
    whole[layout.nbytes :] = _mark(layout.dtype)
    call = _record(pg, "isend", tensor, f"to {pg.ranks[peer]}")
    WATCH.require_health(call)
    pending = pg.send(whole, peer, _tag("isend", tag))
    return Work(_follow(pg, call, pending, (pg.ranks[peer],), lambda: None, []), [tensor])


def irecv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Work | None:
    """Begin to receive into `tensor` what rank `src` sends (default: any rank). Whoever reads the tensor waits for it."""
    pg = group_of("irecv", group)
    if pg is None:
        return None
    require_tensor("irecv", tensor)
    peer = None if src is None and group_src is None else _peer("irecv", pg, src, group_src)
    layout = tensor._layout
    whole = flat(layout.nbytes + MARK, _BYTE)
    call = _record(pg, "irecv", tensor, "from any rank" if peer is None else f"from {pg.ranks[peer]}")
    WATCH.require_health(call)
    pending = pg.receive(whole, peer, _tag("irecv", tag))
    values_of([])  # what is recorded reads the old values
    made = Buffer(None)

    def after() -> None:
        came = pending.count() - MARK
        if came != layout.nbytes:
            raise ShapeError(
                f"[irecv] expected {layout.nbytes} bytes for a tensor of shape {tuple(layout.shape)}, got a message of {came}; "
                "send and receive tensors of one shape and dtype"
            )
        if bytes(whole[layout.nbytes :]) != _mark(layout.dtype).tobytes():
            raise DTypeError(f"[irecv] expected a message of dtype {layout.dtype!r}, got one of another dtype; send and receive tensors of one dtype")
        made.array = whole[: layout.nbytes].view(layout.dtype.np)

    others = tuple(r for r in pg.ranks if r != pg.own) if peer is None else (pg.ranks[peer],)
    task = _follow(pg, call, pending, others, after, [made])
    assign(tensor, made)
    return Work(task, [tensor], lambda: pg.ranks[pending.source()])


def send(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> None:
    """Send a tensor to rank `dst`; returns when it may be overwritten there."""
    work = isend(tensor, dst, group, tag, group_dst)
    if work is not None:
        work.wait()


def recv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> int:
    """Receive into `tensor` what rank `src` sends (default: any rank); returns the sender's rank, -1 on a process that is no member."""
    work = irecv(tensor, src, group, tag, group_src)
    return -1 if work is None else work.source_rank()


class P2POp:
    """A message for `batch_isend_irecv`: `op` is `isend` or `irecv`."""

    def __init__(self, op: Any, tensor: Any, peer: int | None = None, group: Any = None, tag: int = 0, group_peer: int | None = None) -> None:
        if getattr(op, "__name__", "") not in ("isend", "irecv"):  # published functions are wrapped
            raise ArgumentError(f"[P2POp] expected op to be isend or irecv, got {shown(op)}")
        self.op, self.tensor, self.peer, self.group, self.tag, self.group_peer = op, tensor, peer, group, tag, group_peer


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Begin all messages of a list."""
    for entry in p2p_op_list:
        if not isinstance(entry, P2POp):
            raise ArgumentError(f"[batch_isend_irecv] expected a list of P2POp, got {type_name(entry)}")
    if not len(p2p_op_list):
        raise ArgumentError("[batch_isend_irecv] expected one P2POp or more, got none")
    # Receives first: a receive waits for nothing, and a message to somebody who expects it needs no memory on the way.
    begun = {id(e): e.op(e.tensor, e.peer, e.group, e.tag, e.group_peer) for e in sorted(p2p_op_list, key=lambda e: e.op.__name__ == "isend")}
    return [begun[id(entry)] for entry in p2p_op_list if begun[id(entry)] is not None]
