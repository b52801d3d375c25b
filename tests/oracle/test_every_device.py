"""Every public function on a logical device and on `meta`: results live where the operands live, with the values (on `meta`: shapes and dtypes) of
the CPU. Most calls are those that the other tests of this folder compare with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import calque
from calque import functional
from calque.base.errors import DeviceError
from tests.oracle import test_elementwise, test_indexing_oracle, test_linalg, test_nn_layers, test_nn_losses, test_reductions
from tests.oracle.compare import ARRAYS

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel"), pytest.mark.usefixtures("two_devices")]
OTHER = "cpu:1"
Call = Callable[..., Any]
# Functions whose result's shape, or whether they return at all, depends on the values.
DATA_DEPENDENT = "unique unique_consecutive bincount masked_select nonzero argwhere allclose equal is_nonzero singular repeat_interleave"


class On:
    """The module `calque` whose functions that make tensors make them on a device."""

    MAKING = (
        "tensor", "as_tensor", "asarray", "arange", "linspace", "logspace", "eye", "ones", "zeros", "full", "empty", "scalar_tensor",
        "tril_indices", "triu_indices", "rand", "randn", "randint", "randperm",
    )  # fmt: skip

    def __init__(self, device: str) -> None:
        self.device = device

    def __getattr__(self, name: str) -> Any:
        found = getattr(calque, name)
        return (lambda *args, **keywords: found(*args, **{"device": self.device, **keywords})) if name in self.MAKING else found


# Functions that no other table of this folder calls: on a matrix (4, 3), a row (3) and int64 positions (3) in [0, 3).
MORE: dict[str, Call] = {
    "fake_quantize_per_tensor_affine": lambda m, x, v, i: m.fake_quantize_per_tensor_affine(x, 0.25, 1, -8, 7),
    "fake_quantize_per_channel_affine": lambda m, x, v, i: m.fake_quantize_per_channel_affine(x, v.float().abs(), i.int(), 1, -8, 7),
    "other names": lambda m, x, r, i: [
        x.absolute(), m.divide(x, r), m.greater(x, r), m.greater_equal(x, r), m.less(x, r), m.less_equal(x, r), m.multiply(x, r),
        m.not_equal(x, r), m.subtract(x, r), m.arccos(x), m.arccosh(x), m.arcsin(x), m.arcsinh(x), m.arctan(x), m.arctanh(x), m.arctan2(x, r),
        m.clamp_min(x, 0), m.clip(x, 0, 1), m.fix(x), m.concat([x, x]), m.concatenate([x, x]), m.row_stack([x, x]), m.swapaxes(x, 0, 1),
        m.swapdims(x, 0, 1), m.moveaxis(x, 0, 1),
    ],
    "clamp_ in place": lambda m, x, r, i: m.clamp_(x.clone(), 0, 1),
    "made of a tensor": lambda m, x, r, i: [
        m.tensor(x), calque.tensor(x), calque.as_tensor(x), calque.asarray(x), calque.as_tensor(1, None, x.device),
    ],
    "made from data": lambda m, x, r, i: [
        m.as_tensor([1.0]), m.asarray([1.0]), m.scalar_tensor(2.0), m.eye(3), m.full((2,), 3), m.linspace(0, 1, 3), m.logspace(0, 1, 3), m.ones(2),
        m.zeros(2),
    ],
    "made alike": lambda m, x, r, i: [m.full_like(x, 2), m.ones_like(x), m.zeros_like(x), m.empty_like(x) * 0, x.new_ones(2), x.new_tensor([1])],
    "random": lambda m, x, r, i: (m.manual_seed(0), *[
        m.bernoulli(x.abs() / 9), m.normal(x, x.abs()), m.rand(2), m.rand_like(x), m.randint(0, 9, (2,)), m.randint_like(x, 9), m.randn(2),
        m.randn_like(x), m.randperm(4), m.multinomial(r.abs() + 1, 2), m.multinomial(x.abs() + 1, 4, True),
    ])[1:],
    "logdet": lambda m, x, r, i: m.logdet(x[:3] @ x[:3].t() + m.eye(3, dtype=x.dtype)),
    "pinverse": lambda m, x, r, i: m.pinverse(x),
    "lstsq": lambda m, x, r, i: (m.linalg.lstsq(x, x[:, :2]), m.linalg.cond(x), m.linalg.norm(x, 2)),
    "svd": lambda m, x, r, i: (*m.linalg.svd(x), *m.linalg.svd(x.t(), full_matrices=False)),
    "qr": lambda m, x, r, i: (*m.linalg.qr(x), *m.linalg.qr(x, "complete"), *m.linalg.qr(x.t())),
    "solve": lambda m, x, r, i: m.linalg.solve(x[None, :3] + m.eye(3, dtype=x.dtype), x[:3].expand(2, 3, 3), left=False),
    "joined": lambda m, x, r, i: [
        m.block_diag(x, r), m.cartesian_prod(r, r), m.combinations(r, 2), m.trapezoid(x), m.trapz(x, dx=0.5), m.chain_matmul(x, x.t(), x),
    ],
    "parts": lambda m, x, r, i: [
        *m.dsplit(x[None], 3), *m.hsplit(x, 3), *m.vsplit(x, 2), *m.split_with_sizes(x, [1, 3]), m.diagonal(x), m.narrow(x, 0, 1, 2),
        m.select(x, 0, 1), m.adjoint(x), m.broadcast_to(r, (2, 3)), x.contiguous(), x.detach(), m.permute(x, (1, 0)), m.ravel(x),
        m.squeeze(x[:1]), m.transpose(x, 0, 1), x.expand(2, 4, 3), r.expand_as(x), x.reshape_as(x.t()), x.view_as(x), x.sum_to_size(1, 3),
        functional.sum_to_shape(x, (3,)),
    ],
    "diagonal_scatter": lambda m, x, r, i: m.diagonal_scatter(x, r),
    "positions": lambda m, x, r, i: (m.nonzero(x > 0), m.nonzero(r)),
    "positions per dim": lambda m, x, r, i: m.nonzero(x > 0, as_tuple=True),
    "argwhere": lambda m, x, r, i: m.argwhere(x > 0),
    "is_nonzero": lambda m, x, r, i: m.is_nonzero(x[0, 0]),
    "scatter extremes": lambda m, x, r, i: [x.scatter_reduce(1, i[None, :], x[:1] * 2, how) for how in ("prod", "amax", "amin")],
    "cummax empty": lambda m, x, r, i: (*m.cummax(x[:0], 0), *m.cummin(x[0, 0], 0), *m.mode(x[0, 0])),
    "embedding": lambda m, x, r, i: (m.nn.functional.embedding(i, x), m.nn.functional.one_hot(i, 3), m.nn.functional.embedding_bag(i[None], x)),
    "losses": lambda m, x, r, i: (m.nn.functional.cross_entropy(x[:3], i), m.nn.functional.mse_loss(x, x * 2), m.nn.functional.nll_loss(x[:3], i)),
    "read at an index": lambda m, x, r, i: (x[i], x[:, i], x[i, i], x[[0, 2]], x[..., None, 0], x[1:, i]),
    "written at an index": lambda m, x, r, i: [written(x, k, v) for k, v in ((i, 1.0), (x > 0, 0.0), ((slice(None), i), x), ((i, i), r), (0, r))],
    "attention": lambda m, x, r, i: m.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    "complex numbers": lambda m, x, y, i: (
        m.view_as_real(m.complex(x, x)), m.view_as_real(m.polar(m.abs(x), x)), m.imag(m.conj_physical(m.complex(x, x))),
        m.real(m.resolve_conj(m.resolve_neg(m.complex(x, x)))), m.imag(m.view_as_complex(m.stack([x, x * 2], -1))),
        x * m.is_complex(x), x * m.is_conj(x), x * m.is_neg(x),
    ),
    "written": lambda m, x, y, i: (
        m.arccos_(x / 9), m.arccosh_(m.abs(x) + 1), m.arcsin_(x / 9), m.arcsinh_(x / 9), m.arctan_(x / 9), m.arctanh_(x / 9), m.fix_(x.clone()),
        m.clamp_max_(x.clone(), 1.0), m.clamp_min_(x.clone(), 1.0), m.clip_(x.clone(), 0.0, 1.0), m.negative_(x.clone()), m.detach_(x.clone()),
        m.fill_(x.clone(), 2.0), m.zero_(x.clone()), m.resize_(x.clone(), (2, 6)), m.index_put_(x.clone(), (i,), y), m.gcd_(i * 4, i + 2),
        m.lcm_(i + 1, i + 2), m.addmv_(x[:, 0].clone(), x, y),
    ),
}  # fmt: skip
# Functions that make no tensor of a tensor: they make one of data, ask, set, or count.
ELSEWHERE = (
    "empty from_numpy frombuffer BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor "
    "ShortTensor from_dlpack to_dlpack broadcast_shapes get_printoptions printoptions set_printoptions Generator default_generator fork_rng "
    "get_rng_state initial_seed seed set_rng_state call_when_ready can_cast is_floating_point is_tensor promote_types result_type is_contiguous numel"
)


def written(x: Any, index: Any, value: Any) -> Any:
    copy = x.clone()
    copy[index] = value
    return copy


def elementwise() -> Iterator[tuple[str, Call, list[Any]]]:
    for name in test_elementwise.UNARY:
        for source in ("positive", "ints", "zero_dim", "empty"):
            yield f"{name} of {source}", lambda m, x, n=name: getattr(m, n)(x), [ARRAYS[source]]
        if f"{name}_" in functional.__all__:
            yield f"{name}_ in place", lambda m, x, n=name: getattr(m, f"{n}_")(x.clone()), [ARRAYS["positive"]]
    for name in test_elementwise.BINARY:
        pair = [ARRAYS[p] for p in (["naturals", "naturals"] if "bitwise" in name else ["positive", "row"])]
        yield name, lambda m, x, y, n=name: getattr(m, n)(x, y), pair
        if f"{name}_" in functional.__all__:
            yield f"{name}_ in place", lambda m, x, y, n=name: getattr(m, f"{n}_")(x.clone(), y), pair
    for symbol, function in test_elementwise.OPERATORS.items():
        yield f"x {symbol} 2", lambda m, x, f=function: (f(x, 2), f(x, x), f(2, x)), [ARRAYS["naturals"]]
    for name, call in test_elementwise.CALLS.items():
        yield f"{name} of two", call, [ARRAYS["bytes" if "uint8" in name else "matrix"], ARRAYS["row"]]


def reductions() -> Iterator[tuple[str, Call, list[Any]]]:
    for source in ("matrix", "naturals", "empty", "zero_dim"):
        for name in test_reductions.WHOLE:
            yield f"{name} of {source}", lambda m, x, n=name: getattr(m, n)(x), [ARRAYS[source]]
        for name in test_reductions.ALONG:
            yield f"{name} along {source}", lambda m, x, n=name: test_reductions.along(m, n, x, -1, False), [ARRAYS[source]]
    for name, call in test_reductions.CALLS.items():
        for source in ("double", "naturals", "empty", "zero_dim"):
            yield f"{name} reduces {source}", call, [ARRAYS[source]]


def matrices_and_layers() -> Iterator[tuple[str, Call, list[Any]]]:
    for name, call in test_indexing_oracle.CASES.items():
        yield f"{name} at positions", call, [np.arange(12.0).reshape(3, 4) - 5, np.arange(12).reshape(3, 4) % 4]
    shapes = {"bmm": [(2, 3, 4), (2, 4, 5)], "mv": [(3, 4), (4,)], "mm": [(3, 4), (4, 2)], "matmul": [(2, 3, 4), (4, 2)]}
    for name in test_linalg.PRODUCTS:
        operands = [test_linalg.values(s) for s in shapes.get(name, [(4,), (4,)])]
        yield f"{name} product", lambda m, x, y, n=name: getattr(m, n)(x, y), operands
    for equation, *extents in test_linalg.EINSUM:
        yield f"einsum {equation} {extents}", lambda m, *x, e=equation: m.einsum(e, *x), [test_linalg.values(s) for s in extents]
    for name, (extents, call) in test_linalg.CALLS.items():
        yield f"{name} of matrices", call, [test_linalg.values(s) for s in extents]
    for name, call in test_linalg.DECOMPOSITIONS.items():
        yield f"{name} decomposition", call, [test_linalg.symmetric(3)]
    for k, (name, extents, args, options) in enumerate(test_nn_losses.SAMPLES):
        call = lambda m, *x, n=name, a=args, o=options: getattr(m.nn.functional, n)(*x, *a, **o)  # noqa: E731
        yield f"nn.functional {k} {name}", call, test_nn_losses.arrays(*extents)
    layers = [*test_nn_layers.LAYERS, *((n, a, [(2, 4, 4)], o) for n, a, o in test_nn_layers.ACTIVATIONS)]
    for k, (name, args, extents, options) in enumerate(layers):
        yield f"layer {k} {name}", layer(name, args, options), test_nn_layers.arrays(*extents, dtype="float32")
    for name, call in MORE.items():
        yield name, call, [test_linalg.values((4, 3), np.float64) + 0.5, np.array([1.5, -2.0, 0.25]), np.array([2, 0, 1])]


def layer(name: str, args: Any, options: dict[str, Any]) -> Call:
    def call(m: Any, *x: Any) -> Any:
        calque.manual_seed(0)
        plain = {k: v for k, v in options.items() if k != "train"}
        return getattr(calque.nn, name)(*args, **plain).to(x[0].device)(*x)

    return call


CASES = {name: (call, arrays) for part in (elementwise, reductions, matrices_and_layers) for name, call, arrays in part()}


def flat(result: Any) -> list[Any]:
    return [x for part in result for x in flat(part)] if isinstance(result, (tuple, list)) else [result]


def outcome(name: str, device: str) -> Any:
    """The results of a case, flat, or the error."""
    call, arrays = CASES[name]
    module = On(device)
    try:
        return flat(call(module, *[module.tensor(a.copy()) for a in arrays]))
    except Exception as error:
        return error


@pytest.mark.parametrize("name", CASES)
def test_on_a_logical_device(name: str) -> None:
    expected, got = outcome(name, "cpu"), outcome(name, OTHER)
    if isinstance(expected, Exception):
        assert type(got) is type(expected) and str(got) == str(expected)
        return
    assert not isinstance(got, Exception), repr(got)
    for ours, theirs in zip(got, expected, strict=True):
        if not isinstance(theirs, calque.Tensor):
            assert ours == theirs
            continue
        assert str(ours.device) == OTHER and ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_array_equal(ours.detach().cpu().numpy(), theirs.detach().numpy())


@pytest.mark.parametrize("name", CASES)
def test_on_meta(name: str) -> None:
    expected, got = outcome(name, "cpu"), outcome(name, "meta")
    reads = any(word in DATA_DEPENDENT.split() for word in [*name.split(), *names_in(CASES[name][0].__code__)])
    if reads and isinstance(got, DeviceError):
        assert "meta" in str(got) and "no data" in str(got)
    elif isinstance(expected, Exception):
        assert reads or (type(got) is type(expected) and str(got) == str(expected)), repr(got)
    else:
        assert not isinstance(got, Exception), repr(got)
        for ours, theirs in zip(got, expected, strict=True):
            assert ours.is_meta and ours.dtype == theirs.dtype and ours.shape == theirs.shape if isinstance(theirs, calque.Tensor) else ours == theirs


def names_in(code: Any) -> set[str]:
    """Names and strings in a function and in the functions inside it."""
    found = set(code.co_names)
    for value in code.co_consts:
        found |= {value} if isinstance(value, str) else names_in(value) if hasattr(value, "co_names") else set()
    return found


def test_every_public_function_is_called() -> None:
    called = {word for label in CASES for word in label.split()}
    for call, _ in CASES.values():
        called |= names_in(call.__code__)
    assert not [n for n in functional.__all__ if n not in called and n not in ELSEWHERE.split()]
