"""Anomaly detection: find the operation whose gradient is NaN."""

from __future__ import annotations

from calque.autograd.leaves import RuleNamespace


class set_detect_anomaly:
    """Switch anomaly detection on or off, now and as a context manager that restores the previous state."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = RuleNamespace.check_nan
        RuleNamespace.check_nan = bool(mode) and check_nan

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        RuleNamespace.check_nan = self._before


class detect_anomaly:
    """Inside the block every gradient is read during backward; the first NaN raises `NonFiniteError` with the line of the
    forward operation.

    >>> import calque
    >>> x = calque.tensor(0.0, requires_grad=True)
    >>> with calque.autograd.detect_anomaly():
    ...     try:
    ...         (x.sqrt() * 0).backward()
    ...     except ArithmeticError as error:
    ...         "nan" in str(error)
    True
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check = check_nan
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(RuleNamespace.check_nan)
        RuleNamespace.check_nan = self._check

    def __exit__(self, *_: object) -> None:
        RuleNamespace.check_nan = self._before.pop()


def is_anomaly_enabled() -> bool:
    """Whether anomaly detection is on."""
    return RuleNamespace.check_nan
