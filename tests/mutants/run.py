"""Reliability row R9: do the tests notice bugs? Every mutant of `table.py` is applied alone in a copy of the project.

    python -m tests.mutants.run [--only TEXT] [--jobs N]

Prints a line per mutant, then how many were killed and which survived; exit status 1 if fewer than 95 % were.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 600  # a mutant that hangs is noticed too
REQUIRED = 0.95


def copy_project(folder: Path) -> None:
    """What the tests need of the project."""
    for name in ("calque", "tests", "bench", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)


def run_tests(folder: Path, tests: tuple[str, ...]) -> tuple[bool, str]:
    """(passed, the line that says why not)."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "CALQUE_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False, f"no end within {SECONDS} s"
    if done.returncode not in (0, 1, 2) and done.returncode > 0:
        raise RuntimeError(f"[mutants] pytest could not run {tests}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 0, lines[0] if lines else f"exit status {done.returncode}"


def applied(mutant: Mutant, text: str) -> str:
    """The mutated text of its file; raises if the mutant does not apply."""
    if text.count(mutant.old) != 1:
        raise ValueError(f"[mutants] expected {mutant.name!r} to find its text once in {mutant.path}, got {text.count(mutant.old)} times")
    return text.replace(mutant.old, mutant.new)


def killed(mutant: Mutant) -> tuple[bool, str, float]:
    """(killed, by what, seconds)."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_project(folder)
        path = folder / mutant.path
        path.write_text(applied(mutant, path.read_text()))
        passed, why = run_tests(folder, mutant.tests)
    return not passed, why, time.perf_counter() - start


def main() -> int:
    """Run all mutants."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only in m.name]
    survivors = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, (dead, why, seconds) in zip(chosen, pool.map(killed, chosen), strict=True):
            print(f"{'killed  ' if dead else 'SURVIVED'} {seconds:5.0f} s  {mutant.name}: {why if dead else mutant.path}", flush=True)
            if not dead:
                survivors.append(mutant.name)
    count = len(chosen) - len(survivors)
    print(f"{count} of {len(chosen)} killed; survivors: {', '.join(survivors) or 'none'}")
    return 0 if count >= REQUIRED * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
