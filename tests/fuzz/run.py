"""`python -m tests.fuzz.run --count 10000`: many random programs, every mismatch shrunk and printed with the line that repeats it. `--skip`: steps to
leave out, `--ways`: what to compare with the reference, both separated by commas."""

from __future__ import annotations

from tests.fuzz.check import WAYS, mismatch, report
from tests.fuzz.command import main


def check(seed: int, steps: int, skip: str, ways: str) -> str:
    """"" or the shrunk failure of a seed, or the first message if shrinking fails in its own way."""
    left_out, compared = frozenset(int(s) for s in skip.split(",") if s), tuple(ways.split(","))
    try:
        text = mismatch(seed, steps, left_out, compared)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    if not text or left_out:
        return text
    try:
        return report(seed, steps, compared)
    except Exception as error:
        return f"{text} (not shrunk: {type(error).__name__}: {error})"


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.run", __doc__, check, steps=14, skip="", ways=",".join(WAYS)))
