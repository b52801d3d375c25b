"""`python -m tests.fuzz.run --count 10000`: many random programs, every mismatch shrunk and printed with the line that repeats it."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.check import WAYS, mismatch, report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--skip", default="", help="steps to leave out, separated by commas")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"what to compare with the reference: {', '.join(WAYS)}")
    options = parser.parse_args()
    ways = tuple(options.ways.split(","))
    skip = frozenset(int(s) for s in options.skip.split(",") if s)
    failures, start = 0, time.monotonic()
    print(f"{options.count} programs of {options.steps} steps, seeds from {options.seed}", flush=True)
    for seed in range(options.seed, options.seed + options.count):
        try:
            text = mismatch(seed, options.steps, skip, ways)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        if text:
            failures += 1
            print(text if skip else report_or(seed, options.steps, ways, text), flush=True)
        done = seed - options.seed + 1
        if done % 250 == 0:
            print(f"{done} programs, {failures} mismatches, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{options.count} programs, {failures} mismatches, {time.monotonic() - start:.0f} s")
    return 1 if failures else 0


def report_or(seed: int, steps: int, ways: tuple[str, ...], text: str) -> str:
    """The shrunk failure, or the first message if shrinking fails in its own way."""
    try:
        return report(seed, steps, ways)
    except Exception as error:
        return f"seed {seed}: {text} (not shrunk: {type(error).__name__}: {error})"


if __name__ == "__main__":
    sys.exit(main())
