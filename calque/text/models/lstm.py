"""A language model of an LSTM. Source: PyTorch's example `word_language_model`, whose names and shapes its parameters have; tied weights: Press and
Wolf 2017, "Using the Output Embedding to Improve Language Models"."""

from __future__ import annotations

from calque import nn
from calque.base.errors import ArgumentError
from calque.tensor import Tensor


class LSTMLanguageModel(nn.Module):
    """An LSTM that says of each word, or character, what the next one is: numbers (L, N) -> scores (L, N, ntoken), and the state behind them.

    ntoken: words that it knows. ninp: width of their vectors. nhid: width of the state. nlayers: LSTMs above each other. dropout: chance in training,
    of the vectors, between the layers and before the last one. tie_weights: the last layer has the weights of the first one, for which ninp must be
    nhid. Raises ArgumentError otherwise.

    The parameters (encoder, rnn, decoder) have the names and shapes of `RNNModel` in PyTorch's example of a word language model; the scores are not
    normalised: `cross_entropy` takes them as they are, where the example has a `log_softmax` and `NLLLoss`.

    >>> from calque.text.models import LSTMLanguageModel
    >>> model = LSTMLanguageModel(11, 8, 8, 2, tie_weights=True)
    >>> words = calque.tensor([[3, 1], [4, 1], [5, 9]])  # two texts, from top to bottom
    >>> scores, hidden = model(words, model.init_hidden(2))
    >>> scores.shape, hidden[0].shape, model.decoder.weight is model.encoder.weight
    (torch.Size([3, 2, 11]), torch.Size([2, 2, 8]), True)
    """

    def __init__(self, ntoken: int, ninp: int = 200, nhid: int = 200, nlayers: int = 2, dropout: float = 0.5, tie_weights: bool = False) -> None:
        super().__init__()
        if tie_weights and ninp != nhid:
            raise ArgumentError(f"[LSTMLanguageModel] expected nhid to be ninp with tie_weights=True, got {nhid} and {ninp}; make them equal")
        self.ntoken, self.nhid, self.nlayers = ntoken, nhid, nlayers
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout if nlayers > 1 else 0.0)
        self.decoder = nn.Linear(nhid, ntoken)
        if tie_weights:
            self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)  # type: ignore[arg-type]
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def init_hidden(self, bsz: int) -> tuple[Tensor, Tensor]:
        """The state before the first word of `bsz` texts: two tensors of zeros, (nlayers, bsz, nhid)."""
        weight = self.decoder.weight
        return weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid)

    def forward(self, input: Tensor, hidden: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The scores (L, N, ntoken) of the next words and the state, which goes on to the next piece of the texts once it is detached.

        input: integers (L, N). hidden: what `init_hidden` or an earlier call gave; None: the state before the first word.
        """
        output, after = self.rnn(self.drop(self.encoder(input)), hidden)
        return self.decoder(self.drop(output)), after
