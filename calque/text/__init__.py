"""Text: language models with the parameters of the published ones.

>>> import calque
>>> model = calque.text.models.GPT(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
>>> model(calque.tensor([[3, 1, 4]])).shape
torch.Size([1, 3, 11])
"""

from calque.text import models

__all__ = ["models"]
