"""Algorithms that people write on tensors: `calque run tests/clients/scripts/algorithms.py [NAME ...]`."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor


def k_means() -> list[Any]:
    """Lloyd's steps from k-means++, by cdist, index_add and scatter_reduce."""
    d = Draws()
    x = torch.cat([d.normal(20, 2) * 0.3 + c for c in torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])])
    centres = x[:1]
    for _ in range(2):
        far = torch.cdist(x, centres).min(dim=1).values
        centres = torch.vstack([centres, x[far.argmax()]])
    for _ in range(5):
        label = torch.cdist(x, centres).argmin(dim=-1)
        total = torch.zeros(3, 2).index_add_(0, label, x)
        count = torch.bincount(label, minlength=3)
        centres = total / count.unsqueeze(1).clamp(min=1)
    mean = torch.zeros(3, 2).scatter_reduce_(0, label[:, None].expand(-1, 2), x, reduce="mean", include_self=False)
    inertia = (x - centres[label]).square().sum()
    silhouette = torch.stack([torch.cdist(x, x)[:, label == k].mean(1) for k in range(3)], 1)
    return [
        count.tolist(),
        centres.sort(dim=0)[0].tolist(),
        (mean - centres).abs().max().item() < 1e-5,
        inertia.item(),
        silhouette.kthvalue(2, dim=1)[0].mean().item(),
    ]


def byte_pairs() -> list[Any]:
    """Byte-pair merges learned from a text, and a causal Transformer on its tokens."""
    text = "low lower lowest newer newest wider widest slow slower slowest " * 2
    words = Counter(tuple(w) for w in text.split())
    merges = []
    for _ in range(8):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, n in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += n
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append("".join(best))
        joined: Counter[tuple[str, ...]] = Counter()
        for word, n in words.items():
            out, i = [], 0
            while i < len(word):
                step = 2 if word[i : i + 2] == best else 1
                out.append("".join(word[i : i + step]))
                i += step
            joined[tuple(out)] += n
        words = joined
    vocabulary = {t: i for i, t in enumerate(sorted({t for w in words for t in w}))}
    ids = torch.tensor([vocabulary[t] for w in sorted(words) for t in w])
    d = Draws(1)
    embed, head = nn.Embedding(len(vocabulary), 16), nn.Linear(16, len(vocabulary), bias=False)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16), enable_nested_tensor=False)
    net = nn.ModuleList([embed, body])
    d.weights(net)
    head.weight = embed.weight
    mask = nn.Transformer.generate_square_subsequent_mask(12)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    windows = ids.unfold(0, 13, 6)
    losses = []
    for _ in range(4):
        logits = head(body(embed(windows[:, :-1]), mask=mask, is_causal=True))
        loss = F.cross_entropy(logits.transpose(1, 2), windows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [merges, len(vocabulary), list(windows.shape), losses, head.weight is embed.weight]


def beam_search() -> list[Any]:
    """Beams, a best-first search, nucleus filtering and a repetition penalty on a recurrent model."""
    d = Draws(2)
    cell, embed, head = nn.GRUCell(8, 8), nn.Embedding(9, 8), nn.Linear(8, 9)
    d.weights(cell, embed, head)
    with torch.inference_mode():
        h, tokens, score = torch.zeros(3, 8), torch.zeros(3, 1, dtype=torch.long), torch.tensor([0.0, -math.inf, -math.inf])
        for _ in range(6):
            h = cell(embed(tokens[:, -1]), h)
            logits = head(h)
            seen = logits.gather(1, tokens)
            logits = logits.scatter(1, tokens, torch.where(seen < 0, seen * 1.3, seen / 1.3))
            total = score[:, None] + logits.log_softmax(-1)
            score, flat = total.flatten().topk(3)
            beam, word = torch.div(flat, 9, rounding_mode="floor"), flat % 9
            tokens, h = torch.cat([tokens[beam], word[:, None]], 1), h.index_select(0, beam)
        ordered, index = torch.sort(logits, descending=True, stable=True)
        drop = ordered.softmax(-1).cumsum(-1) > 0.7
        drop[..., 1:] = drop[..., :-1].clone()
        drop[..., 0] = 0
        kept = logits.masked_fill(torch.zeros_like(drop).scatter_(1, index, drop), -torch.inf)
        queue, best = [(0.0, (0,), torch.zeros(8))], ()
        for _ in range(12):
            cost, path, state = heapq.heappop(queue)
            if len(path) > len(best):
                best = path
            state = cell(embed.weight[path[-1]], state)
            for p, w in zip(*map(Tensor.tolist, head(state).log_softmax(0).topk(2)), strict=True):
                heapq.heappush(queue, (cost - p, (*path, w), state))
    return [tokens.tolist(), score.tolist(), torch.isfinite(kept).sum(1).tolist(), list(best), h.requires_grad, kept.isneginf().any(0).tolist()]


def life_and_fractals() -> list[Any]:
    """A cellular automaton on booleans, an escape-time fractal on complex numbers."""
    board = (Draws(3).uniform(16, 16) < 0.4).to(torch.uint8)
    alive = []
    for _ in range(6):
        padded = F.pad(board[None].float(), (1, 1, 1, 1), mode="circular")[0].to(torch.int16)
        around = sum(padded[1 + i : 17 + i, 1 + j : 17 + j] for i in (-1, 0, 1) for j in (-1, 0, 1)) - board
        board = ((around == 3) | ((board == 1) & (around == 2))).byte()
        alive.append(int(board.sum()))
    y, x = torch.meshgrid(torch.linspace(-1.2, 1.2, 24), torch.linspace(-2, 0.6, 24), indexing="ij")
    c = torch.complex(x, y)
    z, count = torch.zeros_like(c), torch.zeros(c.shape, dtype=torch.int32)
    for _ in range(20):
        inside = z.abs() <= 2
        z = torch.where(inside, z * z + c, z)
        count += inside
    julia = torch.polar(torch.tensor([0.5, 0.9]), torch.tensor([0.3, 2.0]))
    for _ in range(3):
        julia = julia**2 + (0.1 - 0.4j)
    packed = (board.reshape(-1, 8).int() << torch.arange(8)).sum(1).to(torch.uint8)
    return [
        alive,
        count.sum().item(),
        count.float().histc(5, 0, 20).tolist(),
        torch.view_as_real(julia).tolist(),
        julia.angle().tolist(),
        packed[:6].tolist(),
        str(around.dtype),
    ]


def shortest_paths() -> list[Any]:
    """Floyd and Warshall, PageRank on a sparse matrix, components by label propagation, a colouring."""
    d = Draws(4)
    n = 10
    adjacency = torch.triu(d.uniform(n, n) < 0.25, diagonal=1)
    adjacency = adjacency | adjacency.T
    distance = torch.full((n, n), torch.inf).masked_fill_(adjacency, 1.0).fill_diagonal_(0)
    for k in range(n):
        distance = torch.minimum(distance, distance[:, k, None] + distance[k])
    out_degree = adjacency.sum(1, keepdim=True).clamp(min=1)
    walk = (adjacency / out_degree).t().to_sparse()
    rank = torch.full((n, 1), 1 / n)
    for _ in range(30):
        rank = 0.85 * torch.sparse.mm(walk, rank) + 0.15 / n
    label = torch.arange(n)
    for _ in range(n):
        label = torch.where(adjacency, label[None], n).min(1).values.minimum(label)
    colours = (d.normal(n, 3) * 0.1).requires_grad_()
    optimizer = torch.optim.Rprop([colours], lr=0.05)
    losses = []
    for _ in range(10):
        p = colours.softmax(-1)
        loss = ((p @ p.T) * adjacency).sum() / 2 - 0.1 * torch.special.entr(p).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    degree = torch.diag(adjacency.sum(1).float())
    spectrum = torch.linalg.eigvalsh(degree - adjacency.float())
    edges = adjacency.nonzero()
    i, j = torch.where(adjacency)
    return [
        distance.nan_to_num(posinf=-1).sum().item(),
        rank.flatten().tolist(),
        label.tolist(),
        losses,
        int((spectrum < 1e-4).sum()),
        edges[:4].tolist(),
        torch.equal(edges, torch.stack([i, j], 1)),
        walk.coalesce().indices().shape[1],
        len(torch.unique_consecutive(label)),
    ]


def edit_distance() -> list[Any]:
    """Dynamic programs by rows: edit distances, a common subsequence, a knapsack, a longest increasing run."""

    def letters(word: str) -> Tensor:
        return torch.tensor(list(word.encode()), dtype=torch.uint8)

    a, b = letters("intention and more"), letters("execution, once more")
    row = torch.arange(len(b) + 1)
    lcs = torch.zeros(len(a) + 1, len(b) + 1, dtype=torch.int64)
    for i, letter in enumerate(a, start=1):
        diagonal = row[:-1] + (b != letter)
        best = torch.cat([torch.tensor([i]), torch.minimum(diagonal, row[1:] + 1)])
        row = (best - torch.arange(len(best))).cummin(0).values + torch.arange(len(best))
        match = lcs[i - 1, :-1] + (b == letter)
        lcs[i, 1:] = torch.cummax(torch.maximum(match, lcs[i - 1, 1:]), 0)[0]
    weight, value = [3, 4, 5, 9, 14], [3, 4, 4, 10, 15]
    table = torch.zeros(21, dtype=torch.long)
    for w, v in zip(weight, value, strict=True):
        table[w:] = torch.max(table[w:], table[:-w] + v)
    numbers = Draws(5).ints(50, 20)
    runs = torch.ones_like(numbers)
    for i in range(1, 20):
        before = runs[:i][numbers[:i] < numbers[i]]
        runs[i] = before.max() + 1 if before.numel() else 1
    return [
        row[-1].item(),
        lcs[-1, -1].item(),
        table.tolist(),
        runs.max().item(),
        torch.cumprod(torch.tensor([1, 2, 3, 4], dtype=torch.int8), 0).dtype.__repr__(),
        torch.tensor(numbers.tolist()).msort()[:5].tolist(),
        torch.argsort(numbers, stable=True)[-3:].tolist(),
    ]


def tables() -> list[Any]:
    """What people do with data frames: groups, joins, ranks, windows, one-hot and histograms."""
    d = Draws(6)
    key, amount = d.ints(5, 40) * 3, d.normal(40)
    names, group, count = torch.unique(key, return_inverse=True, return_counts=True)
    total = torch.zeros(len(names)).scatter_add(0, group, amount)
    largest = torch.full((len(names),), -torch.inf).scatter_reduce(0, group, amount, "amax")
    product = torch.ones(len(names)).index_reduce(0, group, amount, "prod")
    order = torch.from_numpy(np.lexsort((amount.numpy(), key.numpy())))
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(40))
    right = torch.tensor([0, 3, 6, 6, 20])
    left_rows, right_rows = torch.nonzero(key[:, None] == right, as_tuple=True)
    member = torch.isin(key, torch.tensor([3, 9]), invert=True)
    rolling = amount.unfold(0, 5, 1)
    density, edges = torch.histogram(amount, bins=6, range=(-3.0, 3.0), density=True)
    grid = torch.histogramdd(torch.stack([amount, amount.roll(1)], 1), bins=[3, 3])[0]
    pivot = torch.zeros(5, 2).index_put_((group, (amount > 0).long()), torch.ones(()), accumulate=True)
    cut = torch.bucketize(amount, torch.tensor([-1.0, 0.0, 1.0]), out_int32=True)
    return [
        names.tolist(),
        count.tolist(),
        total.tolist(),
        largest.tolist(),
        product.tolist(),
        rank[:6].tolist(),
        [left_rows[:5].tolist(), right_rows[:5].tolist()],
        member.sum().item(),
        rolling.median(-1)[0].tolist()[:4],
        rolling.std(1, correction=0).mean().item(),
        density.tolist(),
        edges[1].item(),
        grid.tolist(),
        pivot.tolist(),
        cut.tolist()[:8],
        str(cut.dtype),
        torch.std_mean(amount)[1].item(),
        torch.aminmax(amount).max.item(),
        torch.cartesian_prod(names[:2], names[:2]).tolist(),
        torch.combinations(names[:3]).tolist(),
    ]


def hashing() -> list[Any]:
    """Locality-sensitive hashes, Hamming distances, a Bloom filter, bits in and out of integers."""
    d = Draws(7)
    x = d.normal(20, 8)
    planes = d.normal(8, 12)
    bits = x @ planes > 0
    code = (bits * (1 << torch.arange(12))).sum(-1)
    different = torch.bitwise_xor(code[:, None], code[None, :])
    hamming = ((different[..., None] >> torch.arange(12)) & 1).sum(-1)
    cosine = F.cosine_similarity(x[:, None], x[None], dim=-1)
    bloom = torch.zeros(64, dtype=torch.bool)
    keys = code.unsqueeze(1) * torch.tensor([2654435761, 40503]) + 7
    bloom[torch.remainder(keys ^ (keys >> 5), 64)] = True
    tests = torch.arange(4096, 4106)[:, None] * torch.tensor([2654435761, 40503]) + 7
    hits = bloom[(tests ^ (tests >> 5)) % 64].all(1)
    signed = torch.tensor([-128, -1, 0, 127], dtype=torch.int8)
    return [
        code[:6].tolist(),
        hamming.sum().item(),
        torch.corrcoef(torch.stack([hamming.flatten().float(), cosine.acos().nan_to_num().flatten()]))[0, 1].item(),
        bloom.sum().item(),
        hits.tolist(),
        signed.view(torch.uint8).tolist(),
        (~signed).tolist(),
        torch.bitwise_left_shift(signed, 1).tolist(),
        torch.gcd(code[:4], code[4:8]).tolist(),
        torch.tensor([1.0, -2.0]).view(torch.int32).tolist(),
        (signed.to(torch.int32) // 7).tolist(),
        torch.fmod(signed, 7).tolist(),
        torch.lcm(torch.tensor(12), torch.tensor(18)).item(),
    ]


def average_precision() -> list[Any]:
    """Suppression of overlapping boxes and the precision of what is left."""
    d = Draws(8)
    corner = d.uniform(30, 2) * 10
    boxes = torch.cat([corner, corner + 1 + d.uniform(30, 2) * 4], dim=-1)
    score = d.uniform(30)

    def iou(a: Tensor, b: Tensor) -> Tensor:
        low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
        inner = (high - low).clamp_min(0).prod(-1)
        area_a, area_b = ((t[:, 2:] - t[:, :2]).prod(-1) for t in (a, b))
        return inner / (area_a[:, None] + area_b - inner)

    order, keep = score.argsort(descending=True), []
    while order.numel() > 0:
        first = order[0]
        keep.append(first.item())
        if order.size(0) == 1:
            break
        order = order[1:][iou(boxes[first][None], boxes[order[1:]]).squeeze(0) <= 0.3]
    truth = boxes[::4] + 0.2
    overlap, target = iou(boxes[keep], truth).max(1)
    hit = (overlap > 0.5) & ~torch.tensor([t in target[:i].tolist() for i, t in enumerate(target.tolist())])
    precision = hit.cumsum(0) / torch.arange(1, len(keep) + 1)
    recall = hit.float().cumsum(0) / len(truth)
    envelope = precision.flip(0).cummax(0).values.flip(0)
    ap = torch.sum(torch.diff(recall, prepend=torch.zeros(1)) * envelope)
    soft = score.clone()
    for i in score.argsort(descending=True).tolist():
        soft *= torch.where(torch.arange(30) == i, 1.0, torch.exp(-iou(boxes[i : i + 1], boxes)[0].square() / 0.5))
    return [
        keep,
        hit.int().tolist(),
        ap.item(),
        torch.cumulative_trapezoid(envelope, recall).sum().item(),
        soft.sum().item(),
        soft.topk(3)[1].tolist(),
    ]


def neighbour_embedding() -> list[float]:
    """t-SNE with perplexities found by bisection, momentum and early exaggeration."""
    d = Draws(9)
    x = torch.cat([d.normal(8, 5), d.normal(8, 5) + 4])
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    eye = torch.eye(16, dtype=torch.bool)
    low, high = torch.full((16,), 1e-4), torch.full((16,), 1e3)
    for _ in range(40):
        beta = (low * high).sqrt()
        p = F.softmax((-distance * beta[:, None]).masked_fill(eye, -torch.inf), 1)
        entropy = -torch.xlogy(p, p).sum(1)
        low, high = torch.where(entropy > math.log(4), beta, low), torch.where(entropy > math.log(4), high, beta)
    p = (p + p.T) / 32
    y = (d.normal(16, 2) * 0.01).requires_grad_()
    velocity, out = torch.zeros_like(y), []
    for step in range(12):
        w = (1 + torch.pdist(y).square()).reciprocal()
        i, j = torch.triu_indices(16, 16, offset=1)
        q = w / (2 * w.sum())
        target = p[i, j] * (4 if step < 6 else 1)
        loss = 2 * F.kl_div(q.clamp_min(1e-12).log(), target, reduction="sum")
        (g,) = torch.autograd.grad(loss, y)
        velocity = 0.5 * velocity - 2.0 * g
        with torch.no_grad():
            y += velocity
            y -= y.mean(0)
        out.append(loss.item())
    return out


if __name__ == "__main__":
    main(globals())
