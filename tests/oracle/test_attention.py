"""Attention without a stored score matrix against PyTorch: values and gradients, on the compiled backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.nn.functional import attention

torch = pytest.importorskip("torch")

from tests.oracle.nn_harness import arrays, close, compare_function  # noqa: E402

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True, params=["blocks", "scores"])
def few_queries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything without and with stored scores, whatever the number of queries; compiled, however small."""
    monkeypatch.setattr("calque.run.dispatch.INTERPRET_WORK", 0)
    monkeypatch.setattr(attention, "FEW_QUERIES", 0 if request.param == "blocks" else 10**9)
    name: str = request.param
    return name


def tensors(q: tuple[int, ...], k: tuple[int, ...], size: int, dtype: str = "float64") -> list[Array]:
    """Query, key and value."""
    return arrays(q, k, (*k[:-1], size), dtype=dtype)


SHAPES = [
    ((2, 3, 7, 5), (2, 3, 7, 5), 5),
    ((1, 2, 70, 16), (1, 2, 300, 16), 33),
    ((1, 2, 300, 64), (1, 2, 70, 64), 64),
    ((2, 1, 33, 65), (2, 1, 257, 65), 31),
    ((1, 1, 40, 256), (1, 1, 40, 256), 256),
    ((1, 1, 9, 300), (1, 1, 70, 300), 300),
    ((5, 4), (9, 4), 3),
    ((3, 5, 4), (3, 1, 4), 1),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q", "k", "size"), SHAPES)
def test_sizes(q: tuple[int, ...], k: tuple[int, ...], size: int, causal: bool, dtype: str) -> None:
    compare_function("scaled_dot_product_attention", tensors(q, k, size, dtype), is_causal=causal)


@pytest.mark.parametrize(("q", "k"), [((2, 0, 4), (2, 3, 4)), ((2, 3, 4), (2, 0, 4)), ((0, 3, 4), (0, 3, 4)), ((2, 3, 0), (2, 5, 0))])
def test_empty(q: tuple[int, ...], k: tuple[int, ...]) -> None:
    """No query, no key (zeros), no batch, no features (every key counts the same)."""
    compare_function("scaled_dot_product_attention", tensors(q, k, 4))


@pytest.mark.parametrize("scale", [0.0, -0.7, 3.0])
def test_scale(scale: float) -> None:
    compare_function("scaled_dot_product_attention", tensors((2, 20, 8), (2, 40, 8), 8), scale=scale)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", [(2, 3, 40, 70), (40, 70), (2, 1, 1, 70), (1, 3, 40, 1), (1, 1, 40, 70)])
def test_masks(kind: str, shape: tuple[int, ...]) -> None:
    """Every way a mask broadcasts; one query without any key gives zeros and no gradient."""
    rng = np.random.default_rng(3)
    mask = rng.random(shape) > 0.4
    if shape[-2:] == (40, 70):
        mask[..., 5, :] = False
    m: Array = mask if kind == "bool" else np.where(mask, rng.standard_normal(shape), -np.inf)
    inputs = tensors((2, 3, 40, 16), (2, 3, 70, 16), 24)
    q, k, v = (calque.tensor(x, requires_grad=True) for x in inputs)
    r, s, t = (torch.tensor(x, requires_grad=True) for x in inputs)
    ours = calque.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=calque.tensor(m))
    theirs = torch.nn.functional.scaled_dot_product_attention(r, s, t, attn_mask=torch.tensor(m))
    close(ours, theirs)
    (ours * ours).sum().backward()
    (theirs * theirs).sum().backward()
    for x, y in zip((q, k, v), (r, s, t), strict=True):
        close(x.grad, y.grad)


def test_gradient_of_a_learned_mask() -> None:
    inputs = tensors((2, 3, 20, 8), (2, 3, 30, 8), 8)
    (bias,) = arrays((3, 20, 30), seed=4)

    def call(module: Any) -> Any:
        return lambda q, k, v, m: module.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)

    compare_function((call(calque), call(torch)), [*inputs, bias])


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_queries(causal: bool) -> None:
    compare_function("scaled_dot_product_attention", tensors((2, 6, 50, 16), (2, 2, 70, 16), 16), is_causal=causal, enable_gqa=True)


def test_grouped_queries_with_a_mask_per_head() -> None:
    mask = np.random.default_rng(0).random((2, 6, 20, 30)) > 0.3
    compare_function("scaled_dot_product_attention", tensors((2, 6, 20, 8), (2, 2, 30, 8), 8), attn_mask=mask, enable_gqa=True)


def test_heads_as_views_of_one_projection() -> None:
    """Query, key and value of a transformer: transposed views of one product, read in place."""

    def call(module: Any) -> Any:
        def attention(x: Any) -> Any:
            q, k, v = (t.view(2, 50, 3, 16).transpose(1, 2) for t in x.split(48, 2))
            return module.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 50, 48)

        return attention

    compare_function((call(calque), call(torch)), arrays((2, 50, 144)))


def test_second_derivatives() -> None:
    inputs = tensors((2, 6, 4), (2, 9, 4), 3)
    found = []
    for module in (calque, torch):
        q, k, v = (module.tensor(x, requires_grad=True) for x in inputs)
        out = module.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        grads = module.autograd.grad((out**3).sum(), [q, k, v], create_graph=True)
        found.append(module.autograd.grad(sum((g**2).sum() for g in grads), [q, k, v]))
    for x, y in zip(*found, strict=True):
        close(x, y)


def test_the_number_of_queries_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "FEW_QUERIES", 32)
    for queries, node in ((31, "WhereBackward0"), (32, "ScaledDotProductAttentionBackward0")):
        q = calque.zeros(2, queries, 4, requires_grad=True)
        assert calque.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=calque.zeros(1, 1)).grad_fn.name() == node


def test_bfloat16_computes_in_float32() -> None:
    inputs = [x.astype(np.float32) for x in tensors((2, 30, 16), (2, 30, 16), 16)]
    ours = calque.nn.functional.scaled_dot_product_attention(*[calque.tensor(x).bfloat16() for x in inputs], is_causal=True)
    exact = torch.nn.functional.scaled_dot_product_attention(*[torch.tensor(x).bfloat16().double() for x in inputs], is_causal=True)
    assert ours.dtype is calque.bfloat16
    np.testing.assert_allclose(ours.float().numpy(), exact.numpy(), rtol=2.0**-8, atol=2.0**-12)


@pytest.mark.parametrize("masks", ["none", "padding", "both"])
@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention_without_weights(masks: str, causal: bool) -> None:
    (x,) = arrays((2, 20, 24), dtype="float64")
    padding = np.zeros((2, 20), bool)
    padding[1, 15:] = True
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(24, 4, batch_first=True).double()
    ours = calque.nn.MultiheadAttention(24, 4, batch_first=True).double()
    ours.load_state_dict({k: calque.tensor(v.numpy().copy()) for k, v in theirs.state_dict().items()})
    found = []
    for module, layer in ((calque, ours), (torch, theirs)):
        t = module.tensor(x, requires_grad=True)
        future = module.triu(module.ones(20, 20), 1).to(module.bool) if causal or masks == "both" else None
        pad = module.tensor(padding) if masks != "none" else None
        out, weights = layer(t, t, t, key_padding_mask=pad, need_weights=False, attn_mask=future, is_causal=causal)
        assert weights is None
        (out**2).sum().backward()
        found.append((out, t.grad))
    for a, b in zip(*found, strict=True):
        close(a, b)


def test_no_score_matrix_is_kept(few_queries: str) -> None:
    """Between forward and backward live the operands, the output and one number per query."""
    if few_queries == "scores":
        pytest.skip("scores are kept")
    q, k, v = (calque.tensor(x, requires_grad=True) for x in tensors((1, 1, 512, 8), (1, 1, 512, 8), 8, "float32"))
    out = calque.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    held = out._grad_fn.context[2]
    assert sum(int(np.prod(x.shape)) for x in held) == 512 * 8 + 512


def _decoding(rng: np.random.Generator) -> tuple[list[Any], dict[str, Any]]:
    """Operands of one step of decoding: a part of a cache, one or two queries, sometimes grouped heads, masks, or columns that are apart."""
    batch, groups, repeat = (int(n) for n in rng.integers(1, 4, 3))
    queries, keys, width, size = int(rng.integers(1, 3)), int(rng.integers(1, 300)), int(rng.integers(1, 70)), int(rng.integers(1, 70))
    kind = str(rng.choice(["float32", "float64"]))
    cache = [rng.standard_normal((batch, groups, keys + 9, n)).astype(kind) for n in (width, size)]
    q = rng.standard_normal((batch, queries, groups * repeat, width)).astype(kind)
    k, v = (calque.tensor(c)[:, :, 3 : 3 + keys] for c in cache)
    if rng.random() < 0.2:
        v = v.mT.contiguous().mT
    options: dict[str, Any] = {"enable_gqa": repeat > 1}
    chance = rng.random()
    if chance < 0.3:
        options["attn_mask"] = calque.tensor(rng.random((batch, 1, queries, keys)) < 0.7)
    elif chance < 0.5:
        options["attn_mask"] = calque.tensor(rng.standard_normal((queries, keys)).astype(kind))
    elif chance < 0.7:
        options["is_causal"] = True
    return [calque.tensor(q).transpose(1, 2), k, v], options


def test_one_or_two_queries(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values that are read in place give what stored scores give; gradients come from stored scores."""
    monkeypatch.setattr(attention, "FEW_QUERIES", 32)
    attend = calque.nn.functional.scaled_dot_product_attention
    for _ in range(60):
        operands, options = _decoding(rng)
        found = []
        for most in (attention.MOST_QUERIES_IN_PLACE, 0):
            with monkeypatch.context() as patch:
                patch.setattr(attention, "MOST_QUERIES_IN_PLACE", most)
                found.append(attend(*operands, **options))
        assert found[0].shape == found[1].shape and found[0].dtype == found[1].dtype
        close(*found)
    q, k, v = (x.requires_grad_() for x in [calque.randn(2, 3, 1, 8), calque.randn(2, 3, 20, 8), calque.randn(2, 3, 20, 8)])
    attend(q, k, v).sum().backward()
    with calque.no_grad():
        close(attend(q, k, v), attend(q, k, v.clone()))
    assert all(x.grad is not None for x in (q, k, v))
