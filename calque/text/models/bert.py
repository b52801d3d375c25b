"""BERT. Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers"; parameters as transformers' `BertModel` has them."""

from __future__ import annotations

import re
from collections import namedtuple
from typing import Any

from calque import functional as T
from calque import nn
from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.text.models.weights import State, checked_ids, checked_mask, maker

BERTOutput = namedtuple("BERTOutput", ["last_hidden_state", "pooler_output"])
BERTOutput.__doc__ = "What `BERT` gives: (N, L, hidden_size) for the words, and (N, hidden_size) for the text, or None without a pooler."


class _Embeddings(nn.Module):
    """Numbers of words (N, L) -> (N, L, E): the sum of word, place and part of the text."""

    def __init__(self, words: int, places: int, parts: int, width: int, pad: int | None, dropout: float, eps: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(words, width, padding_idx=pad)
        self.position_embeddings, self.token_type_embeddings = nn.Embedding(places, width), nn.Embedding(parts, width)
        self.LayerNorm, self.dropout = nn.LayerNorm(width, eps=eps), nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None, position_ids: Tensor | None) -> Tensor:
        """The sum behind norm and dropout."""
        places = T.arange(input_ids.shape[1], device=input_ids.device) if position_ids is None else position_ids
        parts = T.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        found = self.word_embeddings(input_ids) + self.token_type_embeddings(parts) + self.position_embeddings(places)
        return self.dropout(self.LayerNorm(found))  # type: ignore[no-any-return]


class _SelfAttention(nn.Module):
    """(N, L, E) -> the same: what the words find in each other."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.chance = heads, dropout
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The values of the words that each one looks at. mask: True where it may look."""
        count, length, width = x.shape
        q, k, v = (
            layer(x).view(count, length, self.heads, width // self.heads).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.chance if self.training else 0.0)
        return found.transpose(1, 2).reshape(count, length, width)


class _Output(nn.Module):
    """A layer whose result is added to what went in before, behind which stands a norm."""

    def __init__(self, inner: int, width: int, dropout: float, eps: float) -> None:
        super().__init__()
        self.dense, self.LayerNorm, self.dropout = nn.Linear(inner, width), nn.LayerNorm(width, eps=eps), nn.Dropout(dropout)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """The normalised sum."""
        return self.LayerNorm(self.dropout(self.dense(x)) + before)  # type: ignore[no-any-return]


class _Layer(nn.Module):
    """(N, L, E) -> the same: attention and a perceptron."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, attention_dropout: float, eps: float) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": _SelfAttention(width, heads, attention_dropout), "output": _Output(width, width, dropout, eps)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = _Output(inner, width, dropout, eps)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The layer's result."""
        x = self.attention["output"](self.attention["self"](x, mask), x)
        return self.output(F.gelu(self.intermediate["dense"](x)), x)  # type: ignore[no-any-return]


def _drawn(model: nn.Module, std: float) -> None:
    """The first weights: normal, biases zero, and the word that fills up shorter texts zero."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding) and module.padding_idx is not None:
                with no_grad():
                    module.weight[module.padding_idx] = 0.0


# What settings of a config.json must be: nothing else is offered.
_ONLY = {
    "model_type": ("bert",), "hidden_act": ("gelu",), "position_embedding_type": ("absolute",), "is_decoder": (False,),
    "add_cross_attention": (False,), "tie_word_embeddings": (True,),
}  # fmt: skip


def _plain(state: State) -> State:
    """A file's tensors under today's names and without those that are no parameters: what every BERT begins with."""
    today = {"gamma": "weight", "beta": "bias"}
    found = {re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda old: today[old[0]], key): value for key, value in state.items()}
    found = {key: value for key, value in found.items() if not key.endswith("embeddings.position_ids")}
    inner = ("embeddings.", "encoder.", "pooler.")
    return {f"bert.{key}" if key.startswith(inner) else key: value for key, value in found.items()}


class BERT(nn.Module):
    """BERT, which looks at all words of a text at once: numbers of words (N, L) -> (N, L, hidden_size), and (N, hidden_size) of the first word.

    vocab_size: words that it knows. hidden_size: width, a multiple of num_attention_heads. num_hidden_layers: layers. intermediate_size: width of the
    perceptrons. hidden_dropout_prob, attention_probs_dropout_prob: chances of dropout in training. max_position_embeddings: the longest text.
    type_vocab_size: parts of a text. initializer_range: standard deviation of the first weights. layer_norm_eps: of the norms. pad_token_id: the word
    that fills up shorter texts, whose vector does not learn; None: there is none. add_pooling_layer: whether there is a vector of the text.

    Defaults are the sizes of `bert_base_uncased`, which makes it with trained weights. The parameters have the names and shapes of transformers'
    `BertModel`. Raises ArgumentError for sizes that do not fit each other.

    >>> from calque.text.models import BERT
    >>> model = BERT(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=8)
    >>> out = model(calque.tensor([[2, 7, 1, 3]]), attention_mask=calque.tensor([[1, 1, 1, 0]]))
    >>> out.last_hidden_state.shape, out.pooler_output.shape
    (torch.Size([1, 4, 8]), torch.Size([1, 8]))
    """

    _HEADS = ("pooler.",)
    _ONLY = _ONLY

    def __init__(
        self, vocab_size: int = 30522, hidden_size: int = 768, num_hidden_layers: int = 12, num_attention_heads: int = 12,
        intermediate_size: int = 3072, hidden_dropout_prob: float = 0.1, attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512, type_vocab_size: int = 2, initializer_range: float = 0.02, layer_norm_eps: float = 1e-12,
        pad_token_id: int | None = 0, add_pooling_layer: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_attention_heads < 1 or hidden_size % num_attention_heads:
            sizes = f"{hidden_size} and {num_attention_heads}"
            raise ArgumentError(f"[BERT] expected hidden_size to be a multiple of num_attention_heads, got {sizes}; change one of them")
        dropout, eps = hidden_dropout_prob, layer_norm_eps
        self.embeddings = _Embeddings(vocab_size, max_position_embeddings, type_vocab_size, hidden_size, pad_token_id, dropout, eps)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(
            _Layer(hidden_size, num_attention_heads, intermediate_size, dropout, attention_probs_dropout_prob, eps) for _ in range(num_hidden_layers)
        )})  # fmt: skip
        self.pooler = nn.ModuleDict({"dense": nn.Linear(hidden_size, hidden_size)}) if add_pooling_layer else None
        _drawn(self, initializer_range)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Any:
        """`BERTOutput(last_hidden_state, pooler_output)`.

        input_ids: integers (N, L), L at most max_position_embeddings. attention_mask: (N, L), 0 where a word is none but fills up a shorter text;
        None: all are words. token_type_ids: integers (N, L), the part of each word; None: all 0. position_ids: integers (L) or (N, L); None: 0 to
        L - 1. Raises DTypeError and ShapeError for others.
        """
        checked_ids("BERT", input_ids, self.embeddings.position_embeddings.num_embeddings)
        mask = None if attention_mask is None else checked_mask("BERT", attention_mask, input_ids)
        x = self.embeddings(input_ids, token_type_ids, position_ids)
        for layer in self.encoder["layer"]:
            x = layer(x, mask)
        return BERTOutput(x, None if self.pooler is None else T.tanh(self.pooler["dense"](x[:, 0])))

    @staticmethod
    def _renamed(state: State) -> State:
        """The names of `BertModel`; what only heads have is left out."""
        return {key[len("bert.") :]: value for key, value in _plain(state).items() if key.startswith("bert.")}


class _Predictions(nn.Module):
    """(N, L, E) -> scores (N, L, words)."""

    def __init__(self, width: int, words: int, eps: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(T.zeros(words))
        self.transform = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, eps=eps)})
        self.decoder = nn.Linear(width, words)
        self.decoder.bias = self.bias

    def forward(self, x: Tensor) -> Tensor:
        """The scores."""
        return self.decoder(self.transform["LayerNorm"](F.gelu(self.transform["dense"](x))))  # type: ignore[no-any-return]


class BERTForMaskedLM(nn.Module):
    """BERT that says which words stand at places that were hidden: numbers of words (N, L) -> scores (N, L, vocab_size).

    options: those of `BERT`, without add_pooling_layer. The last layer has the weights of the first one. The parameters have the names and shapes of
    transformers' `BertForMaskedLM`.

    >>> from calque.text.models import BERTForMaskedLM
    >>> model = BERTForMaskedLM(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    >>> scores = model(calque.tensor([[2, 7, 1, 3]]))
    >>> wanted = calque.tensor([[-100, 9, -100, -100]])  # only the hidden word counts
    >>> calque.nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten()).backward()
    >>> scores.shape
    torch.Size([1, 4, 11])
    """

    _HEADS = ("cls.predictions.",)
    _ONLY = _ONLY

    def __init__(
        self, vocab_size: int = 30522, hidden_size: int = 768, num_hidden_layers: int = 12, num_attention_heads: int = 12,
        intermediate_size: int = 3072, hidden_dropout_prob: float = 0.1, attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512, type_vocab_size: int = 2, initializer_range: float = 0.02, layer_norm_eps: float = 1e-12,
        pad_token_id: int | None = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.bert = BERT(
            vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_dropout_prob, attention_probs_dropout_prob,
            max_position_embeddings, type_vocab_size, initializer_range, layer_norm_eps, pad_token_id, add_pooling_layer=False,
        )  # fmt: skip
        self.cls = nn.ModuleDict({"predictions": _Predictions(hidden_size, vocab_size, layer_norm_eps)})
        _drawn(self.cls, initializer_range)
        self.cls["predictions"].decoder.weight = self.bert.embeddings.word_embeddings.weight

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """The scores of the words, (N, L, vocab_size); arguments as those of `BERT`."""
        return self.cls["predictions"](self.bert(input_ids, attention_mask, token_type_ids, position_ids)[0])  # type: ignore[no-any-return]

    @staticmethod
    def _renamed(state: State) -> State:
        """The names of `BertForMaskedLM`: what other heads have is left out, and what is kept once stands under both of its names."""
        found = {key: v for key, v in _plain(state).items() if key.startswith(("bert.", "cls.predictions.")) and not key.startswith("bert.pooler.")}
        for other, name in (("weight", "bert.embeddings.word_embeddings.weight"), ("bias", "cls.predictions.bias")):
            if name in found and "cls.predictions.transform.dense.weight" in found:
                found[f"cls.predictions.decoder.{other}"] = found[name]
        return found


class BERTForSequenceClassification(nn.Module):
    """BERT that says what kind of text this is: numbers of words (N, L) -> scores (N, num_labels).

    num_labels: kinds. classifier_dropout: chance of dropout before the last layer; None: hidden_dropout_prob. Other options are those of `BERT`,
    without add_pooling_layer. The parameters have the names and shapes of transformers' `BertForSequenceClassification`.

    >>> from calque.text.models import BERTForSequenceClassification
    >>> model = BERTForSequenceClassification(3, vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    >>> model(calque.tensor([[2, 7, 1, 3]])).shape
    torch.Size([1, 3])
    """

    _HEADS = ("bert.pooler.", "classifier.")
    _ONLY = _ONLY

    def __init__(
        self, num_labels: int = 2, vocab_size: int = 30522, hidden_size: int = 768, num_hidden_layers: int = 12, num_attention_heads: int = 12,
        intermediate_size: int = 3072, hidden_dropout_prob: float = 0.1, attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512, type_vocab_size: int = 2, initializer_range: float = 0.02, layer_norm_eps: float = 1e-12,
        pad_token_id: int | None = 0, classifier_dropout: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.bert = BERT(
            vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_dropout_prob, attention_probs_dropout_prob,
            max_position_embeddings, type_vocab_size, initializer_range, layer_norm_eps, pad_token_id,
        )  # fmt: skip
        self.dropout = nn.Dropout(hidden_dropout_prob if classifier_dropout is None else classifier_dropout)
        self.classifier = nn.Linear(hidden_size, num_labels)
        _drawn(self.classifier, initializer_range)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """The scores of the kinds, (N, num_labels); arguments as those of `BERT`."""
        return self.classifier(self.dropout(self.bert(input_ids, attention_mask, token_type_ids, position_ids)[1]))  # type: ignore[no-any-return]

    @staticmethod
    def _renamed(state: State) -> State:
        """The names of `BertForSequenceClassification`; what other heads have is left out."""
        return {key: value for key, value in _plain(state).items() if key.startswith(("bert.", "classifier."))}


_KINDS = {"": BERT, "masked_lm": BERTForMaskedLM, "classification": BERTForSequenceClassification}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
bert_base_uncased, bert_large_uncased, bert_base_cased, bert_large_cased = (
    maker(
        f"bert_{size}_{case}", _KINDS, f"google-bert/bert-{size}-{case}",
        {**({} if size == "base" else _LARGE), "vocab_size": 30522 if case == "uncased" else 28996},
        f"BERT, {size}, {case}; options are those of `BERT`, `BERTForMaskedLM` or `BERTForSequenceClassification`.",
    )
    for case in ("uncased", "cased") for size in ("base", "large")
)  # fmt: skip
