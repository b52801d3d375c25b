"""PyTorch's `torch.autograd.forward_ad`: tensors that carry a tangent, inside a level.

>>> import calque
>>> import calque.autograd.forward_ad as forward
>>> with forward.dual_level():
...     x = forward.make_dual(calque.tensor([1.0, 2.0]), calque.tensor([1.0, 0.0]))
...     forward.unpack_dual(x * x).tangent
tensor([2., 0.])
"""

from __future__ import annotations

from typing import Any, NamedTuple

from calque.autograd.transform.dual import DualFrame
from calque.autograd.transform.frame import frames
from calque.autograd.transform.gradients import linearize  # noqa: F401 - forward mode asks for it
from calque.base.errors import AutogradError
from calque.base.text import type_name
from calque.tensor import Tensor

__all__ = ["UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual", "unpack_dual"]


class UnpackedDualTensor(NamedTuple):
    """A value and its tangent, None if it has none."""

    primal: Tensor
    tangent: Tensor | None


class _Level(DualFrame):
    """The frame of a level that was entered."""

    name = "forward_ad"


def _level(op: str) -> Any:
    found = frames()
    if not found or found[0].__class__ is not _Level:
        raise AutogradError(
            f"[{op}] Trying to create a dual Tensor for forward AD but no level exists, make sure to enter_dual_level() first; expected a call "
            "inside `with dual_level():`"
        )
    return found[0]


def enter_dual_level() -> int:
    """Begin a level; gives its number, for `exit_dual_level`. There is one at a time, as in PyTorch: `calque.func.jvp` nests."""
    if any(f.__class__ is _Level for f in frames()):
        raise AutogradError("[enter_dual_level] Nested forward mode AD is not supported at the moment: expected no level, got one; use func.jvp")
    _Level().__enter__()
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """End the level: tensors made in it keep their values and lose their tangents."""
    found = frames()
    if level not in (None, 0) or not found or found[0].__class__ is not _Level:
        raise AutogradError(
            f"[exit_dual_level] Trying to exit a forward AD level that was not the last one that was created, or none was; got level {level}; "
            "use `with dual_level():`"
        )
    found[0].__exit__()


class dual_level:
    """A level inside a `with` block.

    >>> import calque
    >>> with calque.autograd.forward_ad.dual_level() as level:
    ...     level
    0
    """

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(self, *_: object) -> None:
        exit_dual_level(level=0)


def _checked(op: str, x: Any, name: str) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"[{op}] expected {name} to be a Tensor, got {type_name(x)}")


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """`tensor` as a value that moves along `tangent`, a floating tensor of the same shape and dtype: results of operations with it have tangents too.

    >>> import calque
    >>> from calque.autograd.forward_ad import dual_level, make_dual, unpack_dual
    >>> with dual_level():
    ...     unpack_dual(make_dual(calque.tensor(3.0), calque.tensor(1.0)) ** 2).tangent
    tensor(6.)
    """
    _checked("make_dual", tensor, "tensor")
    _checked("make_dual", tangent, "tangent")
    return _level("make_dual").move("make_dual", tensor, tangent)  # type: ignore[no-any-return]


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """(primal, tangent) of a tensor; the tangent is None if it does not move, and outside a level.

    >>> import calque
    >>> calque.autograd.forward_ad.unpack_dual(calque.tensor(3.0)).tangent is None
    True
    """
    _checked("unpack_dual", tensor, "tensor")
    found = frames()
    if not found or found[0].__class__ is not _Level:
        return UnpackedDualTensor(tensor, None)
    return UnpackedDualTensor(*found[0].pair(tensor))  # type: ignore[attr-defined]
