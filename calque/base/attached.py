"""The base of `Tensor` that stands for what higher layers attach to it; empty at run time, `attached.pyi` tells type checkers what that is."""

from __future__ import annotations


class Attached:
    """Base of `Tensor`: operators and methods are defined in `calque.functional`, `calque.nn` and `calque.autograd`."""

    __slots__ = ()
