"""The benchmarks' own arithmetic and their workers. Nothing here depends on how long anything takes."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque

BENCH = Path(__file__).resolve().parent.parent / "bench"


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, Any]]:
    """The benchmark modules, as the scripts see them."""
    sys.path.insert(0, str(BENCH))
    try:
        found = {}
        for name in ("models", "kernels", "overhead", "worker", "all"):
            spec = importlib.util.spec_from_file_location(name if name != "all" else "bench_all", BENCH / f"{name}.py")
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            found[name] = module
        yield found
    finally:
        sys.path.remove(str(BENCH))
        for name in ("models", "kernels", "overhead", "worker", "bench_all"):
            sys.modules.pop(name, None)


def test_quick_kernels_exist(modules: dict[str, Any]) -> None:
    cases = modules["kernels"].cases()
    assert set(modules["kernels"].QUICK) <= set(cases)
    assert all(c.nbytes > 0 and c.copies >= 1 for c in cases.values())


def test_arithmetic_of_a_product_and_a_convolution(modules: dict[str, Any]) -> None:
    cases = modules["kernels"].cases()
    assert cases["gemm 128x784x512 nt"].flops == 2 * 128 * 784 * 512
    assert cases["resnet18 64x56x56 -> 128 k3 s2 input"].flops == 2 * 16 * 128 * 64 * 9 * 28 * 28


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_products_are_what_they_say(modules: dict[str, Any], layout: str) -> None:
    case = modules["kernels"]._product((2,), 3, 5, 7, layout)
    run, operands = case.jax(None, np.random.default_rng(0))
    ours = case.make(calque, np.random.default_rng(0))()
    assert ours.shape == (2, 3, 7)
    np.testing.assert_allclose(ours.numpy(), run(*operands), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["layer norm 2048x384 backward", "embedding forward 8192 of 50257x384", "Adam 10 M"])
def test_a_kernel_runs(modules: dict[str, Any], name: str) -> None:
    modules["kernels"].cases()[name].make(calque, np.random.default_rng(0))()
    calque.synchronize()


def test_ratios_are_of_neighbouring_slices(modules: dict[str, Any]) -> None:
    row = modules["all"].Row("step", "x", {"torch": [2.0, 8.0, 3.0], "calque": [1.0, 2.0, 1.0], "jax": [9.0]})
    assert row.ratio("torch", "calque") == 3.0
    assert row.best_peer() == "torch"
    assert math.isnan(row.ratio("torch", "calque hybrid"))


def test_sections_are_replaced_or_appended(modules: dict[str, Any]) -> None:
    write = modules["all"].write
    text = write({"kernels": "one"}, "# Measured\n")
    assert write({"kernels": "two", "steps": "three"}, text).count("<!-- end -->") == 2
    assert "one" not in write({"kernels": "two"}, text)
    assert "# Measured" in text and "two" in write({"kernels": "two"}, text)


def test_a_contender_that_fails_is_an_answer(modules: dict[str, Any]) -> None:
    worker = modules["all"].Worker("calque", 1)
    try:
        assert worker.ask("version")["version"] == f"calque {calque.__version__}"
        assert "KeyError" in worker.ask("kernel", "no such kernel", 0.0)["error"]
        assert worker.ask("kernel", "gemm 64x64x64 nn", 0.0)["seconds"] > 0
        worker.process.kill()
        assert "ended with status" in worker.ask("version")["error"]
        assert "version" in worker.ask("version")
    finally:
        worker.close()
    unknown = modules["all"].Session(["no such contender"], 1, 1, 1.0)
    unknown.close()
    assert "KeyError" in unknown.absent["no such contender"]


def test_the_hybrid_contender_replays_its_steps(modules: dict[str, Any]) -> None:
    worker = modules["worker"]
    hybrid = worker.Hybrid("calque hybrid", 1)
    calque.stats(reset=True)
    job = modules["models"].JOBS["mlp"]
    x, y = (calque.tensor(a) for a in job.batch(np.random.default_rng(0), 4))
    model = job.model(calque)
    run = hybrid.wrap_step(job, model, job.optimizer(calque, model), x, y)
    losses = [run() for _ in range(5)]
    assert calque.stats()["hybridize"]["replays"] >= 2
    hybrid.check()
    assert losses[-1] < losses[0]


def test_a_hybrid_contender_that_is_not_replayed_says_so(modules: dict[str, Any]) -> None:
    hybrid = modules["worker"].Hybrid("calque hybrid", 1)
    calque.stats(reset=True)
    with pytest.raises(RuntimeError, match="no call was replayed"):
        hybrid.check()


def test_the_launches_of_a_hybridized_step_are_found(modules: dict[str, Any]) -> None:
    call = modules["overhead"].train_step(calque, calque.compile)
    for _ in range(40):  # interpreted, recorded, compiled
        call()
    assert modules["overhead"].kernels(call) > 0


def test_the_step_table_names_the_best_peer(modules: dict[str, Any]) -> None:
    row = modules["all"].Row("step", "x", {"torch": [4.0], "jax": [3.0], "calque": [1.0], "calque hybrid": [0.5]})
    text = modules["all"].step_table([row])
    assert "| jax | 3.00 | 6.00 |" in text
    assert "Geometric mean of best peer / calque hybrid: 6.00" in text


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18-32", "lstm", "gpt"])
def test_the_jax_steps_compute_what_the_torch_steps_do(modules: dict[str, Any], name: str) -> None:
    pytest.importorskip("jax")
    torch = pytest.importorskip("torch")
    jax_steps = importlib.import_module("jax_steps")
    jax_steps.compare(name, torch, 2)
