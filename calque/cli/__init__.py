"""The `calque` command.

    calque train digits [--epochs N] [--seed N] [--out DIR] [--resume [CHECKPOINT]] ...
    calque run [--report] (script.py | -m module | -c command | -) [arguments ...]
    calque launch -n N [--restarts K [--min M]] [--no-prefix] (script.py | -m module | -c code) [arguments ...]
    calque build model.calque [--target SYSTEM] [--out FOLDER] [--name NAME] [--size batch=1,8] ...
    calque doctor
    calque cache [--clear]
    calque --version

Without a command it prints its help.
Exit codes: 0 success, 1 the computation failed (a loss of NaN), 2 a wrong command line, file or folder, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import calque
from calque.base.config import settings
from calque.base.errors import CalqueError, NonFiniteError
from calque.cli.doctor import clear_cache, doctor


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="calque", description="Calque: PyTorch's interface, traced while it runs, executed as compiled programs.")
    top.add_argument("--version", action="version", version=f"calque {calque.__version__}")
    commands = top.add_subparsers(dest="command")
    train = commands.add_parser("train", help="train a model that ships with Calque")
    jobs = train.add_subparsers(dest="job", required=True)
    digits = jobs.add_parser("digits", help="a small CNN on 1,797 real handwritten digits", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    digits.add_argument("--epochs", type=int, default=30, help="passes over the training images")
    digits.add_argument("--batch-size", type=int, default=64)
    digits.add_argument("--lr", type=float, default=4e-3, help="peak learning rate of the one-cycle schedule")
    digits.add_argument("--weight-decay", type=float, default=1e-3)
    digits.add_argument("--seed", type=int, default=0)
    digits.add_argument("--patience", type=int, default=12, help="epochs without improvement before stopping early")
    digits.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder for everything written")
    digits.add_argument(
        "--resume", nargs="?", const="", default=None, metavar="CHECKPOINT", help="continue (from the last checkpoint in OUT if no file is named)"
    )
    digits.add_argument("--threads", type=int, default=settings.threads, help="CPU threads")
    digits.add_argument("--quiet", action="store_true", help="print nothing but errors")
    commands.add_parser("run", help="run a PyTorch program: `import torch` is Calque (--report lists the names that it misses)")
    launch = commands.add_parser("launch", help="run a program in several processes of one job, which calque.distributed joins")
    launch.add_argument("-n", "--nprocs", type=int, required=True, metavar="N", help="number of processes, all on this machine")
    launch.add_argument("--no-prefix", action="store_true", help="do not put the rank in front of what the processes print")
    launch.add_argument("--restarts", type=int, default=0, metavar="K", help="start all anew, up to K times, when one has failed")
    launch.add_argument("--min", type=int, default=None, metavar="M", help="start one process less, down to M, where a start has come to nothing")
    launch.add_argument("program", nargs="*", help="script.py, -m module or -c code, with its arguments")
    build = commands.add_parser("build", help="make a native library, or a web page, from an export (model.calque)")
    build.add_argument("file", type=Path, help="what Exported.save has written")
    build.add_argument("--target", default="", help="what it is for: aarch64-linux-gnu, wasm32, web, ... (default: this machine)")
    build.add_argument("--out", type=Path, default=Path("."), help="folder for the files")
    build.add_argument("--name", default=None, help="of the library, with which all its functions begin (default: that of the file)")
    build.add_argument("--size", action="append", default=[], metavar="DIM=N[,N]", help="numbers for a free size, each with a program of its own")
    build.add_argument("--cpu", default="", help="processors, joined by +, or native")
    build.add_argument("--weights", choices=("inside", "file"), default="inside", help="where weights go")
    build.add_argument("--entry", action="append", default=None, help="an entry to build (default: all)")
    build.add_argument("--linker", default=None, help="command that links the shared library; none for none")
    commands.add_parser("doctor", help="versions, machine, cache and optional packages")
    cache = commands.add_parser("cache", help="the compiled-kernel cache")
    cache.add_argument("--clear", action="store_true", help="delete every entry")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"] and words[1:2] not in (["-h"], ["--help"]):  # what follows belongs to the program: it is not parsed
        return _run(words[1:])
    if words[:1] == ["launch"]:
        words = _before_program(words)
    options = parser().parse_args(words)
    if options.command is None:
        parser().print_help()
        return 0
    try:
        if options.command == "doctor":
            return doctor()
        if options.command == "cache":
            return clear_cache() if options.clear else doctor(cache_only=True)
        if options.command == "launch":
            return _launch(options)
        if options.command == "build":
            return _build(options)
        return _train_digits(options)
    except NonFiniteError as error:
        print(f"calque: {error}", file=sys.stderr)
        return 1
    except (CalqueError, FileNotFoundError) as error:
        print(f"calque: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output is gone (`| head`): no message can reach it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - keeps the interpreter's last flush quiet
        return 1
    except KeyboardInterrupt:
        print("calque: interrupted", file=sys.stderr)
        return 130


def _build(options: argparse.Namespace) -> int:
    """`calque build`."""
    exported = importlib.import_module("calque.exported").load_exported(options.file)
    sizes: dict[str, list[int]] = {}
    for text in options.size:
        name, _, numbers = text.partition("=")
        if not name or not all(n.isdecimal() and len(n) < 16 for n in numbers.split(",")):
            parser().error(f"argument --size: expected DIM=N or DIM=N,N, got {text}")
        sizes[name] = [int(n) for n in numbers.split(",")]
    name = re.sub(r"\W", "_", options.file.stem, flags=re.ASCII) if options.name is None else options.name
    linker = True if options.linker is None else False if options.linker == "none" else options.linker
    files = exported.compile(
        options.out, options.target, name=name, sizes=sizes, cpu=options.cpu, weights=options.weights, entries=options.entry, linker=linker
    )
    for file in files:
        print(f"{file.stat().st_size:>12,}  {file}")
    return 0


def _run(words: list[str]) -> int:
    """`calque run`. Errors of the program are shown as Python shows them, by `compat.run`."""
    job = importlib.import_module("calque.compat.run")  # loads the whole framework
    if not words:
        print(f"usage: {job.USAGE}", file=sys.stderr)
        return 2
    try:
        code: int = job.run(words)
    except CalqueError as error:  # about the command line: the program's own errors do not come here
        print(f"calque: {error}", file=sys.stderr)
        return 2
    return code


def _before_program(words: list[str]) -> list[str]:
    """The words of `calque launch` with `--` in front of the program, whose options are not ours."""
    k = 1
    while k < len(words) and words[k].startswith("-") and words[k] not in ("-m", "-c", "--"):
        k += 2 if words[k] in ("-n", "--nprocs", "--restarts", "--min") else 1
    return words if "--" in words[k : k + 1] or k >= len(words) else [*words[:k], "--", *words[k:]]


def _launch(options: argparse.Namespace) -> int:
    """`calque launch`."""
    job = importlib.import_module("calque.distributed.launch")
    if options.program[:1] == ["--"]:
        del options.program[0]
    if not options.program:
        parser().error("launch: expected a script, -m module or -c code after the options")
    code: int = job.launch(job.command_of(options.program), options.nprocs, not options.no_prefix, options.restarts, options.min)
    return code


def _train_digits(options: argparse.Namespace) -> int:
    job = importlib.import_module("calque.train.digits")  # loads the whole framework: not needed for --help or doctor
    if options.threads < 1:
        parser().error(f"argument --threads: expected at least 1, got {options.threads}")
    settings.threads = options.threads
    config = job.Config(**{f.name: getattr(options, f.name) for f in fields(job.Config)})
    code: int = job.main(config, options.out, options.resume, options.quiet)
    return code
