"""Packages whose parts load on first use."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FACES = [file for file in (ROOT / "calque").rglob("__init__.py") if "= on_first_use(" in file.read_text(encoding="utf-8")]
PACKAGES = sorted(".".join(file.parent.relative_to(ROOT).parts) for file in FACES)


@pytest.mark.parametrize("name", PACKAGES)
def test_no_name_is_that_of_a_module(name: str) -> None:
    """Python puts a module of a package in its place there when it is imported: a function of that name would be gone."""
    package = importlib.import_module(name)
    assert not {module.name for module in pkgutil.iter_modules(package.__path__)} & set(package._part.names)


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_are_found(name: str) -> None:
    code = f"import {name} as p\nfor name in p._part.names: getattr(p, name)\nassert set(p._part.names) <= vars(p).keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_other_names_are_errors() -> None:
    with pytest.raises(AttributeError, match=r"^module 'calque.backend.cpu.contract' has no attribute 'wrong'"):
        importlib.import_module("calque.backend.cpu.contract").wrong  # noqa: B018
