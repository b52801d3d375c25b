"""Language models; their state dicts have the names and shapes of Hugging Face's transformers, and of PyTorch's example of a word language model."""

import sys

from calque.functional.blame import publish as _publish
from calque.text.models.bert import (
    BERT,
    BERTForMaskedLM,
    BERTForSequenceClassification,
    BERTOutput,
    bert_base_cased,
    bert_base_uncased,
    bert_large_cased,
    bert_large_uncased,
)
from calque.text.models.gpt import GPT, Conv1D, gpt2, gpt2_large, gpt2_medium, gpt2_xl
from calque.text.models.lstm import LSTMLanguageModel

__all__ = [
    "BERT", "BERTForMaskedLM", "BERTForSequenceClassification", "BERTOutput", "Conv1D", "GPT", "LSTMLanguageModel", "bert_base_cased",
    "bert_base_uncased", "bert_large_cased", "bert_large_uncased", "gpt2", "gpt2_large", "gpt2_medium", "gpt2_xl",
]  # fmt: skip

_publish(sys.modules[__name__])
