"""The single-process snippets of source A (a PyTorch overview), corrected where the printed code does not run, with the printed numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque as torch
from calque import nn
from calque.nn import functional as F
from calque.utils.data import DataLoader, Dataset


def test_array_to_tensor() -> None:
    data = [[3, 5], [10, 5]]
    x_data = torch.tensor(data)
    nd_array_ex = np.array(data)
    tensor_array = torch.from_numpy(nd_array_ex)
    assert x_data.dtype is torch.int64 and tensor_array.dtype is torch.int64
    assert repr(x_data) == "tensor([[ 3,  5],\n        [10,  5]])" == repr(tensor_array)


def test_view_and_reshape_show_the_same_numbers() -> None:
    tensor_ex = torch.rand(size=(2, 3, 2))
    assert tensor_ex.view([-1, 6]).shape == (2, 6)
    assert tensor_ex.view([-1, 6]).tolist() == tensor_ex.reshape([-1, 6]).tolist()


def test_view_shares_memory() -> None:
    a = torch.zeros(3, 2)
    b = a.view(2, 3)
    a.fill_(1)
    assert repr(a) == "tensor([[1., 1.],\n        [1., 1.],\n        [1., 1.]])"
    assert repr(b) == "tensor([[1., 1., 1.],\n        [1., 1., 1.]])"


def test_reshape_of_a_transposed_tensor_copies() -> None:
    a = torch.zeros(3, 2)
    b = a.t().reshape(6)
    a.fill_(1)
    assert repr(a) == "tensor([[1., 1.],\n        [1., 1.],\n        [1., 1.]])"
    assert repr(b) == "tensor([0., 0., 0., 0., 0., 0.])"
    contiguous = torch.zeros(3, 2)
    shared = contiguous.reshape(6)  # the source says reshape never shares: it does when no copy is needed
    contiguous.fill_(1)
    assert shared.tolist() == [1.0] * 6


def test_squeeze_and_unsqueeze() -> None:
    assert torch.rand(size=(2, 1, 2)).squeeze().shape == (2, 2)
    tensor_ex = torch.rand(size=(2, 2))
    assert str(tensor_ex.unsqueeze(0).shape) == "torch.Size([1, 2, 2])"
    assert str(tensor_ex.unsqueeze(1).shape) == "torch.Size([2, 1, 2])"
    assert str(tensor_ex.unsqueeze(2).shape) == "torch.Size([2, 2, 1])"


def test_mm_dot_matmul() -> None:
    n1, n2 = np.arange(10).reshape(2, 5), np.arange(10).reshape(5, 2)  # the source forgets t1; its numbers fit this one
    t1, t2 = torch.FloatTensor(n1), torch.FloatTensor(n2)
    assert repr(t1.mm(t2)) == "tensor([[ 60.,  70.],\n        [160., 195.]])" == repr(t1.matmul(t2))
    with pytest.raises(RuntimeError):
        t1.dot(t2)
    a, b = torch.rand(10), torch.rand(10)
    assert a.dot(b).item() == pytest.approx(float((a.numpy() * b.numpy()).sum()), rel=1e-5)
    with pytest.raises(RuntimeError):
        a.mm(b)


def test_matmul_takes_the_first_dimension_as_batch() -> None:
    left, right = torch.rand(10, 3, 4), torch.rand(4)
    assert left.matmul(right).shape == (10, 3)
    np.testing.assert_allclose((left @ right).numpy(), left.numpy() @ right.numpy(), rtol=1e-5)


def test_backward_of_a_scalar() -> None:
    w = torch.tensor(2.0, requires_grad=True)
    y = w**2
    z = 10 * y + 25
    z.backward()
    assert repr(w.grad) == "tensor(40.)"


def test_backward_with_an_external_gradient() -> None:
    a = torch.tensor([2.0, 3.0], requires_grad=True)
    b = torch.tensor([6.0, 4.0], requires_grad=True)
    Q = 3 * a**3 - b**2  # the source lacks the minus
    Q.backward(gradient=torch.tensor([1.0, 1.0]))
    assert repr(a.grad) == "tensor([36., 81.])"
    assert repr(b.grad) == "tensor([-12.,  -8.])"


class LR(nn.Module):
    """Logistic regression with hand-written gradients (source A, indentation and names corrected)."""

    def __init__(self, dim: int, lr: Any = torch.scalar_tensor(0.01)) -> None:  # noqa: B008 - as printed in the source
        super().__init__()
        device = torch.device("cpu")
        self.w = torch.zeros(dim, 1, dtype=torch.float).to(device)
        self.b = torch.scalar_tensor(0).to(device)
        self.grads = {"dw": torch.zeros(dim, 1, dtype=torch.float).to(device), "db": torch.scalar_tensor(0).to(device)}
        self.lr = lr.to(device)

    def forward(self, x: Any) -> Any:
        return self.sigmoid(torch.mm(self.w.T, x) + self.b)

    def sigmoid(self, z: Any) -> Any:
        return 1 / (1 + torch.exp(-z))

    def backward(self, x: Any, yhat: Any, y: Any) -> None:
        self.grads["dw"] = (1 / x.shape[1]) * torch.mm(x, (yhat - y).T)
        self.grads["db"] = (1 / x.shape[1]) * torch.sum(yhat - y)

    def optimize(self) -> None:
        self.w = self.w - self.lr * self.grads["dw"]
        self.b = self.b - self.lr * self.grads["db"]


def test_logistic_regression_by_hand() -> None:
    generator = np.random.default_rng(0)
    points = generator.normal(size=(2, 200)).astype(np.float32)
    labels = (points[:1] + 2 * points[1:] > 0).astype(np.float32)
    model, x, y = LR(2, torch.scalar_tensor(1.0)), torch.from_numpy(points), torch.from_numpy(labels)
    w, b = np.zeros((2, 1)), 0.0
    for _ in range(50):
        yhat = model(x)
        model.backward(x, yhat, y)
        model.optimize()
        reference = 1 / (1 + np.exp(-(w.T @ points + b)))
        w, b = w - points @ (reference - labels).T / 200, b - (reference - labels).mean()
    np.testing.assert_allclose(model.w.numpy(), w, rtol=1e-4)
    assert float(model.b) == pytest.approx(b, rel=1e-3, abs=1e-5)
    assert ((model(x).numpy() > 0.5) == labels).mean() > 0.97
    assert list(model.parameters()) == [] and model.w.grad_fn is None


class CustomDataset(Dataset):  # type: ignore[type-arg]
    """Source A."""

    def __init__(self, text: list[str], labels: list[str]) -> None:
        self.labels = labels
        self.data = text

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, idx: int) -> dict[str, str]:
        return {"Text": self.data[idx], "Class": self.labels[idx]}


TEXT = ["Happy", "Amazing", "Sad", "Unhappy", "Glum"]
LABELS = ["Positive", "Positive", "Negative", "Negative", "Negative"]


def test_dataset_and_loader_of_strings() -> None:
    dataset = CustomDataset(TEXT, LABELS)
    loader = DataLoader(dataset, batch_size=2, shuffle=True)
    first = next(iter(loader))
    assert set(first) == {"Text", "Class"} and len(first["Text"]) == 2
    batches = list(loader)
    assert [len(b["Text"]) for b in batches] == [2, 2, 1]
    assert sorted(t for b in batches for t in b["Text"]) == sorted(TEXT)
    pairs = {t: c for b in batches for t, c in zip(b["Text"], b["Class"], strict=True)}
    assert pairs == dict(zip(TEXT, LABELS, strict=True))


def test_loader_signature_as_printed() -> None:
    loader = DataLoader(
        CustomDataset(TEXT, LABELS), batch_size=1, shuffle=False, sampler=None, batch_sampler=None, num_workers=0, collate_fn=None,
        pin_memory=False, drop_last=False, timeout=0, worker_init_fn=None, prefetch_factor=2, persistent_workers=False,
    )  # fmt: skip
    assert [b["Text"][0] for b in loader] == TEXT


class TheModelClass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.fc(F.relu(self.bn(self.conv(x))).mean((2, 3)))


def test_state_dict_save_and_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = TheModelClass()
    for param_tensor in model.state_dict():
        print(param_tensor, "\t", model.state_dict()[param_tensor].size())
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "conv.weight \t torch.Size([4, 1, 3, 3])"
    assert [line.split()[0] for line in printed] == list(model.state_dict())
    path = os.path.join(tmp_path, "model.pt")
    torch.save(model.state_dict(), path)
    new_model = TheModelClass()
    new_model.load_state_dict(torch.load(path))
    x = torch.randn(2, 1, 5, 5)
    model.eval(), new_model.eval()
    assert model(x).tolist() == new_model(x).tolist()


def test_checkpoint_and_continue(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 1, 5, 5), torch.randint(0, 2, (8,))

    def steps(model: Any, optimizer: Any, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model = TheModelClass()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    e, epoch_loss, epoch_acc, dataloader = 3, steps(model, optimizer, 3)[-1], 0.5, [0]
    path = tmp_path / f"checkpoint_model_{e}_{epoch_loss / len(dataloader)}_{epoch_acc / len(dataloader)}.pt"
    torch.save(
        {"epoch": e, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "loss": epoch_loss}, path
    )
    expected = steps(model, optimizer, 3)
    checkpoint = torch.load(path)
    other = TheModelClass()
    other_optimizer = torch.optim.Adam(other.parameters(), lr=0.5)
    other.load_state_dict(checkpoint["model_state_dict"])
    other_optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    assert checkpoint["epoch"] == 3 and checkpoint["loss"] == epoch_loss
    assert steps(other, other_optimizer, 3) == expected


class MyNewNet(nn.Module):
    """Transfer learning of source A with a small backbone in place of VGG19."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = TheModelClass()
        self.linear_layers = nn.Linear(2, 1)

    def forward(self, x: Any) -> Any:
        return self.linear_layers(self.backbone(x))


def test_freezing() -> None:
    my_model = MyNewNet()
    for param in my_model.parameters():
        param.requires_grad = False
    for param in my_model.linear_layers.parameters():
        param.requires_grad = True
    before = {k: v.tolist() for k, v in my_model.backbone.named_parameters()}
    optimizer = torch.optim.SGD([p for p in my_model.parameters() if p.requires_grad], lr=0.1)
    my_model(torch.randn(2, 1, 5, 5)).sum().backward()
    optimizer.step()
    assert all(p.grad is None for p in my_model.backbone.parameters())
    assert {k: v.tolist() for k, v in my_model.backbone.named_parameters()} == before
    assert all(p.grad is not None for p in my_model.linear_layers.parameters())


def test_accumulating_tensors_in_a_loop() -> None:
    total_loss: Any = 0
    for _ in range(10):
        iter_loss = torch.randn(3, 4).mean()
        iter_loss.requires_grad = True
        total_loss += iter_loss
    assert total_loss.requires_grad and total_loss.shape == ()


def test_evaluation_loop() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.LogSoftmax(dim=1))
    data, target = torch.randn(6, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    test_loss, correct = 0.0, torch.tensor(0)
    with torch.no_grad():
        for rows in (slice(0, 4), slice(4, 6)):
            output = network(data[rows])
            with pytest.warns(UserWarning, match="size_average"):
                test_loss += F.nll_loss(output, target[rows], size_average=False).item()
            pred = output.data.max(1, keepdim=True)[1]
            correct += pred.eq(target[rows].data.view_as(pred)).sum()
    logits = network(data).detach().numpy()
    assert test_loss == pytest.approx(-sum(logits[i, t] for i, t in enumerate(target.tolist())), rel=1e-5)
    assert int(correct) == int((logits.argmax(1) == target.numpy()).sum())


def test_cuda_calls_on_a_machine_without_a_gpu() -> None:
    assert torch.cuda.is_available() is False and torch.cuda.device_count() == 0
    torch.cuda.empty_cache()
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.randn(3).cuda()
