"""The maps of the tree that people read first name files and functions that exist, and leave out none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "calque"
MAPS = [  # folder of the README, folder that it describes
    *[(folder, folder) for folder in ("ir", "ops", "kernel", "observe", "run", "record", "replay", "report", "backend/cpu/contract")],
    ("backend", "backend/cpu"),
    *[("backend", f"backend/cpu/{room}") for room in ("compile", "text", "loops", "code", "team", "program")],
]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("folder", "described"), MAPS)
def test_a_readme_names_every_module(folder: str, described: str) -> None:
    modules = {file.name for file in (PACKAGE / described).glob("*.py")} - {"__init__.py"}
    named = set(re.findall(r"\w+\.py", (PACKAGE / folder / "README.md").read_text(encoding="utf-8")))
    assert not modules - named, f"calque/{folder}/README.md says nothing of {sorted(modules - named)}"


def test_files_of_the_architecture_exist() -> None:
    places = {file.relative_to(base).as_posix() for base in (ROOT, PACKAGE) for file in PACKAGE.rglob("*.py")}
    places |= {file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("*.py")}
    known = places | {place.rsplit("/", 1)[-1] for place in places}
    named = set(re.findall(r"[\w/]+\.py", ARCHITECTURE))
    assert len(named) > 30
    assert not named - known, f"docs/architecture.md names {sorted(named - known)}"


def test_functions_of_its_picture_exist() -> None:
    picture = ARCHITECTURE.split("```")[1]
    named = re.findall(r"^ \|   (\S+\.py) (\w+)", picture, re.MULTILINE)
    assert len(named) >= 5
    for file, function in named:
        assert re.search(rf"\bdef {function}\(", (PACKAGE / file).read_text(encoding="utf-8")), f"{file} has no {function}"
