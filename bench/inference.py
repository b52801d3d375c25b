"""Inference of one request and of small batches: Calque hybridized, its native library, PyTorch eager and compiled, ONNX Runtime and OpenVINO, each
in a process of its own, taking turns.

    python bench/inference.py [--threads 2] [--batches 1,8] [--rounds 5] [--seconds 0.4] [--only "MLP;ResNet-18"]
        [--sides calque,library,torch,compiled,onnxruntime,openvino]

Prints the median milliseconds of a call by the clock over all rounds, the best of the others divided by ours (above 1 Calque is faster), and how many
MiB each process has grown by at most for its model and calls. All answer with the same numbers, which is checked. ONNX Runtime and OpenVINO get the
ONNX model that PyTorch writes, as their users do. Needs torch, onnx and onnxruntime; openvino is left out if
it is not there.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import models  # noqa: E402
from as_torch import as_torch  # noqa: E402
from worker import resident  # noqa: E402

SIDES = ("calque", "library", "torch", "compiled", "onnxruntime", "openvino")
OURS = ("calque", "library")
Call = Callable[[], Any]


def _zoo(module: str, name: str, **options: Any) -> Callable[[Any], Any]:
    """A model of the library, on Calque or on PyTorch."""

    def make(T: Any) -> Any:
        found = importlib.import_module(module) if T.__name__ == "calque" else as_torch(module)
        return getattr(found, name)(**options)

    return make


def _first(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same with the first of its results alone."""

    def first(T: Any) -> Any:
        class First(T.nn.Module):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = make(T)

            def forward(self, x: Any) -> Any:
                return self.model(x)[0]

        return First()

    return first


def _images(size: int, channels: int = 3) -> Callable[[int], Any]:
    return lambda batch: np.random.default_rng(0).standard_normal((batch, channels, size, size), np.float32)


def _tokens(vocabulary: int, length: int) -> Callable[[int], Any]:
    return lambda batch: np.random.default_rng(0).integers(0, vocabulary, (batch, length))


_VISION = "calque.vision.models."
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any]]] = {
    "MLP": (models.mlp, lambda batch: np.random.default_rng(0).standard_normal((batch, 784), np.float32)),
    "ResNet-18": (_zoo(_VISION + "resnet", "resnet18"), _images(224)),
    "ResNet-50": (_zoo(_VISION + "resnet", "resnet50"), _images(224)),
    "MobileNetV2": (_zoo(_VISION + "mobilenet", "mobilenet_v2"), _images(224)),
    "MobileNetV3": (_zoo(_VISION + "efficientnet", "mobilenet_v3_large"), _images(224)),
    "EfficientNet-B0": (_zoo(_VISION + "efficientnet", "efficientnet_b0"), _images(224)),
    "ViT-S": (_zoo(_VISION + "transformer", "VisionTransformer", image_size=224, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384,
                   mlp_dim=1536), _images(224)),
    "BERT-base": (_first(_zoo("calque.text.models.bert", "BERT")), _tokens(30522, 128)),
    "GPT prefill 256": (models.gpt, _tokens(65, 256)),
    "LSTM, 2 layers": (_first(_zoo("calque.text.models.lstm", "LSTMLanguageModel", ntoken=10_000)),
                       lambda batch: _tokens(10_000, 35)(batch).T.copy()),
    "U-Net": (_zoo(_VISION + "unet", "unet"), _images(256)),
}  # fmt: skip


def state(name: str) -> dict[str, Any]:
    """Parameters and statistics of the model, drawn by Calque; heads that begin as zeros would make all answers equal, so they are drawn as well."""
    import calque

    calque.manual_seed(0)
    rng = np.random.default_rng(1)
    found = {}
    for key, value in CASES[name][0](calque).state_dict().items():
        array = np.array(value.detach().numpy())
        found[key] = array if array.ndim < 2 or array.any() else rng.standard_normal(array.shape).astype(array.dtype) / 16
    return found


class Worker:
    """One side: what its process does."""

    def __init__(self, side: str, name: str, batch: int, threads: int, folder: Path) -> None:
        self.name, self.threads, self.folder = name, threads, folder
        self.make, given = CASES[name]
        self.x = given(batch)
        self.state = dict(np.load(folder / "state.npz"))
        self.before = resident()
        self.call: Call = getattr(self, side)()

    def calque(self) -> Call:
        """The hybridized model as a user calls it."""
        import calque

        calque.set_num_threads(self.threads)
        self.before = resident()
        model = self.make(calque).eval()
        model.load_state_dict({key: calque.tensor(value) for key, value in self.state.items()})
        hybrid, t = calque.compile(model), calque.tensor(self.x)

        def call() -> Any:
            with calque.no_grad():
                return hybrid(t).numpy()

        return call

    def library(self) -> Call:
        """The native library in a wheel, without Calque."""
        zipfile.ZipFile(next((self.folder / "built").glob("*.whl"))).extractall(self.folder / "site")
        spec = importlib.util.spec_from_file_location("library", self.folder / "site" / "library" / "__init__.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.before = resident()
        instance = module.Model(threads=self.threads)
        assert instance.threads == self.threads
        return lambda: instance.forward(self.x)

    def _torch(self) -> Any:
        import torch

        torch.set_num_threads(self.threads)
        self.before = resident()
        model = self.make(torch).eval()
        model.load_state_dict({key: torch.from_numpy(value) for key, value in self.state.items()})
        return torch, model

    def torch(self, compiled: bool = False) -> Call:
        """PyTorch as written."""
        torch, model = self._torch()
        model, t = torch.compile(model) if compiled else model, torch.from_numpy(self.x)

        def call() -> Any:
            with torch.inference_mode():
                return model(t).numpy()

        return call

    def compiled(self) -> Call:
        """`torch.compile`."""
        return self.torch(True)

    def onnxruntime(self) -> Call:
        """ONNX Runtime on what PyTorch has written."""
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        self.before = resident()
        session = onnxruntime.InferenceSession(str(self.folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda: session.run(None, {name: self.x})[0]

    def openvino(self) -> Call:
        """OpenVINO on the same, in float32."""
        import openvino

        core = openvino.Core()
        settings = {"INFERENCE_NUM_THREADS": self.threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        self.before = resident()
        request = core.compile_model(core.read_model(self.folder / "model.onnx"), "CPU", settings).create_infer_request()
        return lambda: request.infer([self.x])[0]

    def prepare(self) -> Call:
        """Write what other processes read: the ONNX model and the wheel."""
        import calque

        torch, model = self._torch()
        torch.onnx.export(model, (torch.from_numpy(self.x),), str(self.folder / "model.onnx"), dynamo=False, opset_version=17)
        calque.set_num_threads(self.threads)
        ours = self.make(calque).eval()
        ours.load_state_dict({key: calque.tensor(value) for key, value in self.state.items()})
        exported = calque.export(ours, calque.tensor(self.x))
        exported.compile(self.folder / "built", name="library", cpu="native", wheel=True, weights="file")
        return lambda: 0

    def answer(self, seconds: float) -> dict[str, Any]:
        """Times of calls for so long, and memory."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            self.call()
            times.append(time.perf_counter() - start)
        return {"times": times, "memory": resident("VmHWM") - self.before}


def worker(side: str, name: str, batch: int, threads: int, folder: Path) -> None:
    """The process of one side: a line of JSON for each number of seconds on standard input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever frameworks print goes to standard error
    found = Worker(side, name, batch, threads, folder)
    for _ in range(5):
        result = found.call()
    np.save(folder / f"{side}.npy", np.asarray(result))
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(found.answer(float(line))), file=out, flush=True)


class Side:
    """The parent's end of such a process."""

    def __init__(self, side: str, name: str, batch: int, threads: int, folder: Path) -> None:
        environment = os.environ | {f"{key}_NUM_THREADS": str(threads) for key in ("OMP", "MKL", "CALQUE")}
        self.log = (folder / f"{side}.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--worker", side, "--only", name, "--batches", str(batch), "--threads", str(threads),
             "--folder", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment,
        )  # fmt: skip
        self.times: list[float] = []
        self.memory = 0.0
        self.read()

    def read(self) -> dict[str, Any]:
        """The next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise RuntimeError(self.log.read().strip().splitlines()[-1])
        found: dict[str, Any] = json.loads(line)
        return found

    def measure(self, seconds: float) -> None:
        """Its turn."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        found = self.read()
        self.times += found["times"]
        self.memory = max(self.memory, found["memory"])

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


def row(name: str, batch: int, options: argparse.Namespace) -> str:
    """Measure one model at one batch size."""
    with tempfile.TemporaryDirectory() as place:
        folder, sides = Path(place), {}
        np.savez(folder / "state.npz", **state(name))
        Side("prepare", name, batch, options.threads, folder).close()
        missing = []
        for side in options.sides.split(","):
            try:
                sides[side] = Side(side, name, batch, options.threads, folder)
            except RuntimeError as error:
                missing.append(f"{side}: {error}")
        wanted = np.load(folder / "torch.npy") if "torch" in sides else None
        for side in sides:
            if wanted is not None:
                error = np.abs(np.load(folder / f"{side}.npy") - wanted).max() / np.abs(wanted).max()
                assert error < 1e-3, f"{name}: {side} is {error:.1e} from PyTorch"
        for k in range(options.rounds):
            for side in list(sides.values())[:: -1 if k % 2 else 1]:
                side.measure(options.seconds)
        for side in sides.values():
            side.close()
    middle = {side: 1e3 * statistics.median(found.times) for side, found in sides.items()}
    others = [value for side, value in middle.items() if side not in OURS]
    ratios = [f"{min(others) / middle[side]:.2f}" if side in middle and others else "" for side in OURS]
    memory = ", ".join(f"{sides[side].memory:.0f}" if side in sides else "-" for side in SIDES)
    cells = " | ".join(f"{middle[side]:.3f}" if side in middle else "-" for side in SIDES)
    return f"| {name}, batch {batch} | {cells} | {' | '.join(ratios)} | {memory} |" + "".join(f"\n  ({text})" for text in missing)


def main() -> None:
    """Measure and print a row per model and batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--only", default="", help="names of models, separated by semicolons")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.only, int(options.batches), options.threads, Path(options.folder))
        return
    print(f"load average {os.getloadavg()[0]:.1f}; {options.threads} threads; milliseconds")
    print(f"| model | {' | '.join(SIDES)} | best other / calque | / library | MiB: {', '.join(SIDES)} |\n|---|" + "---:|" * (len(SIDES) + 3))
    for name in [n for n in CASES if not options.only or n in options.only.split(";")]:
        for batch in options.batches.split(","):
            print(row(name, int(batch), options), flush=True)


if __name__ == "__main__":
    main()
