"""Language models: what they look at, published layouts, trained weights from files and folders, training as written and hybridized."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calque
from calque import nn
from calque.base.errors import CheckpointError, CheckpointNotFoundError, StateDictError
from calque.io import fetch
from calque.nn import functional as F
from calque.text import models

SIZES = {"vocab_size": 13, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
BERT_SIZES = {"vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
              "max_position_embeddings": 8}  # fmt: skip


def gpt(**options: Any) -> models.GPT:
    return models.GPT(**{**SIZES, **options})


def bert(kind: Any = models.BERT, **options: Any) -> Any:
    return kind(**{**BERT_SIZES, **options})


def layout(model: nn.Module) -> str:
    return "\n".join(f"{name} {tuple(value.shape)}" for name, value in model.state_dict().items())


def test_published_sizes_have_the_published_numbers_of_parameters() -> None:
    with calque.device("meta"):
        counts = {name: sum(p.numel() for p in getattr(models, name)().parameters()) for name in ("gpt2", "gpt2_xl", "bert_base_uncased")}
    assert counts == {"gpt2": 124_439_808, "gpt2_xl": 1_557_611_200, "bert_base_uncased": 109_482_240}


def test_names_and_shapes_are_those_of_transformers() -> None:
    found = layout(gpt(n_layer=1))
    assert "transformer.h.0.attn.c_attn.weight (8, 24)" in found and found.endswith("lm_head.weight (13, 8)")
    found = layout(bert(models.BERTForMaskedLM, num_hidden_layers=1))
    assert "bert.encoder.layer.0.attention.self.query.weight (8, 8)" in found and "cls.predictions.decoder.bias (13,)" in found
    assert "pooler" not in found
    found = layout(bert(models.BERTForSequenceClassification, num_labels=3))
    assert "bert.pooler.dense.weight (8, 8)" in found and found.endswith("classifier.bias (3,)")
    rnn = [f"rnn.{kind}_{gate}_l0" for kind in ("weight", "bias") for gate in ("ih", "hh")]
    assert list(models.LSTMLanguageModel(13, 8, 6, 1).state_dict()) == ["encoder.weight", *rnn, "decoder.weight", "decoder.bias"]


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 8), st.data())
def test_a_word_of_gpt_sees_itself_and_those_before_it(length: int, data: Any) -> None:
    model = gpt().eval()
    words = calque.tensor([data.draw(st.lists(st.integers(0, 12), min_size=length, max_size=length))])
    place = data.draw(st.integers(0, length - 1))
    other = words.clone()
    other[0, place] = (other[0, place] + 1) % 13
    with calque.no_grad():
        a, b = model(words), model(other)
    same = (a - b).abs().amax(-1)[0]
    assert (same[:place] == 0).all() and same[place] > 0


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 7), st.integers(0, 3), st.sampled_from(["gpt", "bert"]))
def test_what_fills_up_a_text_changes_nothing(length: int, more: int, kind: str) -> None:
    model: Any = gpt().eval() if kind == "gpt" else bert().eval()
    words = calque.randint(0, 13, (2, length))
    filled = calque.cat([words, calque.randint(0, 13, (2, min(more, 8 - length)))], 1)
    mask = (calque.arange(filled.shape[1]) < length).long().expand(2, -1)
    with calque.no_grad():
        short, long = model(words), model(filled, mask)
    if kind == "bert":
        assert calque.allclose(short.pooler_output, long.pooler_output, atol=1e-5)
        short, long = short[0], long[0]
    assert calque.allclose(short, long[:, :length], atol=1e-5)


def test_places_and_parts_of_a_text_count() -> None:
    words = calque.tensor([[3, 1, 4]])
    model = gpt().eval()
    assert calque.equal(model(words, position_ids=calque.arange(3)), model(words))
    assert not calque.allclose(model(words, position_ids=calque.tensor([2, 1, 0])), model(words))
    other = bert().eval()
    assert calque.equal(other(words, token_type_ids=calque.zeros(1, 3, dtype=calque.long))[0], other(words)[0])
    assert not calque.allclose(other(words, token_type_ids=calque.tensor([[0, 1, 1]]))[0], other(words)[0])
    assert bert(add_pooling_layer=False)(words).pooler_output is None
    assert not bert(pad_token_id=2).embeddings.word_embeddings.weight[2].any()


def test_the_state_of_an_lstm_goes_on() -> None:
    model = models.LSTMLanguageModel(13, 8, 6, 2).eval()
    words = calque.randint(0, 13, (5, 3))
    whole, _ = model(words)
    first, hidden = model(words[:2], model.init_hidden(3))
    second, _ = model(words[2:], hidden)
    assert whole.shape == (5, 3, 13) and calque.allclose(calque.cat([first, second]), whole, atol=1e-6)


TASKS: dict[str, Callable[[], tuple[nn.Module, Callable[[Any, Any], Any]]]] = {
    "gpt": lambda: (gpt(), lambda model, words: F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())),
    "masked_lm": lambda: (bert(models.BERTForMaskedLM), lambda model, words: F.cross_entropy(model(words).flatten(0, 1), words.flatten())),
    "classification": lambda: (
        bert(models.BERTForSequenceClassification, num_labels=4),
        lambda model, words: F.cross_entropy(model(words, words > 0), words[:, 0] % 4),
    ),
    "lstm": lambda: (
        models.LSTMLanguageModel(13, 16, 16, 2, 0.1, True),
        lambda model, words: F.cross_entropy(model(words.t()[:-1], model.init_hidden(len(words)))[0].flatten(0, 1), words.t()[1:].flatten()),
    ),
}


def learned(name: str, compiled: bool, seed: int) -> list[float]:
    """The losses of a model that learns three texts by heart."""
    words = calque.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8], [1, 4, 1, 4, 2, 1, 3, 5]])
    calque.manual_seed(seed)
    model, loss_of = TASKS[name]()
    for module in model.modules():  # which step draws what is not the question
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    optimizer = calque.optim.Adam(model.parameters(), lr=0.03)

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, words)
        loss.backward()
        optimizer.step()
        return loss

    call = calque.compile(step) if compiled else step
    return [call().item() for _ in range(40)]


@pytest.mark.parametrize("name", TASKS)
def test_models_learn_a_text_by_heart_and_hybridized_the_same_way(name: str, seed: int) -> None:
    written = learned(name, False, seed)
    before = calque.stats()["hybridize"]["replays"]
    hybridized = learned(name, True, seed)
    assert calque.stats()["hybridize"]["replays"] > before + 30
    assert written[-1] < 0.75 * written[0], written
    assert written[:5] == pytest.approx(hybridized[:5], rel=1e-4)


def saved(model: nn.Module, folder: Path, drop: tuple[str, ...], **config: Any) -> Path:
    """A folder as transformers writes it: tied weights once, and the sizes beside them."""
    folder.mkdir()
    calque.save({k: v for k, v in model.state_dict().items() if k not in drop}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(calque.equal(left[name], right[name]) for name in left)


def test_a_folder_gives_sizes_and_weights_of_gpt(tmp_path: Path) -> None:
    model = gpt()
    folder = saved(model, tmp_path / "whole", ("lm_head.weight",), model_type="gpt2", activation_function="gelu_new", **SIZES)
    found = models.gpt2(weights=folder, embd_pdrop=0.0)
    assert same(model, found) and found.transformer.drop.p == 0.0 and found.lm_head.weight is found.transformer.wte.weight
    old = {key.removeprefix("transformer."): value for key, value in model.transformer.state_dict().items()}
    calque.save({**old, "h.0.attn.bias": calque.ones(1, 1, 8, 8), "h.1.attn.masked_bias": calque.tensor(-1e4)}, tmp_path / "old.pt", format="pt")
    assert same(model, models.gpt2(weights=tmp_path / "old.pt", **SIZES))
    assert same(model, models.gpt2(weights=folder / "model.safetensors", **SIZES))
    (folder / "config.json").write_text('{"n_layer": 7, "model_type": "something of the user"}')  # beside a single file it may be anybody's
    assert same(model, models.gpt2(weights=folder / "model.safetensors", **SIZES))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **SIZES}))
    calque.save(calque.load(folder / "model.safetensors"), folder / "model.safetensors.index.json", shard_size=1024)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert same(model, models.gpt2(weights=folder))
    (folder / "model.safetensors.index.json").unlink()
    assert same(model, models.gpt2(weights=str(folder)))

    state = dict(model.state_dict())
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    calque.save(state, tmp_path / "two.safetensors")
    with pytest.raises(StateDictError, match=r"\[GPT\] expected lm_head.weight to be transformer.wte.weight, got two matrices"):
        models.gpt2(weights=tmp_path / "two.safetensors", **SIZES)
    with pytest.raises(RuntimeError, match=r"transformer\.h\.2"):
        models.gpt2(weights=folder, n_layer=3)


def test_heads_of_bert_share_files(tmp_path: Path) -> None:
    language = bert(models.BERTForMaskedLM)
    tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
    folder = saved(language, tmp_path / "language", tied, model_type="bert", hidden_act="gelu", id2label={"0": "a", "1": "b", "2": "c"}, **BERT_SIZES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = models.bert_base_uncased(weights=folder, head="masked_lm")
        assert same(language, again) and again.cls["predictions"].decoder.bias is again.cls["predictions"].bias
        assert same(language.bert, models.bert_base_uncased(weights=folder, add_pooling_layer=False))
    with pytest.warns(UserWarning, match=r"\[bert_base_uncased\] expected weights of bert.pooler, classifier, got none in the file"):
        kinds = models.bert_base_uncased(weights=folder, head="classification")
    assert kinds.classifier.out_features == 3 and same(kinds.bert.encoder, language.bert.encoder)

    published = {"cls.seq_relationship.weight": calque.ones(2, 8), "bert.embeddings.position_ids": calque.arange(8)[None]}
    for key, value in {**language.state_dict(), **kinds.state_dict()}.items():
        if not key.startswith("classifier."):
            published[key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = value
    calque.save(published, tmp_path / "published.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(kinds.bert, models.bert_base_uncased(weights=tmp_path / "published.safetensors", **BERT_SIZES))
        assert same(language, models.bert_base_uncased(weights=tmp_path / "published.safetensors", head="masked_lm", **BERT_SIZES))
    del published["cls.predictions.transform.dense.bias"]
    calque.save(published, tmp_path / "torn.safetensors")
    with pytest.raises(StateDictError, match="transform.dense.bias"):  # a part of a head is no head
        models.bert_base_uncased(weights=tmp_path / "torn.safetensors", head="masked_lm", **BERT_SIZES)


def test_weights_of_the_hub_are_checked_and_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(fetch._Chosen, "folder", str(tmp_path / "hub"))
    model = gpt()
    place = tmp_path / "home/.cache/huggingface/hub/models--openai-community--gpt2/snapshots/abc"
    blobs = place.parents[1] / "blobs"
    blobs.mkdir(parents=True)
    folder = saved(model, tmp_path / "made", ("lm_head.weight",), model_type="gpt2", **SIZES)
    blob = blobs / hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "model.safetensors").rename(blob)
    place.mkdir(parents=True)
    (folder / "config.json").rename(place / "config.json")
    (place / "model.safetensors").symlink_to(blob)
    assert same(model, models.gpt2(weights="DEFAULT")) and same(model, models.gpt2(weights="openai-community/gpt2"))
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="SHA-256 begins with"):
        models.gpt2(weights="DEFAULT")
    with pytest.raises(CheckpointNotFoundError, match="hf download google-bert/bert-large-cased"):
        models.bert_large_cased(weights="DEFAULT")
    with pytest.raises(CheckpointNotFoundError, match="offline, put that file at"):
        models.gpt2(weights="file:///nowhere/gpt-0123abcd.safetensors")


def test_other_models_and_wrong_words_are_refused(tmp_path: Path) -> None:
    folder = saved(gpt(), tmp_path / "other", (), model_type="gpt2", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(CheckpointError, match=r"\[gpt2\] expected scale_attn_by_inverse_layer_idx False in .*config.json', got True; this model is"):
        models.gpt2(weights=folder)
    for text, words in (("{", "expected JSON"), ("[1]", "expected an object")):
        (folder / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=words):
            models.gpt2(weights=folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFoundError, match=r"\[gpt2\] expected model.safetensors or .* got none; pass the file itself"):
        models.gpt2(weights=tmp_path / "empty")
    for call, error, match in (
        (lambda: models.gpt2(weights="BEST"), ValueError, r"\[gpt2\] expected weights='DEFAULT', a file, a folder, an address or owner/name"),
        (lambda: models.gpt2(head="masked_lm"), ValueError, r"\[gpt2\] expected head to be one of ''"),
        (lambda: gpt(n_head=3), ValueError, r"\[GPT\] expected n_embd to be a multiple of n_head, got 8 and 3"),
        (lambda: bert(num_attention_heads=3), ValueError, r"\[BERT\] expected hidden_size to be a multiple"),
        (lambda: models.LSTMLanguageModel(5, 8, 6, tie_weights=True), ValueError, r"expected nhid to be ninp with tie_weights=True, got 6 and 8"),
        (lambda: gpt()(calque.zeros(1, 9, dtype=calque.long)), ValueError, r"\[GPT\] expected .* \(N, L\) with L from 1 to 8, got \(1, 9\)"),
        (lambda: gpt()(calque.zeros(3, dtype=calque.long)), ValueError, r"\[GPT\] expected .* got \(3,\)"),
        (lambda: bert()(calque.zeros(1, 3)), TypeError, r"\[BERT\] expected the numbers of words as a tensor of integers, got dtype"),
        (lambda: bert()(calque.ones(1, 3).long(), calque.ones(1, 4)), ValueError, r"\[BERT\] expected attention_mask .*\(1, 3\), got \(1, 4\)"),
        (lambda: gpt()(calque.full((1, 3), 13)), IndexError, "13"),
    ):
        with pytest.raises(error, match=match):
            call().sum().item()
