"""What XLA may not simplify: sums and quotients whose rounding or range counts, and every body over all magnitudes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.ref.interpret import interpret
from calque.base.dtypes import dtype_by_name
from tests.device.test_operators import joined, supported
from tests.ops.cases import operands
from tests.ops.test_backends import program_of_calls

pytestmark = pytest.mark.device
FREE = {"lgamma": 8, "digamma": 8}  # units in the last place of 1 beside their roots


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_bodies_over_all_magnitudes(name: str, device: Any, rng: np.random.Generator) -> None:
    """log1p and what is made of it had errors of up to 100 %: XLA makes x of (x + 1) - 1."""
    dtype = dtype_by_name(name)
    eps, tiny = np.finfo(dtype.np).eps, np.finfo(dtype.np).tiny  # less than the smallest normal number is 0 on some devices
    parts = np.logspace(-30, 30, 121), np.logspace(-20, -1e-9, 60), 1 - np.logspace(-15, -1, 30), 1 + np.logspace(-15, -1, 30), np.linspace(0, 60, 99)
    values = np.concatenate([sign * part for part in parts for sign in (1, -1)]).astype(dtype.np)
    calls = []
    for op in supported(name):
        for sample in op.samples if op.body is not None and op.name != "full" else ():
            given = operands(op, sample, dtype, rng)
            if len(given) in (1, 2) and all(x.dtype == dtype.np for x in given):
                calls.append((op, *program_of_calls(op, [([values, rng.permutation(values)][: len(given)], sample.attrs)])))
    assert len(calls) > 60
    program, inputs = joined([call[1:] for call in calls])
    got = calque.zeros(0, device=device).device.backend.compile(program, device.index).run([x.reshape(-1) for x in inputs], [])[0]
    for (op, _, arrays), value, wanted in zip(calls, got, interpret(program, inputs), strict=True):
        found = np.asarray(value).reshape(wanted.shape)
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(found, wanted, err_msg=op.name)
            continue
        with np.errstate(all="ignore"):
            allowed = 64 * eps * np.abs(wanted) + tiny + FREE.get(op.name, 0) * eps
            wrong = ~((found == wanted) | (np.isnan(found) & np.isnan(wanted)) | (np.abs(found - wanted) <= allowed))
        assert not wrong.any(), (op.name, [x[wrong][:3] for x in arrays], found[wrong][:3], wanted[wrong][:3])


@pytest.mark.parametrize("dtype", [calque.float32, calque.float64])
def test_sums_are_rounded_one_by_one(dtype: Any, device: Any) -> None:
    x = calque.tensor([1e-8, 3e-5, 0.7, -2e-6], dtype=dtype)

    def sums(x: Any) -> Any:
        u = 1 + x
        return (x + 1) - 1, 1 - (1 - x), calque.log(u) * (x / (u - 1)), (x - 0.5) + 0.5

    for found, wanted in zip(sums(x.to(device)), sums(x), strict=True):
        np.testing.assert_allclose(found.cpu().numpy(), wanted.numpy(), rtol=4 * calque.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [calque.float32, calque.float64, calque.float16, calque.bfloat16])
def test_infinities_and_nan_are_not_masked_by_products(dtype: Any, device: Any) -> None:
    """0 times infinity, and times NaN, is NaN, wherever the 0 comes from: XLA made 0 of what a bool hides."""
    x, mask = calque.tensor([float("inf"), float("nan"), 3.0, -float("inf")], dtype=dtype), calque.tensor([False, False, False, True])

    def products(x: Any, mask: Any) -> Any:
        n = x[None].detach().clone().requires_grad_()
        n.amax(0).sum().backward()
        return (
            x * mask, mask.to(x.dtype) * x, (x > 0) * x, (x > 5).to(x.dtype) * x, (mask & (x < 0)).float() * x, (x * mask).sum(),
            mask.to(x.dtype) @ x, x * (calque.arange(4, device=x.device) == 1), n.grad, calque.logical_not(mask).double() * x,
        )  # fmt: skip

    for found, wanted in zip(products(x.to(device), mask.to(device)), products(x, mask), strict=True):
        np.testing.assert_array_equal(found.float().cpu().numpy(), wanted.float().numpy())


def test_quotients_of_quotients_stay_in_range(device: Any) -> None:
    x = calque.tensor([1e30, 1e-30, 3e25, 2.0])

    def quotients(x: Any) -> Any:
        return x / (x / x), (x / x) / x, (x / x) / (x / x), x.reshape(2, 2) / (x / 2).reshape(2, 2)

    for found, wanted in zip(quotients(x.to(device)), quotients(x), strict=True):
        np.testing.assert_allclose(found.cpu().numpy(), wanted.numpy(), rtol=1e-6)
