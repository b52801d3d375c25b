"""Random programs of complex and real tensors of one shape, to be run by NumPy, by Calque and by PyTorch.

A program is a list of steps; each takes earlier values and gives one more. What grows is made small again, and functions with cuts are asked away
from them, so that rounding decides on nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

N = 3  # every value is N x N
Function = Callable[..., Any]


@dataclass(frozen=True)
class Step:
    """An operation: kinds of its operands ("c", "r") and of its result, `tensors(lib, *operands)` for Calque and PyTorch, `arrays(*operands)`."""

    name: str
    takes: str
    gives: str
    tensors: Function
    arrays: Function


def _written(lib: Any, z: Any, x: Any) -> Any:
    w = z * 1
    w.real[1:] = x[1:]
    w[0].imag.mul_(2)
    w[:, 0] += z[:, 1]
    return w


def _written_array(z: Any, x: Any) -> Any:
    w = z.copy()
    w.real[1:] = x[1:]
    w[0].imag *= 2
    w[:, 0] += z[:, 1]
    return w


def _pairs(lib: Any, z: Any) -> Any:
    return lib.view_as_complex((lib.view_as_real(z) * lib.view_as_real(z).flip(-1)).contiguous())


def _mask(x: Any) -> Any:
    return abs(x) > 0.3


STEPS = (
    Step("add", "cc", "c", lambda lib, a, b: a + b, lambda a, b: a + b),
    Step("sub real", "cr", "c", lambda lib, a, b: b - a, lambda a, b: b - a),
    Step("mul", "cc", "c", lambda lib, a, b: a * b, lambda a, b: a * b),
    Step("mul real", "cr", "c", lambda lib, a, b: a * b, lambda a, b: a * b),
    Step("number", "c", "c", lambda lib, a: (0.5 - 2j) * a + 1j, lambda a: (0.5 - 2j) * a + 1j),
    Step("imaginary", "r", "c", lambda lib, a: a * 1.5j, lambda a: a * 1.5j),
    Step("div", "cc", "c", lambda lib, a, b: a / (b + 2), lambda a, b: a / (b + 2)),
    Step("number div", "c", "c", lambda lib, a: (1 + 1j) / (a + 2), lambda a: (1 + 1j) / (a + 2)),
    Step("pow", "cc", "c", lambda lib, a, b: (a + 2) ** b, lambda a, b: (a + 2) ** b),
    Step("square", "c", "c", lambda lib, a: a**2 - a**3, lambda a: a**2 - a**3),
    Step("exp", "c", "c", lambda lib, a: a.exp(), np.exp),
    Step("log", "c", "c", lambda lib, a: (a + 2).log(), lambda a: np.log(a + 2)),
    Step("sqrt", "c", "c", lambda lib, a: (a + 2).sqrt() + (a + 2).rsqrt(), lambda a: np.sqrt(a + 2) + 1 / np.sqrt(a + 2)),
    Step("sin", "c", "c", lambda lib, a: a.sin() + a.cos() * a.sinh(), lambda a: np.sin(a) + np.cos(a) * np.sinh(a)),
    Step("tanh", "c", "c", lambda lib, a: a.tanh(), np.tanh),
    Step("sigmoid", "c", "c", lambda lib, a: lib.sigmoid(a), lambda a: 1 / (1 + np.exp(-a))),
    Step("conj", "cc", "c", lambda lib, a, b: a.conj() * b, lambda a, b: a.conj() * b),
    Step("sgn", "c", "c", lambda lib, a: lib.sgn(a + 2), lambda a: (a + 2) / abs(a + 2)),
    Step("abs", "c", "r", lambda lib, a: (a + 2).abs(), lambda a: abs(a + 2)),
    Step("real", "c", "r", lambda lib, a: a.real * a.imag, lambda a: a.real * a.imag),
    Step("angle", "c", "r", lambda lib, a: lib.angle(a + 2), lambda a: np.angle(a + 2)),
    Step("complex", "rr", "c", lambda lib, a, b: lib.complex(a, b), lambda a, b: a + 1j * b),
    # PyTorch's gradient of a negative distance points the other way.
    Step("polar", "rr", "c", lambda lib, a, b: lib.polar(a.abs(), b), lambda a, b: abs(a) * np.exp(1j * b)),
    Step("pairs", "c", "c", _pairs, lambda a: 2 * a.real * a.imag * (0.5 + 0.5j)),
    Step("written", "cr", "c", _written, _written_array),
    Step("where", "rcc", "c", lambda lib, x, a, b: lib.where(_mask(x), a, b), lambda x, a, b: np.where(_mask(x), a, b)),
    Step("matmul", "cc", "c", lambda lib, a, b: a @ b.mH, lambda a, b: a @ b.conj().T),
    Step("matmul real", "cr", "c", lambda lib, a, b: a @ b.to(a.dtype), lambda a, b: a @ b),
    Step("einsum", "cc", "c", lambda lib, a, b: lib.einsum("ij,kj->ki", a, b), lambda a, b: np.einsum("ij,kj->ki", a, b)),
    Step("cat", "cc", "c", lambda lib, a, b: lib.cat([a[:1], b[1:]]).flip(0), lambda a, b: np.concatenate([a[:1], b[1:]])[::-1]),
    Step("stack", "cc", "c", lambda lib, a, b: lib.stack([a, b], 2)[..., 1].t(), lambda a, b: b.T),
    Step("index", "c", "c", lambda lib, a: a[[2, 0, 0]], lambda a: a[[2, 0, 0]]),
    Step("sum", "c", "c", lambda lib, a: a.sum(0) + a.mean(1, keepdim=True), lambda a: a.sum(0) + a.mean(1, keepdims=True)),
    Step("prod", "c", "c", lambda lib, a: (a + 1).prod(1, keepdim=True) * a, lambda a: (a + 1).prod(1, keepdims=True) * a),
    Step("cumsum", "c", "c", lambda lib, a: a.cumsum(0).cumprod(1), lambda a: a.cumsum(0).cumprod(1)),
    Step("var", "c", "r", lambda lib, a: a.var(0) + a.abs() * 0, lambda a: a.var(0, ddof=1) + abs(a) * 0),
    Step("fft", "c", "c", lambda lib, a: lib.fft.fft(a, norm="ortho"), lambda a: np.fft.fft(a, norm="ortho")),
    Step("ifft2", "c", "c", lambda lib, a: lib.fft.ifft2(a), np.fft.ifft2),
    Step("rfft", "r", "c", lambda lib, a: lib.fft.rfft(a, 5), lambda a: np.fft.rfft(a, 5)),
    Step("irfft", "c", "r", lambda lib, a: lib.fft.irfft(a, N), lambda a: np.fft.irfft(a, N)),
    Step("hfft", "c", "r", lambda lib, a: lib.fft.hfft(a, N, 0), lambda a: np.fft.hfft(a, N, 0)),
    Step("inv", "c", "c", lambda lib, a: lib.linalg.inv(a + 4 * lib.eye(N, dtype=a.dtype)), lambda a: np.linalg.inv(a + 4 * np.eye(N))),
    Step("det", "c", "c", lambda lib, a: lib.linalg.det(a) * a, lambda a: np.linalg.det(a) * a),
    Step("real add", "rr", "r", lambda lib, a, b: a * b + a.sin(), lambda a, b: a * b + np.sin(a)),
)


@dataclass(frozen=True)
class Program:
    """Leaves (complex, real) and steps with the numbers of their operands."""

    leaves: tuple[np.ndarray, np.ndarray, np.ndarray]
    steps: tuple[tuple[Step, tuple[int, ...]], ...]

    def __str__(self) -> str:
        return "; ".join(f"%{k + len(self.leaves)} = {step.name}{operands}" for k, (step, operands) in enumerate(self.steps))

    def by_tensors(self, lib: Any, leaves: list[Any]) -> Any:
        """The loss, a real number, from leaves of a library."""
        values = list(leaves)
        for step, operands in self.steps:
            found = step.tensors(lib, *[values[k] for k in operands])
            values.append(found / (1 + found.abs()))
        return sum((v.abs() ** 2).mean() + (v.real.sum() if v.is_complex() else v.sum()) for v in values[len(leaves) :])

    def by_arrays(self, leaves: list[Any]) -> Any:
        """The same by NumPy."""
        values = list(leaves)
        for step, operands in self.steps:
            found = step.arrays(*[values[k] for k in operands])
            values.append(found / (1 + abs(found)))
        return sum((abs(v) ** 2).mean() + v.real.sum() for v in values[len(leaves) :])


def program(rng: np.random.Generator, length: int) -> Program:
    """A random program."""
    leaves = (rng.standard_normal((N, N)) + 1j * rng.standard_normal((N, N)), rng.standard_normal((N, N)) * (1 + 0.5j), rng.standard_normal((N, N)))
    kinds, steps = ["c", "c", "r"], []
    while len(steps) < length:
        step = STEPS[rng.integers(len(STEPS))]
        choices = [[k for k, kind in enumerate(kinds) if kind == wanted][-5:] for wanted in step.takes]
        steps.append((step, tuple(int(rng.choice(c)) for c in choices)))
        kinds.append(step.gives)
    return Program(leaves, tuple(steps))
