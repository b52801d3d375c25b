"""Lazy layers, pruning, SyncBatchNorm, hooks of all modules, adaptive softmax: what they promise, without PyTorch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import calque
from calque import nn
from calque.nn.global_hooks import register_module_forward_hook
from calque.nn.utils import prune


def test_a_lazy_network_trains() -> None:
    calque.manual_seed(0)
    net = nn.Sequential(nn.LazyConv2d(4, 3, padding=1), nn.LazyBatchNorm2d(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(2))
    x, y = calque.randn(8, 3, 4, 4), calque.arange(8) % 2
    net(x)  # parameters are there from the first call on
    optimizer = calque.optim.NAdam(net.parameters(), lr=0.05)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]
    saved = net.state_dict()
    other = nn.Sequential(nn.LazyConv2d(4, 3, padding=1), nn.LazyBatchNorm2d(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(2))
    other.load_state_dict(saved)
    np.testing.assert_allclose(other.eval()(x).detach().numpy(), net.eval()(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert other[0].in_channels == 3 and other[1].num_features == 4


def test_lazy_parameters_say_what_is_missing() -> None:
    layer = nn.LazyConv2d(4, 3)
    with pytest.raises(RuntimeError, match="call the model on one batch first"):
        layer.weight.shape  # noqa: B018
    with pytest.raises(RuntimeError, match="Expected 3D or 4D input to LazyConv2d"):
        layer(calque.zeros(2, 2))
    with pytest.raises(RuntimeError, match="uninitialized parameter"):
        nn.Linear(2, 2).load_state_dict(nn.LazyLinear(2).state_dict())
    buffer = nn.UninitializedBuffer(dtype=calque.float64)
    buffer.materialize((2, 3))
    assert tuple(buffer.shape) == (2, 3) and buffer.dtype is calque.float64


def test_pruned_weights_stay_zero_while_training() -> None:
    calque.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    for layer in (net[0], net[2]):
        prune.l1_unstructured(layer, "weight", amount=0.5)
    optimizer, x = calque.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), calque.randn(16, 4)
    for _ in range(5):
        optimizer.zero_grad()
        (net(x) ** 2).mean().backward()
        optimizer.step()
    for layer in (net[0], net[2]):
        zeros = layer.weight_mask == 0
        prune.remove(layer, "weight")
        assert int(zeros.sum()) == layer.weight.numel() // 2 and bool((layer.weight[zeros] == 0).all())
        assert isinstance(layer.weight, nn.Parameter)


def test_sync_batch_norm_is_batch_norm_here() -> None:
    x = calque.randn(6, 3, 4)
    plain = nn.BatchNorm1d(3)
    sync = nn.SyncBatchNorm.convert_sync_batchnorm(plain)
    assert sync.weight is plain.weight and type(sync) is nn.SyncBatchNorm
    assert calque.allclose(sync(x), nn.functional.batch_norm(x, None, None, plain.weight, plain.bias, True), atol=1e-6)
    assert sync.num_batches_tracked.item() == 1


def test_hooks_of_all_modules_end() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).hybridize()
    for _ in range(4):
        net(calque.ones(1, 2))
    names: list[str] = []
    with register_module_forward_hook(lambda module, args, output: names.append(type(module).__name__)):
        net(calque.ones(1, 2))
    assert names == ["Linear", "ReLU", "Sequential"]
    net(calque.ones(1, 2))
    assert len(names) == 3 and nn.Module._hooked is False


def test_adaptive_softmax_sums_to_one() -> None:
    layer = nn.AdaptiveLogSoftmaxWithLoss(8, 30, [5, 12], head_bias=True)
    x, y = calque.randn(20, 8), calque.arange(20) + 10
    logs = layer.log_prob(x)
    np.testing.assert_allclose(logs.exp().sum(1).detach().numpy(), np.ones(20), rtol=1e-5)
    out = layer(x, y)
    np.testing.assert_allclose(out.output.detach().numpy(), logs.gather(1, y.unsqueeze(1)).squeeze(1).detach().numpy(), rtol=1e-5)
    assert layer.predict(x).tolist() == logs.argmax(1).tolist()


def test_rare_layers_load_on_first_use() -> None:
    code = (
        "import sys, calque; assert not [m for m in sys.modules if m.endswith(('modules.lazy', 'modules.volumes', 'utils.prune', 'nn.attention'))]; "
        "calque.nn.LazyConv2d, calque.nn.attention.sdpa_kernel; assert 'CTCLoss' in dir(calque.nn)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("norm_first", [False, True])
def test_blocks_of_transformer_layers_may_be_replaced(norm_first: bool) -> None:
    """By PyTorch's names: who wants the weights of the attention overrides `_sa_block`."""

    class Encoder(nn.TransformerEncoderLayer):
        def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False):
            found, self.weights = self.self_attn(x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal)
            return self.dropout1(found)

        def _ff_block(self, x):
            return super()._ff_block(x) * 2

    class Decoder(nn.TransformerDecoderLayer):
        def _mha_block(self, x, mem, attn_mask, key_padding_mask, is_causal=False):
            return super()._mha_block(x, mem, attn_mask, key_padding_mask, is_causal) * 0

    calque.manual_seed(0)
    x, memory = calque.randn(2, 3, 8), calque.randn(2, 5, 8)
    encoder = Encoder(8, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
    plain = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
    plain.load_state_dict(encoder.state_dict())
    plain.linear2.weight.data.mul_(2)
    plain.linear2.bias.data.mul_(2)
    assert calque.allclose(encoder(x), plain(x), atol=1e-5) and tuple(encoder.weights.shape) == (2, 3, 3)
    decoder = Decoder(8, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
    assert calque.equal(decoder(x, memory), decoder(x, memory * 3))


def test_layers_of_zeros_have_the_value_that_they_pad_with() -> None:
    for layer, kind in ((nn.ZeroPad1d(1), nn.ConstantPad1d), (nn.ZeroPad2d((1, 2, 3, 4)), nn.ConstantPad2d), (nn.ZeroPad3d(2), nn.ConstantPad3d)):
        assert layer.value == 0.0 and isinstance(layer, kind) and repr(layer) == f"{type(layer).__name__}({layer.padding})"
    assert nn.Upsample(scale_factor=2).name == "Upsample" and nn.UpsamplingNearest2d(scale_factor=2).name == "UpsamplingNearest2d"
