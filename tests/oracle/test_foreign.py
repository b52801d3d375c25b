"""Tensors of PyTorch and tables of pandas given to us: the text names what they are, and how to convert them works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from calque import nn  # noqa: E402
from calque.data import DataLoader, TensorDataset  # noqa: E402

pytestmark = pytest.mark.oracle

F = nn.functional
T, X = torch.ones(4, 3), calque.ones(4, 3)


def _leaf() -> Any:
    return calque.ones(4, 3, requires_grad=True)


def _put(target: Any, name: str, value: Any) -> None:
    setattr(target, name, value)


CALLS = [
    lambda: X + T, lambda: T + X, lambda: X * T, lambda: X @ T.T, lambda: T.T @ X, lambda: X == T, lambda: X < T, lambda: X.clone().add_(T),
    lambda: calque.add(X, T), lambda: X[T > 0], lambda: X[torch.tensor([0, 1])], lambda: X[torch.tensor([True])], lambda: F.relu(T),
    lambda: X.clone().__setitem__(T > 0, 0.0), lambda: calque.sum(T), lambda: F.linear(T, X), lambda: F.linear(X, T), lambda: nn.Linear(3, 2)(T),
    lambda: nn.Conv2d(3, 2, 1)(torch.ones(1, 3, 4, 4)), lambda: nn.Embedding(3, 2)(torch.tensor([1])), lambda: nn.LSTM(3, 3)(torch.ones(2, 2, 3)),
    lambda: F.cross_entropy(X, torch.tensor([0, 1, 2, 0])), lambda: F.mse_loss(X, T), lambda: calque.cat([X, T]), lambda: calque.stack([X, T]),
    lambda: calque.where(T > 0, X, X), lambda: calque.maximum(X, T), lambda: calque.softmax(T, 1), lambda: calque.einsum("ij,ij", X, T),
    lambda: nn.Linear(3, 2).load_state_dict(torch.nn.Linear(3, 2).state_dict()), lambda: calque.from_numpy(T), lambda: nn.Parameter(T),
    lambda: nn.Module().register_buffer("a", T), lambda: nn.Module().register_parameter("a", T), lambda: _put(nn.Linear(3, 4), "weight", T),
    lambda: calque.optim.SGD([T], lr=1.0), lambda: (_leaf() * 2).backward(T), lambda: _put(_leaf(), "grad", T), lambda: _put(_leaf(), "data", T),
    lambda: TensorDataset(T), lambda: calque.save({"a": T}, "x"), lambda: nn.utils.clip_grad_norm_([T], 1.0), lambda: X.copy_(T),
    lambda: next(iter(DataLoader(torch.utils.data.TensorDataset(T), batch_size=2))), lambda: calque.gather(X, 0, torch.tensor([[0]])),
    lambda: nn.utils.parameters_to_vector([T]), lambda: X.masked_fill(T > 0, 0.0), lambda: calque.matmul(X, T), lambda: X.mul(T),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_tensor_of_torch_is_named(call: Any) -> None:
    with pytest.raises((TypeError, ValueError, IndexError, RuntimeError)) as caught:
        call()
    text = str(caught.value)
    assert "torch.Tensor" in text or "torch.FloatTensor" in text, text
    assert "it belongs to PyTorch" in text and "calque.from_dlpack(x.detach())" in text, text


def test_the_advice_works() -> None:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    assert calque.from_dlpack(x.detach()).tolist() == x.tolist()
    assert X[calque.from_dlpack(T > 2)].tolist() == [] and calque.from_dlpack(torch.tensor([1, 2])).dtype == calque.int64


def test_a_state_of_torch_is_refused() -> None:
    theirs = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
    theirs.param_groups[0]["params"][0].grad = torch.ones(3)
    theirs.step()
    ours = calque.optim.Adam([nn.Parameter(calque.ones(3))])
    with pytest.raises(ValueError, match=r"state 'exp_avg' of .* is no Tensor but torch.Tensor: it belongs to PyTorch"):
        ours.load_state_dict(theirs.state_dict())
    assert not ours.state


def test_a_generator_of_torch() -> None:
    with pytest.raises(TypeError, match=r"\[randn\] expected a Generator or None, got torch.*Generator as 'generator'"):
        calque.randn(2, generator=torch.Generator())


def test_a_frame_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.ones((1000, 5)), columns=[f"c{i}" for i in range(5)])
    named = frame.assign(name="abc")
    assert calque.tensor(frame).shape == (1000, 5) and calque.tensor(named.select_dtypes("number").to_numpy()).shape == (1000, 5)
    for call in (lambda: calque.tensor(named), lambda: F.relu(named), lambda: X[named], lambda: nn.Linear(5, 2)(named), lambda: calque.zeros(named)):
        with pytest.raises((TypeError, ValueError, IndexError)) as caught:
            call()
        assert "pandas.DataFrame" in str(caught.value) and len(str(caught.value)) < 400 and "1.0" not in str(caught.value)
    with pytest.raises(TypeError, match=r"got pandas.DataFrame of shape \(1000, 6\) .*with str 'abc' at index \[0, 5\]; convert it with"):
        calque.tensor(named)


@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")  # PyTorch's
def test_numpy_functions_and_capsules_of_both() -> None:
    """What NumPy's functions make of tensors, and memory that goes from one to the other and back."""

    for f in (
        lambda m, t: np.add(t, t), lambda m, t: np.sin(t), lambda m, t: np.less(t, 2), lambda m, t: np.argmax(t), lambda m, t: np.clip(t, 0, 2),
        lambda m, t: np.cumsum(t), lambda m, t: np.add.reduce(t), lambda m, t: np.matmul(m.ones(2, 3), t), lambda m, t: np.sqrt(t.sum()),
        lambda m, t: np.multiply(np.ones(3), t), lambda m, t: np.modf(t)[0], lambda m, t: np.power(t, 2), lambda m, t: np.sort(t),
    ):  # fmt: skip
        ours, theirs = f(calque, calque.tensor([1.0, 2.0, 3.0])), f(torch, torch.tensor([1.0, 2.0, 3.0]))
        assert type(ours).__name__ == type(theirs).__name__ and str(ours.dtype) == str(theirs.dtype) and np.allclose(ours, theirs)
    for name in ("bool", "uint8", "int64", "float16", "bfloat16", "float32", "complex64", "uint16", "uint64", "float8_e4m3fn",
                 "float8_e5m2", "float8_e8m0fnu"):  # fmt: skip
        t = torch.tensor([1.0, 2.0, 4.0]).to(getattr(torch, name))
        ours = calque.from_dlpack(t)
        assert repr(ours.dtype) == repr(t.dtype) and ours.data_ptr() == t.data_ptr() and torch.from_dlpack(ours).data_ptr() == t.data_ptr()
        assert torch.equal(torch.from_dlpack(ours).view(torch.uint8), t.view(torch.uint8))
