"""Decoding with a cache says what the model says without one: alone, in batches of other lengths, replayed, exported and as a native library."""

from __future__ import annotations

import copy
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calque
from calque import nn
from calque.base.errors import ArgumentError, ShapeError
from calque.exported.native.build import host_target
from calque.generate import Cache, Decoder, generate, sample, stream
from calque.nn import functional as F
from tests.exported.native import Library

LAYERS, HEADS, WIDTH, LONGEST, WORDS = 2, 4, 32, 40, 50
PROMPTS = [[1, 2, 3, 4, 5], [7], [9, 8, 7]]


class Block(nn.Module):
    """A layer; `groups`: of heads that share keys and values."""

    def __init__(self, number: int, groups: int) -> None:
        super().__init__()
        self.number, self.groups, each = number, groups, WIDTH // HEADS
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.queries, self.keys, self.values = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, groups * each), nn.Linear(WIDTH, groups * each)
        self.feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Any, view: Any) -> Any:
        n, count, _ = x.shape
        y = self.norm(x)
        q, k, v = (f(y).view(n, count, -1, WIDTH // HEADS).transpose(1, 2) for f in (self.queries, self.keys, self.values))
        if view is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups != HEADS)
        else:
            y = view.attend(self.number, q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(n, count, WIDTH))
        return x + self.feed(x)


class GPT(nn.Module):
    """Tokens (N, L) -> scores (N, L, WORDS)."""

    def __init__(self, groups: int = HEADS) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks, self.head = nn.ModuleList([Block(k, groups) for k in range(LAYERS)]), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Any, view: Any = None) -> Any:
        x = self.words(tokens) + self.places(calque.arange(tokens.shape[1]) if view is None else view.positions)
        for block in self.blocks:
            x = block(x, view)
        return self.head(x)


class Next(nn.Module):
    """Says the number after the last one, of ten."""

    def forward(self, tokens: Any, view: Any) -> Any:
        return F.one_hot((tokens + 1) % 10, 10).float()


class Flat(nn.Module):
    """Gives scores of tokens that are in no row."""

    def forward(self, tokens: Any, view: Any) -> Any:
        return calque.ones(tokens.shape[0], 10)


def made(groups: int = HEADS, batch: int = 3, length: int = LONGEST) -> tuple[Any, Any]:
    calque.manual_seed(0)
    model = GPT(groups).eval()
    return model, Decoder(model, Cache(LAYERS, batch, groups, length, WIDTH // HEADS))


def counting(batch: int = 2, length: int = 16) -> Any:
    return Decoder(Next(), Cache(layers=1, batch=batch, heads=1, length=length, size=1))


@calque.no_grad()
def slowly(model: Any, prompt: Any, count: int) -> list[int]:
    """The twin: the whole row again for each token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(calque.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def said(decoder: Any, prompts: Any, count: int, **settings: Any) -> list[list[int]]:
    return [answer.tolist() for answer in generate(decoder, prompts, count, **settings)]


@pytest.mark.parametrize("groups", [HEADS, 2, 1])
@pytest.mark.parametrize("hybrid", [False, True], ids=["as written", "hybridized"])
def test_answers_are_those_without_a_cache(groups: int, hybrid: bool) -> None:
    model, decoder = made(groups)
    decoder.hybridize(hybrid)
    wanted = [slowly(model, prompt, 20) for prompt in PROMPTS]
    assert len({tuple(row) for row in wanted}) == 3
    for _ in range(2):  # what the first call left in the cache is forgotten
        assert said(decoder, PROMPTS, 20) == wanted
    for prompt, row in zip(PROMPTS, wanted, strict=True):  # alone, in a batch that is filled up
        assert said(decoder, [prompt], 20) == [row]
    assert said(decoder, PROMPTS, 20, multiple=8) == wanted
    padded = calque.tensor([row + [0] * (5 - len(row)) for row in PROMPTS])
    assert said(decoder, padded, 20, lengths=calque.tensor([5, 1, 3])) == wanted


def test_scores_are_those_without_a_cache_when_several_tokens_come_at_once() -> None:
    model, decoder = made()
    tokens = calque.randint(0, WORDS, (3, 12))
    with calque.no_grad():
        decoder.prefill(tokens[:, :4], calque.tensor([4, 4, 4]))
        for start, stop in ((4, 5), (5, 9), (9, 12)):
            found = decoder.decode(tokens[:, start:stop])
            np.testing.assert_allclose(found.numpy(), model(tokens[:, :stop])[:, -1].numpy(), atol=1e-5)
    assert decoder.cache.place.item() == 12


def test_what_padding_and_an_earlier_prompt_left_is_not_seen() -> None:
    """Not even NaN and infinity, which a weight of 0 does not take out of a sum."""
    _, decoder = made()
    wanted = said(decoder, PROMPTS, 10)
    for name in ("keys0", "values0", "keys1", "values1"):
        decoder.cache.get_buffer(name).fill_(float("nan"))
    assert said(decoder, PROMPTS, 10) == wanted
    rows = calque.tensor([[0, 0, 0, 0, 5], [3, 3, 3, 3, 5], [9, 1, 2, 3, 5]])
    with calque.no_grad():
        scores = decoder.prefill(rows, calque.ones(3, dtype=calque.long))
    assert calque.equal(scores[0], scores[1]) and calque.equal(scores[0], scores[2])


@pytest.mark.parametrize("way", ["as written", "hybridized", "exported"])
def test_every_token_is_one_program_that_is_known(way: str) -> None:
    _, decoder = made()
    if way == "hybridized":
        decoder.hybridize()
    if way == "exported":
        decoder = exported(decoder)
    generator = calque.Generator().manual_seed(3)
    for temperature in (0.0, 0.7):
        before: Any = None
        for _ in range(2):  # a program that comes again and again is compiled, whenever that may be
            for number, _ in enumerate(stream(decoder, PROMPTS, 30, temperature=temperature, top_k=9, top_p=0.9, generator=generator)):
                if number == 9:
                    before = calque.stats()
        after = calque.stats()
        assert after["flushes"] - before["flushes"] == after["program_hits"] - before["program_hits"] == 20
        assert all(after[name] == before[name] for name in ("compiled", "compiles", "programs", "trie_edges"))


def exported(decoder: Any) -> Any:
    tokens = calque.zeros(3, 6, dtype=calque.long)
    dynamic = {"tokens": {1: calque.Dim("count", 1, LONGEST)}}
    with calque.no_grad():
        found = calque.export(
            decoder,
            entries={"prefill": (decoder.prefill, (tokens, tokens[:, 0] + 1), dynamic), "decode": (decoder.decode, tokens[:, :1])},
        )
    file = io.BytesIO()
    found.save(file)
    file.seek(0)
    return calque.load_exported(file)


@pytest.mark.parametrize("groups", [HEADS, 2])
@pytest.mark.parametrize("bits", [32, 8, 4])
def test_exports_decode(groups: int, bits: int) -> None:
    model, decoder = made(groups)
    if bits < 32:
        nn.utils.quantize_(model, bits=bits, group_size=16, symmetric=False)
    loaded = exported(decoder)
    wanted = said(decoder, PROMPTS, 20)
    assert said(loaded, PROMPTS, 20) == said(loaded, PROMPTS, 20) == wanted
    assert not any("cache" in name for name in loaded.state_dict())
    assert calque.equal(loaded.get_buffer("cache.start"), calque.tensor([0, 4, 2]))


@pytest.mark.skipif(shutil.which("gcc") is None or not host_target(), reason="needs gcc and a system that libraries are built for")
@pytest.mark.parametrize("bits", [32, 8, 4])
def test_a_native_library_decodes(tmp_path: Path, bits: int) -> None:
    model, decoder = made()
    if bits < 32:
        nn.utils.quantize_(model, bits=bits, group_size=16)
    wanted = said(decoder, PROMPTS, 12)
    exported(decoder).compile(tmp_path, name="gpt", sizes={"count": 5})
    library = Library(tmp_path, "gpt")
    instance, scores = library.create(), np.empty((3, WORDS), np.float32)
    tokens, lengths = np.array([[1, 2, 3, 4, 5], [0, 0, 0, 0, 7], [0, 0, 9, 8, 7]]), np.array([5, 1, 3])
    assert library.run(instance, 0, [tokens, lengths], [scores]) == 0, library.error(instance)
    answers: list[Any] = []
    for _ in range(12):
        answers.append(scores.argmax(-1))
        assert library.run(instance, 1, [answers[-1][:, None].copy()], [scores]) == 0, library.error(instance)
    assert np.stack(answers, 1).tolist() == wanted


def test_copies_are_decoders_of_their_own() -> None:
    model, decoder = made()
    decoder.hybridize()
    wanted = said(decoder, PROMPTS, 12)
    other = copy.deepcopy(decoder)
    with calque.no_grad():
        other.model.head.bias[3] += 1e6
    assert said(other, PROMPTS, 12) == [[3] * 12] * 3 and said(decoder, PROMPTS, 12) == wanted
    with calque.no_grad():
        model.head.bias[4] += 1e6  # seen by what is replayed
    assert said(decoder, PROMPTS, 12) == [[4] * 12] * 3


def test_stops_and_streams() -> None:
    decoder = counting()
    assert said(decoder, [[1], [6]], 8, stop=9) == [[2, 3, 4, 5, 6, 7, 8, 9], [7, 8, 9]]
    assert said(decoder, [[1], [6]], 8, stop={4, 8}) == [[2, 3, 4], [7, 8]]
    assert list(stream(decoder, [[7], [8]], 9, stop=(9,))) == [[8, 9], [9, None]]
    assert said(decoder, calque.tensor([3]), 2) == [[4, 5]]
    assert [t.dtype is calque.int64 and t.ndim == 1 for t in generate(decoder, [calque.tensor([3]), [4]], 2)] == [True, True]


def test_gradients_are_on_between_tokens() -> None:
    for _ in stream(counting(), [[1]], 3):
        assert calque.is_grad_enabled()
    with calque.no_grad():
        for _ in stream(counting(), [[1]], 3):
            assert not calque.is_grad_enabled()


def test_a_generator_decides() -> None:
    _, decoder = made()
    draw = [said(decoder, PROMPTS, 15, temperature=2.0, generator=calque.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]
    assert said(decoder, PROMPTS, 15, temperature=1.0, top_k=1) == said(decoder, PROMPTS, 15)
    assert said(decoder, PROMPTS, 15, temperature=1.0, top_p=1e-6) == said(decoder, PROMPTS, 15)


SCORES = st.lists(st.integers(-40, 40).map(lambda k: k / 8), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(SCORES, st.integers(1, 14), st.floats(0.05, 1.0), st.sampled_from([0.3, 1.0, 2.5]), st.integers(0, 1 << 30))
def test_what_may_be_drawn(scores: list[float], top_k: int, top_p: float, temperature: float, seed: int) -> None:
    """The set of tokens, by a twin that goes through them one by one."""
    values = np.array(scores, np.float64) / temperature
    allowed = values >= np.sort(values)[::-1][min(top_k, len(values)) - 1]
    chances = np.where(allowed, np.exp(values - values.max()), 0)
    chances /= chances.sum()
    total, least = 0.0, 0.0
    for k in np.argsort(-chances, kind="stable"):
        if total >= top_p - 1e-5 and total > 0:
            break
        total, least = total + chances[k], chances[k]
    sure = allowed & (chances >= least * (1 - 1e-5))
    total, most = 0.0, 0.0
    for k in np.argsort(-chances, kind="stable"):
        if total >= top_p + 1e-5:
            break
        total, most = total + chances[k], chances[k]
    possible = allowed & (chances >= most * (1 - 1e-5))  # and where a sum of probabilities is top_p up to rounding
    rows = calque.tensor([scores] * 300, dtype=calque.float32)
    found = sample(rows, temperature=temperature, top_k=top_k, top_p=top_p, generator=calque.Generator().manual_seed(seed)).numpy()
    assert found.dtype == np.int64 and set(found) <= set(np.flatnonzero(possible))
    likely = [k for k in np.flatnonzero(sure) if chances[k] / chances[possible].sum() > 0.1]
    assert set(likely) <= set(found)  # one of ten in 300 draws is missed once in 10^13
    assert values[sample(rows[:1], temperature=0).item()] == values.max()


def test_draws_have_their_probabilities() -> None:
    chances = np.array([0.5, 0.25, 0.125, 0.125])
    rows = calque.tensor(np.log(chances)).expand(40000, 4)
    found = np.bincount(sample(rows, generator=calque.Generator().manual_seed(0)).numpy(), minlength=4) / 40000
    assert np.abs(found - chances).max() < 5 * np.sqrt(0.25 / 40000)
    cold = sample(calque.tensor([[1.0, 1.5, 1.25]] * 50), temperature=1e-30)
    assert cold.tolist() == [1] * 50


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"prompts": []}, "at least one and none empty"),
        ({"prompts": [[1], []]}, "at least one and none empty"),
        ({"prompts": "text"}, "encode texts"),
        ({"prompts": [[1.5]]}, "lists of ints"),
        ({"prompts": [[1], [2], [3]]}, "at most 2 prompts"),
        ({"prompts": [[1] * 10], "max_new_tokens": 8}, "fit into the 16 slots"),
        ({"prompts": [[1] * 10], "max_new_tokens": 7, "multiple": 16}, "got 16 of prompts and 7 new"),
        ({"max_new_tokens": 0}, "max_new_tokens as an integer from 1 on"),
        ({"multiple": 0}, "multiple as an integer from 1 on"),
        ({"temperature": -1.0}, "temperature as a finite number"),
        ({"temperature": float("nan")}, "temperature as a finite number"),
        ({"top_k": 0}, "top_k as an integer from 1 on"),
        ({"top_p": 0.0}, "top_p as a number above 0"),
        ({"top_p": 1.5}, "top_p as a number above 0"),
        ({"lengths": [1, 2]}, "lengths with an integer for each prompt"),
        ({"lengths": [3]}, "from 1 to its number of tokens"),
    ],
    ids=str,
)
def test_what_is_refused(settings: dict[str, Any], text: str) -> None:
    decoder = counting()
    given = {"prompts": [[1, 2]], "max_new_tokens": 3} | settings
    with pytest.raises(ArgumentError, match=text):
        generate(decoder, **given)
    assert decoder.cache.place.item() == 0


def test_the_last_slot_is_used_and_none_behind_it() -> None:
    model, decoder = made(batch=1)
    assert said(decoder, [[1, 2, 3]], LONGEST - 2) == [slowly(model, [1, 2, 3], LONGEST - 2)]
    with pytest.raises(IndexError), calque.no_grad():
        for _ in range(2):
            decoder.decode(calque.tensor([[1]])).numpy()


def test_wrong_models_and_caches() -> None:
    for wrong, text in (
        (lambda: generate(Next(), [[1]], 2), "expected a calque.generate.Decoder"),
        (lambda: Decoder(Next().forward, Cache(1, 1, 1, 4, 1)), "expected a Module"),
        (lambda: Decoder(Next(), {}), "expected a calque.generate.Cache"),
        (lambda: Cache(1, 0, 1, 4, 1), "expected batch as an integer from 1 on"),
    ):
        with pytest.raises(ArgumentError, match=text):
            wrong()
    decoder = counting()
    view = decoder.cache.proceed(1)
    two, three = calque.ones(2, 1, 1, 1), calque.ones(2, 3, 1, 1)
    for wrong, text in (
        (lambda: decoder.decode(calque.ones(3, 1, dtype=calque.long)), r"expected tokens of shape \(2, count\), got \(3, 1\)"),
        (lambda: decoder.prefill(calque.ones(2, 3, dtype=calque.long), calque.ones(3)), r"expected lengths of shape \(2,\)"),
        (lambda: decoder.prefill(calque.ones(2, 17, dtype=calque.long), calque.ones(2, dtype=calque.long)), "expected at most 16 tokens, got 17"),
        (lambda: view.attend(0, two, three, two), r"expected keys of shape \(2, 1, 1, 1\), got \(2, 3, 1, 1\)"),
        (lambda: sample(calque.ones(2, 3, 4)), r"expected floats of shape \(batch, vocabulary\)"),
        (lambda: Decoder(Flat(), decoder.cache)(calque.ones(2, 1, dtype=calque.long)), "expected a model that gives scores"),
    ):
        with pytest.raises(ShapeError, match=text):
            wrong()
    with pytest.raises(IndexError, match="expected a layer from 0 to 0, got 1"):
        view.write(1, two, two)


def test_loops_in_turns_need_caches_of_their_own() -> None:
    """The second loop forgot what the first had read, which went on with the other's tokens."""
    decoder = counting()
    first, second = stream(decoder, [[1]], 4), stream(decoder, [[5]], 4)
    assert next(first) == [2] and next(second) == [6] and next(second) == [7]
    with pytest.raises(ArgumentError, match=r"\[stream\] expected one loop at a time with a cache, but another one has begun with it since"):
        next(first)
    assert next(second) == [8]
    other = exported(made()[1])
    loop = stream(other, PROMPTS, 3)
    next(loop)
    assert len(generate(other, PROMPTS, 2)) == 3
    with pytest.raises(ArgumentError, match="expected one loop at a time"):
        next(loop)


@pytest.mark.parametrize("stop", [calque.tensor([4, 9]), [calque.tensor(4)], np.array([4]), np.int64(4), calque.tensor(4), {4}, [np.int32(4)]])
def test_whatever_holds_integers_stops(stop: Any) -> None:
    """A tensor in a list never was equal to a token."""
    assert said(counting(), [[1, 2]], 6, stop=stop) == [[3, 4]]


@pytest.mark.parametrize("stop", ["ab", [None], 4.0, [4.5], True, None, [calque.tensor([4, 5])]])
def test_what_is_no_token_stops_nothing(stop: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\[generate\] expected stop as a token, or several, which are integers, got"):
        said(counting(), [[1, 2]], 6, stop=stop)


@pytest.mark.parametrize("lengths", [[0, 1, 1], [1, 1, 5], [3, -1, 2]])
def test_lengths_are_those_of_the_prompts(lengths: list[int]) -> None:
    """Lengths beyond the prompts moved positions and let tokens see padding."""
    _, decoder = made()
    loaded, tokens = exported(decoder), calque.tensor([[1] * 4] * 3)
    text = r"\[prefill\] expected lengths from 1 to 4, the number of tokens in a row, got -?\d for row \d"
    hybrid = copy.deepcopy(decoder)
    hybrid.hybridize()
    for one in (decoder, hybrid, loaded):
        wanted = one.prefill(tokens, calque.tensor([1, 4, 2])).tolist()
        with pytest.raises(IndexError, match=text if one is not loaded else "and other values in their range, got one that is not"):
            one.prefill(tokens, calque.tensor(lengths)).sum().item()
        assert np.allclose(one.prefill(tokens, calque.tensor([1, 4, 2])).tolist(), wanted, atol=1e-6)  # what the failed call has left is forgotten
    with pytest.raises(TypeError, match=r"\[prefill\] expected lengths as int64, got float32; convert with .long\(\)"):
        decoder.prefill(tokens, calque.ones(3))


def test_a_random_number_of_zero_draws_no_token_that_may_not_be_drawn(monkeypatch: Any) -> None:
    """Its noise was infinite, and the one token that might be drawn was as little as the others."""
    monkeypatch.setattr(calque.functional, "rand", lambda shape, generator: calque.zeros(shape))
    assert sample(calque.tensor([[1.0, 2.0, 3.0]]), top_k=1).tolist() == [2]


def test_an_export_whose_first_call_fails_goes_on() -> None:
    """What that call was to write had no value, which was waited for before there was a new one: the export failed for ever."""
    decoder = exported(made()[1])
    tokens, lengths = calque.tensor([[1] * 4] * 3), calque.tensor([1, 4, 2])
    with calque.no_grad():
        for wrong, counts in ((tokens, lengths * 9), (tokens * 1000, lengths)):
            with pytest.raises(IndexError):
                decoder.prefill(wrong, counts).sum().item()
            assert calque.isfinite(decoder.prefill(tokens, lengths)).all()
            decoder = exported(made()[1])
