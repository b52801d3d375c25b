"""How many kernels are compiled: a new batch size, image size or sequence length reuses what there is.

Kernels take extents, strides and offsets as arguments. New ones are due only where a rule on sizes changes the structure: dims of extent 1,
reductions over at most four elements, reductions that are split from some length on, and results that are streamed past the caches from some size on.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import calque
from bench import models
from calque.backend.cpu.code import library
from calque.kernel.loops import LoopKernel
from calque.run import fingerprint

SIZES = {"mlp": (6, 7, 13), "lenet": (5, 6, 9), "resnet18-32": (5, 6, 7), "lstm": (5, 6, 7), "gpt": (5, 6, 7), "resnet18-224": (5, 6, 7)}


@pytest.fixture
def structures(monkeypatch: pytest.MonkeyPatch) -> set[LoopKernel]:
    """The structures of kernels that were needed, whether or not the process had them."""
    met: set[LoopKernel] = set()
    needed = library.needed

    def watched(kernels: Sequence[LoopKernel], contractions: Sequence[library.Contraction]) -> library.Needed:
        met.update(kernels)
        return needed(kernels, contractions)

    monkeypatch.setattr(library, "needed", watched)
    monkeypatch.setattr(fingerprint, "LONG", sys.maxsize)  # all is planned here
    return met


def trainer(name: str) -> Callable[[int], None]:
    """A function that makes a step at a batch size. The transformer is a small one."""
    job = models.JOBS[name]
    if name == "gpt":
        job = dataclasses.replace(job, model=lambda T: models.gpt(T, 2, 2, 64, 64, 65), batch=models.token_batches(65, 64, False))
    calque.manual_seed(0)
    rng = np.random.default_rng(0)
    model = job.model(calque)
    optimizer = job.optimizer(calque, model)

    def step(size: int) -> None:
        x, y = (calque.tensor(a) for a in job.batch(rng, size))
        job.step(calque, model, optimizer, x, y).item()

    return step


def unstreamed(structures: set[LoopKernel]) -> set[LoopKernel]:
    """Without the choice whether results are streamed, which depends on their size in bytes."""
    return {dataclasses.replace(kernel, streams=(), peeled=False) for kernel in structures}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n == "resnet18-224" else []) for n in SIZES])
def test_another_batch_size_compiles_nothing(name: str, structures: set[LoopKernel]) -> None:
    """The last, smaller batch of a loader, and larger ones."""
    step = trainer(name)
    first, *others = SIZES[name]
    step(first)
    step(first)  # the optimizer has its state
    known = set(structures)
    assert known
    for size in others:
        step(size)
    assert unstreamed(structures) == unstreamed(known)
    assert len(structures) - len(known) <= 3  # of the 224x224 images, whose largest results pass the limit between two of the sizes


def test_another_image_size_compiles_nothing(structures: set[LoopKernel]) -> None:
    calque.manual_seed(0)
    rng = np.random.default_rng(0)
    model = models.resnet18(calque, 10, True)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(size: int) -> None:
        x = calque.tensor(rng.standard_normal((2, 3, size, size), dtype=np.float32))
        models.classify(calque, model, optimizer, x, calque.tensor(rng.integers(0, 10, 2))).item()

    step(24)
    step(24)
    known = set(structures)
    for size in (20, 28, 36):
        step(size)
    assert structures == known


def train_on(lengths: Sequence[int], structures: set[LoopKernel], words: int) -> tuple[int, int]:
    """Kernels of an LSTM language model at the first length, and at all lengths together. No other test has as many words."""
    calque.manual_seed(0)
    rng = np.random.default_rng(0)
    model = models.lstm_lm(calque, words, 24)
    optimizer = calque.optim.SGD(model.parameters(), lr=1.0)
    counts = []
    for length in (lengths[0], *lengths):
        text = rng.integers(0, words, (length + 1, 20))
        models.lstm_step(calque, model, optimizer, calque.tensor(text[:-1]), calque.tensor(text[1:])).item()
        counts.append(len(structures))
    return counts[1], counts[-1]


def test_lengths_of_a_recurrent_model_share_kernels(structures: set[LoopKernel]) -> None:
    first, together = train_on([5, 6, 11, 20, 37, 120], structures, 300)
    assert first > 10 and together <= 2 * first


@pytest.mark.parametrize("lengths", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_many_lengths_of_a_recurrent_model_share_kernels_and_hold_little(structures: set[LoopKernel], lengths: int) -> None:
    """At most three variants of a kernel; the memory kept for reuse stays below what one step needs, and the trie well below its limit."""
    calque.synchronize()
    before, edges = calque.stats()["memory"], calque.stats()["trie_edges"]
    first, together = train_on(range(5, 5 + lengths), structures, 310)
    after = calque.stats()["memory"]
    assert together <= 3 * first
    assert after["in_use"] + after["cached"] - before["in_use"] - before["cached"] < 100 << 20
    assert calque.stats()["trie_edges"] - edges < lengths * 300


def test_the_counter_counts() -> None:
    """A structure that nobody had before is one more, once."""
    x = calque.ones(50, 1000) * 1.0
    x.numpy()
    calque.synchronize()  # what earlier tests left in the queue
    before = library.COUNTERS.kernels
    for _ in range(2):
        (x.exp().sin().cos().tanh().exp().sin() * 3.25 - x).numpy()
    assert library.COUNTERS.kernels == before + 1
