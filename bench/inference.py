"""Inference of one request by processor time, one thread each, taking turns: Calque hybridized, its native library, ONNX Runtime, OpenVINO and
PyTorch. ONNX Runtime and OpenVINO get the ONNX model that PyTorch writes, as their users do; without PyTorch Calque's, which suits them less
(poolings are gathered, batch norms are not folded).

    python bench/inference.py [--rounds 7] [--seconds 0.3] [--only mlp,gpt]

Milliseconds are the least processor time of a call over the rounds, all threads of the process counted, so that other programs of a busy machine
matter less than with a clock; they still share caches and memory. Needs onnxruntime; openvino and torch are left out if they are not there.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CALQUE_NUM_THREADS"):
    os.environ[_name] = "1"

import models  # noqa: E402 - threads are told before
import numpy as np  # noqa: E402

import calque  # noqa: E402

CASES: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "mlp": (models.mlp, lambda: np.random.default_rng(0).standard_normal((1, 784), np.float32)),
    "lenet": (models.lenet, lambda: np.random.default_rng(0).standard_normal((1, 1, 28, 28), np.float32)),
    "resnet18-32": (lambda T: models.resnet18(T, 10, True), lambda: np.random.default_rng(0).standard_normal((1, 3, 32, 32), np.float32)),
    "resnet18-224": (models.resnet18, lambda: np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)),
    "gpt-256": (models.gpt, lambda: np.random.default_rng(0).integers(0, 65, (1, 256))),
}


def runners(name: str, folder: Path) -> dict[str, Callable[[], Any]]:
    """A call of each side, all with the same parameters and input."""
    make, given = CASES[name]
    calque.manual_seed(0)
    calque.set_num_threads(1)
    model, x = make(calque).eval(), given()
    t = calque.tensor(x)
    exported = calque.export(model, t)
    found: dict[str, Callable[[], Any]] = {}
    hybrid = calque.compile(model)

    def ours() -> Any:
        with calque.no_grad():
            return hybrid(t).numpy()

    found["calque"] = ours
    exported.compile(folder, name="library", cpu="native", wheel=True, weights="file")
    found["library"] = _library(folder, x)
    file = io.BytesIO()
    if importlib.util.find_spec("torch"):
        found["pytorch"] = _pytorch(make, model, x, file)
    else:
        exported.onnx(file)
    found["onnxruntime"] = _onnxruntime(file.getvalue(), x)
    if importlib.util.find_spec("openvino"):
        found["openvino"] = _openvino(file.getvalue(), x)
    return found


def _library(folder: Path, x: Any) -> Callable[[], Any]:
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(folder / "site")
    spec = importlib.util.spec_from_file_location("library", folder / "site" / "library" / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    instance = module.Model()
    return lambda: instance.forward(x)


def _onnxruntime(raw: bytes, x: Any) -> Callable[[], Any]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x})[0]


def _openvino(raw: bytes, x: Any) -> Callable[[], Any]:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(raw), "CPU", settings).create_infer_request()
    return lambda: request.infer([x])[0]


def _pytorch(make: Any, model: Any, x: Any, file: io.BytesIO) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(1)
    other = make(torch).eval()
    other.load_state_dict({name: torch.from_numpy(np.array(p.detach().numpy())) for name, p in model.state_dict().items()})
    t = torch.from_numpy(x)
    torch.onnx.export(other, (t,), file, dynamo=False, opset_version=17)

    def call() -> Any:
        with torch.inference_mode():
            return other(t).numpy()

    return call


def least(calls: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, float]:
    """Milliseconds of processor time for each, after all have computed the same."""
    wanted = calls["calque"]()
    for name, call in calls.items():
        for _ in range(20):
            result = call()
        assert np.allclose(result, wanted, 1e-3, 1e-4), name
    best = dict.fromkeys(calls, float("inf"))
    for k in range(rounds):
        for name in list(calls)[:: -1 if k % 2 else 1]:
            start, count = time.process_time(), 0
            while (spent := time.process_time() - start) < seconds:
                calls[name]()
                count += 1
            best[name] = min(best[name], spent / count * 1e3)
    return best


def main() -> None:
    """Measure and print a row per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    options = parser.parse_args()
    sys.stdout.write(f"load average {os.getloadavg()[0]:.1f}; milliseconds of processor time, one thread\n")
    for name in [n for n in CASES if not options.only or n in options.only.split(",")]:
        with tempfile.TemporaryDirectory() as folder:
            best = least(runners(name, Path(folder)), options.rounds, options.seconds)
        others = min(value for side, value in best.items() if side not in ("calque", "library"))
        row = "  ".join(f"{side} {value:.3f}" for side, value in best.items())
        sys.stdout.write(f"{name:14} {row}  best other / calque {others / best['calque']:.2f}  / library {others / best['library']:.2f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
