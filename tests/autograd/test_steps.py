"""Every public function that is declared as `steps`: the values of later calls, by one superinstruction, are those of the function itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import calque
from calque.autograd import superinstruction
from calque.autograd.watched import Watched
from calque.base.native import hot
from calque.functional.declared import SPACES
from calque.nn import functional as F
from calque.record.recorder import add_check, local
from calque.tensor import slot_of
from tests.bad_input.calls import BOTH, FUNCTIONS, LINALG, NN, Sample, samples

pytestmark = [
    pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler"),
    pytest.mark.usefixtures("as_users"), pytest.mark.filterwarnings("ignore:reduction"),
]  # fmt: skip

for _place in (calque, calque.special, calque.linalg, F):
    for _name in dir(_place):
        getattr(_place, _name)  # functions are declared when the first of their file is asked for

STEPS: dict[Any, str] = {
    f: ".".join(filter(None, (place.removeprefix("calque"), name)))
    for place, names in SPACES.items()
    for name, f in names.items()
    if superinstruction.is_superinstruction(f)
}


def inner(function: Any) -> Any:
    """The function of `STEPS` that a public name leads to, if it does."""
    while function is not None and not superinstruction.is_superinstruction(function):
        function = getattr(function, "__wrapped__", None)
    return function


TABLES = {"": FUNCTIONS + BOTH, "nn.functional": NN + BOTH, "linalg": LINALG}
SAMPLES = [s for place, table in TABLES.items() for s in samples(place, table) if s.exists(calque) and inner(s.function(calque))]
TRANSFORMS = ("fft", "ifft", "fft2", "ifft2", "fftn", "ifftn", "irfft", "irfft2", "irfftn", "hfft", "hfft2", "hfftn")
MORE: dict[str, Callable[[Any], tuple[Any, ...]]] = {  # what the tables have no sample for
    **{f"fft.{name}": lambda t: (t(4, 3),) for name in ("fftshift", "ifftshift", "rfft", "rfft2", "rfftn", "ihfft", "ihfft2", "ihfftn")},
    **{f"fft.{name}": lambda t: (calque.complex(t(4, 3), t(4, 3)),) for name in TRANSFORMS}, "special.spherical_bessel_j0": lambda t: (t(5),),
    "special.entr": lambda t: (t(5),), "special.xlog1py": lambda t: (t(5), t(5)),
    "special.multigammaln": lambda t: (t(5) + 3.0, 2), "nn.functional.avg_pool3d": lambda t: (t(2, 3, 4, 4, 4), 2),
}  # fmt: skip


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    superinstruction._known.clear()
    calque.synchronize()
    yield
    superinstruction._known.clear()


def tensors(x: Any) -> list[Any]:
    """All tensors of a result."""
    return [x] if isinstance(x, calque.Tensor) else [t for y in x for t in tensors(y)] if isinstance(x, (tuple, list)) else []


def facts(x: Any) -> list[Any]:
    return [(tuple(t.shape), t.stride(), t.dtype, t.storage_offset(), t.requires_grad) for t in tensors(x)]


def agree(function: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]]) -> None:
    """Six calls with other values; what the function itself gives for them is computed behind all."""
    given = [arguments(seed) for seed in range(6)]
    for t in tensors(given):
        t.resolve_conj().numpy()  # nothing is pending: what follows is computed where it is written
    found = [function(*each) for each in given]
    wanted = [inner(function).__wrapped__(*each) for each in given]
    for got, expected in zip(found, wanted, strict=True):
        assert type(got) is type(expected)
        assert facts(got) == facts(expected)
        for a, b in zip(tensors(got), tensors(expected), strict=True):
            np.testing.assert_array_equal(a.resolve_conj().numpy(), b.resolve_conj().numpy())
    first = tensors(found[-1])
    if first and first[0].numel() and not calque.is_complex(first[0]):  # what is written to one result is not seen in another, or in the next
        before = [t.clone() for t in tensors(found[-2])]
        for t in first:
            t.zero_()
        for a, b in zip((*tensors(found[-2]), *tensors(function(*given[-1]))), (*before, *tensors(wanted[-1])), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-5, 1e-6)  # a program may have computed it


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_later_calls_give_what_the_function_gives(sample: Sample) -> None:
    with calque.no_grad():
        agree(sample.function(calque), lambda seed: sample.arguments(calque, seed))


@pytest.mark.parametrize("name", MORE)
def test_of_other_namespaces(name: str) -> None:
    def fresh(*shape: int) -> Any:
        return calque.tensor(rng.random(shape).astype(np.float32))

    place, _, last = name.rpartition(".")
    found = SPACES[place][last]
    rng = np.random.default_rng(3)
    with calque.no_grad():
        agree(found, lambda seed: MORE[name](fresh))


def test_each_function_has_a_sample() -> None:
    sampled = {inner(s.function(calque)) for s in SAMPLES} | {f for f, name in STEPS.items() if name in MORE}
    assert len(STEPS) > 150
    assert all(f.__class__ is FunctionType for f in STEPS)
    assert not [name for f, name in STEPS.items() if f not in sampled]


def test_none_of_them_draws() -> None:
    """What is watched may be run again, and would draw other numbers than a program that is recorded."""
    for sample in SAMPLES:
        given = sample.arguments(calque, 0)
        before = calque.get_rng_state().tolist()
        sample.function(calque)(*given)
        assert calque.get_rng_state().tolist() == before, sample
    q = calque.rand(1, 2, 3, 4)
    calque.synchronize()
    calque.manual_seed(3)
    for _ in range(4):
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    calque.synchronize()
    after = calque.get_rng_state().tolist()
    calque.manual_seed(3)
    for _ in range(4):
        calque.rand(1, 2, 3, 3)
    assert after == calque.get_rng_state().tolist()


def test_most_are_computed_by_steps_from_the_third_call_on() -> None:
    left = []
    with calque.no_grad():
        for sample in SAMPLES:
            superinstruction._known.clear()
            calque.synchronize()
            for seed in range(3):
                sample.function(calque)(*sample.arguments(calque, seed))
            if hot.Superinstruction not in map(type, superinstruction._known.values()):
                left.append(str(sample))
    assert len(left) < 0.1 * len(SAMPLES), left


def test_a_bad_value_behind_good_ones_is_refused_at_the_users_line() -> None:
    x, good, bad = calque.rand(3, 4), calque.tensor([0, 2, 1]), calque.tensor([0, 4, 1])
    calque.synchronize()
    with calque.no_grad():
        for _ in range(4):
            F.nll_loss(x, good)
            x.index_select(1, good)
        with pytest.raises(IndexError, match="Target 4 is out of bounds|got 4"):
            F.nll_loss(x, bad)
        with pytest.raises(IndexError, match="4"):
            x.index_select(1, bad)
        for _ in range(4):
            F.binary_cross_entropy(x, x)
        with pytest.raises(RuntimeError, match="range"):
            F.binary_cross_entropy(x, x + 1.0)


def test_signs_and_kinds_of_numbers_are_told_apart() -> None:
    x = calque.tensor([1.0, -2.0])
    calque.synchronize()
    with calque.no_grad():
        for _ in range(4):
            for low, high in ((0, 1), (0.0, 1), (False, True), (-0.0, 0.0)):
                found = calque.clamp(x, low, high)
                wanted = inner(calque.clamp).__wrapped__(x, low, high)
                np.testing.assert_array_equal(np.signbit(found.numpy()), np.signbit(wanted.numpy()))
                assert found.dtype is wanted.dtype


def test_gradients_are_asked_for_as_ever() -> None:
    x = calque.rand(3, 4)
    calque.synchronize()
    with calque.no_grad():
        for _ in range(4):
            x.std()
    x.requires_grad_()
    x.std().backward()
    assert x.grad is not None
    with calque.autocast("cpu"):
        assert calque.matmul(x, x.t()).dtype is calque.bfloat16


def test_a_check_may_look_at_what_a_function_gave() -> None:
    """Computed as it is, watched, and by its steps."""
    least = superinstruction.superinstruction(lambda x: calque.amin(x))
    calque.synchronize()
    with calque.no_grad():
        for value in (-1, -1, 7, -1, 8, -1):
            code = least(calque.tensor([value, 9]))
            slot = slot_of(local.state.trace, code)
            if value == -1:
                add_check(slot, lambda found: AssertionError(found))
            else:
                with pytest.raises(ValueError, match=str(value)):
                    add_check(slot, lambda found: ValueError(found))


def test_numbers_that_are_others_each_time_are_not_watched() -> None:
    x = calque.tensor([-3.0, 0.5, 3.0])
    calque.synchronize()
    with calque.no_grad():
        for k in range(60):
            bound = 1.0 + k / 64
            np.testing.assert_array_equal(calque.clamp(x, -bound, bound).numpy(), [-bound, 0.5, bound])
        kept = [key for key in superinstruction._known if bound in key]
        assert not kept, "the last bounds are new ones like those before"
        assert len(superinstruction._known) < 60


def test_what_comes_again_behind_many_others_is_not_watched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A superinstruction that is in the older half of the table runs from there."""
    watched = []
    of_steps = Watched.superinstruction
    monkeypatch.setattr(Watched, "superinstruction", lambda self, *given, **named: watched.append(1) or of_steps(self, *given, **named))
    x = calque.rand(5)
    calque.synchronize()
    known = superinstruction._known
    with calque.no_grad():
        wanted = [x.std().item() for _ in range(3)][-1]
        assert watched == [1]
        known.older, known._older_more = dict(known), known._more
        known._more, known.extra = {}, 0
        dict.clear(known)
        assert x.std().item() == wanted
        assert x.std().item() == wanted
    assert watched == [1] and hot.Superinstruction in map(type, known.values())
