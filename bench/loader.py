"""Samples a second out of Calque's `DataLoader` beside PyTorch's, from the same data sets, taking turns.

    python bench/loader.py [--images 512] [--side 256] [--crop 224] [--rounds 5] [--threads 2] [--small]

Each side is a process of its own; passes of both follow each other, with the order turned in every round, and the numbers are medians over rounds.
Workers stay between passes, and the first pass of each loader is not counted; what it took until its first batch is the column "first batch".
The rows: JPEG files through Pillow (decode, random crop, flip, normalise: `loader_data.py`); the same files resized alone and then augmented in
batches by the framework (flip, brightness, normalise, read at the end); and a transform that computes in Python, without and with worker processes.
PyTorch's workers are forked, Calque's come from a server that forks; with "threads" they are threads, which only Calque has.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loader_data import MEAN, STD, Folder, Slow, write_images

SIDES = ("calque", "torch")


def augmented(T: Any, images: Any) -> Any:
    """(N, 3, H, W) uint8 -> float32, normalised, every second one turned round at random, each with a brightness of its own."""
    x = images.float() / 255
    x = T.where(T.rand(len(x), 1, 1, 1) < 0.5, x.flip(-1), x) * (0.8 + 0.4 * T.rand(len(x), 1, 1, 1))
    return (x - T.from_numpy(MEAN).view(1, 3, 1, 1)) / T.from_numpy(STD).view(1, 3, 1, 1)


class Side:
    """One framework and its loaders, which stay open between passes."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.T = importlib.import_module(name)
        self.T.set_num_threads(options["threads"])
        self.DataLoader = importlib.import_module("calque.data" if name == "calque" else "torch.utils.data").DataLoader
        self.options = options
        self.loaders: dict[str, Any] = {}

    def loader(self, case: str, workers: int, kind: str) -> Any:
        o = self.options
        data = Slow(o["samples"], o["loop"]) if case == "python" else Folder(o["folder"], o["crop"], case == "batches")
        more = {"multiprocessing_context": kind} if kind else {}
        return self.DataLoader(data, o["batch"], shuffle=True, num_workers=workers, persistent_workers=workers > 0, **more)

    def run(self, case: str, workers: int, kind: str) -> dict[str, float]:
        """One pass: samples a second, and seconds to the first batch."""
        name = f"{case} {workers} {kind}"
        if name not in self.loaders:
            self.loaders[name] = self.loader(case, workers, kind)
        start, first, count, last = time.perf_counter(), 0.0, 0, None
        for images, _ in self.loaders[name]:
            if not count:
                first = time.perf_counter() - start
            count += len(images)
            last = augmented(self.T, images).mean() if case == "batches" else images
            if case == "batches":
                last.item()  # augmented, as a step of training would need it
        float(last.reshape(-1)[0].item())
        return {"rate": count / (time.perf_counter() - start), "first": first}

    def close(self, case: str, workers: int, kind: str) -> dict[str, float]:
        """Let the workers of a loader end, so that they do not stand beside those of the next row."""
        self.loaders.pop(f"{case} {workers} {kind}", None)
        return {}


def serve(name: str, options: dict[str, Any]) -> None:
    """Answer requests, one line of JSON each."""
    side = Side(name, options)
    for line in sys.stdin:
        what, *words = json.loads(line)
        sys.stdout.write(json.dumps(getattr(side, what)(*words)) + "\n")
        sys.stdout.flush()


class Peer:
    """The process of a side."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        command = [sys.executable, __file__, "--serve", name, json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *request: Any) -> dict[str, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a side has ended with exit code {self.process.wait()} instead of answering {request}")
        return json.loads(line)  # type: ignore[no-any-return]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# What the rows are called, the case, the number of workers, and their kind where Calque has one of its own.
ROWS = [
    *[("JPEG, Pillow", "images", workers, kind) for workers, kind in ((0, ""), (1, ""), (2, ""), (2, "thread"))],
    *[("JPEG, augmented in batches", "batches", workers, kind) for workers, kind in ((0, ""), (2, ""), (2, "thread"))],
    *[("Python", "python", workers, "") for workers in (0, 1, 2)],
]


def row(peers: dict[str, Peer], what: str, case: str, workers: int, kind: str, rounds: int) -> str:
    """Measure a row."""
    order = [name for name in peers if not kind or name == "calque"]
    first = {name: peers[name].ask("run", case, workers, kind)["first"] for name in order}
    rates: dict[str, list[float]] = {name: [] for name in order}
    for number in range(rounds):
        for name in order[:: -1 if number % 2 else 1]:
            rates[name].append(peers[name].ask("run", case, workers, kind)["rate"])
    for name in order:
        peers[name].ask("close", case, workers, kind)
    cells = []
    for name in SIDES:
        cells += [f"{statistics.median(rates[name]):.0f}", f"{first[name] * 1e3:.0f}"] if name in rates else ["-", "-"]
    ratio = "-"
    if len(rates) == 2:
        found = sorted(a / b for a, b in zip(rates["calque"], rates["torch"], strict=True))
        ratio = f"{statistics.median(found):.2f} ({found[len(found) // 4]:.2f} to {found[-1 - len(found) // 4]:.2f})"
    who = f"{workers} {'threads' if kind else 'processes'}" if workers else "none"
    return f"| {what} | {who} | {' | '.join(cells)} | {ratio} |"


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--side", type=int, default=256, help="pixels of a file")
    parser.add_argument("--crop", type=int, default=224, help="pixels of a sample")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--samples", type=int, default=256, help="of the transform in Python")
    parser.add_argument("--loop", type=int, default=50_000, help="rounds of its loop for a sample")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="small sizes, to see that it runs")
    options = parser.parse_args()
    if options.small:
        options.images, options.side, options.crop, options.batch, options.samples, options.loop, options.rounds = 24, 64, 48, 8, 24, 500, 1
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), options.images, options.side)
        settings = {**vars(options), "folder": folder}
        peers = {}
        for name in SIDES:
            if importlib.util.find_spec(name) is not None:
                peers[name] = Peer(name, settings)
        print(f"load average {os.getloadavg()[0]:.1f}; {options.images} files of {options.side} pixels, batches of {options.batch}")
        print("| data | workers | Calque /s | first batch ms | PyTorch /s | first batch ms | Calque / PyTorch (middle half) |")
        print("|---|---|---:|---:|---:|---:|---:|", flush=True)
        for what, case, workers, kind in ROWS:
            print(row(peers, what, case, workers, kind, options.rounds), flush=True)
        for peer in peers.values():
            peer.close()


if __name__ == "__main__":
    main()
