"""Modules of PyTorch's that are named like a function of theirs: `from torch.nn.utils.spectral_norm import spectral_norm`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from calque.compat.face import Face, exists, face
from calque.compat.missing import pytorch_names


def _is_like_a_function(path: str) -> bool:
    above, _, name = path.rpartition(".")
    return above != "" and name in pytorch_names()[path] and exists(path) and callable(getattr(face(above), name, None))


SAME = sorted(path for path in pytorch_names() if _is_like_a_function(path))

PROGRAM = """
import calque
calque.install_as_torch()
import importlib, torch
for path in {paths}:
    above, _, name = path.rpartition(".")
    module = importlib.import_module(path)
    function = getattr(module, name)
    assert callable(function), path
    assert getattr(importlib.import_module(above), name) is function, path  # the module does not take the function's place
print(torch.nn.utils.spectral_norm(torch.nn.Linear(2, 3)))
"""


def test_there_are_such_modules() -> None:
    assert {"torch.autograd.gradcheck", "torch.nn.utils.spectral_norm", "torch.nn.utils.weight_norm", "torch.nn.parallel.data_parallel"} <= set(SAME)


@pytest.mark.parametrize("path", SAME)
def test_module_has_its_function(path: str) -> None:
    module = face(path)
    assert isinstance(module, Face)
    assert callable(getattr(module, path.rpartition(".")[2]))


def test_imported_by_a_program() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(paths=SAME)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Linear(in_features=2, out_features=3, bias=True)\n"
