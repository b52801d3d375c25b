"""Losses and functions of `nn.functional` against PyTorch's, in float64, and in float32 where rounding matters."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
import calque.nn.functional as F  # noqa: E402
from tests.oracle.nn_harness import arrays, close, compare_function, compare_module  # noqa: E402

pytestmark = pytest.mark.oracle

LABELS = np.array([2, 0, 4, 1])
REDUCTIONS = ["mean", "sum", "none"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(reduction: str, smoothing: float, weighted: bool) -> None:
    x, w, images = arrays((4, 5), (5,), (2, 5, 3, 2))
    options = {"reduction": reduction, "label_smoothing": smoothing, "weight": np.abs(w) if weighted else None}
    compare_function("cross_entropy", [x], LABELS, **options)
    compare_function("cross_entropy", [x], np.array([2, -100, 4, 1]), **options)
    compare_function("cross_entropy", [x], LABELS, ignore_index=2, **options)
    compare_function("cross_entropy", [images], np.arange(12).reshape(2, 3, 2) % 5, **options)
    compare_function("cross_entropy", [x[0]], np.array(3), **options)
    p = np.abs(arrays((4, 5), seed=2)[0])
    compare_function("cross_entropy", [x, p / p.sum(1, keepdims=True)], **options)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll(reduction: str) -> None:
    x, w, images = arrays((4, 5), (5,), (2, 5, 3))
    compare_function("nll_loss", [x], LABELS, reduction=reduction)
    compare_function("nll_loss", [x], np.array([2, 0, -1, 1]), weight=np.abs(w), ignore_index=-1, reduction=reduction)
    compare_function("nll_loss", [images], np.arange(6).reshape(2, 3) % 5, reduction=reduction)


PAIRS = [
    ("mse_loss", {}),
    ("l1_loss", {}),
    ("smooth_l1_loss", {"beta": 0.7}),
    ("huber_loss", {"delta": 0.7}),
    ("poisson_nll_loss", {}),
    ("poisson_nll_loss", {"log_input": True, "full": False}),
]


@pytest.mark.parametrize(("name", "options"), PAIRS, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_pair(name: str, options: dict, reduction: str) -> None:
    compare_function(name, arrays((3, 4), (3, 4)), reduction=reduction, **options)


@pytest.mark.parametrize("name", ["smooth_l1_loss", "huber_loss"])
@pytest.mark.filterwarnings("ignore::calque.base.errors.NonFiniteWarning")
def test_losses_of_infinite_distances(name: str) -> None:
    """Their gradients are finite: where training diverges, this is what brings it back."""
    x = np.array([0.0, 0.5, 1.0, -1.0, 3.0, np.inf, -np.inf, 1e30])
    compare_function(name, [x, np.zeros(8)], reduction="none")


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_probabilities(reduction: str) -> None:
    p, q = arrays((3, 4), (3, 4), low=0.05, high=0.95)
    x, w = arrays((3, 4), (4,))
    compare_function("binary_cross_entropy", [p, q], reduction=reduction)
    compare_function("binary_cross_entropy", [p, q], weight=np.abs(w), reduction=reduction)
    compare_function(
        "binary_cross_entropy", [np.array([0.0, 1.0])], np.array([0.0, 0.0]), reduction=reduction, tolerance=1e-8
    )  # PyTorch's 1e-12 is a float32
    compare_function("binary_cross_entropy_with_logits", [x, q], reduction=reduction)
    compare_function("binary_cross_entropy_with_logits", [x, q], pos_weight=np.abs(w), weight=np.abs(w), reduction=reduction)
    compare_function("poisson_nll_loss", [p, 4 * q], log_input=False, full=True, reduction=reduction)
    compare_function("gaussian_nll_loss", [x, q], p, full=True, reduction=reduction)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
def test_kl_div(reduction: str) -> None:
    x, y = arrays((3, 4), (3, 4), low=0.1, high=0.9)
    compare_function("kl_div", [np.log(x), y], reduction=reduction)
    compare_function("kl_div", [np.log(x), np.log(y)], log_target=True, reduction=reduction)
    compare_function("kl_div", [np.log(x)], np.where(y > 0.5, y, 0.0), reduction=reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margins(reduction: str) -> None:
    a, b, c = arrays((4, 5), (4, 5), (4, 5))
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    compare_function("margin_ranking_loss", [a[:, 0], b[:, 0]], signs, margin=0.3, reduction=reduction)
    compare_function("hinge_embedding_loss", [a], np.sign(b), margin=0.5, reduction=reduction)
    compare_function("cosine_embedding_loss", [a, b], signs, margin=0.1, reduction=reduction)
    compare_function("triplet_margin_loss", [a, b, c], reduction=reduction)
    compare_function("triplet_margin_loss", [a, b, c], swap=True, p=1, margin=2.0, reduction=reduction)
    compare_function("soft_margin_loss", [a], np.sign(b), reduction=reduction)
    compare_function("multi_margin_loss", [a], LABELS, p=2, reduction=reduction)
    compare_function("multi_margin_loss", [a], LABELS, weight=np.abs(b[0]), reduction=reduction)
    compare_function("multilabel_soft_margin_loss", [a], (b > 0).astype(float), reduction=reduction)


def test_loss_layers() -> None:
    x, w = arrays((4, 5), (5,))
    compare_module("CrossEntropyLoss", (), [x, LABELS], weight=np.abs(w), label_smoothing=0.1)
    compare_module("NLLLoss", (), [x, LABELS])
    compare_module("BCEWithLogitsLoss", (), [x, (x > 0).astype(float)], pos_weight=np.abs(w))
    compare_module("MSELoss", (), arrays((3,), (3,)), reduction="sum")
    compare_module("TripletMarginLoss", (), arrays((3, 4), (3, 4), (3, 4)))
    compare_module("HuberLoss", (), arrays((3, 4), (3, 4)), delta=0.5)


@pytest.mark.parametrize(("size_average", "reduce", "reduction"), [(False, None, "sum"), (None, False, "none"), (True, True, "mean")])
def test_deprecated_reduction(size_average: object, reduce: object, reduction: str) -> None:
    x = arrays((4, 5))[0]
    with pytest.warns(UserWarning, match=f"size_average and reduce args will be deprecated, please use reduction='{reduction}' instead"):
        mine = F.nll_loss(calque.tensor(x), calque.tensor(LABELS), size_average=size_average, reduce=reduce)
    with pytest.warns(UserWarning, match="size_average and reduce"):
        close(mine, torch.nn.functional.nll_loss(torch.tensor(x), torch.tensor(LABELS), size_average=size_average, reduce=reduce))


def test_extreme_scores_stay_finite() -> None:
    x = np.array([[1e4, -1e4, 0.0], [3e38, 0.0, -3e38]], np.float32)
    for name in ("softmax", "log_softmax"):
        compare_function(name, [x], dim=1)
    compare_function("cross_entropy", [x], np.array([1, 0]))
    compare_function("binary_cross_entropy_with_logits", [x], np.ones((2, 3), np.float32))
    compare_function("logsigmoid", [x])


MASKS = [None, "bool", "float"]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (5, 4)])
def test_scaled_dot_product_attention(mask: str | None, shape: tuple) -> None:
    q, k, v = arrays(shape, (*shape[:-2], 6, 4), (*shape[:-2], 6, 3))
    m = None if mask is None else arrays((5, 6))[0]
    if mask == "bool":
        m = m > -1.0
        m[2] = False  # a query without keys
    compare_function("scaled_dot_product_attention", [q, k, v], attn_mask=m)
    compare_function("scaled_dot_product_attention", [q, k, v], is_causal=True, scale=0.3)


def test_grouped_attention() -> None:
    q, k, v = arrays((2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4))
    compare_function("scaled_dot_product_attention", [q, k, v], enable_gqa=True, is_causal=True)


SAMPLES = [
    ("pad", [(2, 3, 4)], ((1, 2),), {}),
    ("pad", [(2, 3, 4)], ((-1, 2, 1, -1),), {"value": 2.0}),
    ("pad", [(2, 3, 4)], ((2, 1),), {"mode": "reflect"}),
    ("pad", [(1, 2, 3, 4)], ((2, 1, 0, 2),), {"mode": "replicate"}),
    ("pad", [(1, 2, 3, 4)], ((2, 1, 1, 2),), {"mode": "circular"}),
    ("interpolate", [(1, 2, 4, 5)], (), {"size": (3, 9)}),
    ("interpolate", [(1, 2, 4, 5)], (), {"size": (3, 9), "mode": "nearest-exact"}),
    ("interpolate", [(1, 2, 4, 5)], (), {"scale_factor": (2.5, 1.3), "mode": "bilinear"}),
    ("interpolate", [(1, 2, 4, 5)], (), {"scale_factor": 2.6, "mode": "bilinear", "recompute_scale_factor": True}),
    ("interpolate", [(1, 2, 4, 5)], (), {"size": (8, 3), "mode": "bicubic"}),
    ("interpolate", [(1, 2, 4, 5)], (), {"size": 7, "mode": "bicubic", "align_corners": True}),
    ("interpolate", [(1, 2, 4, 5)], (), {"size": (2, 3), "mode": "area"}),
    ("interpolate", [(1, 2, 3, 4, 5)], (), {"size": (2, 6, 3), "mode": "trilinear"}),
    ("normalize", [(3, 4)], (), {}),
    ("normalize", [(3, 4)], (), {"p": 1.0, "dim": 0}),
    ("glu", [(3, 4)], (), {}),
    ("softmin", [(3, 4)], (0,), {}),
    ("rrelu", [(3, 4)], (), {}),
    ("hardtanh", [(3, 4)], (-1.0, 0.5), {}),
    ("threshold", [(3, 4)], (0.1, 20.0), {}),
    ("pdist", [(4, 3)], (), {}),
    ("pairwise_distance", [(4, 3), (4, 3)], (), {"p": 1.0}),
    ("cosine_similarity", [(4, 3), (4, 3)], (), {"dim": 0}),
    ("relu", [(3,)], (), {}),
]


@pytest.mark.parametrize(("name", "shapes", "args", "options"), SAMPLES, ids=lambda v: str(v))
def test_function(name: str, shapes: list, args: tuple, options: dict) -> None:
    compare_function(name, arrays(*shapes), *args, **options)


def test_pool_indices_and_ties() -> None:
    x = np.round(arrays((2, 3, 7, 8))[0])  # many equal elements: the first maximum of a window wins
    for options in (
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "dilation": 2, "ceil_mode": True},
    ):
        compare_function("max_pool2d", [x], return_indices=True, **options)
    compare_function("max_pool1d", [x[0]], 3, return_indices=True)
    compare_function("adaptive_max_pool2d", [x], (2, 3), return_indices=True)


def test_one_hot() -> None:
    index = np.array([[0, 2], [1, 3]])
    compare_function("one_hot", [index])
    compare_function("one_hot", [index], 6)


def test_second_derivatives() -> None:
    """Functions with a gradient of their own, differentiated twice."""
    x, w, b, y = arrays((4, 5), (5,), (5,), (4, 5))

    def twice(T: object, function: object, *inputs: np.ndarray) -> list:
        tensors = [T.tensor(i, requires_grad=True) for i in inputs]  # type: ignore[attr-defined]
        out = function(*tensors)  # type: ignore[operator]
        first = T.autograd.grad((out * T.tensor(y[:, : out.shape[1]].copy()) if out.dim() else out).sum(), tensors, create_graph=True)  # type: ignore[attr-defined]
        second = T.autograd.grad(sum((g * g).sum() for g in first), tensors, allow_unused=True)  # type: ignore[attr-defined]
        return [T.zeros_like(t) if g is None else g for g, t in zip(second, tensors, strict=True)]  # type: ignore[attr-defined]

    cases = [
        (lambda N: lambda t: N.softmax(t, 1), x), (lambda N: lambda t: N.log_softmax(t, 1), x), (lambda N: lambda t: N.gelu(t), x),
        (lambda N: lambda t: N.silu(t), x), (lambda N: lambda t, u, v: N.layer_norm(t, (5,), u, v), x, w, b),
        (lambda N: lambda t, u, v: N.batch_norm(t, None, None, u, v, True), x, w, b), (lambda N: lambda t: N.group_norm(t, 1), x),
        (lambda N: lambda t: N.max_pool1d(t * t, 2), x), (lambda N: lambda t: N.gelu(t, approximate="tanh"), x),
    ]  # fmt: skip
    for make, *inputs in cases:
        for a, c in zip(twice(calque, make(F), *inputs), twice(torch, make(torch.nn.functional), *inputs), strict=True):
            close(a, c, "second derivative", 1e-8)
    mine = twice(calque, lambda t: F.cross_entropy(t, calque.tensor(LABELS), label_smoothing=0.1), x)
    close(
        mine[0],
        twice(torch, lambda t: torch.nn.functional.cross_entropy(t, torch.tensor(LABELS), label_smoothing=0.1), x)[0],
        "cross entropy",
        1e-9,
    )
