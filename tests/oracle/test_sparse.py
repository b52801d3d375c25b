"""Calls of sparse tensors: what they print, or that they refuse, is what PyTorch prints or refuses."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")

CALLS = (
    "s", "c", "u", "h", "u.coalesce()", "h.coalesce()", "torch.sparse_coo_tensor((2,3))", "torch.sparse_coo_tensor(i,v)",
    "s.is_coalesced()", "s.t().is_coalesced()", "s.indices()", "s.numpy()", "s[0]", "s[0,2]", "s.tolist()", "s.sum()", "s.sum(0)",
    "s.view(6)", "torch.exp(s)", "s*s", "s*torch.ones(2,3)", "s+torch.ones(2,3)", "torch.ones(2,3)+s", "s==s", "s.reshape(3,2)",
    "s.numel()", "s.nonzero()", "s.max()", "s.norm()", "torch.norm(s)", "s/2", "s//2", "s+1", "s.mean()", "torch.cat([s,s])",
    "torch.cat([s,s],1)", "torch.stack([s,s])", "torch.stack([s,s],2)", "s.unsqueeze(0)", "h.unsqueeze(2)", "s@torch.ones(3)",
    "torch.ones(2,2)@s", "s@s.t()", "s.to(torch.float64)", "torch.relu(s)", "s.relu()", "torch.softmax(s,1)", "torch.sparse.softmax(s,1)",
    "torch.sparse.softmax(s,0)", "torch.sparse.log_softmax(s,1)", "torch.sparse.softmax(h,1)", "s.any()", "s.clamp(min=0)",
    "torch.zeros_like(s)", "torch.ones_like(s)", "s.abs()", "c.t()", "c*2", "c+c", "c@torch.ones(3,2)", "c.sum()", "c[0]",
    "c.transpose(0,1).to_dense()", "s.index_select(0,torch.tensor([1]))", "u.index_select(1,torch.tensor([0,0,1])).to_dense()",
    "s.select(0,1)", "u.select(0,1)", "h.select(0,1)", "h.select(1,1)", "c.to_sparse()", "s.T", "c.abs()", "c.to(torch.float64)",
    "torch.eye(40).to_sparse()", "torch.eye(40).to_sparse_csr()", "torch.eye(40, dtype=torch.float64).to_sparse_csc()",
    "torch.sparse_coo_tensor([[0, 1]], [1 + 2j, 3])",
    "torch.sparse.sum(s)", "torch.sparse.sum(s,dim=0)", "torch.sparse.sum(s,dim=(0,1))", "torch.sparse.sum(h,dim=1)",
    "torch.sparse.sum(h,dim=0)", "s.permute(1,0)", "s.pow(2)", "s**2", "s.sqrt()", "len(s)", "s.dim()", "list(s)", "s.is_sparse",
    "c.is_sparse", "s.is_sparse_csr", "c.is_sparse_csr", "s.layout", "s.dense_dim(), s.sparse_dim()", "h.dense_dim(), h.sparse_dim()",
    "torch.is_tensor(s)", "isinstance(s,torch.Tensor)", "s.element_size()", "s.data", "s.detach()", "s.clone()", "s.cpu()", "s.type()",
    "-s", "s-s", "u-u", "s-torch.ones(2,3)", "torch.ones(2,3)-s", "torch.ones(2,3)*s", "torch.addmm(torch.ones(2,2),s,torch.ones(3,2))",
    "torch.addmm(torch.ones(2,2),s,torch.ones(3,2),beta=2,alpha=3)", "torch.bmm(s.unsqueeze(0),torch.ones(1,3,2))", "s.log1p()",
    "s.sign()", "s.isnan()", "torch.nn.functional.linear(s,torch.ones(4,3))", "torch.nn.functional.linear(torch.ones(3),s)",
    "torch.nn.functional.linear(torch.ones(2,5,3),s)", "s.to('cpu')", "s.size(0)", "s.size()", "s.shape",
    "s.clone().requires_grad_()", "s.half()", "s.mul(s)", "s.div(s)", "c.mul(c)", "c*torch.ones(2,3)", "s.values()", "u.values()",
    "c.values()", "c.crow_indices()", "c.col_indices()", "s.crow_indices()", "s.coalesce().indices()", "torch.mm(s,torch.ones(3,1))",
    "torch.spmm(s,torch.ones(3,1))", "torch.sparse.mm(s,torch.ones(3,1))", "torch.sparse.mm(s,s.t())", "torch.hspmm(s,torch.ones(3,1))",
    "torch.smm(s,torch.ones(3,1))", "torch.sparse.FloatTensor(i,v,torch.Size([2,3]))", "torch.add(s,s,alpha=2)", "torch.add(b,s,alpha=2)",
    "torch.sub(s,s)", "b.sparse_mask(s.coalesce())", "u.to_dense()", "h.to_dense()", "b.to_sparse()", "b.to_sparse(1)",
    "torch.eye(3).to_sparse_csr()", "torch.eye(3).to_sparse_csc()", "torch.tensor([[1,0],[0,3]]).to_sparse()",
    "torch.tensor([[True,False]]).to_sparse()", "torch.sparse.spdiags(torch.arange(9.).view(3,3),torch.tensor([0,-1,2]),(3,3))",
    "torch.sparse_csr_tensor(torch.tensor([0,1,3]),torch.tensor([2,0,2]),v,(2,3))", "torch.sparse_coo_tensor(i,v,(2,3)).requires_grad",
    "torch.is_floating_point(s)", "s.is_floating_point()", "torch.mv(s,torch.ones(3))", "torch.matmul(s,torch.ones(3))",
    "torch.equal(s.to_dense(),s.to_dense())", "s.to(torch.int64)", "s.bool()",
    "torch.sparse.sampled_addmm(c,torch.ones(2,2),torch.ones(2,3))", "torch.sparse.mm(c,torch.ones(3,2),'mean')",
    "torch.sparse.mm(c,torch.ones(3,2),'amax')", "s.coalesce().mul_(2)", "s.transpose(0,1)", "torch.transpose(s,0,1)", "torch.t(s)",
    "torch.sum(s)", "torch.sum(s,0)", "torch.abs(s)", "torch.sin(s)", "torch.sqrt(s)", "torch.square(s)", "torch.pow(s,2)", "2*s",
    "torch.tensor(2.)*s", "s.sum(dtype=torch.float64)", "copy.deepcopy(s)", "pickle.loads(pickle.dumps(s))", "s.type_as(s)",
    "torch.zeros(2,3).add_(s)", "torch.nn.functional.relu(s)", "torch.tensor([[0,1.5],[0,0]]).to_sparse().coalesce().indices()",
    "torch.sparse_coo_tensor(i,torch.ones(3,dtype=torch.int64),(2,3)).sum(1).to_dense()", "str(s.device)", "s.is_leaf",
    "(s.T@s).to_dense()", "torch.chunk(s,2)", "s.dtype", "s.is_cuda", "s.requires_grad", "s.grad", "s.ndim", "torch.numel(s)",
    "s.nelement()", "torch.sparse_coo_tensor([[0,1]],[1.,2.],(3,))",
    "torch.sparse_coo_tensor(torch.empty(2,0,dtype=torch.int64),torch.empty(0),(2,3))",
    "torch.sparse_coo_tensor(i,v,(2,3),dtype=torch.float64)", "torch.sparse_coo_tensor(i,v,(2,3),requires_grad=True)", "f'{s}'",
    "b.to_sparse(layout=torch.sparse_csr)", "s.masked_fill(b>0,1)", "b.is_sparse", "b.to_dense()", "b.coalesce()", "b.values()",
    "torch.dot(s[0],s[0])", "torch.nn.functional.dropout(s)", "s.expand(2,2,3)", "s.squeeze(0)", "torch.triu(s)", "s.diagonal()",
    "torch.isclose(s,s)",
)  # fmt: skip


def operands(torch: Any) -> dict[str, Any]:
    """The same tensors of either library: coordinates, compressed rows, places listed twice, dense dims, a dense matrix."""
    i, v = torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3.0, 4, 5])
    s = torch.sparse_coo_tensor(i, v, (2, 3))
    u = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1, 1], [0, 2, 0, 1]]), torch.tensor([1.0, 2, 3, 4]), (2, 3))
    h = torch.sparse_coo_tensor(torch.tensor([[1, 0]]), torch.tensor([[1.0, 2], [0, 4]]), (3, 2))
    c, b = s.coalesce().to_sparse_csr(), torch.ones(2, 3)
    return {"torch": torch, "copy": copy, "pickle": pickle, "i": i, "v": v, "s": s, "c": c, "u": u, "h": h, "b": b}


def said(torch: Any, call: str) -> str:
    """What a call gives, as text; "refused" for an error."""
    try:
        return repr(eval(call, operands(torch)))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return "refused"


def test_calls_give_what_pytorch_gives() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = [(call, said(torch, call), said(calque, call)) for call in CALLS]
    wrong = [(call, theirs, ours) for call, theirs, ours in wrong if theirs != ours]
    assert not wrong, wrong
    assert sum(said(calque, call) == "refused" for call in CALLS) < 0.3 * len(CALLS)


def test_training_a_graph_network_gives_the_losses_of_pytorch() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert losses(calque) == pytest.approx(losses(torch), rel=1e-5)


def losses(torch: Any) -> list[float]:
    """Two layers over a normalised adjacency, attention by sparse softmax, a learnt matrix of given places, and products of sparse matrices."""
    n = 12
    index = torch.stack([torch.arange(30) * 5 % n, torch.arange(30) * 7 % n])
    adjacency = torch.sparse_coo_tensor(index, torch.ones(30), (n, n)).coalesce()
    degree = torch.sparse.sum(adjacency, dim=1).to_dense()
    scale = torch.sparse_coo_tensor(torch.arange(n).repeat(2, 1), torch.where(degree > 0, degree ** -0.5, torch.zeros(n)), (n, n))
    normal = torch.sparse.mm(torch.sparse.mm(scale, adjacency), scale).to_sparse_csr()

    def filled(*shape: int) -> Any:
        return (torch.sin(torch.arange(shape[0] * shape[1], dtype=torch.float32) * 0.37 + 1).view(shape) * 0.3).requires_grad_()

    first, second, scores = filled(5, 8), filled(8, 3), filled(30, 1)
    x, y = filled(n, 5).detach(), torch.arange(n) % 3
    optimizer = torch.optim.Adam([first, second, scores], lr=0.05)
    found = []
    for _ in range(5):
        weights = torch.sparse.softmax(torch.sparse_coo_tensor(index, scores[:, 0], (n, n)).coalesce(), 1)
        hidden = torch.sparse.mm(weights, (normal @ (x @ first)).relu())
        loss = torch.nn.functional.cross_entropy(torch.sparse.mm(normal, hidden @ second), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(("name", "operands"), [
    ("neg", "s"), ("abs", "s"), ("sin", "s"), ("sqrt", "s"), ("mul", "s s"), ("mul", "d s"), ("add", "s s"), ("sub", "s s"), ("pow", "s 2"),
    ("div", "s 2"), ("mm", "s m"), ("matmul", "s m"), ("addmm", "q s m"),
])  # fmt: skip
def test_results_are_written_into_what_the_caller_has(name: str, operands: str) -> None:
    found = []
    for T in (torch, calque):
        sparse = T.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]).to_sparse()
        given = {"s": sparse, "d": T.ones(2, 3), "m": T.ones(3, 2), "q": T.ones(2, 2), "2": 2}
        out = T.zeros(2, 2) if "m" in operands else T.zeros(2, 3).to_sparse()
        assert getattr(T, name)(*[given[x] for x in operands.split()], out=out) is out
        found.append(np.asarray((out if "m" in operands else out.to_dense()).tolist()))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_results_of_another_layout_are_not_written() -> None:
    sparse = calque.ones(2, 3).to_sparse()
    for call in (lambda: calque.neg(sparse, out=calque.zeros(2, 3)), lambda: calque.neg(calque.ones(2, 3), out=sparse.clone())):
        with pytest.raises(TypeError, match=r"\[neg\] expected an out of the result's layout"):
            call()
    with pytest.raises(TypeError, match=r"\[cat\] expected an out of the result's layout"):
        calque.cat([sparse, sparse], out=calque.zeros(4, 3))
    joined = calque.zeros(4, 3).to_sparse()
    assert calque.cat([sparse, sparse], out=joined) is joined
    assert joined.to_dense().sum().item() == 12
