"""`calque run`: a program sees what Python would show it, and Calque under the name `torch`, in its child processes as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: str, cwd: Path | None = None, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m calque ...` with this tree's Calque."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "calque", *words], capture_output=True, text=True, env=environment, cwd=cwd, input=given, timeout=300, check=False
    )


def program(folder: Path, text: str, name: str = "program.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_script_sees_what_python_would_show_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7\n")
    text = """
import sys, importlib.metadata, importlib.util
import torch, beside
from torch import nn
import torch.nn.functional as F
assert __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals()
assert __file__ == sys.argv[0] and sys.argv[1:] == ["--epochs", "2", "--help"], sys.argv
assert sys.path[0] == WHERE and __spec__ is None and beside.value == 7
assert torch.__version__ == "2.13.0+calque" and importlib.metadata.version("torch") == torch.__version__
assert importlib.util.find_spec("torch") is not None and importlib.util.find_spec("torch.nn.functional") is not None
assert importlib.util.find_spec("torch.nonsense") is None and importlib.util.find_spec("tor") is None
assert "torch" in importlib.metadata.packages_distributions()
assert nn is torch.nn and sys.modules["torch.nn.functional"] is F and F is torch.nn.functional
assert type(torch.zeros(1)).__name__ == "Tensor" and repr(torch.float32) == "torch.float32"
assert "calque.compat" not in sys.path
print("fine", torch.ones(2, 2).sum().item())
""".replace("WHERE", repr(os.path.realpath(tmp_path)))
    done = run("run", program(tmp_path, text), "--epochs", "2", "--help")
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine 4.0\n", "")


def test_a_relative_script_knows_its_place(tmp_path: Path) -> None:
    text = "import os, sys, torch\nos.chdir('/')\nprint(sys.argv[0], os.path.realpath(__file__), sys._getframe().f_code.co_filename == __file__)\n"
    path = program(tmp_path, text)
    assert run("run", "program.py", cwd=tmp_path).stdout == f"program.py {os.path.realpath(path)} True\n"


def test_modules_commands_and_texts_run(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys, torch\nprint(__package__, sys.argv[1:], torch.version.cuda)\n")
    assert run("run", "-m", "pack", "a", "-b", cwd=tmp_path).stdout == "pack ['a', '-b'] None\n"
    assert run("run", "-c", "import sys, torch; print(sys.argv, torch.tensor(3).item())", "x").stdout == "['-c', 'x'] 3\n"
    assert run("run", "-", given="import torch\nprint(torch.zeros(1).item())\n").stdout == "0.0\n"
    assert run(given="import torch; print(torch.arange(3).tolist())").stdout == "[0, 1, 2]\n"  # no word at all
    assert run("run", "-c", "raise SystemExit(3)").returncode == 3


@pytest.mark.parametrize("words", [[], ["-m"], ["--nonsense", "x.py"], ["no such file.py"]])
def test_a_command_line_without_a_program_is_refused(words: list[str]) -> None:
    done = run("run", *words)
    assert done.returncode == 2 and "run" in done.stderr and "Traceback" not in done.stderr


def test_an_error_shows_the_traceback_of_the_program(tmp_path: Path) -> None:
    text = "import torch\n\ndef f():\n    raise KeyError('mine')\n\ntry:\n    f()\nexcept KeyError as e:\n    raise ValueError('last') from e\n"
    path = program(tmp_path, text)
    ours = run("run", path)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": STUB(tmp_path)}, check=False)
    assert ours.returncode == plain.returncode == 1
    assert ours.stderr == plain.stderr and "calque" not in ours.stderr.replace(str(tmp_path), "")
    broken = run("run", program(tmp_path, "import torch\nx = = 1\n", "broken.py"))
    assert broken.stderr.startswith(f'  File "{tmp_path}/broken.py", line 2\n') and broken.returncode == 1


def STUB(folder: Path) -> str:
    """A folder with a `torch` that plain Python can import."""
    (folder / "stub").mkdir(exist_ok=True)
    (folder / "stub" / "torch.py").write_text("")
    return str(folder / "stub")


def test_names_that_are_missing_are_told_where_they_are_asked_for(tmp_path: Path) -> None:
    path = program(tmp_path, "import torch\nassert not hasattr(torch, 'lobpcg_')\ntorch.mkldnn_convolution\n")
    done = run("run", "--report", path)
    assert "[torch.mkldnn_convolution] expected a name that Calque has, got one that PyTorch 2.13 has and Calque has not; " in done.stderr
    assert f"(asked for at {path}:3)" in done.stderr and "face.py" not in done.stderr
    report = done.stderr.partition("Names of torch")[2].splitlines()
    assert report[1:] == [
        f"  torch.mkldnn_convolution  1 time, first at {path}:3",
        f"  torch.lobpcg_ (PyTorch has it neither)  1 time, first at {path}:2",
    ]
    nobody = run("run", "-c", "import torch; torch.relux")
    assert "got one that neither has; is torch.relu meant?" in nobody.stderr
    imported = run("run", "-c", "from torch import mkldnn_convolution")
    assert "PyTorch 2.13 has and Calque has not" in imported.stderr and imported.stderr.count("Traceback") == 1
    method = run("run", "--report", "-c", "import torch; torch.zeros(1).to_mkldnn()")
    assert "[torch.Tensor.to_mkldnn] expected a name that Calque has" in method.stderr and "torch.Tensor.to_mkldnn  1 time" in method.stderr


def test_child_processes_find_it_too(tmp_path: Path) -> None:
    text = """
import multiprocessing, subprocess, sys
import torch

def work(queue):
    import torch
    queue.put((torch.__version__, torch.full((2,), 3.0).sum().item()))

if __name__ == "__main__":
    print(subprocess.run([sys.executable, "-c", "import torch, sys; print(torch.__version__, any('compat' in p for p in sys.path))"],
                         capture_output=True, text=True).stdout.strip())
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
"""
    done = run("run", program(tmp_path, text))
    assert done.stdout == "2.13.0+calque False\n('2.13.0+calque', 6.0)\n", done.stderr


def test_a_child_that_does_not_import_torch_does_not_load_the_framework() -> None:
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(\"calque\" in sys.modules, \"numpy\" in sys.modules)'])"
    assert run("run", "-c", text).stdout == "False False\n"


def test_the_sitecustomize_of_the_installation_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.their_own = 5\n")
    code = f"import os, subprocess, sys; os.environ['PYTHONPATH'] += os.pathsep + {str(tmp_path)!r}; " + (
        "subprocess.run([sys.executable, '-c', 'import sys, torch; print(sys.their_own, torch.__version__)'])"
    )
    assert run("run", "-c", code).stdout == "5 2.13.0+calque\n"


def test_it_is_refused_where_pytorch_is_loaded(tmp_path: Path) -> None:
    text = f"import sys; sys.path.insert(0, {STUB(tmp_path)!r})\nimport torch, calque\n"
    text += "try:\n    calque.install_as_torch()\nexcept ImportError as e:\n    print(e)\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.stdout.startswith("[install_as_torch] expected that no torch is loaded yet, got "), done.stderr


def test_functions_that_a_trace_is_the_first_to_look_up_are_themselves(tmp_path: Path) -> None:
    """Passes over graphs compare targets with the functions of `torch`."""
    path = program(tmp_path, """
import torch, torch.nn.functional as F
graph = torch.fx.symbolic_trace(lambda x: torch.sigmoid(F.gelu(F.relu(x)))).graph
print([node.target in (F.relu, F.gelu, torch.sigmoid) for node in graph.nodes if node.op == "call_function"])
import torch.special
again = torch.fx.symbolic_trace(lambda x: torch.special.expit(F.relu(x))).graph
print([node.target in (F.relu, torch.special.expit) for node in again.nodes if node.op == "call_function"], hasattr(F.relu, "_records"))
""")
    done = run("run", path)
    assert done.stdout.splitlines() == ["[True, True, True]", "[True, True] False"], done.stdout + done.stderr
