"""Calls that PyTorch's operator database says must fail raise here what PyTorch raises; and so do all layers over images that are empty or have
other dims than they take."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.error_inputs import kind_of, replay  # noqa: E402

pytestmark = pytest.mark.oracle

# What returns where PyTorch raises, and why. No value of these is wrong.
RETURN = {
    "__rdiv__": "Tensor.__rdiv__(2, 1): PyTorch's AttributeError says that its method is written in Python",
    "cat": "out= is memory of NumPy, or of the other size: it is resized",
    "gather": "out= shares memory with an operand: the result is computed before it is written",
    "index_select": "as gather", "kthvalue": "as gather", "masked_select": "as gather", "take": "as gather",
    "gradient": "places on the device meta beside some on the CPU",
}  # fmt: skip


@pytest.mark.slow
def test_share_of_calls_that_are_refused_with_pytorchs_class() -> None:
    counted = [one for one in replay() if one.state != "skip"]
    assert len(counted) > 650
    wrong = [one for one in counted if one.state != "right"]
    assert {one.name for one in wrong} <= set(RETURN), wrong
    assert sum(one.state == "right" for one in counted) >= 0.98 * len(counted)  # measured: 663 of 675


def test_some_calls_are_refused_with_pytorchs_class() -> None:
    found = replay(("maximum", "eq", "pow", "special.zeta", "_chunk_cat", "nn.functional.max_pool1d", "gather"))
    assert len([one for one in found if one.state == "right"]) > 40
    assert {one.name for one in found if one.state in ("silent", "class")} <= {"gather"}


def of_images() -> Iterator[str]:
    """Calls of functions over one to three spatial dims, on inputs of all numbers of dims near them, of which at most one is empty."""
    for n in (1, 2, 3):
        functions = [f"F.{name}{n}d({{}}, 2)" for name in ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")]
        functions += [f"F.lp_pool{n}d({{}}, 2, 2)"] + ([f"F.fractional_max_pool{n}d({{}}, 2, output_size=2)"] if n > 1 else [])
        functions += [f"F.{name}{n}d({{}}, o({[4] * 2 + [2] * n}))" for name in ("conv", "conv_transpose")]
        functions += [f"F.pad({{}}, {[1, 1] * n}, mode={mode!r})" for mode in ("constant", "reflect", "replicate", "circular")]
        modes = ("nearest", "area", *(("linear",), ("bilinear", "bicubic"), ("trilinear",))[n - 1])
        functions += [f"F.interpolate({{}}, scale_factor=2, mode={mode!r})" for mode in modes]
        for function, dims in itertools.product(functions, range(n, n + 4)):
            for empty in range(-1, dims):
                yield function.format(f"o({[0 if d == empty else 4 for d in range(dims)]})")


def _outcome(library: Any, call: str) -> Any:
    try:
        return eval(call, {"F": library.nn.functional, "o": library.ones})
    except Exception as error:
        return error


def test_layers_refuse_the_images_that_pytorch_refuses() -> None:
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in of_images():
            got, wanted = _outcome(calque, call), _outcome(torch, call)
            refused = isinstance(wanted, Exception)
            if refused != isinstance(got, Exception):
                wrong.append((call, str(wanted if refused else got)))
            elif not refused:
                if tuple(got.shape) != tuple(wanted.shape):
                    wrong.append((call, f"shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"))
            elif not isinstance(got, kind_of(wanted)) and kind_of(wanted) is not IndexError:  # PyTorch's, of a dim that it asks a matrix for
                wrong.append((call, repr(got)))
    assert wrong == []


@pytest.mark.parametrize("mode", ["nearest", "area", "trilinear"])
def test_volumes_are_resized(mode: str) -> None:
    values = torch.arange(2 * 3 * 4 * 6 * 5, dtype=torch.float32).sin().reshape(2, 3, 4, 6, 5)
    wanted = torch.nn.functional.interpolate(values, size=(3, 4, 5), mode=mode)
    got = calque.nn.functional.interpolate(calque.tensor(values.numpy()), size=(3, 4, 5), mode=mode)
    assert (torch.from_numpy(got.numpy()) - wanted).abs().max() < 1e-5
