"""What the programs of `programs.py` compute with PyTorch: `python -m tests.clients.expected [NAME ...]` writes expected.json, with libraries,
PyTorch and torchvision installed."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FILE = HERE / "expected.json"
NAMES = (
    "bert", "gpt2", "llama", "mixtral", "t5", "vit", "whisper", "clip", "mamba", "pretrained", "einops", "safetensors", "torchmetrics", "accelerate",
    "timm", "peft", "diffusers", "x_transformers",
)  # fmt: skip
GROUPS = ("zoo", "families", "libraries", "more_libraries", "newer_libraries", "further_libraries")


def main(names: list[str]) -> None:
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    found["versions"] = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "einops", "torchmetrics", "accelerate")}
    for name in names or NAMES:
        done = subprocess.run([sys.executable, str(HERE / "programs.py"), name], capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout.strip().splitlines()[-1])
    for group in GROUPS:
        for name in [] if names else found[group]:
            done = subprocess.run([sys.executable, str(HERE / f"{group}.py"), name], capture_output=True, text=True, check=True)
            found[group][name] = json.loads(done.stdout.strip().splitlines()[-1])
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
