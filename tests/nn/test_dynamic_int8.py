"""Linear layers of int8 whose inputs are rounded to int8 as well: the numbers of a twin in NumPy, bit for bit, however they are computed."""

from __future__ import annotations

import copy
import hashlib
import io
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import DTypeError, ShapeError
from calque.functional.common import prim
from tests.exported.models import apart

ONE, TINY = np.float32(1), np.finfo(np.float32).tiny
SIZES = [(1, 1), (3, 5), (64, 70), (257, 33), (300, 200)]
SHAPES = [(0,), (1,), (2,), (5, 3), (2, 1, 17), (130,), (3, 0, 2), (1, 1), ()]  # before the last dimension


def layer(inputs: int, outputs: int, bias: bool = False) -> Any:
    calque.manual_seed(inputs)
    return nn.utils.quantize_(nn.Linear(inputs, outputs, bias=bias), dynamic=True)


def twin(one: Any, x: Any) -> Any:
    """What the layer gives for float32, without bias."""
    rows = x.reshape(int(np.prod(x.shape[:-1])), x.shape[-1])
    scale = np.maximum(np.abs(rows).max(-1, keepdims=True) / np.float32(127), TINY)
    whole = np.rint(rows * (ONE / scale)).astype(np.int64)
    assert not whole.size or np.abs(whole).max() <= 127
    sums = whole @ one.weight_int8.numpy().astype(np.int64).T
    return (sums.astype(np.float32) * (scale * one.weight_scale.numpy())).reshape(*x.shape[:-1], -1 if rows.size else one.out_features)


def drawn(shape: tuple[int, ...]) -> Any:
    """Rows of very different sizes."""
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 7, (*shape[:-1], 1))).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_the_numbers_of_numpy(size: tuple[int, int]) -> None:
    one = layer(*size)
    compiled = calque.compile(one)
    with calque.no_grad():
        for shape in SHAPES:
            x = drawn((*shape, size[0]))
            wanted, ours = twin(one, x), calque.tensor(x)
            turned = calque.tensor(np.ascontiguousarray(x.T)).permute(*range(x.ndim - 1, -1, -1))  # the same values, columns in memory
            for function in (one, compiled, compiled, compiled):
                for given in (ours, turned):
                    found = function(given)
                    assert tuple(found.shape) == (*shape, size[1])
                    np.testing.assert_array_equal(found.numpy(), wanted)


def test_a_row_gives_the_same_alone_and_among_others() -> None:
    one, x = layer(300, 70, bias=True), calque.tensor(drawn((40, 300)))
    compiled = calque.compile(one)
    for function in (one, compiled, compiled, compiled):
        whole = function(x)
        for k in (0, 7, 39):
            assert apart(function(x[k]), whole[k]) < 1e-6 and apart(function(x[k : k + 1])[0], whole[k]) < 1e-6
    exact = layer(300, 70)
    assert all(calque.equal(exact(x[k]), exact(x)[k]) for k in range(40))


def test_rows_that_are_zero_tiny_huge_or_not_finite() -> None:
    one, x = layer(64, 30), drawn((9, 64))
    x[1], x[2], x[3], x[4] = 0, x[2] * 1e-42, 3e37, -x[4] / np.abs(x[4]).max() * np.float32(3e37)
    x[5, 3], x[6, 0], x[7, 63] = np.nan, np.inf, -np.inf
    finite = [0, 1, 2, 3, 4, 8]
    wanted = twin(one, x[finite])
    for function in (one, calque.compile(one)):
        for _ in range(3):
            found = function(calque.tensor(x)).detach().numpy()
            np.testing.assert_array_equal(found[finite], wanted)
            assert np.isnan(found[5:8]).all()
        assert np.isnan(function(calque.tensor(x[6])).detach().numpy()).all()


def test_it_is_near_what_it_stands_for() -> None:
    one, x = layer(256, 256, bias=True), calque.randn(32, 256)
    exact = nn.functional.linear(x, one.dequantize(), one.bias)
    assert 0 < apart(one(x), exact) < 0.02


def test_gradients_are_those_of_inputs_that_are_not_rounded() -> None:
    one = layer(40, 30, bias=True)
    for shape in [(40,), (1, 40), (6, 40), (2, 3, 40)]:
        x = calque.randn(*shape, requires_grad=True)
        y = x.detach().requires_grad_()
        g = calque.randn(*shape[:-1], 30)
        for function, given in ((one, x), (lambda y: nn.functional.linear(y, one.dequantize(), one.bias), y)):
            one.bias.grad = None
            (function(given) * g).sum().backward()
        assert apart(x.grad, y.grad) < 1e-6
        assert apart(calque.func.grad(lambda x, g=g: (one(x) * g).sum())(x.detach()), y.grad) < 1e-6
        assert apart(calque.func.jvp(one, (x.detach(),), (y.detach(),))[1], nn.functional.linear(y, one.dequantize())) < 1e-5
        assert not one.weight_int8.requires_grad
    rows = calque.randn(5, 3, 40)
    assert apart(calque.vmap(one)(rows), one(rows)) < 1e-6


@pytest.mark.parametrize("dtype", [calque.float64, calque.bfloat16, calque.float16])
def test_other_dtypes(dtype: Any) -> None:
    one = layer(40, 30, bias=True)
    for rows in (1, 8):
        x = calque.randn(rows, 40).to(dtype)
        wanted = one(x.float())
        assert one(x).dtype is dtype and apart(one(x).float(), wanted) < (2e-2 if dtype.itemsize == 2 else 1e-2)
        with calque.autocast("cpu"):
            assert one(x).dtype is calque.bfloat16
    double = nn.utils.quantize_(nn.Linear(40, 30).double(), dynamic=True)
    assert double.weight_scale.dtype is calque.float64 and double(calque.randn(3, 40).double()).dtype is calque.float64


def test_state_dicts_files_and_copies(tmp_path: Any) -> None:
    model = nn.Sequential(layer(16, 16, bias=True), nn.ReLU(), nn.utils.quantize_(nn.Linear(16, 4)))
    x = calque.randn(7, 16)
    assert "dynamic=True" in repr(model[0]) and "dynamic" not in repr(model[2])
    assert set(model.state_dict()) == {"0.weight_int8", "0.weight_scale", "0.bias", "2.weight_int8", "2.weight_scale", "2.bias"}
    calque.save(model.state_dict(), tmp_path / "int8.safetensors")
    other = nn.Sequential(nn.utils.Int8Linear(16, 16, dynamic=True), nn.ReLU(), nn.utils.Int8Linear(16, 4))
    other.load_state_dict(calque.load(tmp_path / "int8.safetensors"))
    assert calque.equal(other(x), model(x)) and calque.equal(copy.deepcopy(model)(x), model(x))
    plain = nn.Sequential(nn.utils.Int8Linear(16, 16), nn.ReLU(), nn.utils.Int8Linear(16, 4))
    plain.load_state_dict(model.state_dict())  # the same weights: whether inputs are rounded is the layer's
    assert not calque.equal(plain(x), model(x)) and apart(plain(x), model(x)) < 0.05
    file = io.BytesIO()
    calque.export(model, x, {"input": {0: "rows"}}).save(file)
    file.seek(0)
    loaded = calque.load_exported(file)
    for rows in (1, 2, 90):
        x = calque.randn(rows, 16)
        assert apart(loaded(x), model(x)) < 1e-6


def test_a_recording_without_rounding_is_not_replayed() -> None:
    model = nn.Sequential(nn.utils.quantize_(nn.Linear(64, 64)), nn.ReLU(), nn.Linear(64, 300))
    x = calque.randn(80, 64)
    compiled = calque.compile(model)
    before = [compiled(x) for _ in range(4)][-1]
    model[0].dynamic = True
    after = [compiled(x) for _ in range(4)]
    assert all(apart(y, model(x)) < 1e-6 for y in after) and not calque.equal(after[-1], before)


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match="linear"):
        layer(4, 4)(calque.ones(2, 5))
    with pytest.raises(DTypeError, match=r"torch\.int8.*float32"):
        prim("int8_matmul", calque.ones(2, 3), calque.ones(3, 2))
    with pytest.raises(ShapeError, match="inner sizes"):
        prim("int8_matmul", calque.ones(2, 3, dtype=calque.int8), calque.ones(2, 3, dtype=calque.int8))


def digest() -> str:
    """Of the results of layers of several sizes, computed at once and recorded."""
    found = hashlib.sha256()
    with calque.no_grad():
        for size in SIZES:
            one = layer(*size)
            for rows in (1, 9, 130):
                x = calque.tensor(drawn((rows, size[0])))
                for function in (one, calque.compile(one)):
                    for _ in range(2):
                        found.update(function(x).numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("target", ["sse2", "avx2"])
def test_processors_without_its_instructions_compute_the_same_bits(target: str) -> None:
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        pytest.skip("names processors of x86-64")
    code = "from tests.nn.test_dynamic_int8 import digest; print(digest())"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"CALQUE_CPU_TARGET": target}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == digest()
