"""Programs written for PyTorch, run as `python` would run them: the same `sys.argv`, `__main__` and `sys.path`, and their own tracebacks."""

from __future__ import annotations

import builtins
import code
import contextlib
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import calque
from calque.base.config import hand_down
from calque.base.errors import ArgumentError
from calque.compat import finder, missing, tracebacks
from calque.tensor import Tensor

USAGE = "calque run [--report] (script.py | -m module | -c command | -) [arguments ...]"


def install_as_torch(children: bool = True) -> None:
    """Let `import torch` mean Calque, in this process and (children) in Python processes that it starts. See `calque.install_as_torch`."""
    finder.install()
    if children:
        hand_down("PYTHONPATH", finder.SITE)
    tracebacks.install()


def _main_module(file: str | None) -> dict[str, Any]:
    """A new `__main__`, as Python makes it for a script."""
    main = ModuleType("__main__")
    space = main.__dict__
    space.update(__builtins__=builtins, __cached__=None, __annotations__={})
    if file is not None:
        space["__file__"] = file
    sys.modules["__main__"] = main
    return space


def _execute(source: bytes | str, file: str, name: str | None) -> None:
    space = _main_module(name)
    exec(compile(source, file, "exec", dont_inherit=True), space)  # noqa: S102 - running the user's program is what the command is for


def _script(path: str) -> None:
    where = os.path.join(path, "__main__.py")
    if os.path.isdir(path) and os.path.exists(where):
        _search(path)
        path = where
    else:
        _search(os.path.dirname(os.path.realpath(path)))
    path = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)  # a program that goes to another folder finds its files
    with io.open_code(path) as file:
        source = file.read()
    _execute(source, path, path)


def _search(folder: str) -> None:
    """Let imports begin where Python would begin for the program."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _module(name: str, arguments: Sequence[str]) -> None:
    _search(os.getcwd())
    sys.argv = ["-m", *arguments]
    _main_module(None)
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _work(words: Sequence[str]) -> None:
    """Run what the words of the command line name."""
    first, rest = words[0], list(words[1:])
    if first == "-m" and rest[0] == "torch.distributed.run":  # torchrun: a program of ours, which `runpy` does not find
        from calque.compat.torch.distributed.run import main

        main(rest[1:])
    elif first == "-m":
        _module(rest[0], rest[1:])
    elif first == "-c":
        _search("")
        sys.argv = ["-c", *rest[1:]]
        _execute(rest[0], "<string>", None)
    elif first == "-":
        _search("")
        sys.argv = ["-", *rest]
        _execute(sys.stdin.read(), "<stdin>", None)
    else:
        sys.argv = [first, *rest]
        _script(first)


def _watch_tensors() -> None:
    """Put methods of tensors that are not there on the list, too. It makes every look-up on a tensor slower, so nobody else does."""

    def ask(self: Any, name: str) -> Any:
        if not name.startswith("_") and not sys._getframe(1).f_globals.get("__name__", "").startswith("calque."):  # we ask ourselves
            missing.note(f"torch.Tensor.{name}")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'", name=name, obj=self)

    setattr(Tensor, "__getattr__", ask)  # noqa: B010 - it is no method of the class that type checkers know


def run(words: Sequence[str]) -> int:
    """`calque run`: the exit code. Raises `ArgumentError` if the words name no program."""
    rest, reporting = list(words), False
    while rest and rest[0] == "--report":
        rest, reporting = rest[1:], True
    if not rest or (rest[0] in ("-m", "-c") and len(rest) < 2) or (rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-")):
        raise ArgumentError(f"[run] expected {USAGE}, got {' '.join(['calque run', *words])}; name a program")
    if rest[0] not in ("-m", "-c", "-") and not os.path.exists(rest[0]):
        raise ArgumentError(f"[run] expected a file, got {rest[0]!r}, which does not exist; look at the path")
    if os.path.isdir(rest[0]) and not os.path.exists(os.path.join(rest[0], "__main__.py")):
        raise ArgumentError(f"[run] expected a program, got the folder {rest[0]!r} without a __main__.py; name a file in it")
    install_as_torch()
    if reporting:
        _watch_tensors()
    try:
        return _shielded(lambda: _work(rest))
    finally:
        if reporting:
            sys.stderr.write(missing.report() + "\n")


def _shielded(work: Callable[[], None]) -> int:
    """Run a program; show an error that leaves it as Python shows it."""
    try:
        work()
    except SystemExit:
        raise
    except BaseException as error:
        tracebacks.prepare(error)  # a hook that the program has put there sees the same
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def interact() -> int:
    """`python -m calque`: a prompt (or a program from the standard input) where `import torch` means Calque."""
    install_as_torch()
    sys.argv = [""]
    if not sys.stdin.isatty():
        return _shielded(lambda: _work(["-"]))
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - editing of lines and their history come with the import
    banner = f"Calque {calque.__version__} as torch {finder.VERSION}, Python {sys.version.split()[0]}. `import torch` is Calque."
    code.interact(banner, local=_main_module(None), exitmsg="")
    return 0
