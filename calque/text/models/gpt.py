"""GPT-2. Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; parameters are those of transformers' `GPT2LMHeadModel`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

from calque import functional as T
from calque import nn
from calque.base.errors import ArgumentError, StateDictError
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.text.models.weights import State, checked_ids, checked_mask, maker


class Conv1D(nn.Module):
    """(..., nx) -> (..., nf): a linear layer whose weight is stored as (nx, nf), as GPT-2's files have it.

    nf: features that come out. nx: features that go in.

    >>> from calque.text.models import Conv1D
    >>> Conv1D(3, 2)(calque.ones(4, 2)).shape
    torch.Size([4, 3])
    """

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(T.randn(nx, nf) * 0.02)
        self.bias = nn.Parameter(T.zeros(nf))

    def extra_repr(self) -> str:
        """Its sizes."""
        return f"nf={self.nf}, nx={self.nx}"

    def forward(self, x: Tensor) -> Tensor:
        """x @ weight + bias."""
        return F.linear(x, self.weight.t(), self.bias)


class _Attention(nn.Module):
    """(N, L, E) -> the same: each word looks at itself and those before it."""

    def __init__(self, width: int, heads: int, attn_pdrop: float, resid_pdrop: float) -> None:
        super().__init__()
        self.heads, self.attn_pdrop = heads, attn_pdrop
        self.c_attn, self.c_proj = Conv1D(3 * width, width), Conv1D(width, width)
        self.resid_dropout = nn.Dropout(resid_pdrop)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What the words find. mask: True where one may look, or None for all before it."""
        count, length, width = x.shape
        q, k, v = (
            part.view(count, length, self.heads, width // self.heads).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2)
        )
        chance = self.attn_pdrop if self.training else 0.0
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=chance, is_causal=mask is None)
        return self.resid_dropout(self.c_proj(found.transpose(1, 2).reshape(count, length, width)))  # type: ignore[no-any-return]


class _Perceptron(nn.Module):
    """(..., E) -> the same."""

    def __init__(self, width: int, inner: int, resid_pdrop: float) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.dropout = Conv1D(inner, width), Conv1D(width, inner), nn.Dropout(resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        """The result; GELU is the approximation by tanh that GPT-2 was trained with."""
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))  # type: ignore[no-any-return]


class _Block(nn.Module):
    """(N, L, E) -> the same: attention and a perceptron, each behind a norm and added to its input."""

    def __init__(self, width: int, heads: int, inner: int, attn_pdrop: float, resid_pdrop: float, eps: float) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width, eps=eps), _Attention(width, heads, attn_pdrop, resid_pdrop)
        self.ln_2, self.mlp = nn.LayerNorm(width, eps=eps), _Perceptron(width, inner, resid_pdrop)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The block's result."""
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class _Transformer(nn.Module):
    """Numbers of words (N, L) -> (N, L, E)."""

    def __init__(
        self, vocab_size: int, n_positions: int, n_embd: int, n_layer: int, embd_pdrop: float, eps: float, block: Callable[[], _Block]
    ) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(vocab_size, n_embd), nn.Embedding(n_positions, n_embd), nn.Dropout(embd_pdrop)
        self.h = nn.ModuleList(block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd, eps=eps)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """What the last block gives for each word."""
        checked_ids("GPT", input_ids, self.wpe.num_embeddings)
        length = input_ids.shape[1]
        places = T.arange(length, device=input_ids.device) if position_ids is None else position_ids
        mask = None
        if attention_mask is not None:
            before = T.ones(length, length, dtype="bool", device=input_ids.device).tril()
            mask = checked_mask("GPT", attention_mask, input_ids) & before
        x = self.drop(self.wte(input_ids) + self.wpe(places))
        for block in self.h:
            x = block(x, mask)
        return self.ln_f(x)  # type: ignore[no-any-return]


class GPT(nn.Module):
    """GPT-2, which says of each word what the next one is: numbers of words (N, L) -> scores (N, L, vocab_size).

    vocab_size: words that it knows. n_positions: the longest text. n_embd: width, a multiple of n_head. n_layer: blocks. n_head: heads of attention.
    n_inner: width of the perceptrons; None: four times n_embd. resid_pdrop, embd_pdrop, attn_pdrop: chances of dropout in training.
    layer_norm_epsilon: of the norms. initializer_range: standard deviation of the first weights. The last layer has the weights of the first one.

    Defaults are the sizes of the smallest published model; `gpt2` makes it with trained weights. The parameters have the names and shapes of
    transformers' `GPT2LMHeadModel`. Raises ArgumentError for sizes that do not fit each other.

    >>> from calque.text.models import GPT
    >>> model = GPT(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    >>> words = calque.tensor([[3, 1, 4, 1, 5]])
    >>> scores = model(words[:, :-1])
    >>> calque.nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten()).backward()
    >>> scores.shape, model.transformer.wte.weight is model.lm_head.weight
    (torch.Size([1, 4, 11]), True)
    """

    _HEADS: tuple[str, ...] = ()
    _ONLY = {
        "model_type": ("gpt2",), "activation_function": ("gelu_new", "gelu_pytorch_tanh"), "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,), "reorder_and_upcast_attn": (False,), "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    }  # fmt: skip

    def __init__(
        self, vocab_size: int = 50257, n_positions: int = 1024, n_embd: int = 768, n_layer: int = 12, n_head: int = 12, n_inner: int | None = None,
        resid_pdrop: float = 0.1, embd_pdrop: float = 0.1, attn_pdrop: float = 0.1, layer_norm_epsilon: float = 1e-5, initializer_range: float = 0.02,
    ) -> None:  # fmt: skip
        super().__init__()
        if n_head < 1 or n_embd % n_head:
            raise ArgumentError(f"[GPT] expected n_embd to be a multiple of n_head, got {n_embd} and {n_head}; change one of them")
        inner = 4 * n_embd if n_inner is None else n_inner
        block = partial(_Block, n_embd, n_head, inner, attn_pdrop, resid_pdrop, layer_norm_epsilon)
        self.transformer = _Transformer(vocab_size, n_positions, n_embd, n_layer, embd_pdrop, layer_norm_epsilon, block)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:  # what is added to the sum of all blocks is smaller, so that the sum does not grow with their number
                last = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=initializer_range / math.sqrt(2 * n_layer) if last else initializer_range)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """The scores of the next word, (N, L, vocab_size).

        input_ids: integers (N, L), L at most n_positions. attention_mask: (N, L), 0 where a word is none but fills up a shorter text; None: all are
        words. position_ids: integers (L) or (N, L), the places of the words; None: 0 to L - 1. Raises DTypeError and ShapeError for others.
        """
        return self.lm_head(self.transformer(input_ids, attention_mask, position_ids))  # type: ignore[no-any-return]

    @staticmethod
    def _renamed(state: State) -> State:
        """The names of `GPT2LMHeadModel` for a file that has them, or those of `GPT2Model`, and that may keep masks as older ones do."""
        # Masks, which older files hold, are no parameters of anything.
        found = {key: value for key, value in state.items() if not re.search(r"\.attn\.(masked_)?bias$", key)}
        found = {key if key.startswith(("transformer.", "lm_head.")) else f"transformer.{key}": value for key, value in found.items()}
        first, last = found.get("transformer.wte.weight"), found.get("lm_head.weight")
        if first is not None and last is not None and not T.equal(first, last):
            raise StateDictError("[GPT] expected lm_head.weight to be transformer.wte.weight, got two matrices; the model is another one")
        if first is not None:
            found["lm_head.weight"] = first
        return found


# Width, blocks and heads of the published sizes.
_SIZES = {"gpt2": (768, 12, 12), "gpt2-medium": (1024, 24, 16), "gpt2-large": (1280, 36, 20), "gpt2-xl": (1600, 48, 25)}
gpt2, gpt2_medium, gpt2_large, gpt2_xl = (
    maker(
        kind.replace("-", "_"), {"": GPT}, f"openai-community/{kind}", {"n_embd": row[0], "n_layer": row[1], "n_head": row[2]},
        f"GPT-2 with {row[1]} blocks of width {row[0]}; options are those of `GPT`.",
    )
    for kind, row in _SIZES.items()
)  # fmt: skip
