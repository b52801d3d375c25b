"""Every public function with something else in the place of each Tensor: an error of ours that names the kind, or PyTorch takes it, too."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque import functional, linalg, nn
from calque.base.errors import CalqueError
from tests.bad_input.calls import BOTH, FUNCTIONS, LINALG, METHODS, NN, Sample, samples
from tests.bad_input.refusals import works

torch = pytest.importorskip("torch")

WRONG: dict[str, Callable[[], Any]] = {
    "list": lambda: [1.0, 2.0], "tuple": lambda: (1.0, 2.0), "array": lambda: np.ones((2, 3), np.float32), "number": lambda: 1.5, "int": lambda: 3,
    "None": lambda: None, "str": lambda: "text", "dict": dict, "object": object,
}  # fmt: skip

# What is taken although PyTorch refuses it: names of functions, kinds, the reason.
TAKEN = [
    ("atan2 arctan2 copysign eq ne lt le gt ge less less_equal greater greater_equal not_equal maximum minimum fmax fmin fmod gcd lcm hypot ldexp "
     "logaddexp logaddexp2 logical_and logical_or logical_xor rsub atan2_ arctan2_ gcd_ hypot_ lcm_ logical_and_ logical_or_ logical_xor_",
     "number int", "a number is an operand of elementwise functions of two operands, as with operators (decision 0014)"),
    ("float_power_", "number int", "the number is right; PyTorch refuses to store float64 in float32, Calque converts as with other results"),
    ("gaussian_nll_loss", "int", "the variance may be a number: PyTorch wants it to be a float"),
    ("trapezoid trapz", "None", "no sample points is what leaving them out means"),
]  # fmt: skip

# Public functions that take no Tensor, or anything: what they do with it is their own subject.
ANYTHING = {
    "": "is_tensor explain compile save load call_when_ready tensor as_tensor asarray set_rng_state sum_to_shape from_dlpack copysign_ "
    "scalar_tensor default_generator",
    "nn.functional": "",
    "linalg": "solve_triangular",  # its third argument has to be named, so have the arguments of some below
    "Tensor": "_indices _nnz _values ccol_indices coalesce col_indices crow_indices dense_dim indices is_coalesced row_indices smm sparse_dim "
        "as_subclass new sparse_mask sspaddmm to_dense to_sparse to_sparse_coo to_sparse_csc to_sparse_csr values nonzero_static map2_ "
    "backward register_hook register_post_accumulate_grad_hook retain_grad map_ apply_ cuda pin_memory copyto copyfrom numpy __array__ "
    "__dlpack__ __dlpack_device__ __copy__ __deepcopy__ __reduce_ex__ __complex__ __index__ __repr__ __format__ __str__ __init__ __new__",
}


def with_methods(found: list[Sample]) -> list[Sample]:
    """Also as methods, and in place, where there are such."""
    more = [
        Sample("Tensor", name, s.text)
        for s in found
        if s.place != "Tensor" and s.name != "where" and not s.text.startswith(("[", '"'))
        for name in (s.name, f"{s.name}_")
        if callable(getattr(calque.Tensor, name, None))
    ]
    more += [Sample(s.place, f"{s.name}_", s.text) for s in found if s.place != "Tensor" and s.name != "where"]
    return [s for s in dict.fromkeys([*found, *more]) if s.exists(calque)]


TABLES = {"": FUNCTIONS + BOTH, "nn.functional": NN + BOTH, "linalg": LINALG, "Tensor": METHODS}
SAMPLES = with_methods([sample for place, table in TABLES.items() for sample in samples(place, table)])
PLACES = ("", "nn.functional", "linalg", "Tensor")


def spots(arguments: tuple[Any, ...], library: Any) -> Iterator[tuple[int, ...]]:
    """Where Tensors are among the arguments: (argument,) or (argument, element)."""
    for k, argument in enumerate(arguments):
        if isinstance(argument, library.Tensor):
            yield (k,)
        elif isinstance(argument, (tuple, list)):
            yield from ((k, j) for j, x in enumerate(argument) if isinstance(x, library.Tensor))


def spoilt(sample: Sample, library: Any, spot: tuple[int, ...], value: Any) -> list[Any]:
    """The arguments with `value` at a spot."""
    arguments = list(sample.arguments(library))
    if len(spot) == 1:
        arguments[spot[0]] = value
    else:
        inner = list(arguments[spot[0]])
        inner[spot[1]] = value
        arguments[spot[0]] = type(arguments[spot[0]])(inner)
    return arguments


def error_of(sample: Sample, library: Any, arguments: list[Any]) -> Exception | None:
    try:
        sample.function(library)(*arguments)
    except Exception as error:
        return error
    return None


def of_ours(error: Exception) -> bool:
    """Whether it is an error about arguments, in our words, raised where the function was called."""
    kind = isinstance(error, (CalqueError, TypeError, ValueError))
    return kind and str(error).startswith("[") and traceback.extract_tb(error.__traceback__)[0].filename == __file__


def known(sample: Sample, kind: str) -> bool:
    return any(sample.name in names.split() and kind in kinds.split() for names, kinds, _ in TAKEN)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_tensor_is_named(place: str) -> None:
    failures = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in [s for s in SAMPLES if s.place == place]:
            for spot in spots(sample.arguments(calque), calque):
                if place == "Tensor" and spot == (0,):
                    continue  # Python finds no method then
                for kind, make in WRONG.items():
                    error = error_of(sample, calque, spoilt(sample, calque, spot, make()))
                    if error is not None and not of_ours(error):
                        failures.append(f"{sample} with {kind} at {spot}: {error!r}")
                    if error is None and not known(sample, kind):
                        theirs = error_of(sample, torch, spoilt(sample, torch, spot, make()))
                        if theirs is not None and not isinstance(theirs, AttributeError):
                            failures.append(f"{sample} takes {kind} at {spot}, PyTorch says {theirs!r}")
    assert not failures, "\n".join(failures)
    works()


def later(owner: Any) -> tuple[str, ...]:
    """Names that are loaded when they are first asked for: which of them are there depends on what ran before."""
    return tuple(getattr(getattr(owner, "__getattr__", None), "names", ()))


def public_functions(place: str) -> set[str]:
    """Functions of a place that have an argument to take a Tensor."""
    owner: Any = {"": functional, "nn.functional": nn.functional, "linalg": linalg, "Tensor": calque.Tensor}[place]
    names = set(functional.__all__) if not place else {n for n in vars(owner) if not n.startswith("_")} - set(later(owner))
    names = set(linalg.__all__) if place == "linalg" else names
    takes = {"Tensor", "Operand", "Tensors", "Sequence[Tensor]"}
    return {
        name
        for name in names
        if inspect.isfunction(f := getattr(owner, name))
        and (place == "Tensor" or any(str(getattr(a, "__name__", a)) in takes for key, a in f.__annotations__.items() if key != "return"))
    }


@pytest.mark.parametrize("place", PLACES)
def test_every_public_function_is_called(place: str) -> None:
    called = {s.name for s in SAMPLES if s.place == place}
    assert not sorted(public_functions(place) - called - set(ANYTHING[place].split()))


@pytest.mark.parametrize("sample", [s for s in SAMPLES if not s.place], ids=str)
def test_right_calls_are_right(sample: Sample) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample.function(calque)(*sample.arguments(calque))


def test_arguments_are_named() -> None:
    x = calque.ones(2, 3)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: calque.gather(x, 0, [1]), "[gather] expected a Tensor, got list as 'index'; convert it with calque.as_tensor(...)"),
        (lambda: calque.swapaxes(np.ones(3), 0, 1), "[transpose] expected a Tensor, got numpy.ndarray"),
        (lambda: x.masked_fill("mask", 1.0), "[masked_fill] expected a Tensor as mask, got str"),
        (lambda: calque.lerp(x, None, 0.5), "[lerp] expected a Tensor, got NoneType as 'end'; pass a Tensor"),
        (lambda: calque.cat([x, 1.5]), "[cat] expected Tensor as element 1, got float"),
        (lambda: calque.add(x, np.ones(3)), "[add] expected Tensors or numbers, got Tensor and numpy.ndarray; convert it with calque.as_tensor(...)"),
        (lambda: calque.cumsum(x, "rows"), "[cumsum] expected dim as an int, got str 'rows'"),
        (lambda: x.add_([1.0]), "[add] expected Tensors or numbers, got Tensor and list"),
    ]
    for call, text in cases:
        with pytest.raises(TypeError) as caught:
            call()
        assert text in str(caught.value)


def test_operators_take_arrays_as_functions_do_not() -> None:
    x, array = calque.ones(2), np.array([1.0, 2.0], np.float32)
    assert (x + array).tolist() == [2.0, 3.0] and (x**array).tolist() == [1.0, 1.0] and (x < array).tolist() == [False, True]


def test_keywords_defaults_and_names_are_those_of_the_function() -> None:
    x = calque.arange(6.0).reshape(2, 3)
    assert calque.movedim(input=x, source=0, destination=1).shape == (3, 2) and calque.flatten(x, start_dim=-1).shape == (2, 3)
    assert str(inspect.signature(calque.flatten)).startswith("(input: 'Tensor', start_dim: 'int' = 0")
    assert (calque.flatten.__name__, calque.flatten.__module__) == ("flatten", "calque") and calque.flatten.__doc__
    with pytest.raises(TypeError, match=r"^movedim\(\) missing 1 required positional argument: 'destination'$"):
        calque.movedim(x, 0)


def test_errors_of_functions_of_the_user_pass() -> None:
    def broken(a: Any, b: Any) -> Any:
        raise TypeError("mine")

    x = calque.ones(2, 3)
    with pytest.raises(TypeError, match="^mine$"):
        nn.functional.triplet_margin_with_distance_loss(x, x, x, distance_function=broken)
