"""Libraries where this machine's Python is not: other processors under qemu, WebAssembly in Node and in a browser, memory under valgrind."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from tests.exported.native import driver, run
from tests.exported.test_native import Taken, arrays, cc, zoo
from tests.profiler.browser import find_browser, opened

node = pytest.mark.skipif(shutil.which("node") is None or shutil.which("wasm-ld") is None, reason="needs node and wasm-ld (Debian: nodejs, lld)")


def compare(folder: Path, emulator: Sequence[str], compiler: Sequence[str], target: str, cpu: str) -> None:
    exported, inputs = zoo()
    exported.compile(folder, target, name="zoo", cpu=cpu, linker=False)
    program = driver(folder, "zoo", compiler)
    for number, (name, given) in enumerate(inputs.items()):
        with calque.no_grad():
            wanted = arrays(exported.entry(name)(*given))
        for found in run([*emulator, program], arrays(given), wanted, number, 2):
            for a, b in zip(found, wanted, strict=True):
                assert np.allclose(a, b, 1e-4, 1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "cpu", "emulator"),
    [
        ("aarch64-linux-gnu", "armv8-a", ["qemu-aarch64"]),
        ("riscv64-linux-gnu", "rv64gc", ["qemu-riscv64"]),
        ("riscv64-linux-gnu", "rv64gcv", ["qemu-riscv64", "-cpu", "rv64,v=true,vlen=128,vext_spec=v1.0"]),
    ],
)
def test_other_processors(tmp_path: Path, target: str, cpu: str, emulator: list[str]) -> None:
    if shutil.which(emulator[0]) is None or shutil.which(f"{target}-gcc") is None:
        pytest.skip(f"needs {emulator[0]} and {target}-gcc (Debian: qemu-user, gcc-{target})")
    compare(tmp_path, emulator, [f"{target}-gcc", "-static"], target, cpu)


@cc
@pytest.mark.slow
def test_an_older_processor_is_told(tmp_path: Path) -> None:
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("needs qemu-x86_64 (Debian: qemu-user)")
    exported = calque.export(nn.LayerNorm(4), calque.ones(2, 4))
    exported.compile(tmp_path, "x86_64-linux-gnu", name="zoo", linker=False)
    program = driver(tmp_path, "zoo", ["gcc", "-static"])
    (tmp_path / "in.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    given = [str(program), "0", "1", "-", str(tmp_path / "in.bin"), str(tmp_path / "out.bin")]
    done = subprocess.run(["qemu-x86_64", "-cpu", "Nehalem", *given], capture_output=True, text=True)
    assert done.returncode == 4 and "this processor lacks instructions" in done.stderr
    done = subprocess.run(["qemu-x86_64", "-cpu", "max,-avx512f", *given], capture_output=True, text=True)
    wanted = exported(calque.arange(8.0).view(2, 4)).detach().numpy()
    assert done.returncode == 0 and np.allclose(np.fromfile(tmp_path / "out.bin", np.float32).reshape(2, 4), wanted, 1e-5, 1e-6)


@cc
@pytest.mark.slow
def test_no_read_or_write_outside_under_valgrind(tmp_path: Path) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("needs valgrind")
    valgrind = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=all"]
    compare(tmp_path, valgrind, ["gcc"], "x86_64-linux-gnu", "x86-64-v3")  # valgrind does not know AVX-512


def javascript(folder: Path, name: str, cases: list[Any], wrong: list[Any]) -> Any:
    """Outputs of the cases (program, inputs), and what is said to wrong ones."""
    (folder / "cases.json").write_text(json.dumps({"cases": cases, "wrong": wrong}))
    (folder / "main.mjs").write_text(
        f'import {{ load }} from "./{name}.mjs";\nimport fs from "node:fs";\n'
        'const given = JSON.parse(fs.readFileSync(new URL("./cases.json", import.meta.url)));\n'
        "const model = await load();\nconst plain = (v) => Array.from(v, Number);\n"
        "const found = given.cases.map(([p, x]) => Object.values(model.run(p, x)).map(plain));\n"
        "const said = given.wrong.map(([p, x]) => { try { model.run(p, x); return null; } catch (e) { return [e.name, e.code, e.message]; } });\n"
        "model.reset();\nconst again = given.cases.map(([p, x]) => Object.values(model.run(p, x)).map(plain));\n"
        "console.log(JSON.stringify({ programs: model.programs, found, said, again }));\n"
    )
    done = subprocess.run(["node", folder / "main.mjs"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@node
@pytest.mark.parametrize("weights", ["inside", "file"])
def test_webassembly_in_node(tmp_path: Path, weights: str) -> None:
    calque.manual_seed(1)
    exported = calque.export(Taken(), (calque.tensor([1, 2, 9]), calque.ones(3, 4)))
    files = exported.compile(tmp_path, "web", name="taken", weights=weights)
    assert {"taken.wasm", "taken.mjs", "taken.d.ts", "package.json", "index.html"} <= {f.name for f in files}
    good = ["forward", {"index": [1, 2, 9], "x": [2.0] * 12}]
    wrong = [
        ["forward", {"index": [1, 2, 10], "x": [2.0] * 12}], ["forward", {"index": [1, 2], "x": [2.0] * 12}], ["forward", {"index": [1, 2, 3]}],
        ["backward", {}], ["forward", [1]], ["forward", None], ["forward", {"index": "abc", "x": [2.0] * 12}],
    ]  # fmt: skip
    found = javascript(tmp_path, "taken", [good, good], wrong)
    table = exported.table.weight.detach().numpy()[[1, 2, 9]] * 2
    for k, rows in enumerate(found["found"], 1):
        assert np.array_equal(np.array(rows[0], np.float32), table.reshape(-1)) and rows[1:] == [[k, k], [1, 2, 9]]
    assert all(said is not None and said[0] == "CalqueError" and "expected" in said[2] for said in found["said"][1:])
    assert found["said"][0][1] == 10 and "got an index outside" in found["said"][0][2]
    assert found["again"] == found["found"] and found["programs"][0]["inputs"][1] == {"name": "x", "dtype": "float32", "shape": [3, 4]}


@node
@pytest.mark.slow
def test_models_in_node(tmp_path: Path) -> None:
    exported, inputs = zoo()
    exported.compile(tmp_path, "web", name="zoo")
    cases = []
    for name, given in inputs.items():
        specs = exported.__dict__["_entries"][name].inputs
        plain = [a.reshape(-1).astype(np.float64 if a.dtype.kind == "f" else np.int64).tolist() for a in arrays(given)]
        cases.append([name, {s.name: values for s, values in zip(specs, plain, strict=True)}])
    found = javascript(tmp_path, "zoo", cases, [])["found"]
    for (name, given), rows in zip(inputs.items(), found, strict=True):
        for a, b in zip(rows, arrays(exported.entry(name)(*given)), strict=True):
            assert np.allclose(np.array(a).reshape(b.shape), b, 1e-4, 1e-5), name


class Where(nn.Module):
    """Says in which rows of a small image there is ink."""

    def forward(self, image: Any) -> Any:
        return (image.sum(3) * 5).view(1, 8).softmax(1)


@node
def test_a_drawing_moves_the_bars_of_a_page_from_the_disk(tmp_path: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("needs a Chromium (Debian: chromium-headless-shell)")
    calque.export(Where(), calque.zeros(1, 1, 8, 8)).compile(tmp_path / "page", "web", name="rows")
    with opened(browser, tmp_path / "profile") as page:
        page.open(tmp_path / "page" / "index.html")
        assert page.run("calqueModel.programs[0].name") == "forward" and page.run("document.body.dataset.best") == ""
        left, top, size = page.run("(() => { const b = document.getElementById('big').getBoundingClientRect(); return [b.left, b.top, b.width]; })()")
        for kind, x, y in (("mousePressed", 0.2, 0.2), ("mouseMoved", 0.8, 0.2), ("mouseReleased", 0.8, 0.2)):
            page.mouse(kind, left + x * size, top + y * size, **({"buttons": 1} if kind == "mouseMoved" else {}))
        first = page.run("document.body.dataset.best")
        page.settle()
        widths = page.run("Array.from(document.querySelectorAll('.bar'), (b) => parseFloat(b.style.width))")
        assert len(widths) == 8 and first in ("3", "4")  # a line, put in the middle
        assert int(first) == int(np.argmax(widths)) and abs(sum(widths) - 100) < 1
        page.run("document.getElementById('clear').click()")
        assert page.run("document.body.dataset.best") == "" and not page.problems
        ends = [page.run(f"document.getElementById('{name}').getBoundingClientRect().{end}") for name, end in (("said", "bottom"), ("big", "top"))]
        assert ends[0] <= ends[1]
        assert page.run("document.getElementById('said').textContent") == "Draw with the mouse or a finger."
        assert page.requests == [(tmp_path / "page" / "index.html").resolve().as_uri()]
        shades = []
        for dark, width in ((False, 390), (True, 300)):
            page.open(tmp_path / "page" / "index.html", width=width, dark=dark)
            shades.append(page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"))
            assert page.run("document.documentElement.scrollWidth") <= width
        assert shades[0] > 200 and shades[1] < 60
