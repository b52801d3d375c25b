"""`calque.xla.fallback`: what a device cannot compute is computed on the CPU, which a warning says once for each line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.ref.interpret import interpret
from calque.backend.xla.backend import XlaProgram
from calque.base.dtypes import dtype_by_name
from calque.base.errors import DTypeError, UnsupportedTypeError
from tests.device.test_operators import joined
from tests.ops.cases import operands, records
from tests.ops.test_backends import program_of_calls

pytestmark = pytest.mark.device


@pytest.fixture
def fallback() -> Iterator[None]:
    calque.xla.fallback(True)
    yield
    calque.xla.fallback(False)


def test_the_choice_is_named_and_can_be_taken_back(device: Any) -> None:
    x = calque.rand(8, device=device)
    for call in (lambda: calque.fft.fft(x), lambda: calque.ones(2, dtype=calque.complex64).to(device)):
        with pytest.raises(UnsupportedTypeError, match=r"\.cpu\(\)|keep it on the CPU.*calque\.xla\.fallback\(True\)"):
            call()
    calque.xla.fallback(True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert calque.fft.fft(x).device == device
    texts = [str(w.message) for w in said if w.filename == __file__]
    assert any(re.match(r"\[fft_c2c\] runs on the CPU for .*: tensors of torch.complex64 .*test_fallback.py:\d+\)", text) for text in texts), texts
    calque.xla.fallback(False)
    with pytest.raises(UnsupportedTypeError, match=r"fallback\(True\)"):
        calque.fft.fft(x)
    with pytest.raises(DTypeError, match="expected a bool, got"):
        calque.xla.fallback("yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_every_primitive_of_complex_numbers(name: str, device: Any, fallback: None, rng: np.random.Generator) -> None:
    """By the same definition, so bit for bit: also numbers of 64 bits, which JAX would round where it calls back."""
    dtype = dtype_by_name(name)
    ops = [op for op in records() if name in op.dtypes or (op.complex and "float64" in op.dtypes and op.name != "hosted")]
    assert len(ops) > 20
    programs = [program_of_calls(op, [(operands(op, s, dtype, rng), s.attrs) for s in op.samples]) for op in ops]
    program, inputs = joined(programs)
    form = calque.zeros(0, device=device).device.backend.compile(program, device.index)
    got = form.run([np.ascontiguousarray(x).reshape(-1) for x in inputs], [])[0]
    for value, expected, output in zip(got, interpret(program, inputs), program.outputs, strict=True):
        np.testing.assert_array_equal(np.asarray(value).reshape(expected.shape), expected, str(program.nodes[output]))


def test_steps_with_transforms_are_those_of_the_cpu(device: Any, fallback: None) -> None:
    def steps(where: Any) -> list[float]:
        calque.manual_seed(3)
        mask = calque.rand(4, 5, dtype=calque.complex128).to(where).requires_grad_()
        optimizer, losses = calque.optim.SGD([mask], lr=0.1), []
        for k in range(4):
            x = calque.arange(32.0, dtype=calque.float64).reshape(4, 8).to(where) * (k + 1)
            optimizer.zero_grad()
            loss = (calque.fft.irfft(calque.fft.rfft(x / 32) * mask, n=8) ** 2).mean() + mask.abs().sum() / 20
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return [float(loss) for loss in losses]

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = steps(device)
        told, compiled = [str(w.message) for w in said], XlaProgram.compiled
        assert found == steps(device)
    assert len(said) == len(told) == len(set(told)) > 5  # each operation of a line once, whichever step it is
    assert XlaProgram.compiled - compiled <= 1
    assert found == pytest.approx(steps("cpu"), rel=1e-12)
    assert found[-1] < found[0] * 20


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"])
def test_types_that_are_only_stored(name: str, device: Any, fallback: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = calque.tensor([1.0, 2.0, 3.0]).to(getattr(calque, name)).to(device)
        assert (x.device, x.to(calque.float32).add(1).tolist()) == (device, [2.0, 3.0, 4.0])
