"""A small transformer that reads the source of Python's standard library character by character, and then writes some."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from common import draw_weights, is_reported, library_text, options


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class CharModel(nn.Module):
    def __init__(self, characters, context=32, width=64, heads=4, layers=2):
        super().__init__()
        self.context = context
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)

    def forward(self, tokens, targets=None):
        x = self.token(tokens) + self.position(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    @torch.no_grad()
    def write(self, tokens, count):
        """The `count` most likely characters behind (1, length) `tokens`, one after the other."""
        for _ in range(count):
            logits, _ = self(tokens[:, -self.context :])
            tokens = torch.cat([tokens, logits[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
        return tokens


def main():
    parser = options(__doc__, steps=150)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--prompt", default="    def __init__(self, ")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)

    text = library_text(100_000)
    characters = sorted(set(text) | set(args.prompt))
    number = {character: index for index, character in enumerate(characters)}
    data = torch.tensor([number[character] for character in text], dtype=torch.long)
    model = draw_weights(CharModel(len(characters)), rng)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(characters)} characters")
    for step in range(1, args.steps + 1):
        starts = rng.integers(0, len(data) - model.context - 1, args.batch_size).tolist()
        inputs = torch.stack([data[i : i + model.context] for i in starts])
        targets = torch.stack([data[i + 1 : i + model.context + 1] for i in starts])
        _, loss = model(inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if is_reported(step, args.steps):
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    written = model.write(torch.tensor([[number[c] for c in args.prompt]]), 40)[0]
    print(repr("".join(characters[i] for i in written.tolist())))


if __name__ == "__main__":
    main()
