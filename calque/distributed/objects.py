"""Objects between processes: numbers, strings, lists, dicts, tensors, arrays and more, in the form in which `calque.save` writes them. Nothing is
pickled, so nothing that arrives is executed."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from calque.base.dtypes import uint8
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.distributed.collectives import as_bytes, root_of
from calque.distributed.exchange import exchange, wait_for
from calque.distributed.group import ProcessGroup, Turn
from calque.distributed.messages import recv, send
from calque.distributed.record import kind_of
from calque.distributed.world import group_of
from calque.functional.creation import from_numpy, tensor, zeros
from calque.io import load, save


def _packed(obj: Any) -> Any:
    stream = BytesIO()
    save(obj, stream)
    return np.frombuffer(stream.getvalue(), np.uint8)


def _unpacked(array: Any) -> Any:
    return load(BytesIO(array.tobytes()))


def _now(pg: ProcessGroup, op: str, detail: str, work: Any) -> Any:
    """Do it, in its turn, and wait for it."""
    found = list[Any]()

    def run(_: Any) -> list[Any]:
        found.append(work())
        return []

    wait_for(exchange([], [], Turn(pg, kind_of(op, "object", None, detail), run), op, True)[1])
    return found[0]


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """The items of `object_list`, one per rank, become the objects of all ranks. What an object may consist of says `calque.save`.

    Raises TypeError, before anything is sent, for an object that would have to be pickled.
    """
    pg = group_of("all_gather_object", group)
    if pg is None:
        return
    _require_list("all_gather_object", object_list, pg.size())
    data = _packed(obj)

    def work() -> list[Any]:
        sizes = np.zeros(pg.size(), np.int64)
        pg.all_gather(np.array([data.size], np.int64), sizes)
        padded, found = np.zeros(sizes.max(), np.uint8), np.zeros((pg.size(), sizes.max()), np.uint8)
        padded[: data.size] = data
        pg.all_gather(padded, found)
        return [row[:n] for row, n in zip(found, sizes, strict=True)]

    object_list[:] = [_unpacked(row) for row in _now(pg, "all_gather_object", "", work)]


def gather_object(obj: Any, object_gather_list: Any = None, dst: Any = None, group: Any = None, group_dst: Any = None) -> None:
    """On rank `dst` (default 0) the items of the list become the objects of all ranks."""
    pg = group_of("gather_object", group)
    if pg is None:
        return
    root = root_of("gather_object", pg, dst, group_dst, pg.ranks[0])
    here = pg.rank() == root
    if here:
        _require_list("gather_object", object_gather_list, pg.size())
    found: list[Any] = [None] * pg.size()
    all_gather_object(found, obj, pg)
    if here:
        object_gather_list[:] = found


def broadcast_object_list(object_list: list[Any], src: Any = None, group: Any = None, device: Any = None, group_src: Any = None) -> None:
    """The items of the list become those of rank `src` (default 0)."""
    pg = group_of("broadcast_object_list", group)
    if pg is None:
        return
    if not isinstance(object_list, list):
        raise ArgumentError(f"[broadcast_object_list] expected a list, got {shown(object_list)}")
    root = root_of("broadcast_object_list", pg, src, group_src, pg.ranks[0])
    data = _packed(object_list) if pg.rank() == root else np.zeros(0, np.uint8)

    def work() -> Any:
        size = np.array([data.size], np.int64)
        pg.broadcast(as_bytes(size), root)
        found = data.copy() if pg.rank() == root else np.zeros(int(size[0]), np.uint8)
        pg.broadcast(found, root)
        return found

    found = _now(pg, "broadcast_object_list", f"from {pg.ranks[root]}", work)
    if pg.rank() == root:
        return
    objects = _unpacked(found)
    if len(objects) != len(object_list):
        raise ArgumentError(f"[broadcast_object_list] expected as many items as on rank {pg.ranks[root]}, {len(objects)}, got {len(object_list)}")
    object_list[:] = objects


def scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: Any = None, src: Any = None, group: Any = None, group_src: Any = None
) -> None:
    """Item 0 of the output list becomes this rank's item of the input list of rank `src` (default 0)."""
    pg = group_of("scatter_object_list", group)
    if pg is None:
        return
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ArgumentError(f"[scatter_object_list] expected a list of one item or more for the result, got {shown(scatter_object_output_list)}")
    root = root_of("scatter_object_list", pg, src, group_src, pg.ranks[0])
    given = [scatter_object_input_list]
    if pg.rank() == root:
        _require_list("scatter_object_list", scatter_object_input_list, pg.size())
    broadcast_object_list(given, pg.ranks[root], pg)
    scatter_object_output_list[0] = given[0][pg.rank()]


def send_object_list(
    object_list: list[Any], dst: Any = None, group: Any = None, device: Any = None, group_dst: Any = None, use_batch: bool = False
) -> None:
    """Send the items of a list to rank `dst`, which calls `recv_object_list`; returns when they may change. use_batch: changes nothing.

    Raises TypeError, before anything is sent, for an object that would have to be pickled.
    """
    pg = group_of("send_object_list", group)
    if pg is None:
        return
    if not isinstance(object_list, list) or not object_list:
        raise ArgumentError(f"[send_object_list] expected a list of one item or more, got {shown(object_list)}")
    data = _packed(object_list)
    send(tensor([data.size]), dst, group, group_dst=group_dst)
    send(from_numpy(data.copy()), dst, group, group_dst=group_dst)


def recv_object_list(
    object_list: list[Any], src: Any = None, group: Any = None, device: Any = None, group_src: Any = None, use_batch: bool = False
) -> int:
    """The items of the list become those that rank `src` (default: any rank) sends; returns its rank, -1 on a process that is no member."""
    pg = group_of("recv_object_list", group)
    if pg is None:
        return -1
    if not isinstance(object_list, list) or not object_list:
        raise ArgumentError(f"[recv_object_list] expected a list with a place for each item, got {shown(object_list)}")
    size = tensor([0])
    who = recv(size, src, group, group_src=group_src)
    data = zeros(int(size.item()), dtype=uint8)
    recv(data, who, group)
    objects = load(BytesIO(data.numpy().tobytes()))
    if len(objects) != len(object_list):
        raise ArgumentError(f"[recv_object_list] expected as many items as rank {who} sends, {len(objects)}, got places for {len(object_list)}")
    object_list[:] = objects
    return who


def _require_list(op: str, items: Any, count: int) -> None:
    if not isinstance(items, list) or len(items) != count:
        raise ArgumentError(f"[{op}] expected a list of {count} items, one per rank, got {shown(items)}")
