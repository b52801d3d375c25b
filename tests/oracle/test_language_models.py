"""Language models: the numbers and gradients of transformers' models, of their files, and of PyTorch's modules in the layout of its example."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.text import models

torch = pytest.importorskip("torch")

from tests.oracle.nn_harness import close, numbers  # noqa: E402

pytestmark = pytest.mark.oracle

TOLERANCE = 2e-4  # of float32, for gradients that are sums over all places of all layers


def transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers")


def saved(state: dict[str, Any], folder: Path, **config: Any) -> Path:
    """A folder as older versions of transformers wrote it: a pickle of PyTorch."""
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def compare(ours: Any, theirs: Any, out: Any, expected: Any, rename: Any = lambda name: name) -> None:
    """The same results, and the same gradients of their weighted sum."""
    total, wanted = 0.0, 0.0
    for x, y in zip(out, expected, strict=True):
        close(x, y, "result", TOLERANCE)
        weights = np.random.default_rng(1).uniform(-1, 1, tuple(y.shape)).astype(np.float32)
        total, wanted = total + (x * calque.tensor(weights)).sum(), wanted + (y * torch.tensor(weights)).sum()
    total.backward()  # type: ignore[attr-defined]
    wanted.backward()  # type: ignore[attr-defined]
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        expected_gradient = gradients.pop(rename(name))
        scale = max(1.0, float(expected_gradient.abs().max()))
        np.testing.assert_allclose(numbers(parameter.grad) / scale, numbers(expected_gradient) / scale, atol=TOLERANCE, err_msg=name)
    assert not gradients


WORDS = np.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


@pytest.mark.parametrize("masked", [False, True])
def test_gpt_is_that_of_transformers(tmp_path: Path, masked: bool) -> None:
    hub = transformers()
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_head": 4, "n_layer": 3, "vocab_size": 11, "n_positions": 8, "n_inner": 24, "bos_token_id": 0, "eos_token_id": 0}
    theirs = hub.GPT2LMHeadModel(hub.GPT2Config(**sizes, initializer_range=0.3)).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="5KB" if masked else "5GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == masked
    ours = models.gpt2(weights=tmp_path).eval()
    assert {k: tuple(v.shape) for k, v in ours.state_dict().items()} == {k: tuple(v.shape) for k, v in theirs.state_dict().items()}
    mask = MASK if masked else None
    out = ours(calque.tensor(WORDS), None if mask is None else calque.tensor(mask))
    expected = theirs(torch.tensor(WORDS), attention_mask=None if mask is None else torch.tensor(mask)).logits
    chosen = MASK.astype(bool) if masked else np.ones_like(MASK, dtype=bool)  # what stands at places that are no words means nothing
    compare(ours, theirs, [out[calque.tensor(chosen)]], [expected[torch.tensor(chosen)]])


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_bert_is_that_of_transformers(tmp_path: Path, kind: str) -> None:
    hub = transformers()
    torch.manual_seed(0)
    config = hub.BertConfig(
        hidden_size=16, num_attention_heads=4, num_hidden_layers=3, vocab_size=11, max_position_embeddings=8, intermediate_size=24,
        initializer_range=0.3, num_labels=3,
    )  # fmt: skip
    theirs = getattr(hub, kind)(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # biases and norms are not what they are at first
            parameter += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)
    head = {"BertModel": "", "BertForMaskedLM": "masked_lm", "BertForSequenceClassification": "classification"}[kind]
    ours = models.bert_base_uncased(weights=tmp_path, head=head).eval()
    assert {k: tuple(v.shape) for k, v in ours.state_dict().items()} == {k: tuple(v.shape) for k, v in theirs.state_dict().items()}
    parts = (np.arange(12).reshape(2, 6) > 3).astype(np.int64) % 2
    out = ours(calque.tensor(WORDS), calque.tensor(MASK), calque.tensor(parts))
    found = theirs(torch.tensor(WORDS), attention_mask=torch.tensor(MASK), token_type_ids=torch.tensor(parts))
    expected = list(found.values()) if kind == "BertModel" else [found.logits]
    compare(ours, theirs, out if kind == "BertModel" else [out], expected)


@pytest.mark.parametrize("tied", [False, True])
def test_the_lstm_is_that_of_the_example(tied: bool) -> None:
    class RNNModel(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.rnn, self.decoder = torch.nn.Embedding(11, 6), torch.nn.LSTM(6, 6, 2), torch.nn.Linear(6, 11)
            if tied:
                self.decoder.weight = self.encoder.weight

        def forward(self, words: Any, hidden: Any) -> Any:
            out, hidden = self.rnn(self.encoder(words), hidden)
            return self.decoder(out), *hidden

    torch.manual_seed(0)
    theirs, ours = RNNModel(), models.LSTMLanguageModel(11, 6, 6, 2, 0.0, tied)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({name: calque.tensor(value.numpy().copy()) for name, value in theirs.state_dict().items()})
    state = np.random.default_rng(0).normal(size=(2, 2, 3, 6)).astype(np.float32)
    words = np.arange(12).reshape(4, 3) % 11
    out, hidden = ours(calque.tensor(words), tuple(calque.tensor(h) for h in state))
    compare(ours, theirs, [out, *hidden], theirs(torch.tensor(words), tuple(torch.tensor(h) for h in state)))


@pytest.mark.parametrize("mask", [None, MASK])
def test_gpt_is_its_text_in_pytorch(tmp_path: Path, mask: Any) -> None:
    """The same model in PyTorch's own words, without transformers: scores, and the gradient of each parameter."""
    calque.manual_seed(0)
    drawn = models.GPT(11, 8, 16, 2, 4, initializer_range=0.3)
    weights = {name: torch.tensor(p.detach().numpy().copy(), requires_grad=True) for name, p in drawn.named_parameters()}
    folder = saved({name.removeprefix("transformer."): w.detach() for name, w in weights.items()}, tmp_path, model_type="gpt2", vocab_size=11,
                   n_positions=8, n_embd=16, n_layer=2, n_head=4)  # fmt: skip
    ours = models.gpt2(weights=folder).eval()

    def norm(x: Any, name: str) -> Any:
        return torch.nn.functional.layer_norm(x, (16,), weights[f"transformer.{name}.weight"], weights[f"transformer.{name}.bias"])

    def layer(x: Any, name: str) -> Any:
        return x @ weights[f"transformer.{name}.weight"] + weights[f"transformer.{name}.bias"]

    allowed = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    if mask is not None:
        allowed = allowed & (torch.tensor(mask)[:, None, None, :] == 1)
    x = weights["transformer.wte.weight"][torch.tensor(WORDS)] + weights["transformer.wpe.weight"][:6]
    for k in range(2):
        q, key, v = (t.view(2, 6, 4, 4).transpose(1, 2) for t in layer(norm(x, f"h.{k}.ln_1"), f"h.{k}.attn.c_attn").split(16, 2))
        scores = (q @ key.transpose(2, 3) / 2).masked_fill(~allowed, -torch.inf)
        x = x + layer((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 16), f"h.{k}.attn.c_proj")
        x = x + layer(torch.nn.functional.gelu(layer(norm(x, f"h.{k}.ln_2"), f"h.{k}.mlp.c_fc"), approximate="tanh"), f"h.{k}.mlp.c_proj")
    expected = norm(x, "ln_f") @ weights["transformer.wte.weight"].T

    class Named:
        def named_parameters(self) -> Any:
            return weights.items()

    compare(ours, Named(), [ours(calque.tensor(WORDS), None if mask is None else calque.tensor(mask))], [expected])


def test_a_layer_of_bert_is_pytorchs_encoder_layer() -> None:
    """Without transformers: attention with a mask, norms behind the sums, GELU as it is, and the gradients of both."""
    calque.manual_seed(0)
    ours = models.BERT(11, 16, 1, 4, 24, max_position_embeddings=8, initializer_range=0.3).eval()
    theirs = torch.nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True)
    named = {name: torch.tensor(value.numpy().copy()) for name, value in ours.encoder["layer"][0].state_dict().items()}
    state = {
        f"self_attn.in_proj_{kind}": torch.cat([named[f"attention.self.{part}.{kind}"] for part in ("query", "key", "value")])
        for kind in ("weight", "bias")
    }
    places = {"attention.output.dense": "self_attn.out_proj", "attention.output.LayerNorm": "norm1", "intermediate.dense": "linear1",
              "output.dense": "linear2", "output.LayerNorm": "norm2"}  # fmt: skip
    for place, name in places.items():
        state |= {f"{name}.{kind}": named[f"{place}.{kind}"] for kind in ("weight", "bias")}
    theirs.load_state_dict(state)
    x = ours.embeddings(calque.tensor(WORDS), None, None).detach().requires_grad_()
    y = torch.tensor(x.detach().numpy().copy(), requires_grad=True)
    out = ours.encoder["layer"][0](x, calque.tensor(MASK)[:, None, None, :] != 0)
    expected = theirs(y, src_key_padding_mask=torch.tensor(MASK) == 0)
    close(out, expected, "layer", TOLERANCE)
    weights = np.random.default_rng(1).uniform(-1, 1, (2, 6, 16)).astype(np.float32)
    (out * calque.tensor(weights)).sum().backward()
    (expected * torch.tensor(weights)).sum().backward()
    close(x.grad, y.grad, "gradient", 5 * TOLERANCE)
    close(ours.encoder["layer"][0].attention["self"].value.weight.grad, theirs.self_attn.in_proj_weight.grad[32:], "value", 5 * TOLERANCE)
