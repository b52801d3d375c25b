"""Libraries that compute with anyone's arrays, given tensors: scikit-learn and SciPy find `calque.array_api` and give NumPy's numbers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np, calque
from sklearn import config_context
from sklearn.metrics import r2_score
from sklearn.preprocessing import MinMaxScaler, StandardScaler
import scipy.cluster, scipy.special, scipy.stats

values = np.random.default_rng(0).normal(size=(20, 3))
tensor = calque.from_numpy(values.copy())
calls = {
    "minmax": lambda x: MinMaxScaler().fit_transform(x),
    "standard": lambda x: StandardScaler().fit_transform(x),
    "r2": lambda x: r2_score(x[:, 0], x[:, 1]),
    "logsumexp": lambda x: scipy.special.logsumexp(x, axis=0),
    "zscore": lambda x: scipy.stats.zscore(x),
    "whiten": lambda x: scipy.cluster.vq.whiten(x),
    "pearsonr": lambda x: scipy.stats.pearsonr(x[:, 0], x[:, 1]).statistic,
}
with config_context(array_api_dispatch=True):
    for name, call in calls.items():
        ours, theirs = call(tensor), call(values)
        assert name == "r2" or type(ours) is calque.Tensor, (name, type(ours))
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-9, err_msg=name)
print("same")
"""


@pytest.mark.slow
def test_libraries_that_take_any_array() -> None:
    pytest.importorskip("sklearn")
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "PYTHONWARNINGS": "ignore"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert run.stdout.strip() == "same", run.stderr[-2000:]
