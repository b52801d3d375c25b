"""Training steps of this tree beside those of another checkout of Calque, taking turns: did a change make a step slower?

    python bench/against.py ../other-checkout [--slices 9] [--threads 2] [--hybrid] [--only mlp,gpt]

One warm worker process per tree, each with a kernel cache of its own; ratios are medians over neighbouring slices, this tree / the other (below 1:
this tree is faster). The last columns are the middle half of the ratios: a difference smaller than that range means nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from all import BUSY, HERE, SECONDS, Worker


def main() -> None:
    """Measure and print a row per step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--slices", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hybrid", action="store_true", help="the hybridized steps instead of those as written")
    parser.add_argument("--only", default="", help="names of steps, separated by commas")
    options = parser.parse_args()
    trees = {"here": HERE.parent, "other": options.other.resolve()}
    if not (trees["other"] / "calque" / "__init__.py").exists():
        parser.error(f"{trees['other']} is no checkout of Calque")
    name = "calque hybrid" if options.hybrid else "calque"
    base = Path(os.environ.get("CALQUE_CACHE", Path.home() / ".cache" / "calque"))
    workers = {k: Worker(name, options.threads, {"PYTHONPATH": str(p), "CALQUE_CACHE": str(base / f"against-{k}")}) for k, p in trees.items()}
    chosen = [s for s in SECONDS if not options.only or s in options.only.split(",")]
    load = os.getloadavg()[0]
    if load > BUSY:
        sys.stdout.write(f"load average {load:.1f}: the machine is not quiet\n")
    sys.stdout.write(f"{'':14} {'here ms':>9} {'other ms':>9} {'here / other':>13}  middle half\n")
    for step in chosen:
        times: dict[str, list[float]] = {k: [] for k in workers}
        for slice_ in range(options.slices):
            for k in list(workers)[:: -1 if slice_ % 2 else 1]:
                answer = workers[k].ask("step", step, SECONDS[step])
                if "error" in answer:
                    parser.error(f"{k}, {step}: {answer['error']}")
                times[k].append(answer["seconds"])
        ratios = sorted(a / b for a, b in zip(times["here"], times["other"], strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        here, other = (statistics.median(times[k]) * 1e3 for k in ("here", "other"))
        sys.stdout.write(f"{step:14} {here:9.2f} {other:9.2f} {statistics.median(ratios):13.3f}  {low:.3f} to {high:.3f}\n")
        sys.stdout.flush()
    for worker in workers.values():
        worker.close()


if __name__ == "__main__":
    main()
