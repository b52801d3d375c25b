"""An error under `calque run` shows the program's own frames, wherever it was raised and whoever shows it; ours come with a bug or on demand."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import calque
from calque import nn
from calque.compat import tracebacks
from calque.observe.source import inside_package
from tests.compat.test_run import program, run

# A program that fails, and the functions of its own that its traceback shows.
PROGRAMS = {
    "in a layer": ("net = calque.nn.Sequential(calque.nn.Linear(3, 4))\ndef main():\n    net(calque.ones(2, 5))\nmain()", "<module> main"),
    "a shape": ("def main():\n    calque.ones(3) @ calque.ones(4)\nmain()", "<module> main"),
    "a forward": ("class N(calque.nn.Module):\n    def forward(self, x):\n        return x + self.no\nN()(calque.ones(2))", "<module> forward"),
    "a call": ("class N(calque.nn.Module):\n    def forward(self, x, y):\n        return x\nN()(calque.ones(2))", "<module>"),
    "a hook of a tensor": (
        "def hook(g):\n    return g + calque.ones(7)\nx = calque.ones(3, requires_grad=True)\ny = x * 2\ny.register_hook(hook)\ny.sum().backward()",
        "<module> hook",
    ),
    "a hook of a module": (
        "def hook(m, g, h):\n    raise OSError('mine')\nm = calque.nn.Linear(2, 2)\n"
        "m.register_full_backward_hook(hook)\nm(calque.ones(1, 2)).sum().backward()",
        "<module> hook",
    ),
    "a backward": (
        "class F(calque.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x * 2\n    @staticmethod\n"
        "    def backward(ctx, g):\n        raise KeyError('mine')\nF.apply(calque.ones(3, requires_grad=True)).sum().backward()",
        "<module> backward",
    ),
    "a closure": ("def f():\n    raise KeyError(1)\ncalque.optim.SGD([calque.ones(2, requires_grad=True)], lr=1.0).step(f)", "<module> f"),
    "a compiled function": ("f = calque.compile(lambda x: x @ calque.ones(5))\nf(calque.ones(3))", "<module> <lambda>"),
    "a transform": ("calque.func.vmap(lambda x: x.item())(calque.ones(3))", "<module> <lambda>"),
    "a data set": (
        "class D:\n    def __len__(self):\n        return 4\n    def __getitem__(self, i):\n        return [0][i]\n"
        "list(calque.utils.data.DataLoader(D()))",
        "<module> __getitem__",
    ),
    "a file": ("calque.load('there is none.pt')", "<module>"),
    "a state dict": ("calque.nn.Linear(2, 2).load_state_dict({})", "<module>"),
    "a label": ("calque.nn.functional.cross_entropy(calque.ones(1, 3), calque.tensor([7])).item()", "<module>"),
    "no gradient": ("calque.ones(2).sum().backward()", "<module>"),
    "a container": ("calque.nn.ModuleDict()['x']", "<module>"),
    "a block": ("def main():\n    with calque.no_grad():\n        raise OSError('mine')\nmain()", "<module> main"),
    "a function for every module": ("calque.nn.Linear(1, 1).apply(lambda m: m.nothing)", "<module> <lambda>"),
    "a hook of a layer's gradients": (
        "m = calque.nn.Linear(2, 2)\nm.register_full_backward_hook(lambda m, a, b: m.nothing)\n"
        "m(calque.ones(1, 2, requires_grad=True)).sum().backward()",
        "<module> <lambda>",
    ),
    "a sort of Python's": ("sorted([calque.ones(2), calque.ones(2)])", "<module>"),
}


def failure(text: str) -> BaseException:
    """The error that a program ends with, cleaned."""
    try:
        exec(compile(text, "/program.py", "exec"), {"calque": calque, "__name__": "program"})  # noqa: S102 - a text from above
    except BaseException as error:
        assert error.__traceback__ is not None
        error.__traceback__ = error.__traceback__.tb_next  # without this function
        tracebacks.clean(error)
        return error
    raise AssertionError("it did not fail")


def chain(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


@pytest.mark.parametrize("kind", PROGRAMS)
def test_frames_are_those_of_the_program(kind: str) -> None:
    text, functions = PROGRAMS[kind]
    error = failure(text)
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.name for frame in frames] == functions.split() and {frame.filename for frame in frames} == {"/program.py"}
    assert chain(error) == [error] or kind == "a data set"


def test_errors_that_led_to_others_are_kept_and_cleaned() -> None:
    bad = "def bad():\n    calque.ones(3) @ calque.ones(4)\n"
    first, second = chain(failure(bad + "try:\n    bad()\nexcept RuntimeError as e:\n    raise ValueError('mine') from e"))
    assert isinstance(first, ValueError) and isinstance(second, RuntimeError) and second is first.__cause__
    assert [frame.name for frame in traceback.extract_tb(second.__traceback__)] == ["<module>", "bad"]
    first, second = chain(failure(bad + "try:\n    bad()\nexcept RuntimeError:\n    calque.load('nowhere')"))
    assert second is first.__context__ and [frame.name for frame in traceback.extract_tb(second.__traceback__)] == ["<module>", "bad"]
    assert len(chain(failure(bad + "try:\n    bad()\nexcept RuntimeError:\n    raise ValueError('mine') from None"))) == 1
    group = failure(bad + "try:\n    bad()\nexcept RuntimeError as e:\n    raise ExceptionGroup('two', [e, OSError('mine')])")
    assert isinstance(group, ExceptionGroup)
    assert [frame.name for frame in traceback.extract_tb(group.exceptions[0].__traceback__)] == ["<module>", "bad"]
    circle = failure("a = OSError()\nb = KeyError()\na.__cause__, b.__context__ = b, a\nraise a")
    assert isinstance(circle, OSError) and circle.__cause__ is not None and circle.__cause__.__context__ is circle


def test_a_bug_of_ours_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile("def inner(self, x):\n    return {}['none']\ndef forward(self, x):\n    return inner(self, x)\n", nn.__file__, "exec")
    space: dict[str, object] = {}
    exec(code, space)  # noqa: S102 - the text above
    monkeypatch.setattr(nn.Tanh, "forward", space["forward"])
    guess, cause = chain(failure("calque.nn.Tanh()(calque.ones(2))"))
    assert "this is a bug of Calque" in str(guess) and [frame.name for frame in traceback.extract_tb(guess.__traceback__)] == ["<module>"]
    frames = traceback.extract_tb(cause.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["forward", "inner"] and inside_package(frames[-1].filename)
    monkeypatch.setattr(calque, "broken", space["forward"], raising=False)
    frames = traceback.extract_tb(failure("calque.broken(1, 2)").__traceback__)
    assert [frame.name for frame in frames] == ["<module>", "forward", "inner"]


TEXT = """
import logging, multiprocessing, sys, threading, traceback
import torch

def work():
    torch.ones(3) @ torch.ones(4)

class Strange:
    def __del__(self):
        work()

if __name__ == "__main__":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for kind in ("fork", "spawn"):
        process = multiprocessing.get_context(kind).Process(target=work)
        process.start()
        process.join()
    try:
        work()
    except RuntimeError:
        logging.exception("caught")
    Strange()
    work()
"""


def test_threads_children_and_logs_show_the_same(tmp_path: Path) -> None:
    path = program(tmp_path, TEXT)
    done = run("run", path)
    assert done.returncode == 1 and done.stderr.count("ShapeError: [matmul]") == 6
    assert "calque" + os.sep not in done.stderr.replace(path, ""), done.stderr
    assert done.stderr.count(f'File "{path}", line 6, in work') == 6 and done.stderr.count("Traceback") == 6
    module = subprocess.run(
        [sys.executable, "-m", "calque", "run", "-m", "program"], capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(calque.__file__).parents[1]), "CALQUE_TRACEBACK": "full"},
    )  # fmt: skip
    assert module.stderr.count(f'File "{path}", line 6, in work') >= 6 and module.stderr.count("linalg.py") >= 4
