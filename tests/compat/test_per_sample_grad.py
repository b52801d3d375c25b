"""`torch.nn.utils._per_sample_grad`: gradients of every sample apart, as libraries for private training ask for them."""

from __future__ import annotations

import pytest

import calque
from calque import Tensor, nn
from calque.compat.face import face

call_for_per_sample_grads = face("torch.nn.utils._per_sample_grad").call_for_per_sample_grads


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.twice = nn.Embedding(7, 4, padding_idx=1), nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(self.twice(self.norm(self.embed(x))).tanh())


def image_net() -> nn.Module:
    layers = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.InstanceNorm2d(4, affine=True), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(36, 2))


CASES = {
    "images": (image_net, lambda: calque.randn(3, 2, 6, 6)),
    "words": (Words, lambda: calque.tensor([[1, 2, 3], [4, 4, 0]])),
    "rows": (lambda: nn.Linear(4, 2), lambda: calque.randn(3, 2, 4)),
    "wrapped": (lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), lambda: calque.randn(3, 1, 5, 5)),
    "sequences": (lambda: nn.Conv1d(2, 2, 3, padding="same", dilation=2), lambda: calque.randn(3, 2, 7)),
    "volumes": (lambda: nn.Conv3d(1, 2, 2, bias=False), lambda: calque.randn(2, 1, 3, 3, 3)),
}


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_each_sample_alone(name: str, reduction: str, seed: int) -> None:
    calque.manual_seed(seed)
    make, inputs = CASES[name]
    module, x = make().double(), inputs()
    x = x.double() if x.is_floating_point() else x
    alone = []
    for sample in x:
        module.zero_grad()
        loss = module(sample.unsqueeze(0)).pow(2)
        getattr(loss, reduction)().backward()
        alone.append([p.grad for p in module.parameters()])
    module.zero_grad()
    wanted = module(x)
    found = call_for_per_sample_grads(module, loss_reduction=reduction)(x)
    getattr(found.pow(2), reduction)().backward()
    assert calque.allclose(found, wanted)
    for k, p in enumerate(module.parameters()):
        assert p.grad is None and calque.allclose(p.grad_sample, calque.stack([one[k] for one in alone]))


def test_samples_that_are_mixed_keep_what_they_share(seed: int) -> None:
    """The output is that of the whole batch, and the gradients of the samples sum up to its gradient."""
    calque.manual_seed(seed)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.second((h - h.mean(0)).tanh())

    module, x = Mixed().double(), calque.randn(5, 4).double().requires_grad_()
    module(x).pow(2).sum().backward()
    wanted, of_input = [p.grad for p in module.parameters()], x.grad
    module.zero_grad()
    x.grad = None
    found = call_for_per_sample_grads(module)(x)
    assert calque.allclose(found, module(x))
    found.pow(2).sum().backward()
    assert calque.allclose(x.grad, of_input)
    assert all(calque.allclose(p.grad_sample.sum(0), w) for p, w in zip(module.parameters(), wanted, strict=True))


def test_running_statistics_are_written_once_and_frozen_parameters_stay_out() -> None:
    module = nn.Sequential(nn.Conv1d(1, 2, 1), nn.InstanceNorm1d(2, affine=True, track_running_stats=True))
    module[0].bias.requires_grad_(False)
    x, twin = calque.arange(12.0).reshape(3, 1, 4).sin(), nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    twin(module[0](x))
    call_for_per_sample_grads(module)(x).sum().backward()
    assert calque.allclose(module[1].running_mean, twin.running_mean) and calque.allclose(module[1].running_var, twin.running_var)
    assert not hasattr(module[0].bias, "grad_sample") and module[1].bias.grad_sample.shape == (3, 2)


def test_what_cannot_be_told_apart_is_refused_by_name() -> None:
    x = calque.ones(3, 4)
    for module, text in (
        (nn.BatchNorm1d(4), r"\[batch_norm\] Expanded Weights encountered but cannot handle function batch_norm"),
        (nn.PReLU(), "cannot handle function prelu"),
        (nn.Linear(4, 2).requires_grad_() and nn.Sequential(nn.Flatten(0), nn.Linear(12, 2)), "expected an input of at least 2 dims"),
        (nn.Sequential(nn.Unflatten(0, (1, 3)), nn.Linear(4, 2)), "input batch size of 1 with ExpandedWeight of batch size 3"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call_for_per_sample_grads(module)(x)
    with pytest.raises(RuntimeError, match="expected scale_grad_by_freq=False for gradients of samples"):
        call_for_per_sample_grads(nn.Embedding(4, 2, scale_grad_by_freq=True))(calque.tensor([[1, 1]]))
    with pytest.raises(NotImplementedError, match="expected layers that know samples, got LSTM; rewrite it with nn.Linear"):
        call_for_per_sample_grads(nn.Sequential(nn.LSTM(2, 2)))


def test_arguments() -> None:
    layer = nn.Linear(4, 3)
    for arguments, text in (
        ({"batch_size": 0}, "Batch size must be positive, got 0"),
        ({"batch_size": 1.5}, "Batch size passed must be None or an integer"),
        ({"loss_reduction": "max"}, "Expected loss_reduction argument to be sum or mean"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call_for_per_sample_grads(layer, **arguments)
    with pytest.raises(RuntimeError, match="Module passed must be nn.Module, got function"):
        call_for_per_sample_grads(lambda x: x)
    with pytest.raises(RuntimeError, match="Unable to find a tensor"):
        call_for_per_sample_grads(layer)(1)
    with pytest.raises(RuntimeError, match="found at least one input with batch size 2 and one with batch size 3"):
        call_for_per_sample_grads(nn.Bilinear(1, 1, 1))(calque.ones(2, 1), calque.ones(3, 1))
    with pytest.raises(RuntimeError, match=r"requires a Tensor as the first input to get the batch dimension, got ExpandedWeight"):
        class Product(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Parameter(calque.ones(2, 2)), nn.Parameter(calque.ones(2, 2))

            def forward(self, x: Tensor) -> Tensor:
                return x + nn.functional.linear(self.a, self.b)

        call_for_per_sample_grads(Product())(calque.ones(2, 2))
    call_for_per_sample_grads(layer, batch_size=2)(calque.ones(2, 4)).sum().backward()
    with pytest.raises(RuntimeError, match="set it to None first"):
        call_for_per_sample_grads(layer)
