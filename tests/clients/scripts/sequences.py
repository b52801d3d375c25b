"""Sequences: `calque run tests/clients/scripts/sequences.py [NAME ...]`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor, optim
from torch.utils.data import DataLoader, Dataset


def seq2seq_attention() -> list[Any]:
    """A GRU encoder over packed sequences, a decoder with additive attention, teacher forcing, greedy decoding."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 8, padding_idx=0)
            self.query, self.key, self.score = nn.Linear(16, 16), nn.Linear(32, 16), nn.Linear(16, 1, bias=False)
            self.cell, self.out = nn.GRUCell(8 + 32, 16), nn.Linear(16, 12)

        def forward(self, token: Tensor, h: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            e = self.score(torch.tanh(self.query(h).unsqueeze(1) + self.key(memory))).squeeze(-1)
            a = e.masked_fill(~mask, float("-inf")).softmax(-1)
            h = self.cell(torch.cat([self.embed(token), torch.bmm(a.unsqueeze(1), memory).squeeze(1)], -1), h)
            return self.out(h), h

    d = Draws(20)
    embed, encoder, bridge, decoder = nn.Embedding(12, 8), nn.GRU(8, 16, batch_first=True, bidirectional=True), nn.Linear(32, 16), Decoder()
    d.weights(embed, encoder, bridge, decoder)
    params = [p for m in (embed, encoder, bridge, decoder) for p in m.parameters()]
    opt = optim.Adam(params, lr=5e-3)
    source, lengths = d.ints(11, 4, 7) + 1, torch.tensor([7, 3, 5, 2])
    mask = torch.arange(7)[None, :] < lengths[:, None]
    source = source * mask
    target = torch.flip(source, dims=[1])
    log: list[Any] = []
    for step in range(4):
        packed = nn.utils.rnn.pack_padded_sequence(embed(source), lengths, batch_first=True, enforce_sorted=False)
        states, last = encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=7)
        h = torch.tanh(bridge(torch.cat([last[0], last[1]], dim=1)))
        token, loss = torch.full((4,), 1), 0.0
        for t in range(7):
            logits, h = decoder(token, h, memory, mask)
            loss = loss + F.cross_entropy(logits, target[:, t], ignore_index=0)
            token = target[:, t] if step % 2 == 0 else logits.argmax(-1)
        opt.zero_grad()
        (loss / 7).backward()
        nn.utils.clip_grad_value_(params, 0.5)
        opt.step()
        log.append(float(loss))
    return log


def transformer_seq2seq() -> list[Any]:
    """nn.Transformer with masks, the schedule of the paper, label smoothing and beam search."""
    d = Draws(21)
    model = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    embed, out = nn.Embedding(15, 16), nn.Linear(16, 15)
    d.weights(model, embed)
    out.weight = embed.weight
    opt = optim.Adam([*model.parameters(), *embed.parameters(), out.bias], lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    nn.init.zeros_(out.bias)
    sched = optim.lr_scheduler.LambdaLR(opt, lambda k: 16**-0.5 * min((k + 1) ** -0.5, (k + 1) * 20**-1.5))
    src, tgt = d.ints(14, 3, 6) + 1, d.ints(14, 3, 5) + 1
    pad = torch.zeros(3, 6, dtype=torch.bool)
    pad[1, 4:] = True
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    log: list[Any] = []
    for _ in range(4):
        y = model(embed(src) * 4, embed(tgt[:, :-1]) * 4, tgt_mask=causal, src_key_padding_mask=pad, memory_key_padding_mask=pad)
        loss = F.cross_entropy(out(y).transpose(1, 2), tgt[:, 1:], label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        log.append(loss.item())
    model.eval()
    beams = [(0.0, [1])]
    with torch.no_grad():
        memory = model.encoder(embed(src[:1]) * 4)
        for _ in range(4):
            found = []
            for score, words in beams:
                y = model.decoder(embed(torch.tensor([words])) * 4, memory)
                values, indices = F.log_softmax(out(y[:, -1]), -1).topk(2)
                found += [(score + v, [*words, k]) for v, k in zip(values[0].tolist(), indices[0].tolist())]
            beams = sorted(found, reverse=True)[:2]
    return [*log, beams[0][1]]


def gpt_rope() -> list[Any]:
    """A decoder with rotary positions, RMS norm, SwiGLU, grouped queries, a key-value cache and top-k filtering."""

    class Norm(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(n))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)

    def rotate(x: Tensor, start: int) -> Tensor:
        freqs = 1.0 / (10000.0 ** (torch.arange(0, 8, 2)[:4].float() / 8))
        cis = torch.polar(torch.ones(x.shape[1], 4), torch.outer(torch.arange(start, start + x.shape[1]).float(), freqs))
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * cis[None, :, None]).flatten(3).type_as(x)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv, self.o = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
            self.w1, self.w2, self.w3 = nn.Linear(32, 48, bias=False), nn.Linear(48, 32, bias=False), nn.Linear(32, 48, bias=False)
            self.n1, self.n2 = Norm(32), Norm(32)

        def forward(self, x: Tensor, cache: list[Any], start: int) -> Tensor:
            h = self.n1(x)
            b, t, _ = h.shape
            q = rotate(self.q(h).view(b, t, 4, 8), start)
            k, v = self.kv(h).view(b, t, 2, 2, 8).unbind(2)
            k = rotate(k, start)
            if cache:
                k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
            cache[:] = [k, v]
            k, v = (s.repeat_interleave(2, dim=2) for s in (k, v))
            a = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=t > 1)
            x = x + self.o(a.transpose(1, 2).contiguous().view(b, t, -1))
            h = self.n2(x)
            return x + self.w2(F.silu(self.w1(h)) * self.w3(h))

    d = Draws(22)
    embed, blocks, norm = nn.Embedding(20, 32), nn.ModuleList(Block() for _ in range(2)), Norm(32)
    d.weights(embed, blocks)

    def logits(words: Tensor, caches: list[list[Any]], start: int = 0) -> Tensor:
        x = embed(words)
        for block, cache in zip(blocks, caches):
            x = block(x, cache, start)
        return norm(x) @ embed.weight.T

    decay = [p for p in [*embed.parameters(), *blocks.parameters()] if p.dim() >= 2]
    rest = [p for p in [*blocks.parameters(), *norm.parameters()] if p.dim() < 2]
    opt = optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95))
    data = d.ints(20, 100)
    log: list[Any] = []
    for _ in range(4):
        at = d.rng.randint(0, 90, 4)
        x, y = torch.stack([data[i : i + 8] for i in at]), torch.stack([data[i + 1 : i + 9] for i in at])
        out = logits(x, [[], []])
        loss = F.cross_entropy(out.view(-1, out.size(-1)), y.view(-1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*decay, *rest], 1.0)
        opt.step()
        log.append(loss.item())
    words, caches = data[None, :4], [[], []]
    with torch.inference_mode():
        out = logits(words, caches)
        for _ in range(6):
            last = out[:, -1] / 0.8
            v, _ = torch.topk(last, 5)
            last[last < v[:, [-1]]] = -float("Inf")
            token = torch.softmax(last, -1).argmax(-1, keepdim=True)
            words = torch.cat((words, token), dim=1)
            out = logits(token, caches, words.shape[1] - 1)
        whole = logits(words, [[], []])
    return [*log, words.tolist(), bool(torch.allclose(whole[:, -1], out[:, -1], atol=1e-4))]


def ctc_speech() -> list[Any]:
    """Spectrograms by STFT, mel filters, convolutions, a bidirectional LSTM, CTC and its best path."""
    d = Draws(23)
    wave = torch.sin(torch.arange(800).float()[None] * torch.tensor([[0.1], [0.25]])) + 0.05 * d.normal(2, 800)
    spec = torch.stft(wave, n_fft=64, hop_length=32, window=torch.hann_window(64), return_complex=True, center=True, pad_mode="reflect").abs().pow(2)
    mel = torch.clamp(1 - (torch.linspace(0, 10, 33)[None] - torch.arange(1, 10)[:, None]).abs(), min=0)
    x = torch.log(mel @ spec + 1e-6)
    x = (x - x.mean(dim=(1, 2), keepdim=True)) / x.std(dim=(1, 2), keepdim=True)
    conv, rnn, head = nn.Conv1d(9, 16, 5, stride=2, padding=2), nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(24, 6)
    d.weights(conv, rnn, head)
    loss_fn = nn.CTCLoss(blank=0, zero_infinity=True)
    opt = optim.SGD([*conv.parameters(), *rnn.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    target, sizes = torch.tensor([1, 2, 3, 2, 5, 4, 4]), torch.tensor([4, 3])
    log: list[Any] = []
    for _ in range(4):
        h, _ = rnn(F.hardtanh(conv(x), 0, 20).transpose(1, 2))
        logp = head(h).log_softmax(-1).transpose(0, 1)
        loss = loss_fn(logp, target, torch.full((2,), logp.size(0), dtype=torch.long), sizes)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    path = logp.argmax(-1).T
    return [*log, [torch.unique_consecutive(row)[torch.unique_consecutive(row) != 0].tolist() for row in path]]


def tcn_forecast() -> list[float]:
    """Dilated causal convolutions with weight normalisation, residuals, quantile loss, a plateau scheduler."""

    class Block(nn.Module):
        def __init__(self, n: int, m: int, dilation: int) -> None:
            super().__init__()
            self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(n, m, 3, dilation=dilation))
            self.skip = nn.Conv1d(n, m, 1) if n != m else nn.Identity()
            self.left = 2 * dilation

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.conv(F.pad(x, (self.left, 0))) + self.skip(x))

    d = Draws(24)
    net = nn.Sequential(Block(1, 8, 1), Block(8, 8, 2), Block(8, 8, 4), nn.Conv1d(8, 3, 1))
    d.weights(net)
    series = torch.sin(torch.arange(120) * 0.3) + torch.arange(120) * 0.01
    windows = series.unfold(0, 25, 5)
    quantiles = torch.tensor([0.1, 0.5, 0.9]).view(1, 3, 1)
    opt = optim.Adam(net.parameters(), lr=1e-2)
    sched = optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0, threshold=0.5)
    log = []
    for _ in range(5):
        x, y = windows[:, None, :-1], windows[:, None, 1:]
        error = y - net(x)
        loss = torch.max(quantiles * error, (quantiles - 1) * error).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step(loss.item())
        log += [loss.item(), opt.param_groups[0]["lr"]]
    return log


def nbeats() -> list[float]:
    """Blocks of backcast and forecast; a Dataset of windows; a split; SMAPE; early stopping."""

    class Windows(Dataset):
        def __init__(self, series: Tensor) -> None:
            self.series = series

        def __len__(self) -> int:
            return len(self.series) - 12

        def __getitem__(self, i: int) -> dict[str, Tensor]:
            return {"past": self.series[i : i + 8], "future": self.series[i + 8 : i + 12]}

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
            self.back, self.fore = nn.Linear(16, 8), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.body(x)
            return self.back(h), self.fore(h)

    d = Draws(25)
    blocks = nn.ModuleList([Block(), Block()])
    d.weights(blocks)
    data = Windows(torch.cos(torch.arange(40) * 0.4) + 2)
    train, valid = data, torch.utils.data.Subset(data, range(20, 28))
    opt = optim.Adadelta(blocks.parameters(), lr=1.0)
    best, log = math.inf, []

    def forecast(x: Tensor) -> Tensor:
        total = 0
        for block in blocks:
            back, fore = block(x)
            x, total = x - back, total + fore
        return total

    for _ in range(3):
        for batch in DataLoader(train, batch_size=10, drop_last=True):
            y = forecast(batch["past"])
            loss = (2 * (y - batch["future"]).abs() / (y.abs() + batch["future"].abs() + 1e-8)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        blocks.eval()
        with torch.no_grad():
            score = sum(F.l1_loss(forecast(b["past"]), b["future"], reduction="sum").item() for b in DataLoader(valid, batch_size=4)) / len(valid)
        blocks.train()
        log.append(score)
        if score > best:
            break
        best = score
    return log


def awd_lstm() -> list[float]:
    """A language model with truncated backpropagation, tied weights, activation regularisation and averaged SGD."""
    d = Draws(26)
    embed, rnn, out = nn.Embedding(30, 16), nn.LSTM(16, 16, 2), nn.Linear(16, 30)
    d.weights(embed, rnn, out)
    out.weight = embed.weight
    params = list({id(p): p for m in (embed, rnn, out) for p in m.parameters()}.values())
    opt = optim.ASGD(params, lr=0.5, t0=0, lambd=0.0)
    data = d.ints(30, 4 * 25).view(4, -1).t().contiguous()
    hidden = (torch.zeros(2, 4, 16), torch.zeros(2, 4, 16))
    log = []
    for i in range(0, data.size(0) - 1, 6):
        size = min(6, data.size(0) - 1 - i)
        hidden = tuple(h.detach() for h in hidden)
        raw, hidden = rnn(embed(data[i : i + size]), hidden)
        loss = F.cross_entropy(out(raw).flatten(0, 1), data[i + 1 : i + 1 + size].reshape(-1))
        total = loss + 2.0 * raw.pow(2).mean() + (raw[1:] - raw[:-1]).pow(2).mean()
        opt.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(params, 0.25)
        opt.step()
        log.append(math.exp(loss.item()))
    return log + [opt.state[params[0]]["ax"].sum().item()]


def word2vec() -> list[float]:
    """Skip-grams with negative samples by an EmbeddingBag and nearest neighbours."""
    d = Draws(27)
    inner, outer = nn.Embedding(40, 12), nn.Embedding(40, 12)
    bag = nn.EmbeddingBag(40, 12, mode="mean")
    d.weights(inner, outer, bag)
    opt = optim.SGD([*inner.parameters(), *outer.parameters(), *bag.parameters()], lr=0.5)
    log = []
    for _ in range(4):
        center, context, negative = d.ints(40, 16), d.ints(40, 16), d.ints(40, 16, 5)
        c = inner(center) + bag(d.ints(40, 40), torch.arange(0, 40, 2.5).long())
        positive = F.logsigmoid((c * outer(context)).sum(1))
        noise = F.logsigmoid(-torch.einsum("bnd,bd->bn", outer(negative), c)).sum(1)
        loss = -(positive + noise).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    with torch.no_grad():
        similar = F.cosine_similarity(inner.weight[:1], inner.weight, dim=1)
        similar[0] = -1
        log += similar.topk(3).values.tolist()
    return log


def crf_tagger() -> list[Any]:
    """A linear-chain CRF: the partition function by logsumexp, Viterbi by maxima."""
    d = Draws(28)
    rnn, emit = nn.RNN(6, 10, nonlinearity="relu", batch_first=True), nn.Linear(10, 4)
    d.weights(rnn, emit)
    transitions = nn.Parameter(d.normal(4, 4) * 0.1)
    opt = optim.Rprop([*rnn.parameters(), *emit.parameters(), transitions], lr=0.01)
    x, tags = d.normal(3, 5, 6), d.ints(4, 3, 5)
    log: list[Any] = []
    for _ in range(4):
        scores = emit(rnn(x)[0])
        alpha = scores[:, 0]
        for t in range(1, 5):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + transitions + scores[:, t].unsqueeze(1), dim=1)
        gold = scores.gather(2, tags[..., None]).sum((1, 2)) + transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        loss = (alpha.logsumexp(-1) - gold).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    v, back = scores[0, 0], []
    for t in range(1, 5):
        best, where = (v[:, None] + transitions).max(dim=0)
        back.append(where)
        v = best + scores[0, t]
    path = [int(v.argmax())]
    for where in reversed(back):
        path.append(int(where[path[-1]]))
    return [*log, path[::-1]]


def tree_lstm() -> list[float]:
    """A recursive network over nested tuples."""
    d = Draws(29)
    embed, iou, forget, head = nn.Embedding(10, 8), nn.Linear(16, 24), nn.Linear(8, 8), nn.Linear(8, 2)
    d.weights(embed, iou, forget, head)

    def encode(tree: Any) -> tuple[Tensor, Tensor]:
        if isinstance(tree, int):
            x, parts = embed(torch.tensor([tree])), []
        else:
            x, parts = torch.zeros(1, 8), [encode(part) for part in tree]
        h = sum((h for h, _ in parts), torch.zeros(1, 8))
        i, o, u = iou(torch.cat([x, h], 1)).chunk(3, 1)
        c = i.sigmoid() * u.tanh() + sum(torch.sigmoid(forget(hk)) * ck for hk, ck in parts)
        return o.sigmoid() * c.tanh(), c

    trees = [((1, 2), 3), (4, (5, (6, 7))), (8, 9), (((1, 3), 5), (2, 4))]
    opt = optim.Adam([p for m in (embed, iou, forget, head) for p in m.parameters()], lr=0.01)
    log = []
    for _ in range(3):
        loss = torch.stack([F.cross_entropy(head(encode(tree)[0]), torch.tensor([k % 2])) for k, tree in enumerate(trees)]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    return log


if __name__ == "__main__":
    main(globals())
