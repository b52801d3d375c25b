"""Complex tensors without PyTorch: values by NumPy, gradients by central differences, every primitive that takes complex numbers."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import numpy as np
import pytest

import calque
from calque.autograd import gradcheck, gradgradcheck
from calque.base.config import settings
from calque.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedTypeError
from calque.functional.common import prim
from calque.ops.opdef import REGISTRY, OpDef

c64, c128 = calque.complex64, calque.complex128


def numbers(rng: np.random.Generator, *shape: int) -> Any:
    return rng.uniform(0.3, 1.2, shape) * np.exp(1j * rng.uniform(-2.8, 2.8, shape))


def leaf(rng: np.random.Generator, *shape: int) -> calque.Tensor:
    return calque.tensor(numbers(rng, *shape), requires_grad=True)


# ------------------------------------------------------------------------------------------------------------- primitives

OWN = ("view_as", "update_as", "hosted", "complex", "cast")  # which have tests of their own below
TAKING = [op for op in REGISTRY.values() if op.complex and op.kind != "leaf" and op.name not in OWN]


def operands(op: OpDef, sample: Any, rng: np.random.Generator) -> list[Any]:
    """Random complex operands; where the sample wants integers or truth, those."""
    bounds = dict(sample.integers)
    found: list[Any] = []
    for position, shape in enumerate(sample.shapes):
        if position in bounds:
            values = rng.integers(0, bounds[position], shape)
            found.append(calque.tensor(values.astype(bool) if op.name == "where" else values))
        else:
            found.append(leaf(rng, *shape))
    return found


WRITERS = ("index_put", "scatter")  # a repeated index sends the gradient to every writer, as in PyTorch


@pytest.mark.parametrize("op", TAKING, ids=lambda op: op.name)
def test_compiled_and_interpreted_results_are_those_of_the_reference(op: OpDef, rng: np.random.Generator) -> None:
    for sample in op.samples:
        xs = [x.detach() for x in operands(op, sample, rng)]
        with np.errstate(all="ignore"):
            want = np.asarray(op.ref(*[x.numpy() for x in xs], *sample.attrs))  # type: ignore[misc]
        for _ in range(20):  # interpreted at first, then compiled
            got = prim(op.name, *xs, *sample.attrs).numpy()
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("op", [op for op in TAKING if op.vjp and op.name not in WRITERS], ids=lambda op: op.name)
def test_gradients_agree_with_central_differences(op: OpDef, rng: np.random.Generator) -> None:
    for sample in op.samples[:3]:
        xs = operands(op, sample, rng)
        if any(0 in x.shape for x in xs):
            continue
        assert gradcheck(lambda *args, attrs=sample.attrs: prim(op.name, *args, *attrs), xs)


@pytest.mark.parametrize("name", ["mul", "div", "exp", "sin", "tanh", "reciprocal", "pow", "matmul", "abs", "sgn", "prod"])
def test_second_gradients_agree_with_central_differences(name: str, rng: np.random.Generator) -> None:
    op = REGISTRY[name]
    shapes = ((2, 2), (2, 2)) if name == "matmul" else ((3,),) * op.arity
    attrs = ((0,), False) if name == "prod" else ()
    assert gradgradcheck(lambda *args: prim(name, *args, *attrs), tuple(leaf(rng, *shape) for shape in shapes))


@pytest.mark.parametrize("op", [op for op in REGISTRY.values() if not op.complex and op.kind != "leaf"], ids=lambda op: op.name)
def test_other_primitives_refuse_complex_operands(op: OpDef, rng: np.random.Generator) -> None:
    sample = next((s for s in op.samples if s.shapes), None)
    if sample is None:
        pytest.skip("it has no operands")
    with pytest.raises(DTypeError, match=rf"\[{op.name}\] expected a real dtype, got torch.complex128: not implemented for complex numbers"):
        prim(op.name, *[calque.tensor(numbers(rng, *shape)) for shape in sample.shapes], *sample.attrs)


# ------------------------------------------------------------------------------------------------------------ parts and views


def test_parts_are_views_that_can_be_written(rng: np.random.Generator) -> None:
    values = numbers(rng, 3, 4)
    z = calque.tensor(values)
    pairs, turned = calque.view_as_real(z), z.t()
    assert pairs.shape == (3, 4, 2) and pairs.stride() == (8, 2, 1) and pairs.dtype is calque.float64
    assert pairs.data_ptr() == z.data_ptr() and z.imag.data_ptr() == z.data_ptr() + 8
    z.real[1] = 5.0
    values.real[1] = 5.0
    pairs[2, 3, 1] = -7.0
    values.imag[2, 3] = -7.0
    z.imag *= 2
    values.imag *= 2
    turned.real[0] += 1
    values.T.real[0] += 1
    np.testing.assert_array_equal(z.numpy(), values)
    np.testing.assert_array_equal(turned.imag.numpy(), values.T.imag)
    back = calque.view_as_complex(pairs)
    assert back.data_ptr() == z.data_ptr() and calque.equal(back, z)
    one = calque.tensor([1 + 2j])
    one.real[0] = 3.0  # one element: its parts are not the whole value
    assert one.tolist() == [3 + 2j]


PARTS: dict[str, tuple[Any, Any, Any]] = {  # a view of other elements than those of its memory: of Calque's, of NumPy's, and the memory
    "real": (lambda t: t.real, lambda a: a.real, np.arange(4) + 1j),
    "imag": (lambda t: t.imag, lambda a: a.imag, np.arange(4) + 1j),
    "one of both": (lambda t: calque.view_as_real(t)[:, 1], lambda a: a.view(np.float64)[1::2], np.arange(4) + 1j),
    "halves of integers": (lambda t: t.view(calque.int32)[::2], lambda a: a.view(np.int32)[::2], np.arange(4)),
    "bytes": (lambda t: t.view(calque.uint8)[3:7], lambda a: a.view(np.uint8)[3:7], np.arange(4)),
    "as complex": (lambda t: calque.view_as_complex(t)[:2], lambda a: a.view(np.complex128)[:2, 0], np.arange(8.0).reshape(4, 2)),
    "turned": (lambda t: t.t(), lambda a: a.T, np.arange(4.0).reshape(2, 2)),
}


@pytest.mark.parametrize("eager", [0, 1, 2])
@pytest.mark.parametrize("part", PARTS)
def test_writes_to_parts_of_elements_keep_the_rest(part: str, eager: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of memory that a clone shares still, a write makes a copy, in which everything has a value. What is written comes with a history or without."""
    monkeypatch.setattr(settings, "poison", True)
    monkeypatch.setattr(settings, "eager", eager)
    see, expect, values = PARTS[part]
    for history in (False, True):
        source = calque.tensor(values)
        before = source.clone()
        view = see(before)
        factor = calque.full(tuple(view.shape), 3, dtype=view.dtype, requires_grad=history and view.dtype.is_floating_point)
        view.mul_(factor * 1)
        expected = values.copy()
        expect(expected)[...] *= 3
        np.testing.assert_array_equal(before.detach().numpy(), expected)
        np.testing.assert_array_equal(source.numpy(), values)


def test_a_complex_view_of_real_numbers_shares_their_memory(rng: np.random.Generator) -> None:
    x = calque.zeros(5, 3, 2)
    z = calque.view_as_complex(x[1:4])
    z += 1 + 2j
    x[2, 0, 1] = 9.0
    assert x.sum().item() == 9 * 3 - 2 + 9 and z[1, 0].item() == 1 + 9j


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: calque.view_as_complex(calque.zeros(3)), "last dimension of size 2"),
        (lambda: calque.view_as_complex(calque.zeros(2, 3).t()), "last dimension with stride 1"),
        (lambda: calque.view_as_complex(calque.zeros(4, 3)[:, :2]), "stride divisible by 2"),
        (lambda: calque.view_as_complex(calque.zeros(5)[1:3]), "storage_offset divisible by 2"),
    ],
)
def test_what_cannot_be_seen_as_complex_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        make()


def test_wrong_dtypes_are_refused() -> None:
    for call in (
        lambda: calque.view_as_complex(calque.zeros(2, dtype=calque.int64)),
        lambda: calque.view_as_real(calque.zeros(2)),
        lambda: calque.imag(calque.zeros(2)),
        lambda: calque.complex(calque.zeros(2), calque.zeros(2, dtype=calque.float64)),
        lambda: calque.polar(calque.zeros(2, dtype=calque.int64), calque.zeros(2)),
    ):
        with pytest.raises(DTypeError):
            call()


def test_gradients_through_views_and_writes(rng: np.random.Generator) -> None:
    def program(z: Any, x: Any) -> Any:
        w = z * 2
        w.real[1:] = x
        calque.view_as_real(w)[0, 1] *= x[0]
        pairs = calque.stack([x, x * x], -1)
        return w * calque.view_as_complex(pairs).sum() + w.imag.sum()

    x = calque.tensor(rng.standard_normal(2), requires_grad=True)
    assert gradcheck(program, (leaf(rng, 3), x))
    assert gradgradcheck(program, (leaf(rng, 3), x))


def test_polar_angle_and_conjugates(rng: np.random.Generator) -> None:
    z = numbers(rng, 7)
    t = calque.tensor(z)
    np.testing.assert_allclose(calque.polar(t.abs(), t.angle()).numpy(), z)
    np.testing.assert_array_equal(t.conj().numpy(), z.conj())
    assert calque.tensor(numbers(rng, 2, 3)).mH.shape == (3, 2) and not t.is_conj() and t.resolve_conj() is t
    assert gradcheck(lambda r, a: calque.polar(r, a), (calque.tensor(abs(z), requires_grad=True), calque.tensor(np.angle(z), requires_grad=True)))
    assert gradcheck(calque.angle, (leaf(rng, 4),)) and gradcheck(lambda a: a.mH, (leaf(rng, 2, 3),))


# ----------------------------------------------------------------------------------------------------------------- dtypes


def test_promotion() -> None:
    f32, f64, i64 = (calque.ones(2, dtype=d) for d in (calque.float32, calque.float64, calque.int64))
    z = calque.ones(2, dtype=c64)
    assert [(a + b).dtype for a, b in ((z, f32), (z, f64), (z, i64), (f32, 1j), (f64, 1j), (i64, 1j))] == [c64, c128, c64, c64, c128, c64]
    assert (z + calque.tensor(1.0, dtype=calque.float64)).dtype is c64 and (z * 2.5).dtype is c64
    assert c64.to_real() is calque.float32 and calque.float64.to_complex() is c128 and c64.is_complex and not c64.is_floating_point
    assert calque.finfo(c64).eps == calque.finfo(calque.float32).eps and calque.cfloat is c64 and calque.cdouble is c128


def test_numbers_keep_their_digits() -> None:
    z = calque.tensor([1.0], dtype=c128)
    assert (z * (0.1 + 0.2j)).item() == 0.1 + 0.2j and (0.1j + z).item() == 1 + 0.1j and (0.3j / z).item() == 0.3j
    assert calque.full((2,), 0.1j, dtype=c128).tolist() == [0.1j, 0.1j] and calque.full((), 1j).dtype is c64


def test_making_and_reading() -> None:
    t = calque.tensor([[1, 2.5], [1j, 0]])
    assert t.dtype is c64 and t.tolist() == [[1, 2.5], [1j, 0]] and t[1, 0].item() == 1j and complex(t[1, 0]) == 1j
    assert calque.zeros(2, dtype=c64).tolist() == [0, 0] and calque.tensor(2.0).to(c64).dtype is c64
    assert repr(t) == "tensor([[1.0000+0.j, 2.5000+0.j],\n        [0.0000+1.j, 0.0000+0.j]])"
    assert calque.from_numpy(np.array([1j])).dtype is c128 and (t == t).all() and not (t != t).any()
    with pytest.raises(ArgumentError, match="imaginary part"):
        float(t[1, 0])
    with pytest.raises(ArgumentError, match="without overflow"):
        calque.tensor([1j], dtype=calque.float32)
    with pytest.raises(DTypeError, match="can't be cast"):
        calque.zeros(2).add_(1j)


def test_copies_and_pickles() -> None:
    z = calque.tensor([1 + 2j, 3j], requires_grad=True)
    for twin in (copy.deepcopy(z), pickle.loads(pickle.dumps(z))):
        assert twin.dtype is c64 and twin.requires_grad and twin.tolist() == z.tolist()


def test_default_dtype_decides_on_complex_numbers() -> None:
    calque.set_default_dtype(calque.float64)
    try:
        assert calque.tensor([1j]).dtype is c128 and (calque.ones(2, dtype=calque.int64) * 1j).dtype is c128
    finally:
        calque.set_default_dtype(calque.float32)


# ------------------------------------------------------------------------------------------------- what is made of the parts


def test_random_numbers_have_random_parts() -> None:
    calque.manual_seed(0)
    for z, mean, deviation in (
        (calque.randn(20_000, dtype=c64), 0.0, 0.5**0.5),
        (calque.zeros(20_000, dtype=c128).normal_(1, 2), 1.0, 2**0.5),
        (calque.rand(20_000, dtype=c64), 0.5, 12**-0.5),
        (calque.zeros(20_000, dtype=c64).uniform_(-2, 3), 0.5, 5 * 12**-0.5),
        (calque.randn_like(calque.zeros(20_000, dtype=c64)), 0.0, 0.5**0.5),
        (calque.normal(calque.full((20_000,), 1 + 1j), 2.0), 1.0, 2**0.5),
    ):
        for part in (z.real, z.imag):
            assert part.mean().item() == pytest.approx(mean, abs=0.05) and part.std().item() == pytest.approx(deviation, rel=0.05)
        assert abs(np.corrcoef(z.real.numpy(), z.imag.numpy())[0, 1]) < 0.05
    for call in (calque.zeros(2, dtype=c64).bernoulli_, calque.zeros(2, dtype=c64).random_, calque.zeros(2, dtype=c64).exponential_):
        with pytest.raises(DTypeError):
            call()


OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop", "LBFGS")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_update_the_parts(name: str, rng: np.random.Generator) -> None:
    """A complex parameter moves as the real one that holds its parts, for as many steps as a replay needs, and from a saved state."""
    start, goal = numbers(rng, 4), numbers(rng, 4)
    z, x = calque.tensor(start, requires_grad=True), calque.view_as_real(calque.tensor(start)).requires_grad_()
    optimizers = [getattr(calque.optim, name)([p], lr=0.05) for p in (z, x)]
    for step in range(12):
        if step == 6:
            again = getattr(calque.optim, name)([z], lr=0.05)
            again.load_state_dict(optimizers[0].state_dict())
            optimizers[0] = again
        for p, optimizer in zip((z, x), optimizers, strict=True):

            def closure(p: Any = p, optimizer: Any = optimizer) -> Any:
                optimizer.zero_grad()
                apart = (p if p is z else calque.view_as_complex(p)) - calque.tensor(goal)
                loss = (apart.abs() ** 2 * calque.tensor([1.0, 2.0, 3.0, 4.0])).sum()
                loss.backward()
                return loss

            optimizer.step(closure)
        np.testing.assert_allclose(z.detach().numpy(), x.detach().numpy().view(np.complex128)[..., 0], rtol=1e-9)
    for value in optimizers[0].state_dict()["state"].get(0, {}).values():
        assert not isinstance(value, calque.Tensor) or not value.ndim or value.dtype is c128 or name == "LBFGS"


def test_optimizers_for_real_parameters_refuse_complex_ones() -> None:
    p = calque.tensor([[1j]], requires_grad=True)
    p.grad = calque.tensor([[1j]])
    with pytest.raises(ArgumentError, match="Adafactor does not support complex parameters"):
        calque.optim.Adafactor([p]).step()


def test_layers_of_complex_numbers(rng: np.random.Generator) -> None:
    layer = calque.nn.Linear(3, 2, dtype=c128)
    x = calque.tensor(numbers(rng, 5, 3))
    want = x.numpy() @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(x).detach().numpy(), want)
    assert calque.nn.Linear(3, 2).to(c64).weight.dtype is c64
    conv = calque.nn.Conv1d(2, 3, 2, dtype=c128)
    w, b, x = conv.weight.detach().numpy(), conv.bias.detach().numpy(), numbers(rng, 1, 2, 4)
    want = np.stack([(w * x[0, :, k : k + 2]).sum((1, 2)) for k in range(3)], -1)[None] + b[None, :, None]
    np.testing.assert_allclose(conv(calque.tensor(x)).detach().numpy(), want)
    weight, image = leaf(rng, 2, 1, 2, 2), leaf(rng, 1, 2, 3, 3)
    assert gradcheck(lambda x, w: calque.nn.functional.conv2d(x, w, padding=1, groups=2), (image, weight))
    assert gradcheck(lambda x: calque.nn.functional.rms_norm(x, (3,)), (leaf(rng, 2, 3),))
    assert gradcheck(calque.nn.functional.silu, (leaf(rng, 3),))


@pytest.mark.parametrize("dtype", [c64, c128])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_saved_and_loaded(dtype: Any, shape: Any, tmp_path: Any, rng: np.random.Generator) -> None:
    z = calque.tensor(numbers(rng, *shape), dtype=dtype, requires_grad=True)
    calque.save({"z": z, "view": z.detach().real}, tmp_path / "z.safetensors")
    found = calque.load(tmp_path / "z.safetensors")
    assert found["z"].dtype is dtype and found["z"].requires_grad and found["z"].shape == z.shape
    np.testing.assert_array_equal(found["z"].detach().numpy(), z.detach().numpy())
    np.testing.assert_array_equal(found["view"].numpy(), z.detach().real.numpy())


def test_replayed_calls_take_new_complex_numbers(rng: np.random.Generator) -> None:
    @calque.compile
    def scaled(x: Any, c: Any) -> Any:
        return (x * c).abs().sum() + x.real.sum()

    x = calque.tensor(numbers(rng, 3))
    for c in (1j, 2 + 1j, 3j, 1j, 0.5, -1 - 1j):
        assert scaled(x, c).item() == pytest.approx(abs(x.numpy() * c).sum() + x.numpy().real.sum())


def test_backward_starts_from_real_numbers() -> None:
    z = calque.tensor(1j, requires_grad=True)
    with pytest.raises(RuntimeError, match="only for real scalar outputs"):
        (z * 2).backward()
    (z * 2).backward(calque.tensor(1 + 1j))
    assert z.grad.item() == 2 + 2j
    with pytest.raises(RuntimeError, match="required to have the same dtype"):
        calque.autograd.grad(z * 2, z, calque.tensor(1.0))


def test_imaginary_numbers_do_not_fit_into_real_tensors() -> None:
    x = calque.zeros(2)
    for call in (lambda: x.fill_(1j), lambda: x.__setitem__(0, 1j), lambda: x.masked_fill_(x == 0, 1j)):
        with pytest.raises((ArgumentError, DTypeError)):
            call()
    assert x.tolist() == [0, 0] and calque.zeros(2, dtype=c64).fill_(1j).tolist() == [1j, 1j]


F = calque.nn.functional
REFUSED: dict[str, Any] = {
    "max": lambda z: z.max(), "argmax": lambda z: z.argmax(), "sort": lambda z: z.sort(), "topk": lambda z: z.topk(1),
    "median": lambda z: z.median(), "clamp": lambda z: z.clamp(0), "round": lambda z: z.round(), "floor_divide": lambda z: z // 1,
    "remainder": lambda z: z % 1, "div floor": lambda z: calque.div(z, 2, rounding_mode="floor"), "sign": lambda z: calque.sign(z),
    "relu": lambda z: z.relu(), "lt": lambda z: z < 1, "bitwise_not": lambda z: ~z, "atan2": lambda z: calque.atan2(z, z), "erf": lambda z: z.erf(),
    "i0": lambda z: calque.i0(z), "logit": lambda z: z.logit(), "deg2rad": lambda z: z.deg2rad(), "hypot": lambda z: calque.hypot(z, z),
    "copysign": lambda z: calque.copysign(z, z), "heaviside": lambda z: calque.heaviside(z, z), "nansum": lambda z: z.nansum(),
    "isposinf": lambda z: z.isposinf(), "cummax": lambda z: z.cummax(0), "unique": lambda z: z.unique(), "mode": lambda z: z.mode(),
    "isin": lambda z: calque.isin(z, z), "bucketize": lambda z: calque.bucketize(z, z.real), "histc": lambda z: z.histc(),
    "cdist": lambda z: calque.cdist(z, z), "softmax": lambda z: z.softmax(0), "log_softmax": lambda z: z.log_softmax(0),
    "gelu": lambda z: F.gelu(z), "elu": lambda z: F.elu(z), "glu": lambda z: F.glu(z), "hardshrink": lambda z: F.hardshrink(z),
    "layer_norm": lambda z: F.layer_norm(z, (4,)), "batch_norm": lambda z: F.batch_norm(z, None, None, training=True),
    "dropout": lambda z: F.dropout(z), "mse_loss": lambda z: F.mse_loss(z, z), "cosine_similarity": lambda z: F.cosine_similarity(z, z),
    "kl_div": lambda z: F.kl_div(z, z), "avg_pool1d": lambda z: F.avg_pool1d(z, 2), "max_pool1d": lambda z: F.max_pool1d(z, 2),
    "interpolate": lambda z: F.interpolate(z[None], 8), "cross_entropy": lambda z: F.cross_entropy(z, calque.tensor([0, 1])),
    "embedding": lambda z: F.embedding(z, calque.ones(3, 3)), "randint_like": lambda z: calque.randint_like(z, 3),
    "arange": lambda z: calque.arange(3, dtype=c64), "multinomial": lambda z: calque.multinomial(z, 1), "abs_": lambda z: z.abs_(),
    "grid_sample": lambda z: F.grid_sample(z[None, None], calque.zeros(1, 2, 2, 2)),
    "scatter_reduce": lambda z: z.scatter_reduce(0, calque.zeros(2, 4, dtype=calque.int64), z, "amax"), "index": lambda z: calque.ones(3)[z],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_functions_for_real_numbers_refuse_complex_ones(name: str) -> None:
    """With and without gradients: a formula for real numbers never runs on complex ones."""
    for needed in (False, True):
        z = calque.tensor([[1j, 2, 3, 4], [0, 1, 2j, 1]], requires_grad=needed)
        with pytest.raises((TypeError, IndexError, RuntimeError)) as caught:
            REFUSED[name](z)
        assert "complex" in str(caught.value) or (name == "abs_" and needed)  # which a leaf refuses before


@pytest.mark.parametrize("write", [operator.floordiv, operator.mod, operator.ifloordiv, operator.imod])
def test_quotients_and_remainders_by_a_complex_number_are_refused_by_name(write: Any) -> None:
    for t in (calque.tensor([3, 1]), calque.tensor([3.0, 1.0]), calque.tensor([True])):
        with pytest.raises(UnsupportedTypeError, match=r"\[(floor_divide|remainder)\] expected a real dtype"):
            write(t, 1j)
