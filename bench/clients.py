"""Client programs beside PyTorch: models of libraries and of `tests/clients/scripts`, one warm process each, taking turns.

    python bench/clients.py [--only gpt2,resnet] [--slices 5] [--threads 2]

Each contender takes training steps of the same unmodified code: one process imports PyTorch, the other Calque under its name. Prints the median step
of both, the median ratio of neighbouring slices (above 1 Calque is quicker), and that of processor time, which other work on the machine disturbs
less (with `--threads 1`: PyTorch's threads wait by spinning). A model whose library is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 1.0  # of one slice, at least
WARM = 20  # steps before the first slice: programs are compiled at the seventeenth at the latest


def language(kind: str, **options: Any) -> Callable[[Any], Any]:
    """A causal language model of transformers."""

    def make(torch: Any) -> Any:
        import transformers

        config = getattr(transformers, f"{kind}Config")(vocab_size=1000, **options)
        model = getattr(transformers, f"{kind}{'LMHeadModel' if kind == 'GPT2' else 'ForCausalLM'}")(config)
        words = torch.randint(0, 1000, (8, 64))
        return model, lambda: model(input_ids=words, labels=words).loss

    return make


def vision(name: str, size: int, batch: int, **options: Any) -> Callable[[Any], Any]:
    """An image model of timm."""

    def make(torch: Any) -> Any:
        import timm

        model = timm.create_model(name, num_classes=10, **options)
        x, y = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))
        return model, lambda: torch.nn.functional.cross_entropy(model(x), y)

    return make


def encoder(torch: Any) -> Any:
    """BERT with a head for classes."""
    import transformers

    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, num_labels=3)
    )
    words, y = torch.randint(0, 1000, (16, 64)), torch.randint(0, 3, (16,))
    return model, lambda: model(input_ids=words, labels=y).loss


def vae(torch: Any) -> Any:
    """A convolutional autoencoder."""
    nn = torch.nn
    down = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(32 * 49, 16))
    up = nn.Sequential(nn.Linear(8, 32 * 49), nn.Unflatten(1, (32, 7, 7)), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.SiLU())
    up.append(nn.ConvTranspose2d(16, 1, 4, 2, 1))
    model, x = nn.Sequential(down, up), torch.rand(64, 1, 28, 28)

    def loss() -> Any:
        mu, logvar = down(x).chunk(2, 1)
        out = up(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
        return torch.nn.functional.binary_cross_entropy_with_logits(out, x, reduction="sum") + kl

    return model, loss


def denoiser(torch: Any) -> Any:
    """A diffusion step of a small perceptron with a time embedding."""
    nn = torch.nn
    model, x = nn.Sequential(nn.Linear(34, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 2)), torch.randn(512, 2)

    def loss() -> Any:
        t, noise = torch.rand(512, 1), torch.randn_like(x)
        angles = t * torch.exp(-torch.arange(16) / 4)
        return (model(torch.cat([x * (1 - t) + noise * t, angles.sin(), angles.cos()], 1)) - noise).square().mean()

    return model, loss


def graph(torch: Any) -> Any:
    """Two layers of attention on a graph, by scattering."""
    nn = torch.nn
    model = nn.ModuleList([nn.Linear(32, 64), nn.Linear(128, 1), nn.Linear(64, 5)])
    x, source, target, y = torch.randn(2000, 32), torch.randint(0, 2000, (10000,)), torch.randint(0, 2000, (10000,)), torch.randint(0, 5, (2000,))

    def loss() -> Any:
        h = model[0](x)
        e = torch.nn.functional.leaky_relu(model[1](torch.cat([h[source], h[target]], 1)), 0.2).clamp(max=10).exp()
        total = torch.zeros(2000, 1).index_add(0, target, e)
        mixed = torch.zeros(2000, 64).index_add(0, target, h[source] * e / total[target])
        return torch.nn.functional.cross_entropy(model[2](mixed.relu()), y)

    return model, loss


JOBS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "gpt2": ("transformers", language("GPT2", n_embd=128, n_layer=4, n_head=4, n_positions=64)),
    "llama": ("transformers", language("Llama", hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=352)),
    "bert": ("transformers", encoder),
    "resnet": ("timm", vision("resnet10t", 64, 16)),
    "efficientnet": ("timm", vision("efficientnet_b0", 64, 8)),
    "convnext": ("timm", vision("convnext_atto", 64, 16)),
    "vit": ("timm", vision("vit_tiny_patch16_224", 64, 16, img_size=64)),
    "swin": ("timm", vision("swin_tiny_patch4_window7_224", 64, 8, img_size=64, window_size=4, embed_dim=48)),
    "mixer": ("timm", vision("mixer_s32_224", 64, 16, img_size=64)),
    "vae": ("", vae),
    "denoiser": ("", denoiser),
    "graph": ("", graph),
}


def names_of_torchvision(torch: Any) -> Any:
    """timm imports torchvision, and the package on the index holds operators for a PyTorch with CUDA alone. Without one their names are enough."""
    spec = importlib.util.find_spec("torchvision")
    if torch.version.cuda is not None or "calque" in torch.__version__ or spec is None or spec.origin is None:
        return None
    if "+cu" not in Path(spec.origin).with_name("version.py").read_text():
        return None
    names = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        names.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return names


def worker(threads: int) -> None:
    """Read names from standard input, answer with seconds per step: wall clock and processor."""
    import torch

    torch.set_num_threads(threads)
    names = names_of_torchvision(torch)  # kept while the process lives
    jobs: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in jobs:
            torch.manual_seed(0)
            model, loss = JOBS[name][1](torch)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

            def step(loss: Any = loss, optimizer: Any = optimizer) -> float:
                value = loss()
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                return float(value.item())

            jobs[name] = step
            for _ in range(WARM):
                jobs[name]()
        count, wall, processor = 0, time.perf_counter(), time.process_time()
        while count < 3 or time.perf_counter() - wall < SECONDS:
            jobs[name]()
            count += 1
        print(json.dumps([(time.perf_counter() - wall) / count, (time.process_time() - processor) / count]), flush=True)
    del names


class Contender:
    """A process of one framework."""

    def __init__(self, calque: bool, threads: int) -> None:
        words = [__file__, "--worker", str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT) if calque else ""}
        command = [sys.executable, "-W", "ignore", *(["-m", "calque", "run"] if calque else []), *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)

    def run(self, name: str) -> tuple[float, float]:
        """One slice; raises RuntimeError where the worker has died."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("["):
                wall, processor = json.loads(line)
                return wall, processor
        raise RuntimeError(f"the worker of {name} has ended")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def measure(name: str, slices: int, threads: int) -> str:
    """One row of the table."""
    both = [Contender(calque, threads) for calque in (False, True)]
    found: list[list[tuple[float, float]]] = [[], []]
    try:
        for contender in both:
            contender.run(name)
        for _ in range(slices):
            for contender, times in zip(both, found, strict=True):
                times.append(contender.run(name))
    except (RuntimeError, BrokenPipeError) as error:
        return f"| {name} | {error} | | | |"
    finally:
        for contender in both:
            contender.close()
    wall = [statistics.median(t[0] for t in times) * 1000 for times in found]
    ratios = [statistics.median(a[k] / b[k] for a, b in zip(*found, strict=True)) for k in (0, 1)]
    return f"| {name} | {wall[0]:.1f} | {wall[1]:.1f} | {ratios[0]:.2f} | {ratios[1]:.2f} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--slices", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    print("| client | PyTorch ms | Calque ms | PyTorch / Calque | processor time |\n|---|---:|---:|---:|---:|", flush=True)
    for name in options.only.split(",") if options.only else JOBS:
        library = JOBS[name][0]
        if library and importlib.util.find_spec(library) is None:
            print(f"| {name} | {library} is not installed | | | |")
            continue
        print(measure(name, options.slices, options.threads), flush=True)


if __name__ == "__main__":
    main()
