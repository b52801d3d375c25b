"""flatten and unflatten: every accepted value comes back equal in type and bits; everything else is refused by path."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calque.base.device import Device
from calque.base.dtypes import dtype_by_name, float32
from calque.base.shapes import Size
from calque.io.codes import DTYPES
from calque.io.structure import MAX_DEPTH, flatten, parse_json, unflatten


def same(a: object, b: object) -> bool:
    """Equality of type, structure and bits (NaN equals NaN, 0.0 differs from -0.0)."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, float):
        return math.isnan(a) and math.isnan(b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


def there_and_back(value: object) -> object:
    flat = flatten(value)
    return unflatten(flat.structure, flat.arrays)


numbers = st.integers() | st.integers(min_value=-(2**80), max_value=2**80) | st.floats()
keys = st.text() | numbers.filter(lambda n: n == n) | st.booleans() | st.none() | st.tuples(st.text(), st.integers())
arrays = hnp.arrays(
    st.sampled_from([d for d in DTYPES.values() if d.kind in "biuf" and d.isbuiltin == 1]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
leaves = st.none() | st.booleans() | numbers | st.text() | st.binary() | arrays
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


@given(values)
def test_every_accepted_value_comes_back(value: object) -> None:
    assert same(there_and_back(value), value)


def test_checkpoint_of_the_usual_form() -> None:
    checkpoint = {
        "epoch": 12,
        "model_state_dict": OrderedDict([("fc.weight", np.arange(6, dtype=np.float32).reshape(2, 3)), ("fc.bias", np.zeros(2))]),
        "optimizer_state_dict": {
            "state": {0: {"step": 5, "exp_avg": np.ones(3, ml_dtypes.bfloat16)}},
            "param_groups": [{"betas": (0.9, 0.999), "params": [0]}],
        },
        "loss": float("nan"),
        "best": (float("inf"), -float("inf"), None, True),
    }
    flat = flatten(checkpoint)
    assert same(unflatten(flat.structure, flat.arrays), checkpoint)
    assert list(flat.arrays) == ["model_state_dict.fc.weight", "model_state_dict.fc.bias", "optimizer_state_dict.state.0.exp_avg"]
    assert '"epoch":12' in flat.structure  # readable by anybody


def test_one_memory_is_stored_once_and_stays_one() -> None:
    weight = np.arange(4.0)
    flat = flatten({"embed": weight, "head": weight, "view": weight[:2], "equal": weight.copy()})
    assert list(flat.arrays) == ["embed", "view", "equal"]
    result = unflatten(flat.structure, flat.arrays)
    assert result["embed"] is result["head"] and result["embed"] is not result["equal"]


def test_names_that_collide_are_kept_apart() -> None:
    value = {"a.b": np.zeros(1), "a": {"b": np.ones(1)}, "__metadata__": np.full(1, 2.0), "\ud800": np.full(1, 3.0)}
    assert sorted(flatten(value).arrays) == ["?", "__metadata__#2", "a.b", "a.b#2"]
    assert same(there_and_back(value), value)
    assert list(flatten(np.zeros(1)).arrays) == ["value"]


class Model:
    def state_dict(self) -> dict:
        return {}


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, {2: bytearray(b"x")}]}, ["bytearray", "obj['a'][1][2]"]),
        ({"a": {frozenset([1])}}, ["members of sets"]),
        ([object()], ["object", "obj[0]", "leave it out"]),
        (Model(), ["Model", "at obj;", "save its state_dict() instead", "load_state_dict"]),
        ({"f": print}, ["builtin_function_or_method", "obj['f']"]),
        (range(3), ["range", "at obj"]),
        ((Point(1, 2),), ["Point", "obj[0]", "tuple(...)"]),
        (defaultdict(object), ["a defaultdict of list", "dict(...)"]),
        ({(1, (2, object())): 1}, ["key", "object", "in obj"]),
        ({b"k": 1}, ["key b'k'", "bytes"]),
        ({"x": np.array([object()])}, ["object at obj['x']"]),
        ({"x": np.array(["text"])}, ["<U4 at obj['x']"]),
        ({"x": np.zeros(2, "c16")}, ["complex128 at obj['x']"]),
        ({"x": np.zeros(2, "M8[s]")}, ["datetime64[s] at obj['x']"]),
        ({"x": np.zeros(2, [("a", "f4")])}, ["at obj['x']"]),
        ({"x": np.ma.masked_array([1.0])}, ["MaskedArray", "obj['x']", "numpy.array(...)"]),
    ],
)
def test_what_cannot_be_stored_is_named(value: object, words: list[str]) -> None:
    with pytest.raises(TypeError) as caught:
        flatten(value)
    assert str(caught.value).startswith("[save] expected")
    for word in words:
        assert word in str(caught.value)


def test_a_value_that_contains_itself() -> None:
    loop: list = [1]
    loop.append({"again": loop})
    with pytest.raises(ValueError, match=r"expected a tree of values; obj\[1\]\['again'\] contains itself"):
        flatten(loop)
    twice = [1]
    assert there_and_back([twice, twice]) == [[1], [1]]


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {0: value}
    return value


def test_depth_is_bounded_and_what_is_saved_can_be_loaded() -> None:
    assert same(there_and_back(nested(MAX_DEPTH)), nested(MAX_DEPTH))
    with pytest.raises(ValueError, match="at most 100 levels of nesting"):
        flatten(nested(MAX_DEPTH + 1))
    with pytest.raises(ValueError, match="nested too deeply"):
        unflatten("[" * 300 + "]" * 300, {})
    with pytest.raises(ValueError, match="nested too deeply"):
        unflatten("[" * 10**6 + "]" * 10**6, {})


@pytest.mark.parametrize(
    ("structure", "word"),
    [
        ("", "Expecting value"),
        ("{}", "expected one tag"),
        ('{"a":1,"b":2}', "expected one tag"),
        ('{"class":"os.system"}', "unknown tag"),
        ('{"tuple":3}', "unknown tag"),
        ('{"dict":[1]}', "items of a dict"),
        ('{"dict":[[[1],2]]}', "cannot be hashed"),
        ('{"dict":[[{"bytes":"AA=="},2]]}', "cannot be hashed"),
        ('{"int":"10**9"}', "invalid literal"),
        ('{"float":"1"}', "unknown tag"),
        ('{"bytes":"?"}', "Only base64"),
        ('{"tensor":"absent"}', "does not hold"),
        ('{"tensor":["w"]}', "does not hold"),
        ('{"tensor":"w","grad":2}', "contradicts"),
        ('{"array":"w","grad":true}', "contradicts"),
        ('{"scalar":"w"}', "contradicts"),
        ("[]", "does not mention the tensor 'w'"),
        ("NaN", "NaN is not a number here"),
        ('{"dict":{"a":1,"a":2}}', "stands twice"),
        ("9" * 5000, "digits"),
    ],
)
def test_a_wrong_structure_is_a_value_error(structure: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        unflatten(structure, {"w": np.zeros(2)})


json_leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
json_keys = st.sampled_from(["dict", "tuple", "tensor", "grad", "int", "odict", "bytes"])


@given(st.recursive(json_leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_keys, inner)))
def test_any_json_is_refused_cleanly_or_understood(tree: object) -> None:
    try:
        unflatten(json.dumps(tree), {})
    except ValueError:
        pass


def test_parse_json_keeps_numbers_exact() -> None:
    assert parse_json("[1, 1.0, -0.0, 1e400]")[:2] == [1, 1.0]


RICH: list[object] = [
    Namespace(lr=0.1, layers=[1, 2], inner=Namespace(), none=None), {1, "a", (2, None)}, frozenset([1.5]), set(), 1 + 2j, complex("nan+infj"),
    Size((2, 3)), Size(()), float32, dtype_by_name("bfloat16"), Device("cpu"), Path("a/b.txt"), Counter("aab"), defaultdict(list, {"x": [1]}),
    defaultdict(None, {1: 2}), {"args": Namespace(device=Device("cpu"), out=Path("."), sizes={3})},
]  # fmt: skip


@pytest.mark.parametrize("value", RICH, ids=lambda value: type(value).__name__)  # the order in which a set prints differs from process to process
def test_values_beyond_json_come_back(value: object) -> None:
    found = there_and_back({"v": value, "l": [value, value]})
    for back in (found["v"], *found["l"]):  # type: ignore[index]
        same_text = sorted(map(repr, back)) == sorted(map(repr, value)) if isinstance(value, set) else repr(back) == repr(value)
        assert type(back) is type(value) and same_text
    if isinstance(value, defaultdict):
        assert found["v"].default_factory is value.default_factory  # type: ignore[index]


WRONG = [
    {"namespace": []}, {"namespace": {"dict": [[1, 2]]}}, {"set": [1]}, {"set": {"dict": {}}}, {"set": [{"tuple": [[1]]}]}, {"complex": "1+"},
    {"complex": 3}, {"size": ["x"]}, {"size": 2}, {"dtype": "float31"}, {"dtype": 3}, {"device": "abacus"}, {"path": 3}, {"counter": 1},
    {"defaultdict": ["eval", {"dict": {}}]}, {"defaultdict": [[1], {"dict": {}}]}, {"defaultdict": ["list"]}, {"path": "a\0b", "grad": 1, "x": 2},
]  # fmt: skip


@pytest.mark.parametrize("node", WRONG, ids=repr)
def test_parts_that_no_value_has_are_refused(node: object) -> None:
    with pytest.raises(ValueError):
        unflatten(json.dumps(node), {})


def test_namespaces_that_contain_themselves() -> None:
    loop = Namespace()
    loop.own = [loop]
    with pytest.raises(ValueError, match="contains itself"):
        flatten(loop)
    deep: object = 1
    for _ in range(30):
        deep = Namespace(x=[deep])
    assert repr(there_and_back(deep)) == repr(deep)
