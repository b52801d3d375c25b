"""Every layer against PyTorch's: text, state dict names, values and gradients in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.nn_harness import arrays, compare_module  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")]

ACTIVATIONS = [
    ("ReLU", (), {}),
    ("ReLU", (), {"inplace": False}),
    ("ReLU6", (), {}),
    ("ELU", (0.7,), {}),
    ("CELU", (0.7,), {}),
    ("SELU", (), {}),
    ("GELU", (), {}),
    ("GELU", (), {"approximate": "tanh"}),
    ("SiLU", (), {}),
    ("Mish", (), {}),
    ("Softplus", (), {}),
    ("Softplus", (2.0, 1.0), {}),
    ("Softsign", (), {}),
    ("Sigmoid", (), {}),
    ("Tanh", (), {}),
    ("LogSigmoid", (), {}),
    ("Hardtanh", (-0.5, 0.5), {}),
    ("Hardsigmoid", (), {}),
    ("Hardswish", (), {}),
    ("Hardshrink", (), {}),
    ("Softshrink", (0.3,), {}),
    ("Tanhshrink", (), {}),
    ("Threshold", (0.1, 0.7), {}),
    ("LeakyReLU", (0.2,), {}),
    ("PReLU", (), {}),
    ("PReLU", (4,), {}),
    ("GLU", (1,), {}),
    ("Softmax", (1,), {}),
    ("LogSoftmax", (-1,), {}),
    ("Softmin", (1,), {}),
    ("Identity", (), {}),
    ("Flatten", (), {}),
    ("Unflatten", (1, (2, 2)), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), ACTIVATIONS, ids=lambda v: str(v))
def test_activation(name: str, args: tuple, kwargs: dict) -> None:
    compare_module(
        name, args, arrays((3, 4, 5)), tolerance=1e-7 if name in ("CELU", "Hardsigmoid") else None, **kwargs
    )  # PyTorch rounds their constants


def test_the_gradient_of_hardsigmoid_is_a_sixth_in_float64() -> None:
    """PyTorch's is the sixth of float32. Once it is not, `loop_models.py` and the tolerance above need no exception."""
    found = []
    for T in (calque, torch):
        x = T.tensor([-2.5, 0.0, 1.0], dtype=T.float64, requires_grad=True)
        T.nn.functional.hardsigmoid(x).sum().backward()
        found.append(x.grad.tolist())
    assert found == [[1 / 6] * 3, [float(np.float32(1) / np.float32(6))] * 3]


LAYERS = [
    ("Linear", (5, 3), [(4, 5)], {}),
    ("Linear", (5, 3), [(2, 3, 5)], {"bias": False}),
    ("Linear", (5, 3), [(5,)], {}),
    ("Bilinear", (3, 4, 2), [(5, 3), (5, 4)], {}),
    ("Conv1d", (4, 6, 3), [(2, 4, 9)], {"stride": 2, "padding": 1}),
    ("Conv1d", (4, 6, 3), [(4, 9)], {"padding": "same", "groups": 2}),
    ("Conv2d", (3, 4, 3), [(2, 3, 7, 6)], {"padding": 1}),
    ("Conv2d", (4, 6, (3, 2)), [(2, 4, 8, 7)], {"stride": (2, 1), "dilation": (1, 2), "groups": 2}),
    ("Conv2d", (3, 4, (4, 3)), [(2, 3, 7, 6)], {"padding": "same", "bias": False}),
    ("Conv2d", (3, 4, 3), [(2, 3, 6, 6)], {"padding": 1, "padding_mode": "reflect"}),
    ("Conv2d", (3, 4, 3), [(3, 6, 6)], {"padding": "valid"}),
    ("Conv2d", (2, 2, 3), [(1, 2, 5, 5)], {"padding": (2, 1), "padding_mode": "circular"}),
    ("Conv3d", (2, 3, 3), [(2, 2, 5, 6, 4)], {"padding": 1, "stride": (2, 1, 1)}),
    ("ConvTranspose1d", (4, 6, 3), [(2, 4, 5)], {"stride": 2, "padding": 1, "output_padding": 1}),
    ("ConvTranspose2d", (4, 6, 3), [(2, 4, 5, 4)], {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
    ("ConvTranspose2d", (4, 2, (3, 2)), [(2, 4, 5, 4)], {"dilation": 2, "bias": False}),
    ("BatchNorm1d", (4,), [(6, 4)], {}),
    ("BatchNorm1d", (4,), [(3, 4, 5)], {"momentum": None}),
    ("BatchNorm2d", (3,), [(2, 3, 4, 5)], {}),
    ("BatchNorm2d", (3,), [(2, 3, 4, 5)], {"affine": False}),
    ("BatchNorm2d", (3,), [(2, 3, 4, 5)], {"track_running_stats": False}),
    ("BatchNorm3d", (2,), [(2, 2, 3, 3, 2)], {}),
    ("LayerNorm", ((4, 5),), [(3, 4, 5)], {}),
    ("LayerNorm", (5,), [(3, 4, 5)], {"bias": False}),
    ("LayerNorm", (5,), [(3, 5)], {"elementwise_affine": False}),
    ("RMSNorm", (5,), [(3, 4, 5)], {}),
    ("RMSNorm", (5,), [(3, 5)], {"eps": 1e-3}),
    ("GroupNorm", (2, 6), [(3, 6, 4, 2)], {}),
    ("GroupNorm", (3, 6), [(3, 6)], {"affine": False}),
    ("BatchNorm2d", (3,), [(2, 3, 4, 5)], {"bias": False}),
    ("InstanceNorm1d", (3,), [(2, 3, 5)], {}),
    ("InstanceNorm2d", (3,), [(2, 3, 4, 5)], {"affine": True, "track_running_stats": True}),
    ("LocalResponseNorm", (3,), [(2, 5, 4, 3)], {}),
    ("MaxPool1d", (2,), [(2, 3, 8)], {}),
    ("MaxPool2d", (2,), [(2, 3, 6, 8)], {}),
    ("MaxPool2d", (3,), [(2, 3, 7, 8)], {"stride": 2, "padding": 1}),
    ("MaxPool2d", ((3, 2),), [(3, 7, 8)], {"dilation": (1, 2), "ceil_mode": True}),
    ("MaxPool2d", (2,), [(2, 3, 7, 9)], {}),
    ("AvgPool1d", (3,), [(2, 3, 8)], {"stride": 2, "padding": 1}),
    ("AvgPool2d", (2,), [(2, 3, 6, 8)], {}),
    ("AvgPool2d", (3,), [(2, 3, 7, 8)], {"stride": 2, "padding": 1, "count_include_pad": False, "ceil_mode": True}),
    ("AvgPool2d", (3,), [(2, 3, 7, 8)], {"stride": 2, "divisor_override": 5}),
    ("AdaptiveAvgPool2d", (1,), [(2, 3, 5, 7)], {}),
    ("AdaptiveAvgPool2d", ((3, None),), [(2, 3, 5, 7)], {}),
    ("AdaptiveAvgPool1d", (4,), [(2, 3, 8)], {}),
    ("AdaptiveMaxPool2d", ((2, 3),), [(2, 3, 5, 7)], {}),
    ("AdaptiveMaxPool1d", (3,), [(2, 3, 7)], {}),
    ("LPPool1d", (3, 2), [(2, 3, 8)], {}),
    ("LPPool2d", (2, 3), [(2, 3, 8, 7)], {"stride": 2}),
    ("Upsample", (), [(2, 3, 4, 5)], {"scale_factor": 2}),
    ("Upsample", (), [(2, 3, 4, 5)], {"size": (7, 3), "mode": "bilinear"}),
    ("Upsample", (), [(2, 3, 4)], {"scale_factor": 1.5, "mode": "linear", "align_corners": True}),
    ("PixelShuffle", (2,), [(2, 8, 3, 4)], {}),
    ("PixelUnshuffle", (2,), [(2, 2, 6, 4)], {}),
    ("ZeroPad2d", ((1, 2, 0, 1),), [(2, 3, 4, 5)], {}),
    ("ConstantPad1d", (2, 1.5), [(2, 3, 4)], {}),
    ("ReflectionPad2d", (1,), [(2, 3, 4, 5)], {}),
    ("ReplicationPad1d", ((2, 1),), [(2, 3, 4)], {}),
    ("CircularPad2d", (1,), [(2, 3, 4, 5)], {}),
    ("Unfold", ((2, 3),), [(2, 3, 5, 6)], {"padding": 1, "stride": 2}),
    ("Fold", ((5, 6), (2, 3)), [(2, 12, 16)], {}),
    ("CosineSimilarity", (), [(4, 5), (4, 5)], {}),
    ("PairwiseDistance", (), [(4, 5), (4, 5)], {"keepdim": True}),
    ("ChannelShuffle", (2,), [(2, 4, 3, 3)], {}),
    ("Dropout", (0.0,), [(3, 4)], {}),
    ("Dropout2d", (0.3,), [(2, 3, 4, 4)], {"train": False}),
]


@pytest.mark.parametrize(("name", "args", "shapes", "kwargs"), LAYERS, ids=lambda v: str(v))
def test_layer(name: str, args: tuple, shapes: list, kwargs: dict) -> None:
    compare_module(name, args, arrays(*shapes), **kwargs)


@pytest.mark.parametrize("name", ["BatchNorm2d", "InstanceNorm2d"])
def test_evaluation_mode(name: str) -> None:
    compare_module(name, (3,), arrays((2, 3, 4, 5)), train=False, track_running_stats=True, affine=True)


def test_embedding() -> None:
    index = np.array([[0, 2, 5], [5, 1, 0]])
    compare_module("Embedding", (6, 3), [index])
    compare_module("Embedding", (6, 3), [index], padding_idx=5)
    compare_module("Embedding", (6, 3), [index], max_norm=1.0)
    compare_module("Embedding", (6, 3), [index], scale_grad_by_freq=True)
    for mode in ("sum", "mean", "max"):
        compare_module("EmbeddingBag", (6, 3), [index], mode=mode)
    compare_module("EmbeddingBag", (6, 3), [np.array([0, 2, 5, 1]), np.array([0, 3])], mode="sum")


RECURRENT = [
    {},
    {"num_layers": 2},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False},
]


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", RECURRENT, ids=str)
def test_recurrent(name: str, options: dict) -> None:
    compare_module(name, (3, 4), arrays((5, 2, 3)), **options)


def test_recurrent_states() -> None:
    x, h, c = arrays((5, 2, 3), (2, 2, 4), (2, 2, 4))
    compare_module("LSTM", (3, 4, 2), [x, h, c], call=lambda m, xs: m(xs[0], (xs[1], xs[2])))
    compare_module("LSTM", (3, 4, 2), [x], call=lambda m, xs: m(xs[0])[1][1])
    compare_module("GRU", (3, 4, 2), [x, h])
    compare_module("RNN", (3, 4, 2), [x, h], nonlinearity="relu")
    compare_module("LSTM", (3, 4), [x], proj_size=2)
    compare_module("LSTM", (3, 4), arrays((5, 3)))
    compare_module("LSTM", (3, 4, 2), [x], dropout=0.5, train=False)


@pytest.mark.parametrize(("name", "states"), [("LSTMCell", 2), ("GRUCell", 1), ("RNNCell", 1)])
def test_cells(name: str, states: int) -> None:
    x, *h = arrays((2, 3), *[(2, 4)] * states)
    compare_module(name, (3, 4), [x])
    compare_module(name, (3, 4), [x, *h], call=lambda m, xs: m(xs[0], tuple(xs[1:]) if states == 2 else xs[1]))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", [[5, 3, 1], [2, 5, 4]])
def test_packed(name: str, bidirectional: bool, lengths: list) -> None:
    def call(module: object, xs: list) -> object:
        utils = (torch if isinstance(module, torch.nn.Module) else __import__("calque.nn")).nn.utils.rnn
        packed = utils.pack_padded_sequence(xs[0], lengths, enforce_sorted=lengths == [5, 3, 1])
        out, state = module(packed)  # type: ignore[operator]
        padded, sizes = utils.pad_packed_sequence(out)
        assert sizes.tolist() == lengths
        return padded, state

    compare_module(name, (3, 4), arrays((5, 3, 3)), bidirectional=bidirectional, call=call)


def test_attention() -> None:
    x, k, v = arrays((5, 2, 8), (4, 2, 8), (4, 2, 8))
    compare_module("MultiheadAttention", (8, 2), [x, k, v])
    compare_module("MultiheadAttention", (8, 2), [x], call=lambda m, xs: m(xs[0], xs[0], xs[0], need_weights=False)[0])
    compare_module("MultiheadAttention", (8, 2), [x[:, 0], k[:, 0], v[:, 0]])
    compare_module("MultiheadAttention", (8, 2), [x, k, v], bias=False, add_zero_attn=True)
    compare_module("MultiheadAttention", (8, 2), [x, k, v], add_bias_kv=True)
    compare_module("MultiheadAttention", (8, 2), [x, *arrays((4, 2, 6), (4, 2, 3))], kdim=6, vdim=3)
    compare_module("MultiheadAttention", (8, 2), arrays((2, 5, 8), (2, 4, 8), (2, 4, 8)), batch_first=True)
    padding = np.array([[False, False, True, False], [False, True, True, False]])
    mask = np.triu(np.ones((5, 4), bool), 1)
    call = lambda m, xs: m(xs[0], xs[1], xs[2], key_padding_mask=xs[3], attn_mask=xs[4])  # noqa: E731
    compare_module("MultiheadAttention", (8, 2), [x, k, v, padding, mask], call=call)
    compare_module("MultiheadAttention", (8, 2), [x, k, v], call=lambda m, xs: m(*xs, average_attn_weights=False))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_layers(norm_first: bool, activation: str) -> None:
    options = {"norm_first": norm_first, "activation": activation, "dropout": 0.0}
    compare_module("TransformerEncoderLayer", (8, 2, 16), arrays((5, 2, 8)), **options)
    compare_module("TransformerDecoderLayer", (8, 2, 16), arrays((5, 2, 8), (4, 2, 8)), **options)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformer() -> None:
    compare_module("Transformer", (8, 2, 1, 1, 16), arrays((5, 2, 8), (4, 2, 8)), dropout=0.0)
