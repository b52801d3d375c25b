"""Some 145 small operations, one by one, as programs that never repeat are made of them, beside PyTorch: both take turns, the best of each.

Run: python bench/operations.py [--size 16] [--only topk,cumsum] [--gradients]

`--gradients`: instead some sixty with the backward pass of their sum and its value read, as a step of a small program is.

Prints what is slowest beside PyTorch first, and the geometric mean of all.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

ROUNDS, TIMES = 9, 30
OPERATIONS = """
x + y; x * 2.0; x.exp(); x.relu(); F.gelu(x); x.clamp(-1, 1); T.where(b, x, y); x ** 2; x ** 3.5; x.sum(); x.sum(1); x.mean(0); x.var(1);
x.std(); x.max(); x.max(1); x.argmax(1); x.amax(0); x.norm(); x.prod(1); x.logsumexp(1); x.softmax(-1); F.log_softmax(x, -1);
F.cross_entropy(x, lab); F.mse_loss(x, y); F.binary_cross_entropy_with_logits(x, u); F.smooth_l1_loss(x, y); F.nll_loss(x, lab);
F.kl_div(x, y.exp(), reduction="sum"); x @ y; x @ row; T.bmm(x.view(4, -1, n), y.view(4, n, -1)); T.einsum("ij,kj->ik", x, y); lin(x);
ln(x); cv(im); bn(im); F.max_pool2d(im, 2); F.avg_pool2d(im, 2); F.adaptive_avg_pool2d(im, 1); F.interpolate(im, scale_factor=2);
F.unfold(im, 3); F.dropout(x, 0.5); F.embedding(idx, emb); F.one_hot(lab, n); F.scaled_dot_product_attention(im, im, im); T.cat([x, y]);
T.stack([x, y]); x.split(16); x.chunk(4, 1); x.t(); x.t().contiguous(); x.reshape(-1); x.permute(1, 0); x.unsqueeze(0); row.repeat(4, 1);
x.flip(0); x.roll(1, 0); F.pad(x, (1, 1)); x.tril(); T.triu(x, 1); x[1:5]; x[3]; x[idx]; x[idx, idx]; x[b]; x.masked_fill(b, 0.0);
x.gather(1, i); x.scatter(1, i, y); x.scatter_add(1, i, y); x.index_add(0, lab, y); x.index_select(0, idx); T.take(x, idx); b.nonzero();
x.clone().copy_(y); x.sort(1); row.argsort(); x.topk(5); lab.unique(); x.cumsum(1); x.cumprod(1); x.median(1); x.kthvalue(3, 1);
T.bincount(lab); T.histc(x, 10); T.searchsorted(row.sort()[0], row); T.quantile(row, 0.3); T.cdist(x, y); T.outer(row, row); x.trace();
T.linalg.inv(x); T.linalg.det(x); T.linalg.svdvals(x); T.linalg.cholesky(x @ x.t() + n * T.eye(n)); T.linalg.solve(x, y); T.fft.rfft(row);
T.rand(3); T.randn(n, n); T.randint(0, 9, (n,)); T.randperm(n); T.multinomial(row.abs(), 3); T.bernoulli(row.sigmoid());
T.empty(n).normal_(); T.zeros(n, n); T.ones_like(x); T.arange(n); T.linspace(0, 1, n); T.eye(n); T.full((n,), 2.0);
T.tensor([1.0, 2.0, 3.0]); T.meshgrid(row, row, indexing="ij"); x == y; b.any(); (x == x).all(); x.isnan().any(); T.allclose(x, y);
T.equal(x, y); x.long(); x.double(); x.half(); b.sum(); x.sum().item(); row.tolist(); x.numpy(); x.detach(); x.clone(); x.floor(); x % 2.0;
x // 2.0; i // 3; i + 1; x.abs(); x.sign(); T.minimum(x, y); T.lerp(x, y, 0.3); T.addcmul(x, x, y); T.addmm(x, x, y); x * 2; x > 0;
x[-1, -1]; row[3].item(); x.add_(0.0); x[2].copy_(row); F.cosine_similarity(x, y); x.mean().item()
"""

GRADIENTS = """
x.softmax(-1); F.log_softmax(x, -1); F.cross_entropy(x, lab); F.nll_loss(x, lab); F.mse_loss(x, y); F.smooth_l1_loss(x, y);
F.binary_cross_entropy_with_logits(x, u); F.l1_loss(x, y); F.huber_loss(x, y); F.kl_div(F.log_softmax(x, -1), u, reduction="sum");
x.std(); x.var(1); x.norm(); x.mean(0); x.max(1)[0]; x.logsumexp(1); x.prod(1); x.cumsum(1); x.sort(1)[0]; ln(x); lin(x); gru(x, y);
lstm(x, (y, y))[0]; F.gelu(x); F.silu(x); F.elu(x); F.softplus(x); F.hardtanh(x); F.leaky_relu(x); F.normalize(x, dim=1);
F.cosine_similarity(x, y); T.einsum("ij,jk->ik", x, w); T.cat([x, w]); T.stack([x, w]); x.gather(1, lab[:, None]); x[lab]; F.embedding(lab, w);
F.pad(x, (1, 1)); T.where(b, x, w); x.clamp(-1, 1); x.tril(); F.max_pool2d(im, 2); F.avg_pool2d(im, 2); bn(im); T.cdist(x, w);
F.interpolate(im, scale_factor=2); F.scaled_dot_product_attention(x[None], w[None], x[None]); x @ w; x * w; x.exp(); x.pow(3); T.addmm(y, x, w);
F.dropout(x, 0.5); x.reshape(-1).view(n // 2, -1).t(); x.t().contiguous(); T.linalg.inv(x + n * T.eye(n))
"""


def calls(T: Any, n: int, gradients: bool) -> dict[str, Callable[[], Any]]:
    """Expression -> what computes it. `n`: rows and columns."""
    F, nn = T.nn.functional, T.nn
    T.manual_seed(0)
    x, y, u, row = T.randn(n, n), T.randn(n, n), T.rand(n, n), T.randn(n)
    i, lab, idx = T.randint(0, n, (n, n)), T.randint(0, n, (n,)), T.randint(0, n, (10,))
    names = {
        "T": T, "F": F, "n": n, "x": x, "y": y, "u": u, "row": row, "i": i, "lab": lab, "idx": idx, "b": x > 0, "im": T.randn(2, 3, 16, 16),
        "emb": T.randn(100, 32), "lin": nn.Linear(n, n), "ln": nn.LayerNorm(n), "cv": nn.Conv2d(3, 8, 3), "bn": nn.BatchNorm2d(3),
        "w": T.randn(n, n), "gru": nn.GRUCell(n, n), "lstm": nn.LSTMCell(n, n),
    }  # fmt: skip
    if gradients:
        for name in ("x", "w", "im"):
            names[name].requires_grad_()
    texts = [text.strip() for text in (GRADIENTS if gradients else OPERATIONS).replace("\n", " ").split(";")]
    found = {text: eval(f"lambda: {text}", names) for text in texts}  # noqa: S307 - the texts above
    return {text: step(call) for text, call in found.items()} if gradients else found


def step(call: Callable[[], Any]) -> Callable[[], Any]:
    """What a small program does with a value: its gradients, which are added to those that are there, and the number."""

    def run() -> None:
        loss = call().sum()
        loss.backward()
        loss.item()

    return run


def seconds(call: Callable[[], Any], done: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(TIMES):
        call()
    done()
    return (time.perf_counter() - start) / TIMES


def main() -> None:
    """Print the table."""
    import torch

    import calque

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--only", default="", help="parts of expressions, separated by commas")
    parser.add_argument("--gradients", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    calque.set_num_threads(1)
    ours, theirs = (calls(library, options.size, options.gradients) for library in (calque, torch))
    found: list[tuple[float, str, float, float]] = []
    for text, call in ours.items():
        if options.only and not any(part in text for part in options.only.split(",")):
            continue
        pairs = [(seconds(call, calque.synchronize), seconds(theirs[text], int)) for _ in range(ROUNDS)]
        mine, other = (min(pair[k] for pair in pairs) * 1e6 for k in (0, 1))
        found.append((other / mine, text, mine, other))
    print("| operation | Calque us | PyTorch us | PyTorch / Calque |\n|---|---:|---:|---:|")
    for ratio, text, mine, other in sorted(found):
        print(f"| `{text}` | {mine:.1f} | {other:.1f} | {ratio:.2f} |")
    ratios = sorted(ratio for ratio, *_ in found)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    middle, faster = ratios[len(ratios) // 2], sum(ratio >= 1 for ratio in ratios)
    print(f"\n{len(ratios)} operations: geometric mean {mean:.2f}, median {middle:.2f}, {faster} with at least PyTorch's speed")


if __name__ == "__main__":
    main()
