"""Max pooling without a padded input: the same bits as with one, forward and backward, for random geometries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.nn.functional import pooling, windows
from tests.fuzz.check import mode


@pytest.fixture(autouse=True)
def fresh_geometry() -> Any:
    """Geometries are remembered; these tests change how they are made."""
    pooling._KNOWN.clear()
    yield
    pooling._KNOWN.clear()


def _pooled(x: np.ndarray, settings: dict[str, Any]) -> tuple[bytes, bytes, int]:
    """Result, gradient and number of pieces."""
    t = calque.tensor(x).requires_grad_()
    y = calque.nn.functional.max_pool2d(t, **settings)
    weights = calque.arange(y.numel(), dtype=calque.float32).reshape(y.shape)
    (y * weights).sum().backward()
    assert t.grad is not None
    (w,) = pooling._KNOWN.values()
    return y.detach().numpy().tobytes(), t.grad.numpy().tobytes(), len(w.pieces)


def _random_settings(rng: np.random.Generator) -> dict[str, Any]:
    kernel = [int(k) for k in rng.integers(1, 6, 2)]
    return {
        "kernel_size": tuple(kernel), "stride": tuple(int(rng.integers(1, k + 1)) for k in kernel),
        "padding": tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel), "ceil_mode": bool(rng.integers(0, 2)),
    }  # fmt: skip


@pytest.mark.parametrize("way", ["ref", "cpu"])
def test_pieces_and_padding_agree(way: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    pieces = 0
    with mode(way):
        for _ in range(25):
            settings = _random_settings(rng)
            x = rng.integers(-4, 5, (2, 3, *rng.integers(5, 23, 2))).astype(np.float32)  # many equal maxima
            x[rng.random(x.shape) < 0.02] = rng.choice([np.nan, np.inf, -np.inf])
            pooling._KNOWN.clear()
            *found, count = _pooled(x, settings)
            pieces += count > 0
            with monkeypatch.context() as patch:
                patch.setattr(windows, "MAX_PIECES", 0)
                pooling._KNOWN.clear()
                *wanted, none = _pooled(x, settings)
            assert none == 0
            assert found == wanted, (settings, x.shape)
    assert pieces > 5


def test_the_geometry_of_residual_networks_is_three_pieces(rng: np.random.Generator) -> None:
    """The row and the column that the padding cuts off, and all other windows, which read what lies in memory in front of a row and leave it out."""
    *_, count = _pooled(rng.standard_normal((1, 2, 12, 12)).astype(np.float32), {"kernel_size": 3, "stride": 2, "padding": 1})
    assert count == 3


def test_a_network_keeps_no_padded_input(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 12, 12)).astype(np.float32)
    t = calque.tensor(x).requires_grad_()
    y = calque.nn.functional.max_pool2d(t, 3, 2, 1)
    assert y.grad_fn is not None and "Pad" not in repr(y.grad_fn.next_functions)


def _places(x: np.ndarray, settings: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """Flat positions of the first maximum (a NaN counts as one) of every window, element by element."""
    found = np.zeros(shape, np.int64)
    dilation = settings.get("dilation", (1, 1))
    for n, c, i, j in np.ndindex(*shape):
        best = None
        for a, b in np.ndindex(*settings["kernel_size"]):
            row = i * settings["stride"][0] + a * dilation[0] - settings["padding"][0]
            column = j * settings["stride"][1] + b * dilation[1] - settings["padding"][1]
            if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                value = x[n, c, row, column]
                if best is None or (not np.isnan(best) and (value > best or np.isnan(value))):
                    best, found[n, c, i, j] = value, row * x.shape[3] + column
    return found


@pytest.mark.parametrize("way", ["ref", "cpu"])
def test_positions_are_those_of_the_first_maximum(way: str, rng: np.random.Generator) -> None:
    with mode(way):
        for k in range(16 if way == "ref" else 5):
            settings = _random_settings(rng)
            if k % 4 == 0:
                settings["dilation"] = tuple(int(d) for d in rng.integers(1, 3, 2))
            x = rng.integers(-4, 5, (2, 3, *rng.integers(10, 23, 2))).astype(np.float32)
            x[rng.random(x.shape) < 0.02] = rng.choice([np.nan, np.inf])
            t = calque.tensor(x).requires_grad_()
            y, places = calque.nn.functional.max_pool2d(t, **settings, return_indices=True)
            got = places.numpy()
            np.testing.assert_array_equal(got, _places(x, settings, tuple(got.shape)), err_msg=repr(settings))
            values = np.take_along_axis(x.reshape(2, 3, -1), got.reshape(2, 3, -1), 2).reshape(got.shape)
            np.testing.assert_array_equal(y.detach().numpy(), values)


@pytest.mark.parametrize("way", ["ref", "cpu"])
def test_the_gradient_uses_what_the_forward_pass_found(way: str, rng: np.random.Generator) -> None:
    """Forward and backward pass in one program and in two."""
    with mode(way):
        for _ in range(6 if way == "ref" else 2):
            settings, x = _random_settings(rng), rng.integers(-4, 5, (2, 3, 17, 14)).astype(np.float32)
            gradients = []
            for apart in (False, True):
                t = calque.tensor(x).requires_grad_()
                y = calque.nn.functional.max_pool2d(t, **settings)
                if apart:
                    y.detach().numpy()
                (y * calque.arange(y.numel(), dtype=calque.float32).reshape(y.shape)).sum().backward()
                assert t.grad is not None
                gradients.append(t.grad.numpy().tobytes())
            assert gradients[0] == gradients[1]
