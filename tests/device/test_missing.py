"""What is said where JAX, its plugin or the device is missing, of another version, or taken by another program: once, with the command that helps.

Nothing here needs JAX: packages of that name are made that have what goes wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from calque.backend.xla.backend import OLDEST

ROOT = Path(__file__).resolve().parents[2]
RAISES = "def local_devices(backend=None): raise RuntimeError({!r})"

CASES = {  # version of JAX (None: none is installed), its text, modules beside it, device -> what is said
    "no JAX": (None, "", (), "cuda",
        "JAX, which serves CUDA and other devices, is not installed; run: pip install 'jax[cuda13]', and see that the driver"),
    "no JAX for XLA": (None, "", (), "xla",
        "JAX, which serves CUDA and other devices, is not installed; run: pip install 'jax'; or use device='cpu'"),
    "no plugin": ("0.10.2", "", (), "cuda",
        "JAX's plugin for CUDA is not installed; run: pip install 'jax[cuda13]', and see that the driver is there"),
    "an old JAX": ("0.4.30", "1 / 0", (), "xla",
        "JAX 0.4.30 is installed, and 0.10 is the oldest that serves; run: pip install --upgrade 'jax'; or use"),
    "half a JAX": ("0.10.2", "import jaxlib_of_another_version", (), "xla",
        "JAX 0.10.2 does not load (No module named 'jaxlib_of_another_version'); run: pip install --upgrade --force-reinstall 'jax'"),
    "parts that do not fit": ("0.10.2", "raise RuntimeError('jaxlib is version 0.9, but this version of jax requires 0.10')", (), "xla",
        "JAX finds none (jaxlib is version 0.9, but this version of jax requires 0.10); run: pip install 'jax'"),
    "no GPU": ("0.10.2", RAISES.format("Unknown backend cuda"), ("jax_cuda13_plugin",), "cuda",
        "JAX finds none (Unknown backend cuda); run: pip install 'jax[cuda13]', and see that the driver is there (nvidia-smi); or use device='cpu'"),
    "no device": ("0.10.2", "def local_devices(backend=None): return []", (), "xla", "JAX finds none; run: pip install 'jax'; or use device='cpu'"),
    "a GPU that is taken": ("0.10.2", RAISES.format("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory"), ("jax_cuda13_plugin",), "cuda",
        "another program has it (INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory); run: nvidia-smi, and end that program or share"),
    "a TPU that is taken": ("0.10.2", RAISES.format("The TPU is already in use by process with pid 7."), ("libtpu",), "tpu",
        "another program has it (The TPU is already in use by process with pid 7.); run: ps -ef; or use device='cpu'"),
}  # fmt: skip

PROGRAM = """
import sys
sys.path[:0] = [{folder!r}, {root!r}]
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "jax" and {hidden}:
            raise ModuleNotFoundError("No module named 'jax'", name="jax")
if {hidden}:
    import importlib.util, importlib.metadata
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "jax" else real(name, package)
    sys.meta_path.insert(0, Hidden())
import calque
assert not calque.cuda.is_available()
x = calque.ones(2)
model = calque.nn.Linear(2, 2)
calls = [lambda: x.to({device!r}), lambda: calque.zeros(3, device={device!r}), lambda: model.to({device!r})]
calls.append(lambda: calque.set_default_device({device!r}))
if {device!r} == "cuda":
    calls += [lambda: x.cuda(), lambda: model.cuda(), lambda: calque.cuda.set_device(0)]
for call in calls:
    try:
        call()
    except RuntimeError as error:
        print(error)
assert (model(x).device, model.weight.device) == ("cpu", "cpu")
"""


@pytest.mark.parametrize("name", CASES)
def test_one_error_says_what_is_missing_and_what_helps(name: str, tmp_path: Path) -> None:
    installed, text, beside, device, said = CASES[name]
    if installed is not None:
        (tmp_path / "jax").mkdir()
        (tmp_path / "jax" / "__init__.py").write_text(text + "\n")
        info = tmp_path / f"jax-{installed}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jax\nVersion: {installed}\n")
    for module in beside:
        (tmp_path / f"{module}.py").write_text("")
    program = PROGRAM.format(folder=str(tmp_path), root=str(ROOT), hidden=installed is None, device=device)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert len(lines) == (7 if device == "cuda" else 4), found.stdout
    for line in lines:
        assert re.match(rf"\[\w+\] expected a device that exists, got '{device}(:0)?': {re.escape(said)}", line), line


def test_the_oldest_version_is_that_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in ("xla", "cuda", "tpu"):
        assert extras[name][0].endswith(f">={'.'.join(map(str, OLDEST))}")
