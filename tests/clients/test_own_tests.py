"""Libraries that carry tests of their own with them pass these on Calque: they look at values that nobody here has thought of."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

# SciPy's functions take tensors (the Array API); its tests compare them with what NumPy gives.
SCIPY = ["signal.tests.test_filter_design", "special.tests.test_logsumexp", "stats.tests.test_hypotests", "stats.tests.test_variation"]
EINOPS = ["test_ops", "test_layers", "test_einsum"]
SUITES = {
    "scipy": (["--pyargs", *(f"scipy.{name}" for name in SCIPY), "-m", "array_api_backends"], {"SCIPY_ARRAY_API": '["torch"]'}),
    "einops": (["--pyargs", *(f"einops.tests.{name}" for name in EINOPS)], {"EINOPS_TEST_BACKENDS": "numpy,torch"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", SUITES)
def test_a_library_passes_its_own_tests(library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; make clients runs these tests")
    words, switches = SUITES[library]
    here = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "calque", "run", "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *words],
        capture_output=True, text=True, timeout=1200, check=False, cwd=tmp_path,
        env={**os.environ, **switches, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))},
    )  # fmt: skip
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
