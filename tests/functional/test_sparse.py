"""Sparse tensors against their dense twins: every function with a rule, gradients, and what must refuse."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import ArgumentError, NotDense, OutOfRangeError, ShapeError
from calque.functional.sparse.rules import KEEP_ZERO
from calque.functional.sparse.tensor import RULES, SparseTensor

KINDS = ("coo", "unordered", "csr", "csc")


def made(rng: np.random.Generator, kind: str, shape: tuple[int, int] = (5, 4), requires_grad: bool = False) -> tuple[Any, Any]:
    """A sparse matrix and the values that it was made of; in "unordered" places come in any order, some twice."""
    count = 9
    if kind == "unordered":
        index = np.stack([rng.integers(0, n, count) for n in shape])
    else:
        flat = np.sort(rng.choice(shape[0] * shape[1], count, replace=False))
        index = np.stack(np.unravel_index(flat, shape))
    values = calque.tensor(rng.uniform(0.1, 0.9, count), requires_grad=requires_grad)
    x = calque.sparse_coo_tensor(index, values, shape)
    return {"coo": lambda: x.coalesce(), "unordered": lambda: x, "csr": lambda: x.to_sparse_csr(), "csc": lambda: x.to_sparse_csc()}[kind](), values


def plain(x: Any) -> Any:
    return x.to_dense() if isinstance(x, SparseTensor) else x


B = calque.linspace(-1, 1, 12, dtype=calque.float64).view(4, 3)
CASES: dict[str, Any] = {
    "mm": lambda x: x @ B, "mv": lambda x: calque.mv(x, B[:, 0]),
    "left": lambda x: B.t() @ x.transpose(0, 1), "both": lambda x: calque.mm(x.t(), x),
    "addmm": lambda x: calque.addmm(calque.ones(5, 3, dtype=calque.float64), x, B, beta=2, alpha=3), "mul": lambda x: x * 3,
    "rmul": lambda x: 2.0 * x,
    "by dense": lambda x: x * B.new_full((5, 4), 2.5), "with itself": lambda x: x * x, "div": lambda x: x / 4,
    "floor": lambda x: x.div(0.3, rounding_mode="floor"),
    "pow": lambda x: x**2, "add": lambda x: x + x * 2, "sub": lambda x: calque.sub(x, x.abs(), alpha=3), "onto": lambda x: B.new_ones(5, 4) + x,
    "off": lambda x: B.new_ones(5, 4) - x, "sum": lambda x: x.sum(), "neg": lambda x: -x, "norm": lambda x: x.norm(),
    "T": lambda x: x.T,
    "double": lambda x: x.float().double(), "row": lambda x: x[1], "element": lambda x: x[1, 2],
    "chosen": lambda x: x.index_select(1, calque.tensor([2, 0, 2])),
    "cat": lambda x: calque.cat([x, x * 2], 1), "clone": lambda x: x.clone(), "linear": lambda x: calque.nn.functional.linear(x, B.t()),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_functions_mean_what_they_mean_for_dense_tensors(kind: str, rng: np.random.Generator) -> None:
    for name, function in CASES.items():
        x, values = made(rng, kind, requires_grad=True)
        result = plain(function(x))
        twin, wanted_values = made_dense(x, values)
        wanted = function(twin)
        assert calque.allclose(result, wanted, rtol=1e-6, atol=1e-6), name
        weights = calque.cos(calque.arange(wanted.numel(), dtype=calque.float64)).view(wanted.shape)
        (grad,) = calque.autograd.grad((result * weights).sum(), values)
        (wanted_grad,) = calque.autograd.grad((wanted * weights).sum(), wanted_values)
        assert calque.allclose(grad, wanted_grad, rtol=1e-6, atol=1e-6), f"gradient of {name}"


def made_dense(x: Any, values: Any) -> tuple[Any, Any]:
    """The dense matrix of the same values, by means that know nothing of sparse tensors."""
    again = values.detach().clone().requires_grad_()
    places = calque.tensor(x.places())
    return calque.zeros(5, 4, dtype=calque.float64).index_put((places[0], places[1]), again[order_of(x, values)], accumulate=True), again





def order_of(x: Any, values: Any) -> Any:
    """Which of the values stands at each place: in compressed columns they are in another order."""
    if x._kind != "csc":
        return slice(None)
    rows, columns = x.places()
    return calque.tensor(np.argsort(np.argsort(rows * 4 + columns)))


def test_functions_that_keep_zeros_are_those_of_the_values(rng: np.random.Generator) -> None:
    for name in KEEP_ZERO.split():
        x, _ = made(rng, "unordered")
        function = getattr(calque, name, None) or (lambda t: t.relu())
        assert calque.allclose(plain(function(x)).double(), function(x.to_dense()).double(), equal_nan=True), name
        assert calque.allclose(plain(getattr(x, name)()).double(), function(x.to_dense()).double(), equal_nan=True), f"method {name}"


def test_every_method_has_a_rule_or_refuses() -> None:
    known = set(RULES) | set(vars(SparseTensor))
    known |= {"is_cuda", "is_mkldnn", "is_mps", "is_nested", "is_quantized", "is_xpu", "is_inference", "is_shared"}
    for name in dir(calque.Tensor):
        if name.startswith("_") or name in known or name.removesuffix("_") in RULES or name in (
            "output_nr", "retains_grad", "name", "share_memory_", "copyto",
        ):  # fmt: skip
            continue
        x = calque.eye(2).to_sparse()
        with pytest.raises((NotDense, TypeError, ArgumentError, NotImplementedError, AttributeError)):  # too few arguments are a TypeError
            found = getattr(x, name)
            found = found() if callable(found) else found
            raise AssertionError(f"{name} gave {found!r}")


def test_softmax_and_sums_along_dims_are_over_listed_elements(rng: np.random.Generator) -> None:
    x, _ = made(rng, "coo")
    mask = x.to_dense() != 0
    for dim in (0, 1):
        wanted = calque.where(mask, calque.softmax(x.to_dense().masked_fill(~mask, float("-inf")), dim), 0.0)
        assert calque.allclose(calque.sparse.softmax(x, dim).to_dense(), wanted, equal_nan=False)
        assert calque.allclose(calque.sparse.log_softmax(x, dim).to_dense()[mask], wanted[mask].log())
        assert calque.allclose(calque.sparse.sum(x, dim).to_dense(), x.to_dense().sum(dim))
        assert calque.allclose(x.sum(dim, keepdim=True).to_dense(), x.to_dense().sum(dim, keepdim=True))


def test_a_gradient_of_a_leaf_is_sparse_and_second_gradients_are_there(rng: np.random.Generator) -> None:
    x, _ = made(rng, "coo")
    x.requires_grad_()
    calque.sparse.mm(x, B).pow(2).sum().backward()
    wanted = (2 * (x.detach().to_dense() @ B) @ B.t()) * (x.detach().to_dense() != 0)
    assert x.grad.layout == calque.sparse_coo and x.is_leaf and calque.allclose(x.grad.to_dense(), wanted)
    _, values = made(rng, "coo")
    index = x.indices()

    def product(v: Any, b: Any) -> Any:
        return calque.sparse.mm(calque.sparse_coo_tensor(index, v, (5, 4)), b)

    inputs = (values.detach().requires_grad_(), B.clone().requires_grad_())
    assert calque.autograd.gradcheck(product, inputs) and calque.autograd.gradgradcheck(product, inputs)


def test_a_graph_network_with_its_matrix_as_buffer(rng: np.random.Generator) -> None:
    adjacency, _ = made(rng, "coo", (5, 5))

    class Layer(calque.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = calque.nn.Linear(3, 2)
            self.register_buffer("adjacency", adjacency)

        def forward(self, x: Any) -> Any:
            return calque.spmm(self.adjacency, self.linear(x))

    layer = Layer().double()
    x = calque.tensor(rng.normal(size=(5, 3)))
    twin = copy.deepcopy(layer)
    twin.load_state_dict(layer.state_dict())
    wanted = adjacency.to_dense() @ layer.linear(x)
    assert calque.allclose(layer(x), wanted) and calque.allclose(twin(x), wanted)
    assert calque.equal(pickle.loads(pickle.dumps(layer.adjacency)).to_dense(), adjacency.to_dense())
    fast = calque.compile(layer)
    assert all(calque.allclose(fast(x), wanted) for _ in range(3)), "a call that reaches a sparse tensor runs as written"
    layer.adjacency.mul_(2)
    assert calque.allclose(fast(x), 2 * wanted)
    layer(x).sum().backward()
    assert calque.allclose(layer.linear.weight.grad, adjacency.to_dense().sum(0)[None].expand(2, 5) @ x)


def test_what_is_wrong_is_refused_before_anything_changes() -> None:
    i, v = calque.tensor([[0, 1], [1, 0]]), calque.tensor([1.0, 2.0])
    for error, call, text in (
        (OutOfRangeError, lambda: calque.sparse_coo_tensor(i, v, (2, 1)), "out of bounds"),
        (OutOfRangeError, lambda: calque.sparse_coo_tensor(i - 1, v, (2, 2)).to_dense().tolist(), "out of bounds"),
        (ShapeError, lambda: calque.sparse_coo_tensor(i, v[:1], (2, 2)), "expected 2 values"),
        (ShapeError, lambda: calque.sparse_coo_tensor(i, v, (2, 2, 2)), "expected a size of 2 sparse dims"),
        (ArgumentError, lambda: calque.sparse_csr_tensor([0, 2, 1], [0, 1], v, (2, 2)), "pointers that rise"),
        (ArgumentError, lambda: calque.sparse_csr_tensor([0, 1, 2], [0, 5], v, (2, 2)), "expected positions in"),
        (ArgumentError, lambda: calque.sparse_csr_tensor([0, 2, 2], [1, 0], v, (2, 2)), "sorted and distinct"),
        (ArgumentError, lambda: calque.sparse_coo_tensor(i.flip(1), v, (2, 2), is_coalesced=True), "in order"),
        (ArgumentError, lambda: calque.sparse_coo_tensor(i, v, (2, 2)).values(), "uncoalesced"),
        (ArgumentError, lambda: calque.sparse_coo_tensor(i, v, (2, 2)) + calque.ones(2, 2), "not supported"),
        (ShapeError, lambda: calque.sparse_coo_tensor(i, v, (2, 2)) @ calque.ones(3, 2), "cannot be multiplied"),
        (ShapeError, lambda: calque.sparse_coo_tensor(i, v, (2, 2)) * calque.ones(3, 2), "not broadcast"),
        (NotDense, lambda: calque.exp(calque.sparse_coo_tensor(i, v, (2, 2))), "convert it with .to_dense()"),
        (NotDense, lambda: np.asarray(calque.sparse_coo_tensor(i, v, (2, 2))), "convert it with .to_dense()"),
        (ArgumentError, lambda: calque.ones(2).coalesce(), "expected a tensor of layout torch.sparse_coo"),
    ):  # fmt: skip
        with pytest.raises(error, match=text.replace("(", r"\(").replace(")", r"\)")):
            call()


def test_empty_tensors_and_no_dims() -> None:
    x = calque.sparse_coo_tensor((3, 0))
    assert x.to_dense().shape == (3, 0) and x._nnz() == 0 and calque.zeros(2, 3).to_sparse().coalesce().to_dense().tolist() == [[0.0] * 3] * 2
    assert (calque.zeros(2, 3).to_sparse() @ calque.ones(3, 2)).tolist() == [[0.0, 0.0]] * 2
    assert calque.tensor(3.0).to_sparse().to_dense().item() == 3.0


def test_transposes_of_more_dims_and_of_complex_matrices() -> None:
    """`adjoint` of a complex matrix was not conjugated, and `mT` and `T` took matrices alone."""
    x = calque.arange(12.0).reshape(2, 2, 3)
    s = x.to_sparse()
    assert s.mT.to_dense().tolist() == x.mT.tolist() and s.T.to_dense().tolist() == x.permute(2, 1, 0).tolist()
    assert s.mH.to_dense().tolist() == x.mT.tolist() and s.adjoint().to_dense().tolist() == x.mT.tolist()
    with pytest.raises(ShapeError, match="matrix"):
        s.H  # noqa: B018
    z = calque.tensor([[1 + 2j, 0], [3j, 4]])
    for turned in (z.to_sparse().H, z.to_sparse().mH, z.to_sparse().adjoint(), calque.adjoint(z.to_sparse())):
        assert turned.to_dense().tolist() == z.H.tolist()


def test_a_tensor_from_new_parts() -> None:
    s = calque.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,)).coalesce()
    assert s.new(s.indices(), s.values() * 3, s.size()).to_dense().tolist() == [3.0, 0.0, 6.0, 0.0]
    assert s.new(s.indices(), s.values()).to_dense().tolist() == [1.0, 0.0, 2.0]
    assert s.new(4).to_dense().tolist() == [0.0] * 4
    with pytest.raises(ArgumentError, match="indices, values and a size"):
        s.new(s.indices())


def test_indices_of_other_types_are_cast() -> None:
    values = calque.ones(2)
    places = calque.tensor([[0.0, 1.7], [1.0, 0.0]], dtype=calque.float64)
    for indices in (places, places.tolist(), places.to(calque.bool)):
        x = calque.sparse_coo_tensor(indices, values, (2, 2))
        assert x._indices().dtype is calque.int64
        assert x.to_dense().tolist() == [[0.0, 1.0], [1.0, 0.0]]
    with pytest.raises(TypeError, match="plain indices must be an int64 tensor"):
        calque.sparse_csr_tensor([0, 1, 2], [0.0, 1.0], values)


def test_new_of_a_sparse_tensor() -> None:
    x = calque.sparse_coo_tensor([[0, 1], [1, 0]], calque.ones(2, dtype=calque.float64), (2, 2))
    for made, shape in ((x.new(), (0,)), (x.new(2, 3), (2, 3)), (x.new(calque.Size([2, 3])), (2, 3))):
        assert isinstance(made, SparseTensor) and made.dtype is calque.float64
        assert made.to_dense().equal(calque.zeros(shape, dtype=calque.float64))
    assert x.new([[0], [1]], calque.ones(1, dtype=calque.float64)).to_dense().tolist() == [[0.0, 1.0]]


def test_a_size_alone_is_a_tensor_without_elements() -> None:
    for made in (calque.sparse_coo_tensor((5, 3)), calque.sparse_coo_tensor(size=(5, 3), dtype=calque.int32)):
        assert tuple(made.shape) == (5, 3) and made._nnz() == 0 and made.to_dense().tolist() == [[0] * 3] * 5
    for indices, size in ((calque.zeros(2, 1), (5, 3)), (None, None)):
        with pytest.raises(TypeError, match="expected indices and values, or a size alone"):
            calque.sparse_coo_tensor(indices, size=size)


def test_long_parts_wrap_where_the_line_ends() -> None:
    x = calque.sparse_coo_tensor(calque.arange(20).view(1, 20), calque.arange(20.0) / 7, (20,))
    assert max(len(line) for line in repr(x).split("\n")) <= 80
    assert repr(x).split("\n")[:4] == [
        "tensor(indices=tensor([[ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13,",
        "                        14, 15, 16, 17, 18, 19]]),",
        "       values=tensor([0.0000, 0.1429, 0.2857, 0.4286, 0.5714, 0.7143, 0.8571,",
        "                      1.0000, 1.1429, 1.2857, 1.4286, 1.5714, 1.7143, 1.8571,",
    ]
    assert repr(calque.ones(1, 1).to_sparse_csr()).endswith("values=tensor([1.]), size=(1, 1), nnz=1, layout=torch.sparse_csr)")
    assert repr(calque.sparse_coo_tensor([[0]], [1j], (1,))).endswith("values=tensor([0.+1.j]),\n       size=(1,), nnz=1, layout=torch.sparse_coo)")


@pytest.mark.parametrize("kind", KINDS)
def test_operators_in_place_change_the_tensor_itself(kind: str, rng: np.random.Generator) -> None:
    x, _ = made(rng, kind)
    y, _ = made(rng, kind)
    same, wanted = x, x.to_dense()
    x += y
    x *= 3
    x /= 2
    x -= y
    wanted = (wanted + y.to_dense()) * 3 / 2 - y.to_dense()
    assert x is same and x.layout == y.layout and calque.allclose(x.to_dense(), wanted)
    x *= y
    assert x is same and calque.allclose(x.to_dense(), wanted * y.to_dense())


def test_an_operator_in_place_that_changes_the_dtype_is_refused() -> None:
    x = calque.tensor([[0, 2], [3, 0]]).to_sparse()
    with pytest.raises(ShapeError, match=r"\[add_\] expected a sparse result of shape \[2, 2\] and .*int64"):
        x += calque.tensor([[0, 2.5], [3, 0]]).to_sparse()
    x //= 2
    assert x.to_dense().tolist() == [[0, 1], [1, 0]]
