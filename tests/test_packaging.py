"""What `pyproject.toml` promises: every extra is used, one version, one name that users are told to install."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import calque
from calque.cli.doctor import DISTRIBUTION

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HARDWARE = ("cuda", "tpu")  # the extra [xla] for machines that have it, in gigabytes: no part of [all]
EXTRAS = {name: set(packages) for name, packages in PROJECT["optional-dependencies"].items() if name not in ("dev", "all", *HARDWARE)}
# A command ends with its line or with the quotes around it; options may stand before what is installed.
INSTALLS = re.compile(r"pip install((?:[ ]+-[-\w]+)*)[ ]+[\"']?([\w.\[\],<>=~-]+)")
TEXTS = [
    path
    for pattern in ("calque/**/*.py", "docs/**/*.md", "*.md", "Makefile", ".ci/*", "bench/**/*.py", "bench/*.md", "tests/**/*.py", ".github/**/*")
    for path in ROOT.glob(pattern)
    if path.is_file() and path != Path(__file__)
]


def used() -> set[tuple[str, str]]:
    """(package, extra) of every optional dependency that some module asks for."""
    found = set()
    for path in (ROOT / "calque").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "need":
                extra = node.args[2]
                assert isinstance(extra, ast.Constant), f"{path}:{node.lineno}: the extra must be written out, so that this test can read it"
                packages = node.args[1]
                found.add((packages.value if isinstance(packages, ast.Constant) else "", extra.value))
    return found


def names(requirements: set[str]) -> set[str]:
    return {re.split(r"[<>=~\[ ;]", requirement)[0] for requirement in requirements}


def test_every_extra_exists_for_a_module_that_uses_it() -> None:
    asked = used()
    for extra, packages in EXTRAS.items():
        assert extra in {e for _, e in asked}, f"no module asks for anything of the extra [{extra}]"
        unused = names(packages) - {p for p, _ in asked}
        assert not unused, f"the extra [{extra}] installs {unused}, which no module asks for"
    assert not {e for _, e in asked} - set(EXTRAS), "a module names an extra that pyproject.toml does not have"


def test_extras_for_hardware_are_jax_for_it() -> None:
    for name in HARDWARE:
        assert names(set(PROJECT["optional-dependencies"][name])) == names(EXTRAS["xla"]) == {"jax"}


def test_all_is_every_extra_under_the_name_of_the_distribution() -> None:
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert everything == f"{DISTRIBUTION}[{','.join(EXTRAS)}]"


def test_one_name_and_one_version() -> None:
    assert PROJECT["name"] == DISTRIBUTION == "calque-dl" and PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", calque.__version__)


def test_users_are_told_to_install_this_project_and_no_other() -> None:
    """The name `calque` on the package index belongs to a stranger's tool."""
    wrong = {
        str(path.relative_to(ROOT)): found.group()
        for path in TEXTS
        for found in INSTALLS.finditer(path.read_text())
        if re.split(r"[\[<>=~]", found[2])[0] == "calque"
    }
    assert not wrong, f"{wrong}: on the package index this project is called {DISTRIBUTION}"
    assert len(TEXTS) > 100


def test_the_pattern_finds_commands() -> None:
    texts = ("pip install calque", "pip install --upgrade calque", "python -m pip install -q 'calque[demo]'", "pip install calque>=1")
    assert all(re.split(r"[\[<>=~]", INSTALLS.search(text)[2])[0] == "calque" for text in texts)  # type: ignore[index]
    assert INSTALLS.search("pip install calque-dl")[2] == "calque-dl"  # type: ignore[index]
