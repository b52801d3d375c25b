"""How far our results and gradients are from float64, beside PyTorch's: one row per case of `tests/oracle/accuracy.py`.

Run: python bench/accuracy.py [substring ...]; prints a table in Markdown: our error, PyTorch's and their ratio, of the result and of the
gradients (the input's first).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.oracle.accuracy import cases, measure

SEEDS = 12


def main() -> None:
    """All cases, or those whose name contains an argument."""
    torch.set_num_threads(1)
    print("| case | result: ours, PyTorch's, ratio | gradients |\n|---|---|---|")
    for case in cases():
        if len(sys.argv) == 1 or any(part in case.name for part in sys.argv[1:]):
            cells = [f"{ours:.1e}, {theirs:.1e}, {ours / theirs if theirs else 1:.2f}" for ours, theirs in measure(case, torch, SEEDS)]
            print(f"| {case.name} | {cells[0]} | {'; '.join(cells[1:])} |", flush=True)


if __name__ == "__main__":
    main()
