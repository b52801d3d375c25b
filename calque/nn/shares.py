"""Parameters of which every process holds a part (`calque.distributed.fully_shard`): what whoever looks at all of them must know."""

from __future__ import annotations

from typing import Any, Protocol

from calque.base.errors import ArgumentError
from calque.functional.common import is_tensor


class Share(Protocol):
    """How a parameter is shared out. All processes that hold a part make the same calls."""

    @property
    def group(self) -> Any:
        """The processes."""

    def whole(self, part: Any) -> Any:
        """The tensor of all parts of something that lies as the parameter does."""

    def part(self, whole: Any) -> Any:
        """This process's part of a tensor of the shape of the whole."""

    def norm(self, norm: Any, order: float) -> Any:
        """The norm of all parts, from that of this process's."""

    def everywhere(self, flag: Any) -> Any:
        """Whether a 0-d bool is true in all processes."""

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Those of the whole and of the part."""


def share_of(parameter: Any) -> Share | None:
    """How a parameter is shared out; None if it is whole."""
    return parameter.__dict__.get("_share")  # type: ignore[no-any-return]


def whole_state(values: Any, parameter: Any) -> Any:
    """What an optimizer keeps for a parameter, of all processes."""
    share = share_of(parameter)
    if share is None or not isinstance(values, dict):
        return values
    own = share.shapes()[1]
    return {name: share.whole(value) if is_tensor(value) and tuple(value._layout.shape) == own else value for name, value in values.items()}


def part_of_state(values: Any, parameter: Any) -> Any:
    """The part of what `whole_state` gave that belongs to this process."""
    share = share_of(parameter)
    if share is None or not isinstance(values, dict):
        return values
    whole = share.shapes()[0]
    fits = {name for name, value in values.items() if name != "step" and is_tensor(value) and tuple(value._layout.shape) == whole}
    return {name: share.part(value) if name in fits else value for name, value in values.items()}


def require_whole(owner: str, parameters: Any) -> None:
    """Raise if parameters are shared out whose update looks at all their numbers together."""
    if any(share_of(p) is not None for p in parameters):
        raise ArgumentError(
            f"[{owner}] expected whole parameters, got some of which every rank holds a part (fully_shard), and {owner} looks at all numbers of a "
            "parameter together; use an optimizer that does not, such as AdamW or SGD"
        )
