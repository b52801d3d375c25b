"""Libraries written for PyTorch run on Calque, with the losses and the generated tokens that PyTorch computes from the same weights.

`make clients` installs them, without PyTorch, into an environment of their own; elsewhere a test whose library is not installed is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text())
GROUPS = ("zoo", "families", "libraries", "more_libraries", "newer_libraries", "further_libraries")  # a file of programs each
OTHERS = ("einops", "safetensors", "torchmetrics", "accelerate", "timm", "peft", "diffusers", "x_transformers")  # the rest are transformers'


def differences(found: Any, wanted: Any, place: str = "") -> list[str]:
    """Where two results differ; numbers may by what another order of sums makes of them."""
    if isinstance(wanted, dict):
        return [d for key in wanted for d in differences(found[key], wanted[key], f"{place}.{key}")]
    if isinstance(wanted, list):
        if len(found) != len(wanted):
            return [f"{place}: {len(found)} items instead of {len(wanted)}"]
        return [d for k, value in enumerate(wanted) for d in differences(found[k], value, f"{place}[{k}]")]
    if isinstance(wanted, float):
        return [] if math.isclose(found, wanted, rel_tol=2e-4, abs_tol=1e-5) else [f"{place}: {found} instead of {wanted}"]
    return [] if found == wanted else [f"{place}: {found} instead of {wanted}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in ("versions", *GROUPS)])
def test_a_program_computes_what_pytorch_does(name: str) -> None:
    library = name if name in OTHERS else "transformers"
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; make clients runs these tests")
    done = subprocess.run(
        [sys.executable, "-m", "calque", "run", str(HERE / "programs.py"), name],
        capture_output=True, text=True, timeout=600, check=False, cwd=HERE.parents[1],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert not differences(json.loads(done.stdout.strip().splitlines()[-1]), EXPECTED[name])


LIBRARY = {"peft_methods": "peft", "diffusers_parts": "diffusers", "x_transformers_kinds": "x_transformers", "torchmetrics_more": "torchmetrics"}
LIBRARY |= dict.fromkeys(EXPECTED["families"], "timm") | {name: name for group in GROUPS[2:] for name in EXPECTED[group]}


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), [(group, name) for group in GROUPS for name in EXPECTED[group]])
def test_many_models_of_a_library_compute_what_pytorch_does(group: str, name: str) -> None:
    library = LIBRARY.get(name, "transformers" if name in ("sampled", "trainer") else name)
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; make clients runs these tests")
    done = subprocess.run(
        [sys.executable, "-m", "calque", "run", str(HERE / f"{group}.py"), name],
        capture_output=True, text=True, timeout=1800, check=False, cwd=HERE.parents[1],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert not differences(json.loads(done.stdout.strip().splitlines()[-1]), EXPECTED[group][name])


def test_differences_are_seen() -> None:
    assert not differences([1.0, {"a": True}], [1.0 + 1e-6, {"a": True}])
    assert differences([1.0, [3]], [1.01, [4]]) == ["[0]: 1.0 instead of 1.01", "[1][0]: 3 instead of 4"]
    assert differences([1], [1, 2]) == [": 1 items instead of 2"]
