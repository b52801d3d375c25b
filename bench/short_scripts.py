"""Ten short scripts, import to print, as processes of their own: PyTorch eager and Calque take turns.

    python bench/short_scripts.py [--rounds 5] [--threads 2]

Prints the median wall time of each: PyTorch, Calque with a warm kernel cache, Calque with an empty one, and the ratios (above 1 Calque is quicker).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from installed import environment

STEP = """
optimizer = T.optim.{optimizer}(model.parameters(), lr=0.01)
for _ in range(20):
    optimizer.zero_grad()
    loss = {loss}
    loss.backward()
    optimizer.step()
print(loss.item())
"""
CLASSES = "F.cross_entropy(model(x), y)"
SCRIPTS = {
    "perceptron": "model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))\nx, y = T.randn(64, 8), T.randint(0, 3, (64,))"
    + STEP.format(optimizer="SGD", loss=CLASSES),
    "convolutions": "model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 13 * 13, 10))\n"
    "x, y = T.randn(16, 1, 28, 28), T.randint(0, 10, (16,))" + STEP.format(optimizer="Adam", loss=CLASSES),
    "LSTM": "model = nn.LSTM(8, 16, batch_first=True)\nx = T.randn(8, 12, 8)" + STEP.format(optimizer="Adam", loss="model(x)[0].square().mean()"),
    "attention": "model = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)\nx = T.randn(4, 10, 32)"
    + STEP.format(optimizer="AdamW", loss="(model(x) - x).square().mean()"),
    "batch norm": "model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))\nx = T.randn(32, 8)"
    + STEP.format(optimizer="RMSprop", loss="model(x).abs().mean()"),
    "autoencoder": "model = nn.Sequential(nn.Linear(20, 4), nn.Sigmoid(), nn.Linear(4, 20))\nx = T.rand(50, 20)"
    + STEP.format(optimizer="Adam", loss="F.binary_cross_entropy_with_logits(model(x), x)"),
    "embedding": "model = nn.Sequential(nn.Embedding(50, 16), nn.Flatten(), nn.Linear(16 * 5, 50))\n"
    "x, y = T.randint(0, 50, (32, 5)), T.randint(0, 50, (32,))" + STEP.format(optimizer="SGD", loss=CLASSES),
    "gradient by hand": "w, x = T.zeros(5, requires_grad=True), T.randn(40, 5)\ny = x @ T.arange(5.0)\nfor _ in range(20):\n"
    "    loss = ((x @ w - y) ** 2).mean()\n    loss.backward()\n"
    "    with T.no_grad():\n        w -= 0.05 * w.grad\n        w.grad = None\nprint(loss.item())",
    "tensor arithmetic": "x = T.linspace(0, 1, 100)\nfor k in range(20):\n    x = T.sin(x) + 0.1 * T.cos(k * x)\n"
    "print(x.mean().item(), x.std().item())",
    "statistics": "x = T.randn(200, 6)\nfor k in range(20):\n    c = (x - x.mean(0)).T @ (x - x.mean(0)) / (len(x) - 1)\n    x = x + 0.01 * k\n"
    "print(T.linalg.eigvalsh(c).max().item(), x.sort(0).values[0].sum().item())",
}


def seconds(framework: str, script: str, threads: int, cache: str) -> float:
    """One run, from the start of the process to its end."""
    text = f"import {framework} as T\nnn, F = T.nn, T.nn.functional\nT.set_num_threads({threads})\nT.manual_seed(0)\n{script}\n"
    root = str(Path(__file__).resolve().parent.parent)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", text], check=True, stdout=subprocess.DEVNULL, env=environment(PYTHONPATH=root, CALQUE_CACHE=cache))
    return time.perf_counter() - start


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print("| script | PyTorch s | Calque warm s | Calque empty s | PyTorch / warm | PyTorch / empty |\n|---|---:|---:|---:|---:|---:|")
    totals = [0.0, 0.0, 0.0]
    with tempfile.TemporaryDirectory() as folder:
        for name, script in SCRIPTS.items():
            seconds("calque", script, options.threads, f"{folder}/warm")
            runs: list[list[float]] = [[], [], []]
            for k in range(options.rounds):
                runs[0].append(seconds("torch", script, options.threads, f"{folder}/warm"))
                runs[1].append(seconds("calque", script, options.threads, f"{folder}/warm"))
                runs[2].append(seconds("calque", script, options.threads, f"{folder}/{name}{k}"))
            found = [statistics.median(times) for times in runs]
            totals = [a + b for a, b in zip(totals, found, strict=True)]
            print(f"| {name} | {' | '.join(f'{t:.2f}' for t in found)} | {found[0] / found[1]:.2f} | {found[0] / found[2]:.2f} |", flush=True)
    print(f"| all | {' | '.join(f'{t:.2f}' for t in totals)} | {totals[0] / totals[1]:.2f} | {totals[0] / totals[2]:.2f} |")


if __name__ == "__main__":
    main()
