"""Sequences of other lengths at every turn: recurrent layers over them, packed or padded, decoders, and programs of small operations behind them.
`cliffs.py` runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
from unrepeated import Case, Turn


def gru_tagger(T: Any) -> Turn:
    """Convolution, GRU of both directions and a label for every place, another length at most turns; a branch at every third length."""
    nn = T.nn
    words, near, head = nn.Embedding(50, 24), nn.Conv1d(24, 48, 3, padding=1), nn.Linear(64, 7)
    layer = nn.GRU(48, 32, batch_first=True, bidirectional=True)
    parameters = [p for m in (words, near, layer, head) for p in m.parameters()]
    optimizer = T.optim.AdamW(parameters, lr=3e-3)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        x = T.tensor(rng.integers(0, 50, (8, int(rng.integers(5, 60)))))
        optimizer.zero_grad()
        h = T.relu(near(words(x).transpose(1, 2))).transpose(1, 2)
        if x.shape[1] % 3 == 0:
            h = h + h.mean(1, keepdim=True)
        loss = nn.functional.cross_entropy(head(layer(h)[0]).reshape(-1, 7), (x % 7).reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return float(loss.item())

    return turn


def packed_classifier(T: Any, kind: str) -> Turn:
    """Two layers over packed sequences, classified by their last state: other lengths in every batch, and mostly another longest one."""
    nn = T.nn
    words, layer, head = nn.Embedding(100, 64), getattr(nn, kind)(64, 128, 2), nn.Linear(128, 5)
    parameters = [p for m in (words, layer, head) for p in m.parameters()]
    optimizer = T.optim.Adam(parameters, lr=1e-3)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        lengths = np.sort(rng.integers(10, 60, 16))[::-1].copy()
        x = T.tensor(rng.integers(0, 100, (int(lengths[0]), 16)))
        optimizer.zero_grad()
        _, states = layer(nn.utils.rnn.pack_padded_sequence(words(x), lengths.tolist()))
        last = (states[0] if kind == "LSTM" else states)[-1]
        loss = nn.functional.cross_entropy(head(last), x[0] % 5)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


def translator(T: Any, own_words: bool) -> Turn:
    """An encoder, and a decoder with attention, word by word. `own_words`: at random it reads on from what it has said itself."""
    nn, F = T.nn, T.nn.functional
    words, encoder, cell = nn.Embedding(60, 48), nn.GRU(48, 64, batch_first=True), nn.GRUCell(48 + 64, 64)
    asked, out = nn.Linear(64, 64), nn.Linear(128, 60)
    parameters = [p for m in (words, encoder, cell, asked, out) for p in m.parameters()]
    optimizer = T.optim.Adam(parameters, lr=1e-3)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        source, target = (T.tensor(rng.integers(1, 60, (8, int(rng.integers(low, high))))) for low, high in ((6, 20), (5, 15)))
        optimizer.zero_grad()
        memory, h = encoder(words(source))
        h, word, context, loss = h[0], T.zeros(8, dtype=T.int64), T.zeros(8, 64), 0.0
        for t in range(target.shape[1]):
            h = cell(T.cat([words(word), context], 1), h)
            weights = F.softmax((memory @ asked(h).unsqueeze(2)).squeeze(2), 1)
            context = (weights.unsqueeze(1) @ memory).squeeze(1)
            scores = out(T.cat([h, context], 1))
            loss = loss + F.cross_entropy(scores, target[:, t])
            word = scores.argmax(1) if own_words and rng.random() < 0.5 else target[:, t]
        loss = loss / target.shape[1]
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return float(loss.item())

    return turn


def random_field(T: Any) -> Turn:
    """A conditional random field over an LSTM of both directions: a sum over all labellings, step by step."""
    nn = T.nn
    words, layer, scores = nn.Embedding(80, 32), nn.LSTM(32, 32, bidirectional=True, batch_first=True), nn.Linear(64, 7)
    moves = nn.Parameter(T.zeros(7, 7))
    optimizer = T.optim.SGD([p for m in (words, layer, scores) for p in m.parameters()] + [moves], lr=0.05, momentum=0.9)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        length = int(rng.integers(5, 25))
        x, y = T.tensor(rng.integers(0, 80, (4, length))), T.tensor(rng.integers(0, 7, (4, length)))
        single = scores(layer(words(x))[0])
        total = single[:, 0]
        for t in range(1, length):
            total = T.logsumexp(total.unsqueeze(2) + moves, 1) + single[:, t]
        path = single.gather(2, y.unsqueeze(2)).squeeze(2).sum(1) + moves[y[:, :-1], y[:, 1:]].sum(1)
        loss = (T.logsumexp(total, 1) - path).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


def speech(T: Any) -> Turn:
    """A convolution, two GRUs of both directions and connectionist temporal classification."""
    nn, F = T.nn, T.nn.functional
    near, layer, out = nn.Conv1d(20, 48, 5, 2, 2), nn.GRU(48, 48, 2, bidirectional=True), nn.Linear(96, 12)
    parameters = [p for m in (near, layer, out) for p in m.parameters()]
    optimizer = T.optim.Adam(parameters, lr=1e-3)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        x, sizes = T.tensor(rng.standard_normal((4, 20, int(rng.integers(40, 100))), dtype=np.float32)), rng.integers(3, 9, 4)
        labels = T.tensor(rng.integers(1, 12, int(sizes.sum())))
        optimizer.zero_grad()
        scores = F.log_softmax(out(layer(F.relu(near(x)).permute(2, 0, 1))[0]), -1)
        loss = F.ctc_loss(scores, labels, T.full((4,), scores.shape[0]), T.tensor(sizes))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        return float(loss.item())

    return turn


def steady(T: Any, kind: str, shape: tuple[int, int, int], units: int, layers: int = 1) -> Turn:
    """Training steps of layers on one shape (steps, rows, inputs), classified by the last output."""
    layer, head = getattr(T.nn, kind)(shape[2], units, layers), T.nn.Linear(units, 10)
    optimizer = T.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-3)
    x, y = T.randn(*shape), T.randint(0, 10, (shape[1],))

    def turn(k: int) -> float:
        optimizer.zero_grad()
        loss = T.nn.functional.cross_entropy(head(layer(x)[0][-1]), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


CASES: dict[str, Case] = {
    "GRU, one shape": Case(lambda T: steady(T, "GRU", (50, 16, 64), 128), 20, 60),
    "two GRUs, one shape": Case(lambda T: steady(T, "GRU", (100, 32, 128), 256, 2), 5, 15),
    "two RNNs, one shape": Case(lambda T: steady(T, "RNN", (100, 32, 128), 256, 2), 5, 15),
    "GRU, one row": Case(lambda T: steady(T, "GRU", (200, 1, 32), 64), 20, 60),
    "GRU tagger, new lengths": Case(gru_tagger),
    "packed GRU, new lengths": Case(lambda T: packed_classifier(T, "GRU")),
    "packed LSTM, new lengths": Case(lambda T: packed_classifier(T, "LSTM")),
    "packed RNN, new lengths": Case(lambda T: packed_classifier(T, "RNN")),
    "translator": Case(lambda T: translator(T, False)),
    "translator, own words": Case(lambda T: translator(T, True)),
    "random field": Case(random_field),
    "speech, new lengths": Case(speech),
}
