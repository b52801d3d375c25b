"""Functions that a program puts in the place of PyTorch's are what layers call: as written, replayed and hybridized."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

import calque
from calque.compat.face import face

torch: Any = face("torch")
F: Any = face("torch.nn.functional")
nn = calque.nn
OWN = {name: getattr(calque.nn.functional, name) for name in ("relu", "linear", "softmax", "dropout")}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    for name, own in OWN.items():
        setattr(F, name, own)


def counter(name: str, counts: list[str]) -> Callable[..., Any]:
    own = OWN[name]

    def call(*args: Any, **keywords: Any) -> Any:
        counts.append(name)
        return own(*args, **keywords)

    return call


def a_user_function(model: Any) -> Callable[[Any], Any]:
    return calque.compile(lambda x: model(x))  # type: ignore[no-any-return]


def hybridized(model: Any) -> Callable[[Any], Any]:
    model.hybridize()
    return model  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {"as written": lambda model: model, "hybridized": hybridized, "compiled": a_user_function}


@pytest.mark.parametrize("way", WAYS)
def test_every_call_is_seen_and_no_recording_made_before_is_replayed(way: str) -> None:
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    call, x, counts = WAYS[way](model), calque.ones(64, 64), []
    before = [call(x).sum().item() for _ in range(6)]
    F.relu = counter("relu", counts)
    for k in range(1, 5):
        assert call(x).sum().item() == before[0] and counts == ["relu"] * 2 * k
    F.linear = counter("linear", counts)
    call(x).sum().item()
    assert counts.count("linear") == 3 and counts.count("relu") == 10
    F.relu, F.linear = OWN["relu"], OWN["linear"]
    counts.clear()
    assert [call(x).sum().item() for _ in range(6)] == before and not counts
    F.relu = lambda x, inplace=False: x * 0.0
    assert abs(call(calque.ones(64, 64)).sum().item() - 64 * model[4].bias.sum().item()) < 1e-3


@pytest.mark.parametrize("way", WAYS)
def test_functions_that_layers_call_through_others_are_seen(way: str) -> None:
    model = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    call, x, counts = WAYS[way](model), calque.ones(4, 64, 64), []
    before = [call(x).sum().item() for _ in range(6)]
    F.linear = counter("linear", counts)
    for k in range(1, 4):
        call(x).sum().item()
        assert counts == ["linear"] * 4 * k  # two of them inside multi_head_attention_forward
    F.linear = OWN["linear"]
    assert [call(x).sum().item() for _ in range(6)] == before and len(counts) == 12


def test_a_patch_ends_where_it_says() -> None:
    counts: list[str] = []
    with mock.patch("calque.nn.functional.relu", counter("relu", counts)):
        nn.ReLU()(calque.ones(2))
    with mock.patch.object(F, "relu", counter("relu", counts)):
        nn.ReLU()(calque.ones(2))
        assert calque.nn.functional.relu is F.relu is not OWN["relu"]
    nn.ReLU()(calque.ones(2))
    assert counts == ["relu"] * 2 and calque.nn.functional.relu is F.relu is OWN["relu"]
    F.relu = counter("relu", counts)
    del F.relu
    nn.ReLU()(calque.ones(2))
    assert counts == ["relu"] * 2 and calque.nn.functional.relu is F.relu is OWN["relu"]


def test_products_of_attention_that_gives_its_weights() -> None:
    counts: list[str] = []
    layer, x = nn.MultiheadAttention(4, 2, batch_first=True), calque.ones(2, 3, 4)
    wanted = layer(x, x, x)
    own = torch.bmm
    with mock.patch.object(torch, "bmm", lambda *args: counts.append("bmm") or own(*args)):
        found = layer(x, x, x)
    layer(x, x, x)
    assert counts == ["bmm"] * 2 and all(calque.allclose(a, b) for a, b in zip(found, wanted, strict=True))


def test_the_library_itself_calls_its_own() -> None:
    """`torch.softmax` is no call of `nn.functional.softmax`, which a program may write with it."""
    F.softmax = lambda x, dim, **_: torch.softmax(x, dim)
    assert nn.Softmax(0)(calque.zeros(4)).tolist() == [0.25] * 4
    F.dropout = lambda x, p=0.5, training=True, inplace=False: torch.dropout(x, p, training)
    assert nn.Dropout(0.0)(calque.ones(2)).tolist() == [1.0, 1.0]
    F.linear = F.relu = None
    lstm = nn.LSTM(3, 2, num_layers=2, dropout=0.1)
    assert tuple(lstm(calque.ones(4, 1, 3))[0].shape) == (4, 1, 2)
