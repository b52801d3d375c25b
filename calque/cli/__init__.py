"""The `calque` command.

    calque init (FOLDER | TABLE --target COLUMN) [--recipe calque.toml]
    calque train RECIPE [--resume | --restart] ...
    calque finetune RECIPE --weights FILE [--freeze-until LAYER] ...
    calque evaluate RUN [DATA]
    calque predict RUN FILE ...
    calque export RUN [--onnx FILE]
    calque show-augment RECIPE
    calque train digits [--epochs N] [--seed N] [--out DIR] [--resume [CHECKPOINT]] ...
    calque run [--report] (script.py | -m module | -c command | -) [arguments ...]
    calque launch -n N [--restarts K [--min M]] [--no-prefix] (script.py | -m module | -c code) [arguments ...]
    calque build model.calque [--target SYSTEM] [--out FOLDER] [--name NAME] [--size batch=1,8] ...
    calque doctor [RECIPE]
    calque info PATH
    calque completion (bash | zsh | fish)
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
from typing import Any, NoReturn

import calque
from calque.base.config import settings
from calque.base.errors import CalqueError, NonFiniteError
from calque.base.text import nearest
from calque.cli.doctor import clear_cache, doctor


class _Parser(argparse.ArgumentParser):
    """One that says which command is like the one that is not there."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"argument command: invalid choice: '([^']*)' \(choose from (.*)\)", message)
        near = nearest(wrong[1], re.findall(r"[\w-]+", wrong[2]), 0.6) if wrong else None
        super().error(message + (f"; did you mean {near!r}?" if near else ""))


def _wrong(command: str, message: str) -> NoReturn:
    """End with the usage of a command, and what is wrong with its words."""
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.choices[command].error(message)
    raise AssertionError(command)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = _Parser(prog="calque", description="Calque: PyTorch's interface, traced while it runs, executed as compiled programs.")
    top.add_argument("--version", action="version", version=f"calque {calque.__version__}")
    commands = top.add_subparsers(dest="command")
    _add_jobs(commands)
    run = commands.add_parser(
        "run", help="run a PyTorch program: `import torch` is Calque (--report lists the names that it misses)",
        usage="calque run [-h] [--report] (script.py | -m module | -c command | -) [arguments ...]",
    )  # fmt: skip
    run.add_argument("--report", action="store_true", help="at the end, list the names of torch that the program asked for and that are not there")
    run.add_argument("program", nargs=argparse.REMAINDER, help="script.py, a folder with __main__.py, -m module, -c code or -, with its arguments")
    launch = commands.add_parser("launch", help="run a program in several processes of one job, which calque.distributed joins")
    launch.add_argument("-n", "--nprocs", type=int, required=True, metavar="N", help="number of processes, all on this machine")
    launch.add_argument("--no-prefix", action="store_true", help="do not put the rank in front of what the processes print")
    launch.add_argument("--restarts", type=int, default=0, metavar="K", help="start all anew, up to K times, when one has failed")
    launch.add_argument("--min", type=int, default=None, metavar="M", help="start one process less, down to M, where a start has come to nothing")
    launch.add_argument("program", nargs="*", help="script.py, -m module or -c code, with its arguments")
    build = commands.add_parser("build", help="make a native library, or a web page, from an export (model.calque)")
    build.add_argument("file", type=Path, help="what Exported.save has written, or an ONNX model")
    build.add_argument("--target", default="", help="what it is for: aarch64-linux-gnu, wasm32, web, ... (default: this machine)")
    build.add_argument("--out", type=Path, default=Path("."), help="folder for the files")
    build.add_argument("--name", default=None, help="of the library, with which all its functions begin (default: that of the file)")
    build.add_argument("--size", action="append", default=[], metavar="DIM=N[,N]", help="numbers for a free size, each with a program of its own")
    build.add_argument("--cpu", default="", help="processors, joined by +, or native")
    build.add_argument("--weights", choices=("inside", "file"), default="inside", help="where weights go")
    build.add_argument("--wheel", action="store_true", help="write a wheel for Python as well, which needs NumPy alone")
    build.add_argument("--entry", action="append", default=None, help="an entry to build (default: all)")
    build.add_argument("--linker", default=None, help="command that links the shared library; none for none")
    doctor = commands.add_parser("doctor", help="versions, machine, cache and optional packages; of a recipe: what limits its run")
    doctor.add_argument("recipe", type=Path, nargs="?", default=None, help="a recipe, for which a few steps are timed")
    info = commands.add_parser("info", help="what a file is: a checkpoint, weights, an export, a recipe, a table, or a folder of data or of a run")
    info.add_argument("path", type=Path)
    completion = commands.add_parser("completion", help="words for the TAB key: eval \"$(calque completion bash)\" in ~/.bashrc")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    cache = commands.add_parser("cache", help="the compiled-kernel cache")
    cache.add_argument("--clear", action="store_true", help="delete every entry")
    return top


def _add_jobs(commands: Any) -> None:
    """The commands around a recipe."""
    init = commands.add_parser("init", help="look at a folder of images, or a table, and write a recipe for it")
    init.add_argument("data", type=Path, help="a folder with a folder of images for each class, or a .csv, .tsv or .parquet file")
    init.add_argument("--target", default="", metavar="COLUMN", help="the column of a table that is to be predicted")
    init.add_argument("--recipe", type=Path, default=Path("calque.toml"), help="the file to write (default: calque.toml)")
    init.add_argument("--force", action="store_true", help="overwrite it")
    train = commands.add_parser("train", help="train, test and export the model of a recipe; `calque train digits`: an example")
    finetune = commands.add_parser("finetune", help="the same, beginning with trained weights: smaller rates near the input, frozen layers")
    for job in (train, finetune):
        job.add_argument("recipe", type=Path, metavar="RECIPE", help="a file that `calque init` writes" + ("" if job is finetune else ", or: digits"))
        job.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
        job.add_argument("--restart", action="store_true", help="forget an earlier run in the same folder")
        job.add_argument("--epochs", type=int, default=None, help="instead of those of the recipe")
        job.add_argument("--out", type=Path, default=None, metavar="RUN", help="folder of the run, instead of that of the recipe")
        job.add_argument("--threads", type=int, default=settings.threads, help="CPU threads")
        job.add_argument("--quiet", action="store_true", help="print nothing but errors")
    finetune.add_argument("--weights", type=Path, default=None, metavar="FILE", help="weights (.safetensors, .pt, .calque) or the folder of a run")
    finetune.add_argument("--freeze-until", default=None, metavar="LAYER", help="layers before this one stay as they are")
    evaluate = commands.add_parser("evaluate", help="how good a trained model is: on its test samples, or on others")
    evaluate.add_argument("run", type=Path, metavar="RUN", help="folder of a run, such as runs/photos")
    evaluate.add_argument("data", type=Path, nargs="?", default=None, help="a folder or table with the same classes")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    predict = commands.add_parser("predict", help="classes of images, or predictions for the rows of a table, as comma-separated lines")
    predict.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    predict.add_argument("inputs", nargs="+", metavar="FILE", help="images, folders of images, or a table")
    predict.add_argument("--top", type=int, default=1, metavar="N", help="the N most probable classes")
    export = commands.add_parser("export", help="write the best model of a run as a program, also of one that was stopped")
    export.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    export.add_argument("--onnx", type=Path, default=None, metavar="FILE", help="write an ONNX model instead")
    show = commands.add_parser("show-augment", help="draw what the augmentations of a recipe make of its images")
    show.add_argument("recipe", type=Path, metavar="RECIPE")
    show.add_argument("--out", type=Path, default=Path("augment.png"), help="the picture to write (default: augment.png)")
    show.add_argument("--rows", type=int, default=6, help="images")
    show.add_argument("--columns", type=int, default=8, help="random variants of each")


def _digits_parser() -> argparse.ArgumentParser:
    digits = argparse.ArgumentParser(
        prog="calque train digits", description="A small CNN on 1,797 real handwritten digits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
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
    return digits


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"] and words[1:2] not in (["-h"], ["--help"]):  # what follows belongs to the program: it is not parsed
        try:
            return _run(words[1:])
        except KeyboardInterrupt:  # before the program began: its own is shown by `compat.run`
            return 130
    if words[:1] == ["launch"]:
        words = _before_program(words)
    digits = words[:2] == ["train", "digits"]
    options = _digits_parser().parse_args(words[2:]) if digits else parser().parse_args(words)
    if not digits and options.command is None:
        parser().print_help()
        return 0
    try:
        return _train_digits(options) if digits else _command(options)
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


def _command(options: argparse.Namespace) -> int:
    """What was asked for. Modules load with their command: not needed for --help."""
    command = options.command
    code: int
    if command == "cache":
        code = clear_cache() if options.clear else doctor(cache_only=True)
    elif command == "doctor" and options.recipe is None:
        code = doctor()
    elif command == "launch":
        code = _launch(options)
    elif command == "build":
        code = _build(options)
    elif command == "completion":
        code = importlib.import_module("calque.cli.completion").completion(parser(), options.shell)
    elif command == "info":
        code = importlib.import_module("calque.cli.info").info(options.path)
    else:
        if getattr(options, "threads", 1) < 1:
            _wrong(command, f"argument --threads: expected at least 1, got {options.threads}")
        importlib.import_module("calque.base.blas").set_threads(getattr(options, "threads", settings.threads))
        jobs = importlib.import_module("calque.cli.jobs")
        if command == "doctor":
            code = jobs.examine(options.recipe)
        else:
            name = {"finetune": "train", "show-augment": "show_augment"}.get(command, command)
            code = getattr(jobs, name)(options)
    return code


def _build(options: argparse.Namespace) -> int:
    """`calque build`."""
    if options.file.suffix == ".onnx":
        exported = importlib.import_module("calque.exported.onnx.load").load_onnx(options.file)
    else:
        exported = importlib.import_module("calque.exported").load_exported(options.file)
    sizes: dict[str, list[int]] = {}
    for text in options.size:
        name, _, numbers = text.partition("=")
        if not name or not all(n.isdecimal() and len(n) < 16 for n in numbers.split(",")):
            _wrong("build", f"argument --size: expected DIM=N or DIM=N,N, got {text}")
        sizes[name] = [int(n) for n in numbers.split(",")]
    name = re.sub(r"\W", "_", options.file.stem, flags=re.ASCII) if options.name is None else options.name
    linker = True if options.linker is None else False if options.linker == "none" else options.linker
    files = exported.compile(
        options.out, options.target, name=name, sizes=sizes, cpu=options.cpu, weights=options.weights, entries=options.entry, linker=linker,
        wheel=options.wheel,
    )  # fmt: skip
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
        _wrong("launch", "expected a script, -m module or -c code after the options")
    code: int = job.launch(job.command_of(options.program), options.nprocs, not options.no_prefix, options.restarts, options.min)
    return code


def _train_digits(options: argparse.Namespace) -> int:
    job = importlib.import_module("calque.train.digits")  # loads the whole framework: not needed for --help or doctor
    if options.threads < 1:
        _digits_parser().error(f"argument --threads: expected at least 1, got {options.threads}")
    importlib.import_module("calque.base.blas").set_threads(options.threads)
    config = job.Config(**{f.name: getattr(options, f.name) for f in fields(job.Config)})
    code: int = job.main(config, options.out, options.resume, options.quiet)
    return code
