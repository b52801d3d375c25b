"""Calls that PyTorch refuses are refused here too, in words of ours and under a class that catches PyTorch's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = pytest.mark.oracle

# (call, where T is the library, F its nn.functional, o makes ones; part of the message)
REFUSED = [
    ("T.repeat_interleave(o(2), -1)", "[repeat_interleave] expected repeats >= 0, got -1; repeats can not be negative"),
    ("T.repeat_interleave(o(2), T.tensor([1, -1]))", "[repeat_interleave] expected repeats >= 0, got -1"),
    ("T.repeat_interleave(o(2), 2, output_size=5)", "[repeat_interleave] expected output_size 4, the sum of all repeats, got 5; leave it out"),
    ("o(2).repeat_interleave(T.tensor([1, 2]), 0, output_size=2)", "[repeat_interleave] expected output_size 3"),
    ("T.repeat_interleave(T.tensor([1, -2]))", "[repeat_interleave] expected repeats >= 0, got -2"),
    ("T.repeat_interleave(T.tensor([1.5]))", "[repeat_interleave] expected repeats as a 1-d tensor of int64 or int32, got torch.float32"),
    ("T.repeat_interleave(T.tensor([1, 2]), output_size=7)", "[repeat_interleave] expected output_size 3"),
    ("o(2).repeat(-1)", "[repeat] expected counts >= 0"),
    ("T.tile(o(2), (2, -1))", "[repeat] expected counts >= 0"),
    ("T.mm(o(2, 2), o(2, 2), out=o(2, 2).double())", "[mm] Expected out tensor to have dtype torch.float32, but got torch.float64 instead"),
    ("T.gather(o(2), 0, T.tensor([1]), out=o(1).double())", "[gather] Expected out tensor to have dtype torch.float32, but got torch.float64"),
    ("T.argmax(o(2, 2), 0, out=T.zeros(2, dtype=T.int32))", "[argmax] Expected out tensor to have dtype torch.int64, but got torch.int32"),
    ("T.multinomial(o(2), 1, out=o(1).double())", "[multinomial] Expected out tensor to have dtype torch.int64, but got torch.float64"),
    ("T.topk(o(3), 1, out=(o(1).double(), T.tensor([1])))", "[topk] Expected out tensor to have dtype torch.float32, but got torch.float64"),
    ("T.max(o(2, 2), 0, out=(o(2), T.zeros(2, dtype=T.int32)))", "[max] Expected out tensor to have dtype torch.int64, but got torch.int32"),
    ("T.index_select(o(2), 0, T.tensor([1, 0]), out=o(1).expand(2))", "more than one element of the written-to tensor refers to a single"),
    ("T.linspace(0, 3, 2.0)", "[linspace] expected steps as an int, got float 2.0"),
    ("T.logspace(0, 3, 2.0)", "[logspace] expected steps as an int, got float 2.0"),
    ("T.narrow(o(5), 0, T.tensor(True), 2)", "[narrow] start must be an 0-dim integral Tensor, got tensor(True)"),
    ("T.narrow(o(5), 0, T.tensor([1]), 2)", "[narrow] start must be an 0-dim integral Tensor, got"),
    ("F.cross_entropy(o(2, 3), o(2, 3), ignore_index=0)", "[cross_entropy] ignore_index is not supported for floating point target, got 0"),
    ("F.linear_cross_entropy(o(2, 3), o(2, 3), o(2, 2), ignore_index=-1)", "ignore_index cannot be specified when target contains probabilities"),
    ("F.linear_cross_entropy(o(3), o(2, 4, 3), o(2, 4))", "K-dimensional loss defined by linear_weight shape (2, 4, 3) requires batched"),
    ("T.dsplit(o(2, 2), 2)", "[dsplit] expected a tensor with at least 3 dimensions, got shape (2, 2); add some with unsqueeze(...)"),
    ("T.vsplit(o(2), 2)", "[vsplit] expected a tensor with at least 2 dimensions, got shape (2,)"),
    ("T.hsplit(T.tensor(1.0), 1)", "[hsplit] expected a tensor with at least 1 dimensions, got shape ()"),
    ("T.hsplit(o(2, 3), 2)", "[hsplit] expected a number of sections that divides the size 3 of dim 1, got 2; tensor_split makes pieces"),
    ("T.vsplit(o(3, 2), 0)", "[vsplit] expected a number of sections that divides the size 3 of dim 0, got 0"),
    ("T.flipud(T.tensor(1.0))", "[flipud] expected at least 1 dimension, got a 0-d tensor; reshape it to (1,)"),
    ("T.chain_matmul(o(3), o(3, 2))", "[chain_matmul] expected matrices, got shape (3,); use matmul for other shapes"),
    ("T.trapezoid(o(3, 2), o(3))", "[trapezoid] expected one x value for each of the 2 samples of dim -1, got 3"),
    ("T.meshgrid()", "[meshgrid] expected one or more tensors, got none"),
    ("T.linalg.cross(o(3), o(2, 3))", "[cross] expected inputs with the same number of dimensions, got shapes (3,) and (2, 3); add dimensions"),
    ("T.cross(o(2, 3), o(3), dim=-1)", "[cross] expected inputs with the same number of dimensions"),
    ("T.select_scatter(o(2, 3), o(1), 0, 1)", "[select_scatter] expected src to have a size equal to the slice of self: (3,), got (1,); expand"),
    ("T.slice_scatter(o(2, 3), o(3), 0, 0, 1)", "[slice_scatter] expected src to have a size equal to the slice of self: (1, 3), got (3,)"),
    ("T.diagonal_scatter(o(2, 2), T.tensor(1.0))", "[diagonal_scatter] expected src to have a size equal to the slice of self: (2,), got ()"),
    ("T.index_put(o(2).long(), (T.tensor([0]),), o(1))", "[index_put] expected values of the tensor's dtype torch.int64, got torch.float32"),
    ("o(2).long().index_put_((T.tensor([0]),), o(1))", "[index_put_] expected values of the tensor's dtype"),
    ("o(2).long().put(T.tensor([0]), o(1))", "[put] expected values of the tensor's dtype torch.int64, got torch.float32; convert them"),
    ("o(2).long().masked_scatter(o(2) > 0, o(2))", "[masked_scatter] expected values of the tensor's dtype"),
    ("'a' in o(2)", "[in] Tensor.__contains__ only supports Tensor or scalar"),
    ("T.signal.windows.hann(4, dtype=T.int64)", "[hann] hann expects float32 or float64 dtypes, got: torch.int64"),
    ("T.amax(o(2, 0), 1)", "[amax] Expected reduction dim 1 to have non-zero size, got shape (2, 0)"),
    ("T.argmin(o(2, 0), 1)", "[argmin] Expected reduction dim 1 to have non-zero size"),
    ("T.unbind(T.tensor(1.0))", "[unbind] expects at least a 1-dimensional tensor, got shape ()"),
    ("T.fft.fftn(T.tensor(1.0), dim=(0,))", "[fftn] expected a tensor with dims, got shape () and dim=(0,)"),
    ("F.multi_margin_loss(o(2, 3), T.tensor([0, 1]), reduction='abc')", "[multi_margin_loss] expected reduction 'none', 'mean' or 'sum', got 'abc'"),
    ("F.multi_margin_loss(o(2, 3), T.tensor([0, 1]), weight=o(3, 1))", "[multi_margin_loss] weight must be one-dimensional"),
    ("F.multilabel_margin_loss(o(1, 4), T.tensor([[-3, 0, 1, 1]]), reduction='abc')", "[multilabel_margin_loss] expected reduction"),
    ("T.cov(o(2, 2), fweights=T.tensor([-1, 1]))", "[cov] fweights cannot be negative"),
    ("o(2).masked_fill(T.tensor([1, 0], dtype=T.uint8), 0.0)", "[masked_fill] only supports boolean masks, but got mask with dtype torch.uint8"),
    ("T.softmax(o(2, 2), axes=1)", "[softmax] expected arguments (input, dim, dtype=None), got others"),
    ("o(2).addcmul_(0.5, 2.0, o(2), o(2))", "[addcmul_] expected arguments"),
    ("F.pdist(o(3))", "[pdist] expected a 2-d tensor, rows of vectors, got shape (3,)"),
    ("F.pdist(o(3, 2), -1.0)", "[pdist] expected p >= 0, got -1.0"),
    ("F.prelu(o(2, 3), o(1, 1, 1))", "[prelu] expected a weight with one dimension or none, got shape (1, 1, 1); flatten it"),
    ("F.prelu(o(2, 3), o(1).double())", "[prelu] expected an input of the weight's dtype torch.float64, got torch.float32"),
    ("F.channel_shuffle(o(2, 2), 2)", "[channel_shuffle] expected an input (N, C, *) with at least 3 dims, got shape (2, 2)"),
    ("F.feature_alpha_dropout(o(3), 0.5, True)", "[feature_alpha_dropout] expected an input (N, C, *) with at least 2"),
    ("F.embedding_bag(T.zeros(1, 1, 1).long(), o(2, 3))", "[embedding_bag] expected an input with 1 or 2 dims, got shape (1, 1, 1)"),
    ("F.group_norm(o(1, 2), 2)", "[group_norm] Expected more than 1 value per channel when training, got input size [1, 2]"),
    ("F.conv3d(o(1, 1, 2, 2, 2), o(3, 1, 1, 1, 1), o(1))", "[conv3d] expected bias of shape (3,), one per output channel, got (1,)"),
    ("F.conv3d(o(1, 1, 2, 2, 2), o(1, 1, 1, 1, 1), o(1).double())", "[conv3d] expected an input of the weight's dtype torch.float64"),
    ("F.conv_transpose1d(o(2, 2, 8), o(2, 3, 3), o(3).double())", "[conv_transpose1d] expected an input of"),
    ("F.soft_margin_loss(o(3), o(2, 3))", "[soft_margin_loss] expected a target that broadcasts"),
    ("F.triplet_margin_loss(o(3), o(2, 3), o(2, 3))", "[triplet_margin_loss] expected anchor, positive and negative"),
]
# Calls that look unusual and are right.
ACCEPTED = [
    "T.repeat_interleave(T.tensor([2, 0, 1]))", "T.repeat_interleave(o(2), 2, output_size=4)",
    "o(2).repeat_interleave(T.tensor([1, 2]), output_size=3)",
    "F.softmax(o(2, 0), -1)", "F.log_softmax(o(0), 0)", "F.softmax(o(0, 3), 1)", "F.cosine_similarity(o(3), o(2, 3))",
    "F.cosine_similarity(o(1, 3), o(2, 3))",
    "F.group_norm(o(3, 2), 2)", "F.prelu(T.tensor(-2.0), o(1))", "T.hsplit(o(4), 2)", "T.vsplit(o(3, 2), [1])", "F.soft_margin_loss(o(2, 3), o(3))",
    "F.embedding_bag(T.tensor([[1, 1], [0, 1]]), -o(2, 3), mode='max', padding_idx=1)",
]  # fmt: skip


def result(T: Any, call: str) -> Any:
    return eval(call, {"T": T, "F": T.nn.functional, "o": T.ones})


@pytest.mark.parametrize(("call", "text"), REFUSED, ids=[call for call, _ in REFUSED])
def test_refused(call: str, text: str) -> None:
    with pytest.raises(Exception) as theirs:
        result(torch, call)
    kind = next(c for c in theirs.type.__mro__ if c.__module__ == "builtins")
    kind = RuntimeError if kind is NotImplementedError else kind
    with pytest.raises(kind, match=re.escape(text)):
        result(calque, call)


@pytest.mark.parametrize("call", ACCEPTED)
def test_accepted(call: str) -> None:
    got, expected = result(calque, call), result(torch, call)
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
    for a, b in pairs:
        assert tuple(a.shape) == tuple(b.shape) and str(a.dtype) == str(b.dtype)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("call", [
    "T.ones(2, out=o)", "T.full((2,), 1.5, out=o)", "T.eye(2, out=o)", "T.linspace(0, 1, 3, out=o)", "T.arange(3, out=o)", "T.zeros((2,), out=o)",
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["int32", "float64", "float16"])
def test_what_makes_numbers_makes_them_in_the_type_of_out(call: str, dtype: str) -> None:
    found = []
    for T in (torch, calque):
        made = eval(call, {"T": T, "o": T.empty(0, dtype=getattr(T, dtype))})
        found.append((str(made.dtype), made.tolist()))
    assert found[0] == found[1]
