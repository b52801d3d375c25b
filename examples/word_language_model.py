"""A language model of words: an LSTM with tied weights reads the source of Python's standard library, and says how surprised it is."""

import math
import re

import numpy as np
import torch
import torch.nn as nn
from common import draw_weights, is_reported, library_text, options


class Dictionary:
    """Words and their numbers. Rare words share number 0."""

    def __init__(self, words, size):
        count = {}
        for word in words:
            count[word] = count.get(word, 0) + 1
        common = sorted(count, key=lambda word: (-count[word], word))[: size - 1]
        self.idx2word = ["<rare>", *common]
        self.word2idx = {word: index for index, word in enumerate(self.idx2word)}

    def __len__(self):
        return len(self.idx2word)

    def encode(self, words):
        return torch.tensor([self.word2idx.get(word, 0) for word in words])


class RNNModel(nn.Module):
    def __init__(self, words, width=64, layers=2):
        super().__init__()
        self.encoder = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, layers)
        self.decoder = nn.Linear(width, words)
        self.decoder.weight = self.encoder.weight
        self.layers, self.width = layers, width

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return self.decoder(output), hidden

    def init_hidden(self, batch):
        weight = next(self.parameters())
        return weight.new_zeros(self.layers, batch, self.width), weight.new_zeros(self.layers, batch, self.width)


def batchify(tokens, batch):
    """(length, batch): each column is a piece of the text, read from top to bottom."""
    length = tokens.size(0) // batch
    return tokens[: length * batch].view(batch, length).t().contiguous()


def main():
    parser = options(__doc__, steps=100)
    parser.add_argument("--bptt", type=int, default=20, help="words after which the gradient is cut")
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--lr", type=float, default=5.0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)

    words = re.findall(r"\w+|[^\w\s]|\n", library_text(120_000))
    dictionary = Dictionary(words, 1000)
    data = batchify(dictionary.encode(words), 16)
    model = draw_weights(RNNModel(len(dictionary)), rng)
    criterion = nn.CrossEntropyLoss()
    hidden, place = model.init_hidden(16), 0
    for step in range(1, args.steps + 1):
        if place + args.bptt + 1 > len(data):
            hidden, place = model.init_hidden(16), 0
        tokens, targets = data[place : place + args.bptt], data[place + 1 : place + args.bptt + 1].reshape(-1)
        place += args.bptt
        hidden = tuple(h.detach() for h in hidden)
        model.zero_grad()
        output, hidden = model(tokens, hidden)
        loss = criterion(output.view(-1, len(dictionary)), targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-args.lr)
        if is_reported(step, args.steps):
            print(f"step {step} loss {loss.item():.4f} perplexity {math.exp(loss.item()):.2f} gradient {norm.item():.4f}")


if __name__ == "__main__":
    main()
