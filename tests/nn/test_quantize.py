"""Linear layers with weights of int8: their integers and sums are those of a twin in NumPy, in every way in which they run."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from tests.exported.models import CASES, apart

ROWS = (0, 1, 2, 40)


def twin(weight: Any) -> tuple[Any, Any]:
    """Integers and scales of a weight."""
    scale = np.array([np.abs(row).max() / np.float32(127) for row in weight], np.float32)
    scale[scale == 0] = 1
    return np.array([np.rint(row / s) for row, s in zip(weight, scale, strict=True)]).clip(-127, 127).astype(np.int8), scale


def layer(inputs: int, outputs: int, seed: int = 0) -> Any:
    calque.manual_seed(seed)
    return nn.Linear(inputs, outputs)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (64, 70), (257, 33)])
def test_integers_and_sums_are_those_of_numpy(size: tuple[int, int]) -> None:
    one = layer(*size)
    with calque.no_grad():
        one.weight[0] = 0
        one.weight[-1] *= 1e-42  # so small that its scale is no float
    weight, bias = one.weight.detach().numpy().copy(), one.bias.detach().numpy().copy()
    whole, scale = twin(weight)
    assert nn.utils.quantize_(one) is one
    np.testing.assert_array_equal(one.weight_int8.numpy(), whole)
    np.testing.assert_array_equal(one.weight_scale.numpy(), scale)
    np.testing.assert_array_equal(one.dequantize().numpy(), whole * scale[:, None])
    compiled = calque.compile(one)
    for rows in ROWS:
        x = np.random.default_rng(rows).integers(-20, 21, (rows, size[0]))
        wanted = (x @ whole.T.astype(np.int64)).astype(np.float32) * scale + bias  # sums of integers below 2**24 are exact in float32
        for function in (one, one, compiled, compiled, compiled):
            with calque.no_grad():
                np.testing.assert_array_equal(function(calque.tensor(x, dtype=calque.float32)).numpy(), wanted)


@pytest.mark.parametrize("dtype", [calque.float64, calque.bfloat16, calque.float16])
def test_other_dtypes(dtype: Any) -> None:
    one = nn.utils.quantize_(layer(40, 30))
    for rows in (1, 8):
        x = calque.randn(rows, 40).to(dtype)
        wanted = x.double() @ one.dequantize().double().T + one.bias.double()
        assert one(x).dtype is dtype or dtype is calque.float64
        np.testing.assert_allclose(one(x).double().detach().numpy(), wanted.detach().numpy(), atol=0.05 if dtype.itemsize == 2 else 1e-6)
    with calque.autocast("cpu"):
        assert one(calque.randn(1, 40)).dtype is one(calque.randn(8, 40)).dtype is calque.bfloat16


@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("gpt", "bert")], ids=lambda c: c.name)
def test_models_are_exported_with_int8_weights(case: Any) -> None:
    calque.manual_seed(0)
    model = case.make().eval()
    given = case.inputs(*case.example)
    before = model(*given)
    nn.utils.quantize_(model)
    assert 0 < apart(model(*given), before) < 0.05
    exported = calque.export(model, given, case.dynamic)
    file = io.BytesIO()
    exported.save(file)
    file.seek(0)
    loaded = calque.load_exported(file)
    assert {name for name, b in loaded.named_buffers() if b.dtype is calque.int8}
    for sizes in [case.example, *case.sizes]:
        given = case.inputs(*sizes)
        assert apart(loaded(*given), model(*given)) < 1e-5


def test_a_record_of_the_float_model_is_not_replayed() -> None:
    model, x = nn.Sequential(layer(64, 64), nn.ReLU(), layer(64, 8, 1)), calque.randn(2, 64)
    compiled = calque.compile(model)
    before = [compiled(x) for _ in range(4)][-1]
    nn.utils.quantize_(model)
    after = [compiled(x) for _ in range(4)]
    assert not calque.equal(after[0], before) and all(apart(y, model(x)) < 1e-6 for y in after)


def test_state_dicts_gradients_and_filters() -> None:
    model = nn.Sequential(layer(16, 16), nn.ReLU(), layer(16, 4, 1))
    kept = copy.deepcopy(model)
    names: list[str] = []
    nn.utils.quantize_(model, lambda one, name: names.append(name) is None and name == "0")
    assert names == ["0", "2"] and type(model[2]) is nn.Linear and isinstance(model[0], nn.utils.Int8Linear)
    assert set(model.state_dict()) == {"0.weight_int8", "0.weight_scale", "0.bias", "2.weight", "2.bias"}
    for rows in (2, 9):
        x = calque.randn(rows, 16, requires_grad=True)
        y = x.detach().requires_grad_()
        model[0](x).sum().backward()
        nn.functional.linear(y, model[0].dequantize(), model[0].bias.detach()).sum().backward()
        assert apart(x.grad, y.grad) < 1e-5 and model[0].bias.grad is not None
    other = nn.Sequential(nn.utils.Int8Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    other.load_state_dict(model.state_dict())
    assert calque.equal(other(x), model(x))
    with pytest.raises(RuntimeError, match="weight_int8"):
        other.load_state_dict(kept.state_dict())


def test_shared_weights_stay_where_they_are_shared() -> None:
    words, head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
    head.weight = words.weight
    model = nn.ModuleDict({"words": words, "head": head})
    nn.utils.quantize_(model)
    assert isinstance(words.weight, nn.Parameter) and [name for name, _ in model.named_parameters()] == ["words.weight"]
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    nn.utils.quantize_(nn.ModuleList([attention, nn.Linear(2, 2)]))
    assert attention(*[calque.randn(1, 3, 8)] * 3)[0].shape == (1, 3, 8)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.ReLU(), "none is chosen"),
        (calque.relu, "expected a Module"),
        (nn.Sequential(nn.LazyLinear(3)), "LazyLinear"),
        (nn.Linear(2, 2, dtype=calque.complex64), "complex64"),
    ],
    ids=["no linear layer", "a function", "lazy", "complex"],
)
def test_what_is_refused(model: Any, text: str) -> None:
    with pytest.raises((ArgumentError, DTypeError), match=text):
        nn.utils.quantize_(model)


def test_weights_that_are_not_finite_change_nothing() -> None:
    model = nn.Sequential(layer(4, 4), layer(4, 4, 1))
    with calque.no_grad():
        model[1].weight[0, 0] = float("nan")
    with pytest.raises(ArgumentError, match=r"not finite in 1\.weight"):
        nn.utils.quantize_(model)
    assert all(type(one) is nn.Linear and "weight" in one._parameters for one in model)
    with pytest.raises(ShapeError, match="linear"):
        nn.utils.quantize_(layer(4, 4))(calque.ones(2, 5))
