"""Every flag of Calque, and the only reader of the process environment.

>>> from calque.base import config
>>> config.settings.sync
False
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from dataclasses import field
from pathlib import Path

from calque.base.dataclass import dataclass
from calque.base.text import nearest

MOST_DEVICES = 256  # logical devices; each that is used has threads of its own
MOST_THREADS = 256  # threads of a device
TARGETS = ("sse2", "avx2", "avx512")  # machines that CALQUE_CPU_TARGET may name
TOPICS = ("fuse", "compile")  # of CALQUE_LOG
TRACEBACKS = ("short", "full")  # of CALQUE_TRACEBACK: the program's frames, or all
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")

# Every variable, and a text that cannot be used for it where there is one: tests give each of them.
VARIABLES: dict[str, str | None] = {}


def _given(name: str, wrong: str | None) -> str:
    VARIABLES[name] = wrong
    return os.environ.get(name, "").strip()


def _report(name: str, expected: str, text: str, instead: str) -> None:
    """Say that a variable cannot be used, at the line that imports Calque: an import must not fail because of a variable."""
    shown = repr(text if len(text) <= 80 else text[:77] + "...")
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and (ours := frame.f_globals.get("__name__", "").partition(".")[0]) in ("calque", "importlib"):
        level += ours == "calque"  # `warn` does not count the others
        frame = frame.f_back
    warnings.warn(f"[{name}] expected {expected}, got {shown}; {instead}", RuntimeWarning, stacklevel=level)


def _flag(name: str, default: bool = False) -> bool:
    text = _given(name, "perhaps").lower()
    if text not in _YES + _NO:
        _report(name, f"one of {', '.join(_YES)}, {', '.join(_NO[1:])}", text, f"it is taken as {_YES[0] if default else _NO[1]}")
        return default
    return text in _YES if text or name in os.environ else default


def _number(name: str, default: int, least: int = 0, most: int = 1 << 62, meaning: str = "") -> int:
    """The whole number in a variable. What cannot be used is reported and not used."""
    text = _given(name, "1e9").partition(",")[0].strip()  # OMP_NUM_THREADS may be a list, one number for each level of nesting
    if not text:
        return default
    number = int(text) if len(text) < 20 and text.removeprefix("-").isdecimal() else None
    if number is None or not least <= number <= most:
        _report(name, f"a whole number, {least}{f' to {most}' if most < 1 << 62 else ' or more'}", text, f"it is taken as {meaning or default}")
        return default
    return number


def _words(name: str, known: tuple[str, ...]) -> str:
    """A list of words; those that are not known are reported and not used."""
    words = [word.strip() for word in _given(name, "everything").split(",") if word.strip()]
    for word in words:
        if word not in known:
            _report(name, f"one or more of {', '.join(known)}, separated by commas", word, "it is not used")
    return ",".join(word for word in words if word in known)


def _one_of(name: str, known: tuple[str, ...], default: str, instead: str) -> str:
    """A word; one that is not known is reported and not used."""
    text = _given(name, "z80")
    if text and text not in known:
        _report(name, f"one of {', '.join(known)}", text, instead)
        return default
    return text or default


def _target() -> str:
    return _one_of("CALQUE_CPU_TARGET", TARGETS, "", "this machine is compiled for as it is")


def _home_cache() -> Path:
    """Where caches belong on this system; a user without a home gets a folder among the temporary files (and `cache` looks whose it is)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "calque"
    try:
        home = os.path.expanduser("~") if os.environ.get("HOME", "~") else ""
    except (KeyError, RuntimeError):
        home = ""
    if os.path.isabs(home) and os.path.isdir(home):
        return Path(home) / ".cache" / "calque"
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"calque-{os.geteuid() if hasattr(os, 'geteuid') else 0}"


def _default_cache() -> Path:
    text = _given("CALQUE_CACHE", os.devnull)
    if not text:
        return _home_cache()
    path = Path(text)
    there = next((p for p in (path, *path.absolute().parents) if os.path.exists(p)), Path("/"))
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        _report("CALQUE_CACHE", "a folder that this user may write to", text, "programs that are compiled are not kept")
    return path


def _default_threads() -> int:
    asked = 0
    for name in ("OMP_NUM_THREADS", "CALQUE_NUM_THREADS"):
        asked = _number(name, asked, 0, MOST_THREADS, f"{asked or available_cores()}, the number of cores" if not asked else "")
    return asked if asked > 0 else available_cores()


def available_cores() -> int:
    """Number of cores this process may use (respects CPU affinity)."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


@dataclass(slots=True)
class Settings:
    """Process-wide settings, read once from the environment; tests may assign."""

    sync: bool = field(default_factory=lambda: _flag("CALQUE_SYNC"))  # run every flush synchronously (the oracle engine)
    verify: bool = field(default_factory=lambda: _flag("CALQUE_VERIFY"))  # infer programs again after every pass; run library code instead of replays
    poison: bool = field(default_factory=lambda: _flag("CALQUE_VERIFY"))  # memory holds NaN, or implausible integers, until somebody writes to it
    backend: str = field(default_factory=lambda: _given("CALQUE_BACKEND", None) or "cpu")  # "cpu" or "ref" (interpreter)
    threads: int = field(default_factory=_default_threads)
    logical_devices: int = field(default_factory=lambda: _number("CALQUE_LOGICAL_DEVICES", 1, 1, MOST_DEVICES))  # cpu:0..n-1 share the threads
    cache_dir: Path = field(default_factory=_default_cache)  # object code
    cache_bytes: int = field(default_factory=lambda: _number("CALQUE_CACHE_BYTES", 512 << 20))
    compile_in_process: bool = field(default_factory=lambda: _flag("CALQUE_COMPILE_IN_PROCESS"))  # else LLVM runs in processes of its own
    tune: bool = field(default_factory=lambda: _flag("CALQUE_TUNE"))  # time candidate schedules of contractions on first use
    cpu_target: str = field(default_factory=_target)  # "" or one of `TARGETS`
    max_pending_ops: int = field(default_factory=lambda: _number("CALQUE_MAX_PENDING_OPS", 8192, 1))
    max_pending_bytes: int = field(default_factory=lambda: _number("CALQUE_MAX_PENDING_BYTES", 4 << 30))
    max_trie_edges: int = field(default_factory=lambda: _number("CALQUE_MAX_TRIE_EDGES", 400_000))
    memo_bytes: int = field(default_factory=lambda: _number("CALQUE_MEMO_BYTES", 512 << 20, 1 << 16))  # what was worked out, see `cache`
    early_reads: bool = field(default_factory=lambda: _flag("CALQUE_EARLY_READS", True))  # reads wait for their value, not for its whole program
    # small operations are computed where they are written: 0 never, 1 until a large one comes, 2 also behind it (to test it)
    eager: int = field(default_factory=lambda: _number("CALQUE_EAGER", 1, 0, 2))
    native: bool = field(default_factory=lambda: _flag("CALQUE_NATIVE", True))  # use the compiled module, where there is one
    macros: bool = field(default_factory=lambda: _flag("CALQUE_MACROS", True))  # record steps of optimizers and backward passes again without Python
    log: str = field(default_factory=lambda: _words("CALQUE_LOG", TOPICS))
    traceback: str = field(default_factory=lambda: _one_of("CALQUE_TRACEBACK", TRACEBACKS, "short", "it is taken as short"))  # of `calque run`
    deterministic: bool = field(default_factory=lambda: _flag("CALQUE_DETERMINISTIC"))  # a program gives the same bits however often it was seen
    checked: bool = field(default_factory=lambda: _flag("CALQUE_CHECKED"))  # NaN, overflow and domain errors raise
    tf32: bool = False  # float32 products on devices with tensor cores may round their operands (`set_float32_matmul_precision`)
    fallback: bool = False  # what a device cannot compute is computed on the CPU (`calque.xla.fallback`)
    memory_limit: int = field(default_factory=lambda: _number("CALQUE_MEMORY_LIMIT", 0))  # bytes; 0 = what the machine has


def _misspelt() -> None:
    """Report variables that look like one of ours and are none."""
    for name in os.environ:
        if name.startswith("CALQUE_") and name not in VARIABLES:
            if meant := nearest(name, VARIABLES, 0.85):
                _report(name, f"the name of a setting (is {meant} meant?)", os.environ[name], "it is not used")


RENDEZVOUS = "CALQUE_RENDEZVOUS"  # host:port at which the processes of `calque launch` and `spawn` meet
SNAPSHOTS = "CALQUE_SNAPSHOTS"  # descriptors of the memory in which `calque launch --restarts` keeps commits
GANG = "CALQUE_GANG"  # how often it has started the processes of the job anew
VARIABLES |= dict.fromkeys((RENDEZVOUS, SNAPSHOTS, GANG))
_OF_A_JOB = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", RENDEZVOUS, SNAPSHOTS, GANG,
    "PMI_FD", "PMI_PORT", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
)  # fmt: skip


settings = Settings()
_misspelt()


def whole_environment() -> dict[str, str]:
    """The environment for a process that this one starts."""
    return dict(os.environ)


def hand_down(name: str, folder: str) -> None:
    """Put a folder in front of a variable of paths, for the processes that this one starts. Nothing of this process looks at it again."""
    entries = [entry for entry in os.environ.get(name, "").split(os.pathsep) if entry and entry != folder]
    os.environ[name] = os.pathsep.join([folder, *entries])


def job_variables() -> dict[str, str]:
    """What whoever started this process says about the job that it belongs to, now: torchrun's variables, those of an MPI, and ours."""
    return {name: os.environ[name] for name in _OF_A_JOB if name in os.environ}


def slurm_variables() -> dict[str, str]:
    """What Slurm says to a process that `srun` has started, in the words of torchrun; nothing in any other process, as in a batch script."""
    given = {name: os.environ.get(name, "") for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NODELIST")}
    job, step = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "")
    if not all(given.values()) or not (job.isdecimal() and step.isdecimal()):
        return {}
    first = re.match(r"(?:[^,\[]|\[[^]]*\])*", given["SLURM_STEP_NODELIST"])  # of a1,b2 or a[01-04,7]b,c
    assert first is not None
    host = re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first[0])
    return {
        "RANK": given["SLURM_PROCID"], "WORLD_SIZE": given["SLURM_STEP_NUM_TASKS"], "LOCAL_RANK": given["SLURM_LOCALID"],
        "MASTER_ADDR": host, "MASTER_PORT": str(20_000 + (int(job) + 97 * int(step)) % 20_000),
    }  # fmt: skip


def set_variables(values: dict[str, str | None]) -> dict[str, str | None]:
    """Set variables for libraries of this process and for processes that it starts (None: take away); returns what they were."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before
