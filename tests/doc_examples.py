"""Run every example of the documentation: the doctests of all public modules and the Python blocks of README.md.

python -m tests.doc_examples [module prefix]
"""

from __future__ import annotations

import builtins
import contextlib
import doctest
import importlib
import io
import os
import pkgutil
import re
import shlex
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def module_names(prefix: str) -> list[str]:
    import calque

    names = ["calque", *(info.name for info in pkgutil.walk_packages(calque.__path__, "calque."))]
    return [name for name in names if name.startswith(prefix) and not name.endswith("__main__")]


def run_doctests(prefix: str) -> tuple[int, int]:
    """Examples tried and failed over all modules whose name starts with `prefix`."""
    import calque

    tried = failed = 0
    for name in module_names(prefix):
        try:
            module = importlib.import_module(name)
        except Exception:
            tried, failed = tried + 1, failed + 1
            print(f"FAILED {name} cannot be imported:\n{traceback.format_exc()}")
            continue
        # As in a user's program: `float` is Python's also in examples of functions that `calque`, which has a dtype of that name, exports.
        names = {name: value for name, value in vars(builtins).items() if name in vars(module) and not name.startswith("_")}
        result = doctest.testmod(module, extraglobs={**names, "calque": calque}, optionflags=FLAGS)
        tried, failed = tried + result.attempted, failed + result.failed
        if result.failed:
            print(f"FAILED {name}: {result.failed} of {result.attempted} examples")
    return tried, failed


def run_commands(block: str) -> None:
    """Lines of `calque`, in this process."""
    from calque.cli import main as command

    for line in block.splitlines():
        program, *words = shlex.split(line, comments=True)
        if program != "calque" or command(words) != 0:
            raise RuntimeError(f"{line!r} failed; what it printed on the standard error stands above")


def run_blocks(path: Path) -> tuple[int, int]:
    """Execute the Python blocks of a Markdown file, in order and in one namespace, and the commands of blocks that are marked `sh run`. What stands
    behind `>>>` has to give what stands below it."""
    blocks = re.findall(r"^```(python|sh run)\n(.*?)^```", path.read_text(), flags=re.M | re.S)
    namespace: dict[str, object] = {"__name__": "__main__"}
    failed = 0
    for number, (kind, block) in enumerate(blocks, start=1):
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                if kind == "sh run":
                    run_commands(block)
                    continue
                if block.startswith(">>>"):
                    test = doctest.DocTestParser().get_doctest(block, namespace, path.name, path.name, None)
                    test.globs = namespace  # which it has copied
                    if doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False).failed:
                        raise RuntimeError("another result than the page shows")
                    continue
                exec(compile(block, f"{path.name}[{number}]", "exec"), namespace)  # noqa: S102 - our own documentation
        except Exception:
            failed += 1
            print(f"FAILED {path.name}, block {number}:\n{output.getvalue()}{traceback.format_exc()}")
    return len(blocks), failed


def main() -> int:
    prefix = sys.argv[1] if len(sys.argv) > 1 else "calque"
    warnings.simplefilter("error")
    # Examples may write files: let them do so in a folder of their own.
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            counts = [run_doctests(prefix)]
            if prefix == "calque":
                counts += [run_blocks(path) for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
        finally:
            os.chdir(before)
    tried, failed = (sum(column) for column in zip(*counts))
    print(f"documentation examples: {tried} run, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
