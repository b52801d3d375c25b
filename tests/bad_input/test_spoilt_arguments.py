"""Right calls with one argument spoilt: wrong kinds, dtypes, shapes, sizes, names, flags. Any error is ours, and the process lives."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import CalqueError
from tests.bad_input.calls import Sample
from tests.bad_input.refusals import works
from tests.bad_input.test_wrong_arguments import SAMPLES

HUGE = 1 << 50
INTS: list[Any] = [-1000, HUGE, 1 << 63, 1 << 70, 1.5, float("nan"), "x", None, [], (0, 0), True]
FLOATS: list[Any] = ["x", None, float("nan"), float("inf"), -1.0, [], (1.0,), 1 << 70]
NAMES: list[Any] = ["meen", "", None, 3, ["x"]]
FLAGS: list[Any] = ["x", None, [], 3]
SEQUENCES: list[Any] = ["x", None, 1.5, [], (), (-7,), (1.5,), ("x",), (None,), (HUGE,), (HUGE, HUGE), (1 << 70,), ((1,),), [0] * 6]
BY_ANNOTATION: dict[str, list[Any]] = {
    "int": INTS, "float": FLOATS, "str": NAMES, "bool": FLAGS, "Dims": INTS + SEQUENCES, "Sizes": INTS + SEQUENCES, "Sequence[int]": SEQUENCES,
    "Operand": FLOATS,
}  # fmt: skip
BY_NAME: dict[str, list[Any]] = {
    "dtype": ["floaty", 3, "float32", [], float], "device": ["tpu", "cpu:99", "cpu:-1", 7, -1, 1.5, []], "generator": ["x", 3], "dim": INTS,
    "kernel_size": INTS + SEQUENCES, "stride": INTS + SEQUENCES, "padding": [*INTS, *SEQUENCES, "same"], "output_size": INTS + SEQUENCES,
}  # fmt: skip
# A result as large as a value says: what fits into memory is computed, and takes its time.
LARGE = ("bincount", "repeat_interleave", "one_hot")
FUNCTIONS, CALLS = 200, 6


def spoilt_tensors(t: Any) -> list[Any]:
    """The tensor with another dtype, shape, device, and other values."""
    kinds = [t.to(d) for d in (calque.int64, calque.bool, calque.float64, calque.float16)]
    shapes = [calque.ones(s).to(t.dtype) for s in ((0,), (), (2, 3, 4, 5), (7,), (1, 1))]
    return [*kinds, *shapes, t * float("nan") if t.is_floating_point() else t.long() * 0 - 1000, t.to("cpu:1")]


def spoilings(value: Any, name: str, annotation: str) -> list[Any]:
    """What to put in the place of an argument."""
    if isinstance(value, calque.Tensor):
        return spoilt_tensors(value)
    for kind, wrong in ((bool, FLAGS), (int, INTS), (float, FLOATS), (str, NAMES)):
        if isinstance(value, kind):
            return wrong
    if isinstance(value, (tuple, list)):
        return SEQUENCES
    if name in BY_NAME:
        return BY_NAME[name]
    return [v for part in annotation.split("|") for v in BY_ANNOTATION.get(part.strip(), [])]


def spoilt_calls(sample: Sample) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Positional arguments and keywords, one of which is spoilt."""
    arguments = sample.arguments(calque)
    parameters = list(inspect.signature(sample.function(calque)).parameters.values())
    for k, value in enumerate(arguments):
        for wrong in spoilings(value, "", ""):
            yield [*arguments[:k], wrong, *arguments[k + 1 :]], {}
    for parameter in parameters[len(arguments) :]:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            for wrong in spoilings(None, parameter.name, str(parameter.annotation)):
                yield list(arguments), {parameter.name: wrong}
    yield list(arguments), {"colour": 1}
    yield [*arguments, *range(12)], {}


def look(result: Any) -> None:
    """Read what was computed."""
    if isinstance(result, calque.Tensor) and result.numel() < 1 << 20:
        result.tolist()
    elif isinstance(result, (tuple, list)):
        for part in result:
            look(part)


def said_by_python(error: Exception) -> bool:
    """Whether Python itself has refused the call (no such parameter, one too many), or a conversion to int in its own words."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    refused = isinstance(error, TypeError) and any(s in str(error) for s in ("unexpected keyword", "positional argument", "multiple values"))
    return refused and len(frames) <= 2 or str(error) == "cannot convert float NaN to integer"


def wrong_error(sample: Sample, arguments: list[Any], keywords: dict[str, Any]) -> list[Exception]:
    """The error of a call if it is not one of ours."""
    try:
        look(sample.function(calque)(*arguments, **keywords))
    except Exception as error:
        return [] if isinstance(error, CalqueError) or str(error).startswith("[") or said_by_python(error) else [error]
    return []


@pytest.mark.usefixtures("two_devices")
def test_spoilt_arguments(rng: np.random.Generator) -> None:
    failures: list[str] = []
    samples = [s for s in SAMPLES if s.name not in LARGE]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in rng.choice(len(samples), FUNCTIONS, replace=False):
            calls = list(spoilt_calls(samples[k]))
            for n in rng.choice(len(calls), min(CALLS, len(calls)), replace=False):
                failures += [f"{samples[k]} with {calls[n]!r:.300}: {error!r}" for error in wrong_error(samples[k], *calls[n])]
    assert not failures, "\n".join(failures)
    works()
