"""The single-process, single-device snippets of sources B (slides), C (lecture notes) and D (a tutorial)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque as torch
from calque import nn
from calque.utils.data import DataLoader, TensorDataset


def test_b_serial_program() -> None:
    A = torch.ones((2, 2)) * 2
    C = A + 2
    B = A + 1
    D = B * C
    assert repr(D) == "tensor([[12., 12.],\n        [12., 12.]])"


def test_b_value_is_computed_when_it_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = torch.tensor(1), torch.tensor(2)
    c = a + b
    print(c)
    assert capsys.readouterr().out == "tensor(3)\n"


class Sigmoid(torch.autograd.Function):
    """Source C."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = 1.0 / (1.0 + (-x).exp())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Any) -> Any:
        (y,) = ctx.saved_tensors
        return grad_y * y * (1.0 - y)


def sigmoid(x: Any) -> Any:
    return Sigmoid.apply(x)


def test_c_sigmoid_as_a_function_of_its_own() -> None:
    x = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    sigmoid(x).sum().backward()
    y = 1 / (1 + np.exp(-x.detach().numpy()))
    np.testing.assert_allclose(x.grad.numpy(), y * (1 - y), rtol=1e-12)
    assert torch.autograd.gradcheck(sigmoid, (x,))


def test_c_sigmoid_as_a_python_function() -> None:
    x = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    (1.0 / (1.0 + (-x).exp())).sum().backward()
    y = 1 / (1 + np.exp(-x.detach().numpy()))
    np.testing.assert_allclose(x.grad.numpy(), y * (1 - y), rtol=1e-12)


def test_c_two_layer_network_by_autograd() -> None:
    torch.manual_seed(0)
    N, D_in, H, D_out = 16, 10, 12, 4
    x, y = torch.randn(N, D_in), torch.randn(N, D_out)
    w1 = torch.randn(D_in, H, requires_grad=True)
    w2 = torch.randn(H, D_out, requires_grad=True)
    losses = []
    for _ in range(20):
        y_pred = x.mm(w1).clamp(min=0).mm(w2)
        loss = (y_pred - y).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            w1 -= 1e-4 * w1.grad
            w2 -= 1e-4 * w2.grad
            w1.grad.zero_()
            w2.grad.zero_()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and w1.is_leaf and w1.grad.abs().sum().item() == 0.0


def test_c_gradients_accumulate_until_zeroed() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    (w * w).sum().backward()
    assert w.grad.tolist() == [4.0, 8.0]
    w.grad.zero_()
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0]


def test_c_graph_is_gone_after_backward() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    loss = (w * w).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_c_sequential_with_adam_and_a_loader() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 10), torch.randn(64, 3)
    loader = DataLoader(TensorDataset(x, y), batch_size=16)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        for x_batch, y_batch in loader:
            loss = nn.functional.mse_loss(model(x_batch), y_batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


class ParallelBlock(nn.Module):
    """Modules inside modules (source C)."""

    def __init__(self, D_in: int, D_out: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(D_in, D_out)
        self.linear2 = nn.Linear(D_in, D_out)

    def forward(self, x: Any) -> Any:
        return (self.linear1(x) * self.linear2(x)).clamp(min=0)


def test_c_modules_inside_modules() -> None:
    model = nn.Sequential(ParallelBlock(10, 5), ParallelBlock(5, 5), nn.Linear(5, 2))
    assert model(torch.randn(3, 10)).shape == (3, 2)
    assert len(list(model.parameters())) == 10


def test_c_the_formula_may_change_with_a_value() -> None:
    w = torch.tensor(3.0, requires_grad=True)
    for start, expected in ((1.0, 4.0), (5.0, 10.0)):
        w.grad = None
        x = torch.tensor(start)
        y = w * 4 if x < 2 else w * 10
        y.backward()
        assert w.grad.item() == expected


class DistributedModel(nn.Module):
    """Source D: submodules as keyword arguments, here all on the CPU."""

    def __init__(self) -> None:
        super().__init__(embedding=nn.Embedding(1000, 10), rnn=nn.Linear(10, 10).to(torch.device("cpu")))

    def forward(self, x: Any) -> Any:
        x = self.embedding(x)
        x = x.to(torch.device("cpu"))
        return self.rnn(x)


def test_d_keyword_submodules() -> None:
    model = DistributedModel()
    assert [n for n, _ in model.named_parameters()] == ["embedding.weight", "rnn.weight", "rnn.bias"]
    assert model(torch.randint(0, 1000, (4,))).shape == (4, 10)
