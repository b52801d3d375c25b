"""Functions under the names and with the arguments of PyTorch's compiled half: `torch._VF.lstm`, `torch.embedding`, `torch.batch_norm`, ...

Layers and losses of PyTorch end in them, so libraries that write layers of their own call them as well. A reduction is a number: 0 none, 1 mean,
2 sum.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

import calque
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.distributions.sampling import log_standard_gamma
from calque.nn import functional as F
from calque.nn.module import Module
from calque.nn.modules.rnn import _GATES, RNNBase
from calque.nn.utils.rnn import PackedSequence

__all__ = [
    "_sample_dirichlet", "_standard_gamma", "affine_grid_generator", "alpha_dropout_", "batch_norm", "binary_cross_entropy_with_logits",
    "cosine_embedding_loss", "ctc_loss", "dropout_",
    "embedding", "embedding_bag", "embedding_renorm_", "feature_alpha_dropout_", "feature_dropout", "feature_dropout_", "frobenius_norm", "from_file",
    "get_device", "gru", "gru_cell", "hinge_embedding_loss", "instance_norm", "is_distributed", "is_inference", "is_signed", "kl_div", "lobpcg",
    "lstm", "lstm_cell", "margin_ranking_loss", "max_pool1d_with_indices", "native_dropout", "norm_except_dim", "nuclear_norm", "poisson_nll_loss",
    "rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell", "triplet_margin_loss",
]  # fmt: skip
Tensor = calque.Tensor


def __getattr__(name: str) -> Any:
    """Everything else that `torch` has."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(calque, name)


def _reduction(code: Any, op: str) -> str:
    if code not in (0, 1, 2):
        raise ArgumentError(f"[{op}] expected a reduction of 0 (none), 1 (mean) or 2 (sum), got {shown(code)}; nn.functional takes words")
    return ("none", "mean", "sum")[code]


# ---------------------------------------------------------------------------------------------------------- recurrent layers


class _Layers(RNNBase):
    """Recurrent layers over weights that somebody else holds."""

    def __init__(self, mode: str, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool, both: bool) -> None:
        Module.__init__(self)
        self.mode, self.bias, self.num_layers, self.dropout, self.bidirectional = mode, has_biases, num_layers, float(dropout), both
        self.batch_first, self.training = False, train
        directions = num_layers * (1 + both)
        if not params or len(params) % directions:
            raise ArgumentError(f"[{mode.lower()}] expected weights of {directions} directions and layers, got {len(params)} tensors")
        self.hidden_size, self.input_size = params[0].shape[0] // _GATES[mode], params[0].shape[1]
        self.proj_size = params[1].shape[1] if len(params) // directions == 3 + 2 * has_biases else 0
        names = [name for group in self._names() for name in group]
        self._given = dict(zip(names, params, strict=True))

    def _weight(self, name: str) -> Tensor:
        return self._given[name]


def _recurrent(mode: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first), or (data, batch_sizes, hx, params, ...) without the
    last one: the outputs and the last states."""
    packed = isinstance(args[1], Tensor) and not (isinstance(args[2], (list, tuple)) and mode != "LSTM")
    data: Any = PackedSequence(args[0], args[1]) if packed else args[0]
    hx, params, *more = args[2:] if packed else args[1:]
    batch_first = bool(more.pop()) if not packed else False
    layer = _Layers(mode, list(params), *more)
    layer.batch_first = batch_first
    out, last = layer.forward(data, tuple(hx) if mode == "LSTM" else hx)
    return (out.data if packed else out, *(last if mode == "LSTM" else (last,)))


def lstm(*args: Any) -> tuple[Any, ...]:
    """(outputs, last h, last c); see `_recurrent` for the arguments."""
    return _recurrent("LSTM", args)


def gru(*args: Any) -> tuple[Any, ...]:
    """(outputs, last h)."""
    return _recurrent("GRU", args)


def rnn_tanh(*args: Any) -> tuple[Any, ...]:
    """(outputs, last h)."""
    return _recurrent("RNN_TANH", args)


def rnn_relu(*args: Any) -> tuple[Any, ...]:
    """(outputs, last h)."""
    return _recurrent("RNN_RELU", args)


def _cell(mode: str, input: Tensor, hx: Any, weights: tuple[Any, ...]) -> Any:
    """One step of one layer: (N, input), (N, hidden) -> the new states."""
    w_ih, w_hh, b_ih, b_hh = weights
    given = [w_ih, w_hh] if b_ih is None else [w_ih, w_hh, b_ih, b_hh]
    states = [s.unsqueeze(0) for s in hx] if mode == "LSTM" else hx.unsqueeze(0)
    _, *last = _recurrent(mode, (input.unsqueeze(0), states, given, b_ih is not None, 1, 0.0, False, False, False))
    found = tuple([s.squeeze(0) for s in last])
    return found if mode == "LSTM" else found[0]


def lstm_cell(input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(h, c) after one step."""
    return _cell("LSTM", input, hx, (w_ih, w_hh, b_ih, b_hh))  # type: ignore[no-any-return]


def gru_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> Tensor:
    """h after one step."""
    return _cell("GRU", input, hx, (w_ih, w_hh, b_ih, b_hh))  # type: ignore[no-any-return]


def rnn_tanh_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> Tensor:
    """h after one step."""
    return _cell("RNN_TANH", input, hx, (w_ih, w_hh, b_ih, b_hh))  # type: ignore[no-any-return]


def rnn_relu_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> Tensor:
    """h after one step."""
    return _cell("RNN_RELU", input, hx, (w_ih, w_hh, b_ih, b_hh))  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------- layers and dropout


def batch_norm(
    input: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float, cudnn_enabled: bool
) -> Tensor:
    """`nn.functional.batch_norm`."""
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(
    input: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: bool, momentum: float, eps: float,
    cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    """`nn.functional.instance_norm`."""
    return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    """`nn.functional.embedding`. padding_idx: -1 for none."""
    return F.embedding(indices, weight, None if padding_idx < 0 else padding_idx, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`nn.functional.embedding_bag`, which bag each index belongs to, the sizes of the bags, and the places of maxima (empty here). mode: 0 sum,
    1 mean, 2 max."""
    out = F.embedding_bag(
        indices, weight, offsets, scale_grad_by_freq=scale_grad_by_freq, mode=("sum", "mean", "max")[mode], sparse=sparse,
        per_sample_weights=per_sample_weights, include_last_offset=include_last_offset, padding_idx=padding_idx,
    )  # fmt: skip
    starts = offsets[:-1] if include_last_offset else offsets
    ends = calque.cat([starts[1:], calque.tensor([indices.numel()], dtype=starts.dtype)])
    sizes = ends - starts
    return out, calque.repeat_interleave(calque.arange(len(starts)), sizes), sizes, calque.empty(0, dtype=calque.int64)


def embedding_renorm_(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Rows of `weight` that `indices` name, and whose norm is larger, scaled down to `max_norm`, in place."""
    with calque.no_grad():
        rows = calque.unique(indices)
        found = weight[rows]
        norms = calque.linalg.vector_norm(found, norm_type, -1, True)
        weight[rows] = calque.where(norms > max_norm, found * (max_norm / (norms + 1e-7)), found)
    return weight


def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The result of `dropout`, and where elements were kept."""
    if train is False or not p:
        return input.clone(), calque.ones_like(input, dtype=calque.bool)
    kept = calque.rand(input.shape) >= p
    return input * kept / (1.0 - p) if p < 1 else input * 0.0, kept


def dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """`dropout` in place."""
    return F.dropout(input, p, train, inplace=True)


def alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """`alpha_dropout` in place."""
    return F.alpha_dropout(input, p, train, inplace=True)


def feature_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`dropout` of whole channels: (N, C, *)."""
    if not train or not p:
        return input
    kept = (calque.rand(input.shape[:2]) >= p).reshape(*input.shape[:2], *[1] * (input.ndim - 2))
    return input * kept / (1.0 - p) if p < 1 else input * 0.0


def feature_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """`feature_dropout` in place."""
    return input.copy_(feature_dropout(input, p, train))


def feature_alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """`feature_alpha_dropout` in place."""
    return F.feature_alpha_dropout(input, p, train, inplace=True)


def max_pool1d_with_indices(
    input: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """The largest elements of windows, and where they are."""
    return F.max_pool1d(input, kernel_size, stride or None, padding, dilation, ceil_mode, return_indices=True)  # type: ignore[no-any-return]


def affine_grid_generator(theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """`nn.functional.affine_grid`."""
    return F.affine_grid(theta, size, align_corners)


# ------------------------------------------------------------------------------------------------------------------- losses


def kl_div(input: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    """`nn.functional.kl_div`."""
    return F.kl_div(input, target, reduction=_reduction(reduction, "kl_div"), log_target=log_target)


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Tensor:
    """`nn.functional.binary_cross_entropy_with_logits`."""
    words = _reduction(reduction, "binary_cross_entropy_with_logits")
    return F.binary_cross_entropy_with_logits(input, target, weight, reduction=words, pos_weight=pos_weight)


def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 1) -> Tensor:
    """`nn.functional.cosine_embedding_loss`."""
    return F.cosine_embedding_loss(input1, input2, target, margin, reduction=_reduction(reduction, "cosine_embedding_loss"))


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: int = 1) -> Tensor:
    """`nn.functional.hinge_embedding_loss`."""
    return F.hinge_embedding_loss(input, target, margin, reduction=_reduction(reduction, "hinge_embedding_loss"))


def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 1) -> Tensor:
    """`nn.functional.margin_ranking_loss`."""
    return F.margin_ranking_loss(input1, input2, target, margin, reduction=_reduction(reduction, "margin_ranking_loss"))


def poisson_nll_loss(input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: int) -> Tensor:
    """`nn.functional.poisson_nll_loss`."""
    return F.poisson_nll_loss(input, target, log_input, full, eps=eps, reduction=_reduction(reduction, "poisson_nll_loss"))


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: int = 1
) -> Tensor:
    """`nn.functional.triplet_margin_loss`."""
    return F.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction=_reduction(reduction, "triplet_margin_loss"))


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1, zero_infinity: bool = False
) -> Tensor:
    """`nn.functional.ctc_loss`."""
    return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, _reduction(reduction, "ctc_loss"), zero_infinity)


# ------------------------------------------------------------------------------------------------------- of tensors and norms


def is_inference(input: Tensor) -> bool:
    """Whether a tensor was made under `inference_mode`."""
    return bool(input.is_inference())


def is_signed(input: Tensor) -> bool:
    """Whether the type has negative numbers."""
    return bool(input.dtype.is_signed)


def is_distributed(input: Tensor) -> bool:
    """False: no tensor lies on several devices."""
    return False


def get_device(input: Tensor) -> int:
    """Number of the device; -1 for the CPU."""
    return int(input.get_device())


def nuclear_norm(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The sum of singular values."""
    return calque.linalg.matrix_norm(input, "nuc", (-2, -1) if dim is None else tuple(dim), keepdim)


def frobenius_norm(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """The root of the sum of squares."""
    return calque.linalg.vector_norm(input, 2, dim, keepdim)


def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """Norms of the slices along one dim, or of all (-1), with the other dims kept as 1: what weight normalisation divides by."""
    if dim == -1:
        return calque.linalg.vector_norm(v, pow)
    return calque.linalg.vector_norm(v, pow, tuple([d for d in range(v.ndim) if d != dim % v.ndim]), True)


def lobpcg(
    A: Tensor, k: int | None = None, B: Tensor | None = None, X: Tensor | None = None, n: int | None = None, iK: Tensor | None = None,
    niter: int | None = None, tol: float | None = None, largest: bool | None = None, method: str | None = None, tracker: Any = None,
    ortho_iparams: Any = None, ortho_fparams: Any = None, ortho_bparams: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The k largest (smallest) eigenvalues of a symmetric matrix, with respect to `B` if it is given, and their vectors as columns. All are computed,
    exactly, so what steers iterations has no effect. k defaults to the columns of X, or 1."""
    A = A.to_dense() if A.layout is not calque.strided else A
    count = k if k is not None else X.shape[-1] if X is not None else 1
    if A.shape[-1] < 3 * count:
        raise ArgumentError(f"[lobpcg] expected a matrix of at least 3 k = {3 * count} rows, got {A.shape[-1]}; use linalg.eigh")
    if B is None:
        values, vectors = calque.linalg.eigh(A)
    else:
        low = calque.linalg.cholesky(B.to_dense() if B.layout is not calque.strided else B)
        half = calque.linalg.solve_triangular(low, A, upper=False)
        values, vectors = calque.linalg.eigh(calque.linalg.solve_triangular(low, half.mT, upper=False))
        vectors = calque.linalg.solve_triangular(low.mT, vectors, upper=True)
    if largest is None or largest:
        return values[..., -count:].flip(-1), vectors[..., -count:].flip(-1)
    return values[..., :count], vectors[..., :count]


def _log_gamma(name: str, concentration: Tensor, generator: Any) -> Tensor:
    if generator is not None:
        raise ArgumentError(f"[{name}] expected no generator, got {shown(generator)}; these samples are of the default generator: seed it")
    return log_standard_gamma(concentration)


def _standard_gamma(input: Tensor, generator: Any = None) -> Tensor:
    """Samples of the gamma distribution of rate 1, differentiable by its concentrations."""
    return calque.exp(_log_gamma("_standard_gamma", input, generator))


def _sample_dirichlet(input: Tensor, generator: Any = None) -> Tensor:
    """Samples of the Dirichlet distribution over the last dim, differentiable by its concentrations."""
    return F.softmax(_log_gamma("_sample_dirichlet", input, generator), -1)


def from_file(
    filename: str | os.PathLike[str], shared: bool | None = None, size: int = 0, *, dtype: Any = None, device: Any = None, **_: Any
) -> Tensor:
    """The first `size` numbers of a file, read when they are looked at; writing to them changes no file."""
    if shared:
        raise ArgumentError("[from_file] expected shared=False, got True: files are not written through tensors; use torch.save")
    kind = calque.get_default_dtype() if dtype is None else dtype
    return calque.from_numpy(np.memmap(filename, kind.np, "c", shape=(size,)).view(np.ndarray)).to(device or "cpu")
