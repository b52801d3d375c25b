"""Running values and averages that do not stop the device.

A tensor given to a meter is kept, detached, and read when somebody looks at the meter, or much later, when it has certainly been
computed. So a meter costs a step no waiting, keeps no autograd graph alive, and holds a bounded number of tensors.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from calque.base.errors import ArgumentError, ShapeError
from calque.base.text import described
from calque.monitor.host import detached, is_tensor, to_host

_PENDING = 64  # values kept unread; beyond it the older half is read


class Meter:
    """The latest value, the weighted sum and the count of a quantity.

    >>> from calque.monitor import Meter
    >>> meter = Meter("loss")
    >>> meter.update(calque.tensor(2.0)); meter.update(1.0, n=3)
    >>> meter.val, meter.sum, meter.count
    (1.0, 5.0, 4)
    """

    def __init__(self, name: str = "", fmt: str = ".4f") -> None:
        try:
            format(0.0, fmt)  # a wrong format is an error here and not at the end of an epoch
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"[Meter] expected fmt as a format of a number, such as '.4f', got {described(fmt)}: {error}") from None
        self.name = name
        self.fmt = fmt
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._pending: deque[tuple[Any, int]] = deque()
        self._value, self._sum, self._count = 0.0, 0.0, 0

    def update(self, value: Any, n: int = 1) -> None:
        """Take in one value, a number or a tensor with one element, that stands for `n` samples."""
        if n < 0:
            raise ArgumentError(f"[Meter] expected n >= 0, got n={n} for {self.name or 'a meter'}")
        if not is_tensor(value):
            self._pending.append((float(value), n))
        else:
            if value.numel() != 1:
                raise ShapeError(
                    f"[Meter] expected one number for {self.name!r}, got shape {tuple(value.shape)}; use .mean() or .sum()"
                )
            self._pending.append((detached(value), n))
        if len(self._pending) > _PENDING:
            self._read(_PENDING // 2)

    @property
    def val(self) -> float:
        """The latest value; 0 before the first."""
        self._read(len(self._pending))
        return self._value

    @property
    def sum(self) -> float:
        """Sum of value times `n`."""
        self._read(len(self._pending))
        return self._sum

    @property
    def count(self) -> int:
        """Sum of `n`."""
        return self._count + sum(n for _, n in self._pending)

    def state_dict(self) -> dict[str, float]:
        """Its numbers, which are read for that."""
        self._read(len(self._pending))
        return {"value": self._value, "sum": self._sum, "count": self._count}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from `state_dict()`."""
        self.reset()
        self._value, self._sum, self._count = state.get("value", 0.0), state.get("sum", 0.0), int(state.get("count", 0))

    def _read(self, number: int) -> None:
        for _ in range(number):
            value, n = self._pending.popleft()
            self._value = float(to_host(value).reshape(())) if is_tensor(value) else value
            self._sum += self._value * n
            self._count += n

    def __str__(self) -> str:
        return f"{self.name} {self.val:{self.fmt}}".strip()


class AverageMeter(Meter):
    """A meter that shows its average.

    >>> from calque.monitor import AverageMeter
    >>> meter = AverageMeter("loss", fmt=".2f")
    >>> meter.update(1.0, n=3); meter.update(3.0)
    >>> meter.avg, str(meter)
    (1.5, 'loss 3.00 (1.50)')
    """

    @property
    def avg(self) -> float:
        """The weighted average; 0 before the first value."""
        total = self.sum
        return total / self._count if self._count else 0.0

    def __str__(self) -> str:
        return f"{self.name} {self.val:{self.fmt}} ({self.avg:{self.fmt}})".strip()
