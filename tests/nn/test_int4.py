"""Linear layers with weights of four bits in groups: their integers and products are those of a twin in NumPy, in every way in which they run."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calque
from calque import nn
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.extras import there
from calque.nn.utils import Int4Linear, quantize_
from tests.exported.models import CASES, apart


def twin(weight: Any, size: int, symmetric: bool) -> Any:
    """The rounded weight, group by group."""
    rows, depth = weight.shape
    padded = np.zeros((rows, -(-depth // size) * size), np.float32)
    padded[:, :depth] = weight
    for row in padded:
        for k in range(0, len(row), size):
            group = row[k : k + size].copy()
            low = np.float32(0) if symmetric else group.min()
            step = np.abs(group).max() / np.float32(7.5) if symmetric else (group.max() - low) / np.float32(15)
            step = step or np.float32(1)
            whole = np.clip(np.rint(group / step), -8, 7) if symmetric else np.clip(np.rint((group - low) / step), 0, 15)
            row[k : k + size] = whole * step + low
    return padded[:, :depth]


def layer(inputs: int, outputs: int, seed: int = 0, bias: bool = True) -> Any:
    calque.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 150), st.integers(1, 40), st.sampled_from([2, 6, 32, 64, 128]), st.booleans(), st.integers(0, 1 << 20))
def test_weights_are_those_of_the_twin(inputs: int, outputs: int, size: int, symmetric: bool, seed: int) -> None:
    one = layer(inputs, outputs, seed)
    with calque.no_grad():
        one.weight[0] = 0
        one.weight[-1] *= 1e-3
    weight, bias = one.weight.detach().numpy().copy(), one.bias.detach().numpy()
    assert quantize_(one, bits=4, group_size=size, symmetric=symmetric) is one and type(one) is Int4Linear
    groups = -(-inputs // size)
    assert tuple(one.weight_int4.shape) == (outputs, groups * size // 2) and tuple(one.weight_scale.shape) == (outputs, groups)
    found, step = one.dequantize().numpy(), one.weight_scale.numpy().repeat(size, 1)[:, :inputs]
    assert (np.abs(found - weight) <= 0.5001 * step).all()  # the nearest, or, between two, either
    same = np.isclose(found, twin(weight, size, symmetric), rtol=1e-4, atol=1e-7)
    assert same.mean() > 0.98  # what is half way may be rounded either way
    for rows in (0, 1, 3, 40):
        x = np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)
        wanted = x @ found.T + bias
        np.testing.assert_allclose(one(calque.tensor(x)).detach().numpy(), wanted, atol=1e-5 * (1 + inputs**0.5))


@pytest.mark.parametrize("symmetric", [True, False])
def test_every_way_to_run(symmetric: bool) -> None:
    model = nn.Sequential(layer(96, 128), nn.GELU(), layer(128, 30, 1, bias=False)).eval()
    quantize_(model, bits=4, group_size=32, symmetric=symmetric)
    dense = nn.Sequential(nn.Linear(96, 128), nn.GELU(), nn.Linear(128, 30, bias=False))
    with calque.no_grad():
        for k in (0, 2):
            dense[k].weight.copy_(model[k].dequantize())
        dense[0].bias.copy_(model[0].bias)
    compiled = calque.compile(model)
    for rows in (1, 5, 50):
        x = calque.randn(rows, 96)
        for function in (model, compiled, compiled, compiled):
            assert apart(function(x), dense(x)) < 1e-5
        assert apart(model(x.view(1, rows, 96))[0], dense(x)) < 1e-5
        assert apart(calque.vmap(model)(x.view(rows, 1, 96))[:, 0], dense(x)) < 1e-5
        x.requires_grad_()
        y = x.detach().requires_grad_()
        model.zero_grad()
        dense.zero_grad()
        model(x).square().sum().backward()
        dense(y).square().sum().backward()
        assert apart(x.grad, y.grad) < 1e-4 and apart(model[0].bias.grad, dense[0].bias.grad) < 1e-4


@pytest.mark.parametrize("dtype", [calque.float64, calque.bfloat16, calque.float16])
def test_other_dtypes(dtype: Any) -> None:
    one = quantize_(layer(40, 30), bits=4, group_size=8)
    for rows in (1, 40):
        x = calque.randn(rows, 40).to(dtype)
        wanted = x.double() @ one.dequantize().double().T + one.bias.double()
        assert one(x).dtype is dtype
        np.testing.assert_allclose(one(x).double().detach().numpy(), wanted.detach().numpy(), atol=0.05 if dtype.itemsize == 2 else 1e-6)
        with calque.autocast("cpu"):
            assert one(x.float()).dtype is calque.bfloat16


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("gpt", "bert")], ids=lambda c: c.name)
def test_models_are_exported_with_their_integers(case: Any, symmetric: bool) -> None:
    calque.manual_seed(0)
    model = case.make().eval()
    given = case.inputs(*case.example)
    before = model(*given)
    quantize_(model, bits=4, group_size=16, symmetric=symmetric)
    assert 0 < apart(model(*given), before) < 0.5
    with calque.no_grad():
        exported = calque.export(model, given, case.dynamic)
    file = io.BytesIO()
    exported.save(file)
    file.seek(0)
    loaded = calque.load_exported(file)
    assert {name for name, b in loaded.named_buffers() if b.dtype is calque.int8} and "int4_matmul" in loaded.text()
    for sizes in [case.example, *case.sizes]:
        given = case.inputs(*sizes)
        assert apart(loaded(*given), model(*given)) < 1e-4


@pytest.mark.skipif(not (there("onnx") and there("onnxruntime")), reason="needs onnx and onnxruntime")
def test_onnx_has_the_integers() -> None:
    import onnxruntime

    model = quantize_(nn.Sequential(layer(64, 48), nn.ReLU(), layer(48, 5, 1)).eval(), bits=4, group_size=16, symmetric=False)
    x, file = calque.randn(3, 64), io.BytesIO()
    with calque.no_grad():
        calque.export(model, x, {"input": {0: "n"}}).onnx(file)
    found = onnxruntime.InferenceSession(file.getvalue()).run(None, {"input": x.numpy()})[0]
    np.testing.assert_allclose(found, model(x).detach().numpy(), atol=1e-5)


def test_state_dicts_and_gradients_of_exports() -> None:
    model = quantize_(nn.Sequential(layer(50, 16), nn.ReLU(), layer(16, 4, 1)), bits=4, group_size=32, symmetric=False)
    names = {"0.weight_int4", "0.weight_scale", "0.weight_shift", "0.bias", "2.weight_int4", "2.weight_scale", "2.weight_shift", "2.bias"}
    assert set(model.state_dict()) == names
    other = nn.Sequential(Int4Linear(50, 16, group_size=32, symmetric=False), nn.ReLU(), Int4Linear(16, 4, group_size=32, symmetric=False))
    x = calque.randn(3, 50)
    assert other(x).tolist() == [[0.0] * 4] * 3
    other.load_state_dict(model.state_dict())
    assert calque.equal(other(x), model(x))
    with pytest.raises(RuntimeError, match="weight_scale"):
        nn.Sequential(Int4Linear(50, 16, group_size=16, symmetric=False), nn.ReLU(), nn.Linear(16, 4)).load_state_dict(model.state_dict())
    exported = calque.export(model, x)
    given = [x.clone().requires_grad_() for _ in range(2)]
    for one, t in zip((exported, model), given, strict=True):
        one(t).square().sum().backward()
    assert apart(given[0].grad, given[1].grad) < 1e-5


def test_an_eighth_of_the_bytes_and_how_near() -> None:
    """Groups of 64 with scales of float32: 4.5 bits a weight."""
    one = layer(1024, 256)
    weight = one.weight.detach().clone()
    held = sum(b.numel() * b.dtype.itemsize for b in quantize_(one, bits=4, group_size=64).buffers())
    assert held * 8 == 4.5 * weight.numel()
    far = []
    for size, symmetric in ((128, True), (64, True), (32, True), (32, False)):
        rounded = layer(1024, 256)
        with calque.no_grad():
            rounded.weight.normal_(generator=calque.Generator().manual_seed(1))
        before = rounded.weight.detach().clone()
        quantize_(rounded, bits=4, group_size=size, symmetric=symmetric)
        far.append(((rounded.dequantize() - before).square().mean() / before.square().mean()).sqrt().item())
    assert far == sorted(far, reverse=True) and far[0] < 0.13 and far[-1] < 0.09


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"bits": 3}, "expected bits=8 or bits=4, got 3"),
        ({"bits": 4, "dynamic": True}, "expected dynamic=True with bits=8"),
        ({"bits": 4, "group_size": 7}, "group_size as an even integer from 2 on, got 7"),
        ({"bits": 4, "group_size": 0}, "group_size as an even integer from 2 on, got 0"),
        ({"bits": 4, "group_size": 32.0}, r"\[quantize_\] expected an int, got float 32.0 as 'group_size'"),
    ],
    ids=str,
)
def test_what_is_refused(settings: dict[str, Any], text: str) -> None:
    model = nn.Sequential(layer(4, 4))
    with pytest.raises((ArgumentError, DTypeError), match=text):
        quantize_(model, **settings)
    assert type(model[0]) is nn.Linear
    with pytest.raises(ShapeError, match="linear"):
        quantize_(layer(4, 4), bits=4)(calque.ones(2, 5))
    with pytest.raises(ArgumentError, match=r"not finite in 0\.weight"), calque.no_grad():
        model[0].weight[0, 0] = float("inf")
        quantize_(model, bits=4)
