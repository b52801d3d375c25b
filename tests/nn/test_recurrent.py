"""Recurrent layers: packed batches beside each sequence alone, steps beside whole layers, derivatives of every kind, structures of new lengths."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque import nn

KINDS: list[Any] = [
    ("LSTM", {}), ("LSTM", {"proj_size": 2}), ("GRU", {}), ("GRU", {"bias": False}), ("RNN", {}), ("RNN", {"nonlinearity": "relu"}),
]  # fmt: skip


def layer_of(kind: str, options: dict[str, Any], **more: Any) -> Any:
    calque.manual_seed(0)
    return getattr(nn, kind)(3, 4, **options, **more).double()


def leaves(layer: Any, *xs: Any) -> list[Any]:
    return [*xs, *layer.parameters()]


def near(found: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    for a, b in zip(found, wanted, strict=True):
        calque.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_a_packed_batch_is_each_sequence_alone(kind: str, options: dict[str, Any], bidirectional: bool) -> None:
    """Outputs, last states and the gradients of all of them, with first states, in any order of lengths."""
    layer = layer_of(kind, options, num_layers=2, bidirectional=bidirectional)
    sizes, width = [3, 5, 1, 5], options.get("proj_size", 4)
    x = calque.randn(5, 4, 3, dtype=calque.float64, requires_grad=True)
    count = 4 if bidirectional else 2
    h = calque.randn(count, 4, width, dtype=calque.float64, requires_grad=True)
    states: Any = (h, calque.randn(count, 4, 4, dtype=calque.float64, requires_grad=True)) if kind == "LSTM" else h

    def last(found: Any) -> list[Any]:
        return list(found) if kind == "LSTM" else [found]

    def scores(outputs: Any, final: Any) -> Any:
        return sum((t * t).sum() for t in outputs) + sum((t**3).sum() for t in last(final))

    packed = nn.utils.rnn.pack_padded_sequence(x, sizes, enforce_sorted=False)
    out, final = layer(packed, states)
    padded, _ = nn.utils.rnn.pad_packed_sequence(out)
    alone = [layer(x[:n, k : k + 1], tuple(s[:, k : k + 1] for s in states) if kind == "LSTM" else h[:, k : k + 1]) for k, n in enumerate(sizes)]
    for k, (n, (one, end)) in enumerate(zip(sizes, alone, strict=True)):
        near([padded[:n, k], *[s[:, k] for s in last(final)]], [one[:, 0], *[s[:, 0] for s in last(end)]])
    given = leaves(layer, x, *(states if kind == "LSTM" else [h]))
    found = calque.autograd.grad(scores([out.data], final), given)
    wanted = calque.autograd.grad(sum(scores([one], end) for one, end in alone), given)
    near(found, wanted)


def test_what_stands_behind_the_end_of_a_sequence_cannot_overflow() -> None:
    """A ReLU that would double its state at every step, 600 steps behind the end of a short sequence."""
    layer = nn.RNN(1, 1, 2, "relu")
    with calque.no_grad():
        for name, p in layer.named_parameters():
            p.fill_(-1.0 if name in ("bias_ih_l0", "bias_hh_l0") else 2.0 if "weight" in name else 0.0)
    x = calque.cat([calque.full((600, 1, 1), -1.0), calque.full((600, 1, 1), 3.0)], 1)
    out, _ = layer(nn.utils.rnn.pack_padded_sequence(x, [600, 3]))
    unpacked, _ = nn.utils.rnn.pad_packed_sequence(out)
    unpacked[:3, 1].sum().backward()
    assert unpacked[2, 1].item() == 136 and unpacked[2, 0].item() == 0
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_forward_mode_and_second_derivatives(kind: str, options: dict[str, Any]) -> None:
    """Tangents are the Jacobian's, forward over reverse is reverse over reverse, and the steps give what the whole layer gives."""
    layer = layer_of(kind, options)
    x, t = (calque.randn(4, 2, 3, dtype=calque.float64) for _ in range(2))

    def f(x: Any) -> Any:
        return layer(x)[0]

    def loss(x: Any) -> Any:
        return (layer(x)[0] ** 3).sum()

    value, tangent = calque.func.jvp(f, (x,), (t,))
    jacobian = calque.func.jacrev(f)(x)
    near([value, tangent], [f(x), (jacobian * t).sum((3, 4, 5))])
    near([calque.func.jacfwd(f)(x)], [jacobian])
    near([calque.func.jacfwd(calque.func.jacrev(loss))(x)], [calque.func.jacrev(calque.func.jacrev(loss))(x)])
    with calque.autograd.forward_ad.dual_level():
        moved = calque.autograd.forward_ad.unpack_dual(f(calque.autograd.forward_ad.make_dual(x, t)))
        near(moved, (value, tangent))
    given = leaves(layer, x.requires_grad_())
    near(calque.autograd.grad(loss(x), given, create_graph=True), calque.autograd.grad(loss(x), given))


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_gradients_are_those_of_differences(kind: str, options: dict[str, Any]) -> None:
    layer = layer_of(kind, options)
    x = calque.randn(3, 2, 3, dtype=calque.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def f(x: Any, *values: Any) -> Any:
        return calque.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    def flat(*values: Any) -> Any:
        out, final = f(*values)
        return (out, *(final if kind == "LSTM" else (final,)))

    assert calque.autograd.gradcheck(flat, (x, *parameters))
    assert calque.autograd.gradgradcheck(lambda x: flat(x, *parameters)[0], (x,))


@pytest.mark.parametrize(("kind", "options"), [k for k in KINDS if "proj_size" not in k[1]], ids=str)
def test_steps_of_a_length_are_few_operations(kind: str, options: dict[str, Any]) -> None:
    """What is recorded of a layer, packed or not, forward and back, does not grow with the length."""
    layer = layer_of(kind, options, bidirectional=True)

    def edges(steps: int, packed: bool) -> int:
        x = calque.randn(steps, 3, 3, dtype=calque.float64)
        before = calque.stats()["trie_edges"]
        given = nn.utils.rnn.pack_padded_sequence(x, [steps, steps - 1, 2]) if packed else x
        out = layer(given)[0]
        (out.data if packed else out).sum().backward()
        return int(calque.stats()["trie_edges"] - before)

    for packed in (False, True):
        few = edges(5, packed)
        assert edges(60, packed) <= few + 10 < 300


def test_lengths_are_values() -> None:
    """Packed batches of the same longest sequence are one program, whatever the other lengths are."""
    layer = layer_of("GRU", {})

    def step(sizes: list[int]) -> None:
        packed = nn.utils.rnn.pack_padded_sequence(calque.randn(6, 3, 3, dtype=calque.float64), sizes)
        layer(packed)[0].data.sum().item()

    for sizes in ([6, 4, 3], [6, 5, 2]):
        step(sizes)
    before = calque.stats()["trie_edges"]
    step([6, 6, 1])
    assert calque.stats()["trie_edges"] - before < 12


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_state_has_the_type_of_the_input(kind: str) -> None:
    layer, x = getattr(nn, kind)(3, 4), calque.zeros(2, 1, 3)
    h = calque.zeros(1, 1, 4, dtype=calque.float64)
    with pytest.raises(TypeError, match=rf"\[{kind}\] Input and hidden tensors are not the same dtype, got torch.float32 and torch.float64"):
        layer(x, (h, h) if kind == "LSTM" else h)
