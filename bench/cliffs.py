"""Programs that do not repeat (`unrepeated.py`, `sequences.py`), read in the middle of a step (`reading.py`) or are no networks (`numerics.py`):
PyTorch eager and Calque take turns, each in a process of its own.

    python bench/cliffs.py [--only "TreeLSTM;boolean masks"] [--threads 2] [--empty] [--warm 60 --measured 40]

Turns of a few milliseconds take turns by several at a time (`BLOCK` seconds of them): behind as long a turn of another process the first one begins
with cold caches and sleeping threads, which no loop does. `--single`: one by one all the same.

Prints the median turn of both after the warm-up, the median ratio of neighbouring turns (PyTorch / Calque: above 1 Calque is faster) with the bar
that is asked for, the ratio of the first turns (a fresh process), how many programs Calque compiled in the measured turns, and how much memory it
took in them. `--warm`, `--measured`: other numbers of turns than the case has. Calque has what a process that ran other turns (lengths, trees,
images) has put into its disk cache; with `--empty` it is empty. `--tree FOLDER`: Calque of another tree takes turns with both, and behind the row
stands the time of all measured turns here by that of the other (a median would hide what plans cost that are made now and then).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import installed

HERE = Path(__file__).resolve().parent
OTHERS = 720  # number of the first turn that fills the cache
BLOCK, MOST = 0.02, 10  # seconds of turns behind each other, and turns at most


def resident() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def all_cases() -> dict[str, Any]:
    """By name. The folder of this file is on the path."""
    import numerics
    import reading
    import sequences
    import unrepeated

    return {**unrepeated.CASES, **sequences.CASES, **reading.CASES, **numerics.CASES}


def worker(framework: str, name: str, threads: int, root: str) -> None:
    """Answer each number on standard input with the seconds of that turn, by the Calque of a tree."""
    sys.path[:0] = [str(HERE), root]
    if framework == "torch":
        import torch as T

        T.set_num_threads(threads)
    else:
        import calque as T  # type: ignore[no-redef]

        T.set_num_threads(threads)
    T.manual_seed(0)
    turn = all_cases()[name].make(T)
    for line in sys.stdin:
        start = time.perf_counter()
        value = turn(int(line))
        if framework == "calque":
            T.synchronize()  # what a turn leaves to be computed belongs to it, and would run beside the other's turn
        took = time.perf_counter() - start
        compiled = 0 if framework == "torch" else T.stats()["compiled"]
        print(json.dumps({"seconds": took, "value": value, "compiled": compiled, "mib": resident()}), flush=True)


class Contender:
    """A worker process."""

    def __init__(self, framework: str, name: str, threads: int, environment: dict[str, str], root: str = str(HERE.parent)) -> None:
        command = [sys.executable, __file__, "--worker", framework, "--only", name, "--threads", str(threads), "--root", root]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=installed.environment(**environment))

    def ask(self, turn: int) -> dict[str, Any]:
        """Run one turn."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{turn}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of turn {turn} has died")
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def filled(name: str, case: Any, threads: int, folder: str, root: str, empty: bool) -> dict[str, str]:
    """The environment of a Calque whose disk cache is there, unless it is to be empty."""
    environment = {"CALQUE_CACHE": folder, "PYTHONWARNINGS": "ignore"}
    if not empty:
        before = Contender("calque", name, threads, environment, root)
        for k in range(OTHERS, OTHERS + case.warm + 1):
            before.ask(k)
        before.close()
    return environment


def in_turn(contenders: list[str], block: int) -> list[str]:
    """Who runs in which order. With two trees each of them comes behind PyTorch in half of the blocks: its threads spin on for a while, and the tree
    that always came behind them was measured 7 to 20 % slower than a copy of itself."""
    peer, *trees = contenders
    if len(trees) > 1:
        return [peer, *trees[:: -1 if block % 2 else 1]]
    return contenders[:: -1 if block % 2 else 1]


def measure(name: str, case: Any, threads: int, environments: dict[str, dict[str, str]], single: bool) -> str:
    """One row. `environments`: by the tree, the first is this one."""
    here, *others = environments
    contenders = {f: Contender(f, name, threads, environments[here]) for f in ("torch", "calque")}
    contenders |= {tree: Contender("calque", name, threads, environments[tree], tree) for tree in others}
    first = {f: c.ask(0)["seconds"] for f, c in contenders.items()}
    last: dict[str, Any] = {}
    for k in range(1, case.warm):
        last = {f: c.ask(k) for f, c in contenders.items()}
    times: dict[str, list[float]] = {f: [] for f in contenders}
    begin = last.get("calque") or contenders["calque"].ask(case.warm)
    block = 1 if single or not last else min(MOST, max(1, round(BLOCK / last["torch"]["seconds"])))
    for start in range(case.warm, case.warm + case.measured * block, block):
        for f in in_turn(list(contenders), (start - case.warm) // block):
            total = 0.0
            for k in range(start, start + block):
                last[f] = contenders[f].ask(k)
                total += last[f]["seconds"]
            times[f].append(total / block)
    for contender in contenders.values():
        contender.close()
    ratio = statistics.median(t / c for t, c in zip(times["torch"], times["calque"], strict=True))
    ours, theirs = (statistics.median(times[f]) * 1e3 for f in ("calque", "torch"))
    compiled, grown = last["calque"]["compiled"] - begin["compiled"], last["calque"]["mib"] - begin["mib"]
    return (
        f"| {name} | {ours:.1f} | {theirs:.1f} | {ratio:.2f} | {case.bar} | {first['torch'] / first['calque']:.2f} | {first['calque']:.2f} "
        f"| {compiled} | {grown:.1f} |" + "".join(f" {sum(times['calque']) / sum(times[tree]):.3f} |" for tree in others)
    )


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="names, separated by semicolons")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warm", type=int, help="turns before those that are measured")
    parser.add_argument("--measured", type=int)
    parser.add_argument("--single", action="store_true", help="turns of a few milliseconds one by one, too")
    parser.add_argument("--empty", action="store_true", help="begin with an empty kernel cache")
    parser.add_argument("--tree", help="another tree of Calque, which takes turns too")
    parser.add_argument("--root", default=str(HERE.parent), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.only, options.threads, options.root)
        return
    sys.path[:0] = [str(HERE)]
    other = bool(options.tree)
    print("| program | Calque ms | PyTorch ms | PyTorch / Calque | bar | first turn | Calque s | compiled | MiB |" + " here / other |" * other)
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|" + "---:|" * other)
    cases = all_cases()
    for name in options.only.split(";") if options.only else cases:
        given = {key: value for key in ("warm", "measured") if (value := getattr(options, key)) is not None}
        case = dataclasses.replace(cases[name], **given)
        with tempfile.TemporaryDirectory() as folder:
            trees = [options.root, *([options.tree] if options.tree else [])]
            environments = {tree: filled(name, case, options.threads, f"{folder}/{k}", tree, options.empty) for k, tree in enumerate(trees)}
            print(measure(name, case, options.threads, environments, options.single), flush=True)


if __name__ == "__main__":
    main()
